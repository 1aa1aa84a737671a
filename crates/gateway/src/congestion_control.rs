//! The congestion control of a gateway's MPTCP sockets: the host's default, unless that is bbr.
//!
//! Linux's MPTCP was observed to deliver wrong bytes with bbr when paths are cut, without plait too. Only mode `sealed`
//! notices that.

use std::io;
use std::os::fd::AsFd;

use plait_linux::congestion_control::{default_congestion_control, is_bbr};
use rustix::net::sockopt::set_tcp_congestion;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::info;

use crate::error::StartError;

/// In place of bbr, the first that the kernel has; it always has the last.
const REPLACEMENTS: [&str; 2] = ["cubic", "reno"];

/// What a gateway sets on its MPTCP sockets.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    /// `None`: the host's default.
    name: Option<String>,
}

impl CongestionControl {
    /// The algorithm of this name, or what is used without a choice.
    ///
    /// # Errors
    /// The kernel has no such algorithm, or this process may not use it.
    pub(crate) fn choose(name: Option<&str>) -> Result<CongestionControl, StartError> {
        if let Some(name) = name {
            try_out(name)
                .map_err(|reason| StartError::CongestionControl { name: name.to_owned(), reason })?;
            return Ok(CongestionControl { name: Some(name.to_owned()) });
        }
        let default = default_congestion_control().unwrap_or_default();
        if !is_bbr(&default) {
            return Ok(CongestionControl { name: None });
        }
        let name = REPLACEMENTS.into_iter().find(|name| try_out(name).is_ok());
        if let Some(name) = name {
            info!(
                "connections use {name} instead of {default}, this host's default congestion control, with which Linux's \
                 MPTCP can deliver wrong bytes when a path is cut; --congestion-control chooses"
            );
        }
        Ok(CongestionControl { name: name.map(str::to_owned) })
    }

    /// Sets it on a socket that is not connected yet. Connections that a listening socket accepts inherit it.
    pub(crate) fn set_on(&self, socket: impl AsFd) -> io::Result<()> {
        match &self.name {
            Some(name) => Ok(set_tcp_congestion(socket, name)?),
            None => Ok(()),
        }
    }
}

/// With a TCP socket: one of MPTCP would accept any name before it is connected.
fn try_out(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    Ok(set_tcp_congestion(&socket, name)?)
}
