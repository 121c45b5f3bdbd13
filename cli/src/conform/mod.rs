//! `uiw conform`: asks a foreign listener everything that can be judged from outside, and gives a verdict for each requirement of the RFCs.

mod build;
mod cases;
mod checks;
mod deframe;
mod judge;
mod link;
mod listener;
mod orders;
mod reply;
mod report;
mod requirements;
mod session;
#[cfg(test)]
mod simulated;
mod steps;
mod terminate;
mod values;
mod verdict;

use crate::args::{DEFAULT_PORT, resolve, seconds};
use crate::fail::{Exit, Failure, Result};
use crate::text;
use listener::Listener;
use report::{Destination, Report};
use serde_json::json;
use session::Target;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use steps::Outcome;
use uiw_cases::Case;
use verdict::Run;

/// The partner program's port.
const PARTNER_PORT: u16 = 7471;

/// What `--help` says behind the options.
pub(crate) const HELP: &str = "\
Each case is one connection whose every byte is given by a readable file: legal frames, illegal ones, ends. A requirement is `kept` where every case
that shows it saw it kept, `broken` with the frames, or not judged with the reason. Cases of --cases are added to the built-in ones; docs/conform.md has their
grammar, and how to read a verdict. The listener should serve several connections one after the other, and no program above it should mind
connections that end at once. It sees some hundred of them.

  uiw conform 192.0.2.7:7174                            # any iWARP listener
  uiw conform 192.0.2.7 --partner --report siw.md       # `siwpeer serve 192.0.2.7 7471` or `uiw siwtest --listen` there: data as well
  uiw conform --list; uiw conform HOST --requirement RFC5044-4.1-02

Exit codes:
  0  no requirement was seen broken
  1  the report cannot be written
  2  the command line or a case file is wrong
  3  no connection: refused, unreachable, timed out, rejected, or the peer does not speak iWARP
  4  the listener broke a requirement, or answers no more";

/// Options of `uiw conform`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The listener
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "list")]
    host: Option<String>,
    /// The listener is `siwpeer serve` or `uiw siwtest --listen`: Sends, Writes and Reads of data are judged as well
    #[arg(long)]
    partner: bool,
    /// Further cases: a file, or a folder with files *.case
    #[arg(long, value_name = "DIR|FILE")]
    cases: Vec<PathBuf>,
    /// Only cases whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    case: Vec<String>,
    /// Only these requirements in the report, by id or its beginning, such as RFC5044-4.3. Every frame may show one: all cases are run
    #[arg(long, value_name = "ID")]
    requirement: Vec<String>,
    /// Write a report: *.md (Markdown), *.json or *.xml (JUnit)
    #[arg(long, value_name = "FILE")]
    report: Vec<Destination>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Show requirements that were kept or not judged, too
    #[arg(long)]
    all: bool,
    /// Show the cases and end
    #[arg(long)]
    list: bool,
    /// How long nothing may move, before a case gives up: no byte from the listener. At least forty round trips
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    stall: f64,
    /// Cases at a time
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

/// Runs `uiw conform`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let cases = selected(args)?;
    if args.list {
        list(&cases, args.json);
        return Ok(());
    }
    let port = if args.partner { PARTNER_PORT } else { DEFAULT_PORT };
    let address = resolve(args.host.as_deref().unwrap_or_default(), port)?;
    let stall = Duration::from_secs_f64(args.stall.max(0.1));
    let mut target = Target { network: &link::TCP, address, stall, enhanced: true };
    let listener = listener::ask(&mut target, args.partner)?;
    let silent = OnceLock::new();
    let runs = run_all(&target, &listener, cases, args.jobs, &silent);
    let mut requirements = requirements::all();
    if !args.requirement.is_empty() {
        requirements.retain(|requirement| args.requirement.iter().any(|id| requirement.id.starts_with(id)));
    }
    let verdicts = verdict::verdicts(requirements, &runs);
    let report =
        Report { address: address.to_string(), listener: &listener, runs: &runs, verdicts: &verdicts };
    if args.json {
        report.print_json();
    } else {
        report.print(args.all);
    }
    args.report.iter().try_for_each(|to| report.write(to))?;
    if let Some(case) = silent.get() {
        let why = format!("it answers no Request any more since case {case}");
        return Err(Failure::new(Exit::Lost, address, why, "restart it; `--case` runs the others"));
    }
    match report.broken() {
        0 => Ok(()),
        broken => {
            let why = format!("{broken} requirements of the RFCs are broken");
            let fix = "see the frames above, and docs/conform.md on how to read a verdict";
            Err(Failure::new(Exit::Lost, address, why, fix))
        }
    }
}

