//! Super-packets of segmentation offload: the frames that they represent, and how to split them.
//!
//! A TAP interface with `IFF_VNET_HDR` puts a `virtio_net_hdr` before each packet (virtio 1.2, section 5.1.6). It
//! marks up to 64 KiB of TCP whose headers are to be repeated before every `gso_size` bytes. A part of such a packet
//! gets its own headers, with lengths, identification, sequence number, flags and both checksums as segmentation
//! would set them. The kernel, segmenting the parts, therefore produces the same frames as from the whole.
//!
//! For a single frame, the checksum that was left to the interface is completed, as on a wire: captures show correct
//! checksums, and corruption on the way is detected.
//!
//! Any other packet, also a malformed one, counts as one frame and is not modified. Nothing here panics.

use std::ops::Range;

use plait_wire::checksum::Checksum;

use super::pipe::Train;

/// The bytes of the `virtio_net_hdr` before each packet.
pub(super) const VNET_HEADER: usize = 10;

/// The layout of a super-packet, in bytes from the start of its `virtio_net_hdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SuperPacket {
    ip: usize,
    tcp: usize,
    payload: usize,
    end: usize,
    /// The payload of each frame but the last, in bytes.
    segment: usize,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// The headers of a part.
pub(super) struct Headers {
    bytes: [u8; MAX_HEADERS],
    length: usize,
}

const MAX_HEADERS: usize = 256;

/// Offsets and values of `virtio_net_hdr`.
mod vnet {
    pub(super) const FLAGS: usize = 0;
    pub(super) const NEEDS_CSUM: u8 = 1;
    pub(super) const GSO_TYPE: usize = 1;
    pub(super) const GSO_TCPV4: u8 = 1;
    pub(super) const GSO_TCPV6: u8 = 4;
    pub(super) const GSO_ECN: u8 = 0x80;
    pub(super) const HDR_LEN: usize = 2;
    pub(super) const GSO_SIZE: usize = 4;
    pub(super) const CSUM_START: usize = 6;
    pub(super) const CSUM_OFFSET: usize = 8;
}

/// Offsets and values of the Ethernet, IP and TCP headers.
mod header {
    pub(super) const ETHER_TYPE: usize = 12;
    pub(super) const IPV4: u16 = 0x0800;
    pub(super) const IPV6: u16 = 0x86dd;
    pub(super) const VLAN: [u16; 2] = [0x8100, 0x88a8];
    pub(super) const IPV4_TOTAL_LENGTH: usize = 2;
    pub(super) const IPV4_IDENTIFICATION: usize = 4;
    pub(super) const IPV4_FRAGMENT: usize = 6;
    pub(super) const IPV4_MORE_OR_OFFSET: u16 = 0x3fff;
    pub(super) const IPV4_PROTOCOL: usize = 9;
    pub(super) const IPV4_CHECKSUM: usize = 10;
    pub(super) const IPV6_PAYLOAD_LENGTH: usize = 4;
    pub(super) const IPV6_HEADER: usize = 40;
    pub(super) const TCP: u8 = 6;
    pub(super) const TCP_SEQUENCE: usize = 4;
    pub(super) const TCP_DATA_OFFSET: usize = 12;
    pub(super) const TCP_FLAGS: usize = 13;
    pub(super) const TCP_FIN_PSH: u8 = 0x09;
    pub(super) const TCP_CWR: u8 = 0x80;
    pub(super) const TCP_CHECKSUM: usize = 16;
    pub(super) const UDP_CHECKSUM: usize = 6;
}

