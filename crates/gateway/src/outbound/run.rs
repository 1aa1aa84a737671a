//! `plait run`: runs an unmodified program with its connections redirected through the gateway.
//!
//! The program and its children are in a cgroup of their own, whose connect() calls are redirected ([`super::redirect`]).
//! Without the privileges for that, a proxy is passed to the program in the usual environment variables instead, which only
//! some programs honour.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;
use std::sync::Arc;

use plait_linux::cgroup::Cgroup;
use plait_linux::privileges::MissingCapabilities;
use plait_linux::user::User;
use rustix::process::{Pid, Resource, Rlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, warn};

use super::dns::DnsForwarder;
use super::held_syn::LoopbackSender;
use super::open::Outbound;
use super::proxy::ProxyAccess;
use super::redirect::{Listeners, Redirect, RedirectOptions};
use super::redirected::RedirectedConnections;
use super::redirected_datagrams::{DatagramSockets, RedirectedDatagrams, mark_of_program};
use crate::error::{ProtectionError, StartError};
use crate::networks::on_interface_changes;
use crate::socket::tcp_listener;

/// Set for programs that use a proxy themselves, in both spellings in use.
const PROXY_VARIABLES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// A program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Neither redirection nor a proxy could be set up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The program could not be started.
    #[error("cannot run {program:?}: {reason}")]
    Spawn {
        /// Its name.
        program: OsString,
        /// Why.
        reason: io::Error,
    },
    /// This process could not give up its privileges.
    #[error("cannot give up privileges: {0}")]
    Confine(io::Error),
    /// The SYNs of redirected connections cannot be read.
    #[error("cannot redirect connections: {0}")]
    Redirect(io::Error),
    /// Waiting for it failed.
    #[error("cannot wait for the program: {0}")]
    Wait(io::Error),
}

impl RunError {
    /// Whether the program does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, RunError::Spawn { reason, .. } if reason.kind() == io::ErrorKind::NotFound)
    }
}

/// How a program's connections reach the gateway.
enum Entry {
    Redirected {
        redirect: Redirect,
        dns: Option<Box<DnsForwarder>>,
        datagrams: Option<Box<RedirectedDatagrams>>,
        sender: Option<LoopbackSender>,
        cgroup: Cgroup,
        listeners: Vec<TcpListener>,
    },
    Proxied {
        listener: TcpListener,
        address: SocketAddr,
    },
}

impl Outbound {
    /// Runs a program with its connections redirected through the gateway, and returns its exit status. It runs as `user`;
    /// `None`: as the user of this process.
    ///
    /// SIGTERM and SIGHUP are forwarded to it; the terminal sends it SIGINT. Once it runs, `started` can give up what this
    /// process does not need any longer; if that fails, the program is killed.
    pub async fn run(
        self: &Arc<Self>,
        program: OsString,
        arguments: Vec<OsString>,
        user: Option<User>,
        started: impl FnOnce(Option<Pid>) -> io::Result<()>,
    ) -> Result<ExitStatus, RunError> {
        let mut command = Command::new(&program);
        command.args(arguments).kill_on_drop(true);
        limit_before_exec(&mut command, self.gateway().descriptor_limit);
        let entry = self.entry().await?;
        // Kept until the program has exited: without it later connections would leave unprotected.
        let mut redirection = None;
        match entry {
            Entry::Redirected { redirect, dns, datagrams, sender, cgroup, listeners } => {
                let mode = self.gateway().policy().mode();
                enter_before_exec(&mut command, &cgroup)
                    .map_err(|reason| StartError::Protection { mode, reason })?;
                let held = redirect.held_syns().map_err(RunError::Redirect)?;
                let connections = RedirectedConnections::new(Arc::clone(self), Arc::new(redirect));
                if let Some(sender) = sender {
                    self.gateway()
                        .spawn_until_stopped(Arc::clone(&connections).open_held(held, Arc::new(sender)));
                }
                if let Some(dns) = dns {
                    dns.spawn(self);
                }
                for listener in listeners {
                    tokio::spawn(Arc::clone(&connections).accept(listener));
                }
                let datagrams = datagrams.map(Arc::from);
                if let Some(datagrams) = &datagrams {
                    self.carry_datagrams(datagrams).map_err(RunError::Redirect)?;
                }
                redirection = Some((connections, datagrams, cgroup));
            }
            Entry::Proxied { listener, address } => {
                let url = format!("socks5h://{address}");
                command.envs(PROXY_VARIABLES.map(|name| (name, url.clone())));
                let outbound = Arc::clone(self);
                // The program can reach this host's own addresses anyway.
                let access = ProxyAccess { credentials: None, local_destinations: true };
                tokio::spawn(async move { outbound.proxy(listener, access).await });
            }
        }
        // Last: what comes before takes the privileges of this process.
        if let Some(user) = user {
            become_user_before_exec(&mut command, user);
        }
        let signals = ForwardedSignals::listen().map_err(RunError::Wait)?;
        let child = command.spawn().map_err(|reason| RunError::Spawn { program, reason })?;
        started(process_id(&child)).map_err(RunError::Confine)?;
        let status = signals.wait(child).await.map_err(RunError::Wait)?;
        drop(redirection);
        Ok(status)
    }

