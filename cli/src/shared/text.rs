//! Numbers and tables for people.

use crate::shared::fail::{Exit, Failure, Result};
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
pub(crate) use uiw_decode::number::{grouped, number};
pub(crate) use uiw_llp::canonical;

/// Bytes a second, in GB/s, MB/s or kB/s.
pub(crate) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        r if r >= 1e9 => format!("{:.2} GB/s", r / 1e9),
        r if r >= 1e6 => format!("{:.1} MB/s", r / 1e6),
        r => format!("{:.1} kB/s", r / 1e3),
    }
}

/// Microseconds.
pub(crate) fn micros(us: f64) -> String {
    if us >= 10_000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}

/// One line on standard error that is overwritten; silent unless that is a terminal.
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

    /// Removes the line, before something else is printed.
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

/// The first error of standard output.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Prints a line. An error ends nothing that still has to be verified: [`written`] reports it at the end.
pub(crate) fn line(text: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{}", text.as_ref()).and_then(|()| out.flush());
    if let Err(error) = printed {
        let _ = LOST.set(error);
    }
}

/// Returns whether every line was written. A reader that has closed its pipe has what it wanted.
pub(crate) fn written() -> Result<()> {
    match LOST.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Failed,
            "cannot write the results",
            error,
            "free space, or write them elsewhere",
        )),
        _ => Ok(()),
    }
}

/// Returns whether lines have no reader any more: what is only printed, without an end of its own, ends.
pub(crate) fn is_lost() -> bool {
    LOST.get().is_some()
}

/// Prints `value` as one line of JSON.
pub(crate) fn json(value: &serde_json::Value) {
    line(value.to_string());
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
}
