//! `[paths]`, a table of roles, or `[[paths]]`, rules of which the first that matches an interface applies.

use std::collections::BTreeMap;
use std::fmt;

use plait_config::{Diagnostic, Rate, Role, Size, Source, Spanned, deserialize_text};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use crate::paths::{MAX_RULES, PathPattern, PathRule, Period, Quota, Roles, Schedule};

/// 1 PB.
const MAX_QUOTA: u64 = 1_000_000_000_000_000;
/// Less than this is hardly used before it ends.
const MIN_QUOTA: u64 = 1_000_000;
/// Those of the schedulers.
const MAX_NUMBER: u32 = 1000;

/// The section as written.
#[derive(Default)]
pub(super) enum RawPaths {
    #[default]
    None,
    Roles(BTreeMap<String, Role>),
    Rules(Vec<Spanned<RawRule>>),
}

impl<'de> Deserialize<'de> for RawPaths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawPaths, D::Error> {
        struct PathsVisitor;
        impl<'de> Visitor<'de> for PathsVisitor {
            type Value = RawPaths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table [paths] of roles, or rules, each in a table [[paths]]")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawPaths, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(RawPaths::Roles)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<RawPaths, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(sequence)).map(RawPaths::Rules)
            }
        }
        deserializer.deserialize_any(PathsVisitor)
    }
}

/// One of `[[paths]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    #[serde(rename = "match")]
    pattern: Spanned<RawPattern>,
    role: Option<RawRole>,
    tier: Option<Spanned<u32>>,
    weight: Option<Spanned<u32>>,
    cap: Option<Rate>,
    quota: Option<RawQuota>,
    schedule: Option<RawSchedule>,
}

struct RawPattern(PathPattern);

impl<'de> Deserialize<'de> for RawPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawPattern, D::Error> {
        deserialize_text(deserializer, PathPattern::EXPECTED, str::parse).map(RawPattern)
    }
}

struct RawSchedule(Schedule);

impl<'de> Deserialize<'de> for RawSchedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawSchedule, D::Error> {
        deserialize_text(deserializer, Schedule::EXPECTED, str::parse).map(RawSchedule)
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawRole {
    Trusted,
    Untrusted,
    Unused,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a quota such as { bytes = \"20GB\", per = \"month\", reset_day = 1 }"
)]
struct RawQuota {
    bytes: Spanned<Size<MAX_QUOTA>>,
    per: RawPeriod,
    reset_day: Option<Spanned<u32>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawPeriod {
    Day,
    Month,
}

impl RawPaths {
    /// Roles by names or by rules.
    pub(super) fn check(self, source: &Source) -> Result<Roles, Diagnostic> {
        let mut roles = Roles::default();
        match self {
            RawPaths::None => {}
            RawPaths::Roles(named) => named.iter().for_each(|(interface, role)| roles.set(interface, *role)),
            RawPaths::Rules(raw) => {
                let mut rules: Vec<PathRule> = Vec::new();
                for rule in raw {
                    let span = rule.get_ref().pattern.span();
                    let rule = rule.into_inner().check(source)?;
                    if rules.iter().any(|earlier| earlier.pattern == rule.pattern) {
                        let message = format!("expected each match once, got '{}' twice", rule.pattern);
                        let help = "the first rule that matches an interface applies, and no other";
                        return Err(source.diagnostic(span, message).with_help(help));
                    }
                    if rules.len() == MAX_RULES {
                        return Err(source.diagnostic(span, format!("expected at most {MAX_RULES} rules")));
                    }
                    rules.push(rule);
                }
                roles.set_rules(rules);
            }
        }
        Ok(roles)
    }
}

impl RawRule {
    fn check(self, source: &Source) -> Result<PathRule, Diagnostic> {
        let number = |name: &str, value: Option<Spanned<u32>>| match value {
            Some(value) if !(1..=MAX_NUMBER).contains(value.get_ref()) => {
                let message = format!("expected a {name} from 1 to {MAX_NUMBER}, got {}", value.get_ref());
                Err(source.diagnostic(value.span(), message))
            }
            value => Ok(value.map(Spanned::into_inner)),
        };
        let role = match self.role {
            Some(RawRole::Unused) => None,
            Some(RawRole::Trusted) => Some(Role::Trusted),
            Some(RawRole::Untrusted) | None => Some(Role::Untrusted),
        };
        Ok(PathRule {
            pattern: self.pattern.into_inner().0,
            role,
            tier: number("tier", self.tier)?,
            weight: number("weight", self.weight)?,
            cap: self.cap,
            quota: self.quota.map(|quota| quota.check(source)).transpose()?,
            schedule: self.schedule.map(|RawSchedule(schedule)| schedule),
        })
    }
}

impl RawQuota {
    fn check(self, source: &Source) -> Result<Quota, Diagnostic> {
        let bytes = self.bytes.get_ref().bytes();
        if bytes < MIN_QUOTA {
            let message = format!(
                "expected at least {}, got {}",
                plait_config::Bytes(MIN_QUOTA),
                plait_config::Bytes(bytes)
            );
            return Err(source.diagnostic(self.bytes.span(), message));
        }
        let period = match (self.per, self.reset_day) {
            (RawPeriod::Day, None) => Period::Day,
            (RawPeriod::Day, Some(day)) => {
                let message = "expected no reset_day with per = \"day\", which begins at midnight";
                return Err(source.diagnostic(day.span(), message));
            }
            (RawPeriod::Month, None) => Period::Month { reset_day: 1 },
            (RawPeriod::Month, Some(day)) if (1..=31).contains(day.get_ref()) => {
                Period::Month { reset_day: day.into_inner() }
            }
            (RawPeriod::Month, Some(day)) => {
                let message = format!("expected a day of the month from 1 to 31, got {}", day.get_ref());
                return Err(source.diagnostic(day.span(), message));
            }
        };
        Ok(Quota { bytes, period })
    }
}

#[cfg(test)]
mod tests {
    use plait_config::Source;

