//! Many flows, each over a connection of its own.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use plait_config::Rate;
use rand::RngExt as _;
use serde::Serialize;

use super::distribution::Distribution;
use super::request::{Request, connect};
use super::server::{MAX_CONNECTIONS, receive, send};
use super::sizes::{FlowSize, Sizes};
use crate::seed::Seed;

/// Flows of a low load that would begin later begin then: a year.
const LAST_ARRIVAL_S: f64 = 3.2e7;

/// Flows to be run.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Their sizes.
    pub sizes: Sizes,
    /// How many.
    pub count: u32,
    /// When they begin.
    pub arrivals: Arrivals,
    /// Who sends.
    pub direction: TransferDirection,
    /// Flows up to this size are summarised as small ones.
    pub small: FlowSize,
    /// The congestion control of their connections; `None`: the host's.
    pub congestion_control: Option<String>,
    /// How long a flow may wait for the network before it fails.
    pub timeout: Duration,
}

/// When flows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// At random times, independently of each other (Poisson), so that their payload has this mean rate in bits per second.
    #[serde(serialize_with = "bits_per_second")]
    Load(Rate),
    /// That many at a time: one begins when another is complete.
    Parallel(u32),
}

fn bits_per_second<S: serde::Serializer>(rate: &Rate, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(rate.bits_per_second())
}

/// Who sends a flow's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferDirection {
    /// The server.
    Download,
    /// The client.
    Upload,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct FlowsReport {
    /// The name of the distribution of sizes.
    pub sizes: String,
    /// Its mean, in bytes.
    pub mean_size_bytes: f64,
    /// When flows began.
    pub arrivals: Arrivals,
    /// Who sent.
    pub direction: TransferDirection,
    /// The seed of sizes and times.
    pub seed: u32,
    /// From the first flow's beginning to the last one's end.
    pub duration_s: f64,
    /// Payload of complete flows.
    pub bytes: u64,
    /// That over the duration.
    pub mbps: f64,
    /// How many flows failed.
    pub failed: usize,
    /// All flows.
    #[serde(flatten)]
    pub all: FlowsSummary,
    /// Those up to a size.
    pub small: FlowsSummary,
    /// The others.
    pub large: FlowsSummary,
    /// In the order in which they were to begin.
    pub flows: Vec<Flow>,
}

/// Complete flows of some sizes.
#[derive(Debug, Clone, Serialize)]
pub struct FlowsSummary {
    /// From connect() to the last byte.
    pub completion_ms: Distribution,
    /// The size over that time.
    pub throughput_mbps: Distribution,
}

