//! The output of a running program.
//!
//! Uses a pipe instead of a file: a program confined by AppArmor, such as tcpdump on many systems, may not inherit
//! files that its profile does not allow.

use std::fs::File;
use std::io::{Read, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The maximum output kept in memory. Further output is read, so that the program does not block, and discarded.
const MAX_KEPT: usize = 1 << 20;
const MAX_LOGGED: usize = 64 << 20;
/// How long to wait for the end of the output after the program's end. A process that outlives the program may hold
/// the pipe open forever.
const REST_LIMIT: Duration = Duration::from_secs(1);

/// An output stream of a program.
#[derive(Debug)]
pub(crate) struct Output {
    written: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Output {
    /// Reads `pipe` until it is closed, and copies the first 64 MiB to `log`.
    pub(crate) fn of(mut pipe: impl Read + Send + 'static, mut log: Option<File>) -> Self {
        let written = Arc::new(Mutex::new(Vec::new()));
        let kept = written.clone();
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            let mut loggable = MAX_LOGGED;
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                let logged = n.min(loggable);
                loggable -= logged;
                if log.as_mut().is_some_and(|log| log.write_all(&buffer[..logged]).is_err()) {
                    log = None;
                }
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_KEPT - kept.len();
                kept.extend_from_slice(&buffer[..n.min(room)]);
            }
        });
        Self { written, reader }
    }

    /// The output so far.
    pub(crate) fn text(&self) -> String {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).into_owned()
    }

    /// Waits until all output of an ended program has been read.
    pub(crate) fn wait_for_rest(&self) {
        let end = Instant::now() + REST_LIMIT;
        while !self.reader.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_written_up_to_a_bound() {
        let output = Output::of(&b"some words"[..], None);
        output.wait_for_rest();
        assert_eq!(output.text(), "some words");

        let output = Output::of(std::io::repeat(b'x').take(3 * MAX_KEPT as u64), None);
        output.wait_for_rest();
        assert!(output.reader.is_finished(), "what is too much is read nevertheless");
        assert_eq!(output.text().len(), MAX_KEPT);
    }
}
