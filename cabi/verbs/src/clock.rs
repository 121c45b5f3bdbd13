//! Clocks of completion timestamps.

/// Returns the time of the clock for completion timestamps, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    now(libc::CLOCK_MONOTONIC)
}

/// Returns the time of the wall clock, in nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    now(libc::CLOCK_REALTIME)
}

fn now(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one time to `now`, a local variable of this type. Both callers pass a
    // clock that exists, and any other would give an error.
    unsafe { libc::clock_gettime(id, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
