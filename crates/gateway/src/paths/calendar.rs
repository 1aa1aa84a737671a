//! When a path may be used: schedules, and the periods of quotas, in local time. No I/O.
//!
//! All computations are on the local date and wall-clock time, as people read them: a period begins at local midnight, however
//! long the day before was. The hour that is repeated when daylight saving time ends is in a schedule twice.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta};
use plait_config::TextError;
use serde::{Deserialize, Serialize};

/// A time of each day, such as `22:00-06:00`, from its first minute until before its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    from: NaiveTime,
    until: NaiveTime,
}

impl Schedule {
    /// The accepted form, for error messages.
    pub const EXPECTED: &str = "a time of day such as 22:00-06:00, whose ends differ";

    /// Whether a time is within the schedule.
    pub fn contains(&self, time: NaiveTime) -> bool {
        if self.from < self.until {
            self.from <= time && time < self.until
        } else {
            self.from <= time || time < self.until
        }
    }

    /// When that changes next.
    pub fn next_change(&self, now: NaiveDateTime) -> NaiveDateTime {
        let next = if self.contains(now.time()) { self.until } else { self.from };
        let today = now.date().and_time(next);
        if today > now { today } else { today + Days::new(1) }
    }
}

impl FromStr for Schedule {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Schedule, TextError> {
        let time = |text: &str| match text.trim() {
            "24:00" => Some(NaiveTime::MIN),
            text => NaiveTime::parse_from_str(text, "%H:%M").ok(),
        };
        let ends = text.split_once('-').and_then(|(from, until)| Some((time(from)?, time(until)?)));
        let schedule = ends.filter(|(from, until)| from != until);
        let schedule = schedule.map(|(from, until)| Schedule { from, until });
        schedule.ok_or_else(|| TextError::new(Schedule::EXPECTED, text))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from.format("%H:%M"), self.until.format("%H:%M"))
    }
}

/// A clock that shows an earlier day was not set yet, as that of a machine without a battery when it starts.
const EARLIEST_PLAUSIBLE_DATE: NaiveDate = NaiveDate::from_ymd_opt(2026, 1, 1).expect("a date");

/// How often a quota is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Period {
    /// Each day at midnight.
    Day,
    /// Each month at the midnight with which this day begins, from 1 to 31; in shorter months, their last day.
    Month {
        /// The day.
        reset_day: u32,
    },
}

impl Period {
    /// The first day of the period that contains a day.
    pub fn start(self, today: NaiveDate) -> NaiveDate {
        match self {
            Period::Day => today,
            Period::Month { reset_day } => {
                let this = day_of_month(today, reset_day);
                if this <= today { this } else { day_of_month(today - Months::new(1), reset_day) }
            }
        }
    }

    /// The first day of the next period.
    pub fn next(self, today: NaiveDate) -> NaiveDate {
        match self {
            Period::Day => today + Days::new(1),
            Period::Month { reset_day } => {
                day_of_month(first_of_month(self.start(today)) + Months::new(1), reset_day)
            }
        }
    }

    /// The first day of the period that counts, if use is known since a day. A clock that was set back does not begin another
    /// one; but a period after the next one was begun by a clock that had been set forward by mistake.
    pub fn current(self, since: Option<NaiveDate>, today: NaiveDate) -> NaiveDate {
        let start = self.start(today);
        let plausible = since.filter(|since| *since <= self.next(today) || today < EARLIEST_PLAUSIBLE_DATE);
        plausible.map_or(start, |since| since.max(start))
    }
}

fn first_of_month(day: NaiveDate) -> NaiveDate {
    day.with_day(1).unwrap_or(day)
}

/// A day of the same month, or its last.
fn day_of_month(day: NaiveDate, number: u32) -> NaiveDate {
    let first = first_of_month(day);
    let last = first + Months::new(1) - Days::new(1);
    first.with_day(number).unwrap_or(last)
}

/// What will be used until the end of a period if it goes on as since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes at the end of the period.
    pub bytes: u64,
    /// When the quota will be used up, if before the end.
    pub used_up: Option<NaiveDateTime>,
}

