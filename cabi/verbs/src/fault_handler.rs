//! Handler of SIGSEGV and SIGBUS, which makes copies of registered memory end with an error if the
//! memory is not mapped any more.
//!
//! The handler acts only on faults in the marked copy routines ([`uiw_mem::recover`]). Every other
//! fault, and every signal that was sent, is passed to the program's handler or to the default
//! action. To make this possible, `libibverbs.so.1` exports `sigaction` and `signal`, which store
//! the program's handler of these two signals here and leave this handler installed.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering, fence};
use uiw_cabi_core::abi::zeroed;
use uiw_cabi_core::arguments::{InPtr, OutPtr, argument};
use uiw_cabi_core::c_library::{NextFunction, PassedValue};
use uiw_cabi_core::call;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState, generation};
use uiw_cabi_core::signals::{block_even_faults, change_mask, no_signals, without};
use uiw_mem::recover;

type Action = libc::sigaction;
/// Type of `pthread_sigmask` and `sigprocmask`.
pub type ChangeMask =
    for<'a> extern "C" fn(c_int, InPtr<'a, libc::sigset_t>, OutPtr<'a, libc::sigset_t>) -> c_int;

/// Action that the program has requested for one signal. One thread at a time writes it: under the
/// lock, or before another thread can. A signal handler may read it at any time, without the lock.
struct RequestedAction {
    /// The newest action and the one before. A change overwrites the older one.
    actions: UnsafeCell<[Action; 2]>,
    /// Number of changes. The last bit is the index of the newest action.
    changes: AtomicUsize,
    /// [`FREE`], or the generation of the process whose thread has the lock.
    locked: AtomicU32,
}

/// Value of `locked` while no thread has the lock. Generations are counted from 1.
const FREE: u32 = 0;

// SAFETY: one thread at a time writes an element (see `set`), and only one that is not the newest.
// Other threads copy the newest one, and discard the copy if there was a change meanwhile, because
// the next change may have overwritten the element.
unsafe impl Sync for RequestedAction {}

impl RequestedAction {
    const fn new() -> Self {
        Self {
            actions: UnsafeCell::new([zeroed(); 2]),
            changes: AtomicUsize::new(0),
            locked: AtomicU32::new(FREE),
        }
    }

    fn get(&self) -> Action {
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            // SAFETY: the index is 0 or 1, and `new` has initialized both elements. `set` writes an
            // element before it makes it the newest one, and the acquire load sees that. If `set`
            // writes to the element during this copy, it has made the other one the newest before,
            // and the copy is discarded. Until then it is a valid `Action`, as any bytes are.
            let action = unsafe { (&raw const (*self.actions.get())[changes % 2]).read_volatile() };
            fence(Ordering::Acquire);
            if self.changes.load(Ordering::Relaxed) == changes {
                return action;
            }
        }
    }

    /// Replaces the action, and returns the previous one.
    fn replace(&self, action: Option<Action>) -> Action {
        // Signals are blocked, because a handler that interrupted this thread while it has the
        // lock, and calls `sigaction`, would wait forever. SIGSEGV and SIGBUS may be sent as well.
        let held = block_even_faults();
        self.lock();
        let old = self.get();
        if let Some(action) = action {
            self.set(action);
        }
        self.locked.store(FREE, Ordering::Release);
        drop(held);
        old
    }

    /// Waits for the lock. If a thread of the parent process had the lock when this process was
    /// forked, it never unlocks it here, so the lock is taken over.
    fn lock(&self) {
        let this_process = generation();
        let mut holder = FREE;
        while let Err(found) = self.locked.compare_exchange_weak(
            holder,
            this_process,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            holder = if found == this_process { FREE } else { found };
            std::hint::spin_loop();
        }
    }

    fn set(&self, action: Action) {
        let changes = self.changes.load(Ordering::Relaxed).wrapping_add(1);
        // A thread that copies what is written below sees the previous change as well.
        fence(Ordering::Release);
        // SAFETY: the index is 0 or 1. `replace` has the lock here. `install` calls this before it
        // installs the signal's handler and sets `OWNER`, before which nothing calls `replace`,
        // and a test has one writer. So nothing else writes. The element is not the newest one, and
        // a thread that still copies it discards the copy.
        unsafe { (&raw mut (*self.actions.get())[changes % 2]).write_volatile(action) };
        self.changes.store(changes, Ordering::Release);
    }
}

