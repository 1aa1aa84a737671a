//! The names of the programs that have sockets open, as `ss -p` finds them: by their descriptors in /proc.

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

fn search() -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
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
        names.extend(sockets.into_iter().map(|inode| (inode, name.trim_end().to_owned())));
    }
    names
}

/// The inode of what a descriptor's link names, if that is a socket.
fn socket_inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn finds_the_program_of_a_socket() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).expect("a link");
        let inode = socket_inode(&link.to_string_lossy()).expect("a socket");
        let own = fs::read_to_string("/proc/self/comm").expect("a name");
        assert_eq!(Programs::default().name(inode).as_deref(), Some(own.trim_end()));
        assert_eq!(Programs::default().name(0), None);
        assert_eq!(socket_inode("/dev/null"), None);
    }
}
