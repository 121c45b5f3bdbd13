//! The log, which the libraries write to standard error.

use crate::environment::{self, Privileged};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the variable with the log's filter.
pub const VARIABLE: &str = "UIW_LOG";

/// True if calls may write to standard error.
static ON: AtomicBool = AtomicBool::new(false);

/// Returns whether any call may write to standard error.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// A line on standard error. Where that cannot be written (a full disk, a closed pipe) the program goes on, which `eprintln!` would end.
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => {{
        let line = format!("{}\n", format_args!($($arg)*));
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }};
}
pub use note;

/// Starts the log as its variable says, if this is the first call of the process.
#[cold]
pub(crate) fn start_by_variable() {
    if let Some(filter) = environment::variable(VARIABLE, Privileged::LevelOnly) {
        start(&filter.to_string_lossy());
    }
}

/// Starts the log with `filter` if it was not started yet; a subscriber that the program has installed stays.
pub(crate) fn start(filter: &str) {
    // No `Once`: a child of a fork must not wait for a thread that only the parent has.
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !STARTED.swap(true, Ordering::Relaxed) {
        start_now(filter);
    }
}

fn start_now(filter: &str) {
    match tracing_subscriber::EnvFilter::try_new(filter) {
        Ok(filter) => {
            let stderr = std::io::stderr;
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_ansi(stderr().is_terminal())
                // It would report a write that failed by `eprintln!`, which panics then.
                .log_internal_errors(false)
                .with_writer(stderr);
            ON.store(true, Ordering::Relaxed);
            let _ = log.try_init();
        }
        Err(error) => crate::log::note!("uiw: UIW_LOG={filter}: {error}"),
    }
}
