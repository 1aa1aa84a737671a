//! Runs match programs in the kernel on given packet records.
//!
//! `unsafe` here calls the libbpf functions that run a program and query it, which libbpf-rs offers only for programs
//! from object files.

use std::fs;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libbpf_rs::libbpf_sys::{
    bpf_map_create_opts, bpf_prog_get_info_by_fd, bpf_prog_info, bpf_prog_test_run_opts, bpf_test_run_opts,
    size_t,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, num_possible_cpus};
use plait_linux::cgroup::Cgroup;

use crate::bindings::plait_packet;
use crate::compile::tests::{resolved, selecting};
use crate::compile::{Hook, ProgramKind, Resolved, match_program};

/// The map that match programs use.
pub(super) struct Kernel {
    packets: MapHandle,
}

/// A loaded program.
pub(super) struct Program<'k> {
    kernel: &'k Kernel,
    program: OwnedFd,
}

impl Kernel {
    /// `None`, with a message, without privileges.
    pub(super) fn or_skip(test: &str) -> Option<Self> {
        let kernel = Self::new();
        if kernel.is_none() {
            println!("SKIP {test}: loading BPF programs takes root");
        }
        kernel
    }

    fn new() -> Option<Self> {
        let options =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as size_t, ..Default::default() };
        let size = size_of::<plait_packet>() as u32;
        let packets =
            MapHandle::create(MapType::PercpuArray, Some("plait_test"), 4, size, 1, &options).ok()?;
        Some(Self { packets })
    }

    pub(super) fn load(&self, kind: ProgramKind, hook: Hook, chains: &[Resolved]) -> Program<'_> {
        let program = match_program(kind, hook, chains, self.packets.as_fd());
        let program =
            program.expect("a program").load(c"plait_test", false).unwrap_or_else(|error| panic!("{error}"));
        Program { kernel: self, program }
    }

    /// A single chain at XDP with slot 100.
    pub(super) fn load_selector(&self, text: &str) -> Program<'_> {
        self.load(ProgramKind::Xdp, Hook::Ingress, &resolved(&[selecting(text)]))
    }
}

impl Program<'_> {
    /// Runs it on a record: the chains it found, and its verdict.
    pub(super) fn run(&self, record: &[u8]) -> (Vec<u16>, i32) {
        let packets = &self.kernel.packets;
        let key = 0u32.to_ne_bytes();
        // On any CPU.
        let records = vec![record.to_vec(); num_possible_cpus().expect("processors")];
        packets.update_percpu(&key, &records, MapFlags::ANY).expect("a record");
        let verdict = self.test_run(1).0;
        let records = packets.lookup_percpu(&key, MapFlags::ANY).expect("the map").expect("its entry");
        let count = |record: &[u8]| usize::from(record[offset_of!(plait_packet, chain_count)]);
        let record = records.iter().max_by_key(|record| count(record)).expect("a processor");
        let chains = record[offset_of!(plait_packet, chains)..].chunks_exact(2).take(count(record));
        (chains.map(|slot| u16::from_ne_bytes([slot[0], slot[1]])).collect(), verdict)
    }

    /// Runs it repeatedly: its verdict, and the nanoseconds per run.
    pub(super) fn test_run(&self, repeat: i32) -> (i32, u32) {
        let frame = [0u8; 64];
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat,
            ..Default::default()
        };
        // SAFETY: the frame and the options have the given lengths and outlive the call.
        let result = unsafe { bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut options) };
        assert_eq!(result, 0, "the program runs");
        (options.retval as i32, options.duration)
    }

    /// The number of its instructions, and of those the verifier processed.
    pub(super) fn verified(&self) -> (u32, u32) {
        let mut info = bpf_prog_info::default();
        let mut size = size_of::<bpf_prog_info>() as u32;
        // SAFETY: writes at most `size` bytes, and no arrays.
        let result = unsafe { bpf_prog_get_info_by_fd(self.program.as_raw_fd(), &mut info, &mut size) };
        assert_eq!(result, 0, "the kernel reports the program");
        (info.xlated_prog_len / 8, info.verified_insns)
    }
}

/// A control group of this process until drop: its path, its ID, and the ID of the root.
pub(super) struct Inside {
    _cgroup: Cgroup,
    pub(super) path: String,
    pub(super) id: u64,
    pub(super) root: u64,
}

impl Inside {
    pub(super) fn enter() -> Option<Self> {
        let cgroup = Cgroup::create_below_current("policy-test").ok()?;
        cgroup.enter().ok()?;
        let table = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = table.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = Path::new(mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?);
        let id = |path: &str| Some(fs::metadata(mount.join(path.trim_start_matches('/'))).ok()?.ino());
        Some(Self { id: id(&path)?, root: id("/")?, path, _cgroup: cgroup })
    }
}
