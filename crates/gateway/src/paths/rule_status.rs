//! What people are shown of a rule: its options, and what is left of its quota.

use chrono::{Local, NaiveDate, NaiveDateTime};
use plait_config::Role;
use serde::Serialize;

use super::calendar::{Forecast, Period};
use super::quota_file::{QuotaUse, QuotaUses};
use super::rules::{PathRule, Quota};

/// A rule of paths now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleStatus {
    /// What it matches.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The role of its paths; `None`: they are not used.
    pub role: Option<Role>,
    /// For the schedulers `tiers` and `cheapest-first`.
    pub tier: Option<u32>,
    /// For the scheduler `weighted`.
    pub weight: Option<u32>,
    /// Bits per second in each direction.
    pub cap: Option<u64>,
    /// The time of day at which its paths are used, such as `22:00-06:00`.
    pub schedule: Option<String>,
    /// Whether it is that time, or there is no schedule.
    pub within_schedule: bool,
    /// Its quota.
    pub quota: Option<QuotaStatus>,
}

/// A quota now. Dates are local.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuotaStatus {
    /// Bytes in a period.
    pub bytes: u64,
    /// `day` or `month`.
    pub per: String,
    /// The first day of the current period.
    pub since: NaiveDate,
    /// The first day of the next one.
    pub reset: NaiveDate,
    /// Bytes used in the current period.
    pub used: u64,
    /// Bytes left in it.
    pub left: u64,
    /// Bytes at its end if it goes on like this; `None` if it has just begun.
    pub forecast: Option<u64>,
    /// When the quota will be used up, if before the end.
    pub used_up: Option<NaiveDateTime>,
}

impl RuleStatus {
    /// The status of a rule, with what was used of quotas.
    pub fn now(rule: &PathRule, uses: &QuotaUses) -> RuleStatus {
        RuleStatus::at(rule, uses, Local::now().naive_local())
    }

    fn at(rule: &PathRule, uses: &QuotaUses, now: NaiveDateTime) -> RuleStatus {
        let pattern = rule.pattern.to_string();
        RuleStatus {
            role: rule.role,
            tier: rule.tier,
            weight: rule.weight,
            cap: rule.cap.map(|cap| cap.bits_per_second()),
            schedule: rule.schedule.map(|schedule| schedule.to_string()),
            within_schedule: rule.schedule.is_none_or(|schedule| schedule.contains(now.time())),
            quota: rule.quota.map(|quota| QuotaStatus::at(quota, uses.get(&pattern), now)),
            pattern,
        }
    }
}

impl QuotaStatus {
    fn at(quota: Quota, known: Option<&QuotaUse>, now: NaiveDateTime) -> QuotaStatus {
        let Quota { bytes, period } = quota;
        let QuotaUse { since, bytes: used } = QuotaUse::current(known, period, now.date());
        let reset = period.next(since);
        let forecast = Forecast::linear(bytes, used, (since, reset), now);
        QuotaStatus {
            bytes,
            per: match period {
                Period::Day => "day".into(),
                Period::Month { .. } => "month".into(),
            },
            since,
            reset,
            used,
            left: bytes.saturating_sub(used),
            forecast: forecast.map(|forecast| forecast.bytes),
            used_up: forecast.and_then(|forecast| forecast.used_up),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_an_earlier_period_does_not_count() {
        let quota = Quota { bytes: 1_000_000, period: Period::Month { reset_day: 15 } };
        let of = |since: &str, now: &str| {
            let known = QuotaUse { since: since.parse().expect("a date"), bytes: 250_000 };
            let status = QuotaStatus::at(quota, Some(&known), now.parse().expect("a time"));
            (status.since.to_string(), status.reset.to_string(), status.used, status.left)
        };
        let current = ("2026-11-15".to_owned(), "2026-12-15".to_owned(), 250_000, 750_000);
        assert_eq!(of("2026-11-15", "2026-12-14T23:59:59"), current);
        assert_eq!(of("2026-11-15", "2026-11-01T00:00:00"), current, "the clock was set back");
        let next = ("2026-12-15".to_owned(), "2027-01-15".to_owned(), 0, 1_000_000);
        assert_eq!(of("2026-11-15", "2026-12-15T00:00:00"), next);
    }
}
