use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Whether the sides of a subflow answer each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    heard: Option<Timestamp>,
    awaited_since: Option<Timestamp>,
}

/// Shorter silences are what a lost packet causes: a retransmission comes after 0.2 s or more (RFC 6298 2.4 asks for
/// 1 s, Linux waits as short as 0.2 s), and the one after it after twice that.
pub(crate) const LEAST: Duration = Duration::from_millis(500);

/// Silences shorter than so many round trips are no silences.
pub(crate) const ROUND_TRIPS: u32 = 4;

impl Silence {
    /// This side was heard. `awaited`: the other side still waits for an answer to what it had sent before. Gives the
    /// time of the last word before, and since when the other side had waited for this one, if it had.
    pub(crate) fn spoke(&mut self, time: Timestamp, awaited: bool) -> (Option<Timestamp>, Option<Timestamp>) {
        let before = (self.heard, self.awaited_since);
        self.heard = Some(time);
        self.awaited_since = awaited.then_some(time);
        before
    }

    /// The other side sent something that wants an answer.
    pub(crate) fn asked(&mut self, time: Timestamp) {
        self.awaited_since.get_or_insert(time);
    }

    /// Since when the other side waits for this one; `None` also where the capture shows nothing of this one at all.
    pub(crate) fn awaited_since(&self) -> Option<Timestamp> {
        self.heard.and(self.awaited_since)
    }
}
