//! Keeps a router's programs and networks as the interfaces and addresses of this host are, which come and go.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use plait_linux::interfaces::{Changes, interfaces};
use tokio::io::unix::AsyncFd;
use tokio::time::{interval, sleep};
use tracing::{info, warn};

use super::hooks::Hooks;
use super::networks::networks;
use super::{RouterError, RouterSettings};
use crate::socket::watch_readable;

/// Between two looks at the interfaces: routes may change often.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Between two looks at the number of dropped packets.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Follows the changes of interfaces.
pub(super) struct Watch {
    settings: RouterSettings,
    hooks: Arc<Hooks>,
    changes: Changes,
    readable: AsyncFd<OwnedFd>,
}

impl Watch {
    pub(super) fn new(settings: &RouterSettings, hooks: Arc<Hooks>, changes: Changes) -> io::Result<Watch> {
        let readable = watch_readable(&changes)?;
        Ok(Watch { settings: settings.clone(), hooks, changes, readable })
    }

    /// Attaches to the interfaces that exist.
    pub(super) fn attach(&self) -> Result<(), RouterError> {
        let RouterSettings { interfaces: lan, exclude } = &self.settings;
        let existing = interfaces().map_err(RouterError::Interfaces)?;
        self.hooks.set_networks(networks(&existing, lan, exclude))?;
        let indices = existing.iter().filter(|interface| lan.contains(&interface.name));
        Ok(self.hooks.attach(&indices.map(|interface| interface.index).collect::<Vec<_>>())?)
    }

    /// Follows changes until the gateway stops.
    pub(super) async fn run(mut self) {
        let mut count = interval(COUNT_INTERVAL);
        let mut has_dropped = false;
        loop {
            tokio::select! {
                ready = self.readable.readable() => {
                    match ready {
                        Ok(mut ready) => ready.clear_ready(),
                        Err(error) => return warn!("cannot follow changes of interfaces: {error}"),
                    }
                    self.follow();
                    sleep(MIN_INTERVAL).await;
                }
                _ = count.tick(), if !has_dropped => {
                    if self.hooks.dropped() > 0 {
                        has_dropped = true;
                        warn!(
                            "the router drops what it does not carry to the exit, such as ICMP and IPsec"
                        );
                    }
                }
            }
        }
    }

    fn follow(&mut self) {
        match self.changes.take() {
            Ok(false) => {}
            Ok(true) => match self.attach() {
                Ok(()) => {}
                Err(error) => warn!("the router's interfaces have changed, and it cannot follow: {error}"),
            },
            Err(error) => info!("changes of interfaces: {error}"),
        }
    }
}
