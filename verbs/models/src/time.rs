//! Threads, and the expiry of timeouts: a timeout expires when no other thread can run, or after
//! the core has been unlocked.
//!
//! If a sleep with a timeout ended immediately, it would be a loop that yields. loom would then run
//! endless schedules in which the thread that ends the loop never runs.

use super::sync::{Condvar, Mutex, thread};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

/// State of a thread in a single sleep.
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

/// State of all threads of a model. loom and shuttle do not see it: all threads of a model run on a
/// single thread of the system.
#[derive(Default)]
struct ThreadStates {
    live: usize,
    /// Number of threads that sleep or wait for the end of another thread.
    asleep: usize,
    /// Threads whose sleep has a timeout.
    timed: Vec<Arc<Sleeper>>,
    last_id: u32,
}

thread_local! {
    static THREADS: RefCell<ThreadStates> = RefCell::default();
}

/// Starts a model; the calling thread is its only thread.
pub(crate) fn begin() {
    THREADS.set(ThreadStates { live: 1, ..ThreadStates::default() });
}

fn count(change: impl FnOnce(&mut ThreadStates)) {
    THREADS.with_borrow_mut(change);
}

/// Returns the id of a thread that has none yet. It is not 0.
pub(super) fn new_thread_id() -> u32 {
    THREADS.with_borrow_mut(|threads| {
        threads.last_id += 1;
        threads.last_id
    })
}

/// Makes all timeouts expire.
pub fn pass() {
    let timed = THREADS.with_borrow_mut(|threads| std::mem::take(&mut threads.timed));
    timed.iter().for_each(|sleeper| sleeper.wake());
}

/// Makes all timeouts expire if no thread can run.
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

/// Sleeps until woken or, if `timed` is true, until the timeout expires.
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

/// Handle of a thread of a model.
pub struct JoinHandle {
    thread: thread::JoinHandle<()>,
    end: Arc<ThreadEnd>,
}

/// State of the end of a thread.
#[derive(Default)]
struct ThreadEnd {
    has_come: AtomicBool,
    /// Whether another thread waits for the end.
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