/// A flow.
#[derive(Debug, Clone, Serialize)]
pub struct Flow {
    /// When it began, after the first one.
    pub start_s: f64,
    /// Its payload.
    pub size_bytes: u64,
    /// From connect() until the receiver had the last byte: at the client, of an upload, when it knew of that. `None` if it
    /// failed.
    pub completion_ms: Option<f64>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Workload {
    /// Runs the flows to a [`Server`](super::Server), and returns when all have ended. Flows fail by themselves; what failed
    /// is in the report.
    pub fn run(&self, server: SocketAddr, seed: Seed) -> FlowsReport {
        let planned = self.plan(seed);
        let started = Instant::now();
        let transfer = |size| self.transfer(server, size);
        let flows = match self.arrivals {
            Arrivals::Load(_) => run_at_times(&planned, started, &transfer),
            Arrivals::Parallel(parallel) => run_in_turn(&planned, parallel, started, &transfer),
        };
        self.report(flows, started.elapsed(), seed)
    }

    fn transfer(&self, server: SocketAddr, size: u64) -> io::Result<()> {
        let mut connection = connect(server, self.congestion_control.as_deref(), self.timeout)?;
        match self.direction {
            TransferDirection::Download => {
                Request::Download(size).write(&connection)?;
                receive(&connection, size)
            }
            TransferDirection::Upload => {
                Request::Upload(size).write(&connection)?;
                send(&connection, size)?;
                connection.read_exact(&mut [0])
            }
        }
    }

    fn plan(&self, seed: Seed) -> Vec<Planned> {
        let mut random = seed.generator("traffic");
        let sizes = self.sizes.sample(self.count, &mut random);
        let spacing = match self.arrivals {
            Arrivals::Load(load) => self.sizes.mean() * 8.0 / load.bits_per_second() as f64,
            Arrivals::Parallel(_) => 0.0,
        };
        let mut at = 0.0;
        let plan = |size| {
            let planned = Planned { at: Duration::from_secs_f64(f64::min(at, LAST_ARRIVAL_S)), size };
            // Exponentially distributed, as the times between the events of a Poisson process are.
            at -= spacing * (1.0 - random.random::<f64>()).ln();
            planned
        };
        sizes.into_iter().map(plan).collect()
    }

    fn report(&self, flows: Vec<Flow>, duration: Duration, seed: Seed) -> FlowsReport {
        let complete = || flows.iter().filter(|flow| flow.completion_ms.is_some());
        let bytes = complete().map(|flow| flow.size_bytes).sum();
        let limit = self.small.bytes();
        FlowsReport {
            sizes: self.sizes.name().into(),
            mean_size_bytes: self.sizes.mean(),
            arrivals: self.arrivals,
            direction: self.direction,
            seed: seed.0,
            duration_s: duration.as_secs_f64(),
            bytes,
            mbps: bytes as f64 * 8e-6 / duration.as_secs_f64(),
            failed: flows.len() - complete().count(),
            all: FlowsSummary::of(flows.iter()),
            small: FlowsSummary::of(flows.iter().filter(|flow| flow.size_bytes <= limit)),
            large: FlowsSummary::of(flows.iter().filter(|flow| flow.size_bytes > limit)),
            flows,
        }
    }
}

impl FlowsSummary {
    fn of<'a>(flows: impl Iterator<Item = &'a Flow>) -> Self {
        let complete: Vec<_> =
            flows.filter_map(|flow| Some((flow.size_bytes, flow.completion_ms?))).collect();
        Self {
            completion_ms: Distribution::of(complete.iter().map(|(_, ms)| *ms)),
            throughput_mbps: Distribution::of(complete.iter().map(|(size, ms)| *size as f64 * 8e-3 / ms)),
        }
    }
}

struct Planned {
    at: Duration,
    size: u64,
}

/// Runs each flow at its time, whether or not earlier ones are complete.
fn run_at_times(
    planned: &[Planned],
    started: Instant,
    transfer: &(impl Fn(u64) -> io::Result<()> + Sync),
) -> Vec<Flow> {
    let running = AtomicUsize::new(0);
    thread::scope(|scope| {
        let begin = |flow: &Planned| {
            thread::sleep((started + flow.at).saturating_duration_since(Instant::now()));
            begin(scope, flow.size, started, transfer, &running)
        };
        let begun: Vec<_> = planned.iter().map(begin).collect();
        begun
            .into_iter()
            .map(|flow| flow.unwrap_or_else(|flow| flow.join().expect("flows do not panic")))
            .collect()
    })
}

/// Begins a flow in a thread; the flow itself if it cannot begin.
fn begin<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    size: u64,
    started: Instant,
    transfer: &'env (impl Fn(u64) -> io::Result<()> + Sync),
    running: &'env AtomicUsize,
) -> Result<Flow, thread::ScopedJoinHandle<'scope, Flow>> {
    let failed = |error: io::Error| Flow {
        start_s: started.elapsed().as_secs_f64(),
        size_bytes: size,
        completion_ms: None,
        error: Some(error.to_string()),
    };
    if running.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
        let message = format!("expected at most {MAX_CONNECTIONS} flows at a time, got more");
        return Ok(failed(io::Error::other(message)));
    }
    let run = move || {
        let flow = timed(size, started, transfer);
        running.fetch_sub(1, Ordering::Relaxed);
        flow
    };
    running.fetch_add(1, Ordering::Relaxed);
    thread::Builder::new().spawn_scoped(scope, run).map_or_else(
        |error| {
            running.fetch_sub(1, Ordering::Relaxed);
            Ok(failed(error))
        },
        Err,
    )
}

