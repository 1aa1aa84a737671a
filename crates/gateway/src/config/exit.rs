//! `exit` in the configuration file: the URL of the exit that this host's connections go to, or the table `[exit]` of the exit that
//! this host is, which may have the URL of another one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use ipnet::IpNet;
use plait_config::{Rate, Shorthand, Size, TextError, deserialize_shorthand, deserialize_text};
use plait_proto::identity::PublicKey;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, SeqAccess, Unexpected, Visitor};

use crate::inbound::{ClientLimits, ClientSettings, ExitClients};
use crate::outbound::ExitUrl;

/// Bytes of a day are counted up to a petabyte.
type DailyBytes = Size<1_000_000_000_000_000>;

/// The key `exit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitConfig {
    /// `url`, or the key itself: the exit that this host's connections go to.
    pub url: Option<ExitUrl>,
    /// `early_data`: what applications send goes to it before it has connected.
    pub early_data: bool,
    /// `listen`: the address of the exit that this host is.
    pub listen: Option<SocketAddr>,
    /// `clients`: who may use it, if the file says.
    pub clients: Option<ExitClients>,
    /// `allow`, `max_connections`, `max_rate`, `max_bytes_per_day`: what each client may do.
    pub each: ClientSettings,
    /// `[exit.client.KEY]`: what these clients may do instead.
    pub by_client: BTreeMap<PublicKey, ClientSettings>,
}

/// The table as written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawExit {
    url: Option<ExitUrl>,
    #[serde(default)]
    early_data: bool,
    listen: Option<SocketAddr>,
    clients: Option<RawClients>,
    allow: Option<Vec<Net>>,
    max_connections: Option<NonZeroU32>,
    max_rate: Option<Rate>,
    max_bytes_per_day: Option<DailyBytes>,
    #[serde(default)]
    client: BTreeMap<PublicKey, RawClient>,
}

/// What differs for one client.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClient {
    allow: Option<Vec<Net>>,
    max_connections: Option<NonZeroU32>,
    max_rate: Option<Rate>,
    max_bytes_per_day: Option<DailyBytes>,
}

impl RawClient {
    /// The settings, with those of `each` for what is not written.
    fn over(self, each: &ClientSettings) -> ClientSettings {
        let allow = self.allow.map(|nets| nets.into_iter().map(|Net(net)| net).collect());
        ClientSettings {
            allow: allow.unwrap_or_else(|| each.allow.clone()),
            limits: ClientLimits {
                max_connections: self.max_connections.map(Into::into).or(each.limits.max_connections),
                max_rate: self.max_rate.or(each.limits.max_rate),
                max_bytes_per_day: self.max_bytes_per_day.map(Size::bytes).or(each.limits.max_bytes_per_day),
            },
        }
    }
}

impl From<RawExit> for ExitConfig {
    fn from(raw: RawExit) -> ExitConfig {
        let RawExit {
            url,
            early_data,
            listen,
            clients,
            allow,
            max_connections,
            max_rate,
            max_bytes_per_day,
            client,
        } = raw;
        let each = RawClient { allow, max_connections, max_rate, max_bytes_per_day };
        let each = each.over(&ClientSettings::default());
        let by_client = client.into_iter().map(|(key, settings)| (key, settings.over(&each))).collect();
        ExitConfig {
            url,
            early_data,
            listen,
            clients: clients.map(|RawClients(clients)| clients),
            each,
            by_client,
        }
    }
}

impl Shorthand for ExitConfig {
    type Table = RawExit;
    const EXPECTED: &'static str = "the URL of an exit, as `plait exit init` prints it, or a table [exit]";

    fn from_text(text: &str) -> Result<ExitConfig, TextError> {
        Ok(ExitConfig { url: Some(text.parse()?), ..ExitConfig::default() })
    }
}

impl<'de> Deserialize<'de> for ExitConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ExitConfig, D::Error> {
        deserialize_shorthand(deserializer)
    }
}

/// A network in prefix notation, or an address.
pub(super) struct Net(pub(super) IpNet);

impl<'de> Deserialize<'de> for Net {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Net, D::Error> {
        const EXPECTED: &str = "a network such as \"10.0.0.0/8\", or an address";
        deserialize_text(deserializer, EXPECTED, |text| {
            let address = || text.parse::<IpAddr>().map(IpNet::from).ok();
            text.parse().ok().or_else(address).map(Net).ok_or_else(|| TextError::new(EXPECTED, text))
        })
    }
}

/// A list of keys, or `"any"`.
struct RawClients(ExitClients);

impl<'de> Deserialize<'de> for RawClients {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawClients, D::Error> {
        struct ClientsVisitor;
        impl<'de> Visitor<'de> for ClientsVisitor {
            type Value = RawClients;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of keys, as `plait identity` prints them at the clients, or \"any\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RawClients, E> {
                match text {
                    "any" => Ok(RawClients(ExitClients::Any)),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, keys: A) -> Result<RawClients, A::Error> {
                let keys = Vec::<PublicKey>::deserialize(SeqAccessDeserializer::new(keys))?;
                Ok(RawClients(ExitClients::Listed(keys)))
            }
        }
        from.deserialize_any(ClientsVisitor)
    }
}
