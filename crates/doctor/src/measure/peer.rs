//! Measurements with a server, each on a TCP connection by one interface.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::mptcp::stream_socket;
use plait_linux::packets::PacketTap;
use plait_wire::tcp::TcpOption;
use plait_wire::{ipv4, mptcp};
use socket2::{Domain, Socket, Type};

use super::PeerPlan;
use super::document::{Idle, OptionArrival, PeerMeasurement};
use super::server::{BLOCK, IO_TIMEOUT, MAX_DURATION, MAX_IDLE, read_all, read_line};
use crate::facts::Path;
use crate::syn::{is_syn, segment};

/// Measures what a server helps with.
pub(super) fn measure(tap: &PacketTap, target: SocketAddr, path: &Path, plan: &PeerPlan) -> PeerMeasurement {
    let mut measured = PeerMeasurement::default();
    let peer = Peer { target, path };
    let duration = plan.duration.min(MAX_DURATION);
    let result = peer
        .options(tap, &mut measured)
        .and_then(|()| peer.download(duration))
        .map(|rate| measured.download_bit_per_s = Some(rate))
        .and_then(|()| peer.upload(duration))
        .map(|rate| measured.upload_bit_per_s = Some(rate));
    match result {
        Ok(()) => measured.idle = plan.idle.map(|longest| peer.idle(longest.min(MAX_IDLE))),
        Err(error) => {
            measured.error = Some(format!("{error}; is `plait probe --listen` running at {target}?"));
        }
    }
    measured
}

struct Peer<'a> {
    target: SocketAddr,
    path: &'a Path,
}

impl Peer<'_> {
    /// Connects by the path's interface, and sends a request.
    fn request(&self, socket: Socket, line: &str) -> io::Result<TcpStream> {
        socket.bind_device(Some(self.path.interface.as_bytes()))?;
        socket.bind(&SocketAddr::new(self.path.address, 0).into())?;
        socket.connect_timeout(&self.target.into(), IO_TIMEOUT)?;
        socket.set_read_timeout(Some(IO_TIMEOUT))?;
        socket.set_write_timeout(Some(IO_TIMEOUT))?;
        let mut connection = TcpStream::from(socket);
        connection.write_all(format!("{line}\n").as_bytes())?;
        Ok(connection)
    }

    fn tcp(&self) -> io::Result<Socket> {
        Socket::new(Domain::for_address(self.target), Type::STREAM, Some(socket2::Protocol::TCP))
    }

    fn download(&self, duration: Duration) -> io::Result<f64> {
        let mut connection = self.request(self.tcp()?, &format!("send {}", duration.as_millis()))?;
        let received = read_all(&mut connection, Instant::now() + duration + IO_TIMEOUT)?;
        rate(received.bytes, received.time)
    }

    fn upload(&self, duration: Duration) -> io::Result<f64> {
        let mut connection = self.request(self.tcp()?, "receive")?;
        let start = Instant::now();
        while start.elapsed() < duration {
            connection.write_all(&BLOCK)?;
        }
        connection.shutdown(Shutdown::Write)?;
        let answer = read_line(&mut connection, 64)?;
        let numbers =
            answer.split_once(' ').and_then(|(bytes, time)| Some((bytes.parse().ok()?, time.parse().ok()?)));
        let (bytes, micros) =
            numbers.ok_or_else(|| invalid(format!("expected BYTES MICROSECONDS, got {answer:?}")))?;
        rate(bytes, Duration::from_micros(micros))
    }

    /// Compares the SYN of an MPTCP socket, as it left this host, with what arrived.
    fn options(&self, tap: &PacketTap, measured: &mut PeerMeasurement) -> io::Result<()> {
        while tap.next(Instant::now())?.is_some() {}
        let (socket, _) = stream_socket(Domain::for_address(self.target))?;
        let mut connection = self.request(socket, "syn")?;
        let local = connection.local_addr()?;
        let line = read_line(&mut connection, 2 * 512)?;
        let arrived = hex::decode(&line)
            .map_err(|_| invalid(format!("expected a SYN in hexadecimal, got {line:?}")))?;
        let mut sent = None;
        while let Some(packet) = tap.next(Instant::now())? {
            let ours = packet.outgoing
                && segment(&packet.bytes).is_some_and(|segment| {
                    segment.source == local && segment.destination == self.target && is_syn(&segment.tcp)
                });
            if ours {
                sent = sent.or(Some(packet.bytes));
            }
        }
        let sent = sent.ok_or_else(|| invalid("the SYN was not seen on the interface".into()))?;
        let compared =
            compare(&sent, &arrived).ok_or_else(|| invalid("expected a SYN, got another packet".into()))?;
        measured.options = compared.options;
        measured.translated = Some(compared.translated);
        measured.routers = compared.routers;
        Ok(())
    }

    /// Tries idle times up to `longest`, each half of the next one, on connections side by side.
    fn idle(&self, longest: Duration) -> Idle {
        let times: Vec<u64> =
            (0..8).map(|halvings| longest.as_secs() >> halvings).filter(|time| *time > 0).collect();
        let survived: Vec<(u64, bool)> = thread::scope(|scope| {
            let tries: Vec<_> = times
                .into_iter()
                .map(|time| (time, scope.spawn(move || self.survives(time).unwrap_or(false))))
                .collect();
            tries.into_iter().map(|(time, tried)| (time, tried.join().unwrap_or(false))).collect()
        });
        let forgotten_s = survived.iter().filter(|(_, survived)| !survived).map(|(time, _)| *time).min();
        let shorter = |time: u64| forgotten_s.is_none_or(|forgotten| time < forgotten);
        let survived_s = survived
            .iter()
            .filter(|(time, survived)| *survived && shorter(*time))
            .map(|(time, _)| *time)
            .max();
        Idle { survived_s, forgotten_s }
    }

    fn survives(&self, seconds: u64) -> io::Result<bool> {
        let mut connection = self.request(self.tcp()?, &format!("wait {seconds}"))?;
        connection.set_read_timeout(Some(Duration::from_secs(seconds) + IO_TIMEOUT))?;
        let mut byte = [0];
        Ok(io::Read::read(&mut connection, &mut byte)? == 1)
    }
}

