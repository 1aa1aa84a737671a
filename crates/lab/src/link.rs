//! A link between two hosts: a veth pair, limited by a token bucket at both ends, with addresses of both families.
//!
//! Each end's packets leave through its own bucket, so the rate holds per direction. Frames keep the size they would
//! have on a wire: super-packets of segmentation offload would overflow the buckets' queues as a whole and be captured
//! as a whole. Link number n (from 1, in the order of making) is 10.77.n.0/24 and fd77:0:0:n::/64; `a` has host
//! number 1, `b` has 2.

use std::net::{Ipv4Addr, Ipv6Addr};

use plait_wire::Role;

use crate::host::ip;
use crate::process::run;
use crate::{Error, Host, Rate};

/// Bucket depth: what leaves in 3 ms, at least a few full frames.
const BURST_MS: u64 = 3;
const BURST_MIN_BYTES: u64 = 10_000;
/// The longest a frame may wait in the queue.
const QUEUE_MS: u64 = 30;

/// What a link is asked to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// The interface's name at both ends: 1 to 15 letters, digits or underscores.
    pub name: String,
    /// What the path over it is to the experiment.
    pub role: Role,
    /// The rate of each direction.
    pub rate: Rate,
    /// The congestion control of TCP connections and subflows over this link, by route; the kernel's default if none.
    pub congestion_control: Option<String>,
}

/// A link that is up.
#[derive(Debug, Clone)]
pub struct Link {
    spec: LinkSpec,
    number: u8,
}

/// One of a link's two ends: `a` is the host given first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The host given first.
    A,
    /// The host given second.
    B,
}

impl Link {
    /// The interface's name at both ends.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What the path over it is to the experiment.
    pub fn role(&self) -> Role {
        self.spec.role
    }

    /// The rate of each direction.
    pub fn rate(&self) -> Rate {
        self.spec.rate
    }

    /// The IPv4 address of an end.
    pub fn v4(&self, end: End) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, end.number())
    }

    /// The IPv6 address of an end.
    pub fn v6(&self, end: End) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, self.number.into(), 0, 0, 0, end.number().into())
    }

    /// Makes the link. A rate, address or congestion control that cannot be had is an error, never left out.
    pub(crate) fn make(spec: LinkSpec, number: u8, a: &Host, b: &Host) -> Result<Self, Error> {
        let link = Self { spec, number };
        let name = link.name();
        ip([
            "link",
            "add",
            name,
            "netns",
            a.namespace_name(),
            "type",
            "veth",
            "peer",
            "name",
            name,
            "netns",
            b.namespace_name(),
        ])?;
        for (host, end) in [(a, End::A), (b, End::B)] {
            link.set_up(host, end)?;
        }
        Ok(link)
    }

    fn set_up(&self, host: &Host, end: End) -> Result<(), Error> {
        let name = self.name();
        host.ip(["link", "set", name, "gso_max_segs", "1"])?;
        self.limit(host)?;
        host.ip(["addr", "add", &format!("{}/24", self.v4(end)), "dev", name])?;
        // Nobody else is there to have the address: without nodad it could not be used for a second.
        host.ip(["addr", "add", &format!("{}/64", self.v6(end)), "dev", name, "nodad"])?;
        host.ip(["link", "set", name, "up"])?;
        if let Some(algorithm) = &self.spec.congestion_control {
            let source = self.v4(end).to_string();
            let net = format!("10.77.{}.0/24", self.number);
            host.ip(["route", "replace", &net, "dev", name, "src", &source, "congctl", algorithm])?;
            let net = format!("fd77:0:0:{:x}::/64", self.number);
            host.ip(["-6", "route", "replace", &net, "dev", name, "congctl", algorithm])?;
        }
        Ok(())
    }

    fn limit(&self, host: &Host) -> Result<(), Error> {
        let rate = self.rate();
        let burst = rate.bytes_in(BURST_MS).max(BURST_MIN_BYTES);
        let limit = burst.saturating_add(rate.bytes_in(QUEUE_MS));
        let mut tc = std::process::Command::new("tc");
        tc.args(["-n", host.namespace_name(), "qdisc", "add", "dev", self.name(), "root", "tbf"])
            .args(["rate", &format!("{}bit", rate.bits_per_second())])
            .args(["burst", &burst.to_string(), "limit", &limit.to_string()]);
        run(tc).map(drop)
    }
}

impl End {
    fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }
}
