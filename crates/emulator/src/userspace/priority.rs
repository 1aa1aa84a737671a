//! Real-time priority for the thread of a link, which delivers late if it has to wait for a processor.
//!
//! Uses `unsafe` because the system calls for scheduling and timer slack have no safe wrapper.

/// Above all normal threads, but low among real-time priorities (1 to 99).
const PRIORITY: libc::c_int = 10;

/// Requests real-time priority (`SCHED_FIFO`) and exact timers for the calling thread. Returns whether real-time
/// priority was permitted.
pub(super) fn raise() -> bool {
    let nanosecond: libc::c_ulong = 1;
    // SAFETY: PR_SET_TIMERSLACK takes a number and affects this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanosecond) };
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads one `sched_param`; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}
