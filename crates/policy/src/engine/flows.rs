//! What is remembered of subflows, while some chain asks for it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytemuck::Zeroable;
use libbpf_rs::{BatchedMapIter, MapCore, MapFlags, MapHandle};
use plait_linux::mptcp::Token;
use serde::Serialize;

use super::Error;
use crate::Hook;
use crate::bindings::{
    PLAIT_FLOW_BACKUP_IN, PLAIT_FLOW_BACKUP_OUT, PLAIT_FLOW_FIN_IN, PLAIT_FLOW_FIN_OUT, PLAIT_FLOW_JOINED,
    PLAIT_FLOWS, plait_flow, plait_flow_key, plait_half,
};

/// The two ends of a subflow, which name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Ends {
    /// Address and port of this host, or of the side of a forwarded subflow from which packets go out here.
    pub local: SocketAddr,
    /// Those of the peer.
    pub remote: SocketAddr,
}

/// A subflow, as the hooks of this host saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Its ends.
    #[serde(flatten)]
    pub ends: Ends,
    /// Of its connection at this host, if it is known.
    pub token: Option<Token>,
    /// Index of the interface by which its last packet came or left.
    pub interface: u32,
    /// It joined a connection by MP_JOIN, and did not begin one.
    pub joined: bool,
    /// Its round-trip time, if it is recorded and was measured.
    pub rtt: Option<Rtt>,
    /// What came in.
    pub received: Half,
    /// What went out.
    pub sent: Half,
    /// The rate that the actor `pace` holds it to, in bytes per second.
    pub pace: Option<u64>,
}

/// Of packets sent by this host and acknowledged by the peer, smoothed as in RFC 6298; microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rtt {
    /// The smoothed round-trip time.
    pub smoothed: u32,
    /// Its variation.
    pub variance: u32,
    /// The least that was measured.
    pub least: u32,
}

/// One direction of a subflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Half {
    /// Packets; segments that are sent as one are one.
    pub packets: u64,
    /// Payload, retransmissions included.
    pub bytes: u64,
    /// Packets with payload of which an earlier one had all or a part.
    pub retransmitted_packets: u64,
    /// That payload.
    pub retransmitted_bytes: u64,
    /// Payload new to this subflow: of what goes out, that which another subflow of the connection had carried before
    /// (RFC 8684, section 3.3.6); of what comes in, that which this host had already acknowledged to the connection.
    pub reinjected_bytes: u64,
    /// The last window that was offered, bytes; `None` while its scale is not known.
    pub window: Option<u32>,
    /// When the last packet was seen, by CLOCK_MONOTONIC; `None` if it is not recorded.
    pub last: Option<Duration>,
    /// Whose packets these are asked that the other side send nothing here but as a backup.
    pub backup: bool,
    /// It was ended by FIN or RST.
    pub ended: bool,
    /// Length of an ADD_ADDR that was withheld in this direction, bytes; 0: none was.
    pub withheld: u8,
}

/// The subflows of a map of them.
pub(super) fn read(map: &MapHandle) -> Result<Vec<Flow>, Error> {
    let flow = |(key, value): (Vec<u8>, Vec<u8>)| {
        let key: plait_flow_key = bytemuck::try_pod_read_unaligned(&key).ok()?;
        let value: plait_flow = bytemuck::try_pod_read_unaligned(&value).ok()?;
        Some(Flow::new(Ends::new(&key), &value))
    };
    Ok(entries(map)?.filter_map(flow).collect())
}

/// How many there are.
pub(super) fn count(map: &MapHandle) -> Result<u64, Error> {
    Ok(entries(map)?.count() as u64)
}

/// Many at a time: going from key to key, one that is forgotten meanwhile would mean to begin again.
fn entries(map: &MapHandle) -> Result<BatchedMapIter<'_>, Error> {
    map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY).map_err(Error::kernel("read the subflows"))
}

/// What is remembered of a subflow.
pub(super) fn look_up(map: &MapHandle, ends: Ends) -> Result<Option<plait_flow>, Error> {
    let value = map.lookup(bytemuck::bytes_of(&ends.key()), MapFlags::ANY);
    let value = value.map_err(Error::kernel("look up a subflow"))?;
    Ok(value.and_then(|value| bytemuck::try_pod_read_unaligned(&value).ok()))
}

/// Changes what is remembered of a subflow; `false` if it is not known.
pub(super) fn change(
    map: &MapHandle,
    ends: Ends,
    change: impl FnOnce(&mut plait_flow),
) -> Result<bool, Error> {
    let Some(mut flow) = look_up(map, ends)? else { return Ok(false) };
    change(&mut flow);
    let (key, value) = (ends.key(), bytemuck::bytes_of(&flow));
    map.update(bytemuck::bytes_of(&key), value, MapFlags::EXIST)
        .map_err(Error::kernel("change a subflow"))?;
    Ok(true)
}

impl Ends {
    pub(super) fn new(key: &plait_flow_key) -> Ends {
        Ends {
            local: SocketAddr::new(address(key.local), key.local_port),
            remote: SocketAddr::new(address(key.remote), key.remote_port),
        }
    }

    fn key(&self) -> plait_flow_key {
        plait_flow_key {
            local: halves(self.local.ip()),
            remote: halves(self.remote.ip()),
            local_port: self.local.port(),
            remote_port: self.remote.port(),
            ..Zeroable::zeroed()
        }
    }
}

impl Flow {
    fn new(ends: Ends, flow: &plait_flow) -> Flow {
        let half = |hook: Hook, backup, ended| {
            let direction = hook as usize;
            let set = |flag| flow.flags & flag != 0;
            Half::new(&flow.half[direction], set(backup), set(ended), flow.withheld_length[direction])
        };
        Flow {
            ends,
            token: (flow.token != 0).then_some(Token(flow.token)),
            interface: flow.interface,
            joined: flow.flags & PLAIT_FLOW_JOINED != 0,
            rtt: (flow.rtt != 0).then_some(Rtt {
                smoothed: flow.rtt,
                variance: flow.rtt_variance,
                least: flow.rtt_least,
            }),
            received: half(Hook::Ingress, PLAIT_FLOW_BACKUP_IN, PLAIT_FLOW_FIN_IN),
            sent: half(Hook::Egress, PLAIT_FLOW_BACKUP_OUT, PLAIT_FLOW_FIN_OUT),
            pace: (flow.pace != 0).then_some(flow.pace),
        }
    }
}

impl Half {
    fn new(half: &plait_half, backup: bool, ended: bool, withheld: u8) -> Half {
        Half {
            packets: half.packets,
            bytes: half.bytes,
            retransmitted_packets: half.retransmitted_packets,
            retransmitted_bytes: half.retransmitted_bytes,
            reinjected_bytes: half.reinjected_bytes,
            window: (half.window != 0).then_some(half.window),
            last: (half.last_nanoseconds != 0).then(|| Duration::from_nanos(half.last_nanoseconds)),
            backup,
            ended,
            withheld,
        }
    }
}

/// As many as there can be: a batch that is not filled would be taken for the last.
const BATCH: u32 = PLAIT_FLOWS;

fn address([upper, lower]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from(u128::from(upper) << 64 | u128::from(lower)).to_canonical()
}

fn halves(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_both_families_read_back_from_their_key() {
        for (local, remote) in
            [("192.0.2.1:80", "198.51.100.7:4000"), ("[2001:db8::1]:80", "[2001:db8:1::ffff]:65535")]
        {
            let ends = Ends { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            assert_eq!(Ends::new(&ends.key()), ends);
        }
    }
}
