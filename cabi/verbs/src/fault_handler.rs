//! The handler of SIGSEGV and SIGBUS: copies of registered memory that is not there any more end
//! with an error.
//!
//! The handler acts on the marked copies alone ([`uiw_mem::recover`]). Every other fault, and every
//! signal that was sent, goes to the handler that the program has, or would have: `libibverbs.so.1`
//! exports `sigaction` and `signal`, which remember the program's handler of these two signals
//! here, and leave this one installed.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use uiw_cabi_core::abi::zeroed;
use uiw_cabi_core::arguments::{InPtr, OutPtr, argument};
use uiw_cabi_core::c_library::{NextFunction, PassedValue};
use uiw_cabi_core::call;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState, generation};
use uiw_cabi_core::signals::{block_all, change_mask, no_signals, without};
use uiw_mem::recover;

type Action = libc::sigaction;
/// `pthread_sigmask` or `sigprocmask`.
pub type ChangeMask =
    for<'a> extern "C" fn(c_int, InPtr<'a, libc::sigset_t>, OutPtr<'a, libc::sigset_t>) -> c_int;

/// Action that the program has requested for one signal. Written under a lock; a handler may read
/// at any time, without one, and what it reads stays valid until the program has changed its
/// handler so many times more.
struct RequestedAction {
    actions: UnsafeCell<[Action; Self::KEPT]>,
    newest: AtomicUsize,
    /// [`FREE`], or the generation of the process whose thread has the lock.
    locked: AtomicU32,
}

/// No generation: those are counted from 1.
const FREE: u32 = 0;

// SAFETY: a thread writes an action under the lock, in a place that is not the newest one, and
// others read it once it is.
unsafe impl Sync for RequestedAction {}

impl RequestedAction {
    const KEPT: usize = 256;

    const fn new() -> Self {
        Self {
            actions: UnsafeCell::new([zeroed(); Self::KEPT]),
            newest: AtomicUsize::new(0),
            locked: AtomicU32::new(FREE),
        }
    }

    fn get(&self) -> Action {
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: `set` writes an action before it makes it the newest, and writes to the place
        // again only when the program has changed its handler so many times more. All bytes of the
        // array are initialized.
        unsafe { (*self.actions.get())[newest % Self::KEPT] }
    }

    /// Replaces it, and returns what it was.
    fn replace(&self, action: Option<Action>) -> Action {
        // Signals are blocked, because a handler that interrupted this thread while it has the
        // lock, and calls `sigaction`, would wait forever.
        let held = block_all();
        self.lock();
        let old = self.get();
        if let Some(action) = action {
            self.set(action);
        }
        self.locked.store(FREE, Ordering::Release);
        drop(held);
        old
    }

    /// Waits for the lock. A thread of the parent process that had it when this process was forked
    /// does not give it back here.
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
        // SAFETY: this thread has the lock, or is the only one, and nothing reads the place, which
        // is not the newest.
        unsafe { (*self.actions.get())[next % Self::KEPT] = action };
        self.newest.store(next, Ordering::Release);
    }
}

static SEGV: RequestedAction = RequestedAction::new();
static BUS: RequestedAction = RequestedAction::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn wanted(signal: c_int) -> Option<&'static RequestedAction> {
    match signal {
        libc::SIGSEGV => Some(&SEGV),
        libc::SIGBUS => Some(&BUS),
        _ => None,
    }
}

/// The C library's `sigaction`, also where this library exports one.
struct SystemSigaction;

// SAFETY: the declaration is that of sigaction(2).
unsafe impl NextFunction for SystemSigaction {
    const NAME: &CStr = c"sigaction";
    type Type = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

    fn address_cell() -> &'static AtomicUsize {
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        &FOUND
    }
}

/// # Safety
/// The arguments fulfil the requirements of sigaction(2).
unsafe fn system_sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // Where there is none the C library is linked statically, and so is this one, which exports
    // none.
    let sigaction = SystemSigaction::get().unwrap_or(libc::sigaction);
    // SAFETY: the caller ensures what sigaction(2) asks.
    unsafe { sigaction(signal, new, old) }
}

/// Sets the action of one of the two signals, if `new` is given, and returns the previous one.
fn replace_action(signal: c_int, new: Option<&Action>) -> Action {
    let mut old: Action = zeroed();
    // SAFETY: the actions are there; a new one is the default, or `on_fault`, which may be called
    // at any time.
    unsafe { system_sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), &raw mut old) };
    old
}

/// The handler is installed by one thread; a fork waits for it.
struct HandlerInstallation;

static INSTALLATION: ForkSafe<HandlerInstallation> = ForkSafe::new();

impl ForkState for HandlerInstallation {
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
    let mut action: Action = zeroed();
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    for (signal, wanted) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
        wanted.set(replace_action(signal, None));
        replace_action(signal, Some(&action));
    }
    INSTALLED.store(true, Ordering::Release);
}

unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // A signal that was sent has a code that is not positive.
    // SAFETY: the system gives a handler with SA_SIGINFO the information of the signal.
    let sent = unsafe { (*info).si_code } <= 0;
    // SAFETY: the system gives a handler with SA_SIGINFO the context that the signal interrupted.
    if !sent && unsafe { recover::recover(context) } {
        return;
    }
    let errno = Errno::last();
    // SAFETY: the system has called this handler with these arguments.
    unsafe { forward_signal(signal, info, context, sent) };
    errno.set();
}

/// Does what the program, or the system, does with the signal.
///
/// # Safety
/// The system has called a handler with these arguments.
unsafe fn forward_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, sent: bool) {
    let Some((action, wanted)) = wanted(signal).map(|wanted| (wanted.get(), wanted)) else { return };
    match action.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The default action is set. When the fault is repeated, it ends the process with the
            // correct signal.
            replace_action(signal, Some(&zeroed()));
            if sent {
                // SAFETY: takes an integer alone.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                wanted.replace(Some(zeroed()));
            }
            // The kernel restores the mask when this handler returns.
            change_mask(libc::SIG_BLOCK, &action.sa_mask);
            if action.sa_flags & libc::SA_NODEFER != 0 {
                let now = change_mask(libc::SIG_BLOCK, &no_signals());
                change_mask(libc::SIG_SETMASK, &without(now, &[signal]));
            }
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                // SAFETY: the program has given a handler of this type, with SA_SIGINFO, and gets
                // the arguments of the system.
                unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
            } else {
                // SAFETY: the program has given a handler of this type, without SA_SIGINFO.
                unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal) };
            }
        }
    }
}

/// `sigaction`, as `libibverbs.so.1` exports it.
pub extern "C" fn sigaction(signal: c_int, new: InPtr<'_, Action>, old: OutPtr<'_, Action>) -> c_int {
    match wanted(signal).filter(|_| INSTALLED.load(Ordering::Acquire)) {
        Some(wanted) => {
            let before = wanted.replace(new.as_ref().copied());
            if !old.is_null() {
                // Not NULL, so that there is no error.
                let _ = old.write(before);
            }
            0
        }
        // SAFETY: the program calls sigaction(2) with these arguments.
        None => unsafe { system_sigaction(signal, new.as_ptr(), old.as_ptr()) },
    }
}

/// `pthread_sigmask` and `sigprocmask`, as `libibverbs.so.1` exports them: `system` is the C
/// library's. The two signals stay unblocked: where they are blocked the kernel ends the process at
/// a fault.
pub fn mask<'a>(
    system: ChangeMask,
    how: c_int,
    set: InPtr<'a, libc::sigset_t>,
    old: OutPtr<'a, libc::sigset_t>,
) -> c_int {
    match set.as_ref() {
        Some(blocked) if how != libc::SIG_UNBLOCK && INSTALLED.load(Ordering::Acquire) => {
            let blocked = without(*blocked, &[libc::SIGSEGV, libc::SIGBUS]);
            // SAFETY: the set is there during the call.
            system(how, unsafe { argument(&raw const blocked) }, old)
        }
        _ => system(how, set, old),
    }
}

/// `signal`, as `libibverbs.so.1` exports it: the C library's would not call the `sigaction` that
/// is exported.
pub extern "C" fn signal(signal: c_int, handler: PassedValue<'_, libc::sighandler_t>) -> libc::sighandler_t {
    if handler.get() == libc::SIG_ERR {
        Errno::INVAL.set();
        return libc::SIG_ERR;
    }
    // BSD's meaning, which glibc has: calls are restarted, the signal is blocked in its handler.
    let (mut action, mut old): (Action, Action) = (zeroed(), zeroed());
    action.sa_sigaction = handler.get();
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the actions are there during the call, and the program has given signal(2) the
    // handler.
    match unsafe { call!(sigaction(signal, &raw const action, &raw mut old)) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fork while another thread of the parent changed its handler.
    #[test]
    fn lock_of_parent_taken_over() {
        let wanted = RequestedAction::new();
        wanted.set(zeroed());
        wanted.locked.store(generation() + 1, Ordering::Relaxed);
        assert_eq!(wanted.replace(None).sa_sigaction, libc::SIG_DFL);
        assert_eq!(wanted.locked.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn signal_does_not_interrupt_change() {
        static WANTED: RequestedAction = RequestedAction::new();
        static CHANGED: AtomicU32 = AtomicU32::new(0);
        extern "C" fn change(_: c_int) {
            WANTED.replace(None);
            CHANGED.fetch_add(1, Ordering::Relaxed);
        }
        let handler = change as *const () as usize;
        // SAFETY: structures of zeros but for what is set; the handler takes one lock, which this
        // thread never has when it runs. Nothing else of these tests uses the signal, and this
        // thread outlives its sender.
        unsafe {
            WANTED.set(std::mem::zeroed());
            let mut action: Action = std::mem::zeroed();
            action.sa_sigaction = handler;
            libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut());
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
