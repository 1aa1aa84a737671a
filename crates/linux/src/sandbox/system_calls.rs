//! Restricts system calls, by seccomp (`seccomp(2)`): those that are not listed fail with EPERM.
//!
//! The kernel remembers which calls are allowed whatever their arguments are, and does not run the filters for them (since
//! 5.11). So only the few calls whose arguments are examined cost anything, none of which carries data.

use std::collections::BTreeMap;

use libc::c_long;
use rustix::process::{Pid, getpid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

use super::{MissingFeature, SandboxError};

/// Calls that are allowed with any arguments: data and files, time, memory, threads, and what only tells.
const ALLOWED: &[c_long] = &[
    // Data and descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_splice,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Readiness and time.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    // Files, which Landlock and the user restrict.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_lseek,
    libc::SYS_fadvise64,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads and signals. clone3 is for the other filter to answer.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The end of the program that `plait run` runs.
    libc::SYS_wait4,
    libc::SYS_waitid,
    // What only tells.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrandom,
    libc::SYS_getcpu,
    libc::SYS_uname,
    libc::SYS_sysinfo,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_LEGACY: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_mkdir,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_LEGACY: &[c_long] = &[];

/// The address families that gateways use: those of carried connections, of the resolver, and of netlink.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Of a resolver that reads a reply, of the standard library on sockets, and of the question whether stderr is a terminal.
const IOCTLS: [u64; 3] = [libc::FIONREAD, libc::FIONBIO, libc::TCGETS];

/// Operations on maps that are open, and on attachments: BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM,
/// BPF_OBJ_GET_INFO_BY_FD (`bpf(2)`).
const BPF_COMMANDS: [u64; 4] = [1, 2, 3, 15];

/// BPF_LINK_CREATE, which takes a program that is open.
const BPF_ATTACH: u64 = 28;

/// The filters that every thread installs, in this order.
pub(super) fn filters(signals: Option<Pid>, attaches: bool) -> Result<Vec<BpfProgram>, SandboxError> {
    let any = |error: seccompiler::BackendError| SandboxError::Rules(error.to_string());
    let architecture: TargetArch = std::env::consts::ARCH.try_into().map_err(any)?;
    let program = |rules, otherwise, matching| {
        SeccompFilter::new(rules, otherwise, matching, architecture).and_then(BpfProgram::try_from)
    };
    // Its flags are in memory, where no filter can see them. glibc then creates threads by clone().
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let clone3 =
        program(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32)).map_err(any)?;
    let rules = rules(signals, attaches).map_err(any)?;
    let listed =
        program(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow).map_err(any)?;
    // The last one wins, and prevents further ones.
    Ok(vec![clone3, listed])
}

fn rules(
    signals: Option<Pid>,
    attaches: bool,
) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        ALLOWED.iter().chain(ALLOWED_LEGACY).map(|call| (*call, Vec::new())).collect();
    let equal = |argument, value: u64| {
        SeccompRule::new(vec![SeccompCondition::new(argument, Length::Dword, Compare::Eq, value)?])
    };
    let families = FAMILIES.iter().map(|family| equal(0, family.unsigned_abs().into()));
    rules.insert(libc::SYS_socket, families.collect::<Result<_, _>>()?);
    rules.insert(
        libc::SYS_ioctl,
        IOCTLS.into_iter().map(|request| equal(1, request)).collect::<Result<_, _>>()?,
    );
    rules.insert(
        libc::SYS_bpf,
        BPF_COMMANDS
            .into_iter()
            .chain(attaches.then_some(BPF_ATTACH))
            .map(|command| equal(0, command))
            .collect::<Result<_, _>>()?,
    );
    // Threads, but no processes: namespaces, which need none, are those of the process.
    let thread = libc::CLONE_THREAD.unsigned_abs().into();
    let threads = SeccompCondition::new(0, Length::Dword, Compare::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![threads])?]);
    rules.insert(libc::SYS_prctl, vec![equal(0, libc::PR_SET_NAME.unsigned_abs().into())?]);
    // Only to ask: the last argument but one is the new limit.
    let asks = SeccompCondition::new(2, Length::Qword, Compare::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![asks])?]);
    let pid = |pid: Pid| equal(0, pid.as_raw_nonzero().get().unsigned_abs().into());
    rules.insert(libc::SYS_tgkill, vec![pid(getpid())?]);
    if let Some(child) = signals {
        rules.insert(libc::SYS_kill, vec![pid(child)?]);
    }
    Ok(rules)
}

/// Restricts the calling thread.
pub(super) fn restrict(filters: &[BpfProgram]) -> Result<Option<MissingFeature>, SandboxError> {
    for filter in filters {
        match apply_filter(filter) {
            Ok(()) => {}
            Err(seccompiler::Error::Seccomp(error)) if is_missing(&error) => {
                return Ok(Some(MissingFeature::Seccomp));
            }
            Err(error) => {
                let reason = std::io::Error::other(error.to_string());
                return Err(SandboxError::Refused { action: "restrict system calls by seccomp", reason });
            }
        }
    }
    Ok(None)
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}
