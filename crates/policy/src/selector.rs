//! Which packets a chain is for: an expression over what is known of a packet.
//!
//! ```text
//! packet(data) and not dst(10.0.0.0/8) or connection(0x1a2b3c4d)
//! ```
//!
//! `not` binds closer than `and`, and `and` closer than `or`. [`Selector`] lists what there is and how it is written:
//! its `Display` gives a text that reads back as the same expression. Reading never panics: what is wrong is a
//! [`SelectorError`] that says at which column what was expected and what was found.

mod kind;
mod parse;
mod prefix;
#[cfg(test)]
pub(crate) mod strategies;
#[cfg(test)]
mod tests;
mod text;

use crate::specification::Interface;

pub use kind::Kind;
pub use parse::SelectorError;
pub(crate) use parse::{DEEPEST, is_word, parse};
pub use prefix::{Prefix, PrefixError};

/// An expression that holds for a packet or does not. Addresses, ports and sequence numbers are the packet's: `src` of a
/// packet that comes in is the peer's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `any`: every packet.
    Any,
    /// `not S`: packets for which it does not hold.
    Not(Box<Selector>),
    /// `S and S`: all hold; without any, it holds.
    And(Vec<Selector>),
    /// `S or S`: one at least holds; without any, it does not hold.
    Or(Vec<Selector>),
    /// `subflow(src = PREFIX, dst = PREFIX, sport = PORTS, dport = PORTS)`: packets in this direction of the subflows
    /// whose addresses and ports are these; what is not given is open.
    Subflow(Subflow),
    /// `ip_pair(PREFIX, PREFIX)`: packets from an address of the first to one of the second.
    IpPair(Prefix, Prefix),
    /// `src(PREFIX)`, `src(PREFIX, PORTS)`: where the packet comes from.
    Source(Prefix, Option<Ports>),
    /// `dst(PREFIX)`, `dst(PREFIX, PORTS)`: where it goes to.
    Destination(Prefix, Option<Ports>),
    /// `sequence(data = A-B)`: packets with a DSS mapping (RFC 8684, section 3.3.1) whose data sequence number is one of
    /// A, A + 1, ... B, as it stands in the packet. The range goes on from the highest number with 0, so B may be below
    /// A.
    DataSequence(u64, u64),
    /// `sequence(subflow = A-B)`: likewise of TCP's sequence number.
    SubflowSequence(u32, u32),
    /// `packet(KIND, ...)`: packets that are of one of these kinds.
    Packet(Vec<Kind>),
    /// `connection(TOKEN)`: packets of the connection that has this token at this host (RFC 8684, section 3.2).
    Connection(u32),
    /// `path(INTERFACE)`, `path(trusted)`, `path(untrusted)`, `path(*)`: packets that came by, or leave by, this
    /// interface, one with this role, or any but the loopback interface.
    Path(Interface),
    /// `size(A-B)`, `size(A-)`: packets before which their subflow had carried at least A bytes of payload in this
    /// direction, and fewer than B.
    Size {
        /// In bytes.
        from: u64,
        /// In bytes; `None`: no limit.
        to: Option<u64>,
    },
    /// `connection_size(A-B)`, `connection_size(A-)`: packets before which their connection had carried that much, over all
    /// its subflows and in both directions.
    ConnectionSize {
        /// In bytes.
        from: u64,
        /// In bytes; `None`: no limit.
        to: Option<u64>,
    },
    /// `mark(VALUE)`, `mark(VALUE/MASK)`: packets whose socket or firewall gave them this mark. Egress only.
    Mark(Mark),
    /// `cgroup(/PATH)`: packets of sockets made by processes in this control group (version 2) or below it. Egress only.
    Cgroup(String),
    /// A name alone: the user's own selector of this name.
    Own(String),
}

/// The addresses and ports of subflows; `None` is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Subflow {
    /// Where its packets come from.
    pub source: Option<Prefix>,
    /// Where they go to.
    pub destination: Option<Prefix>,
    /// The port they come from.
    pub source_ports: Option<Ports>,
    /// The port they go to.
    pub destination_ports: Option<Ports>,
}

/// The ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Not above the last, or there are none.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// Some bits of a packet's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// What they are; no bit beyond the mask.
    pub value: u32,
    /// Which bits.
    pub mask: u32,
}

impl Selector {
    /// Calls `visit` with it and every selector inside.
    pub(crate) fn visit<'s>(&'s self, visit: &mut impl FnMut(&'s Selector)) {
        visit(self);
        match self {
            Self::Not(inner) => inner.visit(visit),
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.visit(visit)),
            _ => {}
        }
    }

    /// The control groups it names.
    pub(crate) fn cgroups(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.visit(&mut |part| {
            if let Self::Cgroup(path) = part {
                found.push(path.as_str());
            }
        });
        found
    }
}

/// A word that no name of the user's own may be, as it means something already.
pub(crate) fn is_reserved(word: &str) -> bool {
    ["and", "or", "not"].contains(&word) || parse::SELECTORS.contains(&word)
}
