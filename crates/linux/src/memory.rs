//! Memory that this process has freed.

/// Returns freed memory to the system, which the C library keeps for later: after a peak, most of what it took. Takes
/// milliseconds. Does nothing with other C libraries than glibc.
pub fn release_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
