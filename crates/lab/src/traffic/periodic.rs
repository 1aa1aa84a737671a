//! Messages at a fixed interval over one connection.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use plait_trace::Jitter;
use serde::Serialize;

use super::distribution::Distribution;
use super::request::{Request, STAMP, connect, now};

/// Messages to be sent.
#[derive(Debug, Clone)]
pub struct Periodic {
    /// The time between two messages.
    pub interval: Duration,
    /// Bytes of a message.
    pub size: u16,
    /// For how long.
    pub duration: Duration,
    /// The delay above which a message is late.
    pub deadline: Option<Duration>,
    /// The congestion control of the connection; `None`: the host's.
    pub congestion_control: Option<String>,
    /// How long to wait for the network.
    pub timeout: Duration,
}

/// What was measured. Delays are from the time at which a message was due until the server's program had all of it, by the
/// clock of the machine, on which both have to run.
#[derive(Debug, Clone, Serialize)]
pub struct PeriodicReport {
    /// The time between two messages.
    pub interval_ms: f64,
    /// Bytes of a message.
    pub size_bytes: u16,
    /// Messages that were due.
    pub messages: usize,
    /// Those that did not arrive.
    pub lost: usize,
    /// The delays of the others.
    pub delay_ms: Distribution,
    /// How much the delays vary.
    pub jitter_ms: JitterMs,
    /// The longest time between two arrivals.
    pub longest_gap_ms: Option<f64>,
    /// The delay above which a message is late.
    pub deadline_ms: Option<f64>,
    /// The part of the messages that were late or lost.
    pub late_fraction: Option<f64>,
    /// Why the connection failed.
    pub error: Option<String>,
}

/// The interarrival jitter of RFC 3550, section 6.4.1, after each message. `None` with fewer than two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct JitterMs {
    /// The mean.
    pub mean: Option<f64>,
    /// The maximum.
    pub max: Option<f64>,
}

impl Periodic {
    /// Sends the messages to a [`Server`](super::Server).
    ///
    /// # Errors
    /// It cannot be connected to. Later errors are in the report.
    pub fn run(&self, server: SocketAddr) -> io::Result<PeriodicReport> {
        let mut connection = connect(server, self.congestion_control.as_deref(), self.timeout)?;
        Request::Messages(self.size).write(&connection)?;
        let reader = connection.try_clone()?;
        let receive = thread::Builder::new().name("stamps".into()).spawn(move || receive(&reader))?;
        let mut due = Vec::new();
        let sent = self.send(&mut connection, &mut due).and_then(|()| connection.shutdown(Shutdown::Write));
        let (arrived, received) = receive.join().expect("the reader does not panic");
        Ok(self.report(&due, &arrived, sent.and(received).err()))
    }

    fn send(&self, connection: &mut TcpStream, due: &mut Vec<u64>) -> io::Result<()> {
        let message = vec![0; self.size.into()];
        let started = now();
        let mut at = Duration::ZERO;
        while at < self.duration {
            let time = started + at.as_nanos() as u64;
            thread::sleep(Duration::from_nanos(time.saturating_sub(now())));
            due.push(time);
            connection.write_all(&message)?;
            at += self.interval;
        }
        Ok(())
    }

    fn report(&self, due: &[u64], arrived: &[u64], error: Option<io::Error>) -> PeriodicReport {
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let delays: Vec<_> =
            due.iter().zip(arrived).map(|(due, arrived)| ms(arrived.saturating_sub(*due))).collect();
        let deadline_ms = self.deadline.map(|deadline| deadline.as_secs_f64() * 1e3);
        let in_time = |deadline: f64| delays.iter().filter(|delay| **delay <= deadline).count() as f64;
        PeriodicReport {
            interval_ms: self.interval.as_secs_f64() * 1e3,
            size_bytes: self.size,
            messages: due.len(),
            lost: due.len() - delays.len(),
            jitter_ms: JitterMs::of(&delays),
            longest_gap_ms: arrived
                .windows(2)
                .map(|pair| ms(pair[1].saturating_sub(pair[0])))
                .reduce(f64::max),
            deadline_ms,
            late_fraction: deadline_ms
                .filter(|_| !due.is_empty())
                .map(|deadline| 1.0 - in_time(deadline) / due.len() as f64),
            delay_ms: Distribution::of(delays),
            error: error.map(|error| error.to_string()),
        }
    }
}

/// The times until the server closes the connection.
fn receive(mut connection: &TcpStream) -> (Vec<u64>, io::Result<()>) {
    let mut arrived = Vec::new();
    let mut stamp = [0; STAMP];
    loop {
        match connection.read_exact(&mut stamp) {
            Ok(()) => arrived.push(u64::from_be_bytes(stamp)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return (arrived, Ok(())),
            Err(error) => return (arrived, Err(error)),
        }
    }
}

impl JitterMs {
    fn of(delays: &[f64]) -> Self {
        let mut jitter = Jitter::default();
        for pair in delays.windows(2) {
            jitter.add((pair[1] - pair[0]) * 1e6);
        }
        let ms = |time: Duration| (jitter.samples() > 0).then_some(time.as_secs_f64() * 1e3);
        Self { mean: ms(jitter.mean()), max: ms(jitter.max()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::*;

    #[test]
    fn messages_arrive_at_the_interval() {
        let server = Server::listen(([127, 0, 0, 1], 0).into(), None).expect("a port");
        let address = server.address().expect("an address");
        thread::spawn(move || server.run());
        let (interval, duration) = (Duration::from_millis(10), Duration::from_millis(200));
        let timeout = Duration::from_secs(20);
        let periodic = Periodic {
            interval,
            size: 172,
            duration,
            deadline: Some(timeout),
            congestion_control: None,
            timeout,
        };
        let report = periodic.run(address).expect("a connection");
        assert_eq!((report.messages, report.lost, report.late_fraction), (20, 0, Some(0.0)), "{report:?}");
        assert_eq!(report.delay_ms.count, 20);
    }

    #[test]
    fn late_and_lost_messages_count() {
        let ms = |times: [u64; 4]| times.map(|ms| ms * 1_000_000);
        let second = Duration::from_secs(1);
        let deadline = Some(Duration::from_millis(150));
        let periodic = Periodic {
            interval: second,
            size: 1,
            duration: second,
            deadline,
            congestion_control: None,
            timeout: second,
        };
        let report = periodic.report(&ms([0, 20, 40, 60]), &ms([10, 30, 250, 0])[..3], None);
        assert_eq!((report.lost, report.late_fraction, report.longest_gap_ms), (1, Some(0.5), Some(220.0)));
        // Delays of 10, 10 and 210 ms: 0, and then 200 / 16.
        assert_eq!(report.jitter_ms, JitterMs { mean: Some(6.25), max: Some(12.5) });
    }
}