static SEGV: RequestedAction = RequestedAction::new();
static BUS: RequestedAction = RequestedAction::new();
/// Process that has installed the handler; 0 before that.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Returns whether this process has installed the handler. A child of vfork(2) has the memory of
/// its parent, but signal actions of its own, so it must not change those of the parent.
fn is_installed() -> bool {
    match OWNER.load(Ordering::Acquire) {
        0 => false,
        owner => owner == this_process(),
    }
}

fn this_process() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

fn wanted(signal: c_int) -> Option<&'static RequestedAction> {
    match signal {
        libc::SIGSEGV => Some(&SEGV),
        libc::SIGBUS => Some(&BUS),
        _ => None,
    }
}

/// The C library's `sigaction`, even if this library exports its own.
struct SystemSigaction;

// SAFETY: the name is that of `sigaction`, and the type is its declaration in sigaction(2). It is
// an unsafe function, whose callers ensure what that page requires of the arguments. The cell is a
// static of this type alone.
unsafe impl NextFunction for SystemSigaction {
    const NAME: &CStr = c"sigaction";
    type Type = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;

    fn address_cell() -> &'static AtomicUsize {
        static FOUND: AtomicUsize = AtomicUsize::new(0);
        &FOUND
    }
}

/// Calls the C library's `sigaction`.
///
/// # Safety
/// `new` is NULL or points to an action whose handler may be called at any time, with the arguments
/// that its flags select (sigaction(2)). `old` is NULL or points to memory for an action. Both stay
/// so during the call, and nothing else writes there.
unsafe fn system_sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // If there is no next function, the C library is linked statically. In that case this library
    // is as well, and exports no `sigaction`.
    let sigaction = SystemSigaction::get().unwrap_or(libc::sigaction);
    // SAFETY: the function is `sigaction` of the C library, or of a library loaded before it that
    // replaces it with the same contract (`NextFunction`). The caller ensures that during the call
    // each pointer is NULL or points to an action, or to memory for one that nothing else writes,
    // and that the handler may be called at any time.
    unsafe { sigaction(signal, new, old) }
}

/// Sets the action of one of the two signals, if `new` is given, and returns the previous one.
fn replace_action(signal: c_int, new: Option<&Action>) -> Action {
    let mut old: Action = zeroed();
    // SAFETY: `new` is NULL or a borrowed action, and `old` is a local variable. The callers pass a
    // `new` that has the default handler or `on_fault` with SA_SIGINFO, which may be called at any
    // time.
    unsafe { system_sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), &raw mut old) };
    old
}

/// Lock for the installation, which only one thread performs. A fork waits until it is complete.
struct HandlerInstallation;

static INSTALLATION: ForkSafe<HandlerInstallation> = ForkSafe::new();

impl ForkState for HandlerInstallation {
    const NEW: Self = Self;

    /// A child inherits the handlers of its parent.
    fn in_child(&mut self) {
        if OWNER.load(Ordering::Acquire) != 0 {
            OWNER.store(this_process(), Ordering::Release);
        }
    }
}

/// Installs the handler at the first call.
pub(crate) fn install() {
    if OWNER.load(Ordering::Acquire) != 0 {
        return;
    }
    let _installation = INSTALLATION.write();
    if OWNER.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut action: Action = zeroed();
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    for (signal, wanted) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
        wanted.set(replace_action(signal, None));
        replace_action(signal, Some(&action));
    }
    OWNER.store(this_process(), Ordering::Release);
}

