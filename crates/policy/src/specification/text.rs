//! A policy as TOML, which reads back as the same.

use std::fmt::{self, Display, Formatter};

use plait_config::Bytes;

use super::{Actor, Announcement, Chain, Limit, Policy, Refusal};

impl Display for Policy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "name = {}", Quoted(&self.name))?;
        if self.chains.is_empty() {
            writeln!(f, "chains = []")?;
        }
        for (name, file) in &self.own {
            writeln!(f, "\n[own.{name}]\nfile = {}", Quoted(&file.to_string_lossy()))?;
        }
        self.chains.iter().try_for_each(|chain| write!(f, "\n[[chains]]\n{chain}"))
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
            Self::DenyJoin(Refusal::Reset) => write!(f, "{{ {name} = \"reset\" }}"),
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

/// A basic string of TOML.
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
