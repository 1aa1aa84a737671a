//! Requests to stop: Ctrl-C, and the signals by which a service manager or a closed terminal ends a program.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// Every signal that asks a program to stop.
const ALL: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// A stop was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Signals that ask this program to stop, instead of ending it at once. Clones share what they receive; the default
/// receives nothing.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    requested: Arc<AtomicBool>,
    received: Option<Arc<Received>>,
}

#[derive(Debug)]
struct Received {
    /// The signal received last.
    last: Arc<AtomicUsize>,
    /// Has one byte for each signal.
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

    /// Receives these signals from now on; others keep their effect.
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

    /// Fails once a stop was requested.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.is_requested() { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps until a time, or until a stop is requested, which is the error.
    ///
    /// # Errors
    /// [`Interrupted`].
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

    /// Waits for the next signal, within a tokio runtime.
    pub async fn next(&mut self) -> Signal {
        let Some(received) = &self.received else { return std::future::pending().await };
        let pipe = received.pipe.try_clone().and_then(tokio::net::UnixStream::from_std);
        let pipe = pipe.expect("a socket can be watched by the runtime");
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

    /// Sent to this process: nothing else in these tests listens for SIGHUP.
    #[test]
    fn signal_ends_a_sleep_and_is_received_once() {
        let mut stop = StopSignal::listen_for(&[Signal::HUP]).expect("signal handlers can be installed");
        assert_eq!(stop.check(), Ok(()));
        rustix::process::kill_process(rustix::process::getpid(), Signal::HUP).expect("sent to itself");
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(stop.sleep_until(far), Err(Interrupted));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            assert_eq!(stop.next().await, Signal::HUP);
            let again = tokio::time::timeout(Duration::from_millis(20), stop.next());
            assert!(again.await.is_err(), "each signal is received once");
        });
    }
}
