//! Events that the programs emit: matched packets, new connections and subflows.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use plait_linux::mptcp::{Key, Token};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use zeroize::Zeroize;

use super::error::EngineError;
use super::flows::FourTuple;
use super::namespace::Namespace;
use super::objects::Objects;
use super::request::{Feature, FeatureRequest};
use super::state::{CounterOwner, State};
use crate::bindings::{
    PLAIT_DROP, PLAIT_EGRESS, PLAIT_EVENT_CONNECTION, PLAIT_EVENT_CUSTOM, PLAIT_EVENT_PACKET,
    PLAIT_EVENT_SUBFLOW, PLAIT_EVENT_WITHHELD, PLAIT_REDIRECT, PLAIT_REFLECT, plait_event,
};
use crate::model::{Hook, PacketKind};

/// An event, with the packet that caused it.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// The time by CLOCK_MONOTONIC.
    pub time: Duration,
    /// The hook.
    pub hook: Hook,
    /// The index of the interface.
    pub interface: u32,
    /// The subflow of the packet.
    #[serde(flatten)]
    pub tuple: FourTuple,
    /// The token of its connection at this host, if it is known.
    pub token: Option<Token>,
    /// The kinds of the packet.
    #[serde(serialize_with = "names")]
    pub kinds: Vec<PacketKind>,
    /// The TCP sequence number.
    pub sequence: u32,
    /// The TCP acknowledgment number.
    pub acknowledgment: u32,
    /// Payload in bytes.
    pub payload: u32,
    /// The data sequence number of its DSS mapping, if it has one (RFC 8684, section 3.3.1).
    pub data_sequence: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened to a packet.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// Chains matched it; emitted only while [tracing](super::Engine::trace).
    Matched {
        /// The chains, at most the first 16.
        chains: Vec<ChainMatch>,
        /// What was done with the packet.
        verdict: Verdict,
        /// A header was modified.
        changed: bool,
    },
    /// It carries MP_CAPABLE (actor `get_connection`).
    Connection {
        /// The keys, if the actor includes them. Never serialized.
        #[serde(skip)]
        keys: Option<Keys>,
    },
    /// It carries MP_JOIN (actor `get_subflow`).
    Subflow {
        /// The address identifier of MP_JOIN.
        address_id: u8,
        /// Its flag B: the sender requests that this subflow be used as a backup.
        backup: bool,
    },
    /// ADD_ADDR was removed (actor `block_subflow`).
    Withheld {
        /// The option as it was in the packet.
        option: Vec<u8>,
    },
    /// Emitted by a custom program.
    Custom {
        /// The values it passed.
        values: [u64; 2],
    },
    /// An event that this version does not know.
    Other {
        /// Its number.
        kind: u32,
    },
}

/// A chain that matched a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainMatch {
    /// The policy.
    pub policy: String,
    /// The chain.
    pub chain: String,
    /// At least one of its actors took effect.
    pub hit: bool,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Passed on.
    Pass,
    /// Dropped.
    Drop,
    /// Sent out of another interface.
    Redirect,
    /// Sent back to its source, as an answer.
    Answer,
}

/// The keys of a connection (RFC 8684, section 3.1), as far as its handshake revealed them.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The initiator's key.
    pub initiator: Key,
    /// The responder's key.
    pub responder: Option<Key>,
}

/// Reads the events; there can be one reader at a time across all processes.
#[derive(Debug)]
pub struct Events {
    ring: RingBuffer<'static>,
    pending: Arc<Mutex<PendingEvents>>,
    namespace: Arc<Namespace>,
    chains: BTreeMap<u32, CounterOwner>,
    /// Holds the lock that other readers check.
    _reading: OwnedFd,
    tracing: Option<FeatureRequest>,
}

impl Events {
    /// With `traced`, programs emit an event for every match until this is dropped.
    pub(super) fn open(
        namespace: &Arc<Namespace>,
        objects: Objects,
        traced: bool,
    ) -> Result<Events, EngineError> {
        let directory = namespace.state();
        let reading = lock_reader(&directory)?.ok_or(EngineError::EventsTaken)?;
        let pending = Arc::new(Mutex::new(PendingEvents(VecDeque::new())));
        let map =
            MapHandle::try_from(objects.map("events")?).map_err(EngineError::kernel("open the events"))?;
        let ring = ring(&map, Arc::clone(&pending)).map_err(EngineError::kernel("open the events"))?;
        let tracing = if traced {
            Some(FeatureRequest::start(Feature::Tracing, Arc::clone(namespace), objects)?)
        } else {
            None
        };
        let namespace = Arc::clone(namespace);
        Ok(Events { ring, pending, namespace, chains: BTreeMap::new(), _reading: reading, tracing })
    }

