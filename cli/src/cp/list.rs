//! `uiw ls`: lists a directory in a share.

use super::caller::Caller;
use super::client::ConnectionShape;
use super::location::{Location, RemotePath};
use super::plan::{CopyOptions, CopyPlan};
use super::report::{Report, add_bytes, with_path};
use super::{Access, connect};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::open::Opener;
use crate::shared::stop::StopFlag;
use crate::shared::text;
use serde_json::json;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use uiw_copy::meta::{Entry, EntryKind, Meta};
use uiw_copy::names::{EscapedName, RelPath};
use uiw_copy::protocol::{CreateMode, Reply, Request, decode_entries};

/// Options of `uiw ls`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory or another entry: HOST[:PORT]:SHARE[/PATH]
    #[arg(value_name = "HOST:SHARE[/PATH]")]
    place: OsString,
    /// One JSON object an entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// Runs `uiw ls`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let Location::Remote(RemotePath { host, share, path, .. }) = Location::parse(&args.place)?
    else {
        let fix =
            "write HOST[:PORT]:SHARE[/PATH]; whoever runs the server knows the names of its shares";
        return Err(Failure::usage(args.place.to_string_lossy(), "no path of a server", fix));
    };
    let stop = StopFlag::on_signal()?;
    let (target, first) = connect(opener, &args.access, (&host, &share), false, None, &stop)?;
    let plan = CopyPlan::new(
        Report::new(args.json, Arc::clone(&target.heard)),
        stop,
        CopyOptions::default(),
    );
    let mut caller =
        Caller::new(first, &plan, &target, ConnectionShape::from_round_trip(Duration::MAX).slots);
    let listed = print_list(&mut caller, &path, args.json);
    // Nothing was to be transferred, so the server has no failure to log.
    caller.into_stripe().finish(0);
    listed
}

fn print_list(caller: &mut Caller<'_>, path: &RelPath, as_json: bool) -> Result<()> {
    let other = || Failure::lost(path, "the server gave another answer than asked for");
    let failed = |text: String| Failure::new(Exit::Failed, path, text, "see the server's log");
    let absent =
        || Failure::new(Exit::Failed, path, "the share has no such entry", "check the path");
    let meta = match caller.call(&Request::Stat { path: path.clone() })? {
        Reply::Found(meta) => meta,
        Reply::Absent => return Err(absent()),
        Reply::Failed { text, .. } => return Err(failed(text)),
        _ => return Err(other()),
    };
    if meta.kind != EntryKind::Directory {
        let name = path.as_bytes().rsplit(|byte| *byte == b'/').next();
        print_entry(name.unwrap_or_default(), &meta, as_json);
        return Ok(());
    }
    let mut after = Vec::new();
    loop {
        let request =
            Request::List { path: path.clone(), after: after.clone(), create: CreateMode::No };
        let (len, more) = match caller.call(&request)? {
            Reply::Listed { len, more } => (len, more),
            // It was removed in the meantime.
            Reply::Absent => return Err(absent()),
            Reply::Failed { text, .. } => return Err(failed(text)),
            _ => return Err(other()),
        };
        let entries = decode_entries(&caller.read_slot(len)?)
            .map_err(|error| Failure::lost(path, format!("violates the protocol: {error}")))?;
        if more && entries.is_empty() {
            return Err(Failure::lost(path, "the server announced more entries but sent none"));
        }
        for Entry { name, meta } in entries {
            // Requiring sorted names ensures that the list ends, and that no name occurs twice.
            if name.as_bytes() <= &after[..] {
                return Err(Failure::lost(path, "the server gave a list that is not in order"));
            }
            print_entry(name.as_bytes(), &meta, as_json);
            after = name.as_bytes().to_vec();
        }
        if !more || text::is_stdout_lost() {
            return Ok(());
        }
    }
}

fn print_entry(name: &[u8], meta: &Meta, as_json: bool) {
    let kind = match meta.kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::Special => "special",
    };
    if as_json {
        let mut entry = json!({
            "type": "entry", "kind": kind, "bytes": meta.size, "mode": meta.mode,
            "mtime": meta.mtime.seconds, "mtime_nanos": meta.mtime.nanos, "target": null,
        });
        if meta.kind == EntryKind::Symlink {
            add_bytes(&mut entry, "target", &meta.target);
        }
        text::json(&with_path(name, entry));
        return;
    }
    let letter = match meta.kind {
        EntryKind::File => '-',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Special => '?',
    };
    let bits = "rwxrwxrwx".chars().enumerate();
    let mode: String = bits
        .map(|(at, letter)| if meta.mode & (0o400 >> at) != 0 { letter } else { '-' })
        .collect();
    let target = if meta.target.is_empty() {
        String::new()
    } else {
        format!(" -> {}", EscapedName(&meta.target))
    };
    let time = utc(meta.mtime.seconds);
    text::line(format!(
        "{letter}{mode} {:>15} {time} {}{target}",
        text::grouped(meta.size),
        EscapedName(name)
    ));
}

/// Formats seconds since 1970 as date and time in UTC. A year may have more than four digits.
fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Count days since 0000-03-01, in cycles of 400 years with 146,097 days. Years begin in March,
    // so that a leap day is the last day of a year.
    let days = days + 719_468;
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    format!(
        "{:04}-{month:02}-{date:02} {:02}:{:02}:{:02}",
        year + cycle * 400,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_shown_in_utc() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(utc(seconds), shown, "{seconds}");
        }
        assert!(!utc(i64::MAX).is_empty() && !utc(i64::MIN).is_empty());
    }
}
