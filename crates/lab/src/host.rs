//! A host of a lab: one network namespace, and the programs and settings in it.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use plait_host::netns::{Named, NetNs};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::run;
use crate::{Error, Interrupt, Process};

/// A host of a [`Lab`](crate::Lab), which owns its namespace; clones name the same host.
#[derive(Debug, Clone)]
pub struct Host {
    namespace: Arc<Named>,
    interrupt: Interrupt,
}

impl Host {
    /// Makes the namespace, with its loopback up and without reverse-path filtering: MPTCP joins would otherwise be
    /// dropped when a reply's route differs from the path it came by.
    pub(crate) fn make(namespace: &str, interrupt: &Interrupt) -> Result<Self, Error> {
        let namespace = Named::create(namespace).map_err(Error::Namespace)?;
        let host = Self { namespace: Arc::new(namespace), interrupt: interrupt.clone() };
        host.ip(["link", "set", "lo", "up"])?;
        for interfaces in ["all", "default"] {
            host.set_sysctl(&format!("net.ipv4.conf.{interfaces}.rp_filter"), "0")?;
        }
        Ok(host)
    }

    /// Its network namespace.
    pub fn namespace(&self) -> &NetNs {
        &self.namespace
    }

    /// The name of its network namespace, as `ip netns` lists it.
    pub fn namespace_name(&self) -> &str {
        self.namespace.name()
    }

    /// A command that will run on this host. Only its network is the host's; files are the machine's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let namespace = self.namespace.clone();
        let enter = move || {
            let kind = Some(LinkNameSpaceType::Network);
            Ok(move_into_link_name_space(namespace.as_fd(), kind)?)
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed, and this makes one system call.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Starts a [`command`](Self::command) in the background, without stdin; its output is kept.
    pub fn spawn(&self, command: Command) -> Result<Process, Error> {
        Process::start(command, self.interrupt.clone())
    }

    /// Sets a kernel setting of this namespace, by its dotted name.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        let path = PathBuf::from(format!("/proc/sys/{}", name.replace('.', "/")));
        let written = self.namespace.run(|| std::fs::write(&path, value)).map_err(Error::Namespace)?;
        written.map_err(|source| Error::File { path, source })
    }

    /// How many subflows a connection of the kernel's path manager may have beside the first, and how many announced
    /// addresses it uses.
    pub fn set_mptcp_limits(&self, subflows: u8, add_addr_accepted: u8) -> Result<(), Error> {
        let (subflows, accepted) = (subflows.to_string(), add_addr_accepted.to_string());
        self.ip(["mptcp", "limits", "set", "subflows", &subflows, "add_addr_accepted", &accepted])
    }

    /// Adds an address of `interface` as an MPTCP endpoint; `flags` are those of `ip mptcp endpoint` (`signal`,
    /// `subflow`, `backup`, `fullmesh`).
    pub fn add_mptcp_endpoint(&self, address: IpAddr, interface: &str, flags: &[&str]) -> Result<(), Error> {
        let address = address.to_string();
        let fixed = ["mptcp", "endpoint", "add", &address, "dev", interface];
        self.ip(fixed.into_iter().chain(flags.iter().copied()))
    }

    /// Runs `ip` with these arguments in this namespace.
    pub(crate) fn ip<'a>(&'a self, arguments: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
        ip(["-n", self.namespace_name()].into_iter().chain(arguments))
    }
}

/// Runs `ip` with these arguments.
pub(crate) fn ip<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let mut command = Command::new("ip");
    command.args(arguments);
    run(command).map(drop)
}
