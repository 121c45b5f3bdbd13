//! `uiw stat`: the counters that programs publish, of those that run and, if asked for, of those
//! that have ended.

mod collect;
mod metrics;
mod responder;
mod show;

use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::stop::Stop;
use crate::shared::text;
use collect::{CollectedProcesses, Process};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw::counters::FileError;

pub(crate) use show::{datagrams, operations};

/// Show the counters of running programs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this process: its number or its name, as `ps -o pid,comm` shows them
    #[arg(value_name = "PID|NAME")]
    process: Option<String>,
    /// Programs that have ended, too: each is shown once
    #[arg(long)]
    all: bool,
    /// Repeat until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Seconds over which rates are measured; 0 shows counts alone
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
Programs publish their counters in files: of the directory uiw in XDG_RUNTIME_DIR, without one /tmp/uiw-UID. A program that has
ended is shown by --all once, and its file is removed; files of `uiw run` are removed by that alone. UIW_COUNTERS=DIR names the directory of
programs that publish there, for instance /run/uiw of the service; then no file is removed. Of more than 128 files the oldest are removed.

Bytes are payload, in the direction in which it travels: a Read counts as sent where its data comes from. Round trips and
retransmissions are the kernel's and need its TCP, in this network namespace.";

/// Shows them once or repeatedly, or serves them.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(address) = args.prometheus {
        return responder::serve(address, &Stop::on_signal()?);
    }
    let interval = Duration::from_secs_f64(args.interval);
    let stop = if args.watch || !interval.is_zero() { Some(Stop::on_signal()?) } else { None };
    let mut before: Option<(Instant, CollectedProcesses)> = None;
    let mut shown = 0_usize;
    loop {
        let now = Instant::now();
        let collected = collect::all(args.process.as_deref())?;
        if interval.is_zero() || before.is_some() {
            let earlier = before.as_ref().map(|(at, all)| (now.duration_since(*at), all));
            shown += show(args, &collected, earlier);
            if !args.watch {
                break;
            }
        }
        before = Some((now, collected));
        let pause = if interval.is_zero() { Duration::from_secs(1) } else { interval };
        if let Some(stop) = &stop
            && (text::is_lost() || stop.sleep_for(pause))
        {
            break;
        }
    }
    match &args.process {
        Some(process) if shown == 0 => Err(Failure::new(
            Exit::Failed,
            format!("no counters of {process}"),
            "no such program of this user publishes any",
            "see `uiw stat` for those that do, and --all for those that have ended",
        )),
        _ => Ok(()),
    }
}

/// Shows every process, and removes the files of those that have ended. Returns how many were
/// shown.
fn show(
    args: &Args,
    collected: &CollectedProcesses,
    before: Option<(Duration, &CollectedProcesses)>,
) -> usize {
    let mut warnings = UnreadableFiles::default();
    collected.unreadable.iter().for_each(|unreadable| warnings.add(unreadable));
    warnings.end();
    let mut shown = 0;
    for process in &collected.processes {
        if !(process.is_running() || args.all && process.claim()) {
            continue;
        }
        let earlier = before.and_then(|(time, all)| Some((time, all.same_as(process)?)));
        match args.json {
            true => show::json(process, earlier),
            false => show::text(process, earlier),
        }
        shown += 1;
    }
    shown
}

/// Warnings about files that cannot be read, of which each look prints few.
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

    /// Says how many more there are.
    pub(crate) fn end(self) {
        if self.0 > Self::MAX {
            note!(
                "warning: {} cannot be read either",
                text::number((self.0 - Self::MAX) as u64, "other file")
            );
        }
    }
}

impl Process {
    fn is_running(&self) -> bool {
        self.pid.is_some() || self.is_elsewhere
    }

    /// Returns whether one that has ended is shown: by the program alone that removes its file.
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