impl SuperPacket {
    /// Parses a packet with its `virtio_net_hdr`; `None` if it is not a super-packet that can be split.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let segment = usize::from(u16_ne(packet, vnet::GSO_SIZE)?);
        let tcp = VNET_HEADER + usize::from(u16_ne(packet, vnet::CSUM_START)?);
        let summed = packet[vnet::FLAGS] & vnet::NEEDS_CSUM != 0
            && usize::from(u16_ne(packet, vnet::CSUM_OFFSET)?) == header::TCP_CHECKSUM;
        let (ip, ether_type) = network_header(packet)?;
        let version = match (packet[vnet::GSO_TYPE] & !vnet::GSO_ECN, ether_type) {
            (vnet::GSO_TCPV4, header::IPV4) if is_ipv4(packet, ip, tcp)? => Version::V4,
            (vnet::GSO_TCPV6, header::IPV6) if is_ipv6(packet, ip, tcp)? => Version::V6,
            _ => return None,
        };
        let words = packet.get(tcp + header::TCP_DATA_OFFSET)? >> 4;
        let payload = tcp + 4 * usize::from(words);
        let fits = words >= 5 && payload <= MAX_HEADERS && payload < packet.len();
        (summed && fits && segment > 0).then_some(Self {
            ip,
            tcp,
            payload,
            end: packet.len(),
            segment,
            version,
        })
    }

    /// The frames that it represents, including their headers.
    pub(super) fn train(&self) -> Train {
        let data = self.end - self.payload;
        let frames = data.div_ceil(self.segment);
        let headers = self.payload - VNET_HEADER;
        // Cannot overflow: a packet is at most 64 KiB, and its headers 256 bytes.
        Train {
            frames: frames as u32,
            each: (headers + self.segment.min(data)) as u32,
            last: (headers + data - (frames - 1) * self.segment) as u32,
        }
    }

    /// The part with these frames: its headers, and the range of the packet that follows them. `packet` must be the
    /// one that this was parsed from.
    pub(super) fn part(&self, packet: &[u8], frames: &Range<u32>) -> (Headers, Range<usize>) {
        let start = self.payload + frames.start as usize * self.segment;
        let end = (self.payload + frames.end as usize * self.segment).min(self.end);
        let skipped = start - self.payload;
        let removed = self.end - self.payload - (end - start);
        let mut headers = Headers { bytes: [0; MAX_HEADERS], length: self.payload };
        let bytes = &mut headers.bytes[..self.payload];
        bytes.copy_from_slice(&packet[..self.payload]);
        self.fix_vnet_header(bytes);
        self.fix_ip(bytes, frames.start as u16, removed as u16);
        self.fix_tcp(bytes, skipped as u32, end == self.end, removed as u16);
        if frames.len() == 1 {
            self.finish_single(bytes, &packet[start..end]);
        }
        (headers, start..end)
    }

    fn fix_vnet_header(&self, bytes: &mut [u8]) {
        let headers = (self.payload - VNET_HEADER) as u16;
        bytes[vnet::HDR_LEN..vnet::HDR_LEN + 2].copy_from_slice(&headers.to_ne_bytes());
    }

    fn finish_single(&self, bytes: &mut [u8], payload: &[u8]) {
        let sum = Checksum::new().with(&bytes[self.tcp..]).with(payload).finish();
        set(bytes, self.tcp + header::TCP_CHECKSUM, sum);
        bytes[..VNET_HEADER].fill(0);
    }

    fn fix_ip(&self, bytes: &mut [u8], skipped_frames: u16, removed: u16) {
        let ip = &mut bytes[self.ip..];
        match self.version {
            Version::V4 => {
                let before = !u16_be(ip, header::IPV4_CHECKSUM);
                let length = change(ip, header::IPV4_TOTAL_LENGTH, |length| length.wrapping_sub(removed));
                let identification =
                    change(ip, header::IPV4_IDENTIFICATION, |id| id.wrapping_add(skipped_frames));
                let sum = update_checksum(update_checksum(before, length), identification);
                set(ip, header::IPV4_CHECKSUM, !sum);
            }
            Version::V6 => {
                change(ip, header::IPV6_PAYLOAD_LENGTH, |length| length.wrapping_sub(removed));
            }
        }
    }

    /// Fixes the TCP header of a part. The partial checksum covers the pseudo-header, which contains the length.
    fn fix_tcp(&self, bytes: &mut [u8], skipped: u32, last: bool, removed: u16) {
        let length = (self.end - self.tcp) as u16;
        let tcp = &mut bytes[self.tcp..];
        let sequence = &mut tcp[header::TCP_SEQUENCE..header::TCP_SEQUENCE + 4];
        let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
        sequence.copy_from_slice(&first.wrapping_add(skipped).to_be_bytes());
        if !last {
            tcp[header::TCP_FLAGS] &= !header::TCP_FIN_PSH;
        }
        if skipped > 0 {
            tcp[header::TCP_FLAGS] &= !header::TCP_CWR;
        }
        let sum = update_checksum(u16_be(tcp, header::TCP_CHECKSUM), (length, length.wrapping_sub(removed)));
        set(tcp, header::TCP_CHECKSUM, sum);
    }
}

