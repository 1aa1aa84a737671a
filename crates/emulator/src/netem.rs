//! The backend `netem`: the kernel's emulation, in an anonymous namespace between the two ends.
//!
//! ```text
//! end a <-veth-> a [bridge] b <-veth-> end b
//! ```
//!
//! Frames that leave the bridge towards an end pass the qdiscs of that side: `netem` (loss, duplication, delay), then
//! `tbf` (queue in bytes, rate). Frames therefore queue for the rate after the delay instead of before it, which
//! changes when they are dropped, but not when they arrive. The namespace is removed when the link is dropped.

mod qdisc;

use plait_linux::netns::NetNs;
use serde_json::Value;

use crate::backend::Backend;
use crate::command::{InterfaceCounters, counters, ip, run, tc};
use crate::endpoint::{End, anonymous_namespace};
use crate::error::Error;
use crate::spec::{Change, DirectionSpec, LinkSpec, Medium, Pace, Toward};
use crate::statistics::{Counters, Statistics};
use crate::veth::add_pair;

/// The interfaces in the namespace, named after the end that each is connected to.
const SIDES: [&str; 2] = ["a", "b"];
const BRIDGE: &str = "bridge";

/// A running link.
#[derive(Debug)]
pub(crate) struct NetemLink {
    between: NetNs,
    spec: LinkSpec,
    /// The counters of qdiscs removed so far, towards `a` and `b`.
    before: [Drops; 2],
}

/// Frames that qdiscs dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Drops {
    lost: u64,
    queue_full: u64,
}

impl NetemLink {
    pub(crate) fn check(spec: &LinkSpec) -> Result<(), Error> {
        if spec.medium != Medium::FullDuplex {
            return Err(unsupported("a shared medium (half duplex)"));
        }
        if spec.a_to_b.red || spec.b_to_a.red {
            return Err(unsupported("RED"));
        }
        let traced = |direction: &DirectionSpec| matches!(direction.pace, Pace::Trace(_));
        match traced(&spec.a_to_b) || traced(&spec.b_to_a) {
            true => Err(unsupported("a trace-driven rate")),
            false => Ok(()),
        }
    }

