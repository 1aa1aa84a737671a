//! What can be measured. docs/guide/lab.md defines each measure for users.

use std::net::IpAddr;
use std::time::Duration;

use plait_trace::Direction;
use serde_json::Value;

/// How a metric is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// Payload in 10^6 bits per second, including retransmitted and reinjected bytes.
    Throughput(Selection, Window),
    /// Like `Throughput`, but counts only bytes that no subflow had carried before.
    Goodput(Selection, Window),
    /// Payload in 10^6 bits per second, by whole seconds of the window in which the selected subflows carried any.
    ActiveThroughput(Selection, Window, Statistic),
    /// The share of the connection's bytes that the selected subflows carried.
    Share(Selection, Window),
    /// The number of accepted subflows, including the initial one.
    Subflows(Selection),
    /// Round-trip times from data to its acknowledgement, in ms.
    RoundTrip(Selection, Statistic),
    /// How long data that arrived out of order waited for the missing data before it, in ms.
    HeadOfLine(Selection, Statistic),
    /// Interarrival jitter (RFC 3550, section 6.4.1), its mean over all packets with data, in ms.
    Jitter(Selection),
    /// The longest time without a new data-level acknowledgement by the receiver, in s.
    LongestGap(Selection, Window),
    /// The time from an event to the first payload on a path after it, in s.
    FirstData(Selection, Duration),
    /// The time from the connection's first packet to the acknowledgement of all data, in s.
    Completion(Selection),
    /// Bytes that were retransmitted on the same subflow.
    Retransmitted(Selection),
    /// Bytes that were sent on a subflow after another subflow had carried them.
    Reinjected(Selection),
    /// 1 if all steps succeeded and the receiver acknowledged either all data or new data after the last event (a
    /// program with a time limit may leave its last bytes unread), else 0.
    Survived(Selection),
    /// 1 if no untrusted path carried payload before the client's first flight was acknowledged, else 0.
    FirstFlightTrusted(Selection),
    /// The fraction of the stream that crossed a path.
    Exposure(Selection),
    /// The fraction of a document that an eavesdropper on a path can read.
    Readable {
        /// The connection, its direction, and the path.
        of: Selection,
        /// The path of the document.
        document: String,
    },
    /// The duration of a step, in s.
    Seconds {
        /// The step.
        step: String,
    },
    /// A number in the JSON output of a step.
    Json {
        /// The step.
        step: String,
        /// The JSON pointer (RFC 6901).
        pointer: String,
        /// If the pointer leads to a list: selects the one object whose members have these values.
        element: Vec<(String, Value)>,
        /// The JSON pointer within that object; empty for none.
        field: String,
    },
    /// The increase of a kernel counter of a host while the steps ran.
    Counter {
        /// The host.
        host: String,
        /// The counter's name as `nstat` prints it.
        counter: String,
    },
    /// The quotient of two values.
    Ratio {
        /// The numerator.
        of: Operand,
        /// The denominator.
        to: Operand,
    },
    /// By how many percent one value exceeds another.
    Gain {
        /// The value.
        of: Operand,
        /// What it is compared with.
        over: Operand,
    },
    /// The sum of values.
    Sum(Vec<Operand>),
}

/// The packets that a measure covers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selection {
    /// The capturing host; `None` for the first captured host.
    pub at: Option<String>,
    /// The server port of the connection; `None` for any. Of several connections, the main one is used: MPTCP before
    /// TCP, then the one with most bytes.
    pub port: Option<u16>,
    /// The direction; `None` for the one with more bytes.
    pub direction: Option<Direction>,
    /// The links of the host that selected subflows cross; empty for all.
    pub paths: Vec<String>,
    /// Only subflows to this address of the server; `None` for any.
    pub server_address: Option<IpAddr>,
    /// Only this subflow, numbered from 1 in the order of establishment.
    pub subflow: Option<usize>,
}

/// A time window relative to the start of the clock. Without either limit, it is the lifetime of the connection: from
/// its first packet to the acknowledgement of all data, or else to its last packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The start; `None` for the connection's start.
    pub from: Option<Duration>,
    /// The end; `None` for the connection's end.
    pub to: Option<Duration>,
}

/// A statistic of a series of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// The mean.
    #[default]
    Mean,
    /// The standard deviation.
    Stddev,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
}

/// An operand of a derived metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Another metric of the same repetition.
    Metric {
        /// Its name.
        name: String,
        /// The parameters in which its variant differs; empty for the same variant.
        variant: Vec<(String, Value)>,
    },
    /// A constant.
    Number(f64),
}

impl Measure {
    /// Whether it is derived from other metrics.
    pub fn is_derived(&self) -> bool {
        matches!(self, Self::Ratio { .. } | Self::Gain { .. } | Self::Sum(_))
    }

    /// The packets that it covers, if it is computed from a capture.
    pub fn selection(&self) -> Option<&Selection> {
        match self {
            Self::Throughput(of, _)
            | Self::Goodput(of, _)
            | Self::ActiveThroughput(of, ..)
            | Self::Share(of, _)
            | Self::Subflows(of)
            | Self::RoundTrip(of, _)
            | Self::Jitter(of)
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
            | Self::Gain { .. }
            | Self::Sum(_) => None,
        }
    }

    /// Whether it requires an analysis of each link's capture on its own.
    pub fn needs_path_captures(&self) -> bool {
        matches!(self, Self::FirstFlightTrusted(_) | Self::Exposure(_) | Self::Readable { .. })
    }

    /// The default unit; empty for dimensionless values.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Throughput(..) | Self::Goodput(..) | Self::ActiveThroughput(..) => "Mb/s",
            Self::RoundTrip(..) | Self::HeadOfLine(..) | Self::Jitter(_) => "ms",
            Self::LongestGap(..) | Self::FirstData(..) | Self::Completion(_) | Self::Seconds { .. } => "s",
            Self::Retransmitted(_) | Self::Reinjected(_) => "B",
            Self::Gain { .. } => "%",
            _ => "",
        }
    }
}
