//! How regularly the data of one side of a subflow arrives: jitter.

use std::time::Duration;

use crate::moments::Moments;

/// The arrivals of one side's packets with data, retransmissions included, at the capture nearest the receiver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrivals {
    /// Times between consecutive arrivals. Their standard deviation is the jitter of a flow that is sent periodically.
    pub interarrival: Moments,
    /// Interarrival jitter (RFC 3550 6.4.1); `None` without TCP timestamps, or if the unit of the sender's is unknown.
    pub jitter: Option<Jitter>,
}

/// Interarrival jitter as RFC 3550 6.4.1 defines it: the smoothed difference between the spacing of packets on arrival and
/// when they were sent. The sending times are those of TCP's timestamp option, with the resolution of the sender's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Jitter {
    samples: u64,
    /// In nanoseconds.
    current: f64,
    sum: f64,
    max: f64,
}

impl Jitter {
    /// Number of packets after the first.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// After the last packet.
    pub fn last(&self) -> Duration {
        duration(self.current)
    }

    /// The mean over all packets.
    pub fn mean(&self) -> Duration {
        duration(self.sum / self.samples.max(1) as f64)
    }

    /// The maximum over all packets.
    pub fn max(&self) -> Duration {
        duration(self.max)
    }

    /// Adds the difference between the spacings of two packets on arrival and when they were sent, in nanoseconds: that of their
    /// delays.
    pub fn add(&mut self, difference: f64) {
        // RFC 3550 A.8.
        self.current += (difference.abs() - self.current) / 16.0;
        self.samples += 1;
        self.sum += self.current;
        self.max = self.max.max(self.current);
    }
}

fn duration(nanoseconds: f64) -> Duration {
    Duration::from_nanos(nanoseconds.round() as u64)
}
