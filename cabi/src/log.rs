//! The log, which the libraries write to standard error.

use crate::boundary::LOGGING;
use std::io::IsTerminal;
use std::sync::atomic::Ordering;

/// A line on standard error. Where that cannot be written (a full disk, a closed pipe) the program goes on, which `eprintln!` would end.
macro_rules! note {
    ($($arg:tt)*) => {{
        let line = format!("{}\n", format_args!($($arg)*));
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }};
}
pub(crate) use note;

/// Starts the log with `filter`; a subscriber that the program has installed stays.
pub(crate) fn start(filter: &str) {
    match tracing_subscriber::EnvFilter::try_new(filter) {
        Ok(filter) => {
            let stderr = std::io::stderr;
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_ansi(stderr().is_terminal())
                // It would report a write that failed by `eprintln!`, which panics then.
                .log_internal_errors(false)
                .with_writer(stderr);
            LOGGING.store(true, Ordering::Relaxed);
            let _ = log.try_init();
        }
        Err(error) => crate::log::note!("uiw: UIW_LOG={filter}: {error}"),
    }
}
