//! Passes the gateway's log records to Python's `logging`: from any thread into a queue that a Python thread reads.
//!
//! The gateway never waits for Python: records that do not fit into the queue are dropped.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, Once, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The length of the queue.
const QUEUE_LEN: usize = 1024;

/// The level INFO of `logging`.
const INFO: u32 = 20;

/// A level of `logging`, and a message.
type Record = (u32, String);

static QUEUE: Mutex<Option<SyncSender<Record>>> = Mutex::new(None);
static MIN_LEVEL: AtomicU32 = AtomicU32::new(INFO);
static SUBSCRIBED: Once = Once::new();

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Logs>()
}

/// The log records of this process's gateway from now on, for one reader at a time.
#[pyclass(frozen, module = "plait._plait")]
struct Logs {
    records: Mutex<Receiver<Record>>,
}

#[pymethods]
impl Logs {
    /// Skips records below both `level` and INFO.
    #[new]
    fn new(level: u32) -> Logs {
        MIN_LEVEL.store(level.min(INFO), Ordering::Relaxed);
        SUBSCRIBED.call_once(|| {
            // No other subscriber exists in this copy of the library.
            let _ = set_global_default(ToPython);
        });
        let (sender, records) = sync_channel(QUEUE_LEN);
        *queue() = Some(sender);
        Logs { records: Mutex::new(records) }
    }

    /// Waits for the next record; `None` once closed and drained.
    fn next(&self, py: Python<'_>) -> Option<Record> {
        py.detach(|| self.records.lock().unwrap_or_else(PoisonError::into_inner).recv().ok())
    }

    /// Stops recording.
    fn close(&self) {
        *queue() = None;
    }
}

fn queue() -> std::sync::MutexGuard<'static, Option<SyncSender<Record>>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the events of plait's crates.
struct ToPython;

impl Subscriber for ToPython {
    /// The level changes with every gateway, so the decision must not be cached.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("plait_")
            && number(metadata.level()) >= MIN_LEVEL.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        if let Some(queue) = &*queue() {
            let _ = queue.try_send((number(event.metadata().level()), text.0));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn number(level: &Level) -> u32 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => INFO,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// A message, followed by its fields as `name=value`.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
