//! Loads cases: the built-in ones, and those of the user.

use crate::ConformError;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use uiw_cases::{Case, parse};

/// Built-in case files. Aborted connections come last, because a listener may not survive them.
const FILES: [(&str, &str); 9] = [
    ("start-up.case", include_str!("cases/start-up.case")),
    ("requests.case", include_str!("cases/requests.case")),
    ("framing.case", include_str!("cases/framing.case")),
    ("markers.case", include_str!("cases/markers.case")),
    ("crc.case", include_str!("cases/crc.case")),
    ("reads.case", include_str!("cases/reads.case")),
    ("segments.case", include_str!("cases/segments.case")),
    ("partner.case", include_str!("cases/partner.case")),
    ("endings.case", include_str!("cases/endings.case")),
];

/// Extension of case files.
const EXTENSION: &str = "case";

fn usage_error(error: uiw_cases::ParseError) -> ConformError {
    let what = format!("{}:{}:{}", error.file, error.line, error.column);
    ConformError::usage(what, error.what, "see docs/case-files.md for the grammar of case files")
}

/// Returns the built-in cases.
pub(super) fn built_in() -> Result<Vec<Case>, ConformError> {
    let mut cases = Vec::new();
    for (file, text) in FILES {
        cases.extend(parse(file, text).map_err(usage_error)?);
    }
    Ok(cases)
}

/// Loads the cases of a file, or of all `.case` files in a folder.
pub(super) fn load(path: &Path) -> Result<Vec<Case>, ConformError> {
    let unreadable = |path: &Path, why: &dyn Display| {
        let fix = "name a case file, or a folder with files *.case";
        ConformError::usage(path.display(), why, fix)
    };
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
        let files = entries.flatten().map(|entry| entry.path());
        files
            .filter(|file| file.extension().is_some_and(|extension| extension == EXTENSION))
            .collect()
    } else {
        vec![path.to_owned()]
    };
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
        cases.extend(parse(&file.display().to_string(), &text).map_err(usage_error)?);
    }
    if cases.is_empty() {
        return Err(unreadable(path, &"no case in it"));
    }
    Ok(cases)
}

/// Returns the ids of all requirements that a case judges.
pub fn requirement_ids(case: &Case) -> Vec<&str> {
    use uiw_cases::{Action, ExpectedFrame, Field};
    fn add_field_ids<'a>(fields: &'a [Field], ids: &mut Vec<&'a str>) {
        ids.extend(fields.iter().flat_map(|field| field.judges.iter().map(String::as_str)));
    }
    fn add_frame_ids<'a>(expected: &'a ExpectedFrame, ids: &mut Vec<&'a str>) {
        ids.extend(expected.judges.iter().map(String::as_str));
        add_field_ids(&expected.fields, ids);
    }
    let mut ids = Vec::new();
    for step in &case.steps {
        match &step.action {
            Action::Expect { one_of, .. } => {
                one_of.iter().for_each(|expected| add_frame_ids(expected, &mut ids));
            }
            Action::Message { expected } => add_frame_ids(expected, &mut ids),
            Action::Silence { judges, .. }
            | Action::Done { judges }
            | Action::Reads { judges, .. } => {
                ids.extend(judges.iter().map(String::as_str));
            }
            Action::Refusal { judges, terminate, fields } => {
                ids.extend(judges.iter().chain(terminate).map(String::as_str));
                add_field_ids(fields, &mut ids);
            }
            _ => {}
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
