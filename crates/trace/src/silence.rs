use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Whether the sides of a subflow answer each other: one of them, as the other one knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// When it was heard last.
    pub(crate) heard: Option<Timestamp>,
    /// Since when the other side waits for it.
    pub(crate) awaited_since: Option<Timestamp>,
    /// When it was asked first since it was heard.
    pub(crate) first_asked: Option<Timestamp>,
    /// When it was asked last, and how often since it was heard: what is sent at about the same time counts once.
    asked: Timestamp,
    asks: u32,
}

/// Shorter silences are what a lost packet causes: a retransmission comes after 0.2 s or more (RFC 6298 2.4 asks for
/// 1 s, Linux waits as short as 0.2 s), and the one after it after twice that.
pub(crate) const LEAST: Duration = Duration::from_millis(500);

/// Silences shorter than so many round trips are no silences.
pub(crate) const ROUND_TRIPS: u32 = 4;

/// What is sent within such a time asks once.
const ASK: Duration = Duration::from_millis(100);

/// Who does not answer that often is not reached: by then, a retransmission was lost too.
const ASKED_IN_VAIN: u32 = 3;

impl Silence {
    /// This side was heard. `awaited`: the other side still waits for an answer to what it had sent before. Gives what
    /// was known before.
    pub(crate) fn spoke(&mut self, time: Timestamp, awaited: bool) -> Self {
        let awaited_since = awaited.then_some(time);
        let now = Self { heard: Some(time), awaited_since, first_asked: None, asked: time, asks: 0 };
        std::mem::replace(self, now)
    }

    /// The other side sent something that wants an answer.
    pub(crate) fn asked(&mut self, time: Timestamp) {
        if self.first_asked.is_none() {
            self.first_asked = Some(time);
            // The clock may have gone back.
            self.awaited_since = Some(self.awaited_since.unwrap_or(time).min(time));
        }
        if self.asks == 0 || time.since(self.asked).is_some_and(|since| since >= ASK) {
            (self.asked, self.asks) = (time, self.asks + 1);
        }
    }

    /// Whether the other side asked again and again.
    pub(crate) fn asked_in_vain(&self) -> bool {
        self.asks >= ASKED_IN_VAIN
    }
}