    pub(crate) fn check_change(change: &Change) -> Result<(), Error> {
        match change {
            Change::Adjust(_, to) if to.red == Some(true) => Err(unsupported("RED")),
            Change::Adjust(_, to) if matches!(to.pace, Some(Pace::Trace(_))) => {
                Err(unsupported("a trace-driven rate"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn start(spec: &LinkSpec, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        let between = anonymous_namespace().map_err(Error::refused("make a network namespace for netem"))?;
        let netem = Self { between, spec: spec.clone(), before: Default::default() };
        netem.build(a, b)?;
        Ok(netem)
    }

    fn build(&self, a: End<'_>, b: End<'_>) -> Result<(), Error> {
        let disable_ipv6 = || match std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
            // The kernel does not support IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        let disabled = self.between.run(disable_ipv6).and_then(|written| written);
        disabled.map_err(Error::refused("disable IPv6 in the namespace of netem"))?;

        let mtu = self.spec.mtu;
        // Without snooping, multicast frames are forwarded immediately, as on a wire.
        let bridge = ["type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0"];
        self.run(ip(["link", "add", "name", BRIDGE, "mtu", &mtu.to_string()].into_iter().chain(bridge)))?;
        for (end, side) in [a, b].into_iter().zip(SIDES) {
            add_pair(end, End { namespace: &self.between, interface: side }, mtu)?;
            // Rate, loss and queue must apply to frames on the wire, not to super-packets of segmentation offload.
            run(Some(end.namespace), ip(["link", "set", "dev", end.interface, "gso_max_segs", "1", "up"]))?;
            self.run(ip(["link", "set", "dev", side, "master", BRIDGE, "gso_max_segs", "1", "up"]))?;
        }
        self.run(ip(["link", "set", "dev", BRIDGE, "up"]))?;
        self.towards()
            .into_iter()
            .try_for_each(|(side, direction)| self.add(side, direction))
            .map_err(unavailable)
    }

    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), Error> {
        match change {
            Change::Blackhole => {
                self.run(ip(["link", "set", "dev", BRIDGE, "down"]))?;
                self.reset_qdiscs()
            }
            Change::Restore => self.run(ip(["link", "set", "dev", BRIDGE, "up"])),
            Change::Carrier(false) => {
                SIDES.into_iter().try_for_each(|side| self.run(ip(["link", "set", "dev", side, "down"])))?;
                self.reset_qdiscs()
            }
            Change::Carrier(true) => {
                SIDES.into_iter().try_for_each(|side| self.run(ip(["link", "set", "dev", side, "up"])))
            }
            Change::Adjust(toward, to) => {
                let mut spec = self.spec.clone();
                if *toward != Toward::A {
                    spec.a_to_b = spec.a_to_b.adjusted(to);
                }
                if *toward != Toward::B {
                    spec.b_to_a = spec.b_to_a.adjusted(to);
                }
                Self::check(&spec)?;
                let [a, b] = [(&self.spec.b_to_a, &spec.b_to_a), (&self.spec.a_to_b, &spec.a_to_b)];
                for (side, (was, is)) in SIDES.into_iter().zip([a, b]) {
                    if was != is {
                        self.change(side, was, is)?;
                    }
                }
                self.spec = spec;
                Ok(())
            }
        }
    }

    pub(crate) fn statistics(&self) -> Result<Statistics, Error> {
        let [a, b] = [counters(&self.between, "a")?, counters(&self.between, "b")?];
        let drops = self.drops()?;
        let crossed = |from: &InterfaceCounters, to: &InterfaceCounters, drops: Drops| Counters {
            frames_in: from.rx_frames,
            bytes_in: from.rx_bytes,
            frames_out: to.tx_frames,
            bytes_out: to.tx_bytes,
            lost: Some(drops.lost),
            queue_full: Some(drops.queue_full),
            ..Counters::default()
        };
        Ok(Statistics {
            a_to_b: crossed(&a, &b, drops[1]),
            b_to_a: crossed(&b, &a, drops[0]),
            lateness: None,
        })
    }

    fn towards(&self) -> [(&'static str, &DirectionSpec); 2] {
        [(SIDES[0], &self.spec.b_to_a), (SIDES[1], &self.spec.a_to_b)]
    }

    fn add(&self, side: &str, direction: &DirectionSpec) -> Result<(), Error> {
        self.qdisc(["add", "dev", side, "root", "handle", "1:"], qdisc::netem(direction))?;
        match qdisc::tbf(direction, self.spec.mtu) {
            Some(tbf) => self.qdisc(["add", "dev", side, "parent", "1:1", "handle", "10:"], tbf),
            None => Ok(()),
        }
    }

    fn change(&self, side: &str, was: &DirectionSpec, is: &DirectionSpec) -> Result<(), Error> {
        self.qdisc(["change", "dev", side, "root", "handle", "1:"], qdisc::netem(is))?;
        // An unlimited tbf replaces one whose rate is removed: deleting it would lose its counters and queued frames.
        let had_rate = qdisc::tbf(was, self.spec.mtu).is_some();
        match qdisc::tbf(is, self.spec.mtu).or_else(|| had_rate.then(qdisc::unlimited_tbf)) {
            Some(tbf) => self.qdisc(["replace", "dev", side, "parent", "1:1", "handle", "10:"], tbf),
            None => Ok(()),
        }
    }

    /// Replaces the qdiscs, which discards the frames in them.
    fn reset_qdiscs(&mut self) -> Result<(), Error> {
        self.before = self.drops()?;
        for (side, direction) in self.towards() {
            self.run(tc(["qdisc", "delete", "dev", side, "root"]))?;
            self.add(side, direction)?;
        }
        Ok(())
    }

    fn drops(&self) -> Result<[Drops; 2], Error> {
        let text = run(Some(&self.between), tc(["-s", "-j", "qdisc", "show"]))?;
        let mut drops = self.before;
        for (side, drops) in SIDES.into_iter().zip(&mut drops) {
            let now = Drops::read(&text, side).ok_or_else(|| Error::Refused {
                step: format!("read the counters of netem towards {side}"),
                source: std::io::Error::other(format!("expected JSON from tc, got {text:?}")),
            })?;
            drops.lost += now.lost;
            drops.queue_full += now.queue_full;
        }
        Ok(drops)
    }

    fn qdisc<const N: usize>(&self, place: [&str; N], what: Vec<String>) -> Result<(), Error> {
        self.run(tc(["qdisc"].into_iter().chain(place).chain(what.iter().map(String::as_str))))
    }

    fn run(&self, words: Vec<String>) -> Result<(), Error> {
        run(Some(&self.between), words).map(drop)
    }
}

impl Drop for NetemLink {
    /// Removes the interfaces immediately, before the kernel cleans up the namespace.
    fn drop(&mut self) {
        for side in SIDES {
            if let Err(error) = self.run(ip(["link", "delete", "dev", side])) {
                tracing::debug!("{error}");
            }
        }
    }
}

impl Drops {
    /// Parses the output of `tc -s -j qdisc show`. The drops of netem include those of its child tbf.
    fn read(json: &str, side: &str) -> Option<Self> {
        let qdiscs: Vec<Value> = serde_json::from_str(json).ok()?;
        let of = |kind: &str| {
            let qdisc = qdiscs.iter().find(|qdisc| qdisc["dev"] == side && qdisc["kind"] == kind);
            qdisc.and_then(|qdisc| qdisc["drops"].as_u64())
        };
        let queue_full = of("tbf").unwrap_or(0);
        Some(Self { lost: of("netem")?.saturating_sub(queue_full), queue_full })
    }
}

fn unsupported(property: &str) -> Error {
    Error::Unsupported { backend: Backend::Netem, property: property.into() }
}

fn unavailable(error: Error) -> Error {
    let why = format!(
        "{error}; load its modules (modprobe sch_netem sch_tbf), or use a kernel that has them, or --backend emu, which \
         needs none"
    );
    Error::Unavailable { backend: Backend::Netem, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_by_tbf_are_not_losses() {
        let json = r#"[
            {"kind":"noqueue","handle":"0:","dev":"lo","root":true,"drops":0},
            {"kind":"netem","handle":"1:","dev":"a","root":true,"options":{},"packets":90,"drops":3},
            {"kind":"netem","handle":"1:","dev":"b","root":true,"options":{},"packets":90,"drops":12},
            {"kind":"tbf","handle":"10:","dev":"b","parent":"1:1","options":{},"packets":90,"drops":5}
        ]"#;
        assert_eq!(Drops::read(json, "a"), Some(Drops { lost: 3, queue_full: 0 }));
        assert_eq!(Drops::read(json, "b"), Some(Drops { lost: 7, queue_full: 5 }));
        assert_eq!(Drops::read(json, "c"), None);
        assert_eq!(Drops::read("", "a"), None);
    }
}
