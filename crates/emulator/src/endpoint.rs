//! The ends of a link.

use std::sync::atomic::{AtomicU32, Ordering};

use plait_linux::interfaces::interfaces;
use plait_linux::netns::{Named, NetNs};

use crate::error::Error;

/// One end of a link: the interface to create, and its namespace.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The namespace.
    pub namespace: &'a NetNs,
    /// The name of the interface, unused in the namespace: 1 to 15 bytes.
    pub interface: &'a str,
}

impl End<'_> {
    /// Checks that the name is valid and unused.
    pub(crate) fn check(self) -> Result<(), Error> {
        const EXPECTED: &str =
            "a name for an interface: 1 to 15 bytes without blanks, slash, colon or percent sign";
        let name = self.interface;
        let bad =
            |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control() || b"/:%\"".contains(&byte);
        // `ip` parses a leading dash as an option, and sysfs uses names as directories.
        if !(1..=15).contains(&name.len()) || name.bytes().any(bad) || name.starts_with(['-', '.']) {
            return Err(Error::text(EXPECTED, name));
        }
        let refused = Error::refused(format!("look for an interface {name}"));
        let there = self.namespace.run(interfaces).map_err(&refused)?;
        let there = there.map_err(|error| refused(std::io::Error::other(error)))?;
        match there.iter().any(|interface| interface.name == name) {
            true => Err(Error::Taken { interface: name.into() }),
            false => Ok(()),
        }
    }
}

/// Creates a namespace that is removed with this value, even if the process is killed: an open namespace needs no
/// name.
pub(crate) fn anonymous_namespace() -> std::io::Result<NetNs> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    // The prefix lets a later run find the namespace if the process is killed before the name is removed.
    let named = Named::create(&format!("plait-{}-link{number}", std::process::id()))?;
    NetNs::named(named.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_interface_names() {
        let namespace = NetNs::current().expect("this one");
        for interface in ["", "sixteen-bytes-xx", "a b", "a/b", "-x", "..", "a:b"] {
            let error = End { namespace: &namespace, interface }.check().expect_err(interface).to_string();
            assert!(error.ends_with(&format!("got {interface:?}")), "{error}");
        }
    }
}
