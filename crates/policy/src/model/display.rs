//! Policies as TOML and selectors as text, which parse back to equal values.

use std::fmt::{self, Display, Formatter};

use plait_config::Bytes;

use super::{
    Actor, Announcement, Chain, CustomProgram, JoinRefusal, Limit, Mark, Policy, Ports, Selector,
    SubflowPattern,
};

impl Display for Policy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "name = {}", Quoted(&self.name))?;
        if self.chains.is_empty() {
            writeln!(f, "chains = []")?;
        }
        for (name, program) in &self.custom {
            write!(f, "\n[custom.{name}]\n{program}")?;
        }
        self.chains.iter().try_for_each(|chain| write!(f, "\n[[chains]]\n{chain}"))
    }
}

impl Display for CustomProgram {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { file, function, parameters } = self;
        writeln!(f, "file = {}", Quoted(&file.to_string_lossy()))?;
        function.iter().try_for_each(|function| writeln!(f, "function = {}", Quoted(function)))?;
        if !parameters.is_empty() {
            let parameters: Vec<_> = parameters.iter().map(ToString::to_string).collect();
            writeln!(f, "parameters = [{}]", parameters.join(", "))?;
        }
        Ok(())
    }
}

impl Display for Chain {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let interfaces: Vec<_> =
            self.interfaces.iter().map(|interface| Quoted(&interface.to_string()).to_string()).collect();
        let actors: Vec<_> = self.actors.iter().map(ToString::to_string).collect();
        writeln!(f, "name = {}", Quoted(&self.name))?;
        writeln!(f, "hook = {}", Quoted(self.hook.name()))?;
        writeln!(f, "interfaces = [{}]", interfaces.join(", "))?;
        writeln!(f, "priority = {}", self.priority)?;
        writeln!(f, "select = {}", Quoted(&self.select.to_string()))?;
        writeln!(f, "actors = [{}]", actors.join(", "))
    }
}

impl Display for Actor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::Mark(mark) => write!(f, "{{ {name} = \"{mark}\" }}"),
            Self::Redirect(interface) => write!(f, "{{ {name} = {} }}", Quoted(interface)),
            Self::RateLimit(Limit::Rate(rate)) => write!(f, "{{ {name} = {{ rate = \"{rate}\" }} }}"),
            Self::RateLimit(Limit::Window(bytes)) => {
                write!(f, "{{ {name} = {{ window = \"{}\" }} }}", Bytes((*bytes).into()))
            }
            Self::Pace(rate) => write!(f, "{{ {name} = \"{rate}\" }}"),
            Self::SetBackup { address_id: Some(id) } | Self::ClearBackup { address_id: Some(id) } => {
                write!(f, "{{ {name} = {{ address_id = {id} }} }}")
            }
            Self::BlockSubflow { echo: true } => write!(f, "{{ {name} = {{ echo = true }} }}"),
            Self::AddSubflow(Some(announcement)) => write!(f, "{{ {name} = {announcement} }}"),
            Self::DenyJoin(JoinRefusal::Reset) => write!(f, "{{ {name} = \"reset\" }}"),
            Self::GetConnection { keys: true } => write!(f, "{{ {name} = {{ keys = true }} }}"),
            _ => Quoted(name).fmt(f),
        }
    }
}

impl Display for Announcement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{{ address = \"{}\"", self.address)?;
        self.port.iter().try_for_each(|port| write!(f, ", port = {port}"))?;
        self.id.iter().try_for_each(|id| write!(f, ", id = {id}"))?;
        f.write_str(" }")
    }
}

/// A TOML basic string.
struct Quoted<'t>(&'t str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if control.is_control() => write!(f, "\\u{:04X}", u32::from(control))?,
                other => write!(f, "{other}")?,
            }
        }
        f.write_str("\"")
    }
}

impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Not(inner) => write!(f, "not {}", Nested { outer: self, selector: inner }),
            Self::And(parts) if parts.is_empty() => f.write_str("any"),
            Self::And(parts) => {
                list(f, parts.iter().map(|selector| Nested { outer: self, selector }), " and ")
            }
            Self::Or(parts) if parts.is_empty() => f.write_str("not any"),
            Self::Or(parts) => list(f, parts.iter().map(|selector| Nested { outer: self, selector }), " or "),
            Self::Subflow(subflow) => write!(f, "subflow({subflow})"),
            Self::IpPair(from, to) => write!(f, "ip_pair({from}, {to})"),
            Self::Source(prefix, ports) => endpoint(f, "src", prefix, ports.as_ref()),
            Self::Destination(prefix, ports) => endpoint(f, "dst", prefix, ports.as_ref()),
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
            Self::Custom(name) => f.write_str(name),
        }
    }
}

/// A nested selector.
struct Nested<'s> {
    outer: &'s Selector,
    selector: &'s Selector,
}

impl Display for Nested<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.selector.needs_parentheses_in(self.outer) {
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

fn endpoint(f: &mut Formatter<'_>, name: &str, prefix: &dyn Display, ports: Option<&Ports>) -> fmt::Result {
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

impl Display for SubflowPattern {
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
