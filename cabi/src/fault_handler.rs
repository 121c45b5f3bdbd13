//! The handler of SIGSEGV and SIGBUS: copies of registered memory that is not there any more end with an error.
//!
//! The handler acts on the marked copies alone ([`uiw_mem::recover`]). Every other fault, and every signal that was sent, goes to the
//! handler that the program has, or would have: `libibverbs.so.1` exports `sigaction` and `signal`, which remember the program's handler
//! of these two signals here, and leave this one installed.

use crate::c_library;
use crate::errno::Errno;
use crate::fork::{ForkSafe, Forked, generation};
use crate::signals::Held;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use uiw_mem::recover;

type Action = libc::sigaction;
/// `sigaction` of the C library.
pub type SigAction = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

/// What the program has requested for one signal. Written under a lock; a handler may read at any time, without one, and
/// what it reads stays valid until the program has changed its handler so many times more.
struct Wanted {
    actions: std::cell::UnsafeCell<[MaybeUninit<Action>; Self::KEPT]>,
    newest: AtomicUsize,
    /// [`FREE`], or the generation of the process whose thread has the lock.
    locked: AtomicU32,
}

/// No generation: those are counted from 1.
const FREE: u32 = 0;

// SAFETY: an action is written under the lock, in a place that is not the newest one, and read once it is.
unsafe impl Sync for Wanted {}

impl Wanted {
    const KEPT: usize = 256;

    const fn new() -> Self {
        Self {
            actions: std::cell::UnsafeCell::new([const { MaybeUninit::uninit() }; Self::KEPT]),
            newest: AtomicUsize::new(0),
            locked: AtomicU32::new(FREE),
        }
    }

    fn get(&self) -> Action {
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: written before it became the newest; `install` has written the first.
        unsafe { (*self.actions.get())[newest % Self::KEPT].assume_init() }
    }

    /// Replaces it, and returns what it was.
    fn replace(&self, action: Option<Action>) -> Action {
        // A handler that interrupted this thread under the lock, and calls `sigaction`, would wait for it without end.
        let held = Held::new();
        self.lock();
        let old = self.get();
        if let Some(action) = action {
            self.set(action);
        }
        self.locked.store(FREE, Ordering::Release);
        drop(held);
        old
    }

    /// Waits for the lock. A thread of the parent process that had it when this process was forked does not give it back here.
    fn lock(&self) {
        let this_process = generation();
        let mut holder = FREE;
        while let Err(found) =
            self.locked.compare_exchange_weak(holder, this_process, Ordering::Acquire, Ordering::Relaxed)
        {
            holder = if found == this_process { FREE } else { found };
            std::hint::spin_loop();
        }
    }

    fn set(&self, action: Action) {
        let next = self.newest.load(Ordering::Relaxed).wrapping_add(1);
        // SAFETY: this thread has the lock, or is the only one; the place is not the newest.
        unsafe { (*self.actions.get())[next % Self::KEPT].write(action) };
        self.newest.store(next, Ordering::Release);
    }
}

static SEGV: Wanted = Wanted::new();
static BUS: Wanted = Wanted::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn wanted(signal: c_int) -> Option<&'static Wanted> {
    match signal {
        libc::SIGSEGV => Some(&SEGV),
        libc::SIGBUS => Some(&BUS),
        _ => None,
    }
}

/// The C library's `sigaction`, also where this library exports one.
fn system_sigaction() -> SigAction {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let mut found = FOUND.load(Ordering::Relaxed);
    if found == 0 {
        found = c_library::function(c"sigaction");
        FOUND.store(found, Ordering::Relaxed);
    }
    if found == 0 {
        // The C library is linked statically, and so is this one, which exports none.
        return libc::sigaction;
    }
    // SAFETY: the C library's function has this type.
    unsafe { std::mem::transmute::<usize, SigAction>(found) }
}

/// The handler is installed by one thread; a fork waits for it.
struct Installation;

static INSTALLATION: ForkSafe<Installation> = ForkSafe::new();

impl Forked for Installation {
    const NEW: Self = Self;

    /// A child has the handlers of its parent.
    fn in_child(&mut self) {}
}

/// Installs the handler, once.
pub(crate) fn install() {
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    let _installation = INSTALLATION.write();
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    recover::prepare();
    // SAFETY: a structure of zeros but for what is set; the handler touches the context of its signal alone.
    unsafe {
        let mut action: Action = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        for (signal, wanted) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
            let mut old: Action = std::mem::zeroed();
            system_sigaction()(signal, std::ptr::null(), &raw mut old);
            wanted.set(old);
            system_sigaction()(signal, &raw const action, std::ptr::null_mut());
        }
    }
    INSTALLED.store(true, Ordering::Release);
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the arguments of the handler of a signal with SA_SIGINFO. A signal that was sent has a code that is not positive.
    unsafe {
        let sent = (*info).si_code <= 0;
        if !sent && recover::recover(context) {
            return;
        }
        let errno = Errno::last();
        hand_on(signal, info, context, sent);
        errno.set();
    }
}