/// Handler of the two signals.
///
/// # Safety
/// Only the kernel calls this function, as the handler with SA_SIGINFO that [`install`] has set.
unsafe extern "C-unwind" fn on_fault(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // A signal that was sent has a code that is not positive.
    // SAFETY: the kernel passes a pointer to the information of the signal to a handler with
    // SA_SIGINFO, which this is, as the caller ensures. The information stays on the stack until
    // the handler returns (sigaction(2)).
    let sent = unsafe { (*info).si_code } <= 0;
    // SAFETY: `context` is the third argument of a handler with SA_SIGINFO, as the caller ensures,
    // so it is the interrupted context (sigaction(2)), as `recover` requires.
    if !sent && unsafe { recover::recover(context) } {
        return;
    }
    let errno = Errno::last();
    // SAFETY: the kernel has called this handler with these arguments, as the caller ensures, and
    // the handler has not returned yet.
    unsafe { forward_signal(signal, info, context, sent) };
    errno.set();
}

/// Passes the signal to the program's handler, ignores it, or performs the default action. The
/// handler may leave with siglongjmp(3), or unwind, as pthread_exit(3) does.
///
/// # Safety
/// The arguments are those with which the kernel has called a handler with SA_SIGINFO for this
/// signal, and the handler has not returned yet.
unsafe fn forward_signal(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    sent: bool,
) {
    let Some((action, wanted)) = wanted(signal).map(|wanted| (wanted.get(), wanted)) else {
        return;
    };
    match action.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The default action is set. When the fault is repeated, it ends the process with the
            // correct signal.
            replace_action(signal, Some(&zeroed()));
            if sent {
                // SAFETY: the call takes an integer and uses no memory. This signal has its default
                // action again, so no handler runs.
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
                type Handler =
                    unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                // SAFETY: the address is not SIG_DFL or SIG_IGN, as matched above, so it is a
                // handler of this type, set with SA_SIGINFO (sigaction(2)). The arguments are the
                // kernel's, as the caller ensures. A handler that does not return skips only this
                // frame and that of `on_fault`, without destructors.
                unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
            } else {
                type Handler = unsafe extern "C-unwind" fn(c_int);
                // SAFETY: the address is neither SIG_DFL, which is 0, nor SIG_IGN, as matched
                // above. The program has set it as a handler without SA_SIGINFO, which has this
                // type (sigaction(2)). If it does not return, it skips only frames without
                // destructors: this one and that of `on_fault`.
                unsafe { std::mem::transmute::<usize, Handler>(handler)(signal) };
            }
        }
    }
}

/// Returns whether this library has a handler of its own for the signal.
pub fn is_handled(signal: c_int) -> bool {
    wanted(signal).is_some() && is_installed()
}

/// `sigaction`, as `libibverbs.so.1` exports it.
pub extern "C" fn sigaction(
    signal: c_int,
    new: InPtr<'_, Action>,
    old: OutPtr<'_, Action>,
) -> c_int {
    match wanted(signal).filter(|_| is_installed()) {
        Some(wanted) => {
            let before = wanted.replace(new.as_ref().copied());
            if !old.is_null() {
                // This cannot fail, because the pointer is not NULL.
                let _ = old.write(before);
            }
            0
        }
        // SAFETY: `InPtr` and `OutPtr` require that the pointers are NULL, or point to an action
        // that nothing changes during the call and to memory for one that nothing else uses. The
        // handler suits the flags: the program has chosen both (sigaction(2)), or `signal` passes a
        // handler of signal(2) without SA_SIGINFO.
        None => unsafe { system_sigaction(signal, new.as_ptr(), old.as_ptr()) },
    }
}

/// `pthread_sigmask` and `sigprocmask`, as `libibverbs.so.1` exports them; `system` is the function
/// of the C library. The two signals stay unblocked, because the kernel ends the process if a fault
/// raises a blocked signal.
pub fn mask<'a>(
    system: ChangeMask,
    how: c_int,
    set: InPtr<'a, libc::sigset_t>,
    old: OutPtr<'a, libc::sigset_t>,
) -> c_int {
    match set.as_ref() {
        Some(blocked) if how != libc::SIG_UNBLOCK && is_installed() => {
            let blocked = without(*blocked, &[libc::SIGSEGV, libc::SIGBUS]);
            // SAFETY: `InPtr` permits the pointer, because it points to a local variable that
            // nothing changes before `system` returns, and a set contains no pointers.
            system(how, unsafe { argument(&raw const blocked) }, old)
        }
        _ => system(how, set, old),
    }
}

