//! Threads of the engine.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Signals that a thread's own instructions raise. If they are blocked, the kernel ends the process
/// without calling a handler.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread with the shortest time slice that handles no signals but its own faults, because
/// the signals of the program are meant for the program's threads. The signal mask of the calling
/// thread does not change.
///
/// Returns after the thread has started. libfabric and UCX overwrite the first instructions of
/// `munmap` and related functions once a device is open, to watch memory. The C library calls these
/// functions in a new thread, for its stack and its allocator, and such a thread would crash.
///
/// # Errors
/// The errors of `pthread_create`.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the sets are local variables, and the first is filled before it is read. A thread may
    // change its own mask, and a new thread inherits it. If the call fails, the set stays all
    // zeros, which is the empty set.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    let (report_start, started) = mpsc::sync_channel(1);
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The receiver exists until this message.
        let _ = report_start.send(());
        shorten_slice();
        body();
    });
    // SAFETY: the call above has filled the set, or left it empty.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    // Fails if no thread was started, because the sender is gone then.
    let _ = started.recv();
    spawned
}

/// Requests the shortest time slice for the calling thread. If all processors are busy, Linux 6.12
/// and newer let a thread that wakes up preempt one with a longer slice at once. Otherwise it waits
/// milliseconds for the end of that slice. A failure has no other consequence.
fn shorten_slice() {
    // The kernel raises this to the shortest slice that it allows, 100 microseconds.
    change(|attributes| attributes.sched_runtime = 1);
}

/// Gives the calling thread, which belongs to the engine, the highest ordinary priority, or restores
/// the one that it had. This needs CAP_SYS_NICE or RLIMIT_NICE. Without them, or if the thread has a
/// real-time policy, nothing changes.
///
/// Linux lets a thread that wakes up preempt another one only according to their shares of the
/// processor. A thread that is woken many times in a row has used up its share sooner, and then
/// waits milliseconds for the next clock tick.
pub(crate) fn raise_priority(raised: bool) {
    thread_local! {
        /// The nice value before it was raised.
        static BEFORE: Cell<Option<i32>> = const { Cell::new(None) };
    }
    change(|attributes| {
        if raised {
            BEFORE.set(Some(attributes.sched_nice));
            attributes.sched_nice = -20;
            // Threads that this one starts get the ordinary priority. The flag stays set, because
            // removing it needs a privilege.
            attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
        } else if let Some(before) = BEFORE.take() {
            attributes.sched_nice = before;
        }
    });
}

/// Changes the attributes of the calling thread if it has the ordinary policy.
fn change(change: impl FnOnce(&mut libc::sched_attr)) {
    if let Some(mut attributes) = attributes()
        && attributes.sched_policy == libc::SCHED_OTHER as u32
    {
        change(&mut attributes);
        // SAFETY: the call changes the calling thread only, and the structure begins with its size.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Returns the attributes of the calling thread.
fn attributes() -> Option<libc::sched_attr> {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the structure has the size that is passed. If the call fails it stays all zeros,
    // which are valid attributes.
    let (failed, attributes) = unsafe {
        let failed = libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0);
        (failed != 0, attributes.assume_init())
    };
    (!failed).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: i32) -> bool {
        let mut now = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set may be written, and the first call initializes it.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn new_thread_blocks_signals() {
        let inside = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&inside);
        let thread = spawn("test", move || {
            let faults = FAULTS.into_iter().any(blocks);
            let others = blocks(libc::SIGUSR1) && blocks(libc::SIGALRM);
            seen.store(others && !faults, std::sync::atomic::Ordering::SeqCst);
        });
        thread.unwrap().join().unwrap();
        assert!(inside.load(std::sync::atomic::Ordering::SeqCst));
        assert!(!blocks(libc::SIGUSR1));
    }

    /// Returns the time slice of the calling thread in nanoseconds, or 0 for the system's default.
    fn slice() -> u64 {
        attributes().unwrap().sched_runtime
    }

    #[test]
    fn shortened_slice_keeps_creator_slice() {
        let before = slice();
        let (sender, receiver) = mpsc::channel();
        spawn("slice", move || sender.send(slice()).unwrap()).unwrap().join().unwrap();
        // Before Linux 6.12 the slice cannot be set and is reported as 0.
        assert_eq!(receiver.recv().unwrap(), if before == 0 { 0 } else { 100_000 });
        assert_eq!(slice(), before);
    }

    /// A process without the right to raise the priority keeps its current one.
    #[test]
    fn raised_priority_restored() {
        fn nice() -> i32 {
            attributes().unwrap().sched_nice
        }
        let before = nice();
        let thread = spawn("raised", move || {
            raise_priority(true);
            let raised = nice();
            assert!([before, -20].contains(&raised), "{before} to {raised}");
            raise_priority(false);
            assert_eq!(nice(), before);
            // Nothing is restored if the priority was not raised.
            raise_priority(false);
            assert_eq!(nice(), before);
        });
        thread.unwrap().join().unwrap();
        assert_eq!(nice(), before);
    }
}
