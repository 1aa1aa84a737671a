//! Notifications that an interface, an address or a route of a network namespace has changed (`rtnetlink(7)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::netlink::Listener;

/// A subscription to changes, which requires no privileges.
///
/// Never blocks: wait until [`AsFd::as_fd`] is readable, then call [`take`](Changes::take).
#[derive(Debug)]
pub struct Changes(Listener);

impl Changes {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn open() -> io::Result<Changes> {
        let groups =
            [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE];
        Listener::route(&groups).map(Changes)
    }

    /// Whether anything changed since the last call.
    ///
    /// # Errors
    /// The socket failed permanently.
    pub fn take(&mut self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            match self.0.try_next() {
                Ok(Some(_)) => changed = true,
                Ok(None) => return Ok(changed),
                // Some were lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;
