//! Delivers a packet to this host as if an interface had received it.
//!
//! `unsafe` is used for one ioctl: the link-layer address of an interface.

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{Object, ObjectBuilder, ProgramInput};
use plait_wire::ethernet::{self, MacAddr, ether_type};
use rustix::net::{AddressFamily, SocketType, netdevice::index_to_name};

/// Delivers packets; the program it needs is loaded with the first one.
#[derive(Debug, Default)]
pub(super) struct Receiver(Mutex<Option<Object>>);

impl Receiver {
    /// Delivers a packet, from the IP header on, as received by the interface with this index.
    pub(super) fn receive(&self, packet: &[u8], if_index: u32) -> Result<(), libbpf_rs::Error> {
        let mut frame = Vec::new();
        let is_ipv4 = packet.first().is_some_and(|first| first >> 4 == 4);
        let ether_type = if is_ipv4 { ether_type::IPV4 } else { ether_type::IPV6 };
        let destination = link_layer_address(if_index)?;
        ethernet::Repr { destination, source: MacAddr([0; 6]), ether_type }.emit(&mut frame);
        frame.extend_from_slice(packet);

        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let object = match loaded.take() {
            Some(object) => object,
            None => ObjectBuilder::default().open_memory(PROGRAM)?.load()?,
        };
        let object = loaded.insert(object);
        let program = object.progs_mut().next().ok_or_else(|| io::Error::other("no program"))?;
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let mut context = [0, length, 0, if_index, 0, 0].map(u32::to_ne_bytes).concat();
        program.test_run(ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&frame),
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            repeat: 1,
            ..Default::default()
        })?;
        Ok(())
    }
}

/// Zero for an interface without one, as the kernel compares it.
fn link_layer_address(if_index: u32) -> io::Result<MacAddr> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let name = index_to_name(&socket, if_index)?;
    // SAFETY: integers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    // SAFETY: the request outlives the call, which reads the name and writes an address.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written this member of the union; all bit patterns are valid.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    if !matches!(address.sa_family, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
        return Ok(MacAddr([0; 6]));
    }
    let [a, b, c, d, e, f, ..] = address.sa_data.map(|byte| byte as u8);
    Ok(MacAddr([a, b, c, d, e, f]))
}

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
