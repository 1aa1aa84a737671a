//! Measures paths before one relies on them: round trips, loss and MTU with any TCP service; rates, the options that arrive and
//! idle times with a [server](serve) at the other end.

mod document;
mod peer;
mod server;

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::interfaces::interfaces;
use plait_linux::packets::PacketTap;
use plait_linux::pm::PathManager;

pub use document::{Idle, MeasuredPath, Measurement, OptionArrival, PeerMeasurement, RttMs};
pub use server::serve;

use crate::exchange::Prober;
use crate::facts::Path;
use crate::gather::{GatherError, check_target, paths};
use crate::mtu::{self, PathMtu};
use crate::syn::{Answer, SynKind};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many SYNs measure round trips and loss.
    pub count: u32,
    /// What to measure with a server; `None`: the target is any TCP service.
    pub peer: Option<PeerPlan>,
}

/// What to measure with a server.
#[derive(Clone, Copy, Debug)]
pub struct PeerPlan {
    /// How long to send in each direction.
    pub duration: Duration,
    /// The longest idle time to try; `None`: none.
    pub idle: Option<Duration>,
}

/// Measures the paths by these interfaces or, if none is named, by all with a route to `target`, one after the other.
///
/// # Errors
/// See [`GatherError`]. A path by which nothing is answered is a result, not an error.
pub fn measure(target: SocketAddr, names: &[String], plan: &Plan) -> Result<Measurement, GatherError> {
    let interfaces = interfaces()?;
    check_target(target, &interfaces, names)?;
    let tap = PacketTap::open().map_err(GatherError::Tap)?;
    let endpoints = PathManager::open().and_then(|manager| manager.endpoints()).unwrap_or_default();
    let found = paths::find(target, &[], &interfaces, names, &endpoints)?.paths;
    let mut measured = Vec::new();
    for path in found.iter().filter(|path| !path.destinations.is_empty()) {
        let failed = |reason| GatherError::Probe { interface: path.interface.clone(), reason };
        measured.push(measure_path(&tap, target, path, plan).map_err(failed)?);
    }
    Ok(Measurement { target, paths: measured })
}

fn measure_path(tap: &PacketTap, target: SocketAddr, path: &Path, plan: &Plan) -> io::Result<MeasuredPath> {
    let mut prober = Prober::open(tap, path.address, path.if_index, target)?;
    let (answered, mut rtts) = round_trips(&mut prober, plan.count)?;
    rtts.sort_unstable();
    let reachable = answered > 0;
    let capable = prober.syn(SynKind::Capable);
    let mptcp = match reachable {
        true => prober.exchange(&[capable], 2, WAIT)?.pop().and_then(|outcome| outcome.answer),
        false => None,
    };
    let path_mtu = if reachable { Some(mtu::measure(&mut prober, path.mtu)?) } else { None };
    let (mtu, mtu_black_hole) = match path_mtu {
        Some(PathMtu::Full(mtu) | PathMtu::Reported(mtu)) => (Some(mtu), Some(false)),
        Some(PathMtu::BlackHole(mtu)) => (Some(mtu), Some(true)),
        Some(PathMtu::Unknown) | None => (None, None),
    };
    Ok(MeasuredPath {
        interface: path.interface.clone(),
        address: path.address,
        sent: plan.count,
        answered,
        rtt_ms: RttMs::of(&rtts),
        mtu,
        mtu_black_hole,
        mptcp: match mptcp {
            Some(Answer::Accepted { mptcp }) => Some(mptcp),
            _ => None,
        },
        peer: plan.peer.filter(|_| reachable).map(|plan| peer::measure(tap, target, path, &plan)),
    })
}

/// How many of `count` SYNs were answered, and the round-trip times.
fn round_trips(prober: &mut Prober, count: u32) -> io::Result<(u32, Vec<Duration>)> {
    let (mut answered, mut rtts) = (0, Vec::new());
    for _ in 0..count {
        let start = Instant::now();
        let syn = prober.syn(SynKind::Tcp);
        if let [outcome] = prober.exchange(&[syn], 1, WAIT)?[..] {
            answered += u32::from(outcome.answered());
            rtts.extend(outcome.rtt.filter(|_| outcome.answered()));
        }
        thread::sleep(INTERVAL.saturating_sub(start.elapsed()));
    }
    Ok((answered, rtts))
}

/// An answer that takes longer counts as lost: TCP repeats a SYN after this time (RFC 6298).
const WAIT: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(50);
