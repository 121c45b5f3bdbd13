//! Conformance test of a foreign iWARP listener. It tests everything that can be judged from
//! outside, and gives a verdict for each requirement of the RFCs.
//!
//! [`select`] chooses cases, [`ask`] finds out what the listener supports, [`run`] runs the cases
//! and [`Report`] has the verdicts. Each case is one connection, whose bytes are described in a
//! readable file.

#![warn(missing_debug_implementations)]

mod build;
mod cases;
mod checks;
mod deframe;
mod error;
mod judge;
mod link;
mod listener;
mod orders;
#[doc(hidden)]
pub mod partner;
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

pub use cases::requirement_ids;
pub use error::ConformError;
pub use listener::{Listener, ask, suspicion};
pub use report::{Destination, Report};
pub use session::Target;
pub use uiw_cases::Case;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use steps::Outcome;
use verdict::CaseRun;

/// Chooses cases: the built-in ones and those of `files`, which are files or folders with files
/// `*.case`. Unless `names` is empty, only the cases whose names contain one of them are chosen.
/// `requirements` are ids or beginnings of ids; they are only checked for existence.
///
/// # Errors
/// Returns [`ConformError::Usage`] if a file cannot be read or parsed, or a name does not exist.
pub fn select(
    files: &[PathBuf],
    names: &[String],
    requirements: &[String],
) -> Result<Vec<Case>, ConformError> {
    let mut all = cases::built_in()?;
    for path in files {
        for case in cases::load(path)? {
            // A case of the user replaces a built-in case of the same name.
            all.retain(|other| other.name != case.name);
            all.push(case);
        }
    }
    let (table, list) = (requirements::all(), "see `uiw conform --list`");
    for case in &all {
        if let Some(id) =
            requirement_ids(case).into_iter().find(|id| table.iter().all(|row| row.id != *id))
        {
            let why = format!("no requirement is called {id}");
            return Err(ConformError::usage(
                &case.file,
                why,
                "see `interop/rfc/requirements.tsv` for their ids",
            ));
        }
    }
    if !names.is_empty() {
        all.retain(|case| names.iter().any(|text| case.name.contains(text)));
    }
    let is_none = |id: &&String| table.iter().all(|row| !row.id.starts_with(id.as_str()));
    if let Some(id) = requirements.iter().find(is_none) {
        let why = format!("none is called {id}");
        return Err(ConformError::usage("--requirement", why, list));
    }
    if all.is_empty() {
        return Err(ConformError::usage("--case", "no case has such a name", list));
    }
    Ok(all)
}

/// Results of the cases, in the order of the cases.
#[derive(Debug)]
pub struct Results {
    runs: Vec<CaseRun>,
    /// Name of the case after which the listener stopped answering Requests.
    pub silent_since: Option<String>,
}

/// Runs the cases, `jobs` at a time. `progress` is called with the name of each case that begins.
pub fn run(
    target: &Target,
    listener: &Listener,
    cases: Vec<Case>,
    jobs: u16,
    progress: &(dyn Fn(&str) + Sync),
) -> Results {
    let silent = OnceLock::new();
    let next = AtomicUsize::new(0);
    let results: Vec<OnceLock<_>> = cases.iter().map(|_| OnceLock::new()).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { break };
                    progress(&case.name);
                    let _ = results[at].set(run_one(target, listener, case, &silent));
                }
            });
        }
    });
    let results = results.into_iter().map(OnceLock::into_inner);
    let results = results.map(|result| result.unwrap_or_else(|| Err("not run".to_owned())));
    let runs = cases.into_iter().zip(results).map(|(case, result)| CaseRun { case, result });
    Results { runs: runs.collect(), silent_since: silent.into_inner() }
}

/// Runs a case, unless the listener does not meet its conditions, or has stopped answering since
/// the case in `silent`.
fn run_one(
    target: &Target,
    listener: &Listener,
    case: &Case,
    silent: &OnceLock<String>,
) -> Result<Outcome, String> {
    if let Some(since) = silent.get() {
        return Err(format!("the listener answers no more since case {since}"));
    }
    if let Some(why) = verdict::lacks(case, listener) {
        return Err(why);
    }
    let outcome = steps::run(target, case);
    // A case that stopped does not mean that the listener has stopped.
    if outcome.stopped.is_some() && !listener::still_answers(target) {
        let _ = silent.set(case.name.clone());
    }
    Ok(outcome)
}
