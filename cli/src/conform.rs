//! `uiw conform`: tests a foreign listener from outside and gives a verdict for each requirement of
//! the RFCs.

use crate::shared::args::{DEFAULT_PORT, resolve, seconds};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::text;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;
use uiw_conform::{Case, ConformError, Destination, Report, Target, ask, requirement_ids, select};

/// Default port of the partner program.
const PARTNER_PORT: u16 = 7471;

/// Text of `--help` after the options.
pub(crate) const HELP: &str = "\
Each case is one connection, and a case file defines every byte of it: legal and illegal frames, and endings. A requirement is `kept` if every case
that can show it has seen it kept, `broken` with the frames as evidence, or not judged with a reason. --cases adds cases to the built-in ones; docs/case-files.md has their
grammar, and docs/conform.md explains the verdicts. The listener should serve several connections one after the other, and its program should not be disturbed by
connections that end at once. There are several hundred of them.

  uiw conform 192.0.2.7:7174                            # any iWARP listener
  uiw conform 192.0.2.7 --partner --report siw.md       # `siwpeer serve 192.0.2.7 7471` or `uiw siwtest --listen` there: data as well
  uiw conform --list; uiw conform HOST --requirement RFC5044-4.1-02

Exit codes:
  0  no requirement was seen broken
  1  the report cannot be written
  2  the command line or a case file is wrong
  3  no connection: refused, unreachable, timed out, rejected, or the peer does not speak iWARP
  4  the listener broke a requirement or stopped answering; with --strict also: a case stopped before its end";

/// Options of `uiw conform`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The listener
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "list")]
    host: Option<String>,
    /// The listener is `siwpeer serve` or `uiw siwtest --listen`: Sends, Writes and Reads of data
    /// are judged as well
    #[arg(long)]
    partner: bool,
    /// Further cases: a file, or a folder with files *.case
    #[arg(long, value_name = "DIR|FILE")]
    cases: Vec<PathBuf>,
    /// Only cases whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    case: Vec<String>,
    /// Only these requirements in the report, by id or its beginning, such as RFC5044-4.3. Every
    /// frame may show one: all cases are run
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
    /// A case that stops before its end is a failure, too
    #[arg(long)]
    strict: bool,
    /// Show the cases and end
    #[arg(long)]
    list: bool,
    /// Time without movement after which a case gives up: no byte from the listener. At least forty
    /// round trips
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    stall: f64,
    /// Cases at a time
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
}

/// Runs `uiw conform`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let cases = select(&args.cases, &args.case, &args.requirement)?;
    if args.list {
        list(&cases, args.json);
        return Ok(());
    }
    let port = if args.partner { PARTNER_PORT } else { DEFAULT_PORT };
    let address = resolve(args.host.as_deref().unwrap_or_default(), port)?;
    let mut target = Target::new(address, Duration::from_secs_f64(args.stall.max(0.1)));
    let listener = ask(&mut target, args.partner)?;
    let progress = Mutex::new(text::Progress::new());
    let show = |case: &str| {
        if let Ok(mut progress) = progress.lock() {
            progress.show(|| format!("case {case}"));
        }
    };
    let results = uiw_conform::run(&target, &listener, cases, args.jobs, &show);
    drop(progress);
    let report = Report::new(address.to_string(), &listener, &results, &args.requirement);
    if args.json {
        report.json_lines().iter().for_each(text::json);
    } else {
        report.lines(args.all).into_iter().for_each(text::line);
    }
    for to in &args.report {
        report.write(to).map_err(|error| {
            Failure::new(
                Exit::Failed,
                to.path().display(),
                error,
                "name a file that can be written",
            )
        })?;
    }
    if let Some(case) = &results.silent_since {
        let why = format!("it has not answered an MPA Request since case {case}");
        return Err(Failure::new(Exit::Lost, address, why, "restart it; `--case` runs the others"));
    }
    match report.broken() {
        0 if args.strict && report.stopped() > 0 => {
            let why = format!(
                "{} stopped before the end (--strict)",
                text::number(report.stopped() as u64, "case")
            );
            let fix = "see the lines `stopped` above: without --strict such a case is no verdict";
            Err(Failure::new(Exit::Lost, address, why, fix))
        }
        0 => Ok(()),
        broken => {
            let requirements = text::number(broken as u64, "requirement");
            let are = if broken == 1 { "is" } else { "are" };
            let why = format!("{requirements} of the RFCs {are} broken");
            let fix = "see the frames above, and docs/conform.md on how to read a verdict";
            Err(Failure::new(Exit::Lost, address, why, fix))
        }
    }
}

impl From<ConformError> for Failure {
    fn from(error: ConformError) -> Self {
        match error {
            ConformError::Usage { what, why, fix } => Self::usage(what, why, fix),
            ConformError::Unreachable { what, why, fix } => {
                Self::new(Exit::Unreachable, what, why, fix)
            }
        }
    }
}

fn list(cases: &[Case], as_json: bool) {
    for case in cases {
        let ids = requirement_ids(case);
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
