//! Gives the later subflows of a connection its receive buffer.

use std::collections::HashSet;

use plait_linux::State;
use plait_linux::mptcp::{Subflow, SubflowEnds};

use super::watched::Watched;

/// The subflows of a connection that have its receive buffer.
#[derive(Default)]
pub(super) struct SharedReceiveBuffer {
    shared_with: HashSet<SubflowEnds>,
}

impl SharedReceiveBuffer {
    /// Gives it to those that were established since the last call.
    pub(super) fn share_with_new_subflows(&mut self, connection: &impl Watched, subflows: &[Subflow]) {
        let established = subflows.iter().filter(|subflow| subflow.tcp.state == State::Established);
        let established: HashSet<SubflowEnds> = established.map(Subflow::ends).collect();
        if !established.is_subset(&self.shared_with) {
            connection.share_receive_buffer();
        }
        self.shared_with = established;
    }
}
