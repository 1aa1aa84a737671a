//! Constraints that every policy must satisfy, whether it was parsed or built in code.

use std::fmt;

use super::interface::is_interface_name;
use super::names::{is_custom_name, is_name};
use super::{Actor, Chain, Hook, Interface, Limit, Policy, Selector};
use crate::bindings::{PLAIT_CUSTOM_PARAMETERS, PLAIT_MAX_ACTORS, PLAIT_MAX_CHAINS};

/// A policy that violates at least one constraint: what was expected and found, one sentence per violation.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InvalidPolicy(pub Vec<String>);

/// A violated constraint.
pub(crate) struct Violation<'p> {
    pub(crate) part: PolicyPart<'p>,
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// The part of a policy that a violation refers to; chains and actors by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyPart<'p> {
    Policy,
    Custom(&'p str),
    Chain(usize),
    Interfaces(usize),
    Select(usize),
    Actor(usize, usize),
}

impl Policy {
    /// Validates a policy that was built in code; parsing validates as well.
    ///
    /// # Errors
    /// Constraints that the policy violates.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        let found: Vec<_> = violations(self).into_iter().map(|violation| violation.to_string()).collect();
        if found.is_empty() { Ok(()) } else { Err(InvalidPolicy(found)) }
    }
}

/// All violated constraints, chain by chain.
pub(crate) fn violations(policy: &Policy) -> Vec<Violation<'_>> {
    let mut validator = Validator { policy, violations: Vec::new() };
    validator.names();
    // With more chains than this, at least one hook is known to have too many.
    for (index, chain) in policy.chains.iter().enumerate().take(2 * PLAIT_MAX_CHAINS as usize + 1) {
        validator.chain(index, chain);
    }
    validator.violations
}

impl fmt::Display for Violation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            PolicyPart::Policy => {}
            PolicyPart::Custom(name) => write!(f, "custom {name}: ")?,
            PolicyPart::Chain(chain) => write!(f, "chain {}: ", chain + 1)?,
            PolicyPart::Interfaces(chain) => write!(f, "interfaces of chain {}: ", chain + 1)?,
            PolicyPart::Select(chain) => write!(f, "selector of chain {}: ", chain + 1)?,
            PolicyPart::Actor(chain, actor) => write!(f, "actor {} of chain {}: ", actor + 1, chain + 1)?,
        }
        write!(f, "expected {}, got {}", self.expected, self.found)
    }
}

struct Validator<'p> {
    policy: &'p Policy,
    violations: Vec<Violation<'p>>,
}

impl<'p> Validator<'p> {
    fn violation(&mut self, part: PolicyPart<'p>, expected: impl Into<String>, found: impl Into<String>) {
        self.violations.push(Violation { part, expected: expected.into(), found: found.into() });
    }

    fn name(&mut self, part: PolicyPart<'p>, what: &str, name: &str) {
        if !is_name(name) {
            let expected = format!("a name for {what}: 1 to 32 letters, digits, hyphens or underscores");
            self.violation(part, expected, format!("{name:?}"));
        }
    }

    fn names(&mut self) {
        self.name(PolicyPart::Policy, "the policy", &self.policy.name);
        for name in self.policy.custom.keys() {
            if !is_custom_name(name) || Actor::NAMES.contains(&name.as_str()) {
                let expected =
                    "a name that no built-in selector or actor has: 1 to 32 letters, digits or underscores";
                self.violation(PolicyPart::Custom(name), expected, format!("{name:?}"));
            }
        }
        for (name, program) in &self.policy.custom {
            let part = PolicyPart::Custom(name);
            if let Some(function) = program.function.as_ref().filter(|function| !is_custom_name(function)) {
                self.violation(part, "the name of a function in the file", format!("{function:?}"));
            }
            let found = program.parameters.len();
            if found > PLAIT_CUSTOM_PARAMETERS as usize {
                let expected = format!("at most {PLAIT_CUSTOM_PARAMETERS} parameters");
                self.violation(part, expected, found.to_string());
            }
            if let Some(number) = program.parameters.iter().find(|number| i64::try_from(**number).is_err()) {
                self.violation(part, "parameters less than 2^63", number.to_string());
            }
        }
    }

    fn chain(&mut self, index: usize, chain: &'p Chain) {
        let part = PolicyPart::Chain(index);
        let before = &self.policy.chains[..index];
        self.name(part, "a chain", &chain.name);
        if before.iter().any(|other| other.name == chain.name) {
            self.violation(part, "a name that no other chain has", format!("{:?} again", chain.name));
        }
        let max = PLAIT_MAX_CHAINS as usize;
        if before.iter().filter(|other| other.hook == chain.hook).count() == max {
            self.violation(part, format!("at most {max} chains at {}", chain.hook), "one more");
        }
        if chain.interfaces.is_empty() {
            self.violation(PolicyPart::Interfaces(index), "at least one interface", "none");
        }
        for interface in &chain.interfaces {
            self.interface(PolicyPart::Interfaces(index), interface);
        }
        self.selector(index, chain);
        let max = PLAIT_MAX_ACTORS as usize;
        for (number, actor) in chain.actors.iter().enumerate() {
            let part = PolicyPart::Actor(index, number);
            if number == max {
                self.violation(part, format!("at most {max} actors in a chain"), "one more");
            }
            self.actor(part, chain.hook, actor);
        }
    }

    fn interface(&mut self, part: PolicyPart<'p>, interface: &Interface) {
        if let Interface::Named(name) = interface
            && !is_interface_name(name)
        {
            self.violation(part, Interface::EXPECTED, format!("{name:?}"));
        }
    }

    fn selector(&mut self, index: usize, chain: &'p Chain) {
        let part = PolicyPart::Select(index);
        chain.select.visit(&mut |selector| match selector {
            Selector::Mark(_) => self.hook(part, "the selector mark", Some(Hook::Egress), chain.hook),
            Selector::Cgroup(_) => self.hook(part, "the selector cgroup", Some(Hook::Egress), chain.hook),
            Selector::Custom(name) => self.custom(part, name),
            Selector::Path(interface) => self.interface(part, interface),
            _ => {}
        });
    }

    fn actor(&mut self, part: PolicyPart<'p>, hook: Hook, actor: &Actor) {
        self.hook(part, &format!("the actor {}", actor.name()), actor.required_hook(), hook);
        match actor {
            Actor::Custom(name) => self.custom(part, name),
            Actor::Redirect(name) if !is_interface_name(name) => {
                self.violation(part, "the name of an interface", format!("{name:?}"));
            }
            Actor::RateLimit(Limit::Window(bytes)) if !(1..=Limit::MAX_WINDOW).contains(bytes) => {
                self.violation(part, "a window of 1 to 2^30 bytes", bytes.to_string());
            }
            Actor::AddSubflow(Some(announcement)) if announcement.id == Some(0) => {
                self.violation(part, "an address id of 1 to 255", "0");
            }
            _ => {}
        }
    }

    fn hook(&mut self, part: PolicyPart<'p>, what: &str, required: Option<Hook>, hook: Hook) {
        if let Some(required) = required
            && required != hook
        {
            self.violation(part, format!("hook = \"{required}\" for {what}"), format!("\"{hook}\""));
        }
    }

    fn custom(&mut self, part: PolicyPart<'p>, name: &str) {
        if !self.policy.custom.contains_key(name) {
            self.violation(part, format!("a table [custom.{name}] with the file of {name}"), "none");
        }
    }
}
