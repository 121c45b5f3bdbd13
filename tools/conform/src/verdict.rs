//! Computes the verdict on each requirement from the results of the cases.

use super::listener::Listener;
use super::requirements::{Requirement, Visibility};
use super::steps::Outcome;
use std::collections::BTreeMap;
use uiw_cases::Case;

/// Maximum number of findings that are kept for a requirement.
const MAX_FINDINGS: usize = 3;

/// Verdict on a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The requirement was kept, in this number of cases.
    Kept(usize),
    Broken(Vec<Finding>),
    /// The requirement was not judged, for the given reason.
    NotJudged(String),
}

/// A case in which a requirement was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) case: String,
    pub(super) what: String,
    pub(super) frames: Vec<String>,
}

/// Result of running a case.
#[derive(Clone, Debug)]
pub(super) struct CaseRun {
    pub(super) case: Case,
    pub(super) result: Result<Outcome, String>,
}

impl CaseRun {
    /// Returns the reason why the case stopped before its end, or was not run.
    pub(super) fn stopped(&self) -> Option<&str> {
        match &self.result {
            Ok(outcome) => outcome.stopped.as_deref(),
            Err(lacks) => Some(lacks),
        }
    }
}

/// Returns the reason why a case cannot be run against this listener.
pub(super) fn lacks(case: &Case, listener: &Listener) -> Option<String> {
    case.needs.iter().find_map(|need| listener.lacks(*need))
}

/// Returns the requirements with their verdicts, in the order of the table.
pub(super) fn verdicts(
    requirements: Vec<Requirement>,
    runs: &[CaseRun],
) -> Vec<(Requirement, Verdict)> {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    let mut broken: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
    for run in runs {
        let Ok(outcome) = &run.result else { continue };
        for (id, what) in &outcome.judged.0 {
            let Some(what) = what else {
                *kept.entry(id).or_default() += 1;
                continue;
            };
            let findings = broken.entry(id).or_default();
            if findings.len() < MAX_FINDINGS {
                let frames = outcome.transcript.clone();
                findings.push(Finding { case: run.case.name.clone(), what: what.clone(), frames });
            }
        }
    }
    let verdict =
        |requirement: &Requirement| match (broken.get(requirement.id), kept.get(requirement.id)) {
            (Some(findings), _) => Verdict::Broken(findings.clone()),
            (None, Some(cases)) => Verdict::Kept(*cases),
            (None, None) => Verdict::NotJudged(reason_not_judged(requirement, runs)),
        };
    requirements
        .into_iter()
        .map(|requirement| (requirement.clone(), verdict(&requirement)))
        .collect()
}

fn reason_not_judged(requirement: &Requirement, runs: &[CaseRun]) -> String {
    if let Visibility::No(why) = requirement.visibility {
        return why.to_owned();
    }
    let names = |run: &&CaseRun| super::cases::requirement_ids(&run.case).contains(&requirement.id);
    if let Some(run) = runs.iter().find(names) {
        let name = &run.case.name;
        return match (&run.result, run.stopped()) {
            (Err(_), Some(why)) => why.to_owned(),
            (_, Some(why)) => format!("case {name} stopped: {why}"),
            _ => format!("nothing in case {name} showed it"),
        };
    }
    match requirement.visibility {
        Visibility::Partner
            if runs
                .iter()
                .all(|run| run.result.is_err() || !run.case.name.starts_with("partner/")) =>
        {
            "needs the partner program at the far end (--partner)".to_owned()
        }
        _ => "no case that was run has shown it".to_owned(),
    }
}
