//! Waiting for a condition, until a limit or a stop signal.

use std::time::{Duration, Instant};

use plait_linux::signal::{Interrupted, StopSignal};

use crate::error::Error;

/// The time between two checks of the condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl From<Interrupted> for Error {
    fn from(Interrupted: Interrupted) -> Error {
        Error::Interrupted
    }
}

/// Polls `ready` until it returns a value. A stop signal ends the wait, and so does `limit`, with an
/// [`Error::TimedOut`] that names `what`.
pub(crate) fn wait_for<T>(
    stop: &StopSignal,
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let end = Instant::now() + limit;
    loop {
        stop.check()?;
        if let Some(result) = ready()? {
            return Ok(result);
        }
        if Instant::now() >= end {
            return Err(Error::TimedOut { what: what.into(), limit, stderr: String::new() });
        }
        stop.sleep_until(Instant::now() + POLL_INTERVAL)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_by_success_and_by_timeout() {
        let stop = StopSignal::default();
        let mut left = 3;
        let counted = wait_for(&stop, "three", Duration::from_secs(60), || {
            left -= 1;
            Ok((left == 0).then_some("done"))
        });
        assert_eq!(counted.expect("counts down"), "done");

        let never = wait_for::<()>(&stop, "nothing", Duration::ZERO, || Ok(None));
        assert!(matches!(never, Err(Error::TimedOut { what, .. }) if what == "nothing"));
    }
}
