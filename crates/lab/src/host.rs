//! A host of a lab: a network namespace, with the programs and settings in it.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use plait_linux::netns::{Named, NetNs};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::Error;
use crate::process::{Process, run_with_input};
use crate::seed::Seed;
use plait_linux::signal::StopSignal;

/// A host of a [`Lab`](crate::Lab), which owns its namespace; clones refer to the same host.
#[derive(Debug, Clone)]
pub struct Host {
    inner: Arc<Inner>,
    stop: StopSignal,
}

#[derive(Debug)]
struct Inner {
    name: String,
    namespace: Named,
    seed: Seed,
}

impl Host {
    /// Creates the namespace. Disables reverse-path filtering, which would drop an MP_JOIN whose reply takes another
    /// route, and duplicate address detection for IPv6, which is unnecessary here and delays neighbour discovery by a
    /// second.
    pub(crate) fn make(name: &str, namespace: &str, seed: Seed, stop: &StopSignal) -> Result<Self, Error> {
        let namespace = Named::create(namespace).map_err(Error::Namespace)?;
        let inner = Inner { name: name.into(), namespace, seed };
        let host = Self { inner: Arc::new(inner), stop: stop.clone() };
        let names =
            ["ipv4.conf.all.rp_filter", "ipv4.conf.default.rp_filter", "ipv6.conf.default.accept_dad"];
        let names = names.map(|name| format!("net.{name}"));
        host.set_sysctls(names.iter().map(|name| (name.as_str(), "0")))?;
        Ok(host)
    }

    /// The host's name in the lab.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its network namespace.
    pub fn namespace(&self) -> &NetNs {
        &self.inner.namespace
    }

    /// The name of its network namespace, as `ip netns` lists it.
    pub fn namespace_name(&self) -> &str {
        self.inner.namespace.name()
    }

    /// A command to run on this host, with the host's network and the machine's file system. Its environment has the
    /// lab's seed as `PLAIT_SEED`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let inner = self.inner.clone();
        let enter = move || {
            let kind = Some(LinkNameSpaceType::Network);
            Ok(move_into_link_name_space(inner.namespace.as_fd(), kind)?)
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed, and this makes one system call.
        unsafe { command.pre_exec(enter) };
        command.env(Seed::VARIABLE, self.inner.seed.to_string());
        command
    }

    /// Starts a [`command`](Self::command) in the background, without stdin; its output is collected.
    pub fn spawn(&self, command: Command) -> Result<Process, Error> {
        Process::start(command, self.stop.clone())
    }

    /// Sets a kernel parameter of this namespace, by its dotted name.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), Error> {
        self.set_sysctls([(name, value)])
    }

    /// Sets several kernel parameters; stops at the first failure.
    pub(crate) fn set_sysctls<'a>(
        &self,
        settings: impl IntoIterator<Item = (&'a str, &'a str)> + Send,
    ) -> Result<(), Error> {
        let set = || {
            settings.into_iter().try_for_each(|(name, value)| {
                let path = PathBuf::from(format!("/proc/sys/{}", name.replace('.', "/")));
                std::fs::write(&path, value).map_err(|source| Error::File { path, source })
            })
        };
        self.inner.namespace.run(set).map_err(Error::Namespace)?
    }

    /// Runs `ip` commands; stops at the first failure, and the error names the failed command. Consecutive commands
    /// of one address family (prefix `-6`) run as a batch.
    pub(crate) fn ip_all(&self, commands: impl IntoIterator<Item = String>) -> Result<(), Error> {
        let commands: Vec<String> = commands.into_iter().collect();
        commands.chunk_by(|one, other| is_v6(one) == is_v6(other)).try_for_each(|batch| self.ip_batch(batch))
    }

    fn ip_batch(&self, commands: &[String]) -> Result<(), Error> {
        let v6 = commands.first().is_some_and(|command| is_v6(command));
        let lines: Vec<_> = commands.iter().map(|command| command.trim_start_matches(V6)).collect();
        let mut ip = self.command("ip");
        ip.args(v6.then_some("-6")).args(["-batch", "-"]);
        run_with_input(ip, &lines.join("\n")).map(drop).map_err(|error| match error {
            Error::Failed { status, stderr, .. } => {
                let (said, line) = stderr.rsplit_once("Command failed -:").unwrap_or((&stderr, ""));
                let index = line.trim().parse::<usize>().unwrap_or(0).checked_sub(1);
                let refused = index.and_then(|index| commands.get(index));
                let command = format!("ip {}", refused.map_or("-batch", String::as_str));
                Error::Failed { command, status, stderr: said.trim().into() }
            }
            other => other,
        })
    }
}

/// Prefix of a command whose address family is not evident from an address.
const V6: &str = "-6 ";

fn is_v6(command: &str) -> bool {
    command.starts_with(V6)
}
