//! Stops what a host forwards, by `bpf/kill_switch_forward.bpf.c` at netfilter's forward hook.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;

use ipnet::IpNet;
use libbpf_rs::{MapHandle, NF_INET_FORWARD, NFPROTO_IPV4, NFPROTO_IPV6, NetfilterOpts};
use plait_linux::bpf_link;

use super::{KillSwitchError, ignore_missing};
use crate::bpf;
use crate::networks::Networks;
use crate::skeleton::kill_switch_forward::KillSwitchForwardSkelBuilder;

/// The pins of the links.
pub(super) const FORWARD_V4: &str = "forward_v4";
pub(super) const FORWARD_V6: &str = "forward_v6";

/// The pins of the networks.
pub(super) const FORWARDED_V4: &str = "forwarded_v4";
pub(super) const FORWARDED_V6: &str = "forwarded_v6";

/// After the firewall's chains (NF_IP_PRI_FILTER is 0). No two programs may have the same.
const PRIORITY: i32 = 100;

/// Drops what this network namespace would forward to other networks than these, as long as the links are pinned in a directory.
/// Takes over what is pinned there.
pub(super) fn stop(directory: &Path, wanted: &BTreeSet<IpNet>) -> Result<Networks, KillSwitchError> {
    let (path_v4, path_v6) = (directory.join(FORWARDED_V4), directory.join(FORWARDED_V6));
    let open = |path| MapHandle::from_pinned_path(path).map_err(io::Error::other);
    let pinned = match path_v4.exists() && path_v6.exists() {
        true => Some((open(&path_v4)?, open(&path_v6)?)),
        false => None,
    };
    let mut storage = MaybeUninit::uninit();
    let skeleton = bpf::load_prepared(
        "kill_switch_forward",
        KillSwitchForwardSkelBuilder::default(),
        &mut storage,
        |open| match &pinned {
            Some((v4, v6)) => {
                open.maps.excluded_v4.reuse_fd(v4.as_fd())?;
                open.maps.excluded_v6.reuse_fd(v6.as_fd())
            }
            None => Ok(()),
        },
    )?;
    let maps = &skeleton.maps;
    let networks = Networks::of(bpf::handle(&maps.excluded_v4)?, bpf::handle(&maps.excluded_v6)?);
    networks.set(wanted)?;
    if pinned.is_none() {
        for (map, path) in networks.maps().into_iter().zip([path_v4, path_v6]) {
            ignore_missing(fs::remove_file(&path))?;
            bpf_link::pin(map.as_fd(), &path)?;
        }
    }
    let programs = [
        (&skeleton.progs.kill_switch_forward_v4, NFPROTO_IPV4, FORWARD_V4),
        (&skeleton.progs.kill_switch_forward_v6, NFPROTO_IPV6, FORWARD_V6),
    ];
    for (program, protocol_family, name) in programs {
        let path = directory.join(name);
        if path.exists() {
            continue;
        }
        let hook = NetfilterOpts {
            protocol_family,
            hooknum: NF_INET_FORWARD,
            priority: PRIORITY,
            ..Default::default()
        };
        let link = program.attach_netfilter_with_opts(hook).map_err(io::Error::other)?;
        bpf_link::pin(link.as_fd(), &path)?;
    }
    Ok(networks)
}
