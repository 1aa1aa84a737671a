//! Links that are up, and what may be behind them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use plait_host::interfaces::interfaces;
use plait_host::netns::{Named, NetNs};
use serde::{Deserialize, Serialize};

use crate::emu::Emu;
use crate::netem::Netem;
use crate::veth::Veth;
use crate::{Change, Direction, Error, LinkSpec, Medium, Pace, Rate, Statistics};

/// What makes frames late, lost and slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// plait's emulator in user space, between two TAP interfaces.
    Emu,
    /// The kernel's netem and tbf.
    Netem,
    /// A veth pair, which does nothing to frames.
    None,
}

/// Where a link ends: an interface that the link makes in a namespace.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The namespace.
    pub namespace: &'a NetNs,
    /// The interface's name, which must be free there: 1 to 15 bytes.
    pub interface: &'a str,
}

/// A link that is up. Its interfaces are up, and without addresses but those that the kernel gives by itself (IPv6,
/// `fe80::/10`); they vanish when this is dropped, or its process dies.
#[derive(Debug)]
pub struct Link(Behind);

#[derive(Debug)]
enum Behind {
    Emu(Emu),
    Netem(Box<Netem>),
    None(Veth),
}

impl Backend {
    /// Whether this backend works here, found out by really making a link of it in namespaces of its own.
    ///
    /// # Errors
    /// [`Error::Unavailable`], which says what was tried, what the kernel said, and what to do.
    pub fn probe(self) -> Result<(), Error> {
        let shaped = Direction {
            pace: Pace::Rate(Rate::mbit(10)),
            delay: std::time::Duration::from_millis(1),
            ..Direction::default()
        };
        let direction = if self == Self::None { Direction::default() } else { shaped };
        let spec = LinkSpec { a_to_b: direction.clone(), b_to_a: direction, ..LinkSpec::default() };
        let made = nameless()
            .and_then(|a| Ok((a, nameless()?)))
            .map_err(|source| Error::Refused { step: "make network namespaces to try it".into(), source });
        let tried = made.and_then(|(a, b)| {
            let end = |namespace| End { namespace, interface: "probe" };
            Link::make(&spec, self, end(&a), end(&b)).map(drop)
        });
        tried.map_err(|error| match error {
            Error::Unavailable { .. } => error,
            other => Error::Unavailable { backend: self, why: other.to_string() },
        })
    }

    /// The backend for a link of which no one is asked for, and to which `changes` may happen: [`None`](Self::None)
    /// for a mere wire, else [`Emu`](Self::Emu), else [`Netem`](Self::Netem), the first that works here.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Unsupported`] if there is none.
    pub fn for_link<'a>(
        spec: &LinkSpec,
        changes: impl IntoIterator<Item = &'a Change>,
    ) -> Result<Self, Error> {
        let changes: Vec<&Change> = changes.into_iter().collect();
        let works =
            |backend: Self| backend.check(spec, changes.iter().copied()).and_then(|()| backend.probe());
        if Self::None.check(spec, changes.iter().copied()).is_ok() {
            return Ok(Self::None);
        }
        let Err(no_emu) = works(Self::Emu) else { return Ok(Self::Emu) };
        let Err(no_netem) = works(Self::Netem) else { return Ok(Self::Netem) };
        Err(match no_emu {
            Error::Unavailable { backend, why } => {
                Error::Unavailable { backend, why: format!("{why}; and instead of it, {no_netem}") }
            }
            other => other,
        })
    }

    /// Whether this backend has what `spec` and `changes` ask for; not whether it works here.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which names the property.
    pub fn check<'a>(
        self,
        spec: &LinkSpec,
        changes: impl IntoIterator<Item = &'a Change>,
    ) -> Result<(), Error> {
        match self {
            Self::Emu => {
                Emu::check(spec)?;
                changes.into_iter().try_for_each(|change| Emu::check_change(spec.medium, change))
            }
            Self::Netem => {
                Netem::check(spec)?;
                changes.into_iter().try_for_each(Netem::check_change)
            }
            Self::None => {
                Veth::check(spec)?;
                changes.into_iter().try_for_each(Veth::check_change)
            }
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emu => "emu",
            Self::Netem => "netem",
            Self::None => "none",
        })
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(given: &str) -> Result<Self, Error> {
        let known = [Self::Emu, Self::Netem, Self::None];
        let found = known.into_iter().find(|backend| backend.to_string() == given);
        found.ok_or_else(|| Error::text("emu, netem or none", given))
    }
}

impl Link {
    /// Makes a link between two ends, `a` and `b`, by this backend.
    ///
    /// # Errors
    /// What the backend cannot give ([`Error::Unsupported`]), that it does not work here ([`Error::Unavailable`]), an
    /// interface's name that is none or is taken, or what the kernel refuses.
    pub fn make(spec: &LinkSpec, backend: Backend, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        backend.check(spec, [])?;
        check_name(a)?;
        check_name(b)?;
        Ok(Self(match backend {
            Backend::Emu => Behind::Emu(Emu::start(spec, a, b)?),
            Backend::Netem => Behind::Netem(Netem::start(spec, a, b)?.into()),
            Backend::None => Behind::None(Veth::start(spec, a, b)?),
        }))
    }

