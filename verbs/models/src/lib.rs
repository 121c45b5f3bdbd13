//! Models of the progress engine of `uiw-verbs`.
//!
//! The engine's own source files (`verbs/src/driver`: who drives, hand-off, sleep and wake-up) are compiled here with the types of
//! loom, which runs every schedule of a few threads up to a number of preemptions, or of shuttle, which draws schedules of more
//! threads at random. In place of descriptors, clock and network stand those of [`driver`]: a kernel that is a lock and condition
//! variables, a clock that is always late, and a stack that counts arrivals.
//!
//! A wait that nothing ends is a deadlock, which both tools report. A time-out passes when no thread can run, or after the core was
//! unlocked: a wake-up that is lost while a timer repairs it is late, and not found.
//!
//! `cargo xtask models` runs the tests of this crate.

mod driver;

pub use driver::{JoinHandle, Mutant, Post, Queue, Shard, pass, set_tick, spawn};

use std::cell::Cell;

thread_local! {
    /// Both tools run all threads of a model on the thread that starts it.
    static MUTANT: Cell<Option<Mutant>> = const { Cell::new(None) };
}

fn is_mutant(mutant: Mutant) -> bool {
    MUTANT.get() == Some(mutant)
}

/// Runs every schedule of `model` with at most `preemptions` preemptions.
#[cfg(loom)]
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
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

/// Whether `check` fails with `mutant` switched on.
pub fn finds(mutant: Mutant, check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    MUTANT.set(Some(mutant));
    let found = std::panic::catch_unwind(check).is_err();
    MUTANT.set(None);
    found
}
