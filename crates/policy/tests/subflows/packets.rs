//! Builds and parses packets of subflows without code of the tested programs.

use plait_policy::engine::{DryRun, FlowDirection, TestPacket, TestRun, Verdict};
use plait_policy::{Hook, Policy};

/// The format of packets at a hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketFormat {
    /// The hook under test.
    pub(crate) hook: Hook,
    /// Process ingress packets by TC instead of XDP.
    pub(crate) via_tc: bool,
    pub(crate) v6: bool,
    /// VLAN tags.
    pub(crate) tags: usize,
    /// Bytes of IPv4 options.
    pub(crate) ip_options: usize,
    pub(crate) checksum: Checksum,
}

/// The state of the TCP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    Full,
    /// Partial: the pseudo header only, to be completed by the interface.
    Partial,
    Wrong,
}

/// Variants that cover each value.
pub(crate) fn packet_formats() -> Vec<PacketFormat> {
    let mut packet_formats = Vec::new();
    for (hook, via_tc) in [(Hook::Ingress, false), (Hook::Ingress, true), (Hook::Egress, true)] {
        for (v6, tags, ip_options) in
            [(false, 0, 0), (false, 1, 0), (false, 2, 40), (false, 0, 4), (true, 0, 0), (true, 2, 0)]
        {
            for checksum in [Checksum::Full, Checksum::Partial] {
                packet_formats.push(PacketFormat { hook, via_tc, v6, tags, ip_options, checksum });
            }
        }
    }
    packet_formats
}

/// The other hook, which sees the other direction.
pub(crate) fn opposite(hook: Hook) -> Hook {
    if hook == Hook::Ingress { Hook::Egress } else { Hook::Ingress }
}

/// Whether test runs are possible; if not, prints a message.
pub(crate) fn may_run() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let thread = std::thread::current();
        println!("SKIP {}: running programs in the kernel takes root", thread.name().unwrap_or("a test"));
    }
    is_root
}

/// A policy with a chain for each selector and actors, at this hook of every interface.
pub(crate) fn dry_run(hook: Hook, chains: &[(&str, &str)]) -> DryRun {
    dry_run_with("", hook, chains)
}

/// The same, with these lines at the top of the policy.
pub(crate) fn dry_run_with(lines: &str, hook: Hook, chains: &[(&str, &str)]) -> DryRun {
    let chains: Vec<_> = chains.iter().map(|(select, actors)| ("a0", hook, *select, *actors)).collect();
    DryRun::new(&[policy(lines, &chains)], None).expect("a dry_run")
}

/// A policy with these lines at its top, and one chain per tuple of interface, hook, selector and actors.
pub(crate) fn policy(lines: &str, chains: &[(&str, Hook, &str, &str)]) -> Policy {
    let chains = chains.iter().enumerate().map(|(number, (interface, hook, select, actors))| {
        format!(
            "[[chains]]\nname = \"c{number}\"\nhook = \"{hook}\"\ninterfaces = [\"{interface}\"]\n\
             select = \"{select}\"\nactors = [{actors}]\n"
        )
    });
    Policy::parse(&format!("{lines}\n{}", chains.collect::<String>()), "test").expect("a policy")
}

/// Checks a subflow at each format, with these chains at its hook.
pub(crate) fn for_each_format(chains: &[(&str, &str)], mut check: impl FnMut(&Subflow)) {
    if !may_run() {
        return;
    }
    for hook in [Hook::Ingress, Hook::Egress] {
        let dry_run = dry_run(hook, chains);
        for (number, format) in (1..).zip(packet_formats().into_iter().filter(|format| format.hook == hook)) {
            check(&Subflow { dry_run: &dry_run, format, port: number * 10 });
        }
    }
}

/// The errors of the only actor of a chain.
pub(crate) fn errors(dry_run: &DryRun, chain: usize) -> u64 {
    dry_run.statistics().expect("statistics").policies[0].chains[chain].actors[0].count.errors
}

