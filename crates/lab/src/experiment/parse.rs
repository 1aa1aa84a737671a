//! Parses and checks an experiment file, and creates the [`Experiment`].

use plait_config::{Diagnostic, Source, Span, Spanned};
use serde_json::Value;
use toml::de::DeValue;

use super::measure::Measure;
use super::metric::{self, Operands};
use super::model::{Captured, Condition, Experiment, Form, Metric, Plot, Shows, Step, Variant, name_of};
use super::raw::{Body, Head, Kind, RawCapture, RawPlot, RawStep};
use crate::topology::{Document, Parameters, Topology};

/// Keys that do not depend on the variant.
const HEAD: [&str; 3] = ["experiment", "parameters", "plots"];
const TOPOLOGY: [&str; 4] = ["backend", "hosts", "links", "services"];
/// An experiment with more variants is assumed to be a mistake.
const MAX_VARIANTS: usize = 1000;
/// Bytes kept of a frame: all headers with all options.
const HEADER_SNAPLEN: u32 = 160;
/// Longer than any frame on a lab's links with the default MTU.
const FULL_SNAPLEN: u32 = 2048;

/// A parameter, with its values as TOML for substitution and as JSON for results.
struct Parameter<'t> {
    name: String,
    values: Vec<(DeValue<'t>, Value)>,
}

/// Parses an experiment in the given form.
pub(super) fn parse<'t>(document: Document<'t>, form: &'t Form) -> Result<Experiment, Diagnostic> {
    let (head, body) = document.split(&HEAD);
    let source = body.source().clone();
    let parameters_of = parameters_of(&head, form)?;
    let place_of_parameters = head.table().get_key_value("parameters").map(|(key, _)| key.span());
    let quick = form.quick;
    let has_all_values = !quick && form.parameters.is_empty();
    let Head { experiment: heading, plots, .. } = head.read()?;
    let name = check_name(heading.name, &source)?;
    let short = heading.quick.repetitions.filter(|_| quick);
    let repetitions = short.unwrap_or(heading.repetitions);
    if !(1..=1000).contains(repetitions.get_ref()) {
        let message = format!("expected 1 to 1000 repetitions, got {}", repetitions.get_ref());
        return Err(source.diagnostic(repetitions.span(), message));
    }
    let count =
        parameters_of.iter().fold(1usize, |count, parameter| count.saturating_mul(parameter.values.len()));
    if count > MAX_VARIANTS {
        let message = format!("expected parameters with at most {MAX_VARIANTS} combinations, got {count}");
        return Err(source.diagnostic(place_of_parameters, message));
    }
    let variants = combinations(&parameters_of)
        .into_iter()
        .map(|combination| variant(&body, &combination))
        .collect::<Result<Vec<_>, Diagnostic>>()?;
    for (place, operands) in variants.iter().flat_map(|(_, operands)| operands) {
        for (name, variant) in operands {
            find_operand(name, variant, &variants, has_all_values)
                .map_err(|message| source.diagnostic(place.clone(), message))?;
        }
    }
    let variants: Vec<_> = variants.into_iter().map(|(variant, _)| variant).collect();
    let plots = plots.into_iter().map(|plot| check_plot(plot, &parameters_of, &variants, &source));
    Ok(Experiment {
        name,
        title: heading.title,
        source: heading.source,
        description: unwrap_lines(&heading.description),
        note: heading.note.as_deref().map(unwrap_lines),
        repetitions: repetitions.into_inner(),
        lateness_limit: heading.lateness_limit,
        plots: plots.collect::<Result<_, _>>()?,
        parameters: parameters_of
            .into_iter()
            .map(|Parameter { name, values }| (name, values.into_iter().map(|value| value.1).collect()))
            .collect(),
        variants,
        quick,
    })
}

/// Joins the lines of a text with single spaces.
fn unwrap_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn check_name(name: Spanned<String>, source: &Source) -> Result<String, Diagnostic> {
    let fits = name.get_ref().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if fits && (1..=64).contains(&name.get_ref().len()) {
        return Ok(name.into_inner());
    }
    let message = format!("expected 1 to 64 letters, digits, - or _, got {:?}", name.get_ref());
    Err(source.diagnostic(name.span(), message))
}