    /// The next event, waiting for at most `timeout`.
    ///
    /// There are none after all policies were unloaded.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event>, EngineError> {
        let until = Instant::now() + timeout;
        loop {
            let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).0.pop_front();
            if let Some(event) = pending {
                return Ok(Some(Event::new(event, &self.chains)));
            }
            let left = until.saturating_duration_since(Instant::now());
            let polled = self.ring.poll(left.min(MAX_WAIT));
            match polled {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => {
                    return Err(EngineError::kernel("read the events")(error));
                }
                _ => {}
            }
            if !self.pending.lock().unwrap_or_else(PoisonError::into_inner).0.is_empty() {
                // The loaded policies may have changed.
                self.chains = State::loaded(&self.namespace.state())?.unwrap_or_default().counters;
            } else if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // Before the lock is released, so that this does not cancel the request of the next reader.
        drop(self.tracing.take());
    }
}

/// Events that were received but not yet returned. They may contain keys, so Debug prints only their number.
struct PendingEvents(VecDeque<plait_event>);

impl fmt::Debug for PendingEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events", self.0.len())
    }
}

impl Drop for PendingEvents {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|event| event.keys.zeroize());
    }
}

/// Reserves the events for this process until the result is dropped; `None`: another process reads them.
fn lock_reader(directory: &Path) -> Result<Option<OwnedFd>, EngineError> {
    let file = File::open(directory).map_err(EngineError::directory("open", directory))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file.into())),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(EngineError::directory("lock", directory)(error.into())),
    }
}

fn ring(map: &MapHandle, pending: Arc<Mutex<PendingEvents>>) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(map, move |bytes: &[u8]| {
        if let Ok(event) = bytemuck::try_pod_read_unaligned(bytes) {
            pending.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(event);
        }
        0
    })?;
    builder.build()
}

impl Event {
    fn new(mut event: plait_event, chains: &BTreeMap<u32, CounterOwner>) -> Event {
        let decoded = Event {
            time: Duration::from_nanos(event.nanoseconds),
            hook: if u32::from(event.hook) == PLAIT_EGRESS { Hook::Egress } else { Hook::Ingress },
            interface: event.interface,
            tuple: FourTuple::new(&event.flow),
            token: (event.token != 0).then_some(Token(event.token)),
            kinds: kinds(event.kinds),
            sequence: event.sequence,
            acknowledgment: event.acknowledgment,
            payload: event.payload,
            data_sequence: kinds(event.kinds).contains(&PacketKind::Mapping).then_some(event.data_sequence),
            kind: EventKind::new(&event, chains),
        };
        event.keys.zeroize();
        decoded
    }
}

impl EventKind {
    fn new(event: &plait_event, chains: &BTreeMap<u32, CounterOwner>) -> EventKind {
        match event.kind {
            PLAIT_EVENT_PACKET => EventKind::Matched {
                chains: matched(event, chains),
                verdict: Verdict::new(event.verdict.into()),
                changed: event.changed != 0,
            },
            PLAIT_EVENT_CONNECTION => EventKind::Connection { keys: Keys::new(event.keys) },
            PLAIT_EVENT_SUBFLOW => {
                EventKind::Subflow { address_id: event.address_id, backup: event.backup != 0 }
            }
            PLAIT_EVENT_WITHHELD => EventKind::Withheld { option: option(&event.option) },
            PLAIT_EVENT_CUSTOM => EventKind::Custom { values: event.values },
            kind => EventKind::Other { kind },
        }
    }
}

impl Verdict {
    /// From `enum plait_verdict`.
    pub(super) fn new(number: u32) -> Verdict {
        match number {
            PLAIT_DROP => Verdict::Drop,
            PLAIT_REDIRECT => Verdict::Redirect,
            PLAIT_REFLECT => Verdict::Answer,
            _ => Verdict::Pass,
        }
    }
}

impl Keys {
    fn new([initiator, responder]: [u64; 2]) -> Option<Keys> {
        // The kernel stores the bytes from the wire as a big-endian number.
        let key = |number: u64| (number != 0).then(|| Key::new(number.to_be_bytes()));
        Some(Keys { initiator: key(initiator)?, responder: key(responder) })
    }
}

/// The kinds in a bit set of `enum plait_kind`.
pub(super) fn kinds(bits: u64) -> Vec<PacketKind> {
    PacketKind::ALL.iter().copied().filter(|kind| bits & u64::from(kind.bit()) != 0).collect()
}

fn matched(event: &plait_event, chains: &BTreeMap<u32, CounterOwner>) -> Vec<ChainMatch> {
    let counters = event.chains.iter().take(event.chain_count.into()).enumerate();
    let matched = counters.filter_map(|(index, counter)| {
        let counted = chains.get(&u32::from(*counter))?;
        let hit = event.chains_hit >> index & 1 != 0;
        Some(ChainMatch { policy: counted.policy.clone(), chain: counted.chain.clone(), hit })
    });
    matched.collect()
}

/// An MPTCP option; its second byte is its length.
fn option(bytes: &[u8; 32]) -> Vec<u8> {
    bytes[..usize::from(bytes[1]).min(bytes.len())].to_vec()
}

fn names<S: serde::Serializer>(kinds: &[PacketKind], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(kinds.iter().map(|kind| kind.name()))
}

/// A waiting reader wakes up this often, to notice signals.
const MAX_WAIT: Duration = Duration::from_millis(500);
