//! From TOML to a [`Policy`]: first each value by itself, then, if all of them are valid, the constraints between them.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use plait_config::{Diagnostic, Rate, Size, Source, Span, Spanned};
use toml::de::{DeInteger, DeTable, DeValue};

use super::selector;
use crate::model::{
    Actor, Announcement, Chain, CustomProgram, DEFAULT_PRIORITY, Hook, Interface, JoinRefusal, Limit, Mark,
    Policy, PolicyPart, Selector, violations,
};

type Value<'t> = Spanned<DeValue<'t>>;
type Window = Size<{ Limit::MAX_WINDOW as u64 }>;

/// Reporting more at once is no help, and each costs a walk through the file.
const MAX_DIAGNOSTICS: usize = 100;

pub(super) fn parse(text: &str, file: &str) -> Result<Policy, Vec<Diagnostic>> {
    let source = Source::new(file, text);
    let root = DeTable::parse(text).map_err(|error| vec![source.toml_error(&error)])?;
    let reader = Reader { source: &source, diagnostics: RefCell::default() };
    let read = reader.policy(&root);
    let mut diagnostics = reader.diagnostics.into_inner();
    let Some((policy, spans)) = read.filter(|_| diagnostics.is_empty()) else {
        diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        // The default interfaces are read once per chain.
        diagnostics.dedup();
        return Err(diagnostics);
    };
    let found = violations(&policy).into_iter().map(|violation| {
        let message = format!("expected {}, got {}", violation.expected, violation.found);
        source.diagnostic(spans.of(violation.part), message)
    });
    let found: Vec<_> = found.collect();
    if found.is_empty() { Ok(policy) } else { Err(found) }
}

/// Where in the file the parts of a policy are.
#[derive(Default)]
struct Spans {
    name: Span,
    custom: Vec<(String, Span)>,
    chains: Vec<ChainSpans>,
}

struct ChainSpans {
    name: Span,
    interfaces: Span,
    select: Span,
    actors: Vec<Span>,
}

impl Spans {
    fn of(&self, part: PolicyPart<'_>) -> Span {
        match part {
            PolicyPart::Policy => self.name.clone(),
            PolicyPart::Custom(name) => {
                let custom = self.custom.iter().find(|(custom, _)| custom == name);
                custom.map_or(self.name.clone(), |(_, span)| span.clone())
            }
            PolicyPart::Chain(chain) => self.chains[chain].name.clone(),
            PolicyPart::Interfaces(chain) => self.chains[chain].interfaces.clone(),
            PolicyPart::Select(chain) => self.chains[chain].select.clone(),
            PolicyPart::Actor(chain, actor) => self.chains[chain].actors[actor].clone(),
        }
    }
}

/// Reads values; an invalid one is `None` and adds a diagnostic.
struct Reader<'t> {
    source: &'t Source,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

/// A table whose keys were checked.
struct Table<'r, 't> {
    reader: &'r Reader<'t>,
    table: &'r DeTable<'t>,
    span: Span,
}

impl<'t> Reader<'t> {
    fn policy(&self, root: &Spanned<DeTable<'t>>) -> Option<(Policy, Spans)> {
        let table = self.keys(root.get_ref(), 0..0, &["name", "interfaces", "custom", "chains"]);
        let mut spans = Spans::default();
        let name = match table.get("name") {
            Some(name) => {
                spans.name = name.span();
                self.text(name, "the policy's name").map(str::to_owned)
            }
            None => {
                let stem = Path::new(self.source.file()).file_stem().unwrap_or_default();
                Some(stem.to_string_lossy().into_owned())
            }
        };
        let interfaces = table.get("interfaces");
        let mut custom = Vec::new();
        for (name, value) in table
            .get("custom")
            .and_then(|custom| self.table(custom, "tables [custom.NAME]"))
            .into_iter()
            .flatten()
        {
            spans.custom.push((name.get_ref().clone().into_owned(), name.span()));
            custom.push((name.get_ref().clone().into_owned(), self.custom(value)));
        }
        let names: Vec<_> = custom.iter().map(|(name, _)| name.as_str()).collect();
        let mut chains = Vec::new();
        for value in self.list(table.required("chains")?, "a list of chains: tables [[chains]]")? {
            if let Some((chain, span)) = self.chain(value, interfaces, &names) {
                chains.push(chain);
                spans.chains.push(span);
            }
        }
        let custom =
            custom.into_iter().map(|(name, program)| Some((name, program?))).collect::<Option<_>>()?;
        Some((Policy { name: name?, custom, chains }, spans))
    }