/// The parameters in the order of the file, with the values that `form` selects.
fn parameters_of<'t>(head: &Document<'t>, form: &'t Form) -> Result<Vec<Parameter<'t>>, Diagnostic> {
    let source = head.source();
    let table_at = |keys: &[&str]| {
        let mut table = head.table();
        for key in keys {
            table = table.get(*key)?.get_ref().as_table()?;
        }
        Some(table)
    };
    let parameters = table_at(&["parameters"]);
    let mut names: Vec<_> = parameters.into_iter().flatten().collect();
    names.sort_by_key(|(name, _)| name.span().start);
    let check = |name: &str, place: Option<Span>| {
        if names.iter().any(|(known, _)| known.get_ref() == name) {
            return Ok(());
        }
        let known: Vec<_> = names.iter().map(|(known, _)| known.get_ref().to_string()).collect();
        let expected = match known[..] {
            [] => "no parameter, as this experiment has none".into(),
            _ => format!("one of the parameters ({})", known.join(", ")),
        };
        Err(source.diagnostic(place, format!("expected {expected}, got {name:?}")))
    };
    let short = table_at(&["experiment", "quick", "parameters"]);
    short.into_iter().flatten().try_for_each(|(name, _)| check(name.get_ref(), Some(name.span())))?;
    let place = head.table().get_key_value("parameters").map(|(key, _)| key.span());
    form.parameters.iter().try_for_each(|(name, _)| check(name, place.clone()))?;
    let parameters_of = names.iter().map(|(name, values)| {
        let name = name.get_ref().to_string();
        let in_file = list(values, source)?;
        let others = form.parameters.iter().find(|(other, _)| *other == name);
        let short = short.filter(|_| form.quick).and_then(|short| short.get(name.as_str()));
        let values = match (others, short) {
            (Some((_, given)), _) => given.iter().map(|text| given_value(text, &in_file[0].0)).collect(),
            (None, Some(short)) => list(short, source)?,
            (None, None) => in_file,
        };
        Ok(Parameter { name, values })
    });
    parameters_of.collect()
}

/// Reads a list of at least one value.
fn list<'t>(values: &Spanned<DeValue<'t>>, source: &Source) -> Result<Vec<(DeValue<'t>, Value)>, Diagnostic> {
    let list = values.get_ref().as_array().filter(|list| list.iter().next().is_some());
    let list = list.ok_or_else(|| {
        let message = "expected a list of values, such as [\"off\", \"xor64\"], got no such list";
        source.diagnostic(values.span(), message)
    })?;
    let values = list.iter().map(|value| {
        let plain = plain(value.get_ref()).ok_or_else(|| {
            let found = value.get_ref().type_str();
            let message = format!("expected a text, a number, true or false, got a value of type {found}");
            source.diagnostic(value.span(), message)
        })?;
        Ok((value.get_ref().clone(), plain))
    });
    values.collect()
}

/// Parses a value given as text: a string if `like` is a string or the text is no TOML value, else a TOML value.
fn given_value<'t>(text: &'t str, like: &DeValue) -> (DeValue<'t>, Value) {
    let value = match like {
        DeValue::String(_) => None,
        _ => DeValue::parse(text).ok().map(Spanned::into_inner),
    };
    match value.and_then(|value| Some((plain(&value)?, value))) {
        Some((plain, value)) => (value, plain),
        None => (DeValue::String(text.into()), text.into()),
    }
}

fn plain(value: &DeValue) -> Option<Value> {
    match value {
        DeValue::String(text) => Some(text.to_string().into()),
        DeValue::Integer(number) => Some(number.to_string().parse::<i64>().ok()?.into()),
        DeValue::Float(number) => Some(number.to_string().parse::<f64>().ok()?.into()),
        DeValue::Boolean(value) => Some((*value).into()),
        _ => None,
    }
}

/// One value of each parameter.
type Combination<'t> = Vec<(String, DeValue<'t>, Value)>;

