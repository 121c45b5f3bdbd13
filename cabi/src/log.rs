//! The log, which the libraries write to standard error.

use crate::boundary::LOGGING;
use std::io::IsTerminal;
use std::sync::atomic::Ordering;

/// Starts the log with `filter`; a subscriber that the program has installed stays.
pub(crate) fn start(filter: &str) {
    match tracing_subscriber::EnvFilter::try_new(filter) {
        Ok(filter) => {
            let stderr = std::io::stderr;
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_ansi(stderr().is_terminal())
                .with_writer(stderr);
            LOGGING.store(true, Ordering::Relaxed);
            let _ = log.try_init();
        }
        Err(error) => eprintln!("uiw: UIW_LOG={filter}: {error}"),
    }
}
