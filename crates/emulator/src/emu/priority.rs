//! The priority of a link's thread: frames are late if it has to wait for a processor.
//!
//! `unsafe` because the calls of scheduling and timer slack have no safe wrapper.

/// Above all ordinary threads, and below what an administrator may have put above (1 to 99).
const PRIORITY: libc::c_int = 10;

/// Gives the calling thread real-time priority (`SCHED_FIFO`), where that is allowed, and timers that are exact either
/// way. Whether it was.
pub(super) fn raise() -> bool {
    let nanosecond: libc::c_ulong = 1;
    // SAFETY: PR_SET_TIMERSLACK takes a number and concerns this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanosecond) };
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads one sched_param; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}
