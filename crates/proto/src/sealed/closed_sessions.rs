//! Sessions to which nothing can be added any more.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::session_id::SessionId;

/// The number that is remembered; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 1 << 16;

/// Closed sessions, until their deadlines.
#[derive(Default)]
pub struct ClosedSessions {
    sessions: HashSet<SessionId>,
    by_age: VecDeque<(Instant, SessionId)>,
}

impl ClosedSessions {
    /// Whether the session is one of them.
    #[must_use]
    pub fn contains(&self, session: &SessionId) -> bool {
        self.sessions.contains(session)
    }

    /// Adds a session until its deadline.
    pub fn remember(&mut self, session: SessionId, deadline: Instant) {
        if self.by_age.len() >= MAX_REMEMBERED {
            self.forget_oldest();
        }
        if self.sessions.insert(session) {
            self.by_age.push_back((deadline, session));
        }
    }

    /// Forgets those whose deadline has passed. Sessions close roughly in the order of their deadlines, so one that is forgotten a
    /// little late does no harm.
    pub fn forget(&mut self, now: Instant) {
        while self.by_age.front().is_some_and(|(deadline, _)| *deadline <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, session)) = self.by_age.pop_front() {
            self.sessions.remove(&session);
        }
    }
}

#[cfg(test)]
impl ClosedSessions {
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.by_age.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn closed_sessions_are_remembered_within_bounds() {
        let (mut closed, now) = (ClosedSessions::default(), Instant::now());
        for number in 0..MAX_REMEMBERED as u64 + 10 {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            closed.remember(SessionId::new(id), now + Duration::from_secs(10));
            assert!(closed.contains(&SessionId::new(id)));
        }
        assert_eq!((closed.sessions.len(), closed.by_age.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
