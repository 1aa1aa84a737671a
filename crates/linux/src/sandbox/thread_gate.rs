//! Holds the threads of a runtime back until their process is confined.

use std::fs;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{MissingFeature, Sandbox, SandboxError};

/// How long threads may take to reach the gate: each was just created, on a machine that may be busy.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Where new threads wait until the process is confined.
#[derive(Default)]
pub struct ThreadGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads that have arrived.
    waiting: usize,
    opened: Option<Opened>,
}

#[derive(Clone)]
enum Opened {
    Unconfined,
    Confined(Arc<Sandbox>),
}

impl ThreadGate {
    /// Every thread calls this first. Those that arrive before the process is confined wait, and are confined like it; those
    /// created later inherit it.
    ///
    /// If a thread cannot be confined, this ends the process.
    pub fn pass(&self) {
        let mut state = self.state();
        if state.opened.is_some() {
            return;
        }
        state.waiting += 1;
        let opened = loop {
            match &state.opened {
                Some(opened) => break opened.clone(),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        if let Opened::Confined(sandbox) = opened
            && sandbox.enter().is_err()
        {
            // The same calls succeeded in the thread that opened the gate. One unconfined thread is a way out for all.
            process::abort();
        }
    }

    /// Confines the calling thread and all others, which must be waiting here, and lets them pass. Returns what the kernel
    /// lacks.
    ///
    /// # Errors
    /// See [`SandboxError`]; the others still wait.
    pub fn confine(&self, sandbox: Sandbox) -> Result<Vec<MissingFeature>, SandboxError> {
        let begin = Instant::now();
        let mut state = loop {
            let state = self.state();
            let (expected, waiting) = (others(), state.waiting);
            if expected == waiting {
                break state;
            }
            drop(state);
            if begin.elapsed() > ARRIVAL_TIMEOUT {
                return Err(SandboxError::Threads { expected, waiting });
            }
            thread::sleep(POLL_INTERVAL);
        };
        sandbox.enter()?;
        let missing = sandbox.missing().to_vec();
        state.opened = Some(Opened::Confined(Arc::new(sandbox)));
        drop(state);
        self.changed.notify_all();
        Ok(missing)
    }

    /// Lets threads pass without restrictions, unless the process is confined.
    pub fn open(&self) {
        self.state().opened.get_or_insert(Opened::Unconfined);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of this process's other threads.
fn others() -> usize {
    fs::read_dir("/proc/self/task").map_or(usize::MAX, |threads| threads.count() - 1)
}
