//! Output of text and JSON lines.

use crate::shared::fail::{Exit, Failure, Result};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use uiw_cabi_core::log::{MAX_LINE, clip};
pub(crate) use uiw_copy::names::is_unsafe;
use uiw_decode::json::line as json_line;
pub(crate) use uiw_decode::number::{grouped, number};
pub(crate) use uiw_llp::canonical;

/// Formats bytes per second in GB/s, MB/s or kB/s.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        r if r >= 1e9 => format!("{:.2} GB/s", r / 1e9),
        r if r >= 1e6 => format!("{:.1} MB/s", r / 1e6),
        r => format!("{:.1} kB/s", r / 1e3),
    }
}

/// Formats microseconds, in milliseconds from 10 ms on.
pub(crate) fn micros(us: f64) -> String {
    if us >= 10_000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}

/// Progress line on standard error that is overwritten. Nothing is shown unless standard error is a
/// terminal.
pub(crate) struct Progress {
    on: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { on: io::stderr().is_terminal(), last: None }
    }

    /// Shows `text`, at most ten times a second.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        if !self.on || self.last.is_some_and(|at| at.elapsed() < Duration::from_millis(100)) {
            return;
        }
        self.last = Some(Instant::now());
        let _ = write!(io::stderr(), "\r\x1b[K{}", text());
    }

    /// Removes the line before something else is printed.
    pub(crate) fn clear(&mut self) {
        if self.last.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Removes the progress line of another thread, if there is one.
pub(crate) fn clear_progress() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// First error of a write to standard output.
static STDOUT_ERROR: OnceLock<io::Error> = OnceLock::new();

/// Returns `text`, with escape sequences for the characters for which `is_escaped` returns true.
pub(crate) fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return text.into();
    }
    text.chars()
        .fold(String::with_capacity(text.len()), |mut out, char| {
            // Writing to a string cannot fail.
            let _ = if is_escaped(char) {
                write!(out, "{}", char.escape_default())
            } else {
                out.write_char(char)
            };
            out
        })
        .into()
}

/// Returns whether a character of a text with line breaks is escaped. File names, values of
/// variables and messages of peers must not control a terminal.
fn is_escaped(char: char) -> bool {
    char != '\n' && is_unsafe(char)
}

/// Prints lines with escaped control characters.
pub(crate) fn line(text: impl AsRef<str>) {
    raw_line(&escape(text.as_ref(), is_escaped));
}

/// Prints lines unchanged, for programs. A write error does not end the command, which may still
/// have to verify something: [`check_written`] reports it at the end.
pub(crate) fn raw_line(text: &str) {
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{text}").and_then(|()| out.flush());
    if let Err(error) = printed {
        let _ = STDOUT_ERROR.set(error);
    }
}

/// Checks that every line was written. A closed pipe is not an error, because its reader did not
/// want more.
pub(crate) fn check_written() -> Result<()> {
    match STDOUT_ERROR.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Failed,
            "cannot write the results",
            error,
            "free space, or write them elsewhere",
        )),
        _ => Ok(()),
    }
}

/// Returns whether standard output has failed. Commands that print without end then stop.
pub(crate) fn is_stdout_lost() -> bool {
    STDOUT_ERROR.get().is_some()
}

/// Prints lines on standard error. Unlike `eprintln!`, this does not panic if the write fails.
pub(crate) fn note(text: &str) {
    let mut lines = String::new();
    for line in escape(text, is_escaped).split('\n') {
        lines.push_str(&clip(line, MAX_LINE));
        lines.push('\n');
    }
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// Prints `value` as one line of JSON.
pub(crate) fn json(value: &serde_json::Value) {
    raw_line(&json_line(value));
}

/// Prints `value` as one line of JSON on standard error.
pub(crate) fn note_json(value: &serde_json::Value) {
    let _ = io::stderr().write_all(format!("{}\n", json_line(value)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(rate(5.07e9), "5.07 GB/s");
        assert_eq!(rate(12_345.0), "12.3 kB/s");
        assert_eq!(micros(12.34), "12.3 us");
    }

    #[test]
    fn unsafe_characters_escaped() {
        let text = "a\nb\x1b[2J\u{9b}\u{7f}\u{202e}\u{e9}'\\";
        assert_eq!(escape(text, is_escaped), "a\nb\\u{1b}[2J\\u{9b}\\u{7f}\\u{202e}\u{e9}'\\");
        assert!(matches!(escape("plain\ntext", is_escaped), Cow::Borrowed(_)));
    }
}
