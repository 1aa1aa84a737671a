//! A TOML document that is deserialized in parts, with parameter substitution.
//!
//! `${name}` in a string is replaced with a parameter; a string that consists of nothing else takes the type of the
//! parameter. A table in a list with the key `when` is kept only for certain parameter values: `when = { cut =
//! ["address", "carrier"] }`. Both are resolved in the parsed tree, which keeps its spans, so that every later
//! diagnostic shows the line of the file. `${directory}` is the directory of the file, unless a parameter has this
//! name. Names with a dot, such as `${server.lte}`, are addresses, which
//! [`Topology::resolve`](super::Topology::resolve) resolves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use plait_config::{Diagnostic, Source, Span, Spanned};
use serde::de::DeserializeOwned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

/// Parameter values by name.
pub(crate) type Parameters<'t> = BTreeMap<String, DeValue<'t>>;

/// The key of a condition.
const WHEN: &str = "when";
/// The name of the file's directory in a substitution.
const DIRECTORY: &str = "directory";

/// A TOML file, or some of its top-level keys.
#[derive(Debug, Clone)]
pub(crate) struct Document<'t> {
    source: Source,
    span: Span,
    table: DeTable<'t>,
}

impl<'t> Document<'t> {
    pub(crate) fn parse(text: &'t str, file: &str) -> Result<Self, Diagnostic> {
        let source = Source::new(file, text);
        let root = DeTable::parse(text).map_err(|error| source.toml_error(&error))?;
        Ok(Self { source, span: root.span(), table: root.into_inner() })
    }

    /// Splits off these top-level keys; returns them and the rest.
    pub(crate) fn split(mut self, keys: &[&str]) -> (Self, Self) {
        let mut chosen = DeTable::new();
        for key in keys {
            if let Some((key, value)) = self.table.remove_entry(*key) {
                chosen.insert(key, value);
            }
        }
        let others = self.table;
        let with = |table| Self { source: self.source.clone(), span: self.span.clone(), table };
        (with(chosen), with(others))
    }

    /// The top-level table, with spans.
    pub(crate) fn table(&self) -> &DeTable<'t> {
        &self.table
    }

    /// The source, for later diagnostics.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Deserializes the document.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, Diagnostic> {
        let table = Deserializer::from(Spanned::new(self.span, self.table));
        T::deserialize(table).map_err(|error| self.source.toml_error(&error))
    }

    /// Substitutes the parameters, and removes the tables whose condition does not hold.
    pub(crate) fn substitute(&self, parameters: &Parameters<'t>) -> Result<Self, Diagnostic> {
        let Self { source, span, table } = self;
        // Programs run in other working directories, so the path must be absolute.
        let here = std::env::current_dir().unwrap_or_default();
        let directory: PathBuf = here.join(source.directory()).components().collect();
        let directory = DeValue::String(directory.to_string_lossy().into_owned().into());
        let table = Substitution { source, parameters, directory }.table(table)?;
        Ok(Self { source: source.clone(), span: span.clone(), table })
    }
}

struct Substitution<'s, 't> {
    source: &'s Source,
    parameters: &'s Parameters<'t>,
    directory: DeValue<'t>,
}

