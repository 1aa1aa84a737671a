//! What a policy must keep to, however it came about.

use std::fmt;

use super::{Actor, Chain, Hook, Interface, Limit, Policy, interface};
use crate::bindings::{PLAIT_MAX_ACTORS, PLAIT_MAX_CHAINS};
use crate::selector::{Selector, is_reserved};

const NAME_LONGEST: usize = 32;

/// Something that cannot be.
pub(super) struct Fault<'p> {
    pub(super) part: Part<'p>,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Of a policy; chains and actors by their numbers from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'p> {
    Policy,
    Own(&'p str),
    Chain(usize),
    Interfaces(usize),
    Select(usize),
    Actor(usize, usize),
}

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Policy => {}
            Part::Own(name) => write!(f, "own {name}: ")?,
            Part::Chain(chain) => write!(f, "chain {}: ", chain + 1)?,
            Part::Interfaces(chain) => write!(f, "interfaces of chain {}: ", chain + 1)?,
            Part::Select(chain) => write!(f, "selector of chain {}: ", chain + 1)?,
            Part::Actor(chain, actor) => write!(f, "actor {} of chain {}: ", actor + 1, chain + 1)?,
        }
        write!(f, "expected {}, found {}", self.expected, self.found)
    }
}

/// All that cannot be, chain by chain.
pub(super) fn faults(policy: &Policy) -> Vec<Fault<'_>> {
    let mut check = Check { policy, faults: Vec::new() };
    check.names();
    // Of more, one hook has too many.
    for (index, chain) in policy.chains.iter().enumerate().take(2 * PLAIT_MAX_CHAINS as usize + 1) {
        check.chain(index, chain);
    }
    check.faults
}

/// Whether one of the user's own may have this name: a word of a selector, and of C, that has no other meaning.
pub(crate) fn is_word_of_own(name: &str) -> bool {
    (1..=NAME_LONGEST).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !is_reserved(name)
}

struct Check<'p> {
    policy: &'p Policy,
    faults: Vec<Fault<'p>>,
}

impl<'p> Check<'p> {
    fn fault(&mut self, part: Part<'p>, expected: impl Into<String>, found: impl Into<String>) {
        self.faults.push(Fault { part, expected: expected.into(), found: found.into() });
    }

    fn name(&mut self, part: Part<'p>, what: &str, name: &str) {
        let fits = (1..=NAME_LONGEST).contains(&name.len());
        if !fits || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            let expected = format!("a name for {what}: 1 to 32 letters, digits, hyphens or underscores");
            self.fault(part, expected, format!("{name:?}"));
        }
    }

    fn names(&mut self) {
        self.name(Part::Policy, "the policy", &self.policy.name);
        for name in self.policy.own.keys() {
            if !is_word_of_own(name) || Actor::NAMES.contains(&name.as_str()) {
                let expected = "a name that no selector or actor has: 1 to 32 letters, digits or underscores";
                self.fault(Part::Own(name), expected, format!("{name:?}"));
            }
        }
    }

    fn chain(&mut self, index: usize, chain: &'p Chain) {
        let part = Part::Chain(index);
        let before = &self.policy.chains[..index];
        self.name(part, "a chain", &chain.name);
        if before.iter().any(|other| other.name == chain.name) {
            self.fault(part, "a name that no other chain has", format!("{:?} again", chain.name));
        }
        let most = PLAIT_MAX_CHAINS as usize;
        if before.iter().filter(|other| other.hook == chain.hook).count() == most {
            self.fault(part, format!("at most {most} chains at {}", chain.hook), "one more");
        }
        if chain.interfaces.is_empty() {
            self.fault(Part::Interfaces(index), "at least one interface", "none");
        }
        for given in &chain.interfaces {
            self.interface(Part::Interfaces(index), given);
        }
        self.selector(index, chain);
        let most = PLAIT_MAX_ACTORS as usize;
        for (number, actor) in chain.actors.iter().enumerate() {
            if number == most {
                self.fault(
                    Part::Actor(index, number),
                    format!("at most {most} actors of a chain"),
                    "one more",
                );
            }
            self.actor(Part::Actor(index, number), chain.hook, actor);
        }
    }

    fn interface(&mut self, part: Part<'p>, given: &Interface) {
        if let Interface::Named(name) = given
            && !interface::is_name(name)
        {
            self.fault(part, Interface::EXPECTED, format!("{name:?}"));
        }
    }

    fn selector(&mut self, index: usize, chain: &'p Chain) {
        let part = Part::Select(index);
        chain.select.visit(&mut |selector| match selector {
            Selector::Mark(_) | Selector::Cgroup(_) => {
                let name = if matches!(selector, Selector::Mark(_)) { "mark" } else { "cgroup" };
                self.at_hook(part, &format!("the selector {name}"), Some(Hook::Egress), chain.hook);
            }
            Selector::Own(name) => self.own(part, name),
            Selector::Path(interface) => self.interface(part, interface),
            _ => {}
        });
    }

    fn actor(&mut self, part: Part<'p>, hook: Hook, actor: &Actor) {
        self.at_hook(part, &format!("the actor {}", actor.name()), actor.only_at(), hook);
        match actor {
            Actor::Own(name) => self.own(part, name),
            Actor::Redirect(name) => match Interface::read(name) {
                Some(Interface::Named(_)) => {}
                _ => self.fault(part, "the name of an interface", format!("{name:?}")),
            },
            Actor::RateLimit(Limit::Window(bytes)) if !(1..=Limit::MOST).contains(bytes) => {
                self.fault(part, "a window of 1 to 2^30 bytes", bytes.to_string());
            }
            Actor::AddSubflow(Some(announcement)) if announcement.id == Some(0) => {
                self.fault(part, "an address id of 1 to 255", "0");
            }
            _ => {}
        }
    }

    fn at_hook(&mut self, part: Part<'p>, what: &str, only: Option<Hook>, hook: Hook) {
        if let Some(only) = only
            && only != hook
        {
            self.fault(part, format!("hook = \"{only}\" for {what}"), format!("\"{hook}\""));
        }
    }

    fn own(&mut self, part: Part<'p>, name: &str) {
        if !self.policy.own.contains_key(name) {
            self.fault(part, format!("a table [own.{name}] that says where {name} is"), "none");
        }
    }
}

impl Limit {
    pub(super) const MOST: u32 = 1 << 30;
}
