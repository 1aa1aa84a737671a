//! What programs tell while packets pass: which packets matched, which connections and subflows begin.

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

use super::Error;
use super::flows::Ends;
use super::objects::Objects;
use super::place::Place;
use super::request::{Request, Wanted};
use super::state::{Counted, State};
use crate::bindings::{
    PLAIT_ANSWER, PLAIT_DROP, PLAIT_EGRESS, PLAIT_EVENT_CONNECTION, PLAIT_EVENT_OWN, PLAIT_EVENT_PACKET,
    PLAIT_EVENT_SUBFLOW, PLAIT_EVENT_WITHHELD, PLAIT_REDIRECT, plait_event,
};
use crate::{Hook, Kind};

/// Something that happened to a packet.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// When, by CLOCK_MONOTONIC.
    pub time: Duration,
    /// Where.
    pub hook: Hook,
    /// Index of the interface.
    pub interface: u32,
    /// The subflow of the packet.
    #[serde(flatten)]
    pub ends: Ends,
    /// Of its connection at this host, if it is known.
    pub token: Option<Token>,
    /// What the packet is and carries.
    #[serde(serialize_with = "names")]
    pub kinds: Vec<Kind>,
    /// TCP's sequence number.
    pub sequence: u32,
    /// TCP's acknowledgment number.
    pub acknowledgment: u32,
    /// Payload, bytes.
    pub payload: u32,
    /// The data sequence number of its DSS mapping, if it has one (RFC 8684, section 3.3.1).
    pub data_sequence: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened to a packet.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// Chains matched it; told while [tracing](super::Engine::trace).
    Matched {
        /// The chains, the first 16 of them.
        chains: Vec<Matched>,
        /// What became of the packet.
        verdict: Verdict,
        /// Something in its header was changed.
        changed: bool,
    },
    /// It carries MP_CAPABLE, and the actor `get_connection` was asked.
    Connection {
        /// The keys, if the actor was asked for them. Never serialised.
        #[serde(skip)]
        keys: Option<Keys>,
    },
    /// It carries MP_JOIN, and the actor `get_subflow` was asked.
    Subflow {
        /// The address id of MP_JOIN.
        address_id: u8,
        /// Its flag B: who sends it asks not to be sent to on this subflow but as a backup.
        backup: bool,
    },
    /// ADD_ADDR was withheld.
    Withheld {
        /// The option as it stood in the packet.
        option: Vec<u8>,
    },
    /// What a program of the user's own told.
    Own {
        /// Its numbers.
        values: [u64; 2],
    },
    /// Something that this version does not know.
    Other {
        /// Its number.
        kind: u32,
    },
}

/// A chain that matched a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Matched {
    /// The policy.
    pub policy: String,
    /// The chain.
    pub chain: String,
    /// One of its actors did what it is for.
    pub hit: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It ends here.
    Drop,
    /// It leaves by another interface.
    Redirect,
    /// It goes back to where it came from, as an answer.
    Answer,
}

/// The keys of a connection (RFC 8684, section 3.1), as far as its handshake has told them.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Of who began it.
    pub initiator: Key,
    /// Of the other end.
    pub responder: Option<Key>,
}

/// The reader of events: one at a time, of all processes.
#[derive(Debug)]
pub struct Events {
    ring: RingBuffer<'static>,
    arrived: Arc<Mutex<Arrived>>,
    place: Arc<Place>,
    chains: BTreeMap<u32, Counted>,
    /// What says to other processes that there is a reader.
    _reading: OwnedFd,
    tracing: Option<Request>,
}

impl Events {
    /// With `traced`, programs tell of packets that match as long as this lives.
    pub(super) fn open(place: &Arc<Place>, objects: Objects, traced: bool) -> Result<Events, Error> {
        let directory = place.state();
        let reading = reserve(&directory)?.ok_or(Error::EventsTaken)?;
        let arrived = Arc::new(Mutex::new(Arrived(VecDeque::new())));
        let map = MapHandle::try_from(objects.map("events")?).map_err(Error::kernel("open the events"))?;
        let ring = ring(&map, Arc::clone(&arrived)).map_err(Error::kernel("open the events"))?;
        let tracing =
            if traced { Some(Request::start(Wanted::Tracing, Arc::clone(place), objects)?) } else { None };
        let place = Arc::clone(place);
        Ok(Events { ring, arrived, place, chains: BTreeMap::new(), _reading: reading, tracing })
    }

