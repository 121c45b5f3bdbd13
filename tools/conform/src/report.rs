//! The report, as text, as lines of JSON, or in files as Markdown, JSON or JUnit XML.

use super::listener::Listener;
use super::requirements::{self, Requirement};
use super::verdict::{CaseRun, Verdict, verdicts};
use crate::Results;
use quick_xml::escape::escape;
use serde_json::{Value as Json, json};
use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Number of frames that the text shows for a finding.
const MAX_SHOWN_FRAMES: usize = 24;

/// Destination and format of a report.
#[derive(Clone, Debug)]
pub struct Destination {
    path: PathBuf,
    format: ReportFormat,
}

#[derive(Clone, Copy, Debug)]
enum ReportFormat {
    Markdown,
    Json,
    Junit,
}

impl Destination {
    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("md") => ReportFormat::Markdown,
            Some("json") => ReportFormat::Json,
            Some("xml") => ReportFormat::Junit,
            _ => return Err("expected a file *.md (Markdown), *.json or *.xml (JUnit)".to_owned()),
        };
        Ok(Self { path, format })
    }
}

/// Report of a run.
#[derive(Debug)]
pub struct Report<'a> {
    address: String,
    listener: &'a Listener,
    runs: &'a [CaseRun],
    verdicts: Vec<(Requirement, Verdict)>,
}

impl<'a> Report<'a> {
    /// Computes the verdicts from the results. Unless `only` is empty, the report is limited to
    /// requirements whose ids begin with one of these strings.
    #[must_use]
    pub fn new(
        address: String,
        listener: &'a Listener,
        results: &'a Results,
        only: &[String],
    ) -> Self {
        let mut requirements = requirements::all();
        if !only.is_empty() {
            requirements.retain(|requirement| only.iter().any(|id| requirement.id.starts_with(id)));
        }
        let runs = &results.runs;
        Self { address, listener, runs, verdicts: verdicts(requirements, runs) }
    }

    fn count(&self, is: impl Fn(&Verdict) -> bool) -> usize {
        self.verdicts.iter().filter(|(_, verdict)| is(verdict)).count()
    }

