//! The two processes of a run that is reported. The one that the user has started waits for the
//! other one, which waits for the program and reports. Each ends the program and what it has
//! started when the other one is killed: a killed run leaves neither processes nor files.
//!
//! Each process is a subreaper: descendants of the program whose parents have ended become children
//! of the nearest one. The second process has a parent-death signal, and the first one waits for
//! it, so whichever is killed, the other one finds the rest of the tree below itself, kills it
//! until nothing is left, and removes the counters.

use super::tree;
use crate::shared::fail::{Failure, Result};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, getppid, kill_process, pidfd_open,
    pidfd_send_signal, set_child_subreaper, set_parent_process_death_signal, wait,
};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uiw_cabi_core::denied;
use uiw_cli_sys::split::{ProcessSide, split};

/// Signal that the kernel sends to the second process when the thread that made it has ended, which
/// only ends with the first process. None of the signals that are passed on: the other threads of a
/// killed process may end later, and until then it is still the parent.
const FIRST_ENDED: Signal = Signal::POWER;

/// Its signals need a pair of sockets.
const PROCESS: &str = "making a process and a pair of sockets";

/// Runs `watch` in a second process, and returns its exit code in the first one. If the second
/// process is killed, the first one ends the program and calls `clean_up`.
pub(super) fn run(
    watch: impl FnOnce(Guard) -> Result<ExitCode>,
    clean_up: impl FnOnce(),
) -> Result<ExitCode> {
    let first = getpid();
    let failed = |error: io::Error| {
        denied_to(
            Failure::local("cannot make the process that waits for the program (fork, socketpair)", &error),
            PROCESS,
            &error,
        )
    };
    // What is refused is refused to both processes: one of them says so.
    drop(UnixStream::pair().map_err(failed)?);
    match split().map_err(failed)? {
        ProcessSide::Child => watch(Guard::new(Some(first)).map_err(failed)?),
        ProcessSide::Parent(child) => {
            let guard = Guard::new(None).map_err(failed)?;
            let ended = guard.status(Pid::from_raw(child.get()).unwrap_or(first)).map_err(|error| {
                tree::end();
                not_waiting(&error)
            })?;
            if ended.signaled() {
                tree::end();
                clean_up();
            }
            Ok(ExitCode::from(code(ended)))
        }
    }
}

/// The thread that passes signals on cannot be started.
fn not_waiting(error: &io::Error) -> Failure {
    denied_to(Failure::local("cannot wait for the program", error), "starting a thread", error)
}

/// With what to do, where a limit or a sandbox is the reason of what was `tried`.
fn denied_to(failure: Failure, tried: &str, error: &io::Error) -> Failure {
    denied::advice(tried, error).into_iter().fold(failure, Failure::with_fix)
}

/// The exit code as shells have it.
fn code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    u8::try_from(code.unwrap_or(0)).unwrap_or(u8::MAX)
}

/// Guard that waits for a process, and passes on to it the signals that this process gets. Made
/// before that one: no signal is lost.
pub(super) struct Guard {
    first: FirstProcess,
    signals: Signals,
}

/// The first process, whose end is to be that of the program, in the second one.
#[derive(Clone)]
struct FirstProcess {
    /// Nothing in the first process.
    number: Option<Pid>,
    /// [`FIRST_ENDED`] has come.
    ended: Arc<AtomicBool>,
}

impl FirstProcess {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) || self.number.is_some_and(|number| getppid() != Some(number))
    }
}

impl Guard {
    fn new(first: Option<Pid>) -> io::Result<Self> {
        // What any process of the program leaves behind becomes a child of this one, and is found.
        set_child_subreaper(Some(getpid()))?;
        let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2])?;
        let first = FirstProcess { number: first, ended: Arc::default() };
        if first.number.is_some() {
            // Registered first: the thread that handles the signal reads the flag.
            flag::register(FIRST_ENDED.as_raw(), Arc::clone(&first.ended))?;
            signals.add_signal(FIRST_ENDED.as_raw())?;
            set_parent_process_death_signal(Some(FIRST_ENDED))?;
            if first.has_ended() {
                return Err(io::Error::other("the process that started it has ended"));
            }
        }
        Ok(Self { first, signals })
    }

    /// Waits for the program: its exit code.
    pub(super) fn wait(self, program: Pid) -> Result<u8> {
        let first = self.first.clone();
        let status = self.status(program);
        // Nothing waits for the program, or for this process.
        if status.is_err() || first.has_ended() {
            tree::end();
        }
        status.map(code).map_err(|error| not_waiting(&error))
    }

    fn status(self, process: Pid) -> io::Result<WaitStatus> {
        let Self { first, mut signals } = self;
        let handle = signals.handle();
        // This stays the process's own when its number is another one's. There is none before Linux
        // 5.3.
        let opened = pidfd_open(process, PidfdFlags::empty()).ok();
        let send = move |signal| match &opened {
            Some(opened) => pidfd_send_signal(opened, signal),
            None => kill_process(process, signal),
        };
        let pass_on = std::thread::Builder::new().name("uiw-signals".to_owned()).spawn(move || {
            for number in &mut signals {
                if first.has_ended() {
                    let _ = send(Signal::KILL);
                } else if (!matches!(number, SIGINT | SIGQUIT) || !is_foreground())
                    && let Some(signal) = Signal::from_named_raw(number)
                {
                    let _ = send(signal);
                }
            }
        })?;
        let ended = loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((ended, status))) if ended == process => break Ok(status),
                // An orphaned process.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => break Err(error.into()),
            }
        };
        handle.close();
        let _ = pass_on.join();
        ended
    }
}

/// Returns whether a terminal sends its signals to this process and to the program alike.
fn is_foreground() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}
