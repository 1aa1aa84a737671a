//! Stop requests: Ctrl-C, and the signals sent by a service manager or a closing terminal.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// The signals that request a stop.
const ALL: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// A stop was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Receives the signals that request a stop, so that they do not kill this process. Clones share the received signals;
/// the default value receives none.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    requested: Arc<AtomicBool>,
    received: Option<Arc<Received>>,
}

#[derive(Debug)]
struct Received {
    /// The signal received last.
    last: Arc<AtomicUsize>,
    /// Contains one byte for each signal.
    pipe: UnixStream,
}

impl StopSignal {
    /// Receives SIGINT, SIGTERM and SIGHUP from now on.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn listen() -> io::Result<StopSignal> {
        StopSignal::listen_for(&ALL)
    }

    /// Receives these signals from now on; other signals keep their disposition.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn listen_for(signals: &[Signal]) -> io::Result<StopSignal> {
        let (requested, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        for signal in signals.iter().map(|signal| signal.as_raw()) {
            signal_hook::flag::register_usize(signal, Arc::clone(&last), signal.unsigned_abs() as usize)?;
            signal_hook::flag::register(signal, Arc::clone(&requested))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(StopSignal { requested, received: Some(Arc::new(Received { last, pipe: reader })) })
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Returns an error if a stop was requested.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.is_requested() { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps until a deadline, or until a stop is requested.
    ///
    /// # Errors
    /// [`Interrupted`] if a stop was requested.
    pub fn sleep_until(&self, deadline: Instant) -> Result<(), Interrupted> {
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            match &self.received {
                Some(received) => {
                    let timeout = Timespec::try_from(left.min(Duration::from_secs(3600))).ok();
                    let _ = poll(&mut [PollFd::new(&received.pipe, PollFlags::IN)], timeout.as_ref());
                }
                None => std::thread::sleep(left),
            }
        }
    }

    /// Waits for the next signal; requires a tokio runtime.
    pub async fn next(&mut self) -> Signal {
        let Some(received) = &self.received else { return std::future::pending().await };
        let pipe = received.pipe.try_clone().and_then(tokio::net::UnixStream::from_std);
        let pipe = pipe.expect("called in a tokio runtime");
        while pipe.readable().await.is_err() || pipe.try_read(&mut [0; 1]).is_err() {}
        let last = i32::try_from(received.last.load(Ordering::Relaxed)).ok();
        last.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_never_requested() {
        let never = StopSignal::default();
        assert_eq!(never.sleep_until(Instant::now() + Duration::from_millis(5)), Ok(()));
        assert!(!never.is_requested());
    }

    /// Sends SIGHUP to this process, which no other test of this crate receives.
    #[test]
    fn signal_ends_a_sleep_and_is_received_once() {
        let mut stop = StopSignal::listen_for(&[Signal::HUP]).expect("signal handlers can be installed");
        assert_eq!(stop.check(), Ok(()));
        rustix::process::kill_process(rustix::process::getpid(), Signal::HUP).expect("signal is sent");
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(stop.sleep_until(far), Err(Interrupted));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
        runtime.block_on(async {
            assert_eq!(stop.next().await, Signal::HUP);
            let again = tokio::time::timeout(Duration::from_millis(20), stop.next());
            assert!(again.await.is_err(), "each signal is received once");
        });
    }
}
