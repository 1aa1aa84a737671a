//! The backend `none`: a veth pair between two namespaces.

use std::io::PipeWriter;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use plait_linux::netns::NetNs;

use crate::backend::Backend;
use crate::command::{InterfaceCounters, counters, ip, path_of, run};
use crate::endpoint::End;
use crate::error::Error;
use crate::spec::{Change, DirectionSpec, LinkSpec, Medium, Pace};
use crate::statistics::{Counters, Statistics};

/// A running link.
#[derive(Debug)]
pub(crate) struct VethLink {
    a: (NetNs, String),
    b: (NetNs, String),
    _guard: Guard,
}

impl VethLink {
    pub(crate) fn check(spec: &LinkSpec) -> Result<(), Error> {
        for direction in [&spec.a_to_b, &spec.b_to_a] {
            let DirectionSpec { pace, delay, jitter, loss, duplication, queue, red } = direction;
            let wire = DirectionSpec::default();
            let asked = [
                (*pace != Pace::Unlimited, "rate"),
                (!delay.is_zero(), "delay"),
                (!jitter.deviation.is_zero(), "jitter"),
                (*loss != wire.loss, "loss"),
                (*duplication != wire.duplication, "duplication"),
                (queue.is_some(), "queue"),
                (*red, "red"),
            ];
            if let Some((_, property)) = asked.into_iter().find(|(asked, _)| *asked) {
                return Err(unsupported(property));
            }
        }
        match spec.medium {
            Medium::FullDuplex => Ok(()),
            Medium::HalfDuplex { .. } => Err(unsupported("a shared medium (half duplex)")),
        }
    }

    /// Rejects every change. The carrier of one end follows the state of the other, which belongs to the user of the
    /// link.
    pub(crate) fn check_change(change: &Change) -> Result<(), Error> {
        Err(unsupported(match change {
            Change::Blackhole | Change::Restore => "blackhole",
            Change::Carrier(_) => "carrier changes",
            Change::Adjust(..) => "adjustments",
        }))
    }

    pub(crate) fn start(spec: &LinkSpec, a: End<'_>, b: End<'_>) -> Result<Self, Error> {
        add_pair(a, b, spec.mtu)?;
        let guard = Guard::of(a)?;
        for end in [a, b] {
            run(Some(end.namespace), ip(["link", "set", "dev", end.interface, "up"]))?;
        }
        let open =
            |end: End<'_>| -> Result<_, Error> { Ok((reopen(end.namespace)?, end.interface.to_owned())) };
        Ok(Self { a: open(a)?, b: open(b)?, _guard: guard })
    }

    pub(crate) fn statistics(&self) -> Result<Statistics, Error> {
        let [a, b] = [counters(&self.a.0, &self.a.1)?, counters(&self.b.0, &self.b.1)?];
        Ok(Statistics { a_to_b: crossed(&a, &b), b_to_a: crossed(&b, &a), lateness: None })
    }
}

fn crossed(from: &InterfaceCounters, to: &InterfaceCounters) -> Counters {
    Counters {
        frames_in: from.tx_frames,
        bytes_in: from.tx_bytes,
        frames_out: to.rx_frames,
        bytes_out: to.rx_bytes,
        ..Counters::default()
    }
}

/// Adds a veth pair with these ends, both down.
pub(crate) fn add_pair(a: End<'_>, b: End<'_>, mtu: u16) -> Result<(), Error> {
    let (a_path, b_path, mtu) = (path_of(a.namespace), path_of(b.namespace), mtu.to_string());
    let first = ["link", "add", "name", a.interface, "netns", &a_path, "mtu", &mtu, "type", "veth"];
    let second = ["peer", "name", b.interface, "netns", &b_path, "mtu", &mtu];
    run(None, ip(first.into_iter().chain(second))).map(drop)
}

/// Opens the same namespace once more.
pub(crate) fn reopen(namespace: &NetNs) -> Result<NetNs, Error> {
    let opened = NetNs::at(path_of(namespace).as_ref());
    opened.map_err(Error::refused("open a network namespace again"))
}

/// Removes an interface when dropped, and also if this process is killed: a shell waits until a pipe that this
/// process holds open is closed.
#[derive(Debug)]
struct Guard {
    shell: Child,
    pipe: Option<PipeWriter>,
}

impl Guard {
    fn of(end: End<'_>) -> Result<Self, Error> {
        let refused = Error::refused(format!("guard the interface {}", end.interface));
        let (read, write) = std::io::pipe().map_err(&refused)?;
        let mut shell = Command::new("sh");
        // The name is passed as an argument, so that the shell does not interpret it.
        shell.args(["-c", "read -r _; exec ip link delete dev \"$1\"", "plait-emulator", end.interface]);
        // In its own process group, so that a Ctrl-C on the terminal does not end it too early.
        shell.process_group(0).stdin(read).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = end.namespace.run(|| shell.spawn()).map_err(&refused)?.map_err(&refused)?;
        Ok(Self { shell, pipe: Some(write) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.shell.wait();
    }
}

fn unsupported(property: &str) -> Error {
    Error::Unsupported { backend: Backend::None, property: property.into() }
}
