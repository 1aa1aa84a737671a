//! The addresses of this host. Its firewall may trust connections between them, which never leave it.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::interfaces::interfaces;

/// How old what the kernel told may be.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The addresses of all interfaces.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses(Mutex<Option<(Instant, Arc<[IpAddr]>)>>);

impl OwnAddresses {
    /// Those of now, or of a second ago.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(super) fn get(&self) -> io::Result<Arc<[IpAddr]>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, addresses)) = &*cached
            && since.elapsed() < MAX_AGE
        {
            return Ok(Arc::clone(addresses));
        }
        let interfaces = interfaces().map_err(io::Error::other)?;
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        let addresses: Arc<[IpAddr]> = addresses.map(|address| address.ip).collect();
        *cached = Some((Instant::now(), Arc::clone(&addresses)));
        Ok(addresses)
    }
}
