//! Tiers and weights of rules, for the scheduler.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use plait_linux::interfaces::Interface;
use plait_scheduler::SchedulerConfig;

use super::roles::Roles;
use super::rules::PathRule;
use crate::congestion_control::CongestionControl;

/// A rule has an option of another scheduler than that of the gateway.
#[derive(Debug, thiserror::Error)]
#[error("expected scheduler '{expected}' with '{option}' in a rule, got {found}")]
pub struct SchedulerMismatch {
    option: &'static str,
    expected: &'static str,
    found: String,
}

/// What a scheduler knows of interfaces.
pub(super) struct SchedulerPaths {
    congestion_control: Arc<CongestionControl>,
    /// The weights, tiers or ranks of interfaces, by name.
    numbers: Mutex<BTreeMap<String, u32>>,
}

impl SchedulerPaths {
    /// `None` if no rule has an option of a scheduler.
    pub(super) fn of(
        roles: &Roles,
        congestion_control: &Arc<CongestionControl>,
    ) -> Result<Option<SchedulerPaths>, SchedulerMismatch> {
        let scheduler = congestion_control.scheduler();
        let has =
            |option: fn(&PathRule) -> Option<u32>| roles.rules().iter().any(|rule| option(rule).is_some());
        let (has_tiers, has_weights) = (has(|rule| rule.tier), has(|rule| rule.weight));
        let expect = |option, expected| {
            let found = scheduler.map_or("none".to_owned(), |scheduler| format!("'{scheduler}'"));
            SchedulerMismatch { option, expected, found }
        };
        if has_tiers && !scheduler.is_some_and(SchedulerConfig::has_tiers) {
            return Err(expect("tier", "tiers' or 'cheapest-first"));
        }
        if has_weights && !scheduler.is_some_and(SchedulerConfig::has_weights) {
            return Err(expect("weight", "weighted"));
        }
        let paths = || SchedulerPaths {
            congestion_control: Arc::clone(congestion_control),
            numbers: Mutex::default(),
        };
        Ok((has_tiers || has_weights).then(paths))
    }

    pub(super) fn set_interfaces(&self, roles: &Roles, interfaces: &[Interface]) {
        let number = |interface: &Interface| {
            let (_, rule) = roles.rule_of(interface)?;
            Some((interface.name.clone(), rule.tier.or(rule.weight)?))
        };
        let wanted: BTreeMap<String, u32> = interfaces.iter().filter_map(number).collect();
        let mut current = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != wanted {
            self.congestion_control.set_interfaces(&wanted);
            *current = wanted;
        }
    }
}
