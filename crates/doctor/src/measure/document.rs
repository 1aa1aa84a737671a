//! The result of `plait probe`, as `--json` prints it; docs/reference/schema/probe.schema.json is generated from it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

/// What was measured. Fields may be added.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Measurement {
    /// The address and port that were probed.
    #[schemars(with = "String")]
    pub target: SocketAddr,
    /// The paths, measured one after the other.
    pub paths: Vec<MeasuredPath>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct MeasuredPath {
    /// The interface.
    pub interface: String,
    /// The address of this host.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// SYNs sent.
    pub sent: u32,
    /// SYNs answered within a second; the others, or their answers, were lost.
    pub answered: u32,
    /// Round-trip times; null if nothing was answered.
    pub rtt_ms: Option<RttMs>,
    /// The longest packets that arrive, bytes with IP header; null if not measured.
    pub mtu: Option<u32>,
    /// Whether longer packets vanish without an ICMP message; null if not measured.
    pub mtu_black_hole: Option<bool>,
    /// Whether MP_CAPABLE was answered by MP_CAPABLE; null if not by a SYN/ACK.
    pub mptcp: Option<bool>,
    /// What was measured with `plait probe --listen` at the target; null without `--peer`.
    pub peer: Option<PeerMeasurement>,
}

/// Round-trip times, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RttMs {
    /// The shortest.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The longest.
    pub max: f64,
}

impl RttMs {
    /// Of sorted times; `None` if there are none.
    pub(super) fn of(sorted: &[Duration]) -> Option<RttMs> {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        Some(RttMs {
            min: ms(sorted.first()?),
            median: ms(sorted.get(sorted.len() / 2)?),
            max: ms(sorted.last()?),
        })
    }
}

/// What the server at the target helped to measure. What failed is null, and `error` says why.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct PeerMeasurement {
    /// Rate of one TCP connection from the target, bits of payload per second, from its first byte to its last.
    pub download_bit_per_s: Option<f64>,
    /// Rate to the target.
    pub upload_bit_per_s: Option<f64>,
    /// The TCP options of a SYN as this host sent it.
    pub options: Vec<OptionArrival>,
    /// Whether the source address was translated (NAT).
    pub translated: Option<bool>,
    /// Routers between this host and the target, by the TTL.
    pub routers: Option<u8>,
    /// How long a connection may be idle; null if not tried.
    pub idle: Option<Idle>,
    /// The first failure.
    pub error: Option<String>,
}

/// A TCP option of a SYN.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OptionArrival {
    /// Its kind (IANA "TCP Option Kind Numbers").
    pub kind: u8,
    /// Its name.
    pub name: String,
    /// Whether it arrived.
    pub arrived: bool,
    /// Whether it arrived with the same value.
    pub unchanged: bool,
}

/// Idle times after which a byte of the target still arrived, or did not: whether a translating router forgot the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Idle {
    /// The longest time after which it arrived, seconds; null if none.
    pub survived_s: Option<u64>,
    /// The shortest time after which it did not, seconds; null if none.
    pub forgotten_s: Option<u64>,
}
