//! Routes the kernel's path-manager events to the connections that they concern, and reads those of interfaces.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use plait_linux::interfaces::Changes;
use plait_linux::mptcp::Token;
use plait_linux::pm::{Event, Events};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

/// Events wait this long for their connection: the kernel is faster than connect()'s return.
const UNCLAIMED_TIMEOUT: Duration = Duration::from_secs(10);

/// Events kept per connection until they are read.
const MAX_PENDING: usize = 64;

/// What the kernel reports about one connection's paths.
#[derive(Clone, Copy, Debug)]
pub(super) enum PathEvent {
    /// The peer announced an address (ADD_ADDR).
    Announced { id: u8, address: SocketAddr },
    /// The peer withdrew an address (REMOVE_ADDR).
    Withdrawn { id: u8 },
    /// A subflow through this interface was closed, `by_peer`: with a reset.
    Closed { interface: u32, by_peer: bool },
    /// Subflows may have changed.
    Changed,
}

/// Delivers events by token.
#[derive(Default)]
pub(super) struct EventRouter {
    subscribers: HashMap<Token, mpsc::Sender<PathEvent>>,
    unclaimed: HashMap<Token, Vec<PathEvent>>,
    /// The tokens with unclaimed events by the time of the first one. Most belong to connections that will not subscribe: witnesses,
    /// and those of other programs.
    unclaimed_since: VecDeque<(Instant, Token)>,
}

impl EventRouter {
    pub(super) fn subscribe(&mut self, token: Token) -> mpsc::Receiver<PathEvent> {
        let (sender, receiver) = mpsc::channel(MAX_PENDING);
        for event in self.unclaimed.remove(&token).unwrap_or_default() {
            // The channel has room for as many as are kept.
            let _ = sender.try_send(event);
        }
        self.subscribers.insert(token, sender);
        receiver
    }

    pub(super) fn unsubscribe(&mut self, token: Token) {
        self.subscribers.remove(&token);
    }

    pub(super) fn deliver(&mut self, event: Event) {
        let (token, event) = match event {
            Event::Announced { token, remote_id, address } => {
                (token, PathEvent::Announced { id: remote_id, address })
            }
            Event::Removed { token, remote_id } => (token, PathEvent::Withdrawn { id: remote_id }),
            Event::SubflowClosed { token, if_index, by_peer } => {
                (token, PathEvent::Closed { interface: if_index, by_peer })
            }
            Event::Lost => {
                for subscriber in self.subscribers.values() {
                    let _ = subscriber.try_send(PathEvent::Changed);
                }
                return;
            }
            _ => return,
        };
        if let Some(subscriber) = self.subscribers.get(&token) {
            // A subscriber with this many unread events checks its paths at its next tick anyway.
            let _ = subscriber.try_send(event);
            return;
        }
        let now = Instant::now();
        self.forget_unclaimed(now);
        let events = self.unclaimed.entry(token).or_insert_with(|| {
            self.unclaimed_since.push_back((now, token));
            Vec::new()
        });
        if events.len() < MAX_PENDING {
            events.push(event);
        }
    }

    /// Forgets events whose connection has not subscribed in time.
    fn forget_unclaimed(&mut self, now: Instant) {
        while let Some((since, token)) = self.unclaimed_since.front() {
            if now.duration_since(*since) < UNCLAIMED_TIMEOUT {
                return;
            }
            self.unclaimed.remove(token);
            self.unclaimed_since.pop_front();
        }
    }
}

/// Reads events until `deliver` returns `None`.
pub(super) async fn read_events(
    mut events: Events,
    readable: AsyncFd<OwnedFd>,
    deliver: impl Fn(Event) -> Option<()>,
) -> io::Result<()> {
    loop {
        let mut ready = readable.readable().await?;
        while let Some(event) = events.try_next()? {
            if deliver(event).is_none() {
                return Ok(());
            }
        }
        ready.clear_ready();
    }
}

/// Calls `changed` after each change, until it returns `None`.
pub(super) async fn read_changes(
    mut changes: Changes,
    readable: AsyncFd<OwnedFd>,
    changed: impl Fn() -> Option<()>,
) -> io::Result<()> {
    loop {
        let mut ready = readable.readable().await?;
        let has_changed = changes.take()?;
        ready.clear_ready();
        if has_changed && changed().is_none() {
            return Ok(());
        }
    }
}
