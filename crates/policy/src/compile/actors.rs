//! From an actor to the parameters that its program in bpf/actors reads, and what it needs to know about the packet.

use std::net::IpAddr;

use super::CompileError;
use super::selectors::Translation;
use crate::bindings::{
    PLAIT_ACTOR_ADD_SUBFLOW, PLAIT_ACTOR_BLOCK_SUBFLOW, PLAIT_ACTOR_CAPABLE_FLAG, PLAIT_ACTOR_CLEAR_BACKUP,
    PLAIT_ACTOR_CUSTOM, PLAIT_ACTOR_DENY_JOIN, PLAIT_ACTOR_DROP, PLAIT_ACTOR_FALL_BACK,
    PLAIT_ACTOR_GET_CONNECTION, PLAIT_ACTOR_GET_SUBFLOW, PLAIT_ACTOR_MARK, PLAIT_ACTOR_PACE,
    PLAIT_ACTOR_RATE_LIMIT, PLAIT_ACTOR_RECORD, PLAIT_ACTOR_REDIRECT, PLAIT_ACTOR_SET_BACKUP,
    PLAIT_NEEDS_FLOW, PLAIT_NEEDS_RECORD, PLAIT_NEEDS_TOKEN, plait_actor,
};
use crate::model::{Actor, Announcement, JoinRefusal, Limit};

/// Compiles an actor.
pub(super) fn actor(actor: &Actor, translation: &mut Translation<'_>) -> Result<plait_actor, CompileError> {
    const FLOW: u32 = PLAIT_NEEDS_FLOW;
    const TOKEN: u32 = PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN;
    const RECORD: u32 = FLOW | PLAIT_NEEDS_RECORD;
    let (kind, parameters, needs) = match actor {
        Actor::Drop => (PLAIT_ACTOR_DROP, [0; 4], 0),
        Actor::Mark(mark) => {
            translation.only_egress("the actor mark")?;
            // Routing by mark must apply to all packets of a subflow, not only to those with an MPTCP option.
            (PLAIT_ACTOR_MARK, [mark.value.into(), mark.mask.into(), 0, 0], FLOW)
        }
        Actor::Redirect(name) => {
            (PLAIT_ACTOR_REDIRECT, [interface_index(name, translation).into(), 0, 0, 0], FLOW)
        }
        Actor::RateLimit(Limit::Rate(rate)) => {
            (PLAIT_ACTOR_RATE_LIMIT, [0, rate.bytes_per_second(), 0, 0], FLOW)
        }
        Actor::RateLimit(Limit::Window(bytes)) => (PLAIT_ACTOR_RATE_LIMIT, [(*bytes).into(), 0, 0, 0], FLOW),
        Actor::Pace(rate) => {
            translation.only_egress("the actor pace")?;
            (PLAIT_ACTOR_PACE, [rate.bytes_per_second(), 0, 0, 0], FLOW)
        }
        // Injected acknowledgments are built from the record.
        Actor::SetBackup { address_id } => (PLAIT_ACTOR_SET_BACKUP, priority_format(*address_id), RECORD),
        Actor::ClearBackup { address_id } => (PLAIT_ACTOR_CLEAR_BACKUP, priority_format(*address_id), RECORD),
        Actor::BlockSubflow { echo } => (PLAIT_ACTOR_BLOCK_SUBFLOW, [u64::from(*echo), 0, 0, 0], RECORD),
        Actor::AddSubflow(announcement) => {
            (PLAIT_ACTOR_ADD_SUBFLOW, announcement_words(announcement.as_ref()), TOKEN | RECORD)
        }
        Actor::DenyJoin(refusal) => {
            (PLAIT_ACTOR_DENY_JOIN, [u64::from(*refusal == JoinRefusal::Reset), 0, 0, 0], 0)
        }
        Actor::FallBack => (PLAIT_ACTOR_FALL_BACK, [0; 4], 0),
        Actor::CapableFlag => (PLAIT_ACTOR_CAPABLE_FLAG, [0; 4], FLOW),
        Actor::GetConnection { keys } => (PLAIT_ACTOR_GET_CONNECTION, [u64::from(*keys), 0, 0, 0], TOKEN),
        Actor::GetSubflow => (PLAIT_ACTOR_GET_SUBFLOW, [0; 4], TOKEN),
        Actor::Record => (PLAIT_ACTOR_RECORD, [0; 4], TOKEN | RECORD),
        // What a custom actor needs is unknown, so provide everything.
        Actor::Custom(name) => {
            let number = translation.host.custom.get(name);
            let number = number.ok_or_else(|| CompileError::UnknownCustom(name.clone()))?;
            (PLAIT_ACTOR_CUSTOM, [u64::from(*number), 0, 0, 0], TOKEN)
        }
    };
    translation.needs |= needs;
    Ok(plait_actor { kind, counter: 0, parameters })
}

/// The index of an interface; 0 if it does not exist.
fn interface_index(name: &str, translation: &mut Translation<'_>) -> u32 {
    let there = translation.host.interfaces.iter().find(|interface| interface.name == *name);
    match there.map(|interface| interface.index) {
        Some(index) => index,
        None => {
            translation.absent(name);
            0
        }
    }
}

/// The format of MP_PRIO: version 0 with an address identifier, else version 1 (bpf/actors/backup.h).
fn priority_format(address_id: Option<u8>) -> [u64; 4] {
    [address_id.map_or(0, |id| 0x100 | u64::from(id)), 0, 0, 0]
}

/// The address (IPv4-mapped for IPv4) as two words, most significant first; the port or 0; the address identifier.
fn announcement_words(announcement: Option<&Announcement>) -> [u64; 4] {
    let Some(Announcement { address, port, id }) = announcement else { return [0; 4] };
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => *v6,
    };
    let bits = bits.to_bits();
    let id = id.unwrap_or(0x80 | bits as u8);
    [(bits >> 64) as u64, bits as u64, port.unwrap_or(0).into(), id.into()]
}
