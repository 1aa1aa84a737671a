//! Topologies as TOML files write them, before any cross-checks.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plait_config::{
    Role, Shorthand, Size, Spanned, TextError, deserialize_delay, deserialize_shorthand, deserialize_text,
    deserialize_time,
};
use plait_emulator::{Backend, RawAdjustment, Toward};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use super::address::Address;
use super::model::EndpointFlag;
use super::side::Side;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Topology {
    pub(super) backend: Option<Spanned<BackendChoice>>,
    pub(super) hosts: BTreeMap<Spanned<String>, Host>,
    #[serde(default)]
    pub(super) links: Vec<Spanned<Link>>,
    #[serde(default)]
    pub(super) services: Vec<Spanned<Service>>,
}

/// A backend, or `auto` to choose one.
#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
pub(super) enum BackendChoice {
    Auto,
    Emu,
    Netem,
    None,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a host's keys")]
pub(super) struct Host {
    #[serde(default)]
    pub(super) forward: bool,
    pub(super) bridge: Option<Spanned<bool>>,
    pub(super) mptcp: Option<MptcpLimits>,
    #[serde(default)]
    pub(super) sysctls: BTreeMap<Spanned<String>, SettingValue>,
    pub(super) congestion_control: Option<Spanned<String>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { subflows = 8, add_addr_accepted = 8 }")]
pub(super) struct MptcpLimits {
    pub(super) subflows: Option<Number<0, 8>>,
    pub(super) add_addr_accepted: Option<Number<0, 8>>,
}

/// A string, or a number converted to one.
pub(super) struct SettingValue(pub(super) String);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a link's keys")]
pub(super) struct Link {
    pub(super) name: Spanned<String>,
    pub(super) a: Spanned<End>,
    pub(super) b: Spanned<End>,
    pub(super) role: Option<Role>,
    pub(super) family: Option<Spanned<Family>>,
    /// At least the minimum of IPv6 (RFC 8200, section 5).
    pub(super) mtu: Option<Number<1280, 65535>>,
    #[serde(default)]
    pub(super) each_way: RawAdjustment,
    #[serde(default)]
    pub(super) a_to_b: RawAdjustment,
    #[serde(default)]
    pub(super) b_to_a: RawAdjustment,
    pub(super) half_duplex: Option<HalfDuplex>,
    #[serde(default)]
    pub(super) events: Vec<Spanned<Event>>,
}

/// The address family of assigned addresses.
#[derive(serde::Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Family {
    Ipv4,
    Ipv6,
}

/// A whole number within a range, which error messages state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number<const MIN: u16, const MAX: u16>(pub(super) u16);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { per_frame = \"200us\" }")]
pub(super) struct HalfDuplex {
    #[serde(deserialize_with = "deserialize_delay")]
    pub(super) per_frame: Duration,
}

/// One end of a link: a host name, or a table.
pub(super) struct End {
    pub(super) host: String,
    pub(super) interface: Option<Spanned<String>>,
    pub(super) addresses: Option<Vec<Spanned<Address>>>,
    pub(super) endpoint: Vec<EndpointFlag>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndTable {
    host: String,
    interface: Option<Spanned<String>>,
    addresses: Option<Vec<Spanned<Address>>>,
    #[serde(default)]
    endpoint: Vec<EndpointFlag>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of an event's keys")]
pub(super) struct Event {
    #[serde(deserialize_with = "deserialize_time")]
    pub(super) at: Duration,
    pub(super) action: Spanned<Verb>,
    pub(super) end: Option<Spanned<Side>>,
    pub(super) direction: Option<Spanned<Toward>>,
    pub(super) set: Option<Spanned<RawAdjustment>>,
}

#[derive(serde::Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verb {
    Blackhole,
    Restore,
    CarrierDown,
    CarrierUp,
    InterfaceDown,
    InterfaceUp,
    AddressRemoved,
    AddressAdded,
    Adjust,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a service's keys")]
pub(super) struct Service {
    pub(super) name: Spanned<String>,
    pub(super) host: Spanned<String>,
    pub(super) command: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) kind: Option<Spanned<Kind>>,
    #[serde(default)]
    pub(super) mptcp: bool,
    pub(super) port: Option<Spanned<Number<1, 65535>>>,
    pub(super) ready: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) document: Option<Spanned<Document>>,
    pub(super) listen: Option<Spanned<Listen>>,
    pub(super) to: Option<Spanned<String>>,
    pub(super) mode: Option<Spanned<String>>,
}

#[derive(serde::Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Nginx,
    Iperf3,
    Serve,
}

/// The address that a service listens on.
pub(super) struct Listen(pub(super) SocketAddr);

/// The size of the document of a web server.
type Document = Size<1_000_000_000>;

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "an address and a port, such as 0.0.0.0:8443 or [::]:8443";
        let parse = |text: &str| text.parse().map(Self).map_err(|_| TextError::new(EXPECTED, text));
        deserialize_text(deserializer, EXPECTED, parse)
    }
}

impl<'de> Deserialize<'de> for End {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_shorthand(deserializer)
    }
}

impl Shorthand for End {
    type Table = EndTable;
    const EXPECTED: &'static str =
        "a host's name, or a table such as { host = \"client\", interface = \"wwan0\" }";

    fn from_text(host: &str) -> Result<Self, TextError> {
        Ok(Self { host: host.into(), interface: None, addresses: None, endpoint: Vec::new() })
    }
}

impl From<EndTable> for End {
    fn from(EndTable { host, interface, addresses, endpoint }: EndTable) -> Self {
        Self { host, interface, addresses, endpoint }
    }
}

impl<'de, const MIN: u16, const MAX: u16> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor<const MIN: u16, const MAX: u16>;

impl<const MIN: u16, const MAX: u16> Visitor<'_> for NumberVisitor<MIN, MAX> {
    type Value = Number<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<Self::Value, E> {
        let number = u16::try_from(given).ok().filter(|number| (MIN..=MAX).contains(number));
        number.map(Number).ok_or_else(|| E::invalid_value(Unexpected::Signed(given), &self))
    }
}

impl<'de> Deserialize<'de> for SettingValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SettingVisitor)
    }
}

struct SettingVisitor;

impl Visitor<'_> for SettingVisitor {
    type Value = SettingValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a setting's value: a text or a whole number (a name with points stands in quotation marks)",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SettingValue, E> {
        Ok(SettingValue(text.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<SettingValue, E> {
        Ok(SettingValue(number.to_string()))
    }
}

impl BackendChoice {
    pub(super) fn backend(self) -> Option<Backend> {
        match self {
            Self::Auto => None,
            Self::Emu => Some(Backend::Emu),
            Self::Netem => Some(Backend::Netem),
            Self::None => Some(Backend::None),
        }
    }
}
