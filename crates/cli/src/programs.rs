//! The names of the programs that have sockets open, as `ss -p` finds them: by their descriptors in /proc.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plait_linux::diag::Sockets;

/// Between two searches, each of which reads the descriptors of all processes that this user may see.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// Known programs by the inode of their socket.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    names: HashMap<u32, String>,
    searched: Option<Instant>,
}

impl Programs {
    /// The name of the program that has a socket open; `None` if it is not known yet, or is another user's.
    pub(crate) fn name(&mut self, inode: u32) -> Option<String> {
        if inode == 0 {
            return None;
        }
        if !self.names.contains_key(&inode)
            && self.searched.is_none_or(|searched| searched.elapsed() > SEARCH_INTERVAL)
        {
            self.names = search();
            self.searched = Some(Instant::now());
        }
        self.names.get(&inode).cloned()
    }
}

/// The inode of an application's socket that is connected to one of these addresses of a gateway.
pub(crate) fn application_inode(
    sockets: &mut Sockets,
    application: SocketAddr,
    listen: &[SocketAddr],
) -> Option<u32> {
    let owner = listen.iter().find_map(|listen| sockets.owner(application, *listen).ok().flatten());
    owner.map(|owner| owner.inode)
}

/// Of several processes that have a socket open, the oldest counts: what it starts inherits its sockets until it runs another program.
fn search() -> HashMap<u32, String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let path = process.path();
        let sockets: Vec<u32> = fs::read_dir(path.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|descriptor| socket_inode(fs::read_link(descriptor.path()).ok()?.to_str()?))
            .collect();
        if sockets.is_empty() {
            continue;
        }
        // The process may have ended.
        let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
        let started = fs::read_to_string(path.join("stat")).ok().as_deref().and_then(process_start_time);
        // Ids tell which of those is older that start in the same tick.
        found.push(((started.unwrap_or(u64::MAX), pid), sockets, name));
    }
    found.sort_by_key(|(started, ..)| Reverse(*started));
    let mut names = HashMap::new();
    for (_, sockets, name) in found {
        names.extend(sockets.into_iter().map(|inode| (inode, name.trim_end().to_owned())));
    }
    names
}

/// The start time of a process, in ticks since the system's, in its `/proc/PID/stat` (`proc_pid_stat(5)`).
fn process_start_time(stat: &str) -> Option<u64> {
    // The name may contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// The inode of what a descriptor's link names, if that is a socket.
fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::process::Command;

    use super::*;

    /// A socket of this process, with its inode.
    fn open_socket() -> (TcpListener, u32) {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).expect("a link");
        let inode = socket_inode(&link.to_string_lossy()).expect("a socket");
        (socket, inode)
    }

    fn own_process_name() -> String {
        fs::read_to_string("/proc/self/comm").expect("a name").trim_end().to_owned()
    }

    #[test]
    fn finds_the_program_of_a_socket() {
        let (_socket, inode) = open_socket();
        assert_eq!(Programs::default().name(inode), Some(own_process_name()));
        assert_eq!(Programs::default().name(0), None);
        assert_eq!(socket_inode("/dev/null"), None);
    }

    #[test]
    fn child_that_inherits_a_socket_is_not_its_program() {
        let (socket, inode) = open_socket();
        let inherited = OwnedFd::from(socket.try_clone().expect("a socket"));
        let mut child = Command::new("sleep").arg("60").stdin(inherited).spawn().expect("a process");
        let name = Programs::default().name(inode);
        child.kill().expect("it ends");
        child.wait().expect("it ends");
        assert_eq!(name, Some(own_process_name()));
    }

    #[test]
    fn process_start_time_is_found_after_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 10 11 12";
        assert_eq!(process_start_time(stat), Some(98_765));
        assert_eq!(process_start_time(""), None);
    }
}