    /// What is behind it.
    pub fn backend(&self) -> Backend {
        match self.0 {
            Behind::Emu(_) => Backend::Emu,
            Behind::Netem(_) => Backend::Netem,
            Behind::None(_) => Backend::None,
        }
    }

    /// Changes it while frames cross.
    ///
    /// # Errors
    /// What the backend cannot give ([`Error::Unsupported`]), or what the kernel refuses.
    pub fn apply(&mut self, change: &Change) -> Result<(), Error> {
        match &mut self.0 {
            Behind::Emu(emu) => emu.apply(change),
            Behind::Netem(netem) => netem.apply(change),
            Behind::None(_) => Veth::check_change(change),
        }
    }

    /// What it did so far.
    ///
    /// # Errors
    /// What the kernel says, or that the emulator ended before its time.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        match &self.0 {
            Behind::Emu(emu) => emu.statistics(),
            Behind::Netem(netem) => netem.statistics(),
            Behind::None(veth) => veth.statistics(),
        }
    }
}

impl Default for LinkSpec {
    /// A mere wire, full duplex, with Ethernet's usual MTU of 1500.
    fn default() -> Self {
        let wire = Direction::default;
        Self { a_to_b: wire(), b_to_a: wire(), medium: Medium::FullDuplex, mtu: 1500 }
    }
}

/// A new namespace that ends with this value, even if the process is killed: once open, it needs no name.
pub(crate) fn nameless() -> std::io::Result<NetNs> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    // Named as everything of plait is, so that it is found should the process be killed before the name is gone.
    let named = Named::create(&format!("plait-{}-link{number}", std::process::id()))?;
    NetNs::named(named.name())
}

fn check_name(end: End<'_>) -> Result<(), Error> {
    const EXPECTED: &str =
        "a name for an interface: 1 to 15 bytes without blanks, slash, colon or percent sign";
    let name = end.interface;
    let bad = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control() || b"/:%\"".contains(&byte);
    // `ip` takes a leading dash for an option, and the kernel these two for folders.
    if !(1..=15).contains(&name.len()) || name.bytes().any(bad) || name.starts_with(['-', '.']) {
        return Err(Error::text(EXPECTED, name));
    }
    let refused = |source| Error::Refused { step: format!("look for an interface {name}"), source };
    let there = end.namespace.run(interfaces).map_err(refused)?;
    let there = there.map_err(|error| refused(std::io::Error::other(error)))?;
    match there.iter().any(|interface| interface.name == name) {
        true => Err(Error::Taken { interface: name.into() }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adjustment, Probability, Toward};

    #[test]
    fn names_of_backends_are_read_as_they_are_written() {
        for backend in [Backend::Emu, Backend::Netem, Backend::None] {
            assert_eq!(backend.to_string().parse::<Backend>().expect("its name"), backend);
        }
        let error = "mininet".parse::<Backend>().expect_err("no backend").to_string();
        assert_eq!(error, "expected emu, netem or none, found \"mininet\"");
    }

    #[test]
    fn what_a_backend_cannot_give_is_named() {
        let unsupported = |backend: Backend, spec: &LinkSpec, changes: &[Change]| {
            backend.check(spec, changes).expect_err("not to be had").to_string()
        };
        let wire = LinkSpec::default();
        let lossy = Direction { loss: crate::Loss::Random(Probability::certain()), ..Direction::default() };
        let lossy = LinkSpec { b_to_a: lossy, ..wire.clone() };
        assert_eq!(unsupported(Backend::None, &lossy, &[]), "the backend none has no loss");
        assert_eq!(
            unsupported(Backend::None, &wire, &[Change::Blackhole]),
            "the backend none has no blackhole"
        );
        assert!(Backend::None.check(&wire, []).is_ok());

        let shared = Medium::HalfDuplex { per_frame: std::time::Duration::ZERO };
        let shared = LinkSpec { medium: shared, ..wire.clone() };
        assert_eq!(
            unsupported(Backend::Netem, &shared, &[]),
            "the backend netem has no shared medium (half duplex)"
        );
        let trace = crate::Trace::parse("1", "trace".as_ref()).expect("a trace");
        let trace = Adjustment { pace: Some(Pace::Trace(trace.into())), ..Adjustment::default() };
        let to_trace = Change::Adjust(Toward::Each, trace);
        assert_eq!(
            unsupported(Backend::Netem, &wire, std::slice::from_ref(&to_trace)),
            "the backend netem has no trace-driven rate"
        );
        assert!(Backend::Emu.check(&shared, []).is_ok() && Backend::Emu.check(&wire, [&to_trace]).is_ok());
    }

    #[test]
    fn names_that_cannot_be_an_interfaces_are_refused() {
        let namespace = NetNs::current().expect("this one");
        for interface in ["", "sixteen-bytes-xx", "a b", "a/b", "-x", "..", "a:b"] {
            let error =
                check_name(End { namespace: &namespace, interface }).expect_err(interface).to_string();
            assert!(error.ends_with(&format!("found {interface:?}")), "{error}");
        }
    }
}
