//! A selector as text, which reads back as the same.

use std::fmt::{self, Display, Formatter};

use plait_config::Bytes;

use super::{Mark, Ports, Selector, Subflow};

impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Not(inner) => write!(f, "not {}", Part { of: self, selector: inner }),
            Self::And(parts) if parts.is_empty() => f.write_str("any"),
            Self::And(parts) => list(f, parts.iter().map(|selector| Part { of: self, selector }), " and "),
            Self::Or(parts) if parts.is_empty() => f.write_str("not any"),
            Self::Or(parts) => list(f, parts.iter().map(|selector| Part { of: self, selector }), " or "),
            Self::Subflow(subflow) => write!(f, "subflow({subflow})"),
            Self::IpPair(from, to) => write!(f, "ip_pair({from}, {to})"),
            Self::Source(prefix, ports) => end(f, "src", prefix, ports.as_ref()),
            Self::Destination(prefix, ports) => end(f, "dst", prefix, ports.as_ref()),
            Self::DataSequence(first, last) => write!(f, "sequence(data = {first}-{last})"),
            Self::SubflowSequence(first, last) => write!(f, "sequence(subflow = {first}-{last})"),
            Self::Packet(kinds) => {
                f.write_str("packet(")?;
                list(f, kinds, ", ")?;
                f.write_str(")")
            }
            Self::Connection(token) => write!(f, "connection({token:#010x})"),
            Self::Path(interface) => write!(f, "path({interface})"),
            Self::Size { from, to } => sizes(f, "size", *from, *to),
            Self::ConnectionSize { from, to } => sizes(f, "connection_size", *from, *to),
            Self::Mark(mark) => write!(f, "mark({mark})"),
            Self::Cgroup(path) => write!(f, "cgroup({path})"),
            Self::Own(name) => f.write_str(name),
        }
    }
}

impl Selector {
    /// Whether it stands in parentheses within another: only if it would be read otherwise without, so that a text is no
    /// deeper than the one that its selector was read from.
    pub(crate) fn stands_apart_in(&self, outer: &Selector) -> bool {
        match (outer, self) {
            (Selector::Or(_), Selector::And(_)) => false,
            (_, Selector::And(_) | Selector::Or(_)) => true,
            _ => false,
        }
    }
}

/// A selector within another.
struct Part<'s> {
    of: &'s Selector,
    selector: &'s Selector,
}

impl Display for Part<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.selector.stands_apart_in(self.of) {
            write!(f, "({})", self.selector)
        } else {
            self.selector.fmt(f)
        }
    }
}

fn list(
    f: &mut Formatter<'_>,
    parts: impl IntoIterator<Item = impl Display>,
    separator: &str,
) -> fmt::Result {
    for (index, part) in parts.into_iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        part.fmt(f)?;
    }
    Ok(())
}

fn end(f: &mut Formatter<'_>, name: &str, prefix: &dyn Display, ports: Option<&Ports>) -> fmt::Result {
    match ports {
        Some(ports) => write!(f, "{name}({prefix}, {ports})"),
        None => write!(f, "{name}({prefix})"),
    }
}

fn sizes(f: &mut Formatter<'_>, name: &str, from: u64, to: Option<u64>) -> fmt::Result {
    write!(f, "{name}({}-", Bytes(from))?;
    to.iter().try_for_each(|to| Bytes(*to).fmt(f))?;
    f.write_str(")")
}

impl Display for Subflow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let fields: [(&str, Option<&dyn Display>); 4] = [
            ("src", self.source.as_ref().map(|prefix| prefix as _)),
            ("dst", self.destination.as_ref().map(|prefix| prefix as _)),
            ("sport", self.source_ports.as_ref().map(|ports| ports as _)),
            ("dport", self.destination_ports.as_ref().map(|ports| ports as _)),
        ];
        let given = fields.into_iter().filter_map(|(key, value)| Some(format!("{key} = {}", value?)));
        list(f, given, ", ")
    }
}

impl Display for Ports {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl Display for Mark {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { value, mask } = self;
        if *mask == u32::MAX { write!(f, "{value:#x}") } else { write!(f, "{value:#x}/{mask:#x}") }
    }
}
