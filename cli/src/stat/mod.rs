//! `uiw stat`: shows the counters of running programs and, on request, of programs that have ended.

mod collect;
mod metrics;
mod responder;
mod show;

use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::stop::StopFlag;
use crate::shared::text;
use collect::{CollectedDevices, ProgramDevice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw::counters::FileError;

pub(crate) use show::{datagrams, operations};

/// Show the counters of running programs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only this process, by the number or name that `ps -o pid,comm` shows
    #[arg(value_name = "PID|NAME")]
    process: Option<String>,
    /// Also show programs that have ended; each is shown once
    #[arg(long)]
    all: bool,
    /// Repeat until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Seconds over which rates are measured; 0 shows only counts
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::shared::args::seconds)]
    interval: f64,
    /// One JSON object a process
    #[arg(long)]
    json: bool,
    /// Serve the counters of all programs at http://ADDR/metrics, in Prometheus' text format, until
    /// Ctrl-C
    #[arg(long, value_name = "ADDR:PORT", conflicts_with_all = ["process", "all", "watch", "json"])]
    prometheus: Option<SocketAddr>,
}

pub(crate) const HELP: &str = "\
Programs publish their counters in files in the directory uiw of XDG_RUNTIME_DIR, or in /tmp/uiw-UID without one. A program that has
ended is shown by --all once, and its file is removed; only `uiw run` removes its own files. UIW_COUNTERS=DIR names the directory of
programs that publish there, for instance /run/uiw of the service; then no file is removed. If there are more than 128 files, the oldest are removed.

Bytes are payload, in the direction in which it travels: a Read counts as sent where its data comes from. Round trips and
retransmissions are the kernel's and need its TCP, in this network namespace.";

/// Shows the counters once or repeatedly, or serves them.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(address) = args.prometheus {
        return responder::serve(address, &StopFlag::on_signal()?);
    }
    let interval = Duration::from_secs_f64(args.interval);
    let stop = if args.watch || !interval.is_zero() { Some(StopFlag::on_signal()?) } else { None };
    let mut before: Option<(Instant, CollectedDevices)> = None;
    let mut shown = 0_usize;
    let mut has_looked = false;
    loop {
        let now = Instant::now();
        let collected = collect::collect_devices(args.process.as_deref())?;
        if interval.is_zero() || before.is_some() {
            let earlier = before.as_ref().map(|(at, all)| (now.duration_since(*at), all));
            shown += show(args, &collected, earlier);
            has_looked = true;
            if !args.watch {
                break;
            }
        }
        before = Some((now, collected));
        let pause = if interval.is_zero() { Duration::from_secs(1) } else { interval };
        if let Some(stop) = &stop
            && (text::is_stdout_lost() || stop.sleep_for(pause))
        {
            break;
        }
    }
    match &args.process {
        // Interrupted during the first interval.
        _ if !has_looked => Ok(()),
        Some(process) if shown == 0 => Err(Failure::new(
            Exit::Failed,
            format!("no counters of {process}"),
            "no such program of this user publishes any",
            "see `uiw stat` for those that do, and --all for those that have ended",
        )),
        None if shown == 0 => {
            note!("no program of this user publishes counters now");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Shows every process, and removes the files of processes that have ended. Returns the number of
/// processes shown.
fn show(
    args: &Args,
    collected: &CollectedDevices,
    before: Option<(Duration, &CollectedDevices)>,
) -> usize {
    let mut warnings = UnreadableFiles::default();
    collected.unreadable.iter().for_each(|unreadable| warnings.add(unreadable));
    warnings.end();
    let mut shown = 0;
    for process in &collected.processes {
        if !(process.is_running() || args.all && process.claim()) {
            continue;
        }
        let earlier = before.filter(|_| process.is_running());
        let earlier = earlier.and_then(|(time, all)| Some((time, all.find_same(process)?)));
        match args.json {
            true => show::print_json(process, earlier),
            false => show::print_text(process, earlier),
        }
        shown += 1;
    }
    shown
}

/// Counter of unreadable files, which prints a warning for each of the first
/// [`UnreadableFiles::MAX`] of them.
#[derive(Default)]
pub(crate) struct UnreadableFiles(usize);

impl UnreadableFiles {
    const MAX: usize = 16;

    pub(crate) fn add(&mut self, (file, error): &(String, FileError)) {
        self.0 += 1;
        if self.0 <= Self::MAX {
            note!("warning: {file}: {error}");
        }
    }

    /// Prints the number of further unreadable files.
    pub(crate) fn end(self) {
        if self.0 > Self::MAX {
            note!(
                "warning: {} cannot be read either",
                text::number((self.0 - Self::MAX) as u64, "other file")
            );
        }
    }
}

impl ProgramDevice {
    fn is_running(&self) -> bool {
        self.pid.is_some() || self.is_elsewhere
    }

    /// Returns whether to show a program that has ended. If several processes run `uiw stat`, only
    /// the one that removes the program's file shows it, unless the file is kept.
    fn claim(&self) -> bool {
        if self.is_kept {
            return true;
        }
        match self.file.remove(&self.directory) {
            Ok(first) => first,
            Err(error) => {
                note!("warning: {}: {error}", self.file.name());
                true
            }
        }
    }
}
