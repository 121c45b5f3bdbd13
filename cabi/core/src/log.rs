//! The log, which the libraries write to standard error.

use crate::environment::{self, PrivilegePolicy};
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Environment variable with the filter of the log.
pub const VARIABLE: &str = "UIW_LOG";

/// True if calls may write to standard error.
static ON: AtomicBool = AtomicBool::new(false);

/// Returns whether any call may write to standard error.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Writes a formatted line to standard error with [`write_line`].
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => {
        $crate::log::write_line(&format!($($arg)*))
    };
}
pub use note;

/// Approximate maximum size of a line in bytes.
pub const MAX_LINE: usize = 2048;

/// Writes a line to standard error. If that fails (a full disk, a closed pipe), the program
/// continues, whereas `eprintln!` would panic.
pub fn write_line(line: &str) {
    let line = format!("{}\n", shown(line, MAX_LINE));
    let _ = StandardError.write_all(line.as_bytes());
}

/// Standard error without the lock of `std`. A child of a fork would wait forever for a lock that a
/// thread of its parent has held.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the call reads the bytes of `bytes`.
        let written =
            unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `text` in a form suitable for messages: characters that may control a terminal are
/// escaped, and text of more than `max` bytes loses its middle. Values of variables and names of
/// files may contain anything.
pub fn shown(text: &str, max: usize) -> String {
    let is_plain = |c: char| matches!(c, '\'' | '"' | '\\') || c.escape_debug().count() == 1;
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_debug());
        }
    }
    clip(&shown, max).into_owned()
}

/// Returns `text` without its middle if it has more than `max` bytes.
pub fn clip(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return text.into();
    }
    let front = text.floor_char_boundary(max / 2);
    let back = text.ceil_char_boundary(text.len() - max / 2);
    format!("{} [.. {} bytes ..] {}", &text[..front], back - front, &text[back..]).into()
}

/// Starts the log with the filter in its variable, if this is the first call of the process. Later
/// calls do not read the environment, which another thread may be changing.
#[cold]
pub(crate) fn start_by_variable() {
    static READ: AtomicBool = AtomicBool::new(false);
    if !READ.swap(true, Ordering::Relaxed)
        && let Some(filter) = environment::variable(VARIABLE, PrivilegePolicy::LevelOnly)
    {
        start(&filter.to_string_lossy());
    }
}

/// Starts the log with `filter` if it was not started yet. If the program has installed a
/// subscriber, that one is used.
pub(crate) fn start(filter: &str) {
    // This is not a `Once`, because a child of a fork must not wait for a thread that only the
    // parent has.
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !STARTED.swap(true, Ordering::Relaxed) {
        start_now(filter);
    }
}

fn start_now(filter: &str) {
    match filter.parse::<Targets>() {
        Ok(filter) => {
            let log = tracing_subscriber::fmt()
                .with_max_level(LevelFilter::TRACE)
                .with_ansi(io::stderr().is_terminal())
                // Internal errors would be reported with `eprintln!`, which panics if the write
                // fails.
                .log_internal_errors(false)
                .with_writer(|| StandardError)
                .finish()
                .with(filter);
            ON.store(true, Ordering::Relaxed);
            let _ = log.try_init();
        }
        Err(error) => crate::log::note!("uiw: UIW_LOG={filter}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_shown_escaped() {
        let text = "a\n\x1b[2J\u{7f}\u{9b}\u{202e}\u{e9}'\"\\";
        assert_eq!(shown(text, MAX_LINE), "a\\n\\u{1b}[2J\\u{7f}\\u{9b}\\u{202e}\u{e9}'\"\\");
    }

    #[test]
    fn long_text_shown_without_middle() {
        let text = format!("begin{}end", "\u{e9}".repeat(10_000));
        let shown = shown(&text, 100);
        assert!(
            shown.len() < 130 && shown.starts_with("begin") && shown.ends_with("end"),
            "{shown}"
        );
        assert!(shown.contains(" [.. 19910 bytes ..] "), "{shown}");
    }
}