impl Forecast {
    /// From what was used since the first day of a period. `None` if the period has just begun, or is to come, as after the clock
    /// was set back.
    pub fn linear(
        quota: u64,
        used: u64,
        (since, until): (NaiveDate, NaiveDate),
        now: NaiveDateTime,
    ) -> Option<Forecast> {
        let start = since.and_time(NaiveTime::MIN);
        let elapsed =
            u128::try_from((now - start).num_seconds()).ok().filter(|seconds| *seconds >= MIN_ELAPSED)?;
        let length = u128::try_from((until - since).num_seconds()).ok()?;
        let bytes = u128::from(used) * length.max(elapsed) / elapsed;
        let used_up = (bytes > quota.into()).then(|| {
            let seconds = elapsed * u128::from(quota) / u128::from(used);
            Some(start + TimeDelta::seconds(i64::try_from(seconds).ok()?))
        });
        Some(Forecast { bytes: u64::try_from(bytes).unwrap_or(u64::MAX), used_up: used_up.flatten() })
    }
}

/// Seconds of a period after which it says something about the rest.
const MIN_ELAPSED: u128 = 60;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn date(text: &str) -> NaiveDate {
        text.parse().expect("a date")
    }

    fn time(text: &str) -> NaiveDateTime {
        text.parse().expect("a time")
    }

    #[test]
    fn schedules_may_contain_midnight() {
        let within = |schedule: &str, at: &str| {
            let schedule: Schedule = schedule.parse().expect(schedule);
            schedule.contains(NaiveTime::parse_from_str(at, "%H:%M").expect("a time"))
        };
        for (at, expected) in
            [("21:59", false), ("22:00", true), ("00:00", true), ("05:59", true), ("06:00", false)]
        {
            assert_eq!(within("22:00-06:00", at), expected, "{at}");
            assert_eq!(within("06:00-22:00", at), !expected, "{at}");
        }
        assert!(within("18:00-24:00", "23:59") && !within("18:00-24:00", "00:00"));
        for text in ["", "22:00", "22-06", "22:00-25:00", "06:00-06:00", "0:0-24:00x", "00:00-24:00"] {
            let error = text.parse::<Schedule>().expect_err(text).to_string();
            assert!(error.contains("22:00-06:00"), "{error}");
        }
    }

    #[test]
    fn schedule_changes_at_its_ends() {
        let schedule: Schedule = "22:00-06:00".parse().expect("a schedule");
        for (now, next) in [
            ("2026-03-01T21:59:59", "2026-03-01T22:00:00"),
            ("2026-03-01T22:00:00", "2026-03-02T06:00:00"),
            ("2026-03-02T05:00:00", "2026-03-02T06:00:00"),
            ("2026-12-31T23:00:00", "2027-01-01T06:00:00"),
        ] {
            assert_eq!(schedule.next_change(time(now)), time(next), "{now}");
        }
    }

    #[test]
    fn months_are_as_long_as_they_are() {
        for (reset_day, today, start, next) in [
            (1, "2026-11-25", "2026-11-01", "2026-12-01"),
            (1, "2026-12-31", "2026-12-01", "2027-01-01"),
            (15, "2026-11-14", "2026-10-15", "2026-11-15"),
            (15, "2026-11-15", "2026-11-15", "2026-12-15"),
            (31, "2026-02-27", "2026-01-31", "2026-02-28"),
            (31, "2026-02-28", "2026-02-28", "2026-03-31"),
            (31, "2026-03-30", "2026-02-28", "2026-03-31"),
            (30, "2028-02-29", "2028-02-29", "2028-03-30"),
            (29, "2028-02-28", "2028-01-29", "2028-02-29"),
            (29, "2027-02-28", "2027-02-28", "2027-03-29"),
        ] {
            let period = Period::Month { reset_day };
            let found = (period.start(date(today)), period.next(date(today)));
            assert_eq!(found, (date(start), date(next)), "day {reset_day}, {today}");
        }
    }

    #[test]
    fn clock_that_is_set_back_begins_no_other_period() {
        let period = Period::Month { reset_day: 1 };
        let since = Some(date("2026-11-01"));
        assert_eq!(period.current(since, date("2026-10-31")), date("2026-11-01"));
        assert_eq!(period.current(since, date("2026-11-30")), date("2026-11-01"));
        assert_eq!(period.current(since, date("2026-12-01")), date("2026-12-01"));
        assert_eq!(period.current(None, date("2026-10-31")), date("2026-10-01"));
        assert_eq!(
            period.current(since, date("1970-01-01")),
            date("2026-11-01"),
            "a clock that was not set yet"
        );
    }

    #[test]
    fn period_of_a_wrong_clock_ends_when_that_is_corrected() {
        let period = Period::Month { reset_day: 1 };
        assert_eq!(period.current(Some(date("2038-01-01")), date("2026-11-30")), date("2026-11-01"));
        assert_eq!(Period::Day.current(Some(date("2026-11-30")), date("2026-11-28")), date("2026-11-28"));
        assert_eq!(Period::Day.current(Some(date("2026-11-30")), date("2026-11-29")), date("2026-11-30"));
    }

    /// A time zone whose clock goes from 02:00 to 03:00 on 2026-03-29, and from 03:00 to 02:00 on 2026-10-25.
    fn local(utc: &str) -> NaiveDateTime {
        let utc = time(utc);
        let is_summer = utc >= time("2026-03-29T01:00:00") && utc < time("2026-10-25T01:00:00");
        utc + TimeDelta::hours(if is_summer { 2 } else { 1 })
    }

    #[test]
    fn daylight_saving_time_moves_neither_midnight_nor_schedules() {
        let night: Schedule = "02:30-03:30".parse().expect("a schedule");
        for (utc, expected) in [
            // There is no 02:30 in spring.
            ("2026-03-29T00:59:59", false),
            ("2026-03-29T01:00:00", true),
            ("2026-03-29T01:30:00", false),
            // There are two in autumn.
            ("2026-10-25T00:29:59", false),
            ("2026-10-25T00:30:00", true),
            ("2026-10-25T01:00:00", false),
            ("2026-10-25T01:30:00", true),
            ("2026-10-25T02:30:00", false),
        ] {
            assert_eq!(night.contains(local(utc).time()), expected, "{utc}");
        }
        for (utc, day) in [
            ("2026-03-28T22:59:59", "2026-03-28"),
            ("2026-03-28T23:00:00", "2026-03-29"),
            ("2026-03-29T21:59:59", "2026-03-29"),
            ("2026-03-29T22:00:00", "2026-03-30"),
            ("2026-10-25T22:59:59", "2026-10-25"),
            ("2026-10-25T23:00:00", "2026-10-26"),
        ] {
            assert_eq!(Period::Day.start(local(utc).date()), date(day), "{utc}");
        }
    }

    #[test]
    fn forecast_is_linear() {
        let november = (date("2026-11-01"), date("2026-12-01"));
        let of = |used, now| Forecast::linear(20_000, used, november, time(now));
        assert_eq!(of(5_000, "2026-11-16T00:00:00"), Some(Forecast { bytes: 10_000, used_up: None }));
        let used_up = Some(time("2026-11-16T00:00:00"));
        assert_eq!(of(10_000, "2026-11-08T12:00:00"), Some(Forecast { bytes: 40_000, used_up }));
        assert_eq!(of(10_000, "2026-10-31T12:00:00"), None, "the clock was set back");
        assert_eq!(of(0, "2026-11-02T00:00:00"), Some(Forecast { bytes: 0, used_up: None }));
    }

    fn days() -> impl Strategy<Value = NaiveDate> {
        (0..40_000u64).prop_map(|days| date("1990-01-01") + Days::new(days))
    }

    proptest! {
        #[test]
        fn periods_follow_one_another(today in days(), reset_day in 1..=31u32, daily: bool) {
            let period = if daily { Period::Day } else { Period::Month { reset_day } };
            let (start, next) = (period.start(today), period.next(today));
            prop_assert!(start <= today && today < next);
            prop_assert_eq!(period.start(next), next);
            prop_assert_eq!(period.start(next - Days::new(1)), start);
            prop_assert_eq!(period.next(start), next);
        }

        #[test]
        fn schedule_changes_then_and_not_before(minute in 0..1440u32, from in 0..1440u32, length in 1..1440u32) {
            let at = |minute: u32| NaiveTime::MIN + TimeDelta::minutes(minute.into());
            let schedule = Schedule { from: at(from), until: at((from + length) % 1440) };
            let now = date("2026-03-29").and_time(at(minute));
            let next = schedule.next_change(now);
            prop_assert_ne!(schedule.contains(next.time()), schedule.contains(now.time()));
            let before = next - TimeDelta::minutes(1);
            prop_assert_eq!(schedule.contains(before.time()), schedule.contains(now.time()));
            prop_assert!(next > now && next - now <= TimeDelta::days(1));
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }

        #[test]
        fn schedule_parser_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Schedule>();
        }
    }
}
