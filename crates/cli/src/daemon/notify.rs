//! Tells the service manager how the daemon is (`sd_notify(3)`). Without one, nothing happens.

use std::env;
use std::fmt::Write as _;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use sd_notify::NotifyState;

/// The service manager's socket, opened while this process has access to it.
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// The interval in which it expects a sign of life, if it does.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to it, if there is one.
    pub(super) fn connect() -> ServiceManager {
        let socket = env::var_os("NOTIFY_SOCKET").map(|path| -> io::Result<UnixDatagram> {
            let socket = UnixDatagram::unbound()?;
            match path.as_bytes() {
                [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
                _ => socket.connect(path)?,
            }
            // A notification must not block the daemon.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let socket = socket.transpose().unwrap_or_else(|error| {
            tracing::warn!("cannot notify the service manager: {error}");
            None
        });
        ServiceManager { socket, watchdog: watchdog_interval() }
    }

    /// That of a replaced daemon, unless this one has its own.
    pub(super) fn or_inherited(self, socket: Option<OwnedFd>, watchdog: Option<Duration>) -> ServiceManager {
        match (self.socket, socket) {
            (None, Some(socket)) => ServiceManager { socket: Some(UnixDatagram::from(socket)), watchdog },
            (own, _) => ServiceManager { socket: own, watchdog: self.watchdog },
        }
    }

    /// A further descriptor of its socket, for the next daemon.
    pub(super) fn share(&self) -> io::Result<Option<OwnedFd>> {
        self.socket.as_ref().map(|socket| Ok(socket.try_clone()?.into())).transpose()
    }

    /// The interval in which it expects a sign of life.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Another process is the daemon now.
    pub(super) fn replaced_by(&self, process: u32) {
        self.notify(&[NotifyState::MainPid(process), NotifyState::Ready]);
    }

    /// The daemon works.
    pub(super) fn ready(&self) {
        self.notify(&[NotifyState::Ready]);
    }

    /// The daemon reads its file again.
    pub(super) fn reloading(&self) {
        let now = NotifyState::monotonic_usec_now().ok();
        self.notify(&[NotifyState::Reloading].into_iter().chain(now).collect::<Vec<_>>());
    }

    /// The daemon ends.
    pub(super) fn stopping(&self) {
        self.notify(&[NotifyState::Stopping]);
    }

    /// Tells at half of the watchdog's interval that the daemon is alive.
    pub(super) async fn feed_watchdog(&self) {
        let Some(interval) = self.watchdog else { return pending().await };
        let mut ticks = tokio::time::interval(interval / 2);
        loop {
            ticks.tick().await;
            self.notify(&[NotifyState::Watchdog]);
        }
    }

    fn notify(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut message = String::new();
        for state in states {
            // Writing to a String cannot fail.
            let _ = writeln!(message, "{state}");
        }
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::debug!("cannot notify the service manager: {error}");
        }
    }
}

/// The interval in which the service manager expects a sign of life, if it does.
fn watchdog_interval() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
    number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 1).map(Duration::from_micros)
}
