//! What the gateway says, on its way to Python's `logging`: from any thread into a queue that a thread of Python's reads.
//!
//! A gateway never waits for Python: what does not fit into the queue is lost.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, Once, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Records that wait to be read.
const MAX_WAITING: usize = 1024;

/// `logging`'s numbers for levels.
const INFO: u32 = 20;

/// Level as `logging` numbers them, and text.
type Record = (u32, String);

static QUEUE: Mutex<Option<SyncSender<Record>>> = Mutex::new(None);
static LEAST: AtomicU32 = AtomicU32::new(INFO);
static SUBSCRIBED: Once = Once::new();

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Logs>()
}

/// What this process's gateway says from now on; there is one reader at a time.
#[pyclass(frozen, module = "plait._plait")]
struct Logs {
    records: Mutex<Receiver<Record>>,
}

#[pymethods]
impl Logs {
    /// Records below `level` are not made, unless they are of INFO or above.
    #[new]
    fn new(level: u32) -> Logs {
        LEAST.store(level.min(INFO), Ordering::Relaxed);
        SUBSCRIBED.call_once(|| {
            // This module has the only gateway and the only subscriber of its copy of the library.
            let _ = set_global_default(ToPython);
        });
        let (sender, records) = sync_channel(MAX_WAITING);
        *queue() = Some(sender);
        Logs { records: Mutex::new(records) }
    }

    /// Waits for the next record; `None` once closed, when all were read.
    fn next(&self, py: Python<'_>) -> Option<Record> {
        py.detach(|| self.records.lock().unwrap_or_else(PoisonError::into_inner).recv().ok())
    }

    /// Nothing is recorded any more.
    fn close(&self) {
        *queue() = None;
    }
}

fn queue() -> std::sync::MutexGuard<'static, Option<SyncSender<Record>>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the messages of plait's own crates.
struct ToPython;

impl Subscriber for ToPython {
    /// The level changes with every gateway, so nothing is decided once for all.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("plait_")
            && number(metadata.level()) >= LEAST.load(Ordering::Relaxed)
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

/// A message, and after it what else was said, as `name=value`.
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
