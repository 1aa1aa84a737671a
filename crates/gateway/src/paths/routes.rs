//! Routes to peers through an interface, as the kernel finds them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::interfaces;
use plait_linux::netlink::Error;

/// A route serves all connections for this long: asking the kernel takes longer than the rest of opening a connection.
const MAX_AGE: Duration = Duration::from_millis(200);

/// Routes that are kept at once.
const MAX_KEPT: usize = 1024;

/// The routes found lately. That there is none is not kept: the next connection may need one that was just added.
#[derive(Default)]
pub(crate) struct Routes {
    sources: Mutex<HashMap<(IpAddr, u32), (Instant, IpAddr)>>,
}

impl Routes {
    /// The source address of packets to `remote` through the interface with this index; `None` without a route.
    ///
    /// # Errors
    /// The kernel's reason, if it is not a missing route.
    pub(crate) fn source(&self, remote: IpAddr, interface: u32) -> Result<Option<IpAddr>, Error> {
        let (key, now) = ((remote, interface), Instant::now());
        let is_recent = |(since, _): &(Instant, IpAddr)| now.duration_since(*since) < MAX_AGE;
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, source)) = sources.get(&key).filter(|found| is_recent(found)) {
            return Ok(Some(*source));
        }
        let found = interfaces::route_via(remote, interface)?;
        if sources.len() >= MAX_KEPT {
            sources.retain(|_, found| is_recent(found));
        }
        match found {
            Some(source) if sources.len() < MAX_KEPT => sources.insert(key, (now, source)),
            _ => sources.remove(&key),
        };
        Ok(found)
    }

    /// Forgets all, because routes have changed.
    pub(crate) fn clear(&self) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
