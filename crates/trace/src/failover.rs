use std::time::Duration;

use plait_wire::capture::Timestamp;

use crate::{Direction, Volume};

/// A path that fell silent while it was needed, and what the connection did about it. Where something else was heard
/// on the path meanwhile, such as the answers to pings, a subflow that waits for its retransmission timer is none; one
/// whose retransmissions are not answered is.
#[derive(Clone, Debug, PartialEq)]
pub struct Failover {
    /// Which of the connection's subflows used the path.
    pub subflow: usize,
    /// The direction whose data was held up.
    pub direction: Direction,
    /// The last sign of life from the path's far side before the silence; or, if the path was not in use at the time,
    /// when it was needed first.
    pub from: Timestamp,
    /// The first one after it, of any packet between the two addresses; `None` if the captures end before.
    pub to: Option<Timestamp>,
    /// When data crossed the path again and was acknowledged there, or arrived; `None` if the captures end before.
    pub carried_again: Option<Timestamp>,
    /// The longest time during the silence in which the receiving program got nothing: between two DATA_ACKs that
    /// acknowledged something new. Where nothing was seen to be on its way for half a second or more after the first,
    /// it counts from when something was. `None` where there are no DATA_ACKs.
    pub stall: Option<Duration>,
    /// The first subflow that carried on.
    pub taken_over_by: Option<usize>,
    /// What was sent on other subflows although this one had carried it, from the silence's start until data crossed
    /// the path again.
    pub reinjected: Volume,
}

impl Failover {
    /// A silence, before it is known what became of it.
    pub(crate) fn new(subflow: usize, direction: Direction, from: Timestamp, to: Option<Timestamp>) -> Self {
        Self {
            subflow,
            direction,
            from,
            to,
            carried_again: None,
            stall: None,
            taken_over_by: None,
            reinjected: Volume::default(),
        }
    }
}
