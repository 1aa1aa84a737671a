//! Links that are up, by whichever backend.

use crate::emu::Emu;
use crate::end::nameless;
use crate::netem::Netem;
use crate::veth::Veth;
use crate::{Backend, Change, Direction, End, Error, LinkSpec, Pace, Rate, Statistics};

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

impl Link {
    /// Makes a link between two ends, `a` and `b`, by this backend.
    ///
    /// # Errors
    /// What the backend cannot give ([`Error::Unsupported`]), that it does not work here ([`Error::Unavailable`]), an
    /// interface's name that is none or is taken, or what the kernel refuses.
    pub fn make(spec: &LinkSpec, backend: Backend, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        backend.check(spec, [])?;
        a.check()?;
        b.check()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adjustment, Medium, Probability, Toward};

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
}
