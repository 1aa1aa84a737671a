//! `plait policy dry-run`: runs the packets of a capture through a policy, by test runs of its programs.
//!
//! The kernel runs the programs that would be attached; nothing is received or sent, and no interface is changed.
//! Subflow records persist from packet to packet, as if the packets were live traffic.

mod frame;
mod report;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use plait_config::AtomicFile;
use plait_policy::engine::{DryRun, TestPacket, TestRun, Verdict};
use plait_policy::{Hook, Policy};
use plait_wire::capture::{CaptureReader, PcapHeader, PcapWriter, Record};
use plait_wire::{LinkType, Skip};

use self::frame::CapturedFrame;
use self::report::Report;
use super::read;
use crate::paths::address;

/// Run the packets of a capture through a policy without attaching it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy in TOML; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The capture: pcap or pcapng, plain or compressed; - reads stdin
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    /// Write the packets that would be passed on or sent, with their modifications
    #[arg(short, long, value_name = "OUT.pcap")]
    output: Option<PathBuf>,
    /// The hook all packets pass, ingress or egress [default: the hook of the chains, if it is the same for all]
    #[arg(long, value_name = "HOOK", value_parser = hook, conflicts_with = "local")]
    hook: Option<Hook>,
    /// An address of the host: packets from it are egress, others ingress
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    local: Vec<IpAddr>,
    /// The interface all packets pass [default: one that each chain applies to]
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Process ingress packets by TC, as on interfaces without XDP
    #[arg(long)]
    tc: bool,
    /// The mark of the packets' sockets, such as 0x10
    #[arg(long, value_name = "MARK", value_parser = mark, default_value = "0")]
    mark: u32,
    /// Print a line of JSON for each packet, and one with totals
    #[arg(long)]
    json: bool,
}

fn hook(text: &str) -> Result<Hook, String> {
    let named = [Hook::Ingress, Hook::Egress].into_iter().find(|hook| hook.name() == text);
    named.ok_or_else(|| "expected ingress or egress".into())
}

fn mark(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "expected a 32-bit number, such as 16 or 0x10".into())
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.file != Path::new("-") || args.capture != Path::new("-"),
        "expected stdin (-) for the policy or the capture, got it for both"
    );
    let policy = read(&args.file)?;
    let direction = Direction::of(args, &policy)?;
    let mut capture = open(&args.capture)?;
    let dry_run = DryRun::new(std::slice::from_ref(&policy), args.interface.as_deref())?;
    let mut output = args.output.clone().map(Output::new);
    let mut report = Report::new(args.json);
    let failed = |number: u64| format!("packet {number} of {}", args.capture.display());
    loop {
        let number = report.packets() + 1;
        let Some(record) = capture.next_record().with_context(|| failed(number))? else { break };
        let hook = direction.of_packet(&record);
        let ran = run_packet(&dry_run, args, &record, hook).with_context(|| failed(number))?;
        if let Some(output) = output.as_mut().filter(|_| ran.verdict != Verdict::Drop) {
            output.write(&record, &ran.bytes)?;
        }
        report.packet(&record, hook, &ran)?;
    }
    if let Some(output) = output {
        output.finish()?;
    }
    report.finish(&dry_run)
}

/// The result for a packet, with the whole frame as in the capture.
fn run_packet(dry_run: &DryRun, args: &Args, record: &Record<'_>, hook: Hook) -> anyhow::Result<TestRun> {
    let at_tc = args.tc || hook == Hook::Egress;
    let Some(captured) = CapturedFrame::new(record).filter(|captured| !at_tc || captured.has_whole_ip())
    else {
        return Ok(TestRun {
            verdict: Verdict::Pass,
            redirected_to: None,
            bytes: record.data.to_vec(),
            kinds: Vec::new(),
            chains: Vec::new(),
            nanoseconds: 0,
        });
    };
    let frame = TestPacket { hook, via_tc: args.tc, bytes: captured.frame(), mark: args.mark };
    let ran = dry_run.run(&frame, 1)?;
    Ok(TestRun { bytes: captured.restore(&ran.bytes), ..ran })
}

/// Which packets are egress.
enum Direction<'a> {
    All(Hook),
    From(&'a [IpAddr]),
}

impl<'a> Direction<'a> {
    fn of(args: &'a Args, policy: &Policy) -> anyhow::Result<Direction<'a>> {
        if let Some(hook) = args.hook {
            return Ok(Direction::All(hook));
        }
        if !args.local.is_empty() {
            return Ok(Direction::From(&args.local));
        }
        let mut hooks: Vec<_> = policy.chains.iter().map(|chain| chain.hook).collect();
        hooks.dedup();
        match hooks[..] {
            [] => Ok(Direction::All(Hook::Ingress)),
            [hook] => Ok(Direction::All(hook)),
            _ => bail!(
                "policy '{}' has chains of both hooks: name the addresses of this host with --local ADDRESS, or choose one \
                 hook with --hook",
                policy.name
            ),
        }
    }

    fn of_packet(&self, record: &Record<'_>) -> Hook {
        let local = match self {
            Direction::All(hook) => return *hook,
            Direction::From(local) => local,
        };
        let source = match record.segment() {
            Ok(segment) => Some(segment.source.ip()),
            Err(Skip::NotTcp { source, .. }) => Some(source),
            Err(_) => None,
        };
        if source.is_some_and(|source| local.contains(&source)) { Hook::Egress } else { Hook::Ingress }
    }
}

fn open(path: &Path) -> anyhow::Result<CaptureReader<Box<dyn Read>>> {
    let failed = || format!("cannot read {}", path.display());
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(BufReader::new(File::open(path).with_context(failed)?)),
    };
    CaptureReader::new(input).with_context(failed)
}

/// A capture file that appears only when it is complete.
struct Output {
    path: PathBuf,
    writer: Option<(LinkType, PcapWriter<BufWriter<AtomicFile>>)>,
}

impl Output {
    fn new(path: PathBuf) -> Output {
        Output { path, writer: None }
    }

    fn write(&mut self, record: &Record<'_>, bytes: &[u8]) -> anyhow::Result<()> {
        let (link_type, writer) = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert((record.link_type, create(&self.path, record.link_type)?)),
        };
        ensure!(
            *link_type == record.link_type,
            "expected all packets to be of one link type to write them to {}, got {} and {}: run without -o",
            self.path.display(),
            link_type.number(),
            record.link_type.number()
        );
        writer.write(record.time, bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn finish(self) -> anyhow::Result<()> {
        let writer = match self.writer {
            Some((_, writer)) => writer,
            None => create(&self.path, LinkType::Ethernet)?,
        };
        let whole = writer.into_inner().into_inner().map_err(io::IntoInnerError::into_error);
        whole.and_then(AtomicFile::publish).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn create(path: &Path, link_type: LinkType) -> anyhow::Result<PcapWriter<BufWriter<AtomicFile>>> {
    let writer =
        || PcapWriter::new(BufWriter::new(AtomicFile::create(path.to_owned())?), PcapHeader::new(link_type));
    writer().with_context(|| format!("cannot write {}", path.display()))
}
