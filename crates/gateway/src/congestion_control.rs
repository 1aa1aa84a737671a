//! The congestion control of a gateway's MPTCP sockets. A scheduler is one, which controls each subflow by the kernel's cubic: it is `ecf`
//! or, where bytes are scrambled, `all`, unless something else is chosen, or the host's default is neither cubic nor bbr.
//!
//! Linux's MPTCP was observed to deliver wrong bytes with bbr when paths are cut, without plait too. Only mode `sealed`
//! notices that.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use plait_linux::congestion_control::{default_congestion_control, is_bbr};
use plait_proto::option::Mode;
use plait_scheduler::{Registered, Scheduler, SchedulerConfig};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::process::Rlimit;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::{debug, info, warn};

use crate::capacity::is_low;
use crate::error::StartError;

/// What schedulers control subflows by.
const CUBIC: &str = "cubic";

/// In place of bbr, the first that the kernel has; it always has the last.
const REPLACEMENTS: [&str; 2] = [CUBIC, "reno"];

/// What a gateway sets on its MPTCP sockets.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    /// `None`: the host's default.
    name: Option<String>,
    /// Ends with the gateway.
    scheduler: Option<(Registered, SchedulerConfig)>,
}

impl CongestionControl {
    /// The algorithm of this name, or the scheduler, or what is used without a choice, in a mode and with a limit of open files.
    ///
    /// # Errors
    /// Both are given. The kernel has no such algorithm, or this process may not use it. The scheduler cannot be registered.
    pub(crate) fn choose(
        name: Option<&str>,
        scheduler: Option<&SchedulerConfig>,
        mode: Mode,
        descriptors: Rlimit,
    ) -> Result<CongestionControl, StartError> {
        match (name, scheduler) {
            (Some(name), Some(scheduler)) => Err(StartError::SchedulerWithAlgorithm {
                scheduler: scheduler.clone(),
                name: name.to_owned(),
            }),
            (Some(name), None) => CongestionControl::named(name),
            (None, Some(scheduler)) => CongestionControl::with_scheduler(scheduler),
            (None, None) => Ok(CongestionControl::default_for(mode, descriptors)),
        }
    }

    fn with_scheduler(scheduler: &SchedulerConfig) -> Result<CongestionControl, StartError> {
        let registered = Registered::new(scheduler).map_err(|reason| StartError::Scheduler {
            scheduler: scheduler.clone(),
            reason: Box::new(reason),
        })?;
        let chosen = CongestionControl::named(registered.name())?;
        Ok(CongestionControl { scheduler: Some((registered, scheduler.clone())), ..chosen })
    }

    fn default_for(mode: Mode, descriptors: Rlimit) -> CongestionControl {
        let default = default_congestion_control().unwrap_or_default();
        let scheduler = match mode {
            // A path hides less, the fewer bytes the others carry.
            Mode::Xor64 | Mode::Stream => Scheduler::All,
            _ => Scheduler::Ecf,
        };
        if (default == CUBIC || is_bbr(&default)) && !is_low(descriptors) {
            match CongestionControl::with_scheduler(&scheduler.into()) {
                Ok(chosen) => {
                    log_replacement(CUBIC, &default);
                    return chosen;
                }
                Err(error) => debug!("connections use the kernel's scheduler: {error}"),
            }
        }
        if !is_bbr(&default) {
            return CongestionControl { name: None, scheduler: None };
        }
        let name = REPLACEMENTS.into_iter().find(|name| try_out(name).is_ok());
        if let Some(name) = name {
            log_replacement(name, &default);
        }
        CongestionControl { name: name.map(str::to_owned), scheduler: None }
    }

    fn named(name: &str) -> Result<CongestionControl, StartError> {
        try_out(name).map_err(|reason| StartError::CongestionControl { name: name.to_owned(), reason })?;
        Ok(CongestionControl { name: Some(name.to_owned()), scheduler: None })
    }

    /// The scheduler.
    pub(crate) fn scheduler(&self) -> Option<&SchedulerConfig> {
        self.scheduler.as_ref().map(|(_, configuration)| configuration)
    }

    /// The descriptors that it takes.
    pub(crate) fn descriptors(&self) -> usize {
        self.scheduler.as_ref().map_or(0, |(registered, _)| registered.descriptors())
    }

    /// Sets weights, tiers or ranks of interfaces, by name, that the scheduler's configuration does not name itself.
    pub(crate) fn set_interfaces(&self, numbers: &BTreeMap<String, u32>) {
        let Some((registered, configuration)) = &self.scheduler else { return };
        if let Err(error) = registered.set_options(&configuration.with_interfaces(numbers)) {
            warn!("the scheduler does not know new interfaces: {error}");
        }
    }

    /// Sets it on a socket that is not connected yet. Connections that a listening socket accepts inherit it.
    pub(crate) fn set_on(&self, socket: impl AsFd) -> io::Result<()> {
        match &self.name {
            Some(name) => Ok(set_tcp_congestion(socket, name)?),
            None => Ok(()),
        }
    }
}

/// Logs that an algorithm takes the place of bbr.
fn log_replacement(name: &str, default: &str) {
    if is_bbr(default) {
        info!(
            "connections use {name} instead of {default}, this host's default congestion control, with which Linux's MPTCP can \
             deliver wrong bytes when a path is cut; --congestion-control chooses"
        );
    }
}

/// With a TCP socket: one of MPTCP would accept any name before it is connected.
fn try_out(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    Ok(set_tcp_congestion(&socket, name)?)
}
