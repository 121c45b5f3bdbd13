//! The two processes of a run with a report. The first process, which the user has started, waits
//! for the second one, which waits for the program and reports. If one of them is killed, the other
//! one ends the program and its descendants, so that a killed run leaves neither processes nor
//! files.
//!
//! Both processes are subreapers: if a descendant of the program loses its parent, it becomes a
//! child of the nearest of the two. The second process has a parent-death signal, and the first one
//! waits for the second one. The survivor therefore notices when the other one is killed, finds the
//! remaining processes below itself, kills them until none is left, and removes the counters.

use super::tree;
use crate::shared::fail::{Failure, Result};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, getppid, kill_process,
    pidfd_open, pidfd_send_signal, set_child_subreaper, set_parent_process_death_signal, wait,
};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uiw_cli_sys::signals::{SignalInfo, is_ignored, is_of_kernel};
use uiw_cli_sys::split::{ProcessSide, split};

/// Signal that the kernel sends to the second process when the thread that created it has ended,
/// which happens only when the first process ends.
///
/// It differs from the signals that are passed on, so that its arrival alone shows that the first
/// process has ended. getppid(2) is not sufficient: the other threads of a killed process may end
/// later, and until then the process is still the parent.
const FIRST_ENDED: Signal = Signal::POWER;

/// Description of the first step, for hints. The pair of sockets is needed to handle signals.
const PROCESS: &str = "making a process and a pair of sockets";

/// Runs `watch` in a second process, and returns its exit code in the first one. If the second
/// process is killed, the first one ends the program and calls `clean_up`.
pub(super) fn run(
    watch: impl FnOnce(Guard) -> Result<ExitCode>,
    clean_up: impl FnOnce(),
) -> Result<ExitCode> {
    let first = getpid();
    let failed = |error: io::Error| {
        let what = "cannot make the process that waits for the program (fork, socketpair)";
        Failure::local(what, &error).with_denied_fix(PROCESS, &error)
    };
    // A sandbox refuses a pair of sockets to both processes. Try it here, so that only one of them
    // reports the error.
    drop(UnixStream::pair().map_err(failed)?);
    match split().map_err(failed)? {
        ProcessSide::Child => watch(Guard::new(Some(first)).map_err(failed)?),
        ProcessSide::Parent(child) => {
            let guard = Guard::new(None).map_err(failed)?;
            let ended = guard.wait_status(Pid::from_raw(child.get()).unwrap_or(first)).map_err(
                |error| {
                    tree::kill_descendants();
                    wait_failure(&error)
                },
            )?;
            if ended.signaled() {
                tree::kill_descendants();
                clean_up();
            }
            Ok(ExitCode::from(exit_code(ended)))
        }
    }
}

/// Creates the error for a program that cannot be waited for, most often because the thread that
/// passes signals on could not be started.
fn wait_failure(error: &io::Error) -> Failure {
    Failure::local("cannot wait for the program", error).with_denied_fix("starting a thread", error)
}

/// Returns the exit code of a process in the convention of shells: 128 plus the number of a signal
/// that ended it.
fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    u8::try_from(code.unwrap_or(0)).unwrap_or(u8::MAX)
}

/// Guard of a process: it waits for the process, and passes the signals of this process on to it.
/// It is created before the process, so that no signal is lost.
pub(super) struct Guard {
    first: FirstProcess,
    signals: SignalsInfo<WithRawSiginfo>,
}

/// The first process, as seen by the second one. When it ends, the program is ended.
#[derive(Clone)]
struct FirstProcess {
    /// `None` in the first process itself.
    number: Option<Pid>,
    /// True if [`FIRST_ENDED`] has been received.
    ended: Arc<AtomicBool>,
}

impl FirstProcess {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
            || self.number.is_some_and(|number| getppid() != Some(number))
    }
}

impl Guard {
    fn new(first: Option<Pid>) -> io::Result<Self> {
        // Orphaned processes of the program become children of this process, so that they can be
        // found.
        set_child_subreaper(Some(getpid()))?;
        // The program ignores those that this process ignores, for example under nohup(1).
        let passed_on = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
        let signals =
            SignalsInfo::new(passed_on.into_iter().filter(|signal| !is_ignored(*signal)))?;
        let first = FirstProcess { number: first, ended: Arc::default() };
        if first.number.is_some() {
            // The flag is registered first, because the thread that handles the signal reads it.
            flag::register(FIRST_ENDED.as_raw(), Arc::clone(&first.ended))?;
            signals.add_signal(FIRST_ENDED.as_raw())?;
            set_parent_process_death_signal(Some(FIRST_ENDED))?;
            if first.has_ended() {
                return Err(io::Error::other("the process that started it has ended"));
            }
        }
        Ok(Self { first, signals })
    }

    /// Waits for the program and returns its exit code.
    pub(super) fn wait(self, program: Pid) -> Result<u8> {
        let first = self.first.clone();
        let status = self.wait_status(program);
        // The program cannot be waited for, or the first process has ended.
        if status.is_err() || first.has_ended() {
            tree::kill_descendants();
        }
        status.map(exit_code).map_err(|error| wait_failure(&error))
    }

    fn wait_status(self, process: Pid) -> io::Result<WaitStatus> {
        let Self { first, mut signals } = self;
        let handle = signals.handle();
        // The descriptor still refers to this process after its number has been reused. It is not
        // available before Linux 5.3.
        let opened = pidfd_open(process, PidfdFlags::empty()).ok();
        let send = move |signal| match &opened {
            Some(opened) => pidfd_send_signal(opened, signal),
            None => kill_process(process, signal),
        };
        let pass_on =
            std::thread::Builder::new().name("uiw-signals".to_owned()).spawn(move || {
                for info in &mut signals {
                    if first.has_ended() {
                        let _ = send(Signal::KILL);
                    } else if !is_of_terminal(&info)
                        && let Some(signal) = Signal::from_named_raw(info.si_signo)
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

/// Returns whether the terminal has sent the signal, and thereby also to the program.
fn is_of_terminal(info: &SignalInfo) -> bool {
    matches!(info.si_signo, SIGINT | SIGQUIT) && is_of_kernel(info) && is_foreground()
}

/// Returns whether the terminal sends its signals to this process.
fn is_foreground() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}
