//! Real-time priority for the thread of a link: frames are late if it has to wait for a processor.
//!
//! `unsafe` because the system calls for scheduling and timer slack have no safe wrapper.

/// Above all normal threads, and low among real-time priorities (1 to 99).
const PRIORITY: libc::c_int = 10;

/// Gives the calling thread real-time priority (`SCHED_FIFO`) if permitted, and exact timers in any case. Returns whether
/// it was permitted.
pub(super) fn raise() -> bool {
    let nanosecond: libc::c_ulong = 1;
    // SAFETY: PR_SET_TIMERSLACK takes a number and affects this thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanosecond) };
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads one sched_param; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}
