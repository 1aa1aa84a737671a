//! Completes the records of subflows whose handshake the packet path missed with what their sockets know, such as the
//! window scale, without which a window cannot be lowered.

use std::collections::BTreeSet;

use plait_linux::diag::Subflow;

use super::error::ControllerError;
use super::view::View;
use crate::bindings::{PLAIT_FLOW_BACKUP_IN, PLAIT_FLOW_BACKUP_OUT, plait_flow};
use crate::engine::{Engine, FourTuple};
use crate::model::Hook;

/// The subflows whose records are complete.
#[derive(Debug, Default)]
pub(super) struct Backfill(BTreeSet<FourTuple>);

impl Backfill {
    /// Completes the records of tracked subflows of this host.
    pub(super) fn update(&mut self, engine: &Engine, view: &View) -> Result<(), ControllerError> {
        let tracked: BTreeSet<FourTuple> = view.flows.iter().map(|flow| flow.tuple).collect();
        self.0.retain(|tuple| tracked.contains(tuple));
        for subflow in view.subflows() {
            let tuple = FourTuple::from(subflow);
            if tracked.contains(&tuple)
                && !self.0.contains(&tuple)
                && engine.change_flow(tuple, |flow| complete(flow, subflow))?
            {
                self.0.insert(tuple);
            }
        }
        Ok(())
    }
}

/// Fills in fields that no packet has set.
fn complete(flow: &mut plait_flow, subflow: &Subflow) {
    let (peer, local) = subflow.tcp.window_scales.unwrap_or((NOT_SCALED, NOT_SCALED));
    let directions = [
        (Hook::Ingress, peer, subflow.backup_remote, PLAIT_FLOW_BACKUP_IN),
        (Hook::Egress, local, subflow.backup_local, PLAIT_FLOW_BACKUP_OUT),
    ];
    for (hook, scale, backup, flag) in directions {
        let half = &mut flow.dir[hook as usize];
        if half.syn_seen == 0 {
            half.syn_seen = 1;
            half.offered_scale = scale;
            if backup == Some(true) {
                flow.flags |= flag;
            }
        }
        let segment = &mut flow.mss[hook as usize];
        if *segment == 0 {
            *segment = subflow.tcp.mss.try_into().unwrap_or(u16::MAX);
        }
    }
    if flow.rtt == 0 {
        (flow.rtt, flow.rtt_variance) = (subflow.tcp.rtt_us, subflow.tcp.rtt_variance_us);
    }
}

/// The SYN had no window scale option (`offered_scale` in intf.h).
const NOT_SCALED: u8 = 255;