/// A TCP segment, without ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const FIN: u8 = 0x01;

/// NOP, NOP, timestamps.
pub(crate) const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
/// With a DATA_ACK of 8 bytes and of 4 (RFC 8684, section 3.3).
pub(crate) const DATA_ACK_8: [u8; 12] = [30, 12, 0x20, 0x03, 1, 2, 3, 4, 5, 6, 7, 8];
pub(crate) const DATA_ACK_4: [u8; 8] = [30, 8, 0x20, 0x01, 5, 6, 7, 8];

/// A pure acknowledgment of an established subflow, sent by the side whose packets pass the hook.
pub(crate) fn acknowledgment(options: &[u8]) -> Segment {
    Segment { flags: ACK, seq: 1001, ack: 5001, window: 501, options: options.into(), payload: Vec::new() }
}

/// The acknowledgment that Linux sends.
pub(crate) fn usual() -> Segment {
    acknowledgment(&[&TIMESTAMPS[..], &DATA_ACK_8].concat())
}

/// A subflow, identified by its port.
pub(crate) struct Subflow<'a> {
    pub(crate) dry_run: &'a DryRun,
    pub(crate) format: PacketFormat,
    pub(crate) port: u16,
}

impl Subflow<'_> {
    /// What is recorded of the direction whose packets pass the hook.
    pub(crate) fn direction(&self) -> FlowDirection {
        let flows = self.dry_run.flows().expect("subflows");
        let flow = flows.into_iter().find(|flow| flow.tuple.remote.port() == self.port);
        let flow = flow.expect("the subflow");
        if self.format.hook == Hook::Ingress { flow.received } else { flow.sent }
    }

    /// Runs the packets of an MP_CAPABLE handshake, which must not be modified.
    pub(crate) fn open(&self) {
        let key = |last| [1, 2, 3, 4, 5, 6, 7, last];
        let syn = [&[30, 4, 0x01, 0x01, 3, 3, 7, 1][..]].concat();
        let syn_ack = [&[30, 12, 0x01, 0x01][..], &key(1), &[3, 3, 7, 1]].concat();
        let ack = [&TIMESTAMPS[..], &[30, 20, 0x01, 0x01], &key(2), &key(1)].concat();
        self.shake_hands([syn, syn_ack, ack]);
    }

    /// The same for MP_JOIN, with these flags in the SYN.
    pub(crate) fn join(&self, flags: u8) {
        let syn = [&[30, 12, 0x10 | flags, 3][..], &[1; 8], &[3, 3, 7, 1]].concat();
        let syn_ack = [&[30, 16, 0x10, 4][..], &[2; 12], &[3, 3, 7, 1]].concat();
        let ack = [&TIMESTAMPS[..], &[30, 24, 0x10, 0], &[3; 20]].concat();
        self.shake_hands([syn, syn_ack, ack]);
    }

    /// The side whose packets pass the hook initiates.
    fn shake_hands(&self, [syn, syn_ack, ack]: [Vec<u8>; 3]) {
        for (hook, flags, seq, ack, options) in [
            (self.format.hook, SYN, 1000, 0, syn),
            (opposite(self.format.hook), SYN | ACK, 5000, 1001, syn_ack),
            (self.format.hook, ACK, 1001, 5001, ack),
        ] {
            let segment = Segment { flags, seq, ack, window: 64000, options, payload: Vec::new() };
            let (ran, frame) = self.run_at(hook, &segment);
            assert_eq!((ran.verdict, ran.bytes), (Verdict::Pass, frame), "{:?} {segment:?}", self.format);
        }
    }

    /// Runs an acknowledgment of the other side with this window.
    pub(crate) fn acknowledged(&self, window: u16) {
        let segment = Segment { seq: 5001, ack: 1001, window, ..usual() };
        self.run_at(opposite(self.format.hook), &segment);
    }

    /// Asserts that the packet passes unmodified.
    #[track_caller]
    pub(crate) fn stays(&self, segment: &Segment) {
        let (ran, frame) = self.run_at(self.format.hook, segment);
        assert_eq!(ran.verdict, Verdict::Pass, "{:?} {segment:?}", self.format);
        assert_eq!(ran.bytes, frame, "{:?} {segment:?}", self.format);
    }

    /// Runs a packet; only TCP, lengths and checksums may change.
    #[track_caller]
    pub(crate) fn becomes(&self, segment: &Segment) -> Segment {
        let (ran, frame) = self.run_at(self.format.hook, segment);
        assert_eq!(ran.verdict, Verdict::Pass, "{:?} {segment:?}", self.format);
        let (before, after) = (Parts::of(self.format, &frame), Parts::of(self.format, &ran.bytes));
        assert_eq!(before.ethernet, after.ethernet);
        assert_eq!(before.unchanging_ip(), after.unchanging_ip());
        assert_eq!(before.tcp[..4], after.tcp[..4], "ports");
        after.check(self.format.checksum);
        after.segment()
    }

    /// Runs a packet.
    pub(crate) fn run(&self, segment: &Segment) -> TestRun {
        self.run_at(self.format.hook, segment).0
    }

    /// Runs a packet that must be answered.
    #[track_caller]
    pub(crate) fn answer(&self, segment: &Segment) -> Segment {
        let (ran, frame) = self.run_at(self.format.hook, segment);
        assert_eq!(ran.verdict, Verdict::Answer, "{:?}", self.format);
        let (before, after) = (Parts::of(self.format, &frame), Parts::of(self.format, &ran.bytes));
        let turned = |bytes: &[u8]| {
            let (one, other) = bytes.split_at(bytes.len() / 2);
            [other, one].concat()
        };
        assert_eq!(before.ethernet[..12], turned(&after.ethernet[..12]));
        assert_eq!(before.ethernet[12..], after.ethernet[12..]);
        assert_eq!(before.addresses(), turned(after.addresses()));
        assert_eq!(before.tcp[..4], turned(&after.tcp[..4]));
        assert_eq!(after.ip[if self.format.v6 { 7 } else { 8 }], 64, "it can go as far as others");
        let by_xdp = self.format.hook == Hook::Ingress && !self.format.via_tc;
        after.check(if by_xdp { Checksum::Full } else { self.format.checksum });
        after.segment()
    }

    fn run_at(&self, hook: Hook, segment: &Segment) -> (TestRun, Vec<u8>) {
        let bytes = self.frame(hook, segment);
        let frame = TestPacket { hook, via_tc: self.format.via_tc, bytes: &bytes, mark: 0 };
        let ran = self.dry_run.run(&frame, 1).expect("a run");
        (ran, bytes)
    }

    fn frame(&self, hook: Hook, segment: &Segment) -> Vec<u8> {
        let PacketFormat { v6, tags, ip_options, checksum, .. } = self.format;
        let (own, peer) = ((1, 40000), (2, self.port));
        let ((from, from_port), (to, to_port)) = if hook == Hook::Egress { (own, peer) } else { (peer, own) };
        let address = |host: u8| {
            if v6 { [&[0xfd; 15][..], &[host]].concat() } else { vec![192, 0, 2, host] }
        };
        let mut frame = [[2, 0, 0, 0, 0, to], [2, 0, 0, 0, 0, from]].concat();
        frame.extend([0x81, 0x00, 0x00, 0x05].repeat(tags));
        frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let length = 20 + segment.options.len() + segment.payload.len();
        if v6 {
            frame.extend([0x60, 0, 0, 1]);
            frame.extend((length as u16).to_be_bytes());
            frame.extend([6, 57]);
            frame.extend([address(from), address(to)].concat());
        } else {
            let mut ip = vec![0x45 + (ip_options / 4) as u8, 0];
            ip.extend(((20 + ip_options + length) as u16).to_be_bytes());
            ip.extend([0x12, 0x34, 0x40, 0, 57, 6, 0, 0]);
            ip.extend([address(from), address(to)].concat());
            ip.extend(vec![1; ip_options]);
            let sum = !sum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend(ip);
        }
        let mut tcp = [u16::to_be_bytes(from_port), u16::to_be_bytes(to_port)].concat();
        tcp.extend(segment.seq.to_be_bytes());
        tcp.extend(segment.ack.to_be_bytes());
        tcp.extend([((20 + segment.options.len()) / 4 * 16) as u8, segment.flags]);
        tcp.extend(segment.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&segment.options);
        tcp.extend(&segment.payload);
        let pseudo = pseudo(&address(from), &address(to), tcp.len());
        let value = match checksum {
            Checksum::Partial => sum(&pseudo),
            Checksum::Full => !sum(&[pseudo, tcp.clone()].concat()),
            Checksum::Wrong => !sum(&[pseudo, tcp.clone()].concat()) ^ 0x0100,
        };
        tcp[16..18].copy_from_slice(&value.to_be_bytes());
        frame.extend(tcp);
        frame
    }
}

