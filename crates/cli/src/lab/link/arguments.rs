//! Arguments of `plait lab link`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use plait_emulator::{
    Adjustment, Backend, Change, DirectionSpec, Jitter, LinkSpec, Loss, Medium, Pace, Probability, Queue,
    Rate, Toward, Trace,
};

const AFTER_HELP: &str =
    "PROPERTIES: NAME=VALUE,... of rate, trace, delay, jitter, loss, duplicate, queue, red
WHAT: blackhole, restore, carrier-down, carrier-up, [a-to-b:|b-to-a:]PROPERTIES";

/// Arguments of `plait lab link`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// One end: a namespace (name or path), and the interface to create
    #[arg(long, value_name = "NETNS:IFACE")]
    pub(super) a: LinkEnd,
    /// The other end
    #[arg(long, value_name = "NETNS:IFACE")]
    pub(super) b: LinkEnd,
    /// emu, netem or none [default: the first that supports the link]
    #[arg(long, value_name = "NAME")]
    pub(super) backend: Option<Backend>,
    /// Such as 20mbit [default: unlimited]
    #[arg(long, conflicts_with = "trace")]
    rate: Option<Rate>,
    /// Instead of a rate: delivery opportunities, as mahimahi's
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// One-way delay, such as 10ms
    #[arg(long, value_name = "TIME", value_parser = plait_config::parse_delay)]
    delay: Option<Duration>,
    /// Deviation of the delay; with TIME:reorder, frames overtake
    #[arg(long, value_name = "TIME")]
    jitter: Option<Jitter>,
    /// Such as 1%; in bursts ENTER:LEAVE[:IN_GOOD:IN_BAD]
    #[arg(long, value_name = "LOSS")]
    loss: Option<Loss>,
    /// Probability of duplication, such as 0.1%
    #[arg(long, value_name = "P")]
    duplicate: Option<Probability>,
    /// Queue size, such as 30kB [default: 100 ms of the rate]
    #[arg(long, value_name = "BYTES")]
    queue: Option<Queue>,
    /// Random early detection: drop frames before the queue is full
    #[arg(long)]
    red: bool,
    /// Other properties from a to b, such as rate=1mbit,delay=5ms
    #[arg(long, value_name = "PROPERTIES", value_parser = adjustment)]
    a_to_b: Option<Adjustment>,
    /// Other properties from b to a
    #[arg(long, value_name = "PROPERTIES", value_parser = adjustment)]
    b_to_a: Option<Adjustment>,
    /// Shared medium with this overhead per frame (802.11)
    #[arg(long, value_name = "TIME", value_parser = plait_config::parse_delay)]
    half_duplex: Option<Duration>,
    /// Largest IP packet, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: u16,
    /// Seed of loss, duplication and jitter with the backend emu, to repeat a run [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// A scheduled change, such as 16s:blackhole; may be repeated
    #[arg(long, value_name = "TIME:WHAT")]
    pub(super) at: Vec<Timed>,
    /// Stop after this time instead of at Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = plait_config::parse_time)]
    pub(super) duration: Option<Duration>,
    /// Fail if the 99th percentile of lateness exceeds this
    #[arg(long, value_name = "TIME", value_parser = plait_config::parse_delay)]
    pub(super) lateness_limit: Option<Duration>,
    /// Print counters as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    pub(super) fn spec(&self) -> anyhow::Result<LinkSpec> {
        let trace = self.trace.as_deref().map(Trace::read).transpose()?;
        let each = Adjustment {
            pace: trace.map(|trace| Pace::Trace(Arc::new(trace))).or(self.rate.map(Pace::Rate)),
            delay: self.delay,
            jitter: self.jitter,
            loss: self.loss,
            duplication: self.duplicate,
            queue: self.queue.map(Queue::bytes),
            red: Some(self.red),
        };
        let each = DirectionSpec::default().adjusted(&each);
        let adjusted =
            |to: &Option<Adjustment>| to.as_ref().map_or_else(|| each.clone(), |to| each.adjusted(to));
        let medium =
            self.half_duplex.map_or(Medium::FullDuplex, |per_frame| Medium::HalfDuplex { per_frame });
        Ok(LinkSpec {
            a_to_b: adjusted(&self.a_to_b),
            b_to_a: adjusted(&self.b_to_a),
            medium,
            mtu: self.mtu,
            seed: self.seed,
        })
    }
}

