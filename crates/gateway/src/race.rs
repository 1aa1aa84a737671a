//! Races connection attempts to several addresses as RFC 8305 ("Happy Eyeballs") says.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::socket::canonical;

/// Before the next attempt starts beside one that is not answered (the Connection Attempt Delay of RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Runs attempts as section 5 says, each when the one before has failed, or after a delay, until one succeeds.
///
/// # Errors
/// Of the last attempt that had a route, if there was one.
pub(crate) async fn race<A, T, F>(mut waiting: VecDeque<A>, attempt: impl Fn(A) -> F) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut failure = Failure::default();
    // Those that lose are cancelled when it is dropped.
    let mut running = JoinSet::new();
    while let Some(next) = waiting.pop_front() {
        running.spawn(attempt(next));
        let done = match waiting.is_empty() {
            true => Ok(running.join_next().await),
            false => tokio::time::timeout(ATTEMPT_DELAY, running.join_next()).await,
        };
        match done {
            Ok(Some(Ok(Ok(connected)))) => return Ok(connected),
            Ok(Some(Ok(Err(error)))) => failure.add(error),
            Ok(Some(Err(_)) | None) | Err(_) => {}
        }
    }
    while let Some(done) = running.join_next().await {
        match done {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => failure.add(error),
            Err(_) => {}
        }
    }
    Err(failure.0.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// The error that tells most.
#[derive(Default)]
struct Failure(Option<io::Error>);

impl Failure {
    fn add(&mut self, error: io::Error) {
        // As of a host without IPv6.
        if self.0.is_none() || error.kind() != io::ErrorKind::NetworkUnreachable {
            self.0 = Some(error);
        }
    }
}

/// The addresses with alternating families, the first one's first (RFC 8305, section 4).
pub(crate) fn alternate_families(addresses: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let is_ipv4 = addresses.first().is_some_and(|first| canonical(*first).is_ipv4());
    let (first, other): (Vec<_>, Vec<_>) =
        addresses.iter().partition(|address| canonical(**address).is_ipv4() == is_ipv4);
    let most = first.len().max(other.len());
    (0..most).flat_map(move |index| first.get(index).copied().into_iter().chain(other.get(index).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn error_is_the_last_one_with_a_route() {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};
        let of = async |kinds: &[io::ErrorKind]| {
            let attempts = kinds.iter().copied().collect();
            let raced: io::Result<()> =
                race(attempts, |kind| async move { Err(io::Error::from(kind)) }).await;
            raced.expect_err("all fail").kind()
        };
        assert_eq!(of(&[ConnectionRefused, NetworkUnreachable]).await, ConnectionRefused);
        assert_eq!(of(&[NetworkUnreachable, ConnectionRefused]).await, ConnectionRefused);
        assert_eq!(of(&[ConnectionRefused, HostUnreachable]).await, HostUnreachable);
        assert_eq!(of(&[NetworkUnreachable]).await, NetworkUnreachable);
        assert_eq!(of(&[]).await, NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn next_attempt_starts_beside_one_that_is_not_answered() {
        let start = tokio::time::Instant::now();
        let raced = race([true, false].into(), |silent| async move {
            if silent {
                std::future::pending::<()>().await;
            }
            Ok(silent)
        });
        assert!(!raced.await.expect("the second is answered"));
        assert_eq!(start.elapsed(), ATTEMPT_DELAY);
    }

    #[test]
    fn families_alternate() {
        let order = |addresses: &[&str]| {
            let addresses: Vec<SocketAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            alternate_families(&addresses).map(|address| address.to_string()).collect::<Vec<_>>()
        };
        let (a, b, c, d) = ("[2001:db8::1]:1", "[2001:db8::2]:1", "192.0.2.1:1", "192.0.2.2:1");
        assert_eq!(order(&[a, b, c]), [a, c, b]);
        assert_eq!(order(&[c, d, a, b]), [c, a, d, b]);
        assert_eq!(order(&[c]), [c]);
        assert!(order(&[]).is_empty());
    }
}