/// Every combination, the last parameter varying fastest.
fn combinations<'t>(parameters_of: &[Parameter<'t>]) -> Vec<Combination<'t>> {
    parameters_of.iter().fold(vec![Vec::new()], |combined, Parameter { name, values }| {
        let longer = |one: &Combination<'t>| {
            let one = one.clone();
            let with = move |(raw, plain): &(DeValue<'t>, Value)| {
                let mut longer = one.clone();
                longer.push((name.clone(), raw.clone(), plain.clone()));
                longer
            };
            values.iter().map(with).collect::<Vec<_>>()
        };
        combined.iter().flat_map(longer).collect()
    })
}

/// The operands of each metric, with the metric's span.
type AllOperands = Vec<(Span, Operands)>;

fn variant<'t>(
    body: &Document<'t>,
    combination: &Combination<'t>,
) -> Result<(Variant, AllOperands), Diagnostic> {
    let filled: Parameters<'t> =
        combination.iter().map(|(name, raw, _)| (name.clone(), raw.clone())).collect();
    let parameters: Vec<_> =
        combination.iter().map(|(name, _, plain)| (name.clone(), plain.clone())).collect();
    let (topology, rest) = body.substitute(&filled)?.split(&TOPOLOGY);
    let source = rest.source().clone();
    let topology = Topology::of(topology)?;
    let Body { steps, capture, metrics } = rest.read()?;
    let steps = check_steps(steps, &topology, &source)?;
    let mut metrics: Vec<_> = metrics.into_iter().collect();
    metrics.sort_by_key(|(name, _)| name.span().start);
    let mut checked: Vec<(String, Metric)> = Vec::new();
    let mut operands = Vec::new();
    let captured: Vec<String> = capture.on.iter().map(|host| host.get_ref().clone()).collect();
    for (name, written) in metrics {
        let place = written.span();
        let scope = metric::Scope {
            topology: &topology,
            steps: &steps,
            captured: &captured,
            parameters: &parameters,
            above: &checked,
        };
        let metric = written
            .into_inner()
            .checked(&scope)
            .map_err(|(at, message)| source.diagnostic(at.unwrap_or(place.clone()), message))?;
        operands.push((place, metric::operands(&metric.measure)));
        checked.push((name.into_inner(), metric));
    }
    let reads = checked.iter().any(|(_, metric)| matches!(metric.measure, Measure::Readable { .. }));
    let capture = check_capture(capture, reads, &topology, &source)?;
    Ok((Variant { parameters, topology, steps, capture, metrics: checked }, operands))
}

fn check_steps(
    steps: Spanned<Vec<Spanned<RawStep>>>,
    topology: &Topology,
    source: &Source,
) -> Result<Vec<Step>, Diagnostic> {
    let place = steps.span();
    let mut checked: Vec<Step> = Vec::new();
    for step in steps.into_inner() {
        let RawStep { name, host, command, mptcp, timeout, starts_clock, allow_failure } = step.into_inner();
        if checked.iter().any(|other| other.name == *name.get_ref()) {
            let message = format!("expected a name of its own for each step, got {:?} again", name.get_ref());
            return Err(source.diagnostic(name.span(), message));
        }
        if starts_clock && checked.iter().any(|other| other.starts_clock) {
            let message = "expected one step that starts the clock, got another";
            return Err(source.diagnostic(name.span(), message));
        }
        known_host(&host, topology, source)?;
        let place = command.span();
        let words = command.into_inner().into_iter().map(|word| {
            let resolved = topology.resolve(&word.get_ref().0);
            resolved.map_err(|message| source.diagnostic(word.span(), message))
        });
        let command = words.collect::<Result<Vec<_>, _>>()?;
        if command.is_empty() {
            return Err(source.diagnostic(place, "expected a program and its arguments, got an empty list"));
        }
        let (name, host) = (name.into_inner(), host.into_inner());
        checked.push(Step { name, host, command, mptcp, timeout, starts_clock, allow_failure });
    }
    let Some(first) = checked.first() else {
        return Err(source.diagnostic(place, "expected a step for every variant, got none for this one"));
    };
    if !checked.iter().any(|step| step.starts_clock) {
        let first = Step { starts_clock: true, ..first.clone() };
        checked[0] = first;
    }
    Ok(checked)
}

