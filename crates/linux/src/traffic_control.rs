//! Traffic control (`tc(8)`) for BPF programs: the queueing discipline `clsact` of an interface and its filters.
//!
//! Queries the network namespace of the calling thread, which requires no privileges.

use crate::bytes::{u32_at, without_nul};
use crate::netlink::message::{Message, Request};
use crate::netlink::{Error, Socket};

/// Whether an interface has the queueing discipline `clsact`.
///
/// # Errors
/// The kernel's reason.
pub fn has_clsact(if_index: u32) -> Result<bool, Error> {
    let disciplines = |flags| Request::new(RTM_GETQDISC, flags, &header(if_index, 0));
    let is_clsact = |message: &Message| {
        let kind = message.attributes(HEADER).find(TCA_KIND)?;
        let matches = message.kind == RTM_NEWQDISC && u32_at(message.payload, 4)? == if_index;
        (matches && without_nul(kind) == b"clsact").then_some(())
    };
    Ok(!Socket::route()?.dump(disciplines, is_clsact)?.is_empty())
}

/// The number of filters, of any program, in the `clsact` of an interface, in both directions; 0 without `clsact`.
///
/// # Errors
/// The kernel's reason.
pub fn clsact_filters(if_index: u32) -> Result<usize, Error> {
    let mut socket = Socket::route()?;
    let mut count = 0;
    for parent in [CLSACT_INGRESS, CLSACT_EGRESS] {
        let filters = |flags| Request::new(RTM_GETTFILTER, flags, &header(if_index, parent));
        // Messages without a handle describe a priority, not a filter.
        let is_filter = |message: &Message| {
            (message.kind == RTM_NEWTFILTER && u32_at(message.payload, 8)? != 0).then_some(())
        };
        match socket.dump(filters, is_filter) {
            Ok(found) => count += found.len(),
            Err(error) if error.errno().is_some_and(means_none) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// The errors if the queueing discipline or the interface does not exist.
fn means_none(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::EINVAL | libc::ENODEV)
}

/// `struct tcmsg`
fn header(if_index: u32, parent: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&if_index.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

const HEADER: usize = 20;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
/// `TC_H_CLSACT` with `TC_H_MIN_INGRESS` and `TC_H_MIN_EGRESS`.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