fn rate(bytes: u64, time: Duration) -> io::Result<f64> {
    if bytes == 0 || time.is_zero() {
        return Err(invalid(format!("expected data, got {bytes} bytes")));
    }
    Ok(bytes as f64 * 8.0 / time.as_secs_f64())
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// What middleboxes did to a SYN.
struct SynChanges {
    options: Vec<OptionArrival>,
    translated: bool,
    routers: Option<u8>,
}

/// Compares a SYN as it was sent with the same as it arrived; `None` if one is no TCP segment.
fn compare(sent: &[u8], arrived: &[u8]) -> Option<SynChanges> {
    let (before, after) = (segment(sent)?, segment(arrived)?);
    let arrived_options: Vec<TcpOption> = after.tcp.options().flatten().collect();
    let options = before.tcp.options().flatten().filter_map(|option| {
        let (kind, name) = name(&option)?;
        let arrived =
            arrived_options.iter().any(|other| self::name(other).is_some_and(|(other, _)| other == kind));
        Some(OptionArrival { kind, name, arrived, unchanged: arrived_options.contains(&option) })
    });
    Some(SynChanges {
        options: options.collect(),
        translated: before.source.ip() != after.source.ip(),
        routers: hop_limit(sent)?.checked_sub(hop_limit(arrived)?),
    })
}

fn hop_limit(packet: &[u8]) -> Option<u8> {
    match packet.first()? >> 4 {
        4 => packet.get(..ipv4::MIN_HEADER_LEN)?.get(8).copied(),
        _ => packet.get(7).copied(),
    }
}

/// The kind and name of an option; `None` for padding.
fn name(option: &TcpOption) -> Option<(u8, String)> {
    let known = |kind, name: &str| Some((kind, name.to_owned()));
    match option {
        TcpOption::NoOperation => None,
        TcpOption::MaxSegmentSize(_) => known(2, "maximum segment size"),
        TcpOption::WindowScale(_) => known(3, "window scale"),
        TcpOption::SackPermitted => known(4, "SACK permitted"),
        TcpOption::Sack(_) => known(5, "SACK"),
        TcpOption::Timestamps { .. } => known(8, "timestamps"),
        TcpOption::Mptcp(_) => known(mptcp::KIND, "MPTCP"),
        TcpOption::Experimental(_) => known(254, "experimental"),
        TcpOption::Unknown(unknown) => Some((unknown.kind(), format!("kind {}", unknown.kind()))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::syn::{Syn, SynKind};

    fn syn(source: &str, kind: SynKind, hop_limit: u8) -> Vec<u8> {
        let destination = "198.51.100.1:443".parse().unwrap();
        Syn { source: source.parse().unwrap(), destination, kind, hop_limit, length: None }.packet()
    }

    #[test]
    fn comparison_shows_what_middleboxes_did() {
        let sent = syn("192.0.2.1:1000", SynKind::Capable, 64);
        let arrived = syn("203.0.113.1:2000", SynKind::Tcp, 60);
        let compared = compare(&sent, &arrived).unwrap();
        assert!(compared.translated);
        assert_eq!(compared.routers, Some(4));
        let lost: Vec<_> =
            compared.options.iter().filter(|option| !option.arrived).map(|option| option.kind).collect();
        assert_eq!(lost, [30]);
        assert!(compared.options.iter().filter(|option| option.arrived).all(|option| option.unchanged));
    }

    proptest! {
        #[test]
        fn arbitrary_answers_do_not_panic(arrived: Vec<u8>) {
            let _ = compare(&syn("192.0.2.1:1000", SynKind::Capable, 64), &arrived);
        }
    }
}