/// The headers of a frame.
struct Parts<'a> {
    ethernet: &'a [u8],
    ip: &'a [u8],
    tcp: &'a [u8],
    v6: bool,
}

impl<'a> Parts<'a> {
    fn of(format: PacketFormat, frame: &'a [u8]) -> Parts<'a> {
        let (ethernet, rest) = frame.split_at(14 + format.tags * 4);
        let (ip, tcp) = rest.split_at(if format.v6 { 40 } else { 20 + format.ip_options });
        Parts { ethernet, ip, tcp, v6: format.v6 }
    }

    fn addresses(&self) -> &[u8] {
        if self.v6 { &self.ip[8..40] } else { &self.ip[12..20] }
    }

    /// Everything but the length and the IPv4 checksum.
    fn unchanging_ip(&self) -> Vec<u8> {
        let mut ip = self.ip.to_vec();
        let changing: &[usize] = if self.v6 { &[4, 5] } else { &[2, 3, 10, 11] };
        for at in changing {
            ip[*at] = 0;
        }
        ip
    }

    /// Asserts that lengths and checksums are valid.
    #[track_caller]
    fn check(&self, checksum: Checksum) {
        let length = |at| usize::from(u16::from_be_bytes([self.ip[at], self.ip[at + 1]]));
        if self.v6 {
            assert_eq!(length(4), self.tcp.len());
        } else {
            assert_eq!(length(2), self.ip.len() + self.tcp.len());
            assert_eq!(sum(self.ip), 0xffff, "the checksum of IPv4");
        }
        let (source, destination) = self.addresses().split_at(self.addresses().len() / 2);
        let pseudo = pseudo(source, destination, self.tcp.len());
        if checksum == Checksum::Partial {
            assert_eq!(self.tcp[16..18], sum(&pseudo).to_be_bytes(), "the sum of the pseudo header");
        } else {
            assert_eq!(sum(&[&pseudo[..], self.tcp].concat()), 0xffff, "the checksum of TCP");
        }
    }

    fn segment(&self) -> Segment {
        let number = |at: usize| u32::from_be_bytes(self.tcp[at..at + 4].try_into().expect("4 bytes"));
        let header = usize::from(self.tcp[12] >> 4) * 4;
        Segment {
            flags: self.tcp[13],
            seq: number(4),
            ack: number(8),
            window: u16::from_be_bytes([self.tcp[14], self.tcp[15]]),
            options: self.tcp[20..header].into(),
            payload: self.tcp[header..].into(),
        }
    }
}

fn pseudo(source: &[u8], destination: &[u8], length: usize) -> Vec<u8> {
    [source, destination, &(length as u32).to_be_bytes(), &[0, 0, 0, 6]].concat()
}

/// The checksum of RFC 1071.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