impl Headers {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Completes the checksum of a packet that is not a super-packet, if it was left to the interface.
pub(super) fn fill_checksum(packet: &mut [u8]) {
    let left = packet.first().is_some_and(|flags| flags & vnet::NEEDS_CSUM != 0);
    let (true, Some(start), Some(offset)) =
        (left, u16_ne(packet, vnet::CSUM_START), u16_ne(packet, vnet::CSUM_OFFSET))
    else {
        return;
    };
    let (start, offset) = (VNET_HEADER + usize::from(start), usize::from(offset));
    if packet[vnet::GSO_TYPE] != 0 || start + offset + 2 > packet.len() {
        return;
    }
    let sum = match Checksum::new().with(&packet[start..]).finish() {
        // In UDP, 0 means no checksum (RFC 768).
        0 if offset == header::UDP_CHECKSUM => 0xffff,
        sum => sum,
    };
    set(packet, start + offset, sum);
    packet[..VNET_HEADER].fill(0);
}

/// The offset of the network header, after up to two VLAN tags, and the EtherType.
fn network_header(packet: &[u8]) -> Option<(usize, u16)> {
    let mut at = VNET_HEADER + header::ETHER_TYPE;
    for _ in 0..3 {
        let ether_type = u16::from_be_bytes(*packet.get(at..)?.first_chunk()?);
        if !header::VLAN.contains(&ether_type) {
            return Some((at + 2, ether_type));
        }
        at += 4;
    }
    None
}

fn is_ipv4(packet: &[u8], ip: usize, tcp: usize) -> Option<bool> {
    let header = packet.get(ip..ip + 20)?;
    Some(
        header[0] >> 4 == 4
            && header[0] & 0xf >= 5
            && ip + 4 * usize::from(header[0] & 0xf) == tcp
            && header[header::IPV4_PROTOCOL] == header::TCP
            && u16_be(header, header::IPV4_FRAGMENT) & header::IPV4_MORE_OR_OFFSET == 0
            && ip + usize::from(u16_be(header, header::IPV4_TOTAL_LENGTH)) == packet.len(),
    )
}

/// Whether the packet is IPv6 of the right length; `None` if its header is truncated. Extension headers may precede
/// TCP; they are repeated like the other headers.
fn is_ipv6(packet: &[u8], ip: usize, tcp: usize) -> Option<bool> {
    let header = packet.get(ip..ip + header::IPV6_HEADER)?;
    let payload = ip + header::IPV6_HEADER;
    Some(
        header[0] >> 4 == 6
            && payload <= tcp
            && payload + usize::from(u16_be(header, header::IPV6_PAYLOAD_LENGTH)) == packet.len(),
    )
}

fn u16_ne(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(..VNET_HEADER)?.get(at..at + 2)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u16_be(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Changes a 16-bit value; returns the values before and after.
fn change(bytes: &mut [u8], at: usize, how: impl FnOnce(u16) -> u16) -> (u16, u16) {
    let before = u16_be(bytes, at);
    let after = how(before);
    set(bytes, at, after);
    (before, after)
}

/// Updates a one's complement sum for a replaced word (RFC 1624, equation 3, without its complements).
fn update_checksum(sum: u16, (before, after): (u16, u16)) -> u16 {
    let sum = u32::from(sum) + u32::from(!before) + u32::from(after);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests;
