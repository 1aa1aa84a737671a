//! Metrics as experiment files define them, and the keys that each measure takes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use plait_config::Span;
use plait_trace::Direction;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use toml::Spanned;

use super::measure::{Measure, Operand, Selection, Statistic, Window};
use super::model::{Condition, Metric, Step};
use super::one_or_many::OneOrMany;
use super::paper::{Cause, PaperValue};
use crate::topology::Topology;

/// The names that a metric may refer to.
pub(super) struct Scope<'a> {
    pub(super) topology: &'a Topology,
    pub(super) steps: &'a [Step],
    pub(super) captured: &'a [String],
    pub(super) parameters: &'a [(String, Value)],
    /// The metrics defined before it.
    pub(super) above: &'a [(String, Metric)],
}

impl Scope<'_> {
    fn parameter_names(&self) -> String {
        self.parameters.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// The metrics that another is computed from: their names, and the parameters of their variants if these differ.
pub(super) type Operands = Vec<(String, Vec<(String, Value)>)>;

/// The location, `None` for the whole metric, and the message.
type MetricError = (Option<Span>, String);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMetric {
    measure: Kind,
    at: Option<Spanned<String>>,
    port: Option<Spanned<u16>>,
    direction: Option<Spanned<Direction>>,
    path: Option<Spanned<OneOrMany<String>>>,
    subflow: Option<Spanned<usize>>,
    server_address: Option<Spanned<String>>,
    statistic: Option<Spanned<Statistic>>,
    from: Option<Spanned<String>>,
    to: Option<Spanned<String>>,
    after: Option<Spanned<String>>,
    step: Option<Spanned<String>>,
    pointer: Option<Spanned<String>>,
    #[serde(rename = "where")]
    element: Option<Spanned<BTreeMap<String, Value>>>,
    field: Option<Spanned<String>>,
    host: Option<Spanned<String>>,
    counter: Option<Spanned<String>>,
    document: Option<Spanned<String>>,
    numerator: Option<Spanned<String>>,
    denominator: Option<Spanned<String>>,
    metrics: Option<Spanned<Vec<Spanned<String>>>>,
    numerator_variant: Option<Spanned<BTreeMap<String, Value>>>,
    denominator_variant: Option<Spanned<BTreeMap<String, Value>>>,
    numerator_value: Option<Spanned<f64>>,
    denominator_value: Option<Spanned<f64>>,
    scale: Option<Spanned<f64>>,
    unit: Option<String>,
    #[serde(default)]
    paper: OneOrList<Paper>,
    #[serde(default)]
    expect: OneOrList<Expect>,
}

#[derive(serde::Deserialize, Clone, Copy, Debug)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Throughput,
    Goodput,
    #[serde(rename = "active_throughput")]
    ActiveThroughput,
    Share,
    Subflows,
    RttMs,
    RttStddevMs,
    HeadOfLineMs,
    JitterMs,
    LongestGapS,
    RecoveryS,
    CompletionS,
    RetransmittedBytes,
    ReinjectedBytes,
    Survived,
    FirstFlightTrusted,
    Exposure,
    Readable,
    #[serde(rename = "duration_s")]
    Seconds,
    Json,
    Counter,
    Ratio,
    Gain,
    Sum,
}

/// A published value.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    #[serde(default)]
    when: BTreeMap<String, OneOrMany<Value>>,
    entry: Option<String>,
    value: Option<f64>,
    sigma: Option<f64>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    factor: Option<f64>,
    differs: Option<Cause>,
    not_comparable: Option<String>,
}