    fn custom(&self, value: &Value<'t>) -> Option<CustomProgram> {
        let expected = "a table such as { file = \"my.bpf.c\" }";
        let table =
            self.keys(self.table(value, expected)?, value.span(), &["file", "function", "parameters"]);
        let file = self.text(table.required("file")?, "the name of a file").map(PathBuf::from);
        let function = match table.get("function") {
            Some(name) => Some(self.text(name, "the name of a function in the file")?.to_owned()),
            None => None,
        };
        let parameters = match table.get("parameters") {
            Some(list) => self.list(list, "a list of numbers")?,
            None => &[],
        };
        let number = |value: &Value<'t>| {
            self.integer(value, 0..=i64::MAX, "a number from 0 to 2^63 - 1").map(i64::unsigned_abs)
        };
        let parameters = parameters.iter().map(number).collect::<Option<_>>()?;
        Some(CustomProgram { file: file?, function, parameters })
    }

    /// Reads all keys, so that a mistake in one does not hide a mistake in another.
    fn chain(
        &self,
        value: &Value<'t>,
        default_interfaces: Option<&Value<'t>>,
        custom: &[&str],
    ) -> Option<(Chain, ChainSpans)> {
        let known = ["name", "hook", "interfaces", "priority", "select", "actors"];
        let table = self.keys(self.table(value, "a table of a chain's keys")?, value.span(), &known);
        let name = table.required("name");
        let interfaces = table.get("interfaces").or(default_interfaces);
        let select = table.get("select");
        let actors = table.required("actors");
        let span = |value: Option<&Value<'t>>| value.map_or(value_span(name, &table), Spanned::span);
        let mut spans = ChainSpans {
            name: span(name),
            interfaces: span(interfaces),
            select: span(select),
            actors: Vec::new(),
        };
        let hook = table.required("hook").and_then(|hook| self.hook(hook));
        let interfaces = match interfaces {
            Some(interfaces) => self.interfaces(interfaces),
            None => table.missing("interfaces", "in the chain, or at the top of the file as the default"),
        };
        let priority = table.get("priority").map_or(Some(DEFAULT_PRIORITY), |value| {
            let all = i64::from(i32::MIN)..=i64::from(i32::MAX);
            self.integer(value, all, "a whole number of 32 bits")?.try_into().ok()
        });
        let select = select.map_or(Some(Selector::Any), |select| self.select(select, custom));
        let actors = actors.and_then(|actors| {
            let actors = self.list(actors, "a list of actors")?;
            spans.actors = actors.iter().map(Spanned::span).collect();
            // Collected first, so that all diagnostics are reported.
            let actors: Vec<_> = actors.iter().map(|actor| self.actor(actor, custom)).collect();
            actors.into_iter().collect()
        });
        let name = self.text(name?, "the chain's name")?.to_owned();
        let chain = Chain {
            name,
            hook: hook?,
            interfaces: interfaces?,
            priority: priority?,
            select: select?,
            actors: actors?,
        };
        Some((chain, spans))
    }

    fn hook(&self, value: &Value<'t>) -> Option<Hook> {
        self.word(value, "\"ingress\" or \"egress\"", |text| {
            [Hook::Ingress, Hook::Egress].into_iter().find(|hook| hook.name() == text)
        })
    }

    fn interfaces(&self, value: &Value<'t>) -> Option<Vec<Interface>> {
        let read = |value| self.word(value, Interface::EXPECTED, Interface::parse);
        self.list(value, "a list of interfaces, such as [\"wlan0\"]")?.iter().map(read).collect()
    }

    fn select(&self, value: &Value<'t>, custom: &[&str]) -> Option<Selector> {
        let text = self.text(value, "a selector, such as \"packet(data)\"")?;
        let error = match selector::parse(text, Some(custom)) {
            Ok(selector) => return Some(selector),
            Err(error) => error,
        };
        // If the string has no escapes, positions in it map to positions in the file.
        let span = value.span();
        let written = self.source.text().get(span.clone()).and_then(|written| written.find(text));
        let (span, column) = match written {
            Some(at) => (span.start + at + error.span.start..span.start + at + error.span.end, None),
            None => (span, Some(error.column)),
        };
        let column = column.map_or(String::new(), |column| format!(" at column {column} of the selector"));
        self.error(span, &format!("{}{column}", error.expected), error.found)
    }

    fn actor(&self, value: &Value<'t>, custom: &[&str]) -> Option<Actor> {
        if let DeValue::String(name) = value.get_ref() {
            return self.actor_alone(name, value.span(), custom);
        }
        let table = self.table(value, "the name of an actor, or { NAME = VALUE }")?;
        match table.iter().next() {
            Some((name, parameter)) if table.len() == 1 => {
                self.actor_with(name.get_ref(), name.span(), parameter, custom)
            }
            _ => self.error(value.span(), "one actor, { NAME = VALUE }", format!("{} keys", table.len())),
        }
    }

    fn actor_alone(&self, name: &str, span: Span, custom: &[&str]) -> Option<Actor> {
        Some(match name {
            "drop" => Actor::Drop,
            "set_backup" => Actor::SetBackup { address_id: None },
            "clear_backup" => Actor::ClearBackup { address_id: None },
            "block_subflow" => Actor::BlockSubflow { echo: false },
            "add_subflow" => Actor::AddSubflow(None),
            "deny_join" => Actor::DenyJoin(JoinRefusal::Drop),
            "fall_back" => Actor::FallBack,
            "capable_flag" => Actor::CapableFlag,
            "get_connection" => Actor::GetConnection { keys: false },
            "get_subflow" => Actor::GetSubflow,
            "record" => Actor::Record,
            "mark" => return self.error(span, "{ mark = 0x10 }", "\"mark\" alone"),
            "redirect" => return self.error(span, "{ redirect = \"eth1\" }", "\"redirect\" alone"),
            "pace" => return self.error(span, "{ pace = \"4mbit\" }", "\"pace\" alone"),
            "rate_limit" => return self.error(span, RATE_LIMIT, "\"rate_limit\" alone"),
            name if custom.contains(&name) => Actor::Custom(name.into()),
            name => return self.unknown_actor(name, span, custom),
        })
    }

    fn actor_with(&self, name: &str, span: Span, value: &Value<'t>, custom: &[&str]) -> Option<Actor> {
        match name {
            "mark" => self.mark(value).map(Actor::Mark),
            "redirect" => {
                let expected = "the name of an interface";
                match self.word(value, expected, Interface::parse)? {
                    Interface::Named(name) => Some(Actor::Redirect(name)),
                    other => self.error(value.span(), expected, format!("\"{other}\"")),
                }
            }
            "rate_limit" => self.limit(value).map(Actor::RateLimit),
            "pace" => self.rate(value).map(Actor::Pace),
            "set_backup" => Some(Actor::SetBackup { address_id: self.address_id(value)? }),
            "clear_backup" => Some(Actor::ClearBackup { address_id: self.address_id(value)? }),
            "block_subflow" => Some(Actor::BlockSubflow { echo: self.flag(value, "echo")? }),
            "add_subflow" => {
                self.announcement(value).map(|announcement| Actor::AddSubflow(Some(announcement)))
            }
            "deny_join" => self.word(value, "\"drop\" or \"reset\"", |text| match text {
                "drop" => Some(Actor::DenyJoin(JoinRefusal::Drop)),
                "reset" => Some(Actor::DenyJoin(JoinRefusal::Reset)),
                _ => None,
            }),
            "get_connection" => Some(Actor::GetConnection { keys: self.flag(value, "keys")? }),
            name if Actor::NAMES.contains(&name) || custom.contains(&name) => {
                self.error(value.span(), &format!("{name:?} alone, without parameters"), found(value))
            }
            name => self.unknown_actor(name, span, custom),
        }
    }

    fn unknown_actor(&self, name: &str, span: Span, custom: &[&str]) -> Option<Actor> {
        let known: Vec<_> = Actor::NAMES.iter().chain(custom).copied().collect();
        self.error(span, &format!("an actor: {}", known.join(", ")), format!("{name:?}"))
    }

    fn mark(&self, value: &Value<'t>) -> Option<Mark> {
        let read = match value.get_ref() {
            DeValue::String(text) => selector::parse_mark(text),
            DeValue::Integer(number) => integer(number)
                .and_then(|number| Some(Mark { value: number.try_into().ok()?, mask: u32::MAX })),
            _ => None,
        };
        read.or_else(|| self.error(value.span(), selector::EXPECTED_MARK, found(value)))
    }

    fn limit(&self, value: &Value<'t>) -> Option<Limit> {
        let table = self.keys(self.table(value, RATE_LIMIT)?, value.span(), &["rate", "window"]);
        match (table.get("rate"), table.get("window")) {
            (Some(rate), None) => self.rate(rate).map(Limit::Rate),
            (None, Some(window)) => self.word(window, &Window::expected(), |text| {
                text.parse::<Window>().ok()?.bytes().try_into().ok().map(Limit::Window)
            }),
            (Some(_), Some(_)) => self.error(value.span(), RATE_LIMIT, "both keys"),
            (None, None) => self.error(value.span(), RATE_LIMIT, "neither key"),
        }
    }

    fn rate(&self, value: &Value<'t>) -> Option<Rate> {
        self.word(value, Rate::EXPECTED, |text| text.parse().ok())
    }

    fn announcement(&self, value: &Value<'t>) -> Option<Announcement> {
        let expected = "a table such as { address = \"192.0.2.7\", port = 443, id = 9 }";
        let table = self.keys(self.table(value, expected)?, value.span(), &["address", "port", "id"]);
        let address = self.word(table.required("address")?, "an address", |text| text.parse().ok())?;
        let port = match table.get("port") {
            Some(port) => Some(self.integer(port, 1..=65535, "a port from 1 to 65535")?),
            None => None,
        };
        let id = match table.get("id") {
            Some(id) => Some(self.integer(id, 1..=255, "an address id from 1 to 255")?),
            None => None,
        };
        let (port, id) = (port.and_then(|port| port.try_into().ok()), id.and_then(|id| id.try_into().ok()));
        Some(Announcement { address, port, id })
    }

    /// A table with an optional address identifier.
    fn address_id(&self, value: &Value<'t>) -> Option<Option<u8>> {
        let table = self.table(value, "a table such as { address_id = 3 }")?;
        let table = self.keys(table, value.span(), &["address_id"]);
        let Some(id) = table.get("address_id") else { return Some(None) };
        let id = self.integer(id, 0..=255, "an address id from 0 to 255")?;
        Some(id.try_into().ok())
    }

    /// A table with this optional boolean key.
    fn flag(&self, value: &Value<'t>, key: &'static str) -> Option<bool> {
        let expected = format!("a table such as {{ {key} = true }}");
        let table = self.keys(self.table(value, &expected)?, value.span(), &[key]);
        let Some(value) = table.get(key) else { return Some(false) };
        value.get_ref().as_bool().or_else(|| self.error(value.span(), "true or false", found(value)))
    }

    /// Checks that a table has no keys other than these.
    fn keys<'r>(&'r self, table: &'r DeTable<'t>, span: Span, known: &[&str]) -> Table<'r, 't> {
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let expected = format!("one of the keys {}", known.join(", "));
            self.report(key.span(), &expected, format!("the unknown key {:?}", key.get_ref()));
        }
        Table { reader: self, table, span }
    }

    fn table<'r>(&self, value: &'r Value<'t>, expected: &str) -> Option<&'r DeTable<'t>> {
        value.get_ref().as_table().or_else(|| self.error(value.span(), expected, found(value)))
    }

    fn list<'r>(&self, value: &'r Value<'t>, expected: &str) -> Option<&'r [Value<'t>]> {
        let list = value.get_ref().as_array().map(|list| &**list);
        list.or_else(|| self.error(value.span(), expected, found(value)))
    }

    fn text<'r>(&self, value: &'r Value<'t>, expected: &str) -> Option<&'r str> {
        value.get_ref().as_str().or_else(|| self.error(value.span(), expected, found(value)))
    }

    /// A string that `read` accepts.
    fn word<T>(&self, value: &Value<'t>, expected: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(value, expected)?;
        read(text).or_else(|| self.error(value.span(), expected, found(value)))
    }

    fn integer(&self, value: &Value<'t>, range: RangeInclusive<i64>, expected: &str) -> Option<i64> {
        let number = value.get_ref().as_integer().and_then(integer).filter(|number| range.contains(number));
        number.or_else(|| self.error(value.span(), expected, found(value)))
    }

    fn error<T>(&self, span: Span, expected: &str, found: impl Display) -> Option<T> {
        self.report(span, expected, found);
        None
    }

    fn report(&self, span: Span, expected: &str, found: impl Display) {
        let mut diagnostics = self.diagnostics.borrow_mut();
        if diagnostics.len() < MAX_DIAGNOSTICS {
            diagnostics.push(self.source.diagnostic(span, format!("expected {expected}, got {found}")));
        }
    }
}

impl<'r, 't> Table<'r, 't> {
    fn get(&self, key: &str) -> Option<&'r Value<'t>> {
        self.table.get(key)
    }

    fn required(&self, key: &str) -> Option<&'r Value<'t>> {
        self.get(key).or_else(|| self.missing(key, ""))
    }

    fn missing<T>(&self, key: &str, explanation: &str) -> Option<T> {
        let separator = if explanation.is_empty() { "" } else { " " };
        self.reader.error(self.span.clone(), &format!("the key `{key}`{separator}{explanation}"), "none")
    }
}

const RATE_LIMIT: &str = "{ rate_limit = { rate = \"4mbit\" } } or { rate_limit = { window = \"64kB\" } }";

fn value_span(value: Option<&Value<'_>>, table: &Table<'_, '_>) -> Span {
    value.map_or(table.span.clone(), Spanned::span)
}

fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn found(value: &Value<'_>) -> String {
    match value.get_ref() {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}