/// An end of the link.
#[derive(Clone)]
pub(super) struct LinkEnd {
    pub(super) namespace: String,
    pub(super) interface: String,
}

impl FromStr for LinkEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((namespace, interface)) if !namespace.is_empty() && !interface.is_empty() => {
                Ok(Self { namespace: namespace.into(), interface: interface.into() })
            }
            _ => Err(format!("expected NETNS:IFACE, such as client:lte0, got {text:?}")),
        }
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.namespace, self.interface)
    }
}

/// A change, and when after the link is ready.
#[derive(Clone)]
pub(super) struct Timed {
    pub(super) at: Duration,
    pub(super) change: Change,
    pub(super) text: String,
}

impl FromStr for Timed {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let Some((at, what)) = given.split_once(':') else {
            return Err(format!("expected TIME:WHAT, such as 16s:blackhole, got {given:?}"));
        };
        let at = plait_config::parse_time(at).map_err(|error| error.to_string())?;
        Ok(Self { at, change: change(what)?, text: given.into() })
    }
}

/// Properties; the path of a trace is relative to the current directory.
fn adjustment(text: &str) -> Result<Adjustment, plait_emulator::Error> {
    Adjustment::parse(text, Path::new(""))
}

fn change(what: &str) -> Result<Change, String> {
    let (toward, properties) = match what.split_once(':') {
        Some(("a-to-b", rest)) => (Toward::B, rest),
        Some(("b-to-a", rest)) => (Toward::A, rest),
        _ => (Toward::Each, what),
    };
    match what {
        "blackhole" => Ok(Change::Blackhole),
        "restore" => Ok(Change::Restore),
        "carrier-down" => Ok(Change::Carrier(false)),
        "carrier-up" => Ok(Change::Carrier(true)),
        _ if properties.contains('=') => match adjustment(properties) {
            Ok(to) => Ok(Change::Adjust(toward, to)),
            Err(error) => Err(error.to_string()),
        },
        _ => Err(format!(
            "expected blackhole, restore, carrier-down, carrier-up or properties such as rate=1mbit, got {what:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_a_namespace_and_an_interface() {
        let end: LinkEnd = "/proc/1/ns/net:lte0".parse().expect("a path is a namespace, too");
        assert_eq!((end.namespace.as_str(), end.interface.as_str()), ("/proc/1/ns/net", "lte0"));
        for text in ["", "lte0", ":lte0", "client:"] {
            assert!(text.parse::<LinkEnd>().is_err_and(|error| error.contains(&format!("got {text:?}"))));
        }
    }

    #[test]
    fn a_change_has_a_time_and_a_direction() {
        let change = |text: &str| text.parse::<Timed>().map(|timed| (timed.at.as_millis(), timed.change));
        assert_eq!(change("16s:blackhole"), Ok((16_000, Change::Blackhole)));
        assert_eq!(change("500ms:carrier-up"), Ok((500, Change::Carrier(true))));
        let slower = Adjustment { pace: Some(Pace::Rate(Rate::mbit(1))), ..Adjustment::default() };
        assert_eq!(change("1m:rate=1mbit"), Ok((60_000, Change::Adjust(Toward::Each, slower.clone()))));
        assert_eq!(change("0s:a-to-b:rate=1mbit"), Ok((0, Change::Adjust(Toward::B, slower))));
        for (text, found) in [
            ("16s", "16s"),
            ("soon:blackhole", "soon"),
            ("1s:cut", "cut"),
            ("1s:a-to-c:rate=1mbit", "a-to-c:rate=1mbit"),
        ] {
            let error = change(text).expect_err(text);
            assert!(error.starts_with("expected ") && error.contains(&format!("got {found:?}")), "{error}");
        }
    }
}
