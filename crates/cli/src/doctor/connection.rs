//! `plait doctor HOST[:PORT]`: why a connection to a host has no further subflow, and what mends it.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Context, bail};
use plait_doctor::{Check, Verdict};
use plait_linux::interfaces::route;

use crate::stdout::{ATTENTION, BAD, GOOD, Stdout, StyledText, print_json};

/// A host and a port; 443 if none is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    host: String,
    port: u16,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let expected = || format!("expected HOST, HOST:PORT or [IPV6]:PORT, got '{text}'");
        let is_address = text.parse::<IpAddr>().is_ok();
        let (host, port) = match text.rsplit_once(':').filter(|_| !is_address && !text.ends_with(']')) {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(expected)?),
            None => (text, HTTPS),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['[', ']']) {
            return Err(expected());
        }
        Ok(Target { host: host.to_owned(), port })
    }
}

impl Target {
    /// Its first address with a route or, if none has one, its first address.
    pub(crate) fn resolve(&self) -> anyhow::Result<SocketAddr> {
        let Target { host, port } = self;
        let found = (host.as_str(), *port).to_socket_addrs();
        let addresses: Vec<_> =
            found.with_context(|| format!("cannot find the address of {host}"))?.collect();
        let routed = addresses.iter().find(|address| route(address.ip()).is_ok_and(|route| route.is_some()));
        let Some(address) = routed.or(addresses.first()) else {
            bail!("expected an address of {host}, got none")
        };
        Ok(*address)
    }
}

const HTTPS: u16 = 443;

/// Fails if there is a fault.
pub(crate) fn diagnose(target: &Target, interfaces: &[String], as_json: bool) -> anyhow::Result<()> {
    let facts = plait_doctor::gather(target.resolve()?, interfaces)?;
    let diagnosis = plait_doctor::judge(&facts);
    if as_json {
        print_json(&diagnosis)?;
    } else {
        let mut out = Stdout::new();
        writeln!(out, "{}\n", diagnosis.target)?;
        diagnosis.checks.iter().try_for_each(|check| print(check, &mut out))?;
        writeln!(out)?;
        if diagnosis.ok {
            writeln!(out, "No fault was found: every path carries a subflow.")?;
        }
        out.flush()?;
    }
    match diagnosis.faults().count() {
        0 => Ok(()),
        1 => bail!("one fault: see above"),
        faults => bail!("{faults} faults: mend the first, see above, and check again"),
    }
}

fn print(check: &Check, out: &mut Stdout) -> io::Result<()> {
    let (style, verdict) = match check.verdict {
        Verdict::Ok => (GOOD, "ok"),
        Verdict::Fault => (BAD, "FAULT"),
        Verdict::Unknown => (ATTENTION, "unknown"),
    };
    out.write_styled(&StyledText::new(style, format_args!("  {verdict:7}")))?;
    let interface = check.interface.as_ref().map(|name| format!(" by {name}")).unwrap_or_default();
    writeln!(out, "  {}{interface}: {}", check.check.name(), check.found)?;
    check.mend.iter().try_for_each(|line| writeln!(out, "             {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_hosts_and_ports() {
        for (text, host, port) in [
            ("server.example", "server.example", 443),
            ("server.example:8443", "server.example", 8443),
            ("192.0.2.1:80", "192.0.2.1", 80),
            ("2001:db8::1", "2001:db8::1", 443),
            ("[2001:db8::1]", "2001:db8::1", 443),
            ("[2001:db8::1]:80", "2001:db8::1", 80),
        ] {
            assert_eq!(text.parse(), Ok(Target { host: host.into(), port }));
        }
        for text in ["", ":80", "host:", "host:0", "host:70000", "[]:80", "[2001:db8::1", "a:b:c"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