    fn carry_datagrams(self: &Arc<Self>, datagrams: &Arc<RedirectedDatagrams>) -> io::Result<()> {
        datagrams.carry(self)?;
        let datagrams = Arc::downgrade(datagrams);
        self.gateway().spawn_until_stopped(async move {
            // Until the program has exited.
            let update = || match datagrams.upgrade() {
                Some(datagrams) => datagrams.update(&BTreeSet::new()),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            if let Err(error) = on_interface_changes(update).await {
                debug!("datagrams do not follow the changes of interfaces any longer: {error}");
            }
        });
        Ok(())
    }

    async fn entry(&self) -> Result<Entry, RunError> {
        match self.redirected_entry().await {
            Ok(entry) => Ok(entry),
            Err(reason) if self.gateway().policy().requires() => {
                let mode = self.gateway().policy().mode();
                Err(StartError::Protection { mode, reason }.into())
            }
            Err(error) => {
                warn!(
                    "cannot redirect connections, so only those of programs that honour ALL_PROXY are protected: {error}"
                );
                let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let listener = Outbound::proxy_listener(any)?;
                let address =
                    listener.local_addr().map_err(|reason| StartError::Listen { address: any, reason })?;
                Ok(Entry::Proxied { listener, address })
            }
        }
    }

    async fn redirected_entry(&self) -> Result<Entry, ProtectionError> {
        if let Some(missing) = MissingCapabilities::for_bpf() {
            return Err(ProtectionError::Privileges(missing));
        }
        let cgroup = Cgroup::create_below_current("program").map_err(ProtectionError::Cgroup)?;
        let v4 = tcp_listener((Ipv4Addr::LOCALHOST, 0).into()).ok();
        let v6 = tcp_listener((Ipv6Addr::LOCALHOST, 0).into()).ok();
        let port = |listener: &TcpListener| listener.local_addr().ok().map(|address| address.port());
        let listeners = Listeners { v4: v4.as_ref().and_then(port), v6: v6.as_ref().and_then(port) };
        let sender = LoopbackSender::open()
            .inspect_err(|error| {
                debug!("connect() succeeds before the destination has answered: no raw sockets: {error}");
            })
            .ok();
        let require = self.gateway().policy().requires();
        let dns = DnsForwarder::of(self.route()).await.map(Box::new);
        let queries = dns.as_deref().map(DnsForwarder::listeners);
        let entry = DatagramSockets::open(self.route(), mark_of_program());
        let options = RedirectOptions {
            listeners,
            dns: queries,
            require,
            hold: sender.is_some(),
            mark: entry.as_ref().map(|entry| entry.mark),
        };
        let (redirect, datagrams) = Redirect::attach(&cgroup, &options)?;
        let datagrams =
            entry.zip(datagrams).map(|(entry, hooks)| entry.attach(hooks)).transpose()?.map(Box::new);
        let listeners = v4.into_iter().chain(v6).collect();
        Ok(Entry::Redirected { redirect, dns, datagrams, sender, cgroup, listeners })
    }
}

/// Restores, between fork and exec, the limit of open files that the gateway raised for itself.
fn limit_before_exec(command: &mut Command, descriptor_limit: Rlimit) {
    let limit = move || Ok(setrlimit(Resource::Nofile, descriptor_limit)?);
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.as_std_mut().pre_exec(limit) };
}

/// Moves the child into the program's cgroup, between fork and exec.
fn enter_before_exec(command: &mut Command, cgroup: &Cgroup) -> Result<(), ProtectionError> {
    let entrance = cgroup.entrance().map_err(ProtectionError::Cgroup)?;
    let enter = move || (&entrance).write_all(b"0");
    // SAFETY: the closure makes one system call on what was opened before, and allocates nothing.
    unsafe { command.as_std_mut().pre_exec(enter) };
    Ok(())
}

/// Runs the program as this user.
fn become_user_before_exec(command: &mut Command, user: User) {
    command.env("HOME", user.home()).env("USER", user.name()).env("LOGNAME", user.name());
    let become_user = move || user.become_user();
    // SAFETY: the closure makes system calls only, and allocates nothing.
    unsafe { command.as_std_mut().pre_exec(become_user) };
}

/// Signals to forward, received from before the program starts: one in between must not orphan it.
struct ForwardedSignals {
    terminate: Signal,
    hang_up: Signal,
    /// The terminal sends it to the program as well, which decides what to do.
    interrupt: Signal,
}

impl ForwardedSignals {
    fn listen() -> io::Result<ForwardedSignals> {
        Ok(ForwardedSignals {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the program, and forwards signals to it.
    async fn wait(mut self, mut child: Child) -> io::Result<ExitStatus> {
        loop {
            tokio::select! {
                status = child.wait() => return status,
                _ = self.terminate.recv() => forward(&child, libc::SIGTERM),
                _ = self.hang_up.recv() => forward(&child, libc::SIGHUP),
                _ = self.interrupt.recv() => {}
            }
        }
    }
}

fn process_id(child: &Child) -> Option<Pid> {
    child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw)
}

fn forward(child: &Child, signal: libc::c_int) {
    let Some(pid) = process_id(child) else { return };
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        // The program may have exited just now.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The exit status as a shell reports it: the program's own, or 128 plus the signal that killed it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_that_of_a_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