/// The cases that the options name.
fn selected(args: &Args) -> Result<Vec<Case>> {
    let mut all = cases::built_in()?;
    for path in &args.cases {
        for case in cases::of_user(path)? {
            // A user's case takes the place of one of the same name.
            all.retain(|other| other.name != case.name);
            all.push(case);
        }
    }
    let table = requirements::all();
    for case in &all {
        if let Some(id) = cases::judges(case).into_iter().find(|id| table.iter().all(|row| row.id != *id)) {
            let why = format!("no requirement is called {id}");
            return Err(Failure::usage(&case.file, why, "see `interop/rfc/requirements.tsv` for their ids"));
        }
    }
    if !args.case.is_empty() {
        all.retain(|case| args.case.iter().any(|text| case.name.contains(text)));
    }
    let is_none = |id: &&String| table.iter().all(|row| !row.id.starts_with(id.as_str()));
    if let Some(id) = args.requirement.iter().find(is_none) {
        return Err(Failure::usage(
            "--requirement",
            format!("none is called {id}"),
            "see `uiw conform --list`",
        ));
    }
    if all.is_empty() {
        return Err(Failure::usage("--case", "no case has such a name", "see `uiw conform --list`"));
    }
    Ok(all)
}

fn list(cases: &[Case], as_json: bool) {
    for case in cases {
        let ids = cases::judges(case);
        if as_json {
            text::json(
                &json!({"name": case.name, "title": case.title, "file": case.file, "requirements": ids}),
            );
        } else {
            text::line(format!("{:<36} {}", case.name, case.title));
            if !ids.is_empty() {
                text::line(format!("    {}", ids.join(" ")));
            }
        }
    }
}

/// Runs a case, unless the listener lacks something, or answers no more since `silent`.
fn run_one(
    target: &Target,
    listener: &Listener,
    case: &Case,
    silent: &OnceLock<String>,
) -> std::result::Result<Outcome, String> {
    if let Some(since) = silent.get() {
        return Err(format!("the listener answers no more since case {since}"));
    }
    if let Some(why) = verdict::lacks(case, listener) {
        return Err(why);
    }
    let outcome = steps::run(target, case);
    // A case in which nothing came any more says nothing of the listener as a whole.
    if outcome.stopped.is_some() && !listener::answers(target) {
        let _ = silent.set(case.name.clone());
    }
    Ok(outcome)
}

/// Runs the cases, `jobs` at a time. The order of the results is that of the cases.
fn run_all(
    target: &Target,
    listener: &Listener,
    cases: Vec<Case>,
    jobs: u16,
    silent: &OnceLock<String>,
) -> Vec<Run> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<std::result::Result<Outcome, String>>>> =
        cases.iter().map(|_| Mutex::new(None)).collect();
    let progress = Mutex::new(text::Progress::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Ok(mut progress) = progress.lock() {
                        progress.show(|| format!("case {}", case.name));
                    }
                    let result = run_one(target, listener, case, silent);
                    let at = cases.iter().position(|other| std::ptr::eq(other, case));
                    if let Some(Ok(mut slot)) = at.map(|at| results[at].lock()) {
                        *slot = Some(result);
                    }
                }
            });
        }
    });
    drop(progress);
    let results = results.into_iter().map(|result| result.into_inner().ok().flatten());
    cases
        .into_iter()
        .zip(results)
        .map(|(case, result)| Run { case, result: result.unwrap_or_else(|| Err("not run".to_owned())) })
        .collect()
}
