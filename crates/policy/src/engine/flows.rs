//! The records of tracked subflows.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use bytemuck::Zeroable;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{BatchedMapIter, MapCore, MapFlags, MapHandle, ProgramInput};
use plait_linux::mptcp::Token;
use serde::{Deserialize, Serialize};

use super::error::EngineError;
use super::skeleton::complete::CompleteSkelBuilder;
use crate::bindings::{
    PLAIT_FLOW_BACKUP_IN, PLAIT_FLOW_BACKUP_OUT, PLAIT_FLOW_FIN_IN, PLAIT_FLOW_FIN_OUT, PLAIT_FLOW_JOINED,
    PLAIT_FLOWS, plait_flow, plait_flow_dir, plait_flow_key, plait_socket,
};
use crate::model::Hook;

/// The addresses and ports of a subflow, which identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FourTuple {
    /// Address and port of this host; of a forwarded subflow, of the side whose packets are egress here.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
}

/// A subflow, as the hooks of this host observed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Its addresses and ports.
    #[serde(flatten)]
    pub tuple: FourTuple,
    /// The token of its connection at this host, if it is known.
    pub token: Option<Token>,
    /// The index of the interface of its last packet.
    pub interface: u32,
    /// Whether it joined its connection with MP_JOIN.
    pub joined: bool,
    /// Its round-trip time, if it is recorded and was measured.
    pub rtt: Option<Rtt>,
    /// Ingress.
    pub received: FlowDirection,
    /// Egress.
    pub sent: FlowDirection,
    /// The rate limit of the actor `pace`, bytes per second.
    pub pace: Option<u64>,
}

/// The round-trip time between a packet sent by this host and its acknowledgment, smoothed as in RFC 6298;
/// microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rtt {
    /// The smoothed round-trip time.
    pub smoothed: u32,
    /// Its variation.
    pub variance: u32,
    /// The minimum.
    pub min: u32,
}

/// One direction of a subflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowDirection {
    /// Packets; segments that are sent as one count once.
    pub packets: u64,
    /// Payload, including retransmissions.
    pub bytes: u64,
    /// Packets whose payload overlaps an earlier one.
    pub retransmitted_packets: u64,
    /// The overlapping payload.
    pub retransmitted_bytes: u64,
    /// Payload that is new to this subflow but not to its connection: at egress, another subflow carried it before
    /// (RFC 8684, section 3.3.6); at ingress, this host had already acknowledged it.
    pub reinjected_bytes: u64,
    /// The last advertised window in bytes; `None` while its scale is unknown.
    pub window: Option<u32>,
    /// The time of the last packet by CLOCK_MONOTONIC; `None` if it is not recorded.
    pub last: Option<Duration>,
    /// The sender of this direction requested that the subflow be used as a backup.
    pub backup: bool,
    /// FIN or RST was seen.
    pub ended: bool,
    /// The length of the ADD_ADDR that was removed from this direction, in bytes; 0: none was.
    pub withheld: u8,
}

/// All subflows in the map.
pub(super) fn read(map: &MapHandle) -> Result<Vec<Flow>, EngineError> {
    let flow = |(key, value): (Vec<u8>, Vec<u8>)| {
        let key: plait_flow_key = bytemuck::try_pod_read_unaligned(&key).ok()?;
        let value: plait_flow = bytemuck::try_pod_read_unaligned(&value).ok()?;
        Some(Flow::new(FourTuple::new(&key), &value))
    };
    Ok(entries(map)?.filter_map(flow).collect())
}

/// The number of subflows in the map.
pub(super) fn count(map: &MapHandle) -> Result<u64, EngineError> {
    Ok(entries(map)?.count() as u64)
}

/// In batches: iterating key by key would start over when a key is deleted meanwhile.
fn entries(map: &MapHandle) -> Result<BatchedMapIter<'_>, EngineError> {
    map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY).map_err(EngineError::kernel("read the subflows"))
}

/// The record of a subflow.
pub(super) fn look_up(map: &MapHandle, tuple: FourTuple) -> Result<Option<plait_flow>, EngineError> {
    let value = map.lookup(bytemuck::bytes_of(&tuple.key()), MapFlags::ANY);
    let value = value.map_err(EngineError::kernel("look up a subflow"))?;
    Ok(value.and_then(|value| bytemuck::try_pod_read_unaligned(&value).ok()))
}

/// Fills in what no packet has set of the record of a subflow; `false`: it is not tracked.
pub(super) fn complete(
    map: &MapHandle,
    tuple: FourTuple,
    socket: &plait_socket,
) -> Result<bool, EngineError> {
    let run = || {
        let mut storage = MaybeUninit::uninit();
        let mut skeleton = CompleteSkelBuilder::default().open(&mut storage)?;
        skeleton.maps.flows.reuse_fd(map.as_fd())?;
        let skeleton = skeleton.load()?;
        let mut socket = plait_socket { key: tuple.key(), ..*socket };
        let input =
            ProgramInput { context_in: Some(bytemuck::bytes_of_mut(&mut socket)), ..Default::default() };
        Ok(skeleton.progs.complete.test_run(input)?.return_value == 1)
    };
    run().map_err(EngineError::kernel("complete the record of a subflow"))
}

impl FourTuple {
    pub(super) fn new(key: &plait_flow_key) -> FourTuple {
        FourTuple {
            local: SocketAddr::new(address(key.local), key.local_port),
            remote: SocketAddr::new(address(key.remote), key.remote_port),
        }
    }

    fn key(&self) -> plait_flow_key {
        plait_flow_key {
            local: address_words(self.local.ip()),
            remote: address_words(self.remote.ip()),
            local_port: self.local.port(),
            remote_port: self.remote.port(),
            ..Zeroable::zeroed()
        }
    }
}

impl Flow {
    fn new(tuple: FourTuple, flow: &plait_flow) -> Flow {
        let half = |hook: Hook, backup, ended| {
            let direction = hook as usize;
            let set = |flag| flow.flags & flag != 0;
            FlowDirection::new(&flow.dir[direction], set(backup), set(ended), flow.withheld_length[direction])
        };
        Flow {
            tuple,
            token: (flow.token != 0).then_some(Token(flow.token)),
            interface: flow.interface,
            joined: flow.flags & PLAIT_FLOW_JOINED != 0,
            rtt: (flow.rtt != 0).then_some(Rtt {
                smoothed: flow.rtt,
                variance: flow.rtt_variance,
                min: flow.rtt_min,
            }),
            received: half(Hook::Ingress, PLAIT_FLOW_BACKUP_IN, PLAIT_FLOW_FIN_IN),
            sent: half(Hook::Egress, PLAIT_FLOW_BACKUP_OUT, PLAIT_FLOW_FIN_OUT),
            pace: (flow.pace != 0).then_some(flow.pace),
        }
    }
}

impl FlowDirection {
    fn new(half: &plait_flow_dir, backup: bool, ended: bool, withheld: u8) -> FlowDirection {
        FlowDirection {
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

/// The capacity of the map: a batch that is not full is taken for the last.
const BATCH: u32 = PLAIT_FLOWS;

fn address([upper, lower]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from(u128::from(upper) << 64 | u128::from(lower)).to_canonical()
}

fn address_words(address: IpAddr) -> [u64; 2] {
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
    fn four_tuples_of_both_families_round_trip() {
        for (local, remote) in
            [("192.0.2.1:80", "198.51.100.7:4000"), ("[2001:db8::1]:80", "[2001:db8:1::ffff]:65535")]
        {
            let tuple = FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            assert_eq!(FourTuple::new(&tuple.key()), tuple);
        }
    }
}