    /// Returns the number of broken requirements.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Broken(_)))
    }

    /// Returns the number of cases that were run but stopped before their end.
    #[must_use]
    pub fn stopped(&self) -> usize {
        self.runs.iter().filter(|run| run.result.is_ok() && run.stopped().is_some()).count()
    }

    fn kept(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Kept(_)))
    }

    fn summary(&self) -> String {
        let (kept, broken) = (self.kept(), self.broken());
        let ended = self.runs.iter().filter(|run| run.stopped().is_none()).count();
        format!(
            "{kept} requirements kept, {broken} broken, {} not judged; {ended} of {} cases ran to their end",
            self.verdicts.len() - kept - broken,
            self.runs.len()
        )
    }

    /// Returns the lines of the text report. With `all`, they include kept and unjudged
    /// requirements.
    #[must_use]
    pub fn lines(&self, all: bool) -> Vec<String> {
        let mut lines = Vec::new();
        lines.push(format!("listener {}: {}", self.address, self.listener.describe()));
        lines.extend(self.listener.suspicions().map(|suspicion| format!("suspected: {suspicion}")));
        for run in self.runs.iter().filter(|run| run.result.is_ok()) {
            if let Some(why) = run.stopped() {
                lines.push(format!("stopped {}: {why}", run.case.name));
            }
        }
        for (requirement, verdict) in &self.verdicts {
            match verdict {
                Verdict::Broken(findings) => {
                    lines.push(format!(
                        "broken  {} ({}): {}",
                        requirement.id, requirement.level, requirement.quote
                    ));
                    for finding in findings {
                        lines.push(format!("        case {}: {}", finding.case, finding.what));
                    }
                    for frame in
                        findings.first().iter().flat_map(|finding| last_frames(&finding.frames))
                    {
                        lines.push(format!("          {frame}"));
                    }
                }
                Verdict::Kept(cases) if all => {
                    lines.push(format!("kept    {} in {cases} cases", requirement.id));
                }
                Verdict::NotJudged(why) if all => {
                    lines.push(format!("-       {}: {why}", requirement.id));
                }
                _ => {}
            }
        }
        lines.push(self.summary());
        lines
    }

    /// Returns the report as JSON objects, one for each line.
    #[must_use]
    pub fn json_lines(&self) -> Vec<Json> {
        let mut listener = self.listener.json();
        listener["type"] = json!("listener");
        listener["address"] = json!(self.address);
        let mut lines = vec![listener];
        lines.extend(self.cases());
        lines.extend(self.requirements());
        let (kept, broken) = (self.kept(), self.broken());
        let not_judged = self.verdicts.len() - kept - broken;
        lines.push(
            json!({"type": "summary", "kept": kept, "broken": broken, "not_judged": not_judged}),
        );
        lines
    }

    fn cases(&self) -> Vec<Json> {
        let case = |run: &CaseRun| {
            let (ran, stopped) = (run.result.is_ok(), run.stopped());
            json!({"type": "case", "name": run.case.name, "title": run.case.title, "ran": ran, "stopped": stopped})
        };
        self.runs.iter().map(case).collect()
    }

    fn requirements(&self) -> Vec<Json> {
        let object = |(requirement, verdict): &(Requirement, Verdict)| {
            let Requirement { id, level, quote, .. } = requirement;
            let mut object =
                json!({"type": "requirement", "id": id, "level": level, "quote": quote});
            match verdict {
                Verdict::Kept(cases) => {
                    object["verdict"] = json!("kept");
                    object["cases"] = json!(cases);
                }
                Verdict::Broken(findings) => {
                    object["verdict"] = json!("broken");
                    let finding = |f: &super::verdict::Finding| json!({"case": f.case, "what": f.what, "frames": f.frames});
                    object["findings"] = findings.iter().map(finding).collect();
                }
                Verdict::NotJudged(why) => {
                    object["verdict"] = json!("not judged");
                    object["reason"] = json!(why);
                }
            }
            object
        };
        self.verdicts.iter().map(object).collect()
    }

    /// Writes the report to a file.
    ///
    /// # Errors
    /// Returns the I/O error of writing the file.
    pub fn write(&self, to: &Destination) -> std::io::Result<()> {
        let text = match to.format {
            ReportFormat::Markdown => self.markdown(),
            ReportFormat::Json => {
                let whole = json!({
                    "address": self.address, "listener": self.listener.json(), "cases": self.cases(),
                    "requirements": self.requirements(),
                });
                format!("{whole:#}\n")
            }
            ReportFormat::Junit => self.junit(),
        };
        write_atomically(&to.path, &text)
    }

    fn markdown(&self) -> String {
        let mut out =
            format!("# Conformance of {}\n\n{}\n", self.address, self.listener.describe());
        for suspicion in self.listener.suspicions() {
            let _ = write!(out, "\nSuspected: {suspicion}\n");
        }
        let _ = writeln!(out, "\n{}", self.summary());
        let _ =
            write!(out, "\nMade by `uiw conform` {}.\n\n## Broken\n", env!("CARGO_PKG_VERSION"));
        for (requirement, verdict) in &self.verdicts {
            let Verdict::Broken(findings) = verdict else { continue };
            let _ = write!(
                out,
                "\n### {} ({})\n\n> {}\n",
                requirement.id, requirement.level, requirement.quote
            );
            for finding in findings {
                let _ = write!(
                    out,
                    "\nCase `{}`: {}\n\n```text\n{}\n```\n",
                    finding.case,
                    finding.what,
                    finding.frames.join("\n")
                );
            }
        }
        if self.broken() == 0 {
            out += "\nNone.\n";
        }
        out += "\n## Kept\n\n| requirement | cases |\n|---|---|\n";
        for (requirement, verdict) in &self.verdicts {
            if let Verdict::Kept(cases) = verdict {
                let _ = writeln!(out, "| {} | {cases} |", requirement.id);
            }
        }
        out += "\n## Not judged\n\n| requirement | reason |\n|---|---|\n";
        for (requirement, verdict) in &self.verdicts {
            if let Verdict::NotJudged(why) = verdict {
                let _ = writeln!(out, "| {} | {} |", requirement.id, why.replace('|', "\\|"));
            }
        }
        out
    }

    fn junit(&self) -> String {
        let (total, broken) = (self.verdicts.len(), self.broken());
        let skipped = total - broken - self.kept();
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let name = format!("uiw conform {}", self.address);
        let _ = writeln!(
            out,
            "<testsuite name=\"{}\" tests=\"{total}\" failures=\"{broken}\" errors=\"0\" skipped=\"{skipped}\">",
            escape(name.as_str())
        );
        let listener = self.listener.describe();
        let _ = writeln!(
            out,
            "  <properties><property name=\"listener\" value=\"{}\"/></properties>",
            escape(listener.as_str())
        );
        for (requirement, verdict) in &self.verdicts {
            let (rfc, id) = (requirement.id.split('-').next().unwrap_or_default(), requirement.id);
            let _ = write!(out, "  <testcase classname=\"{rfc}\" name=\"{id}\"");
            let _ = match verdict {
                Verdict::Kept(_) => writeln!(out, "/>"),
                Verdict::NotJudged(why) => {
                    writeln!(out, "><skipped message=\"{}\"/></testcase>", escape(why.as_str()))
                }
                Verdict::Broken(findings) => {
                    let what = findings
                        .first()
                        .map_or_else(String::new, |f| format!("case {}: {}", f.case, f.what));
                    let frames: Vec<_> = findings.iter().flat_map(|f| f.frames.clone()).collect();
                    let body = format!("{}\n{}", requirement.quote, frames.join("\n"));
                    writeln!(
                        out,
                        "><failure message=\"{}\">{}</failure></testcase>",
                        escape(what.as_str()),
                        escape(body.as_str())
                    )
                }
            };
        }
        out + "</testsuite>\n"
    }
}

/// Writes a file under a temporary name and then renames it, so that it is never incomplete.
fn write_atomically(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Others may be allowed to create files in the folder, and must not know the name.
    name.push(format!(".{:016x}.part", RandomState::new().hash_one(())));
    let part = path.with_file_name(name);
    let mut file = fs::File::create_new(&part)?;
    let result = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&part, path));
    if result.is_err() {
        let _ = fs::remove_file(&part);
    }
    result
}

/// Returns the end of a transcript, which shows the error.
fn last_frames(frames: &[String]) -> impl Iterator<Item = &String> {
    frames.iter().skip(frames.len().saturating_sub(MAX_SHOWN_FRAMES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_name_not_predictable() {
        let folder = std::env::temp_dir().join(format!("uiw-report-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [report, other, part] =
            ["report", "other", "report.part"].map(|name| folder.join(name));
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, part).unwrap();
        write_atomically(&report, "text").unwrap();
        assert_eq!(
            [&report, &other].map(|file| fs::read_to_string(file).unwrap()),
            ["text", "other"]
        );
        // No file is left behind where the report cannot be written.
        write_atomically(&folder, "text").unwrap_err();
        let left = fs::read_dir(folder.parent().unwrap())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name());
        let begins = |name: &std::ffi::OsString| {
            name.as_encoded_bytes().starts_with(folder.file_name().unwrap().as_encoded_bytes())
        };
        assert_eq!(left.filter(begins).count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