    /// The next event, if one happens before the time is over.
    ///
    /// There are none any more once all policies are unloaded.
    ///
    /// # Errors
    /// The kernel does not give them.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Event>, Error> {
        let until = Instant::now() + timeout;
        loop {
            let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner).0.pop_front();
            if let Some(event) = arrived {
                return Ok(Some(Event::new(event, &self.chains)));
            }
            let left = until.saturating_duration_since(Instant::now());
            let polled = self.ring.poll(left.min(LONGEST_WAIT));
            match polled {
                Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => {
                    return Err(Error::kernel("read the events")(error));
                }
                _ => {}
            }
            if !self.arrived.lock().unwrap_or_else(PoisonError::into_inner).0.is_empty() {
                // Which policies are loaded may have changed since.
                self.chains = State::loaded(&self.place.state())?.unwrap_or_default().counters;
            } else if left.is_zero() {
                return Ok(None);
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // Before another process may read, so that its own request stands.
        drop(self.tracing.take());
    }
}

/// Events that have not been asked for yet: they may hold keys, which nothing prints.
struct Arrived(VecDeque<plait_event>);

impl fmt::Debug for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events", self.0.len())
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|event| event.keys.zeroize());
    }
}

/// Says that this process reads events, as long as the result lives; `None` if another does.
fn reserve(directory: &Path) -> Result<Option<OwnedFd>, Error> {
    let file = File::open(directory).map_err(Error::directory("open", directory))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file.into())),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(Error::directory("lock", directory)(error.into())),
    }
}

fn ring(map: &MapHandle, arrived: Arc<Mutex<Arrived>>) -> libbpf_rs::Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(map, move |bytes: &[u8]| {
        if let Ok(event) = bytemuck::try_pod_read_unaligned(bytes) {
            arrived.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(event);
        }
        0
    })?;
    builder.build()
}

impl Event {
    fn new(mut event: plait_event, chains: &BTreeMap<u32, Counted>) -> Event {
        let made = Event {
            time: Duration::from_nanos(event.nanoseconds),
            hook: if u32::from(event.hook) == PLAIT_EGRESS { Hook::Egress } else { Hook::Ingress },
            interface: event.interface,
            ends: Ends::new(&event.flow),
            token: (event.token != 0).then_some(Token(event.token)),
            kinds: kinds(event.kinds),
            sequence: event.sequence,
            acknowledgment: event.acknowledgment,
            payload: event.payload,
            data_sequence: kinds(event.kinds).contains(&Kind::Mapping).then_some(event.data_sequence),
            what: What::new(&event, chains),
        };
        event.keys.zeroize();
        made
    }
}

impl What {
    fn new(event: &plait_event, chains: &BTreeMap<u32, Counted>) -> What {
        match event.kind {
            PLAIT_EVENT_PACKET => What::Matched {
                chains: matched(event, chains),
                verdict: Verdict::new(event.verdict.into()),
                changed: event.changed != 0,
            },
            PLAIT_EVENT_CONNECTION => What::Connection { keys: Keys::new(event.keys) },
            PLAIT_EVENT_SUBFLOW => What::Subflow { address_id: event.address_id, backup: event.backup != 0 },
            PLAIT_EVENT_WITHHELD => What::Withheld { option: option(&event.option) },
            PLAIT_EVENT_OWN => What::Own { values: event.values },
            kind => What::Other { kind },
        }
    }
}

impl Verdict {
    /// Of `enum plait_verdict`.
    pub(super) fn new(number: u32) -> Verdict {
        match number {
            PLAIT_DROP => Verdict::Drop,
            PLAIT_REDIRECT => Verdict::Redirect,
            PLAIT_ANSWER => Verdict::Answer,
            _ => Verdict::Pass,
        }
    }
}

impl Keys {
    fn new([initiator, responder]: [u64; 2]) -> Option<Keys> {
        // The kernel's number is what the bytes on the wire say, most significant first.
        let key = |number: u64| (number != 0).then(|| Key::new(number.to_be_bytes()));
        Some(Keys { initiator: key(initiator)?, responder: key(responder) })
    }
}

/// The names of bits of `enum plait_kind`.
pub(super) fn kinds(bits: u64) -> Vec<Kind> {
    Kind::ALL.iter().copied().filter(|kind| bits & u64::from(kind.bit()) != 0).collect()
}

fn matched(event: &plait_event, chains: &BTreeMap<u32, Counted>) -> Vec<Matched> {
    let counters = event.chains.iter().take(event.chain_count.into()).enumerate();
    let matched = counters.filter_map(|(place, counter)| {
        let counted = chains.get(&u32::from(*counter))?;
        let hit = event.chains_hit >> place & 1 != 0;
        Some(Matched { policy: counted.policy.clone(), chain: counted.chain.clone(), hit })
    });
    matched.collect()
}

/// An MPTCP option, whose second byte is its length.
fn option(bytes: &[u8; 32]) -> Vec<u8> {
    bytes[..usize::from(bytes[1]).min(bytes.len())].to_vec()
}

fn names<S: serde::Serializer>(kinds: &[Kind], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(kinds.iter().map(|kind| kind.name()))
}

/// A reader that waits for long asks again in between, as a signal may have come.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
