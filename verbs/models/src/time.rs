//! Threads, and when a time-out passes: when no other thread can run, or after the core was
//! unlocked.
//!
//! A sleep with a time-out that ended at once would be a loop that yields, of which loom runs
//! schedules without end in which the thread that would end it never runs.

use super::sync::{Condvar, Mutex, thread};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// A thread in one sleep.
#[derive(Default)]
pub(super) struct Sleeper {
    state: Mutex<SleepState>,
    condvar: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SleepState {
    #[default]
    Before,
    Asleep,
    Woken,
}

/// State of all threads of a model, counted outside of the tools' view: every thread of a model
/// runs on one thread of the system.
#[derive(Default)]
struct ThreadStates {
    live: usize,
    /// Threads in a sleep, or waiting for the end of another.
    asleep: usize,
    /// Threads whose sleep has a time-out.
    timed: Vec<Arc<Sleeper>>,
}

thread_local! {
    static THREADS: RefCell<ThreadStates> = RefCell::default();
}

/// A model begins: the calling thread is its only one.
pub(crate) fn begin() {
    THREADS.set(ThreadStates { live: 1, ..ThreadStates::default() });
}

fn count(change: impl FnOnce(&mut ThreadStates)) {
    THREADS.with_borrow_mut(change);
}

/// Lets all time-outs pass.
pub fn pass() {
    let timed = THREADS.with_borrow_mut(|threads| std::mem::take(&mut threads.timed));
    timed.iter().for_each(|sleeper| sleeper.wake());
}

/// Lets all time-outs pass if no thread can run.
fn pass_if_idle() {
    if THREADS.with_borrow(|threads| threads.asleep == threads.live) {
        pass();
    }
}

impl Sleeper {
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut *state, SleepState::Woken) == SleepState::Asleep {
            count(|threads| threads.asleep -= 1);
            self.condvar.notify_one();
        }
    }
}

/// Sleeps until woken. `timed`: or until time passes.
pub(super) fn sleep(sleeper: &Arc<Sleeper>, timed: bool) {
    {
        let mut state = sleeper.state.lock();
        if *state == SleepState::Woken {
            return;
        }
        *state = SleepState::Asleep;
        count(|threads| {
            threads.asleep += 1;
            if timed {
                threads.timed.push(Arc::clone(sleeper));
            }
        });
    }
    pass_if_idle();
    let mut state = sleeper.state.lock();
    while *state != SleepState::Woken {
        state = sleeper.condvar.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Lets other threads run.
pub(super) fn yield_now() {
    sleep(&Arc::default(), true);
}

/// A thread of a model.
pub struct JoinHandle {
    thread: thread::JoinHandle<()>,
    end: Arc<ThreadEnd>,
}

/// The end of a thread.
#[derive(Default)]
struct ThreadEnd {
    has_come: AtomicBool,
    /// Another thread waits for it.
    is_awaited: AtomicBool,
}

/// Starts a thread of the model.
pub(super) fn spawn(body: impl FnOnce() + Send + 'static) -> JoinHandle {
    count(|threads| threads.live += 1);
    let end = Arc::new(ThreadEnd::default());
    let its_end = Arc::clone(&end);
    let thread = thread::spawn(move || {
        body();
        its_end.has_come.store(true, Ordering::SeqCst);
        let awaited = its_end.is_awaited.load(Ordering::SeqCst);
        count(|threads| {
            threads.live -= 1;
            threads.asleep -= usize::from(awaited);
        });
        pass_if_idle();
    });
    JoinHandle { thread, end }
}

impl JoinHandle {
    /// Waits for the end of the thread.
    pub fn join(self) {
        if !self.end.has_come.load(Ordering::SeqCst) {
            self.end.is_awaited.store(true, Ordering::SeqCst);
            count(|threads| threads.asleep += 1);
            pass_if_idle();
        }
        self.thread.join().expect("a model's threads do not panic");
    }
}