impl<'t> Substitution<'_, 't> {
    fn table(&self, table: &DeTable<'t>) -> Result<DeTable<'t>, Diagnostic> {
        table.iter().map(|(key, value)| Ok((key.clone(), self.value(value)?))).collect()
    }

    fn value(&self, value: &Spanned<DeValue<'t>>) -> Result<Spanned<DeValue<'t>>, Diagnostic> {
        let span = value.span();
        let value = match value.get_ref() {
            DeValue::Table(table) => DeValue::Table(self.table(table)?),
            DeValue::Array(list) => DeValue::Array(self.list(list)?),
            DeValue::String(text) => self.text(text, &span)?,
            other => other.clone(),
        };
        Ok(Spanned::new(span, value))
    }

    fn list(&self, list: &DeArray<'t>) -> Result<DeArray<'t>, Diagnostic> {
        let mut kept = DeArray::new();
        for value in list {
            let Some(condition) = value.get_ref().as_table().and_then(|table| table.get(WHEN)) else {
                kept.push(self.value(value)?);
                continue;
            };
            if self.holds(condition)? {
                let mut value = value.clone();
                if let DeValue::Table(table) = value.get_mut() {
                    table.remove(WHEN);
                }
                kept.push(self.value(&value)?);
            }
        }
        Ok(kept)
    }

    /// Whether every parameter in a condition has one of the values listed.
    fn holds(&self, condition: &Spanned<DeValue<'t>>) -> Result<bool, Diagnostic> {
        let Some(table) = condition.get_ref().as_table() else {
            let found = condition.get_ref().type_str();
            let message = format!("expected a table such as {{ size = [\"20MB\"] }}, got a value ({found})");
            return Err(self.source.diagnostic(condition.span(), message));
        };
        for (name, wanted) in table {
            let is = self.parameter(name.get_ref(), &name.span())?;
            let fits = match wanted.get_ref() {
                DeValue::Array(values) => values.iter().any(|value| same(value.get_ref(), is)),
                value => same(value, is),
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn text(&self, text: &Cow<'t, str>, span: &Span) -> Result<DeValue<'t>, Diagnostic> {
        let mut filled = String::new();
        let mut rest: &str = text;
        while let Some((before, name, after)) = next_name(rest) {
            filled.push_str(before);
            if name.contains('.') {
                filled.push_str(&rest[before.len()..rest.len() - after.len()]);
            } else {
                let value = self.parameter(name, span)?;
                if before.is_empty() && after.is_empty() && filled.is_empty() {
                    return Ok(value.clone());
                }
                let written = written(value).ok_or_else(|| {
                    let found = value.type_str();
                    let message =
                        format!("expected a parameter that a text can hold, got {name}, of type {found}");
                    self.source.diagnostic(span.clone(), message)
                })?;
                filled.push_str(&written);
            }
            rest = after;
        }
        if filled.is_empty() {
            return Ok(DeValue::String(text.clone()));
        }
        Ok(DeValue::String(Cow::Owned(filled + rest)))
    }

    fn parameter(&self, name: &str, span: &Span) -> Result<&DeValue<'t>, Diagnostic> {
        let directory = (name == DIRECTORY).then_some(&self.directory);
        self.parameters.get(name).or(directory).ok_or_else(|| {
            let known: Vec<_> = self.parameters.keys().map(String::as_str).collect();
            let expected = match known[..] {
                [] => "no parameter, as none is set".into(),
                _ => format!("one of the parameters {}", known.join(", ")),
            };
            self.source.diagnostic(span.clone(), format!("expected {expected}, got the parameter {name:?}"))
        })
    }
}

/// The text before the first `${name}`, the name, and the text after it.
pub(super) fn next_name(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("${")?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

fn same(a: &DeValue, b: &DeValue) -> bool {
    a.same_type(b) && written(a).is_some_and(|text| written(b).is_some_and(|other| text == other))
}

/// Formats a scalar value for substitution within a text.
pub(crate) fn written(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[parameters]
size = "20MB"
paths = 2
[[steps]]
text = "get ${size} over ${paths} from ${server.lte}"
number = "${paths}"
[[steps]]
when = { paths = [1, 3] }
text = "not for two"
[[steps]]
when = { paths = 2, size = ["20MB", "40MB"] }
text = "for two"
"#;

    #[derive(Debug, serde::Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Step {
        text: String,
        number: Option<u8>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Steps {
        steps: Vec<Step>,
    }

    fn parameters<'t>(document: &Document<'t>) -> Parameters<'t> {
        let table = document.table().get("parameters").and_then(|p| p.get_ref().as_table()).expect("a table");
        table.iter().map(|(name, value)| (name.get_ref().to_string(), value.get_ref().clone())).collect()
    }

    #[test]
    fn parameters_are_filled_in_with_their_type_and_choose_tables() {
        let document = Document::parse(FILE, "f.toml").expect("TOML");
        let parameters = parameters(&document);
        let (steps, rest) = document.split(&["steps", "nothing"]);
        assert_eq!(rest.table().len(), 1);
        let Steps { steps } = steps.substitute(&parameters).expect("known").read().expect("steps");
        let expected = [("get 20MB over 2 from ${server.lte}", Some(2)), ("for two", None)];
        assert_eq!(steps, expected.map(|(text, number)| Step { text: text.into(), number }));
    }

    #[test]
    fn the_directory_is_that_of_the_file_unless_a_parameter_is_called_so() {
        let filled = |file: &str, parameters: &Parameters<'static>| {
            let document = Document::parse("steps = [{ text = \"${directory}/x\" }]", file).expect("TOML");
            let Steps { steps } = document.substitute(parameters).expect("known").read().expect("steps");
            steps[0].text.clone()
        };
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(filled("/a/b.toml", &Parameters::new()), "/a/x");
        assert_eq!(filled("b.toml", &Parameters::new()), format!("{}/x", here.display()));
        assert_eq!(filled("c/b.toml", &Parameters::new()), format!("{}/c/x", here.display()));
        let given = Parameters::from([("directory".into(), DeValue::String("given".into()))]);
        assert_eq!(filled("/a/b.toml", &given), "given/x");
    }

    #[test]
    fn an_unknown_parameter_is_a_mistake_on_its_line() {
        let document = Document::parse(FILE, "f.toml").expect("TOML");
        let mut parameters = parameters(&document);
        parameters.remove("paths");
        let mistake = document.substitute(&parameters).expect_err("paths is unknown");
        assert_eq!(mistake.line, 7);
        assert_eq!(mistake.message, "expected one of the parameters size, got the parameter \"paths\"");
        let mistake = document.substitute(&Parameters::new()).expect_err("nothing is known");
        assert_eq!(mistake.message, "expected no parameter, as none is set, got the parameter \"paths\"");
    }

    #[test]
    fn a_condition_is_a_table() {
        let document = Document::parse("steps = [{ when = 1 }]", "f.toml").expect("TOML");
        let mistake = document.substitute(&Parameters::new()).expect_err("no table");
        assert_eq!((mistake.line, mistake.column), (1, 19));
    }
}