impl Paper {
    fn checked(&self) -> Result<PaperValue, String> {
        let value = PaperValue {
            entry: self.entry.clone(),
            value: self.value,
            sigma: self.sigma,
            at_least: self.at_least,
            at_most: self.at_most,
            factor: self.factor,
            differs: self.differs.clone(),
            not_comparable: self.not_comparable.clone(),
        };
        value.check().map(|()| value)
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    #[serde(default)]
    when: BTreeMap<String, OneOrMany<Value>>,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

impl RawMetric {
    pub(super) fn checked(mut self, scope: &Scope) -> Result<Metric, MetricError> {
        let measure = self.measure(scope)?;
        self.reject_unused_keys()?;
        let conditions = self.paper.0.iter().map(|paper| &paper.when);
        let conditions = conditions.chain(self.expect.0.iter().map(|expect| &expect.when));
        let is_known = |name: &&String| scope.parameters.iter().any(|(known, _)| known == *name);
        if let Some(name) = conditions.flat_map(BTreeMap::keys).find(|name| !is_known(name)) {
            let known = scope.parameter_names();
            return Err((None, format!("expected one of the parameters ({known}) in `when`, got {name:?}")));
        }
        let holds = |when: &BTreeMap<String, OneOrMany<Value>>| {
            let wanted = when.iter().map(|(name, values)| (name.clone(), values.clone().into_vec()));
            Condition(wanted.collect()).holds(scope.parameters)
        };
        let paper = self.paper.0.iter().find(|paper| holds(&paper.when)).map(Paper::checked);
        let paper = paper.transpose().map_err(|message| (None, message))?;
        let expect = self.expect.0.iter().find(|expect| holds(&expect.when));
        let (at_least, at_most) = expect.map_or((None, None), |expect| (expect.at_least, expect.at_most));
        let unit = self.unit.unwrap_or_else(|| measure.unit().into());
        let scale = match self.scale {
            None => 1.0,
            Some(scale) if scale.get_ref().is_finite() && *scale.get_ref() != 0.0 => scale.into_inner(),
            Some(scale) => {
                return Err((Some(scale.span()), "expected a number other than 0, got none".into()));
            }
        };
        Ok(Metric { measure, scale, unit, paper, at_least, at_most })
    }

    /// Takes the keys that the measure uses.
    fn measure(&mut self, scope: &Scope) -> Result<Measure, MetricError> {
        Ok(match self.measure {
            Kind::Throughput => Measure::Throughput(self.selection(scope)?, self.window()?),
            Kind::Goodput => Measure::Goodput(self.selection(scope)?, self.window()?),
            Kind::ActiveThroughput => {
                Measure::ActiveThroughput(self.selection(scope)?, self.window()?, self.statistic())
            }
            Kind::Share => Measure::Share(self.selection(scope)?, self.window()?),
            Kind::Subflows => Measure::Subflows(self.selection(scope)?),
            Kind::RttMs => Measure::RoundTrip(self.selection(scope)?, self.statistic()),
            Kind::RttStddevMs => Measure::RoundTrip(self.selection(scope)?, Statistic::Stddev),
            Kind::JitterMs => Measure::Jitter(self.selection(scope)?),
            Kind::HeadOfLineMs => Measure::HeadOfLine(self.selection(scope)?, self.statistic()),
            Kind::LongestGapS => Measure::LongestGap(self.selection(scope)?, self.window()?),
            Kind::RecoveryS => {
                let after = required(self.after.take(), "after")?;
                let time = time(&after)?;
                if !scope.topology.links.iter().flat_map(|link| &link.events).any(|event| event.at == time) {
                    let message = format!("expected the time of an event, got {:?}", after.get_ref());
                    return Err((Some(after.span()), message));
                }
                Measure::FirstData(self.selection(scope)?, time)
            }
            Kind::CompletionS => Measure::Completion(self.selection(scope)?),
            Kind::RetransmittedBytes => Measure::Retransmitted(self.selection(scope)?),
            Kind::ReinjectedBytes => Measure::Reinjected(self.selection(scope)?),
            Kind::Survived => Measure::Survived(self.selection(scope)?),
            Kind::FirstFlightTrusted => Measure::FirstFlightTrusted(self.selection(scope)?),
            Kind::Exposure => {
                required(self.path.as_ref(), "path")?;
                Measure::Exposure(self.selection(scope)?)
            }
            Kind::Readable => {
                required(self.path.as_ref(), "path")?;
                let document = required(self.document.take(), "document")?.into_inner();
                Measure::Readable { of: self.selection(scope)?, document }
            }
            Kind::Seconds => Measure::Seconds { step: self.step(scope)? },
            Kind::Json => self.json(scope)?,
            Kind::Counter => {
                let host = required(self.host.take(), "host")?;
                let hosts = scope.topology.hosts.iter().map(|host| host.name.as_str());
                let host = one_of(host, "hosts", hosts)?;
                Measure::Counter { host, counter: required(self.counter.take(), "counter")?.into_inner() }
            }
            Kind::Ratio => {
                let (of, to) = self.quotient(scope)?;
                Measure::Ratio { of, to }
            }
            Kind::Gain => {
                let (of, over) = self.quotient(scope)?;
                Measure::Gain { of, over }
            }
            Kind::Sum => {
                let metrics = required(self.metrics.take(), "metrics")?.into_inner();
                let operand = |name| operand(name, None, scope);
                Measure::Sum(metrics.into_iter().map(operand).collect::<Result<_, _>>()?)
            }
        })
    }

    fn json(&mut self, scope: &Scope) -> Result<Measure, MetricError> {
        let pointer = |text: Spanned<String>| match text.get_ref().starts_with('/') {
            true => Ok(text.into_inner()),
            false => {
                let message = format!("expected a pointer such as /end/seconds, got {:?}", text.get_ref());
                Err((Some(text.span()), message))
            }
        };
        let list = pointer(required(self.pointer.take(), "pointer")?)?;
        let (element, field) = match self.element.take() {
            Some(element) => {
                (element.into_inner().into_iter().collect(), pointer(required(self.field.take(), "field")?)?)
            }
            None => (Vec::new(), String::new()),
        };
        Ok(Measure::Json { step: self.step(scope)?, pointer: list, element, field })
    }

    fn quotient(&mut self, scope: &Scope) -> Result<(Operand, Operand), MetricError> {
        let of = match self.numerator_value.take() {
            Some(value) => Operand::Number(value.into_inner()),
            None => {
                let numerator = required(self.numerator.take(), "numerator")?;
                operand(numerator, self.numerator_variant.take(), scope)?
            }
        };
        let to = match (self.denominator.take(), self.denominator_value.take()) {
            (Some(name), None) => operand(name, self.denominator_variant.take(), scope)?,
            (None, Some(value)) if *value.get_ref() != 0.0 => Operand::Number(value.into_inner()),
            (_, Some(value)) => {
                return Err((
                    Some(value.span()),
                    "expected either `denominator` or a `denominator_value` other than 0, got both or 0"
                        .into(),
                ));
            }
            (None, None) => {
                return Err((None, "expected the key `denominator` or `denominator_value`, got none".into()));
            }
        };
        Ok((of, to))
    }

    fn selection(&mut self, scope: &Scope) -> Result<Selection, MetricError> {
        if scope.captured.is_empty() {
            let message =
                "expected a [capture] with the hosts to capture on, which this measure needs, got none";
            return Err((None, message.into()));
        }
        let captured = scope.captured.iter().map(String::as_str);
        let at = self.at.take().map(|at| one_of(at, "captured hosts", captured)).transpose()?;
        let host = at.as_deref().unwrap_or(&scope.captured[0]);
        let links = scope.topology.links.iter();
        let links = links.filter(|link| link.a.host == host || link.b.host == host);
        let names: Vec<_> = links.map(|link| link.name.as_str()).collect();
        let path = self.path.take().map(|path| (path.span(), path.into_inner().into_vec()));
        let (place, paths) = path.unwrap_or_default();
        let paths = paths.into_iter().map(|path| {
            let what = format!("links of {host}, where packets are captured");
            one_of(Spanned::new(place.clone(), path), &what, names.iter().copied())
        });
        let server_address = self.server_address.take().map(|address| {
            let resolved = scope.topology.resolve(address.get_ref());
            let parsed = resolved.and_then(|text| {
                text.parse()
                    .map_err(|_| format!("expected an address such as ${{server.eth0}}, got {text:?}"))
            });
            parsed.map_err(|message| (Some(address.span()), message))
        });
        Ok(Selection {
            server_address: server_address.transpose()?,
            paths: paths.collect::<Result<_, _>>()?,
            at,
            port: self.port.take().map(Spanned::into_inner),
            direction: self.direction.take().map(Spanned::into_inner),
            subflow: self.subflow.take().map(Spanned::into_inner),
        })
    }

    fn window(&mut self) -> Result<Window, MetricError> {
        let end = |text: Option<Spanned<String>>| text.map(|text| time(&text)).transpose();
        let place = self.to.as_ref().map(Spanned::span);
        let window = Window { from: end(self.from.take())?, to: end(self.to.take())? };
        match window {
            Window { from: Some(from), to: Some(to) } if from >= to => {
                Err((place, "expected a time after `from`, got none".into()))
            }
            window => Ok(window),
        }
    }

    fn statistic(&mut self) -> Statistic {
        self.statistic.take().map(Spanned::into_inner).unwrap_or_default()
    }

    fn step(&mut self, scope: &Scope) -> Result<String, MetricError> {
        match self.step.take() {
            Some(step) => one_of(step, "steps", scope.steps.iter().map(|step| step.name.as_str())),
            None => Ok(scope.steps[0].name.clone()),
        }
    }

    /// Rejects keys that the measure does not use, because they would have no effect.
    fn reject_unused_keys(&self) -> Result<(), MetricError> {
        macro_rules! spans {
            ($($key:ident)*) => { [$((stringify!($key), self.$key.as_ref().map(Spanned::span))),*] };
        }
        let keys = spans!(
            at port direction path server_address subflow statistic from to after step pointer field host counter document
            numerator denominator metrics numerator_variant denominator_variant numerator_value denominator_value
        );
        let keys = keys.into_iter().chain([("where", self.element.as_ref().map(Spanned::span))]);
        match keys.into_iter().find(|(_, span)| span.is_some()) {
            Some((key, span)) => Err((span, format!("expected a key that this measure takes, got `{key}`"))),
            None => Ok(()),
        }
    }
}

/// The metrics that a measure is derived from.
pub(super) fn operands(measure: &Measure) -> Operands {
    let operands = match measure {
        Measure::Ratio { of, to } => vec![of, to],
        Measure::Gain { of, over } => vec![of, over],
        Measure::Sum(of) => of.iter().collect(),
        _ => Vec::new(),
    };
    let metrics = operands.into_iter().filter_map(|operand| match operand {
        Operand::Metric { name, variant } => Some((name.clone(), variant.clone())),
        Operand::Number(_) => None,
    });
    metrics.collect()
}

/// Another metric, of the variant that differs from this one in the given parameters.
fn operand(
    name: Spanned<String>,
    variant: Option<Spanned<BTreeMap<String, Value>>>,
    scope: &Scope,
) -> Result<Operand, MetricError> {
    let name = one_of(name, "metrics above", scope.above.iter().map(|(name, _)| name.as_str()))?;
    let Some(variant) = variant else { return Ok(Operand::Metric { name, variant: Vec::new() }) };
    let mut parameters = scope.parameters.to_vec();
    let place = variant.span();
    for (changed, value) in variant.into_inner() {
        let known = parameters.iter_mut().find(|(parameter, _)| *parameter == changed);
        let (_, present) = known.ok_or_else(|| {
            let known = scope.parameter_names();
            (Some(place.clone()), format!("expected one of the parameters ({known}), got {changed:?}"))
        })?;
        *present = value;
    }
    Ok(Operand::Metric { name, variant: parameters })
}

fn required<T>(value: Option<T>, key: &str) -> Result<T, MetricError> {
    value.ok_or_else(|| (None, format!("expected the key `{key}`, which this measure needs, got none")))
}

fn time(text: &Spanned<String>) -> Result<Duration, MetricError> {
    plait_config::parse_time(text.get_ref()).map_err(|error| (Some(text.span()), error.to_string()))
}

fn one_of<'a>(
    name: Spanned<String>,
    what: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Result<String, MetricError> {
    if known.clone().any(|known| known == name.get_ref()) {
        return Ok(name.into_inner());
    }
    let known: Vec<_> = known.collect();
    Err((
        Some(name.span()),
        format!("expected one of the {what} ({}), got {:?}", known.join(", "), name.get_ref()),
    ))
}

/// Nothing, one item, or a list of items.
struct OneOrList<T>(Vec<T>);

impl<T> Default for OneOrList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// An item that is written as a table.
trait OneOrListItem: Sized {
    const EXPECTED: &'static str;
}

impl OneOrListItem for Paper {
    const EXPECTED: &'static str =
        "a table such as { value = 2.74, sigma = 0.09 }, or a list of them, each with `when`";
}

impl OneOrListItem for Expect {
    const EXPECTED: &'static str = "a table such as { at_least = 5.2 }, or a list of them, each with `when`";
}

impl<'de, T: Deserialize<'de> + OneOrListItem> Deserialize<'de> for OneOrList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrListVisitor(std::marker::PhantomData))
    }
}

struct OneOrListVisitor<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de> + OneOrListItem> Visitor<'de> for OneOrListVisitor<T> {
    type Value = OneOrList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Ok(OneOrList(vec![T::deserialize(serde::de::value::MapAccessDeserializer::new(map))?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(OneOrList(all))
    }
}
