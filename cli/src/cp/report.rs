//! Counts and output of a transfer, as text and as JSON.

use super::channel::LastHeard;
use crate::shared::fail::Failure;
use crate::shared::text;
use serde_json::{Value, json};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uiw_copy::meta::{EntryKind, Meta};
use uiw_copy::names::{EscapedName, RelPath};

/// Time without an answer of the server after which the progress line shows the silence.
const SILENT: Duration = Duration::from_secs(3);

/// Counters of a transfer.
pub(super) struct Report {
    as_json: bool,
    begun: Instant,
    entries_found: AtomicU64,
    bytes_found: AtomicU64,
    copied: AtomicU64,
    unchanged: AtomicU64,
    failed: AtomicU64,
    would_copy: AtomicU64,
    deleted: AtomicU64,
    would_delete: AtomicU64,
    /// Number of bytes of files sent over the connections.
    moved: AtomicU64,
    /// Number of bytes of files that were already at the target or lie in holes.
    resumed: AtomicU64,
    /// Number of connections that broke.
    broken: AtomicU64,
    /// Time of the server's last sign of life.
    heard: Arc<LastHeard>,
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Report {
    pub(super) fn new(as_json: bool, heard: Arc<LastHeard>) -> Self {
        Self {
            as_json,
            begun: Instant::now(),
            entries_found: AtomicU64::new(0),
            bytes_found: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            would_copy: AtomicU64::new(0),
            deleted: AtomicU64::new(0),
            would_delete: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            heard,
        }
    }

    /// Counts a file or link to be copied.
    pub(super) fn count_found(&self, bytes: u64) {
        add(&self.entries_found, 1);
        add(&self.bytes_found, bytes);
    }

    /// Corrects the bytes of a file or link whose size has changed since it was found.
    pub(super) fn change_found(&self, before: u64, now: u64) {
        add(&self.bytes_found, now.wrapping_sub(before));
    }

    pub(super) fn count_copied(&self) {
        add(&self.copied, 1);
    }

    pub(super) fn count_unchanged(&self) {
        add(&self.unchanged, 1);
    }

    /// Counts bytes of files sent over a connection.
    pub(super) fn count_moved(&self, bytes: u64) {
        add(&self.moved, bytes);
    }

    /// Counts bytes of files that were already at the target or lie in holes.
    pub(super) fn count_resumed(&self, bytes: u64) {
        add(&self.resumed, bytes);
    }

    /// Counts a broken connection.
    pub(super) fn count_lost_connection(&self) {
        add(&self.broken, 1);
    }

    /// Returns the time since the server's last sign of life.
    pub(super) fn silent_for(&self) -> Duration {
        self.heard.at().elapsed()
    }

    pub(super) fn report_deleted(&self, path: &RelPath) {
        add(&self.deleted, 1);
        if self.as_json {
            text::json(&with_path(path.as_bytes(), json!({"type": "deleted"})));
        }
    }

    pub(super) fn report_would_delete(&self, path: &RelPath) {
        add(&self.would_delete, 1);
        if self.as_json {
            text::json(&with_path(path.as_bytes(), json!({"type": "would-delete"})));
        } else {
            text::line(format!("would delete {path}"));
        }
    }

    /// Reports that nothing was deleted, because some entries have failed.
    pub(super) fn report_nothing_deleted(&self) {
        note!("nothing was deleted, as entries were not copied");
    }

    pub(super) fn report_failed(&self, path: &[u8], why: &dyn Display) {
        self.report_entry("not copied", path, why);
    }

    /// Reports an entry of the target that could not be removed.
    pub(super) fn report_not_removed(&self, path: &RelPath, why: &dyn Display) {
        self.report_entry("not deleted", path.as_bytes(), why);
    }

    fn report_entry(&self, outcome: &str, path: &[u8], why: &dyn Display) {
        add(&self.failed, 1);
        // An empty path is the share itself, or the copied directory.
        let path = if path.is_empty() { b"." } else { path };
        if self.as_json {
            text::json(&with_path(path, json!({"type": "failed", "why": why.to_string()})));
        } else {
            text::clear_progress();
            note!("{outcome}: {}: {why}", EscapedName(path));
        }
    }

    /// Reports a source of the command line that cannot be copied. Prints JSON only, because the
    /// error that then ends the command is printed as text.
    pub(super) fn report_source_failed(&self, path: &[u8], failure: &Failure) {
        add(&self.failed, 1);
        if self.as_json {
            let path = if path.is_empty() { b"." } else { path };
            text::json(&with_path(path, json!({"type": "failed", "why": failure.why()})));
        }
    }

    pub(super) fn report_would_copy(&self, path: &RelPath, meta: &Meta) {
        add(&self.would_copy, 1);
        add(&self.bytes_found, meta.size);
        let kind = if meta.kind == EntryKind::Symlink { "symlink" } else { "file" };
        if self.as_json {
            let object = json!({"type": "would-copy", "kind": kind, "bytes": meta.size});
            text::json(&with_path(path.as_bytes(), object));
        } else {
            text::line(format!("would copy {path} ({})", text::number(meta.size, "byte")));
        }
    }

    /// Returns the number of entries that have failed.
    pub(super) fn failures(&self) -> u64 {
        get(&self.failed)
    }

    /// Returns the progress line for a terminal.
    pub(super) fn progress_line(&self) -> String {
        let (moved, resumed, found) =
            (get(&self.moved), get(&self.resumed), get(&self.bytes_found));
        let seconds = self.begun.elapsed().as_secs_f64();
        let rate = moved as f64 / seconds.max(0.001);
        let there = moved.saturating_add(resumed);
        let left = found.saturating_sub(there);
        let part =
            if found == 0 { 100.0 } else { (there as f64 / found as f64 * 100.0).min(100.0) };
        let silent = self.silent_for();
        let remaining = match rate {
            _ if silent > SILENT => {
                format!("no answer for {}", format_duration(silent.as_secs_f64()))
            }
            0.0 => String::new(),
            _ => format!("{} left", format_duration(left as f64 / rate)),
        };
        format!(
            "{part:3.0} %  {} of {} entries  {}  {remaining}",
            text::grouped(get(&self.copied)),
            text::grouped(get(&self.entries_found)),
            text::rate(rate)
        )
    }

    /// Prints the summary of a command that has failed. Prints JSON only.
    pub(super) fn print_failed_summary(&self, stripes: usize, dry_run: bool) {
        if self.as_json {
            self.print_summary(stripes, dry_run, false);
        }
    }

    pub(super) fn print_summary(&self, stripes: usize, dry_run: bool, is_complete: bool) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let [copied, unchanged, failed] = [&self.copied, &self.unchanged, &self.failed].map(get);
        let (moved, resumed) = (get(&self.moved), get(&self.resumed));
        if self.as_json {
            text::json(&json!({
                "type": "summary", "dry_run": dry_run, "would_copy": get(&self.would_copy),
                "would_delete": get(&self.would_delete), "deleted": get(&self.deleted), "copied": copied, "unchanged": unchanged, "failed": failed, "bytes": get(&self.bytes_found),
                "bytes_moved": moved, "bytes_resumed": resumed, "connections": stripes,
                "connections_lost": get(&self.broken), "seconds": seconds, "verified": is_complete && failed == 0 && !dry_run,
            }));
        } else if dry_run {
            let (count, bytes) = (get(&self.would_copy), get(&self.bytes_found));
            let deleted = match get(&self.would_delete) {
                0 => String::new(),
                count => format!(", {} would be deleted", text::grouped(count)),
            };
            let (count, bytes) = (text::grouped(count), text::number(bytes, "byte"));
            text::line(format!("{count} would be copied, {bytes}{deleted}"));
        } else {
            let deleted = match get(&self.deleted) {
                0 => String::new(),
                count => format!(", {} deleted", text::grouped(count)),
            };
            text::line(format!(
                "{} copied and verified, {} unchanged, {} not copied{deleted}: {} in {}, {}",
                text::grouped(copied),
                text::grouped(unchanged),
                text::grouped(failed),
                text::number(moved, "byte"),
                format_duration(seconds),
                text::rate(moved as f64 / seconds.max(0.001)),
            ));
        }
    }
}

