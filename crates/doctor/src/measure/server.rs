//! The other end of a measurement. A connection starts with a request line:
//!
//! ```text
//! send MILLISECONDS      the server sends zeros for that long, and closes
//! receive                the server reads to the end, then sends "BYTES MICROSECONDS\n", from the first byte to the last
//! syn                    the server sends the connection's SYN as it arrived, in hexadecimal, and a newline
//! wait SECONDS           the server sends one byte after that time
//! ```
//!
//! Anybody who can connect can use it: requests are limited in time, and connections in number.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::saved_syn;

/// Answers measurements until accepting fails.
///
/// # Errors
/// Accepting failed.
pub fn serve(listener: &TcpListener) -> io::Result<()> {
    saved_syn::save(listener)?;
    let active = AtomicUsize::new(0);
    thread::scope(|scope| {
        loop {
            let (connection, _) = match listener.accept() {
                Ok(accepted) => accepted,
                // The peer has reset it already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            if active.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                active.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let answer = || {
                // A peer that goes away, or sends something else, is its own loss.
                let _ = answer(connection);
                active.fetch_sub(1, Ordering::Relaxed);
            };
            thread::Builder::new().spawn_scoped(scope, answer)?;
        }
    })
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(IO_TIMEOUT))?;
    connection.set_write_timeout(Some(IO_TIMEOUT))?;
    let request = read_line(&mut connection, MAX_REQUEST)?;
    match Request::parse(&request) {
        Some(Request::Send(duration)) => send(&mut connection, duration)?,
        Some(Request::Receive) => receive(&mut connection)?,
        Some(Request::Syn) => {
            let line = hex::encode(saved_syn::take(&connection)?) + "\n";
            connection.write_all(line.as_bytes())?;
        }
        Some(Request::Wait(time)) => {
            thread::sleep(time);
            connection.write_all(b"\n")?;
        }
        None => {}
    }
    connection.shutdown(Shutdown::Write)
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Send(Duration),
    Receive,
    Syn,
    Wait(Duration),
}

impl Request {
    fn parse(line: &str) -> Option<Request> {
        Some(match line.split(' ').collect::<Vec<_>>()[..] {
            ["send", time] => Request::Send(Duration::from_millis(time.parse().ok()?).min(MAX_DURATION)),
            ["receive"] => Request::Receive,
            ["syn"] => Request::Syn,
            ["wait", time] => Request::Wait(Duration::from_secs(time.parse().ok()?).min(MAX_IDLE)),
            _ => return None,
        })
    }
}

fn send(connection: &mut TcpStream, duration: Duration) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < duration {
        connection.write_all(&BLOCK)?;
    }
    Ok(())
}

fn receive(connection: &mut TcpStream) -> io::Result<()> {
    let start = Instant::now();
    let Received { bytes, time } = read_all(connection, start + MAX_DURATION)?;
    connection.write_all(format!("{bytes} {}\n", time.as_micros()).as_bytes())
}

/// What was received.
pub(super) struct Received {
    pub(super) bytes: u64,
    /// From the first byte to the last.
    pub(super) time: Duration,
}

/// Reads until the end of the stream or the deadline.
pub(super) fn read_all(connection: &mut TcpStream, deadline: Instant) -> io::Result<Received> {
    let mut buffer = vec![0; BLOCK.len()];
    let (mut bytes, mut first, mut last) = (0, None, None);
    while Instant::now() < deadline {
        let length = connection.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        // The first read starts the clock, so its bytes do not count.
        match first {
            None => first = Some(Instant::now()),
            Some(_) => bytes += length as u64,
        }
        last = Some(Instant::now());
    }
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(Received { bytes, time })
}

/// Reads a line of at most `max` bytes, without its newline.
pub(super) fn read_line(connection: &mut TcpStream, max: usize) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < max {
        if connection.read(&mut byte)? == 0 || byte == *b"\n" {
            break;
        }
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

pub(super) static BLOCK: [u8; 64 << 10] = [0; 64 << 10];
/// Longer than a TCP retransmission or two.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: usize = 64;
const MAX_REQUEST: usize = 32;
/// The longest transfer that a server takes part in.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(60);
/// The longest idle time. RFC 5382 (section 5) asks translators for 2 h 4 min, and few comply.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(3 * 3600);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_limited_in_time() {
        assert_eq!(Request::parse("send 5000"), Some(Request::Send(Duration::from_secs(5))));
        assert_eq!(Request::parse("send 999999999"), Some(Request::Send(MAX_DURATION)));
        assert_eq!(Request::parse("wait 999999999"), Some(Request::Wait(MAX_IDLE)));
        for wrong in ["", "send", "send -1", "send 5000 ", "receive 1", "GET / HTTP/1.1"] {
            assert_eq!(Request::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_requests_do_not_panic(line: String) {
            let _ = Request::parse(&line);
        }
    }
}
