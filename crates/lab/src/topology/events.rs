//! The events of a link: checks their keys, and that each fits the state left by the earlier ones.

use plait_config::{Diagnostic, Source, Spanned};
use plait_emulator::{Adjustment, Change};

use super::document::Document;
use super::model::{Action, Event};
use super::raw::{self, Verb};
use super::side::Side;

/// The events sorted by time; simultaneous ones in the order of the file.
pub(super) fn in_order(source: &Source, written: Vec<Spanned<raw::Event>>) -> Result<Vec<Event>, Diagnostic> {
    let mut events = Vec::new();
    for event in written {
        let (at, span) = (event.get_ref().at, event.get_ref().action.span());
        events.push((Event { at, action: action(source, event.into_inner())? }, span));
    }
    events.sort_by_key(|(event, _)| event.at);
    let mut state = State::default();
    for (Event { at, action }, span) in &events {
        if let Some(expected) = state.after(action) {
            let found = format!("{} at {} s", action.name(), at.as_secs_f64());
            let message = format!("expected {expected} before it, got {found}");
            return Err(source.diagnostic(span.clone(), message));
        }
    }
    Ok(events.into_iter().map(|(event, _)| event).collect())
}

fn action(source: &Source, event: raw::Event) -> Result<Action, Diagnostic> {
    let raw::Event { action: verb, end, direction, set, .. } = event;
    let keys = [
        ("end", end.as_ref().map(Spanned::span)),
        ("direction", direction.as_ref().map(Spanned::span)),
        ("set", set.as_ref().map(Spanned::span)),
    ];
    let side = end.map_or(Side::A, Spanned::into_inner);
    let action = match verb.get_ref() {
        Verb::Blackhole => Action::Blackhole,
        Verb::Restore => Action::Restore,
        Verb::CarrierDown => Action::CarrierDown,
        Verb::CarrierUp => Action::CarrierUp,
        Verb::InterfaceDown => Action::InterfaceDown(side),
        Verb::InterfaceUp => Action::InterfaceUp(side),
        Verb::AddressRemoved => Action::AddressRemoved(side),
        Verb::AddressAdded => Action::AddressAdded(side),
        Verb::Adjust => {
            let set = set.map(|set| set.into_inner().resolve(source)).transpose()?;
            let Some(set) = set.filter(|set| *set != Adjustment::default()) else {
                let message = "expected something to set, such as set = { rate = \"1mbit\" }, got nothing";
                return Err(source.diagnostic(verb.span(), message));
            };
            Action::Adjust(direction.map(Spanned::into_inner).unwrap_or_default(), set)
        }
    };
    let own: &[_] = match action {
        Action::Adjust(..) => &["direction", "set"],
        Action::InterfaceDown(_) | Action::InterfaceUp(_) => &["end"],
        Action::AddressRemoved(_) | Action::AddressAdded(_) => &["end"],
        _ => &[],
    };
    match keys.into_iter().find(|(key, span)| span.is_some() && !own.contains(key)) {
        Some((key, span)) => {
            Err(source.diagnostic(span, format!("expected a key of {}, got {key}", action.name())))
        }
        None => Ok(action),
    }
}

impl Action {
    /// Parses the keys of an event except its time: `action`, `end`, `direction`, `set`.
    ///
    /// # Errors
    /// The event is invalid; the diagnostic shows `name` as the file.
    pub fn parse(text: &str, name: &str) -> Result<Self, Diagnostic> {
        let text = format!("{text}\nat = \"0s\"");
        let document = Document::parse(&text, name)?;
        let source = document.source().clone();
        action(&source, document.read()?)
    }

    /// The change to the emulated link; `None` for an action on a host's interface.
    pub(crate) fn change(&self) -> Option<Change> {
        Some(match self {
            Self::Blackhole => Change::Blackhole,
            Self::Restore => Change::Restore,
            Self::CarrierDown => Change::Carrier(false),
            Self::CarrierUp => Change::Carrier(true),
            Self::Adjust(toward, adjustment) => Change::Adjust(*toward, adjustment.clone()),
            _ => return None,
        })
    }

    /// The action's name in topology files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Blackhole => "blackhole",
            Self::Restore => "restore",
            Self::CarrierDown => "carrier_down",
            Self::CarrierUp => "carrier_up",
            Self::InterfaceDown(_) => "interface_down",
            Self::InterfaceUp(_) => "interface_up",
            Self::AddressRemoved(_) => "address_removed",
            Self::AddressAdded(_) => "address_added",
            Self::Adjust(..) => "adjust",
        }
    }
}

/// The state of a link after its events so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    blackhole: bool,
    no_carrier: bool,
    /// By side.
    ends: [EndState; 2],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum EndState {
    #[default]
    Whole,
    Down,
    NoAddress,
}

impl State {
    /// Applies an action to the state. Returns the action that must come first if this one does not fit.
    pub(crate) fn after(&mut self, action: &Action) -> Option<&'static str> {
        use EndState::{Down, NoAddress, Whole};
        let mut end = |side: Side, from, to, expected| {
            let state = &mut self.ends[side as usize];
            if *state != from {
                // Name the action that undoes the current state of the end.
                return Some(match *state {
                    Down if from == Whole => "interface_up",
                    NoAddress if from == Whole => "address_added",
                    _ => expected,
                });
            }
            *state = to;
            None
        };
        match action {
            Action::Blackhole if self.blackhole => Some("restore"),
            Action::Restore if !self.blackhole => Some("blackhole"),
            Action::CarrierDown if self.no_carrier => Some("carrier_up"),
            Action::CarrierUp if !self.no_carrier => Some("carrier_down"),
            Action::Blackhole | Action::Restore => {
                self.blackhole = !self.blackhole;
                None
            }
            Action::CarrierDown | Action::CarrierUp => {
                self.no_carrier = !self.no_carrier;
                None
            }
            Action::InterfaceDown(side) => end(*side, Whole, Down, "interface_up"),
            Action::InterfaceUp(side) => end(*side, Down, Whole, "interface_down"),
            Action::AddressRemoved(side) => end(*side, Whole, NoAddress, "address_added"),
            Action::AddressAdded(side) => end(*side, NoAddress, Whole, "address_removed"),
            Action::Adjust(..) => None,
        }
    }
}
