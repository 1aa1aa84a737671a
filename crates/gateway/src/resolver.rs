//! This host's resolver: the addresses of names, and its nameservers (`resolv.conf(5)`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use std::{fs, io};

use tokio::net::lookup_host;
use tokio::time::timeout;

/// How long a name may take to resolve: as long as a resolver that asks one server twice.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

const FILE: &str = "/etc/resolv.conf";

/// The port of DNS.
pub(crate) const DNS_PORT: u16 = 53;

/// The addresses of a name.
///
/// # Errors
/// There is none, or the resolver does not answer.
pub(crate) async fn resolve(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = timeout(LOOKUP_TIMEOUT, lookup_host((name, port))).await;
    Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect())
}

/// The nameservers, in order; on this host, if the file names none or cannot be read.
pub(crate) fn nameservers() -> Vec<SocketAddr> {
    parse(&fs::read_to_string(FILE).unwrap_or_default())
}

/// Whether this is the address of one of them.
pub(crate) fn is_nameserver(address: IpAddr) -> bool {
    nameservers().iter().any(|server| server.ip() == address.to_canonical())
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        // With a scope, as in fe80::1%eth0, it is not an address that can be connected to by itself.
        (words.next()? == "nameserver").then(|| words.next()?.parse::<IpAddr>().ok())?
    });
    let servers: Vec<IpAddr> = servers.collect();
    let servers = if servers.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { servers };
    servers.into_iter().map(|server| SocketAddr::new(server.to_canonical(), DNS_PORT)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_those_of_resolv_conf() {
        let of = |text: &str| parse(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(""), ["127.0.0.1:53"]);
        assert_eq!(
            of(
                "# nameserver 192.0.2.1\nsearch a\nnameserver 192.0.2.7\n nameserver\t2001:db8::1 x\nnameserver fe80::1%eth0\n"
            ),
            ["192.0.2.7:53", "[2001:db8::1]:53"]
        );
    }
}
