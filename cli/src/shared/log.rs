//! The log on standard error, with bounds for the lines that peers can cause.
//!
//! Any host may connect as often as it likes, and each attempt may cause log lines in all crates.
//! Each place in the code therefore has its own budget, so that a flood of lines from one place
//! does not suppress the others.

use super::text::{escape, is_unsafe};
use std::collections::HashMap;
use std::fmt;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use uiw_cabi_core::log::{MAX_LINE, clip};

/// Maximum number of lines that one place may log in a burst.
const BURST: u32 = 1000;
/// Time after which a place may log one more line.
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts the log of the process. A second call keeps the first log.
pub(super) fn start(filter: Targets) {
    let _ = subscriber(filter, std::io::stderr().is_terminal(), std::io::stderr).try_init();
}

fn subscriber(
    filter: Targets,
    has_colors: bool,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
) -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        // The format adds the colors after escaping the line, because the crate does not escape the
        // fields.
        .with_ansi(false)
        // The crate would report a failed write with `eprintln!`, which then panics itself.
        .log_internal_errors(false)
        .event_format(BoundedFormat {
            has_colors,
            format: Format::default().with_ansi(false),
            limit: LogLimit::default(),
        })
        .with_writer(writer)
        .finish()
        .with(filter)
}

/// Format of log lines, which limits their length and number.
struct BoundedFormat {
    has_colors: bool,
    format: Format,
    limit: LogLimit,
}

impl<S, N> FormatEvent<S, N> for BoundedFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let about = event.metadata();
        // Debug and trace lines are not limited: a user who enables them wants all of them.
        if *about.level() <= Level::INFO {
            match self.limit.admit(about.callsite(), Instant::now()) {
                None => return Ok(()),
                Some(0) => {}
                Some(count) => {
                    SystemTime.format_time(&mut writer)?;
                    let target = about.target();
                    writeln!(
                        writer,
                        "  WARN {target}: too many lines like the next one: not logged count={count}"
                    )?;
                }
            }
        }
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        let line = escape(line.trim_end_matches('\n'), is_unsafe);
        match line
            .split_once(' ')
            .and_then(|(time, rest)| Some((time, rest.split_at_checked(LEVEL_WIDTH)?)))
        {
            Some((time, (level, rest))) if self.has_colors => {
                let color = color(*about.level());
                writeln!(
                    writer,
                    "\x1b[2m{time}\x1b[0m \x1b[{color}m{level}\x1b[0m{}",
                    clip(rest, MAX_LINE)
                )
            }
            _ => writeln!(writer, "{}", clip(&line, MAX_LINE)),
        }
    }
}

/// Width of a level in a line.
const LEVEL_WIDTH: usize = 5;

/// Returns the parameter of the escape sequence that colors a level.
fn color(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        Level::TRACE => 35,
    }
}

/// Decides which lines are logged: all of them, unless one place logs more than ten lines per
/// second after a burst of [`BURST`] lines.
#[derive(Debug, Default)]
struct LogLimit(Mutex<HashMap<Identifier, LineBudget>>);

/// Number of lines that one place may log.
#[derive(Debug)]
struct LineBudget {
    /// Number of lines that may be logged, as of `since`.
    left: u32,
    since: Instant,
    /// Number of lines omitted since the last logged one.
    omitted: u64,
}

impl LogLimit {
    /// Returns the number of lines omitted before this one, or `None` if this line is not logged.
    fn admit(&self, place: Identifier, now: Instant) -> Option<u64> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.entry(place).or_insert(LineBudget { left: BURST, since: now, omitted: 0 }).admit(now)
    }
}

impl LineBudget {
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let gained = now.saturating_duration_since(self.since).as_millis() / INTERVAL.as_millis();
        let gained = u32::try_from(gained).unwrap_or(u32::MAX);
        if gained >= BURST - self.left {
            (self.left, self.since) = (BURST, now);
        } else {
            self.left += gained;
            self.since += INTERVAL * gained;
        }
        if self.left == 0 {
            self.omitted += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;

    #[test]
    fn flood_of_lines_admitted_in_part() {
        let start = Instant::now();
        let mut budget = LineBudget { left: BURST, since: start, omitted: 0 };
        let mut logged = |at: Duration, count: usize| {
            (0..count).filter_map(|_| budget.admit(start + at)).collect::<Vec<_>>()
        };
        assert_eq!(logged(Duration::ZERO, 5000), vec![0; BURST as usize]);
        let mut next = logged(Duration::from_millis(350), 1000);
        assert_eq!(next, [4000, 0, 0]);
        next = logged(Duration::from_millis(400), 10);
        assert_eq!(next, [997]);
        // One day later.
        assert_eq!(logged(Duration::from_secs(86_400), 5000).len(), BURST as usize);
    }

    /// Log of a test, in memory.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for &Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Memory {
        type Writer = &'a Self;

        fn make_writer(&'a self) -> &'a Self {
            self
        }
    }

    fn logged(has_colors: bool, events: impl FnOnce()) -> String {
        let memory = Memory::default();
        let log =
            subscriber(Targets::new().with_default(LevelFilter::TRACE), has_colors, memory.clone());
        tracing::subscriber::with_default(log, events);
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn flood_leaves_other_lines_logged() {
        let flood = |count: u32| (0..count).for_each(|number| tracing::warn!(number, "flood"));
        let said = logged(false, || {
            flood(3 * BURST);
            tracing::warn!("something else");
            std::thread::sleep(2 * INTERVAL);
            flood(1);
            (0..2 * BURST).for_each(|_| tracing::debug!("asked for"));
        });
        let count = |text: &str| said.matches(text).count() as u32;
        assert!((BURST + 1..BURST + 100).contains(&count(": flood")), "{}", count(": flood"));
        assert!(said.contains(": something else\n"));
        assert!(said.contains("too many lines like the next one: not logged count="));
        assert_eq!(count("asked for"), 2 * BURST);
    }

    #[test]
    fn long_line_logged_without_middle() {
        let path = "x\u{1}".repeat(3000);
        let said =
            logged(false, || tracing::warn!(path, error = "at the end", "entry not transferred"));
        assert!(said.len() < 2200, "{}", said.len());
        assert!(
            said.contains("entry not transferred") && said.ends_with("error=\"at the end\"\n"),
            "{said}"
        );
        assert!(said.contains(" bytes ..] "), "{said}");
    }

    #[test]
    fn unsafe_characters_logged_escaped() {
        for has_colors in [false, true] {
            let name = "a\nb\x1b[2J\u{9b}\u{202e}";
            let said = logged(has_colors, || tracing::warn!(%name, "{name}"));
            let plain = said.replacen("\x1b[", "", 4);
            assert_eq!(plain.matches('\n').count(), 1, "{said:?}");
            assert!(
                !said.contains("\x1b[2J") && !plain.chars().any(|c| c != '\n' && is_unsafe(c)),
                "{said:?}"
            );
            assert_eq!(said.contains('\x1b'), has_colors, "{said:?}");
        }
    }
}
