//! Completes the records of subflows whose handshake the packet path missed with what their sockets know, such as the
//! window scale, without which a window cannot be lowered.

use std::collections::BTreeSet;

use bytemuck::Zeroable;
use plait_linux::diag::Subflow;

use super::error::ControllerError;
use super::view::View;
use crate::bindings::plait_socket;
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
                && engine.complete_flow(tuple, &socket(subflow))?
            {
                self.0.insert(tuple);
            }
        }
        Ok(())
    }
}

/// What the socket of a subflow knows. Its key is not set.
fn socket(subflow: &Subflow) -> plait_socket {
    let (peer, local) = subflow.tcp.window_scales.unwrap_or((NOT_SCALED, NOT_SCALED));
    let mut socket = plait_socket {
        rtt: subflow.tcp.rtt_us,
        rtt_variance: subflow.tcp.rtt_variance_us,
        mss: subflow.tcp.mss.try_into().unwrap_or(u16::MAX),
        ..Zeroable::zeroed()
    };
    for (hook, scale, backup) in
        [(Hook::Ingress, peer, subflow.backup_remote), (Hook::Egress, local, subflow.backup_local)]
    {
        socket.scale[hook as usize] = scale;
        socket.backup[hook as usize] = backup.unwrap_or(false).into();
    }
    socket
}

/// The SYN had no window scale option (`scale` in intf.h).
const NOT_SCALED: u8 = 255;