/// Does what the program, or the system, does with the signal.
///
/// # Safety
/// As for a handler.
unsafe fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, sent: bool) {
    let Some(action) = wanted(signal).map(Wanted::get) else { return };
    // SAFETY: the program's own handler, with the arguments and the mask that it asked for; the kernel restores the mask when this
    // handler returns.
    unsafe {
        match action.sa_sigaction {
            libc::SIG_IGN if sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // The fault is repeated, and ends the process, with the right reason.
                let mut default: Action = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                system_sigaction()(signal, &raw const default, std::ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
            handler => {
                if action.sa_flags & libc::SA_RESETHAND != 0
                    && let Some(wanted) = wanted(signal)
                {
                    let mut default: Action = std::mem::zeroed();
                    default.sa_sigaction = libc::SIG_DFL;
                    wanted.replace(Some(default));
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const action.sa_mask, std::ptr::null_mut());
                if action.sa_flags & libc::SA_NODEFER != 0 {
                    let mut own: libc::sigset_t = std::mem::zeroed();
                    libc::sigemptyset(&raw mut own);
                    libc::sigaddset(&raw mut own, signal);
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, std::ptr::null_mut());
                }
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler = std::mem::transmute::<
                        usize,
                        unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
                    >(handler);
                    handler(signal, info, context);
                } else {
                    let handler = std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// `sigaction`, as `libibverbs.so.1` exports it.
///
/// # Safety
/// As for the C library's.
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    match wanted(signal).filter(|_| INSTALLED.load(Ordering::Acquire)) {
        Some(wanted) => {
            // SAFETY: the caller's promise: NULL or a structure.
            let before = wanted.replace(unsafe { new.as_ref() }.copied());
            if !old.is_null() {
                // SAFETY: as above.
                unsafe { old.write(before) };
            }
            0
        }
        // SAFETY: the caller's promise.
        None => unsafe { system_sigaction()(signal, new, old) },
    }
}

/// `pthread_sigmask` and `sigprocmask`, as `libibverbs.so.1` exports them: `system` is the C library's. The two signals stay unblocked:
/// where they are blocked the kernel ends the process at a fault.
///
/// # Safety
/// As for the C library's.
pub unsafe extern "C" fn mask(
    system: unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int,
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    if set.is_null() || how == libc::SIG_UNBLOCK || !INSTALLED.load(Ordering::Acquire) {
        // SAFETY: the caller's promise.
        return unsafe { system(how, set, old) };
    }
    // SAFETY: as above; a copy of the set.
    unsafe {
        let mut without = *set;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigdelset(&raw mut without, signal);
        }
        system(how, &raw const without, old)
    }
}

/// `signal`, as `libibverbs.so.1` exports it: the C library's would not call the `sigaction` that is exported.
///
/// # Safety
/// As for the C library's.
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: a structure of zeros but for what is set; BSD's meaning, which glibc has: calls are restarted, the signal is
    // blocked in its handler.
    unsafe {
        let mut action: Action = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        let mut old: Action = std::mem::zeroed();
        if handler == libc::SIG_ERR {
            Errno::INVAL.set();
            return libc::SIG_ERR;
        }
        match sigaction(signal, &raw const action, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fork while another thread of the parent changed its handler.
    #[test]
    fn a_lock_of_the_parent_process_is_taken_over() {
        let wanted = Wanted::new();
        // SAFETY: a structure of zeros is that of the default action.
        wanted.set(unsafe { std::mem::zeroed() });
        wanted.locked.store(generation() + 1, Ordering::Relaxed);
        assert_eq!(wanted.replace(None).sa_sigaction, libc::SIG_DFL);
        assert_eq!(wanted.locked.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn a_signal_does_not_interrupt_a_change() {
        static WANTED: Wanted = Wanted::new();
        static CHANGED: AtomicU32 = AtomicU32::new(0);
        extern "C" fn change(_: c_int) {
            WANTED.replace(None);
            CHANGED.fetch_add(1, Ordering::Relaxed);
        }
        let handler = change as *const () as usize;
        // SAFETY: structures of zeros but for what is set; the handler takes one lock, which this thread never has when it runs.
        // Nothing else of these tests uses the signal, and this thread outlives its sender.
        unsafe {
            WANTED.set(std::mem::zeroed());
            let mut action: Action = std::mem::zeroed();
            action.sa_sigaction = handler;
            libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
            let this = libc::pthread_self();
            let sender = std::thread::spawn(move || {
                for _ in 0..2000 {
                    libc::pthread_kill(this, libc::SIGUSR2);
                    std::thread::yield_now();
                }
            });
            while !sender.is_finished() {
                WANTED.replace(None);
            }
            sender.join().unwrap();
        }
        assert!(CHANGED.load(Ordering::Relaxed) > 0);
    }
}
