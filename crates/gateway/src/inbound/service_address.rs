//! Addresses of services, as `plait serve --to` and `to` in [[services]] take them.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use plait_config::{TextError, deserialize_text};
use serde::Deserialize;
use serde::de::Deserializer;

const EXPECTED: &str = "HOST:PORT, or unix:PATH with the absolute path of a socket";

/// The longest path of a unix socket (`unix(7)`), bytes.
const MAX_PATH: usize = 107;

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAddress {
    /// `HOST:PORT`, which is resolved for every connection.
    Tcp(Arc<str>),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl FromStr for ServiceAddress {
    type Err = TextError;

    fn from_str(text: &str) -> Result<ServiceAddress, TextError> {
        let error = || TextError::new(EXPECTED, text);
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let fits = path.as_os_str().as_bytes().len() <= MAX_PATH;
            return if path.is_absolute() && fits { Ok(ServiceAddress::Unix(path)) } else { Err(error()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let in_brackets = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (host.contains(':') && !in_brackets) {
            return Err(error());
        }
        match port.parse::<u16>() {
            Ok(1..) => Ok(ServiceAddress::Tcp(text.into())),
            _ => Err(error()),
        }
    }
}

impl<'de> Deserialize<'de> for ServiceAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ServiceAddress, D::Error> {
        deserialize_text(deserializer, EXPECTED, str::parse)
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceAddress::Tcp(address) => f.write_str(address),
            ServiceAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_listens_on_a_port_or_a_unix_socket() {
        for text in ["127.0.0.1:80", "server.example:443", "[::1]:80", "unix:/run/app.sock"] {
            let address: ServiceAddress = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        let long = format!("unix:/{}", "a".repeat(MAX_PATH));
        for text in ["", "80", ":80", "host", "host:0", "host:65536", "::1:80", "unix:", "unix:run/x", &long]
        {
            let error = text.parse::<ServiceAddress>().expect_err(text).to_string();
            assert!(error.starts_with("expected HOST:PORT, or unix:PATH") && error.contains(text), "{error}");
        }
    }
}
