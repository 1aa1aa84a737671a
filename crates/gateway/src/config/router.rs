//! The table `[router]` in the configuration file: the interfaces behind which hosts are whose connections `plait router` carries.

use ipnet::IpNet;

use super::exit::Net;

/// The table `[router]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterConfig {
    /// `interfaces`: those behind which the hosts are, by name.
    pub interfaces: Vec<String>,
    /// `exclude`: destinations that the kernel forwards.
    pub exclude: Vec<IpNet>,
}

/// The table as written.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRouter {
    #[serde(default)]
    interfaces: Vec<String>,
    #[serde(default)]
    exclude: Vec<Net>,
}

impl From<RawRouter> for RouterConfig {
    fn from(raw: RawRouter) -> RouterConfig {
        let exclude = raw.exclude.into_iter().map(|Net(net)| net).collect();
        RouterConfig { interfaces: raw.interfaces, exclude }
    }
}
