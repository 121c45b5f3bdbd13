//! Checks the wording of everything that people read against a list of banned phrases.
//!
//! `xtask/prose/banned.tsv` has the phrases, each with the term to use instead; `xtask/prose/allowed.tsv` has the places where one of
//! them is right, each with the reason.

mod list;
#[cfg(test)]
mod tests;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use list::{Allowed, Banned};

/// Options of `cargo xtask prose`.
#[derive(clap::Args)]
#[command(after_help = "\
Checks Markdown, comments, rustdoc, string literals (help texts, messages) and the names of functions, types, constants and modules.
Block quotes, byte strings, patches and data files are not checked. Prints `PATH:LINE: \"PHRASE\": use \"TERM\"` for each finding.
The lists are xtask/prose/banned.tsv and xtask/prose/allowed.tsv. Exit code 1 on any finding.")]
pub(crate) struct Options {
    /// Check this source tree instead of the workspace
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// A banned phrase in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path below the root, with `/` between its parts.
    path: String,
    line: usize,
    /// The words in the file.
    found: String,
    /// The entry of the list.
    phrase: String,
    term: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: \"{}\": use \"{}\"", self.path, self.line, self.found, self.term)
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    // An entry of the allow list that matches nothing is out of date, but only with respect to the workspace.
    let result = match &options.root {
        Some(root) => findings(root).map(|(findings, _)| (findings, Vec::new())),
        None => findings(&crate::workspace::root()),
    };
    match result {
        Ok((findings, unused)) => {
            for finding in &findings {
                println!("{finding}");
            }
            for entry in &unused {
                println!("xtask/prose/allowed.tsv: \"{}\" is not in {}", entry.phrase, entry.path);
            }
            if findings.is_empty() && unused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All findings below `root`, and the entries of the allow list that match none.
fn findings(root: &Path) -> Result<(Vec<Finding>, Vec<Allowed>), String> {
    let banned = list::banned()?;
    let allowed = list::allowed()?;
    let mut used = vec![false; allowed.len()];
    let mut findings = Vec::new();
    for path in sources(root)? {
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let short = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        for finding in of_file(&short, &String::from_utf8_lossy(&bytes), &banned) {
            match allowed.iter().position(|entry| entry.covers(&finding.path, &finding.phrase)) {
                Some(at) => used[at] = true,
                None => findings.push(finding),
            }
        }
    }
    let unused = allowed.into_iter().zip(used).filter(|(_, used)| !used).map(|(entry, _)| entry).collect();
    Ok((findings, unused))
}

fn of_file(path: &str, text: &str, banned: &[Banned]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for passage in text::passages(path, text) {
        for start in 0..passage.len() {
            // The longest phrase that begins here has the most specific term.
            let matching = banned.iter().filter(|entry| entry.begins(&passage[start..]));
            if let Some(entry) = matching.max_by_key(|entry| entry.len()) {
                let words = passage[start..start + entry.len()].iter();
                findings.push(Finding {
                    path: path.to_owned(),
                    line: passage[start].line,
                    found: words.map(|word| word.text.as_str()).collect::<Vec<_>>().join(" "),
                    phrase: entry.phrase.clone(),
                    term: entry.term.clone(),
                });
            }
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// Folders and files that hold data, quotations or other projects' text.
const ELSEWHERE: [&str; 4] = ["target", ".git", "corpus", "data"];

/// All files with prose below `root`.
fn sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", folder.display()))?;
            let kind = entry.file_type().map_err(|error| format!("{}: {error}", entry.path().display()))?;
            if kind.is_dir() {
                if !ELSEWHERE.iter().any(|other| entry.file_name() == *other) {
                    folders.push(entry.path());
                }
            } else if kind.is_file() && text::is_prose(&entry.path()) {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}
