//! Running links.

use crate::backend::Backend;
use crate::endpoint::{End, anonymous_namespace};
use crate::error::Error;
use crate::netem::NetemLink;
use crate::spec::{Change, DirectionSpec, LinkSpec, Pace};
use crate::statistics::Statistics;
use crate::userspace::UserspaceLink;
use crate::veth::VethLink;
use plait_config::Rate;

/// A running link. Its interfaces are up, with only the kernel's link-local addresses (`fe80::/10`). They are removed
/// when this is dropped or the process ends.
#[derive(Debug)]
pub struct Link(BackendImpl);

#[derive(Debug)]
enum BackendImpl {
    Emu(UserspaceLink),
    Netem(Box<NetemLink>),
    None(VethLink),
}

impl Link {
    /// Creates a link between two ends with this backend.
    ///
    /// # Errors
    /// The backend lacks a property ([`Error::Unsupported`]) or does not work here ([`Error::Unavailable`]), an
    /// interface name is invalid or in use, or the kernel rejects a step.
    pub fn make(spec: &LinkSpec, backend: Backend, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        backend.check(spec, [])?;
        a.check()?;
        b.check()?;
        Ok(Self(match backend {
            Backend::Emu => BackendImpl::Emu(UserspaceLink::start(spec, a, b)?),
            Backend::Netem => BackendImpl::Netem(NetemLink::start(spec, a, b)?.into()),
            Backend::None => BackendImpl::None(VethLink::start(spec, a, b)?),
        }))
    }

    /// The backend of the link.
    pub fn backend(&self) -> Backend {
        match self.0 {
            BackendImpl::Emu(_) => Backend::Emu,
            BackendImpl::Netem(_) => Backend::Netem,
            BackendImpl::None(_) => Backend::None,
        }
    }

    /// Changes the link while it carries traffic.
    ///
    /// # Errors
    /// The backend lacks a property ([`Error::Unsupported`]), or the kernel rejects the change.
    pub fn apply(&mut self, change: &Change) -> Result<(), Error> {
        match &mut self.0 {
            BackendImpl::Emu(emu) => emu.apply(change),
            BackendImpl::Netem(netem) => netem.apply(change),
            BackendImpl::None(_) => VethLink::check_change(change),
        }
    }

    /// Counters since the start.
    ///
    /// # Errors
    /// The counters cannot be read, or the emulator has ended unexpectedly.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        match &self.0 {
            BackendImpl::Emu(emu) => emu.statistics(),
            BackendImpl::Netem(netem) => netem.statistics(),
            BackendImpl::None(veth) => veth.statistics(),
        }
    }
}

impl Backend {
    /// Tests whether this backend works here, by creating a link in temporary namespaces.
    ///
    /// # Errors
    /// [`Error::Unavailable`], with the failed step, the kernel's error, and how to fix it.
    pub fn probe(self) -> Result<(), Error> {
        let shaped = DirectionSpec {
            pace: Pace::Rate(Rate::mbit(10)),
            delay: std::time::Duration::from_millis(1),
            ..DirectionSpec::default()
        };
        let direction = if self == Self::None { DirectionSpec::default() } else { shaped };
        let spec = LinkSpec::symmetric(direction);
        let made = anonymous_namespace()
            .and_then(|a| Ok((a, anonymous_namespace()?)))
            .map_err(Error::refused("create network namespaces to test it"));
        let tried = made.and_then(|(a, b)| {
            let end = |namespace| End { namespace, interface: "probe" };
            Link::make(&spec, self, end(&a), end(&b)).map(drop)
        });
        tried.map_err(|error| match error {
            Error::Unavailable { .. } => error,
            other => Error::Unavailable { backend: self, why: other.to_string() },
        })
    }

    /// Chooses the backend for a link with these changes: [`None`](Self::None) for a plain wire, else the first of
    /// [`Emu`](Self::Emu) and [`Netem`](Self::Netem) that works here.
    ///
    /// # Errors
    /// No backend works ([`Error::Unavailable`]) or supports the properties ([`Error::Unsupported`]).
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
                Error::Unavailable { backend, why: format!("{why}; {no_netem}") }
            }
            other => other,
        })
    }

    /// Checks that this backend supports `spec` and `changes`, but not that it works here.
    ///
    /// # Errors
    /// [`Error::Unsupported`], naming the property.
    pub fn check<'a>(
        self,
        spec: &LinkSpec,
        changes: impl IntoIterator<Item = &'a Change>,
    ) -> Result<(), Error> {
        match self {
            Self::Emu => {
                UserspaceLink::check(spec)?;
                changes.into_iter().try_for_each(|change| UserspaceLink::check_change(spec.medium, change))
            }
            Self::Netem => {
                NetemLink::check(spec)?;
                changes.into_iter().try_for_each(NetemLink::check_change)
            }
            Self::None => {
                VethLink::check(spec)?;
                changes.into_iter().try_for_each(VethLink::check_change)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probability::Probability;
    use crate::spec::{Adjustment, Medium, Toward};

    #[test]
    fn names_unsupported_properties() {
        let unsupported = |backend: Backend, spec: &LinkSpec, changes: &[Change]| {
            backend.check(spec, changes).expect_err("not to be had").to_string()
        };
        let wire = LinkSpec::default();
        let lossy = DirectionSpec {
            loss: crate::spec::Loss::Random(Probability::certain()),
            ..DirectionSpec::default()
        };
        let lossy = LinkSpec { b_to_a: lossy, ..wire.clone() };
        assert_eq!(unsupported(Backend::None, &lossy, &[]), "the backend none does not support loss");
        assert_eq!(
            unsupported(Backend::None, &wire, &[Change::Blackhole]),
            "the backend none does not support blackhole"
        );
        assert!(Backend::None.check(&wire, []).is_ok());

        let shared = Medium::HalfDuplex { per_frame: std::time::Duration::ZERO };
        let shared = LinkSpec { medium: shared, ..wire.clone() };
        assert_eq!(
            unsupported(Backend::Netem, &shared, &[]),
            "the backend netem does not support a shared medium (half duplex)"
        );
        let trace = crate::trace::Trace::parse("1", "trace".as_ref()).expect("a trace");
        let trace = Adjustment { pace: Some(Pace::Trace(trace.into())), ..Adjustment::default() };
        let to_trace = Change::Adjust(Toward::Each, trace);
        assert_eq!(
            unsupported(Backend::Netem, &wire, std::slice::from_ref(&to_trace)),
            "the backend netem does not support a trace-driven rate"
        );
        assert!(Backend::Emu.check(&shared, []).is_ok() && Backend::Emu.check(&wire, [&to_trace]).is_ok());
    }
}
