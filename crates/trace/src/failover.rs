//! Paths that fall silent: what is known about one ([`Failover`]), and how silence is recognised.
//!
//! [`silence`] tracks whether the sides of a subflow respond to each other, [`liveness`] whether any packet at all passes
//! between two addresses.

pub(crate) mod liveness;
pub(crate) mod silence;

use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::direction::Direction;
use crate::sender_stats::Volume;

/// A path that fell silent while it was needed, and how the connection went on.
///
/// A subflow that merely waits for its retransmission timer while other packets pass on the path, such as replies to
/// pings, is not a failover; one whose retransmissions are not answered is.
#[derive(Clone, Debug, PartialEq)]
pub struct Failover {
    /// Index of the connection's subflow on the path.
    pub subflow: usize,
    /// The direction whose data was delayed.
    pub direction: Direction,
    /// The last packet from the path's far side before the silence; if the path was idle then, when it was first needed.
    pub from: Timestamp,
    /// The first packet between the two addresses after it; `None` if the captures end before.
    pub to: Option<Timestamp>,
    /// When data crossed the path again and was acknowledged there, or arrived; `None` if the captures end before.
    pub resumed: Option<Timestamp>,
    /// The longest time during the silence in which the receiving application got nothing: between two DATA_ACKs that
    /// acknowledged new data. If no data was in flight for half a second or more after the first, it counts from when
    /// there was. `None` without DATA_ACKs.
    pub stall: Option<Duration>,
    /// The first subflow that took over.
    pub taken_over_by: Option<usize>,
    /// Data of this subflow that others sent again, from the start of the silence until data crossed the path again.
    pub reinjected: Volume,
}

impl Failover {
    /// A silence whose consequences are not known yet.
    pub(crate) fn new(subflow: usize, direction: Direction, from: Timestamp, to: Option<Timestamp>) -> Self {
        Self {
            subflow,
            direction,
            from,
            to,
            resumed: None,
            stall: None,
            taken_over_by: None,
            reinjected: Volume::default(),
        }
    }
}