/// Adds a path to `object`.
pub(super) fn with_path(path: &[u8], mut object: Value) -> Value {
    add_bytes(&mut object, "path", path);
    object
}

/// Adds bytes to `object`. A JSON string can only hold UTF-8, so other bytes are added as
/// hexadecimal digits as well.
pub(super) fn add_bytes(object: &mut Value, key: &str, bytes: &[u8]) {
    object[key] = String::from_utf8_lossy(bytes).into();
    if std::str::from_utf8(bytes).is_err() {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        object[format!("{key}_hex")] = digits.into();
    }
}

fn format_duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if seconds < 10.0 => format!("{seconds:.1} s"),
        0..120 => format!("{whole} s"),
        120..7200 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_json_are_exact() {
        assert_eq!(with_path(b"a\nb\\", json!({})), json!({"path": "a\nb\\"}));
        assert_eq!(
            with_path(b"a\xff", json!({})),
            json!({"path": "a\u{fffd}", "path_hex": "61ff"})
        );
    }

    #[test]
    fn times_for_people() {
        assert_eq!(format_duration(0.25), "0.2 s");
        assert_eq!(format_duration(59.6), "60 s");
        assert_eq!(format_duration(125.0), "2 min 05 s");
        assert_eq!(format_duration(7260.0), "2 h 01 min");
    }
}