    use super::*;

    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        paths: RawPaths,
    }

    fn read(text: &str) -> Result<Roles, String> {
        let source = Source::new("plait.toml", text);
        let parsed = source.parse::<File>().and_then(|file| file.paths.check(&source));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn reads_both_forms() {
        let roles = read("[paths]\neth0 = \"trusted\"\n").expect("a table");
        assert_eq!(roles.trusted().count(), 1);
        let text = "[[paths]]\nmatch = \"wwan*\"\nrole = \"trusted\"\ntier = 2\nweight = 3\ncap = \"4mbit\"\n\
                    quota = { bytes = \"20GB\", per = \"month\", reset_day = 31 }\nschedule = \"22:00-06:00\"\n\
                    [[paths]]\nmatch = \"10.0.0.0/8\"\nquota = { bytes = \"1MB\", per = \"day\" }\n\
                    [[paths]]\nmatch = \"*\"\nrole = \"unused\"\n";
        let roles = read(text).expect("rules");
        let [first, second, last] = &roles.rules()[..] else { panic!("three rules") };
        assert_eq!((first.role, first.tier, first.weight), (Some(Role::Trusted), Some(2), Some(3)));
        assert_eq!(first.cap, Rate::new(4_000_000));
        let period = Period::Month { reset_day: 31 };
        assert_eq!(first.quota, Some(Quota { bytes: 20_000_000_000, period }));
        assert_eq!(first.schedule.map(|schedule| schedule.to_string()).as_deref(), Some("22:00-06:00"));
        assert_eq!(second.role, Some(Role::Untrusted), "the default");
        assert_eq!(second.quota, Some(Quota { bytes: 1_000_000, period: Period::Day }));
        assert_eq!((last.role, last.pattern.to_string()), (None, "*".to_owned()));
        assert_eq!(read(""), Ok(Roles::default()));
    }

    #[test]
    fn errors_show_the_line_and_what_was_expected() {
        for (rule, line, column, message) in [
            ("role = \"trusted\"", 1, 1, "missing field `match`"),
            ("match = \"a/b\"", 2, 9, "expected an interface such as eth0 or wwan*"),
            ("match = \"a\"\nrole = \"friendly\"", 3, 8, "unknown variant `friendly`"),
            ("match = \"a\"\nmetered = true", 3, 1, "unknown field `metered`"),
            ("match = \"a\"\ntier = 0", 3, 8, "expected a tier from 1 to 1000, got 0"),
            ("match = \"a\"\nweight = 1001", 3, 10, "expected a weight from 1 to 1000, got 1001"),
            ("match = \"a\"\ncap = \"fast\"", 3, 7, "expected a rate from"),
            ("match = \"a\"\nschedule = \"22-06\"", 3, 12, "expected a time of day such as 22:00-06:00"),
            (
                "match = \"a\"\nquota = \"20GB\"",
                3,
                9,
                "invalid type: string \"20GB\", expected a quota such as",
            ),
            ("match = \"a\"\nquota = { bytes = \"20GB\" }", 3, 9, "missing field `per`"),
            (
                "match = \"a\"\nquota = { bytes = \"1kB\", per = \"day\" }",
                3,
                19,
                "expected at least 1MB, got 1kB",
            ),
            (
                "match = \"a\"\nquota = { bytes = \"1GB\", per = \"day\", reset_day = 3 }",
                3,
                51,
                "expected no reset_day",
            ),
            (
                "match = \"a\"\nquota = { bytes = \"1GB\", per = \"month\", reset_day = 32 }",
                3,
                53,
                "expected a day",
            ),
            ("match = \"a\"\nquota = { bytes = \"1GB\", per = \"week\" }", 3, 32, "unknown variant `week`"),
            ("match = \"a\"\n[[paths]]\nmatch = \"a\"", 4, 9, "expected each match once, got 'a' twice"),
        ] {
            let error = read(&format!("[[paths]]\n{rule}\n")).expect_err(rule);
            assert!(error.starts_with(message), "{error}");
            assert!(error.contains(&format!("--> plait.toml:{line}:{column}\n")), "{error}");
            assert!(error.contains('^'), "{error}");
        }
    }

    #[test]
    fn forms_are_not_mixed() {
        for text in ["[paths]\neth0 = \"trusted\"\n[[paths]]\nmatch = \"a\"\n", "paths = 1\n"] {
            assert!(read(text).is_err());
        }
    }
}
