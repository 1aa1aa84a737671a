//! Sends SYNs by one path and receives what answers them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use plait_linux::packets::{PacketTap, RawSender};

use crate::syn::{Answer, Syn, SynKind};

/// What became of a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it was seen on the interface.
    pub left: bool,
    /// Whether a firewall rule of this host refused it.
    pub blocked: bool,
    /// What answered it.
    pub answer: Option<Answer>,
    /// Time between the SYN on the interface and the answer to it.
    pub rtt: Option<Duration>,
}

impl Outcome {
    /// Whether waiting for an answer makes sense.
    fn is_pending(&self) -> bool {
        self.answer.is_none() && !self.blocked
    }

    /// Whether the destination answered.
    pub fn answered(&self) -> bool {
        matches!(self.answer, Some(Answer::Accepted { .. } | Answer::Reset { .. }))
    }
}

/// Probes one path to a destination.
#[derive(Debug)]
pub(crate) struct Prober<'a> {
    tap: &'a PacketTap,
    sender: RawSender,
    source: IpAddr,
    pub(crate) destination: SocketAddr,
    if_index: u32,
    next_port: u16,
}

impl<'a> Prober<'a> {
    pub(crate) fn open(
        tap: &'a PacketTap,
        source: IpAddr,
        if_index: u32,
        destination: SocketAddr,
    ) -> io::Result<Prober<'a>> {
        let sender = RawSender::open(source, if_index)?;
        // Ports differ between runs: a router or firewall may remember those of the previous one.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let next_port = PORTS.start + (now.subsec_micros() % u32::from(PORTS.end - PORTS.start)) as u16;
        Ok(Prober { tap, sender, source, destination, if_index, next_port })
    }

    /// A SYN from a port of its own.
    pub(crate) fn syn(&mut self, kind: SynKind) -> Syn {
        let port = self.next_port;
        self.next_port = if port + 1 == PORTS.end { PORTS.start } else { port + 1 };
        let source = SocketAddr::new(self.source, port);
        Syn { source, destination: self.destination, kind, hop_limit: 64, length: None }
    }

    /// Sends SYNs, and those that are not answered within `wait` again, `attempts` times in all.
    pub(crate) fn exchange(&self, syns: &[Syn], attempts: u32, wait: Duration) -> io::Result<Vec<Outcome>> {
        let mut outcomes = vec![Outcome::default(); syns.len()];
        let mut sent = vec![None; syns.len()];
        for _ in 0..attempts {
            for (syn, outcome) in syns.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_pending()) {
                if let Err(error) = self.sender.send(&syn.packet(), self.destination.ip()) {
                    outcome.blocked |= error.kind() == io::ErrorKind::PermissionDenied;
                }
            }
            let deadline = Instant::now() + wait;
            while outcomes.iter().any(Outcome::is_pending) {
                let Some(packet) = self.tap.next(deadline)? else { break };
                let now = Instant::now();
                for ((syn, outcome), sent) in syns.iter().zip(&mut outcomes).zip(&mut sent) {
                    if packet.outgoing {
                        if packet.if_index == self.if_index && syn.is(&packet.bytes) {
                            outcome.left = true;
                            *sent = Some(now);
                        }
                    } else if outcome.answer.is_none() {
                        outcome.answer = syn.answer(&packet.bytes);
                        outcome.rtt = outcome.answer.and(*sent).map(|sent| now - sent);
                    }
                }
            }
        }
        Ok(outcomes)
    }
}

/// Below Linux's default range of ephemeral ports (`net.ipv4.ip_local_port_range`), so that no other program's connection has
/// such a port.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
