//! Models of the progress engine of `uiw-verbs`.
//!
//! The engine's own source files (`verbs/src/driver`: choice of the driving thread, hand-off, sleep
//! and wake-up) are compiled here with the types of loom or shuttle. loom runs every schedule of a
//! few threads with a limited number of preemptions; shuttle runs random schedules of more threads.
//! Descriptors, clock and network are replaced by those of `driver`: a kernel that consists of a
//! lock and condition variables, a clock that is always late, and a stack that counts arrivals.
//!
//! A wait that nothing ends is a deadlock, which both tools report. A timeout passes when no thread
//! can run, or after the core has been unlocked. If a wake-up is lost while a timer is running, the
//! thread only continues later, so this error is not found.
//!
//! `cargo xtask models` runs the tests of this crate, and shows that they notice each defect of the
//! folder `defects`.

mod driver;

pub use driver::{JoinHandle, Post, Queue, Shard, pass, set_tick};

/// Runs every schedule of `model` with at most `LOOM_MAX_PREEMPTIONS` preemptions. loom reads this
/// variable; if it is unset, two preemptions are allowed, which takes seconds. `cargo xtask models`
/// sets it to three.
#[cfg(loom)]
pub fn check(model: impl Fn() + Sync + Send + 'static) {
    check_at_most(usize::MAX, model);
}

/// Like [`check`], but with at most `preemptions` preemptions: with each further thread, there are
/// many times as many schedules.
#[cfg(loom)]
pub fn check_at_most(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(2).min(preemptions));
    let schedules = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&schedules);
    builder.check(move || {
        driver::begin();
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    println!("{} schedules", schedules.load(std::sync::atomic::Ordering::Relaxed));
}

/// Runs `schedules` random schedules of `model`.
#[cfg(shuttle)]
pub fn check(schedules: usize, model: impl Fn() + Sync + Send + 'static) {
    let model = move || {
        driver::begin();
        model();
    };
    shuttle::check_random(model, schedules);
}
