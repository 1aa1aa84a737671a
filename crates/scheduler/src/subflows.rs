//! Which subflows schedulers have closed or limited, and why.
//!
//! `unsafe` is used only to assert that the program's record consists of integers.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use plait_congestion::{Error, iterate};
use plait_linux::libbpf;
use serde::Serialize;

use crate::Scheduler;
use crate::bindings::*;
use crate::skeleton::subflows::SubflowsSkelBuilder;

/// A subflow that a scheduler steers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SteeredSubflow {
    /// The local address.
    #[serde(skip)]
    pub local: SocketAddr,
    /// The peer's address.
    #[serde(skip)]
    pub remote: SocketAddr,
    /// Its scheduler.
    pub scheduler: Scheduler,
    /// Whether it carries data.
    pub state: SubflowState,
    /// Why; `None` before the first decision.
    pub reason: Option<Reason>,
    /// The rate of a limited subflow, bits per second.
    pub limit_bps: Option<u64>,
    /// The rate of its path, as it was measured last, bits per second.
    pub rate_bps: Option<u64>,
}

/// Whether a subflow carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubflowState {
    /// As much as it can.
    Open,
    /// Up to a rate.
    Limited,
    /// None.
    Closed,
    /// A burst of data, by which the rate of its path is measured.
    Measuring,
}

/// Why a subflow is open, limited or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No other subflow is usable.
    Only,
    /// The scheduler steers nothing.
    All,
    /// Nothing waits for it for long.
    Fast,
    /// What it carries arrives before the others have sent the rest.
    InTime,
    /// What it carried would arrive after the others have sent everything.
    Late,
    /// The receive window or the send buffer would be full before what it carried arrives; if it is limited, it sends a
    /// burst by which the peer may enlarge its window.
    Window,
    /// The rate of its path is not known.
    Unknown,
    /// Another subflow has a lower round-trip time.
    Rtt,
    /// It is ahead of its share.
    Share,
    /// It is not ahead of its share.
    Behind,
    /// No usable subflow is to be preferred.
    First,
    /// Those to be preferred have more to send than they can.
    Full,
    /// Those to be preferred suffice.
    Spare,
    /// Those to be preferred miss the target.
    Target,
    /// A user's scheduler decided.
    File,
}

impl Reason {
    /// In words, for tables.
    fn text(self) -> &'static str {
        match self {
            Reason::Only => "no other is usable",
            Reason::All => "not steered",
            Reason::Fast => "fast",
            Reason::InTime => "in time",
            Reason::Late => "too late",
            Reason::Window => "buffers too small",
            Reason::Unknown => "rate unknown",
            Reason::Rtt => "higher RTT",
            Reason::Share => "ahead of share",
            Reason::Behind => "within share",
            Reason::First => "preferred",
            Reason::Full => "preferred are full",
            Reason::Spare => "preferred suffice",
            Reason::Target => "preferred miss target",
            Reason::File => "by file",
        }
    }

    fn of(number: u8) -> Option<Reason> {
        Some(match u32::from(number) {
            PLAIT_REASON_ONLY => Reason::Only,
            PLAIT_REASON_ALL => Reason::All,
            PLAIT_REASON_FAST => Reason::Fast,
            PLAIT_REASON_IN_TIME => Reason::InTime,
            PLAIT_REASON_LATE => Reason::Late,
            PLAIT_REASON_WINDOW => Reason::Window,
            PLAIT_REASON_UNKNOWN => Reason::Unknown,
            PLAIT_REASON_RTT => Reason::Rtt,
            PLAIT_REASON_SHARE => Reason::Share,
            PLAIT_REASON_BEHIND => Reason::Behind,
            PLAIT_REASON_FIRST => Reason::First,
            PLAIT_REASON_FULL => Reason::Full,
            PLAIT_REASON_SPARE => Reason::Spare,
            PLAIT_REASON_TARGET => Reason::Target,
            PLAIT_REASON_FILE => Reason::File,
            _ => return None,
        })
    }
}

/// Lists the subflows that plait's schedulers steer.
#[derive(Debug)]
pub struct SteeredSubflows {
    program: Link,
}

impl SteeredSubflows {
    /// Loads the program that lists them.
    ///
    /// # Errors
    /// [`Error::Kernel`]: this requires root.
    pub fn open() -> Result<SteeredSubflows, Error> {
        libbpf::log_messages();
        let open = || {
            let mut storage = MaybeUninit::uninit();
            let program = SubflowsSkelBuilder::default().open(&mut storage)?.load()?;
            program.progs.list_subflows.attach()
        };
        Ok(SteeredSubflows { program: open().map_err(Error::kernel("list subflows"))? })
    }

    /// Those of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn list(&self) -> Result<Vec<SteeredSubflow>, Error> {
        let read = || {
            let bytes = iterate(&self.program)?;
            let records = bytes.as_chunks::<SIZE>().0.iter();
            Ok(records.filter_map(|record| subflow(&bytemuck::pod_read_unaligned(record))).collect())
        };
        read().map_err(Error::kernel("list subflows"))
    }
}

impl SteeredSubflow {
    /// Its state and the reason, in words, such as `closed (too late)`.
    pub fn text(&self) -> String {
        let state = match (self.state, self.limit_bps) {
            (SubflowState::Open, _) => "open".into(),
            (SubflowState::Limited, limit) => {
                format!("limited to {:.1} Mb/s", limit.unwrap_or(0) as f64 / 1e6)
            }
            (SubflowState::Closed, _) => "closed".into(),
            (SubflowState::Measuring, _) => "measured".to_owned(),
        };
        match self.reason {
            Some(reason) => format!("{state} ({})", reason.text()),
            None => state,
        }
    }
}

fn subflow(record: &plait_subflow) -> Option<SteeredSubflow> {
    let name = record.algorithm.split(|byte| *byte == 0).next()?;
    let scheduler = Scheduler::of_kernel_name(str::from_utf8(name).ok()?)?;
    let state = match record.max_rate {
        _ if record.is_measuring != 0 => SubflowState::Measuring,
        0 => SubflowState::Closed,
        PLAIT_UNLIMITED => SubflowState::Open,
        _ => SubflowState::Limited,
    };
    let bps = |bytes: u32| u64::from(bytes) * 8;
    Some(SteeredSubflow {
        local: address(record.family, record.local_address, record.local_port),
        remote: address(record.family, record.remote_address, record.remote_port),
        scheduler,
        state,
        reason: Reason::of(record.reason),
        limit_bps: (state == SubflowState::Limited).then(|| bps(record.max_rate)),
        rate_bps: (record.rate != 0).then(|| bps(record.rate)),
    })
}

fn address(family: u16, bytes: [u8; 16], port: u16) -> SocketAddr {
    let [a, b, c, d, ..] = bytes;
    let ip = if family == AF_INET { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
    SocketAddr::new(ip.to_canonical(), port)
}

// SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Zeroable for plait_subflow {}
// SAFETY: as above.
unsafe impl Pod for plait_subflow {}

const SIZE: usize = size_of::<plait_subflow>();
const AF_INET: u16 = 2;
