//! A TAP interface: an Ethernet interface in a namespace, whose frames this process reads and writes (the kernel's
//! `Documentation/networking/tuntap.rst`).
//!
//! Uses `unsafe` because it is configured by `ioctl(2)`, for which there is no safe wrapper.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::super_packet::VNET_HEADER;
use crate::backend::Backend;
use crate::command::columns;
use crate::endpoint::End;
use crate::error::Error;

/// An interface that is removed when this is dropped or its process ends.
pub(super) struct Tap {
    device: File,
    name: String,
    /// `/proc/net/dev` of its namespace.
    counters: Option<File>,
    /// The drop counter when the carrier was lost.
    dropped_at_carrier_loss: Option<u64>,
    /// Packets dropped for lack of a carrier.
    dropped_without_carrier: u64,
}

/// 65535 bytes less the Ethernet header.
pub(super) const MAX_MTU: u16 = u16::MAX - 14;

/// The column of dropped packets in `/proc/net/dev`.
const TRANSMIT_DROP: usize = 11;

/// The packets that the interface queues while the thread waits for a processor.
const TX_QUEUE_LENGTH: libc::c_int = 4096;

impl Tap {
    /// Creates the interface and sets it up.
    pub(super) fn new(end: End<'_>, mtu: u16) -> Result<Self, Error> {
        let name = end.interface;
        let made = end.namespace.run(|| make(name, mtu));
        made.map_err(Error::refused(format!("make the interface {name} in its namespace")))?
    }

    pub(super) fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        (&self.device).read(packet)
    }

    /// Writes a packet, starting with its `virtio_net_hdr`, in one or two pieces.
    pub(super) fn write(&self, pieces: &[&[u8]]) -> io::Result<()> {
        match pieces {
            [packet] => rustix::io::write(&self.device, packet)?,
            [headers, payload] => {
                rustix::io::writev(&self.device, &[IoSlice::new(headers), IoSlice::new(payload)])?
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(())
    }

    /// Enables or disables segmentation and checksum offload; if disabled, packets arrive as on a wire.
    pub(super) fn set_offload(&self, offload: bool) -> Result<(), Error> {
        let features = if offload { libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes a number, not a pointer.
        let status = unsafe {
            libc::ioctl(self.device.as_raw_fd(), libc::TUNSETOFFLOAD as _, features as libc::c_ulong)
        };
        check(status).map_err(Error::refused(format!("set the offloads of {}", self.name)))
    }

    pub(super) fn set_carrier(&mut self, carrier: bool) -> Result<(), Error> {
        match (carrier, self.dropped_at_carrier_loss) {
            (false, None) => self.dropped_at_carrier_loss = self.dropped(),
            (true, Some(before)) => {
                self.dropped_without_carrier += self.dropped().map_or(0, |now| now - before);
                self.dropped_at_carrier_loss = None;
            }
            _ => {}
        }
        let carrier = libc::c_int::from(carrier);
        // SAFETY: TUNSETCARRIER reads one int.
        let status =
            unsafe { libc::ioctl(self.device.as_raw_fd(), libc::TUNSETCARRIER as _, &raw const carrier) };
        check(status).map_err(Error::refused(format!("set the carrier of {}", self.name)))
    }

    /// Packets dropped because they were not read in time; `None` if the kernel does not report them.
    pub(super) fn overruns(&self) -> Option<u64> {
        let dropped = self.dropped_at_carrier_loss.or_else(|| self.dropped())?;
        Some(dropped - self.dropped_without_carrier)
    }

    fn dropped(&self) -> Option<u64> {
        let mut text = [0; 16 << 10];
        let length = self.counters.as_ref()?.read_at(&mut text, 0).ok()?;
        columns(&String::from_utf8_lossy(&text[..length]), &self.name).get(TRANSMIT_DROP).copied()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Creates the interface in the namespace of the calling thread.
fn make(name: &str, mtu: u16) -> Result<Tap, Error> {
    let device = open_device()?;
    let mut request = request(name);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(&device, libc::TUNSETIFF as _, &mut request).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY | libc::EINVAL | libc::EEXIST) => Error::Taken { interface: name.into() },
        Some(libc::EPERM) => unavailable("a TAP interface takes CAP_NET_ADMIN (root)"),
        _ => Error::refused(format!("make the interface {name}"))(source),
    })?;
    let size = VNET_HEADER as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const size) };
    check(status).map_err(Error::refused(format!("set the header of {name}")))?;
    switch_on(name, mtu)
        .map_err(Error::refused(format!("set the MTU of {name} to {mtu} and switch it on")))?;
    let counters = File::open("/proc/thread-self/net/dev").ok();
    Ok(Tap { device, name: name.into(), counters, dropped_at_carrier_loss: None, dropped_without_carrier: 0 })
}

fn open_device() -> Result<File, Error> {
    const DEVICE: &str = "/dev/net/tun";
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let device = File::options().read(true).write(true).custom_flags(flags).open(DEVICE);
    device.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => unavailable(
            "there is no /dev/net/tun: load the module (modprobe tun), or give the container this device",
        ),
        Some(libc::EPERM | libc::EACCES) => unavailable("/dev/net/tun may not be opened, which takes root"),
        _ => Error::refused(format!("open {DEVICE}"))(error),
    })
}

fn switch_on(name: &str, mtu: u16) -> io::Result<()> {
    let socket: OwnedFd =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    let mut request = request(name);
    request.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    ioctl(&socket, libc::SIOCSIFMTU as _, &mut request)?;
    request.ifr_ifru.ifru_metric = TX_QUEUE_LENGTH;
    ioctl(&socket, libc::SIOCSIFTXQLEN as _, &mut request)?;
    ioctl(&socket, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has just written this field.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS as _, &mut request)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq consists of integers and arrays of them, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

fn ioctl(file: &impl AsRawFd, number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every request that this is called with takes an ifreq.
    check(unsafe { libc::ioctl(file.as_raw_fd(), number as _, std::ptr::from_mut(request)) })
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn unavailable(why: &str) -> Error {
    Error::Unavailable { backend: Backend::Emu, why: why.into() }
}
