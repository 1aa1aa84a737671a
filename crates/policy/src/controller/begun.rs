//! What the packet path cannot know of subflows that began before it looked, and their sockets do: how far windows are
//! shifted, without which a window cannot be made smaller, and the like.

use std::collections::BTreeSet;

use plait_linux::diag::Subflow;

use super::{Error, View};
use crate::Hook;
use crate::bindings::{PLAIT_FLOW_BACKUP_IN, PLAIT_FLOW_BACKUP_OUT, plait_flow};
use crate::engine::{Ends, Engine};

/// The subflows of which the packet path has been told.
#[derive(Debug, Default)]
pub(super) struct Begun(BTreeSet<Ends>);

impl Begun {
    /// Tells the packet path of this host's subflows that it remembers, and has not been told of.
    pub(super) fn tell(&mut self, engine: &Engine, view: &View) -> Result<(), Error> {
        let remembered: BTreeSet<Ends> = view.flows.iter().map(|flow| flow.ends).collect();
        self.0.retain(|ends| remembered.contains(ends));
        for subflow in view.subflows() {
            let ends = Ends::from(subflow);
            if remembered.contains(&ends)
                && !self.0.contains(&ends)
                && engine.change_flow(ends, |flow| complete(flow, subflow))?
            {
                self.0.insert(ends);
            }
        }
        Ok(())
    }
}

/// What packets have told stays.
fn complete(flow: &mut plait_flow, subflow: &Subflow) {
    let (peer, own) = subflow.tcp.window_scales.unwrap_or((NOT_SCALED, NOT_SCALED));
    let asks = [
        (Hook::Ingress, peer, subflow.backup_remote, PLAIT_FLOW_BACKUP_IN),
        (Hook::Egress, own, subflow.backup_local, PLAIT_FLOW_BACKUP_OUT),
    ];
    for (hook, scale, backup, flag) in asks {
        let half = &mut flow.half[hook as usize];
        if half.syn_seen == 0 {
            half.syn_seen = 1;
            half.offered_scale = scale;
            if backup == Some(true) {
                flow.flags |= flag;
            }
        }
        let segment = &mut flow.most_segment[hook as usize];
        if *segment == 0 {
            *segment = subflow.tcp.mss.try_into().unwrap_or(u16::MAX);
        }
    }
    if flow.rtt == 0 {
        (flow.rtt, flow.rtt_variance) = (subflow.tcp.rtt_us, subflow.tcp.rtt_variance_us);
    }
}

/// A SYN without the option (intf.h, `offered_scale`).
const NOT_SCALED: u8 = 255;
