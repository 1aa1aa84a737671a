//! Tracks when packets passed between pairs of addresses.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::path::PathId;

/// When packets passed between pairs of addresses: any IP packet, not only TCP, so that a ping during a transfer shows that
/// a path works again long before TCP tries it.
#[derive(Debug, Default)]
pub(crate) struct LivenessTable {
    by_pair: HashMap<(PathId, IpAddr, IpAddr), LivenessId>,
    entries: Vec<Activity>,
}

/// A pair of addresses in a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LivenessId(usize);

/// By sender: the lower address, then the higher.
#[derive(Debug, Default)]
struct Activity {
    last_heard: [Option<Timestamp>; 2],
    silences: [VecDeque<Range<Timestamp>>; 2],
}

/// Maximum number of pairs; later ones are not tracked.
const MAX_PAIRS: usize = 1 << 14;

/// Shorter silences are not recorded.
const MIN_SILENCE: Duration = Duration::from_millis(100);

/// Maximum number of silences kept: the most recent half, and the longest of those before.
const MAX_SILENCES: usize = 16;

impl LivenessTable {
    /// The entry of two addresses in the capture of `path`, shared with the captures that it continues; `None` if there are
    /// too many.
    pub(crate) fn id_of(
        &mut self,
        path: PathId,
        one: IpAddr,
        other: IpAddr,
        mut continued: impl Iterator<Item = PathId>,
    ) -> Option<LivenessId> {
        let key = |path| (path, one.min(other), one.max(other));
        if let Some(id) = self.by_pair.get(&key(path)) {
            return Some(*id);
        }
        let id = match continued.find_map(|earlier| self.by_pair.get(&key(earlier)).copied()) {
            Some(id) => id,
            None if self.entries.len() < MAX_PAIRS => {
                self.entries.push(Activity::default());
                LivenessId(self.entries.len() - 1)
            }
            None => return None,
        };
        self.by_pair.insert(key(path), id);
        Some(id)
    }

    /// Records a packet from `speaker`.
    #[inline]
    pub(crate) fn heard(&mut self, id: LivenessId, speaker: IpAddr, listener: IpAddr, time: Timestamp) {
        let side = side(speaker, listener);
        let Activity { last_heard, silences } = &mut self.entries[id.0];
        if let Some(before) = last_heard[side].replace(time)
            && time.since(before).is_some_and(|silence| silence >= MIN_SILENCE)
        {
            let silences = &mut silences[side];
            if silences.len() == MAX_SILENCES {
                let older = silences.iter().take(MAX_SILENCES / 2).enumerate();
                let shortest = older.min_by_key(|(_, silence)| silence.end.since(silence.start));
                silences.remove(shortest.map_or(0, |(index, _)| index));
            }
            silences.push_back(before..time);
        }
    }

    /// The longest silence of `speaker` that overlaps with `span`; its end is `None` if it has not ended.
    pub(crate) fn silence(
        &self,
        id: LivenessId,
        (speaker, listener): (IpAddr, IpAddr),
        span: &Range<Timestamp>,
    ) -> Option<(Timestamp, Option<Timestamp>)> {
        let side = side(speaker, listener);
        let Activity { last_heard, silences } = &self.entries[id.0];
        let past = silences[side].iter().map(|silence| (silence.start, Some(silence.end)));
        let present = last_heard[side].map(|heard| (heard, None));
        past.chain(present)
            .filter(|(from, to)| *from < span.end && to.is_none_or(|to| span.start < to))
            .max_by_key(|(from, to)| to.unwrap_or(span.end).since(*from))
    }
}

fn side(speaker: IpAddr, listener: IpAddr) -> usize {
    usize::from(speaker > listener)
}
