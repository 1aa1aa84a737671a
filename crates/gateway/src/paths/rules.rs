//! Rules of paths: what applies to an interface by its name or its addresses. The first rule that matches an interface applies.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use plait_config::{Rate, Role, TextError};
use plait_linux::interfaces::Interface;

use super::calendar::{Period, Schedule};
use super::path_name::PathName;

/// The kernel's limit without the terminating NUL (`IFNAMSIZ`).
const MAX_NAME_LENGTH: usize = 15;

/// What a rule matches: the name of an interface, in which `*` stands for any characters and `?` for one, or an address or a prefix
/// that contains an address of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// A name, with or without wildcards.
    Interface(String),
    /// Addresses.
    Addresses(IpNet),
}

impl PathPattern {
    /// The accepted form, for error messages.
    pub const EXPECTED: &str =
        "an interface such as eth0 or wwan*, or an address or prefix such as 192.0.2.7 or 10.0.0.0/8";

    /// Whether it matches an interface, which may change when the interface's addresses do.
    pub fn matches(&self, interface: &Interface) -> bool {
        match self {
            PathPattern::Interface(pattern) => matches(pattern.as_bytes(), interface.name.as_bytes()),
            PathPattern::Addresses(_) => self.source(interface).is_some(),
        }
    }

    /// The address of an interface that it matches by address.
    fn source(&self, interface: &Interface) -> Option<IpAddr> {
        let PathPattern::Addresses(network) = self else { return None };
        let mut addresses =
            interface.addresses.iter().filter(|address| address.usable).map(|address| address.ip);
        addresses.find(|address| network.contains(address))
    }

    /// The name of the one path that it can match.
    fn name(&self) -> Option<PathName> {
        match self {
            PathPattern::Interface(pattern) => {
                (!pattern.contains(['*', '?'])).then(|| PathName::Interface(pattern.clone()))
            }
            PathPattern::Addresses(network) => {
                (network.prefix_len() == network.max_prefix_len()).then(|| PathName::Address(network.addr()))
            }
        }
    }
}

/// In linear time for one `*`, and quadratic time for more.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|length| matches(rest, &name[length..])),
        ([b'?', rest @ ..], [_, others @ ..]) => matches(rest, others),
        ([first, rest @ ..], [letter, others @ ..]) => first == letter && matches(rest, others),
        _ => false,
    }
}

impl FromStr for PathPattern {
    type Err = TextError;

    fn from_str(text: &str) -> Result<PathPattern, TextError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(PathPattern::Addresses(address.to_canonical().into()));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(PathPattern::Addresses(network.trunc()));
        }
        // As the kernel accepts names (`dev_valid_name`).
        let is_invalid =
            |letter: char| letter == '/' || letter == ':' || letter.is_whitespace() || letter.is_control();
        if text.is_empty()
            || text.len() > MAX_NAME_LENGTH
            || text == "."
            || text == ".."
            || text.contains(is_invalid)
        {
            return Err(TextError::new(PathPattern::EXPECTED, text));
        }
        // Consecutive ones mean the same, and take longer.
        let mut pattern = String::with_capacity(text.len());
        for letter in text.chars() {
            if !(letter == '*' && pattern.ends_with('*')) {
                pattern.push(letter);
            }
        }
        Ok(PathPattern::Interface(pattern))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathPattern::Interface(pattern) => f.write_str(pattern),
            PathPattern::Addresses(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            PathPattern::Addresses(network) => network.fmt(f),
        }
    }
}

/// What may be carried in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of IP packets, sent and received, from 1 MB.
    pub bytes: u64,
    /// How often they are given.
    pub period: Period,
}

/// A rule. Cap and quota are those of all interfaces together to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// What it matches.
    pub pattern: PathPattern,
    /// The role of these paths; `None`: they are not used.
    pub role: Option<Role>,
    /// For the schedulers `tiers` and `cheapest-first`: lower ones are preferred.
    pub tier: Option<u32>,
    /// For the scheduler `weighted`.
    pub weight: Option<u32>,
    /// What may be sent, and what may be received.
    pub cap: Option<Rate>,
    /// What may be sent and received in a period.
    pub quota: Option<Quota>,
    /// When the paths are used; `None`: always.
    pub schedule: Option<Schedule>,
}

