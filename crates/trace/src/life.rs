use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::PathId;

/// Signs of life between pairs of addresses: any IP packet, not only those of TCP, so that a ping beside a transfer
/// tells when a path works again long before TCP tries.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    by_pair: HashMap<(PathId, IpAddr, IpAddr), LifeId>,
    lives: Vec<Life>,
}

/// A pair of addresses in a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeId(usize);

/// By who speaks: the lower address or the higher.
#[derive(Debug, Default)]
struct Life {
    heard: [Option<Timestamp>; 2],
    silences: [VecDeque<Range<Timestamp>>; 2],
}

/// How many pairs are watched; those seen later are not.
const PAIRS: usize = 1 << 14;

/// Shorter silences are not remembered.
const LEAST: Duration = Duration::from_millis(100);

/// How many silences are remembered: the latest, and of those before them the longest.
const KEPT: usize = 16;

impl Lives {
    /// The pair of two addresses in the capture of `path`, which is the same as in those that this one continues;
    /// `None` if too many others are watched.
    pub(crate) fn of(
        &mut self,
        path: PathId,
        one: IpAddr,
        other: IpAddr,
        mut continued: impl Iterator<Item = PathId>,
    ) -> Option<LifeId> {
        let key = |path| (path, one.min(other), one.max(other));
        if let Some(id) = self.by_pair.get(&key(path)) {
            return Some(*id);
        }
        let id = match continued.find_map(|earlier| self.by_pair.get(&key(earlier)).copied()) {
            Some(id) => id,
            None if self.lives.len() < PAIRS => {
                self.lives.push(Life::default());
                LifeId(self.lives.len() - 1)
            }
            None => return None,
        };
        self.by_pair.insert(key(path), id);
        Some(id)
    }

    /// The side with address `speaker` was heard.
    #[inline]
    pub(crate) fn heard(&mut self, id: LifeId, speaker: IpAddr, listener: IpAddr, time: Timestamp) {
        let side = side(speaker, listener);
        let Life { heard, silences } = &mut self.lives[id.0];
        if let Some(before) = heard[side].replace(time)
            && time.since(before).is_some_and(|silence| silence >= LEAST)
        {
            let silences = &mut silences[side];
            if silences.len() == KEPT {
                let older = silences.iter().take(KEPT / 2).enumerate();
                let shortest = older.min_by_key(|(_, silence)| silence.end.since(silence.start));
                silences.remove(shortest.map_or(0, |(index, _)| index));
            }
            silences.push_back(before..time);
        }
    }

    /// The longest silence of `speaker` that has a part in `span`; its end is `None` when it lasts.
    pub(crate) fn silence(
        &self,
        id: LifeId,
        (speaker, listener): (IpAddr, IpAddr),
        span: &Range<Timestamp>,
    ) -> Option<(Timestamp, Option<Timestamp>)> {
        let side = side(speaker, listener);
        let Life { heard, silences } = &self.lives[id.0];
        let past = silences[side].iter().map(|silence| (silence.start, Some(silence.end)));
        let present = heard[side].map(|heard| (heard, None));
        past.chain(present)
            .filter(|(from, to)| *from < span.end && to.is_none_or(|to| span.start < to))
            .max_by_key(|(from, to)| to.unwrap_or(span.end).since(*from))
    }
}

fn side(speaker: IpAddr, listener: IpAddr) -> usize {
    usize::from(speaker > listener)
}
