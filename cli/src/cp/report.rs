//! What a transfer has come to, for people and programs.

use super::channel::Heard;
use crate::shared::fail::Failure;
use crate::shared::text;
use serde_json::{Value, json};
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uiw_copy::meta::{Kind, Meta};
use uiw_copy::names::{EscapedName, RelPath};

/// After how long without an answer of the server a terminal shows that.
const SILENT: Duration = Duration::from_secs(3);

/// Counts of all connections.
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
    /// Bytes of files that went over the connections, and those that were there from before.
    moved: AtomicU64,
    resumed: AtomicU64,
    broken: AtomicU64,
    /// Time of the server's last sign of life.
    heard: Arc<Heard>,
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Report {
    pub(super) fn new(as_json: bool, heard: Arc<Heard>) -> Self {
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

    /// A file or link of so many bytes.
    pub(super) fn found(&self, bytes: u64) {
        add(&self.entries_found, 1);
        add(&self.bytes_found, bytes);
    }

    pub(super) fn copied(&self) {
        add(&self.copied, 1);
    }

    pub(super) fn unchanged(&self) {
        add(&self.unchanged, 1);
    }

    /// Bytes of files went over a connection.
    pub(super) fn moved(&self, bytes: u64) {
        add(&self.moved, bytes);
    }

    /// Bytes of files were there, or lie in holes.
    pub(super) fn resumed(&self, bytes: u64) {
        add(&self.resumed, bytes);
    }

    /// A connection broke.
    pub(super) fn broke(&self) {
        add(&self.broken, 1);
    }

    /// Returns the time since the server's last sign of life.
    pub(super) fn silent_for(&self) -> Duration {
        self.heard.at().elapsed()
    }

    pub(super) fn deleted(&self, path: &RelPath) {
        add(&self.deleted, 1);
        if self.as_json {
            text::json(&with_path(path.as_bytes(), json!({"type": "deleted"})));
        }
    }

    pub(super) fn would_delete(&self, path: &RelPath) {
        add(&self.would_delete, 1);
        if self.as_json {
            text::json(&with_path(path.as_bytes(), json!({"type": "would-delete"})));
        } else {
            text::line(format!("would delete {path}"));
        }
    }

    /// Entries that failed keep others from being deleted.
    pub(super) fn not_deleted(&self) {
        note!("nothing was deleted, as entries were not copied");
    }

    pub(super) fn failed(&self, path: &[u8], why: &dyn Display) {
        self.fail("not copied", path, why);
    }

    /// An entry of the target could not be removed.
    pub(super) fn not_removed(&self, path: &RelPath, why: &dyn Display) {
        self.fail("not deleted", path.as_bytes(), why);
    }

    fn fail(&self, outcome: &str, path: &[u8], why: &dyn Display) {
        add(&self.failed, 1);
        // The share itself, or the directory that is copied to or from.
        let path = if path.is_empty() { b"." } else { path };
        if self.as_json {
            text::json(&with_path(path, json!({"type": "failed", "why": why.to_string()})));
        } else {
            text::clear_progress();
            note!("{outcome}: {}: {why}", EscapedName(path));
        }
    }

    /// A source of the command line cannot be copied, which ends the command: the error itself is
    /// for people alone.
    pub(super) fn source_failed(&self, path: &[u8], failure: &Failure) {
        add(&self.failed, 1);
        if self.as_json {
            let path = if path.is_empty() { b"." } else { path };
            text::json(&with_path(path, json!({"type": "failed", "why": failure.why()})));
        }
    }

    pub(super) fn would_copy(&self, path: &RelPath, meta: &Meta) {
        add(&self.would_copy, 1);
        add(&self.bytes_found, meta.size);
        let kind = if meta.kind == Kind::Symlink { "symlink" } else { "file" };
        if self.as_json {
            let object = json!({"type": "would-copy", "kind": kind, "bytes": meta.size});
            text::json(&with_path(path.as_bytes(), object));
        } else {
            text::line(format!("would copy {path} ({})", text::number(meta.size, "byte")));
        }
    }

    /// Entries that could not be copied.
    pub(super) fn failures(&self) -> u64 {
        get(&self.failed)
    }

    /// One line for a terminal.
    pub(super) fn line(&self) -> String {
        let (moved, resumed, found) = (get(&self.moved), get(&self.resumed), get(&self.bytes_found));
        let seconds = self.begun.elapsed().as_secs_f64();
        let rate = moved as f64 / seconds.max(0.001);
        let there = moved.saturating_add(resumed);
        let left = found.saturating_sub(there);
        let part = if found == 0 { 100.0 } else { (there as f64 / found as f64 * 100.0).min(100.0) };
        let silent = self.silent_for();
        let remaining = match rate {
            _ if silent > SILENT => format!("no answer for {}", clock(silent.as_secs_f64())),
            0.0 => String::new(),
            _ => format!("{} left", clock(left as f64 / rate)),
        };
        format!(
            "{part:3.0} %  {} of {} entries  {}  {remaining}",
            text::grouped(get(&self.copied)),
            text::grouped(get(&self.entries_found)),
            text::rate(rate)
        )
    }

    /// The end of a command that has failed, for programs.
    pub(super) fn ended(&self, stripes: usize, dry_run: bool) {
        if self.as_json {
            self.summary(stripes, dry_run, false);
        }
    }

    pub(super) fn summary(&self, stripes: usize, dry_run: bool, is_complete: bool) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let [copied, unchanged, failed] = [&self.copied, &self.unchanged, &self.failed].map(get);
        let (moved, resumed) = (get(&self.moved), get(&self.resumed));
        if self.as_json {
            text::json(&json!({
                "type": "summary", "dry_run": dry_run, "would_copy": get(&self.would_copy),
                "would_delete": get(&self.would_delete), "deleted": get(&self.deleted), "copied": copied, "unchanged": unchanged, "failed": failed, "bytes": get(&self.bytes_found),
                "bytes_moved": moved, "bytes_resumed": resumed, "connections": stripes,
                "connections_lost": get(&self.broken), "seconds": seconds, "verified": is_complete && failed == 0,
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
                clock(seconds),
                text::rate(moved as f64 / seconds.max(0.001)),
            ));
        }
    }
}

/// `object` with a path. JSON has text alone: of a path that is not UTF-8 it has the bytes, too, as
/// hexadecimal digits.
pub(super) fn with_path(path: &[u8], mut object: Value) -> Value {
    object["path"] = String::from_utf8_lossy(path).into();
    if std::str::from_utf8(path).is_err() {
        object["path_hex"] = path.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    }
    object
}

/// A time for people.
fn clock(seconds: f64) -> String {
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
        assert_eq!(with_path(b"a\xff", json!({})), json!({"path": "a\u{fffd}", "path_hex": "61ff"}));
    }

    #[test]
    fn times_for_people() {
        assert_eq!(clock(0.25), "0.2 s");
        assert_eq!(clock(59.6), "60 s");
        assert_eq!(clock(125.0), "2 min 05 s");
        assert_eq!(clock(7260.0), "2 h 01 min");
    }
}