/// Runs `parallel` flows at a time.
fn run_in_turn(
    planned: &[Planned],
    parallel: u32,
    started: Instant,
    transfer: &(impl Fn(u64) -> io::Result<()> + Sync),
) -> Vec<Flow> {
    let next = AtomicUsize::new(0);
    let flows = Mutex::new(Vec::with_capacity(planned.len()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(flow) = planned.get(index) else { break };
            let flow = timed(flow.size, started, transfer);
            flows.lock().unwrap_or_else(PoisonError::into_inner).push((index, flow));
        }
    };
    thread::scope(|scope| {
        for _ in 1..parallel {
            scope.spawn(work);
        }
        work();
    });
    let mut flows = flows.into_inner().unwrap_or_else(PoisonError::into_inner);
    flows.sort_by_key(|(index, _)| *index);
    flows.into_iter().map(|(_, flow)| flow).collect()
}

fn timed(size: u64, started: Instant, transfer: impl Fn(u64) -> io::Result<()>) -> Flow {
    let begun = Instant::now();
    let result = transfer(size);
    let took = begun.elapsed();
    Flow {
        start_s: begun.duration_since(started).as_secs_f64(),
        size_bytes: size,
        completion_ms: result.is_ok().then_some(took.as_secs_f64() * 1e3),
        error: result.err().map(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::*;

    fn workload(sizes: &str, count: u32, arrivals: Arrivals, direction: TransferDirection) -> Workload {
        let small = "10kB".parse().expect("a size");
        let sizes = sizes.parse().expect("sizes");
        Workload {
            sizes,
            count,
            arrivals,
            direction,
            small,
            congestion_control: None,
            timeout: Duration::from_secs(20),
        }
    }

    fn server() -> SocketAddr {
        let server = Server::listen(([127, 0, 0, 1], 0).into(), None).expect("a port");
        let address = server.address().expect("an address");
        thread::spawn(move || server.run());
        address
    }

    #[test]
    fn every_flow_is_carried_and_summarised() {
        let server = server();
        for direction in [TransferDirection::Download, TransferDirection::Upload] {
            for arrivals in [Arrivals::Parallel(4), Arrivals::Load(Rate::mbit(1000))] {
                let report = workload("1kB-30kB", 40, arrivals, direction).run(server, Seed(3));
                assert_eq!((report.failed, report.flows.len()), (0, 40), "{:?}", report.flows);
                assert_eq!(report.bytes, report.flows.iter().map(|flow| flow.size_bytes).sum::<u64>());
                assert_eq!((report.small.completion_ms.count, report.large.completion_ms.count), (12, 28));
                let longest = report.flows.iter().filter_map(|flow| flow.completion_ms).reduce(f64::max);
                assert_eq!(report.all.completion_ms.max, longest);
            }
        }
    }

    #[test]
    fn poisson_arrivals_have_the_load() {
        let load = Arrivals::Load(Rate::mbit(8));
        let planned = workload("10kB", 4000, load, TransferDirection::Download).plan(Seed(5));
        let gaps: Vec<_> =
            planned.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64() * 1e3).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        // 10 ms each; of an exponential distribution, mean and deviation are equal.
        assert!((mean - 10.0).abs() < 0.6 && (deviation - 10.0).abs() < 1.0, "{mean} {deviation}");
    }

    #[test]
    fn failures_are_reported_not_counted() {
        let closed = Server::listen(([127, 0, 0, 1], 0).into(), None).and_then(|server| server.address());
        let workload = workload("1kB", 3, Arrivals::Parallel(1), TransferDirection::Download);
        let report = workload.run(closed.expect("an address"), Seed(1));
        assert_eq!((report.failed, report.bytes, report.all.completion_ms.count), (3, 0, 0));
        assert!(report.flows.iter().all(|flow| flow.error.is_some()));
    }
}
