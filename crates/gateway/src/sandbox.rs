//! What a gateway needs after its set-up, and nothing else: [`plait_linux::sandbox`] takes the rest away.
//!
//! By then BPF programs are attached, addresses are listened on, and keys and credentials are read. `docs/reference/privileges.md`
//! lists what remains, and why.

use std::io;

use plait_linux::pm::{keep_record_open, path_manager_record};
use plait_linux::sandbox::{CapabilitySet, Files, Rules, name_service_files};
use plait_linux::user::User;
use rustix::process::Pid;

use crate::gateway::Gateway;
use crate::outbound::Outbound;

impl Gateway {
    /// What it takes to accept connections, and to undo the set-up in the end.
    ///
    /// # Errors
    /// The cgroup is inaccessible.
    pub fn sandbox_rules(&self) -> io::Result<Rules> {
        // Unix sockets of services need no rule: connecting to a path takes the permission to write to it, of this user.
        let mut files = Files { read: name_service_files(), ..Files::default() };
        let user = if self.monitor().is_some() {
            // It cleans up.
            Some(User::unprivileged())
        } else {
            // The status socket.
            files.remove.extend(plait_linux::run_directory());
            if let Some(cgroup) = self.negotiation().cgroup() {
                files.remove_cgroups_below(cgroup.parent()?);
            }
            None
        };
        Ok(Rules { capabilities: CapabilitySet::empty(), user, files, signals: None, attaches: false })
    }
}

impl Outbound {
    /// What it takes to open connections, to manage their paths, to know their peers, and to undo the set-up in the end; and
    /// to forward signals to a program.
    ///
    /// # Errors
    /// As for [`Gateway::sandbox_rules`].
    pub fn sandbox_rules(&self, program: Option<Pid>) -> io::Result<Rules> {
        let mut rules = self.gateway().sandbox_rules()?;
        // Subflows and events by netlink; the path manager and the blackhole timeout below /proc/sys/net/mptcp.
        rules.capabilities |= CapabilitySet::NET_ADMIN;
        rules.files.write.push("/proc/sys/net/mptcp".into());
        // Its own namespace, and the kernel's counters.
        rules.files.read.push("/proc".into());
        if self.gateway().monitor().is_some() {
            // Without it, path management failed already.
            let _ = keep_record_open();
        } else {
            rules.files.write.extend(path_manager_record());
            rules.files.manage.extend(self.peer_memory());
            rules.files.manage.extend(self.quota_directories());
        }
        if program.is_some() {
            // It runs as another user.
            rules.capabilities |= CapabilitySet::KILL;
            rules.signals = program;
        }
        Ok(rules)
    }

    /// The same, for a router, which attaches to interfaces that appear later, and removes its routing rules in the end.
    ///
    /// # Errors
    /// As for [`Gateway::sandbox_rules`].
    pub fn router_sandbox_rules(&self) -> io::Result<Rules> {
        Ok(Rules { attaches: true, ..self.sandbox_rules(None)? })
    }
}
