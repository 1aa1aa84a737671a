//! The largest packet that a path carries, found by SYNs with payload that must not be fragmented.

use std::io;
use std::time::Duration;

use plait_wire::icmp::IcmpErrorKind;

use crate::exchange::{Outcome, Prober};
use crate::syn::{Answer, Syn, SynKind};

/// Largest packets to a destination, bytes with IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMtu {
    /// Packets of the interface's MTU arrive.
    Full(u32),
    /// A router says that they are too long, and what is not: the kernel adapts.
    Reported(u32),
    /// Packets up to this length arrive, longer ones vanish (RFC 2923, 2.1): transfers hang.
    BlackHole(u32),
    /// The destination answers no SYN with payload.
    Unknown,
}

/// Measures packets of up to `mtu` bytes, and no longer than IP allows.
pub(crate) fn measure(prober: &mut Prober, mtu: u32) -> io::Result<PathMtu> {
    let min = if prober.destination.is_ipv4() { MIN_V4 } else { MIN_V6 };
    let mtu = mtu.min(u16::MAX.into());
    if !try_length(prober, min.min(mtu))?.answered() {
        return Ok(PathMtu::Unknown);
    }
    match try_length(prober, mtu)? {
        Outcome { answer: Some(Answer::Icmp { kind: IcmpErrorKind::TooBig(reported), .. }), .. } => {
            return Ok(PathMtu::Reported(reported));
        }
        outcome if outcome.answered() => return Ok(PathMtu::Full(mtu)),
        _ => {}
    }
    let (mut passes, mut lost) = (min, mtu);
    while lost - passes > 1 {
        let lengths: Vec<u32> = between(passes, lost).collect();
        let syns: Vec<Syn> = lengths.iter().map(|length| padded(prober, *length)).collect();
        let outcomes = prober.exchange(&syns, ATTEMPTS, WAIT)?;
        let answered = lengths.iter().zip(outcomes).filter(|(_, outcome)| outcome.answered());
        passes = answered.map(|(length, _)| *length).max().unwrap_or(passes);
        lost = lengths.into_iter().filter(|length| *length > passes).min().unwrap_or(lost);
    }
    Ok(PathMtu::BlackHole(passes))
}

fn try_length(prober: &mut Prober, length: u32) -> io::Result<Outcome> {
    let syn = padded(prober, length);
    Ok(prober.exchange(&[syn], ATTEMPTS, WAIT)?.pop().unwrap_or_default())
}

fn padded(prober: &mut Prober, length: u32) -> Syn {
    Syn { length: Some(length as usize), ..prober.syn(SynKind::Tcp) }
}

/// Up to 16 lengths between two others, evenly spaced.
fn between(low: u32, high: u32) -> impl Iterator<Item = u32> {
    let step = ((high - low) / 17).max(1);
    (1..=16).map(move |number| low + number * step).filter(move |length| *length < high)
}

const ATTEMPTS: u32 = 2;
const WAIT: Duration = Duration::from_millis(700);

/// Every host accepts such packets (RFC 9293, 3.7.1; RFC 8200, 5).
const MIN_V4: u32 = 576;
const MIN_V6: u32 = 1280;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_narrow_the_interval_until_it_is_empty() {
        for truth in [576, 577, 1000, 1279, 1280, 1499] {
            let (mut passes, mut lost) = (576, 1500);
            while lost - passes > 1 {
                let lengths: Vec<u32> = between(passes, lost).collect();
                assert!(!lengths.is_empty());
                passes = lengths.iter().copied().filter(|length| *length <= truth).max().unwrap_or(passes);
                lost = lengths.into_iter().filter(|length| *length > passes).min().unwrap_or(lost);
            }
            assert_eq!(passes, truth);
        }
    }
}