/// `signal` for a signal that this library handles ([`is_handled`]). The C library's `signal` would
/// not call the exported `sigaction`.
pub extern "C" fn signal(
    signal: c_int,
    handler: PassedValue<'_, libc::sighandler_t>,
) -> libc::sighandler_t {
    if handler.get() == libc::SIG_ERR {
        Errno::INVAL.set();
        return libc::SIG_ERR;
    }
    // Semantics of BSD and glibc: calls are restarted, and the signal is blocked in its handler.
    let (mut action, mut old): (Action, Action) = (zeroed(), zeroed());
    action.sa_sigaction = handler.get();
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `InPtr` and `OutPtr` permit the pointers, because they point to local variables that
    // nothing else uses during the call. The handler is one that the program has passed to
    // signal(2), which therefore takes one integer, as it does without SA_SIGINFO.
    match unsafe { call!(sigaction(signal, &raw const action, &raw mut old)) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process was forked while another thread of the parent changed its handler.
    #[test]
    fn lock_of_parent_taken_over() {
        let wanted = RequestedAction::new();
        wanted.set(zeroed());
        wanted.locked.store(generation() + 1, Ordering::Relaxed);
        assert_eq!(wanted.replace(None).sa_sigaction, libc::SIG_DFL);
        assert_eq!(wanted.locked.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn action_read_during_changes_is_whole() {
        static WANTED: RequestedAction = RequestedAction::new();
        let writer = std::thread::spawn(|| {
            for number in 0..1_000_000 {
                // These two are the first and nearly the last field.
                WANTED.set(Action { sa_sigaction: number, sa_flags: number as c_int, ..zeroed() });
            }
        });
        while !writer.is_finished() {
            let action = WANTED.get();
            assert_eq!(action.sa_sigaction, action.sa_flags as usize);
        }
        writer.join().unwrap();
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
        // SAFETY: zeros are an action. `action` is a local variable, and `change` has the type of a
        // handler without SA_SIGINFO. It takes one lock, which this thread never holds when the
        // handler runs, as `replace` blocks signals. This thread joins the sender, so `this` is
        // alive.
        unsafe {
            WANTED.set(std::mem::zeroed());
            let mut action: Action = std::mem::zeroed();
            action.sa_sigaction = handler;
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
            let this = libc::pthread_self();
            let sender = std::thread::spawn(move || {
                for _ in 0..2000 {
                    libc::pthread_kill(this, libc::SIGBUS);
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

    extern "C-unwind" fn end_thread(_: c_int) {
        unsafe extern "C-unwind" {
            fn pthread_exit(value: *mut c_void) -> !;
        }
        // SAFETY: the frames between here and the start of the thread have no destructors and may
        // unwind: they are "C-unwind" or, like `forward_signal`, functions of Rust.
        unsafe { pthread_exit(ptr::dangling_mut::<u8>().cast()) };
    }

    extern "C-unwind" fn raise_fault(_: *mut c_void) -> *mut c_void {
        unsafe extern "C-unwind" {
            safe fn raise(signal: c_int) -> c_int;
        }
        raise(libc::SIGSEGV);
        ptr::null_mut()
    }

    #[test]
    fn handler_may_end_thread() {
        unsafe extern "C" {
            fn pthread_create(
                thread: *mut libc::pthread_t,
                attributes: *const c_void,
                start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                argument: *mut c_void,
            ) -> c_int;
        }
        install();
        let mut action: Action = zeroed();
        action.sa_sigaction = end_thread as *const () as usize;
        let (mut thread, mut value) = (0, ptr::null_mut());
        // SAFETY: the declarations agree with the C library's. The action and the results are local
        // variables, and the thread is joined. The handler takes one integer, as a handler without
        // SA_SIGINFO does, and ends any thread that raises SIGSEGV, which only this test does.
        unsafe {
            assert_eq!(call!(sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut())), 0);
            assert_eq!(
                pthread_create(&raw mut thread, ptr::null(), raise_fault, ptr::null_mut()),
                0
            );
            assert_eq!(libc::pthread_join(thread, &raw mut value), 0);
        }
        assert!(!value.is_null());
    }
}
