//! What can be measured: a closed list. docs/guide/lab.md defines each for users.

use std::time::Duration;

use plait_trace::Direction;
use serde_json::Value;

/// How a figure is found.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// Payload bits per second, all copies, in 10^6.
    Throughput(Selection, Window),
    /// The same of bytes that no subflow had carried before.
    Goodput(Selection, Window),
    /// Bytes that the selected subflows carried, of those of all subflows.
    Share(Selection, Window),
    /// Subflows that were accepted, the initial one included.
    Subflows(Selection),
    /// Round-trip times from data to its acknowledgement, in ms.
    RoundTrip(Selection, Statistic),
    /// How long data that came ahead of its turn waited for what was missing before it, in ms.
    HeadOfLine(Selection, Statistic),
    /// The longest time in which the receiver acknowledged nothing new at the data level, in s.
    LongestGap(Selection, Window),
    /// From an event to the first payload on a path after it, in s.
    FirstData(Selection, Duration),
    /// From the connection's first packet to the acknowledgement of all that was sent, in s.
    Completion(Selection),
    /// Bytes sent once more in their subflow.
    Retransmitted(Selection),
    /// Bytes sent on a subflow although another had carried them.
    Reinjected(Selection),
    /// Whether all steps ended well, and the receiver acknowledged all that was sent, or something new after the last event
    /// (a program that measures for a time may leave its last bytes unread): 1 or 0.
    Survived(Selection),
    /// Whether no untrusted path carried payload before the client's first flight was acknowledged: 1 or 0.
    FirstFlightTrusted(Selection),
    /// The part of the stream that crossed a path.
    Exposure(Selection),
    /// The part of a document that somebody who listens on a path can read.
    Readable {
        /// The connection, its direction, and the path.
        of: Selection,
        /// The document: a file.
        document: String,
    },
    /// How long a step took, in s.
    Seconds {
        /// The step.
        step: String,
    },
    /// A number in the JSON that a step printed.
    Json {
        /// The step.
        step: String,
        /// Where (RFC 6901).
        pointer: String,
        /// There is a list there: the one object in it whose members have these values.
        element: Vec<(String, Value)>,
        /// Where in that object; empty without one.
        field: String,
    },
    /// By how much a counter of a host's kernel grew while the steps ran.
    Counter {
        /// The host.
        host: String,
        /// Its name as `nstat` has it.
        counter: String,
    },
    /// One figure over another.
    Ratio {
        /// The numerator.
        of: Operand,
        /// The denominator.
        to: Operand,
    },
    /// The sum of figures.
    Sum(Vec<Operand>),
}

/// Which packets count.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selection {
    /// At which host they were captured; the first captured one if `None`.
    pub at: Option<String>,
    /// The connection is to this port of its server; any if `None`. Of several, it is the one that carried most, MPTCP
    /// before TCP.
    pub port: Option<u16>,
    /// In which direction; the one that carried more if `None`.
    pub direction: Option<Direction>,
    /// Subflows that cross one of these links of the host; all if empty.
    pub paths: Vec<String>,
    /// This subflow alone, from 1 in the order in which they began.
    pub subflow: Option<usize>,
}

/// A part of the time, from the start of the clock. Without either end it is the connection's own time: from its first
/// packet until all that was sent was acknowledged, or to its last packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// From when; from the connection's start if `None`.
    pub from: Option<Duration>,
    /// Until when; to the connection's end if `None`.
    pub to: Option<Duration>,
}

/// What is told of many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// Their mean.
    #[default]
    Mean,
    /// Their standard deviation.
    Stddev,
    /// The shortest.
    Min,
    /// The longest.
    Max,
}

/// A figure that another is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Another metric of the same round.
    Metric {
        /// Its name.
        name: String,
        /// Of the variant that differs in these parameters; of the same one if empty.
        variant: Vec<(String, Value)>,
    },
    /// A number.
    Number(f64),
}

impl Measure {
    /// Whether it is made of other figures.
    pub fn is_derived(&self) -> bool {
        matches!(self, Self::Ratio { .. } | Self::Sum(_))
    }

    /// Which packets it looks at, if it does.
    pub fn selection(&self) -> Option<&Selection> {
        match self {
            Self::Throughput(of, _)
            | Self::Goodput(of, _)
            | Self::Share(of, _)
            | Self::Subflows(of)
            | Self::RoundTrip(of, _)
            | Self::HeadOfLine(of, _)
            | Self::LongestGap(of, _)
            | Self::FirstData(of, _)
            | Self::Completion(of)
            | Self::Retransmitted(of)
            | Self::Reinjected(of)
            | Self::Survived(of)
            | Self::FirstFlightTrusted(of)
            | Self::Exposure(of)
            | Self::Readable { of, .. } => Some(of),
            Self::Seconds { .. }
            | Self::Json { .. }
            | Self::Counter { .. }
            | Self::Ratio { .. }
            | Self::Sum(_) => None,
        }
    }

    /// Whether it needs to know what crossed each path by itself.
    pub fn needs_path_captures(&self) -> bool {
        matches!(self, Self::FirstFlightTrusted(_) | Self::Exposure(_) | Self::Readable { .. })
    }

    /// The unit it comes in, unless the file names another; an empty one for mere numbers.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Throughput(..) | Self::Goodput(..) => "Mb/s",
            Self::RoundTrip(..) | Self::HeadOfLine(..) => "ms",
            Self::LongestGap(..) | Self::FirstData(..) | Self::Completion(_) | Self::Seconds { .. } => "s",
            Self::Retransmitted(_) | Self::Reinjected(_) => "B",
            _ => "",
        }
    }
}
