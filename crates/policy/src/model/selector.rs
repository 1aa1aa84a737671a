//! Which packets a chain applies to: a boolean expression over properties of a packet.
//!
//! ```text
//! packet(data) and not dst(10.0.0.0/8) or connection(0x1a2b3c4d)
//! ```
//!
//! `not` binds tighter than `and`, and `and` tighter than `or`. [`Selector`] documents the syntax of each term.

use super::{Interface, PacketKind, Prefix};

/// The maximum nesting of parentheses and `not`s, which bounds recursion.
pub(crate) const MAX_SELECTOR_DEPTH: usize = 128;

/// A predicate on packets. Addresses, ports and sequence numbers are the packet's: at ingress, `src` is the peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `any`: every packet.
    Any,
    /// `not S`.
    Not(Box<Selector>),
    /// `S and S`: matches if all match; empty, it matches.
    And(Vec<Selector>),
    /// `S or S`: matches if at least one matches; empty, it does not match.
    Or(Vec<Selector>),
    /// `subflow(src = PREFIX, dst = PREFIX, sport = PORTS, dport = PORTS)`: packets with these addresses and ports, in
    /// this direction; omitted keys match anything.
    Subflow(SubflowPattern),
    /// `ip_pair(PREFIX, PREFIX)`: source address in the first prefix, destination address in the second.
    IpPair(Prefix, Prefix),
    /// `src(PREFIX)`, `src(PREFIX, PORTS)`: the source.
    Source(Prefix, Option<Ports>),
    /// `dst(PREFIX)`, `dst(PREFIX, PORTS)`: the destination.
    Destination(Prefix, Option<Ports>),
    /// `sequence(data = A-B)`: packets with a DSS mapping (RFC 8684, section 3.3.1) whose data sequence number, as it
    /// appears in the packet, is in the inclusive range. Ranges wrap around, so B may be lower than A.
    DataSequence(u64, u64),
    /// `sequence(subflow = A-B)`: the same for the TCP sequence number.
    SubflowSequence(u32, u32),
    /// `packet(KIND, ...)`: packets of at least one of these kinds.
    Packet(Vec<PacketKind>),
    /// `connection(TOKEN)`: packets of the connection with this token at this host (RFC 8684, section 3.2).
    Connection(u32),
    /// `path(INTERFACE)`, `path(trusted)`, `path(untrusted)`, `path(*)`: packets received or sent on this interface, one
    /// with this role, or any interface except loopback.
    Path(Interface),
    /// `size(A-B)`, `size(A-)`: packets before which their subflow carried at least A and fewer than B payload bytes in
    /// this direction.
    Size {
        /// Bytes.
        from: u64,
        /// Bytes; `None`: no limit.
        to: Option<u64>,
    },
    /// `connection_size(A-B)`, `connection_size(A-)`: the same for the connection, summed over all subflows and both
    /// directions.
    ConnectionSize {
        /// Bytes.
        from: u64,
        /// Bytes; `None`: no limit.
        to: Option<u64>,
    },
    /// `mark(VALUE)`, `mark(VALUE/MASK)`: packets with this socket or firewall mark. Egress only.
    Mark(Mark),
    /// `cgroup(/PATH)`: packets of sockets that processes in this control group (version 2) or below it created. Egress
    /// only.
    Cgroup(String),
    /// Any other name: the custom selector with this name.
    Custom(String),
}

/// The addresses and ports of subflows; `None` matches anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SubflowPattern {
    /// Source addresses.
    pub source: Option<Prefix>,
    /// Destination addresses.
    pub destination: Option<Prefix>,
    /// Source ports.
    pub source_ports: Option<Ports>,
    /// Destination ports.
    pub destination_ports: Option<Ports>,
}

/// An inclusive range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The first; the range is empty if this is greater than the last.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// A packet mark under a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The value; no bit outside the mask is set.
    pub value: u32,
    /// The bits that are compared or set.
    pub mask: u32,
}

impl Selector {
    /// Calls `visit` with this selector and all nested ones.
    pub(crate) fn visit<'s>(&'s self, visit: &mut impl FnMut(&'s Selector)) {
        visit(self);
        match self {
            Self::Not(inner) => inner.visit(visit),
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.visit(visit)),
            _ => {}
        }
    }

    /// The control groups it refers to.
    pub(crate) fn cgroups(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.visit(&mut |part| {
            if let Self::Cgroup(path) = part {
                found.push(path.as_str());
            }
        });
        found
    }

    /// Whether it needs parentheses inside `outer`. Only where its meaning would change without them, so that a
    /// selector's text nests no deeper than the text it was parsed from.
    pub(crate) fn needs_parentheses_in(&self, outer: &Selector) -> bool {
        match (outer, self) {
            (Selector::Or(_), Selector::And(_)) => false,
            (_, Selector::And(_) | Selector::Or(_)) => true,
            _ => false,
        }
    }
}
