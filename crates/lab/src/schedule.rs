//! Applies scheduled events to links, and records the outcome.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::error::Error;
use crate::link::Link;
use crate::topology::Event;

/// An event that was applied.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The link's name.
    pub link: String,
    /// The event, with its scheduled time.
    pub event: Event,
    /// When its application began, relative to the start of the clock.
    pub began: Duration,
    /// When it had been applied.
    pub done: Duration,
    /// The wall-clock time, comparable with capture timestamps.
    pub wall: SystemTime,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// A running schedule; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Schedule {
    applied: Arc<Mutex<Vec<Applied>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Schedule {
    /// Starts the clock and the schedule.
    pub(crate) fn start(mut events: Vec<(Link, Event)>) -> Result<Self, Error> {
        let clock = Instant::now();
        events.sort_by_key(|(_, event)| event.at);
        let applied = Arc::new(Mutex::new(Vec::new()));
        let record = applied.clone();
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            for (link, event) in events {
                let left = (clock + event.at).saturating_duration_since(Instant::now());
                if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let (began, wall) = (clock.elapsed(), SystemTime::now());
                let error = link.apply(&event.action).err().map(|error| error.to_string());
                if let Some(error) = &error {
                    tracing::error!("cannot apply {} at {:?}: {error}", event.action.name(), event.at);
                }
                let done = clock.elapsed();
                let entry = Applied { link: link.name().into(), event, began, done, wall, error };
                record.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
            }
        };
        let thread = thread::Builder::new().name("lab-events".into()).spawn(run);
        let thread =
            thread.map_err(|source| Error::Start { program: "the thread of events".into(), source })?;
        Ok(Self { applied, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn applied(&self) -> Vec<Applied> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported by the thread.
            let _ = thread.join();
        }
    }
}
