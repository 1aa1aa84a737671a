//! The events of a link: each says what it must and no more, and in the order of time each undoes only what was done.

use plait_link::Adjustment;
use toml::Spanned;

use super::check::Check;
use super::mistake::Mistake;
use super::written::{self, Verb};
use super::{Action, Event, Side};

/// The events in the order of time; those of one moment in the file's.
pub(super) fn in_order(check: &Check, written: Vec<Spanned<written::Event>>) -> Result<Vec<Event>, Mistake> {
    let mut events = Vec::new();
    for event in written {
        let place = event.span();
        let at = event.get_ref().at;
        let verb = event.get_ref().action.clone();
        events.push((Event { at, action: action(check, event)? }, verb, place));
    }
    events.sort_by_key(|(event, ..)| event.at);
    let mut state = State::default();
    for (event, verb, _) in &events {
        if let Some(expected) = state.after(&event.action) {
            let message = format!(
                "expected {expected} before it, found {} at {} s",
                name(*verb.get_ref()),
                event.at.as_secs_f64()
            );
            return check.fail(verb.span(), message);
        }
    }
    Ok(events.into_iter().map(|(event, ..)| event).collect())
}

fn action(check: &Check, event: Spanned<written::Event>) -> Result<Action, Mistake> {
    let written::Event { action: verb, end, direction, set, .. } = event.into_inner();
    let concerns_end = matches!(
        verb.get_ref(),
        Verb::InterfaceDown | Verb::InterfaceUp | Verb::AddressRemoved | Verb::AddressAdded
    );
    let adjusts = *verb.get_ref() == Verb::Adjust;
    let keys = [
        ("end", end.as_ref().map(Spanned::span), concerns_end),
        ("direction", direction.as_ref().map(Spanned::span), adjusts),
        ("set", set.as_ref().map(Spanned::span), adjusts),
    ];
    for (key, place, belongs) in keys {
        if let Some(place) = place.filter(|_| !belongs) {
            return check.fail(place, format!("expected a key of {}, found {key}", name(*verb.get_ref())));
        }
    }
    let place = verb.span();
    let side = end.map_or(Side::A, Spanned::into_inner);
    Ok(match verb.into_inner() {
        Verb::Blackhole => Action::Blackhole,
        Verb::Restore => Action::Restore,
        Verb::CarrierDown => Action::CarrierDown,
        Verb::CarrierUp => Action::CarrierUp,
        Verb::InterfaceDown => Action::InterfaceDown(side),
        Verb::InterfaceUp => Action::InterfaceUp(side),
        Verb::AddressRemoved => Action::AddressRemoved(side),
        Verb::AddressAdded => Action::AddressAdded(side),
        Verb::Adjust => match set.map(Spanned::into_inner) {
            Some(set) if set != Adjustment::default() => {
                Action::Adjust(direction.map(Spanned::into_inner).unwrap_or_default(), set)
            }
            _ => {
                return check.fail(
                    place,
                    "expected something to set, such as set = { rate = \"1mbit\" }, found nothing",
                );
            }
        },
    })
}

fn name(verb: Verb) -> &'static str {
    match verb {
        Verb::Blackhole => "blackhole",
        Verb::Restore => "restore",
        Verb::CarrierDown => "carrier_down",
        Verb::CarrierUp => "carrier_up",
        Verb::InterfaceDown => "interface_down",
        Verb::InterfaceUp => "interface_up",
        Verb::AddressRemoved => "address_removed",
        Verb::AddressAdded => "address_added",
        Verb::Adjust => "adjust",
    }
}

/// What a link's events have done to it so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    blackhole: bool,
    no_carrier: bool,
    /// By side: switched off, without addresses.
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
    /// Takes note of an action; what should have come before it, if it cannot be.
    pub(crate) fn after(&mut self, action: &Action) -> Option<&'static str> {
        use EndState::{Down, NoAddress, Whole};
        let mut end = |side: Side, from, to, expected| {
            let state = &mut self.ends[side as usize];
            if *state != from {
                // What is in the way is that the end is not whole.
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