fn check_capture(
    capture: RawCapture,
    reads: bool,
    topology: &Topology,
    source: &Source,
) -> Result<Captured, Diagnostic> {
    for host in &capture.on {
        known_host(host, topology, source)?;
    }
    let snaplen = match capture.snaplen {
        None if reads => FULL_SNAPLEN,
        None => HEADER_SNAPLEN,
        Some(snaplen) if (96..=65_535).contains(snaplen.get_ref()) => snaplen.into_inner(),
        Some(snaplen) => {
            let message = format!("expected 96 to 65535 bytes of each frame, got {}", snaplen.get_ref());
            return Err(source.diagnostic(snaplen.span(), message));
        }
    };
    Ok(Captured { on: capture.on.into_iter().map(Spanned::into_inner).collect(), snaplen })
}

fn known_host(host: &Spanned<String>, topology: &Topology, source: &Source) -> Result<(), Diagnostic> {
    if topology.host(host.get_ref()).is_some() {
        return Ok(());
    }
    let known: Vec<_> = topology.hosts.iter().map(|host| host.name.as_str()).collect();
    let message = format!("expected one of the hosts {}, got {:?}", known.join(", "), host.get_ref());
    Err(source.diagnostic(host.span(), message))
}

/// Checks that the variant exists and has the metric. With overridden parameter values, the variant may be missing.
fn find_operand(
    name: &str,
    variant: &[(String, Value)],
    variants: &[(Variant, AllOperands)],
    has_all_values: bool,
) -> Result<(), String> {
    let fits = |candidate: &&(Variant, AllOperands)| {
        variant.iter().all(|wanted| candidate.0.parameters.contains(wanted))
    };
    let Some((found, _)) = variants.iter().find(fits) else {
        let message = format!("expected a combination of the parameters, got {}", name_of(variant));
        return if has_all_values { Err(message) } else { Ok(()) };
    };
    let has = found.metrics.iter().any(|(other, _)| other == name);
    let missing = || format!("expected a metric of the variant {}, got {name:?}", found.name());
    has.then_some(()).ok_or_else(missing)
}

fn check_plot(
    plot: Spanned<RawPlot>,
    parameters_of: &[Parameter],
    variants: &[Variant],
    source: &Source,
) -> Result<Plot, Diagnostic> {
    let place = plot.span();
    let RawPlot { title, figure, kind, metric, x, series, when } = plot.into_inner();
    let parameter = |name: Spanned<String>| {
        if parameters_of.iter().any(|parameter| parameter.name == *name.get_ref()) {
            return Ok(name.into_inner());
        }
        let known: Vec<_> = parameters_of.iter().map(|parameter| parameter.name.as_str()).collect();
        let message =
            format!("expected one of the parameters ({}), got {:?}", known.join(", "), name.get_ref());
        Err(source.diagnostic(name.span(), message))
    };
    let missing = |key: &str| source.diagnostic(place.clone(), format!("expected the key `{key}`, got none"));
    let shows = match kind.unwrap_or(Kind::Sweep) {
        Kind::Throughput => Shows::Throughput,
        Kind::Rtt => Shows::RoundTrip,
        Kind::Sequence => Shows::Sequence,
        Kind::Sweep => {
            let metric = metric.ok_or_else(|| missing("metric"))?;
            let known = |variant: &Variant| variant.metrics.iter().any(|(name, _)| name == metric.get_ref());
            if !variants.iter().any(known) {
                let message = format!("expected the name of a metric, got {:?}", metric.get_ref());
                return Err(source.diagnostic(metric.span(), message));
            }
            Shows::Sweep {
                metric: metric.into_inner(),
                x: parameter(x.ok_or_else(|| missing("x"))?)?,
                series: series.map(parameter).transpose()?,
            }
        }
    };
    let when = when.into_iter().map(|(name, values)| Ok((parameter(name)?, values.into_vec())));
    Ok(Plot { title, figure, shows, when: Condition(when.collect::<Result<_, Diagnostic>>()?) })
}

#[cfg(test)]
mod tests;
