//! Stopping in order: a lab's owner learns of Ctrl-C or SIGTERM as an error, unwinds, and so removes what it made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Error;

const STEP: Duration = Duration::from_millis(5);

/// Whether somebody asked to stop. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that SIGINT, SIGTERM and SIGHUP set from now on, instead of ending the process.
    pub fn on_signals() -> io::Result<Self> {
        let this = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, this.0.clone())?;
        }
        Ok(this)
    }

    /// [`Error::Interrupted`] once somebody asked to stop.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Asks `ready` again and again until it gives something; an interrupt ends the wait, and so does `limit`, with
    /// [`Error::TimedOut`] naming `what`.
    pub fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + limit;
        loop {
            self.check()?;
            if let Some(result) = ready()? {
                return Ok(result);
            }
            if Instant::now() >= end {
                return Err(Error::TimedOut { what: what.into(), limit, stderr: String::new() });
            }
            sleep(STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_success_by_time_and_by_interrupt() {
        let interrupt = Interrupt::default();
        let mut left = 3;
        let counted = interrupt.wait("three", Duration::from_secs(60), || {
            left -= 1;
            Ok((left == 0).then_some("done"))
        });
        assert_eq!(counted.expect("counts down"), "done");

        let never = interrupt.wait::<()>("nothing", Duration::ZERO, || Ok(None));
        assert!(matches!(never, Err(Error::TimedOut { what, .. }) if what == "nothing"));

        interrupt.0.store(true, Ordering::Relaxed);
        let stopped = interrupt.wait::<()>("nothing", Duration::from_secs(60), || Ok(None));
        assert!(matches!(stopped, Err(Error::Interrupted)));
    }
}