impl PathRule {
    /// The one path that it can match, if it is used.
    pub(super) fn name(&self) -> Option<PathName> {
        self.role.and_then(|_| self.pattern.name())
    }

    /// How connections are bound to an interface that it matches.
    pub(super) fn path_of(&self, interface: &Interface) -> PathName {
        let by_name = || PathName::Interface(interface.name.clone());
        self.pattern.source(interface).map_or_else(by_name, PathName::Address)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::interface;
    use super::*;

    fn pattern(text: &str) -> PathPattern {
        text.parse().expect(text)
    }

    #[test]
    fn patterns_match_names() {
        for (text, name, expected) in [
            ("wwan*", "wwan0", true),
            ("wwan*", "wwan", true),
            ("wwan*", "wlan0", false),
            ("w*n?", "wlan0", true),
            ("w*n?", "wlan", false),
            ("*", "eth0", true),
            ("e*0*", "eth0", true),
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth?", "eth10", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(pattern(text).matches(&interface(name, &[])), expected, "{text} {name}");
        }
    }

    #[test]
    fn addresses_match_interfaces_that_have_one_of_them() {
        let modem = interface("wwan0", &["10.64.3.7", "fe80::1", "2001:db8:1::7"]);
        for (text, expected) in [
            ("10.64.3.7", true),
            ("::ffff:10.64.3.7", true),
            ("10.64.0.0/16", true),
            ("10.64.9.9/16", true),
            ("10.65.0.0/16", false),
            ("2001:db8:1::/48", true),
            ("2001:db8::7", false),
        ] {
            assert_eq!(pattern(text).matches(&modem), expected, "{text}");
        }
    }

    #[test]
    fn rejects_what_no_interface_can_be_named() {
        for text in ["", "a/b", "a b", ".", "..", "10.0.0.0/33", "averyverylongname*", "a:b"] {
            let error = text.parse::<PathPattern>().expect_err(text).to_string();
            assert!(error.starts_with("expected an interface such as eth0 or wwan*"), "{error}");
        }
    }

    #[test]
    fn only_patterns_without_wildcards_name_a_path() {
        assert_eq!(pattern("eth0").name(), Some(PathName::Interface("eth0".into())));
        assert_eq!(pattern("10.0.0.1").name(), Some(PathName::from("10.0.0.1")));
        assert_eq!((pattern("eth*").name(), pattern("10.0.0.0/8").name()), (None, None));
    }

    /// The definition: a pattern as a regular expression, by trying every split.
    fn oracle(pattern: &str, name: &str) -> bool {
        let mut states = vec![true];
        states.resize(name.len() + 1, false);
        for letter in pattern.bytes() {
            let mut next = vec![false; name.len() + 1];
            for at in 0..=name.len() {
                next[at] = match letter {
                    b'*' => states[..=at].contains(&true),
                    letter => {
                        at > 0 && states[at - 1] && (letter == b'?' || letter == name.as_bytes()[at - 1])
                    }
                };
            }
            states = next;
        }
        states[name.len()]
    }

    proptest! {
        #[test]
        fn matches_as_a_state_machine_does(text in "[ab*?]{1,10}", name in "[ab]{1,15}") {
            prop_assert_eq!(pattern(&text).matches(&interface(&name, &[])), oracle(&text, &name));
        }

        #[test]
        fn display_round_trips(text in "[a-z*?]{1,12}|[0-9]{1,2}\\.0\\.0\\.0/[0-9]|[0-9a-f]{1,4}::1") {
            let parsed = pattern(&text);
            prop_assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }

        #[test]
        fn parser_never_panics(text in ".{0,20}") {
            let _ = text.parse::<PathPattern>();
        }
    }
}
