//! An enabler's options, and the rule for the module made from them.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use plait_config::TextError;
use plait_proto::option::Mode;

use crate::bindings::{
    PLAIT_MAX_PORTS, PLAIT_MODE_STREAM_KEYS, PLAIT_MODE_XOR64_HMAC, PLAIT_MODE_XOR64_KEY, plait_ports,
    plait_selection,
};
use crate::paths::Roles;
use crate::protection::ProtectionPolicy;

/// An enabler's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The cgroup whose programs are protected: its path from the root of the hierarchy, or that of its directory.
    pub cgroup: PathBuf,
    /// How connections are protected.
    pub mode: ModuleMode,
    /// Whether connections whose peer does not agree on the mode are refused.
    pub require: bool,
    /// The roles of interfaces.
    pub roles: Roles,
    /// The ports of services whose connections are protected; empty: all.
    pub ports: Ports,
    /// The mark of the sockets that are protected; `None`: all.
    pub mark: Option<Mark>,
}

impl Options {
    /// The policy that judges the negotiation.
    pub(super) fn policy(&self) -> ProtectionPolicy {
        let mode = match self.mode {
            ModuleMode::Xor64 => Mode::Xor64,
            ModuleMode::Stream => Mode::Stream,
        };
        if self.require { ProtectionPolicy::Require(mode) } else { ProtectionPolicy::Prefer(mode) }
    }

    /// The rule for the module; `cgroup` is the path from the root.
    pub(super) fn rule(&self, verdicts: u32, cgroup: &str) -> String {
        let mut rule = format!("verdicts={verdicts} cgroup={cgroup} hold");
        let mut add = |word: fmt::Arguments<'_>| rule.write_fmt(word).expect("a string takes everything");
        if !self.ports.0.is_empty() {
            add(format_args!(" port={}", self.ports));
        }
        if let Some(mark) = self.mark {
            add(format_args!(" mark={mark}"));
        }
        if self.require {
            add(format_args!(" require"));
        }
        rule
    }

    /// The same selection for the BPF programs that negotiate and that choose the first path.
    pub(super) fn selection(&self) -> plait_selection {
        let Mark { mark, mask } = self.mark.unwrap_or(Mark { mark: 0, mask: 0 });
        let mut ports = [plait_ports { first: 0, last: 0 }; PLAIT_MAX_PORTS as usize];
        for (place, &(first, last)) in ports.iter_mut().zip(&self.ports.0) {
            *place = plait_ports { first, last };
        }
        plait_selection { taken: 1, mark: mark & mask, mask, ports_len: self.ports.0.len() as u32, ports }
    }
}

/// How the module protects a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleMode {
    /// The byte scrambling of Kato et al., which gateways speak too. Obfuscation against casual listening, not secrecy.
    Xor64,
    /// A keystream from the MPTCP keys, which cross the trusted path only. Needs the module at both ends.
    Stream,
}

impl ModuleMode {
    /// The modes of the handshake option that it offers and accepts.
    pub(super) fn offer(self) -> u32 {
        match self {
            ModuleMode::Xor64 => PLAIT_MODE_XOR64_HMAC | PLAIT_MODE_XOR64_KEY,
            ModuleMode::Stream => PLAIT_MODE_STREAM_KEYS,
        }
    }
}

impl fmt::Display for ModuleMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModuleMode::Xor64 => "xor64",
            ModuleMode::Stream => "stream",
        })
    }
}

impl FromStr for ModuleMode {
    type Err = TextError;

    fn from_str(name: &str) -> Result<ModuleMode, TextError> {
        match name {
            "xor64" => Ok(ModuleMode::Xor64),
            "stream" => Ok(ModuleMode::Stream),
            other => Err(TextError::new("a mode of the kernel module (xor64, stream)", other)),
        }
    }
}

/// Ranges of ports, written as `80,443,5000-5010`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(Vec<(u16, u16)>);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        f.write_str(&list.join(","))
    }
}

impl FromStr for Ports {
    type Err = TextError;

    fn from_str(list: &str) -> Result<Ports, TextError> {
        const EXPECTED: &str = "at most 16 ports or ranges, such as 80,443,5000-5010";
        let range = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (0 < first && first <= last).then_some((first, last))
        };
        match list.split(',').map(range).collect::<Option<Vec<_>>>() {
            Some(ports) if ports.len() <= PLAIT_MAX_PORTS as usize => Ok(Ports(ports)),
            _ => Err(TextError::new(EXPECTED, list)),
        }
    }
}

/// A value and a mask that a socket's `SO_MARK` is compared with, written as `0x1` or `0x1/0xff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    mark: u32,
    mask: u32,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.mark, self.mask)
    }
}

impl FromStr for Mark {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Mark, TextError> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let (mark, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
        match (number(mark), number(mask)) {
            (Some(mark), Some(mask)) if mask != 0 => Ok(Mark { mark, mask }),
            _ => Err(TextError::new("a mark, such as 0x1, or a mark and its mask, such as 0x1/0xff", text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            cgroup: "/work".into(),
            mode: ModuleMode::Xor64,
            require: true,
            roles: Roles::default(),
            ports: "443,5000-5010".parse().expect("ports"),
            mark: Some("0x1/0xff".parse().expect("a mark")),
        }
    }

    #[test]
    fn rule_and_bpf_selection_are_equivalent() {
        let options = options();
        let rule = "verdicts=7 cgroup=/work hold port=443-443,5000-5010 mark=0x1/0xff require";
        assert_eq!(options.rule(7, "/work"), rule);
        let selection = options.selection();
        assert_eq!((selection.taken, selection.mark, selection.mask, selection.ports_len), (1, 1, 0xff, 2));
        assert_eq!((selection.ports[1].first, selection.ports[1].last), (5000, 5010));
        let everything = Options { ports: Ports::default(), mark: None, require: false, ..options };
        assert_eq!(everything.rule(7, "/"), "verdicts=7 cgroup=/ hold");
        assert_eq!((everything.selection().mask, everything.selection().ports_len), (0, 0));
    }

    #[test]
    fn invalid_ports_and_marks_are_rejected() {
        for list in ["", "0", "80,", "9-1", "65536", "x", &["1"; 17].join(",")] {
            assert!(list.parse::<Ports>().is_err(), "{list}");
        }
        for mark in ["", "0x", "1/", "1/0", "-1", "0x100000000"] {
            assert!(mark.parse::<Mark>().is_err(), "{mark}");
        }
        assert!("sealed".parse::<ModuleMode>().is_err());
    }

    #[test]
    fn gateways_never_offer_the_modules_stream() {
        let gateways = [Mode::Xor64, Mode::Stream, Mode::Sealed].map(|mode| u32::from(mode.offer()));
        assert!(gateways.iter().all(|offer| offer & ModuleMode::Stream.offer() == 0));
        assert_eq!(ModuleMode::Xor64.offer(), u32::from(Mode::Xor64.offer()));
    }
}
