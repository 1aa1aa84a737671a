//! A link between two hosts: the emulated link, and the interfaces with their addresses at both ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plait_config::Role;
use plait_emulator::{Backend, Statistics};

use crate::attachment::Attachment;
use crate::error::Error;
use crate::host::Host;
use crate::topology::{Action, Address, Side, State};

/// A link of a [`Lab`](crate::Lab), which owns it; clones refer to the same link.
#[derive(Debug, Clone)]
pub struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    role: Role,
    backend: Backend,
    ends: [Attachment; 2],
    state_of_link: Mutex<LinkState>,
}

/// The emulated link until the lab is closed, and the effect of the events so far.
#[derive(Debug)]
struct LinkState {
    link: Option<plait_emulator::Link>,
    state: State,
}

impl Link {
    /// Creates the emulated link between two ends; the interfaces are not configured yet.
    pub(crate) fn make(
        name: &str,
        role: Role,
        spec: &plait_emulator::LinkSpec,
        backend: Backend,
        ends: [Attachment; 2],
    ) -> Result<Self, plait_emulator::Error> {
        let [a, b] = ends
            .each_ref()
            .map(|end| plait_emulator::End { namespace: end.host.namespace(), interface: &end.interface });
        let link = plait_emulator::Link::make(spec, backend, a, b)?;
        let state_of_link = Mutex::new(LinkState { link: Some(link), state: State::default() });
        Ok(Self(Arc::new(Inner { name: name.into(), role, backend, ends, state_of_link })))
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The role of the path over it.
    pub fn role(&self) -> Role {
        self.0.role
    }

    /// The backend.
    pub fn backend(&self) -> Backend {
        self.0.backend
    }

    /// The host at an end.
    pub fn host(&self, side: Side) -> &Host {
        &self.end(side).host
    }

    /// The interface's name at an end.
    pub fn interface(&self, side: Side) -> &str {
        &self.end(side).interface
    }

    /// The addresses of an end, including those removed by an event.
    pub fn addresses(&self, side: Side) -> &[Address] {
        &self.end(side).addresses
    }

    /// The counters since the link's start.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        match &self.state_of_link().link {
            Some(link) => link.statistics().map_err(|cause| self.failed(cause)),
            None => Err(self.closed()),
        }
    }

    /// Applies an action, which must fit the state of the link.
    pub fn apply(&self, action: &Action) -> Result<(), Error> {
        let mut state_of_link = self.state_of_link();
        let mut state = state_of_link.state.clone();
        if let Some(expected) = state.after(action) {
            return Err(Error::OutOfOrder { link: self.name().into(), action: action.name(), expected });
        }
        let Some(link) = &mut state_of_link.link else { return Err(self.closed()) };
        if let Some(change) = action.change() {
            link.apply(&change).map_err(|cause| self.failed(cause))?;
        }
        match action {
            Action::InterfaceDown(side) => self.end(*side).interface_down()?,
            Action::InterfaceUp(side) => self.end(*side).interface_up()?,
            Action::AddressRemoved(side) => self.end(*side).addresses_removed()?,
            Action::AddressAdded(side) => self.end(*side).addresses_added()?,
            _ => {}
        }
        state_of_link.state = state;
        Ok(())
    }

    pub(crate) fn end(&self, side: Side) -> &Attachment {
        &self.0.ends[side as usize]
    }

    /// Removes the link, even if clones exist.
    pub(crate) fn close(&self) {
        self.state_of_link().link = None;
    }

    fn state_of_link(&self) -> MutexGuard<'_, LinkState> {
        // The state is consistent even after a panic.
        self.0.state_of_link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, cause: plait_emulator::Error) -> Error {
        Error::Link { name: self.name().into(), cause }
    }

    fn closed(&self) -> Error {
        Error::Closed { link: self.name().into() }
    }
}
