//! `cargo xtask requirements`: traces the requirements of the RFCs to the tests that prove them.
//!
//! `interop/rfc/requirements.tsv` has all sentences of RFC 5040, 5041, 5044, 6581 and 7306 that
//! contain a keyword of RFC 2119. A test claims a sentence in the comment directly above it
//! (CONTRIBUTING.md). `interop/rfc/not-applicable.tsv` states why other sentences do not apply to
//! us.

mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use scan::Claim;

const TABLE: &str = "interop/rfc/requirements.tsv";
const NOT_APPLICABLE: &str = "interop/rfc/not-applicable.tsv";
/// Values of the column `outside`, which states whether `uiw conform` can check the sentence at a
/// listener: alone, with the partner program, or the reason why it cannot.
const OUTSIDE: [&str; 8] = [
    "alone",
    "partner",
    "initiator",
    "interface",
    "inside",
    "permission",
    "extension",
    "elsewhere",
];

/// Options of `cargo xtask requirements`.
#[derive(clap::Args)]
#[command(after_help = "\
Says of each RFC how many MUST, MUST NOT and REQUIRED are proved by a test or are not applicable, and what is wrong with tags.
Whether the tests pass is for `cargo xtask test` to say, which looks at this as well. Exit code 1 when something is missing.")]
pub(crate) struct Options {
    /// Names the tests of each sentence
    #[arg(long)]
    list: bool,
}

/// Sentence of an RFC.
struct RequirementRow {
    rfc: String,
    quote: String,
    /// True for a MUST, MUST NOT or REQUIRED that applies to us and does not only introduce a list.
    wanted: bool,
    /// One of [`OUTSIDE`].
    outside: String,
}

/// Sentences, with the claims of tests and the reasons why sentences are not applicable.
pub(crate) struct RequirementTrace {
    rows: BTreeMap<String, RequirementRow>,
    not_applicable: BTreeMap<String, String>,
    claims: Vec<Claim>,
    wrong: Vec<String>,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let trace = match RequirementTrace::read(&crate::workspace::root()) {
        Ok(trace) => trace,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::FAILURE;
        }
    };
    if options.list {
        for (id, row) in trace.rows.iter().filter(|(_, row)| row.wanted) {
            println!("{id}\t{}\t{}", trace.tests(id).join(" "), row.quote);
        }
    }
    for line in trace.counts() {
        println!("{line}");
    }
    let missing = trace.missing(|_| true);
    for line in trace.wrong.iter().chain(&missing) {
        println!("{line}");
    }
    if trace.wrong.is_empty() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl RequirementTrace {
    /// Reads both tables and all tests of the workspace.
    pub(crate) fn read(workspace: &Path) -> Result<Self, String> {
        let text = |path: &str| {
            fs::read_to_string(workspace.join(path)).map_err(|error| format!("{path}: {error}"))
        };
        let rows = rows(&text(TABLE)?)?;
        let (claims, wrong) = scan::scan(workspace)?;
        let mut trace = Self { rows, not_applicable: BTreeMap::new(), claims, wrong };
        trace.take_not_applicable(&text(NOT_APPLICABLE)?);
        for (id, row) in &trace.rows {
            if !OUTSIDE.contains(&row.outside.as_str()) {
                trace
                    .wrong
                    .push(format!("{TABLE}: {id} has `{}` in the column `outside`", row.outside));
            }
        }
        for claim in &trace.claims {
            if !trace.rows.contains_key(&claim.id) {
                trace.wrong.push(format!("{}: no requirement is called {}", claim.place, claim.id));
            }
            if trace.not_applicable.contains_key(&claim.id) {
                trace
                    .wrong
                    .push(format!("{}: {} is listed as not applicable", claim.place, claim.id));
            }
        }
        Ok(trace)
    }

    fn take_not_applicable(&mut self, text: &str) {
        for (line, number) in text.lines().zip(1..) {
            let (id, reason) = line.split_once('\t').unwrap_or((line, ""));
            if !self.rows.contains_key(id) {
                self.wrong
                    .push(format!("{NOT_APPLICABLE}:{number}: no requirement is called {id}"));
            } else if reason.trim().len() < 10 {
                self.wrong.push(format!("{NOT_APPLICABLE}:{number}: {id} has no reason"));
            }
            self.not_applicable.insert(id.to_owned(), reason.to_owned());
        }
    }

    /// Returns messages for the wanted sentences that have neither a test that `counts` nor a
    /// reason.
    fn missing(&self, counts: impl Fn(&Claim) -> bool) -> Vec<String> {
        let proved: BTreeSet<&str> = self
            .claims
            .iter()
            .filter(|claim| counts(claim))
            .map(|claim| claim.id.as_str())
            .collect();
        self.rows
            .iter()
            .filter(|(id, row)| {
                row.wanted
                    && !proved.contains(id.as_str())
                    && !self.not_applicable.contains_key(*id)
            })
            .map(|(id, row)| format!("no test proves {id}: {}", row.quote))
            .collect()
    }

    /// Returns the errors. `passed` has the number of passed tests with each name, in all binaries.
    pub(crate) fn judge(&self, passed: &BTreeMap<String, u64>) -> Vec<String> {
        let mut of_a_name: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for claim in &self.claims {
            // The tags of a test may be on several lines, so tests with the same name are
            // distinguished by their files.
            let file = claim.place.rsplit_once(':').map_or(claim.place.as_str(), |(file, _)| file);
            of_a_name.entry(&claim.test).or_default().insert(file);
        }
        // Tests with the same name in several binaries count only if all of them have passed.
        let counts = |claim: &Claim| {
            let same = of_a_name.get(claim.test.as_str()).map_or(1, BTreeSet::len) as u64;
            passed.get(&claim.test).is_some_and(|times| *times >= same)
        };
        self.wrong.iter().cloned().chain(self.missing(counts)).collect()
    }

    fn tests(&self, id: &str) -> Vec<&str> {
        match self.not_applicable.get(id) {
            Some(reason) => vec!["n/a:", reason],
            None => {
                self.claims.iter().filter(|c| c.id == id).map(|claim| claim.test.as_str()).collect()
            }
        }
    }

    fn counts(&self) -> Vec<String> {
        let rfcs: BTreeSet<&str> = self.rows.values().map(|row| row.rfc.as_str()).collect();
        let of = |rfc: &str| {
            let wanted: Vec<_> =
                self.rows.iter().filter(|(_, row)| row.wanted && row.rfc == rfc).collect();
            let not_applicable =
                wanted.iter().filter(|(id, _)| self.not_applicable.contains_key(*id)).count();
            let tested = wanted
                .iter()
                .filter(|(id, _)| self.claims.iter().any(|claim| claim.id == **id))
                .count();
            format!(
                "RFC {rfc}: {} wanted, {tested} tested, {not_applicable} not applicable",
                wanted.len()
            )
        };
        let judged = |kind: &str| self.rows.values().filter(|row| row.outside == kind).count();
        let outside = format!(
            "judged from outside: {} alone, {} with the partner program",
            judged("alone"),
            judged("partner")
        );
        rfcs.into_iter().map(of).chain([outside]).collect()
    }
}

/// Parses the rows of the table, by id.
fn rows(text: &str) -> Result<BTreeMap<String, RequirementRow>, String> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    let column = |name: &str| {
        head.iter()
            .position(|column| *column == name)
            .ok_or_else(|| format!("{TABLE}: no column `{name}`"))
    };
    let (id, rfc, level) = (column("id")?, column("rfc")?, column("level")?);
    let (quote, applicability, form) =
        (column("quote")?, column("applicability")?, column("form")?);
    let outside = column("outside")?;
    let mut rows = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let cell = |at: usize| cells.get(at).copied().unwrap_or_default();
        let wanted = matches!(cell(level), "MUST" | "MUST NOT" | "REQUIRED")
            && cell(applicability) == "yes"
            && cell(form) != "lead-in";
        let row = RequirementRow {
            rfc: cell(rfc).to_owned(),
            quote: cell(quote).to_owned(),
            wanted,
            outside: cell(outside).to_owned(),
        };
        if rows.insert(cell(id).to_owned(), row).is_some() {
            return Err(format!("{TABLE}: {} is there twice", cell(id)));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_claimed_or_excused() {
        let trace = RequirementTrace::read(&crate::workspace::root()).unwrap();
        assert!(trace.rows.values().filter(|row| row.wanted).count() > 400);
        assert_eq!(trace.wrong, [""; 0]);
        assert_eq!(trace.missing(|_| true), [""; 0]);
        let judged = |row: &&RequirementRow| ["alone", "partner"].contains(&row.outside.as_str());
        assert!(trace.rows.values().filter(judged).count() >= 120);
    }

    /// `xtask/scripts/defects.sh` can apply every defect to the sources.
    #[test]
    fn seeded_defects_apply() {
        let root = crate::workspace::root();
        for folder in ["fuzz/planted", "interop/rfc/drawn", "verbs/models/defects"] {
            let files = fs::read_dir(root.join(folder)).unwrap();
            let paths = files.map(|file| file.unwrap().path());
            let patches: Vec<_> = paths
                .filter(|path| path.extension().is_some_and(|ending| ending == "patch"))
                .collect();
            assert!(!patches.is_empty(), "{folder}");
            for patch in patches {
                let mut command = std::process::Command::new("git");
                command.args(["apply", "--check"]).arg(&patch).current_dir(&root);
                assert!(command.status().unwrap().success(), "{} does not apply", patch.display());
            }
        }
    }

    /// The tests in the table of other implementations' bugs exist.
    #[test]
    fn tests_for_classic_bugs_exist() {
        let workspace = crate::workspace::root();
        let table = fs::read_to_string(workspace.join("interop/CLASSIC_BUGS.md")).unwrap();
        let names = scan::functions(&workspace).unwrap();
        let lines: Vec<&str> = table
            .lines()
            .filter(|line| {
                line.strip_prefix("| ")
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
            .collect();
        assert_eq!(lines.len(), 51);
        for line in lines {
            let tests = line.rsplit("| ").next().unwrap_or_default();
            let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
            assert!(!named.is_empty(), "{line}");
            for name in named {
                assert!(names.contains(name), "{name}: {line}");
            }
        }
    }

    fn trace(claims: &[(&str, &str, &str)]) -> RequirementTrace {
        let text = "id\trfc\tlevel\tquote\tapplicability\tform\toutside\n\
            A-1\t1\tMUST\tshall\tyes\tsentence\talone\nA-2\t1\tMUST NOT\tshall not\tyes\tlead-in\tinside\n\
            A-3\t1\tSHOULD\tmight\tyes\tsentence\tinside\nA-4\t1\tREQUIRED\tneeds\tyes\titem\tpartner\n\
            A-5\t1\tMUST\tx\tno\titem\telsewhere\n";
        let claims = claims
            .iter()
            .map(|(id, test, place)| Claim {
                id: (*id).to_owned(),
                test: (*test).to_owned(),
                place: (*place).to_owned(),
            })
            .collect();
        let rows = rows(text).unwrap();
        RequirementTrace { rows, not_applicable: BTreeMap::new(), claims, wrong: Vec::new() }
    }

    #[test]
    fn only_tests_that_passed_count() {
        let trace = trace(&[
            ("A-1", "m::one", "a.rs:1"),
            ("A-4", "two", "b.rs:1"),
            ("A-4", "two", "c.rs:1"),
        ]);
        let passed =
            |names: &[(&str, u64)]| names.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect();
        assert_eq!(trace.judge(&passed(&[("m::one", 1), ("two", 2)])), [""; 0]);
        assert_eq!(trace.judge(&passed(&[("one", 1), ("two", 2)])), ["no test proves A-1: shall"]);
        let missing = trace.judge(&passed(&[("m::one", 1), ("two", 1)]));
        assert_eq!(missing, ["no test proves A-4: needs"], "one of two tests of that name failed");
    }

    #[test]
    fn tags_on_several_lines() {
        let trace = trace(&[
            ("A-1", "m::one", "a.rs:1"),
            ("A-4", "m::one", "a.rs:2"),
            ("A-2", "m::one", "a.rs:2"),
        ]);
        assert_eq!(trace.judge(&BTreeMap::from([("m::one".to_owned(), 1)])), [""; 0]);
    }

    #[test]
    fn ids_are_unique() {
        let row = "A-1\t1\tMUST\tshall\tyes\tsentence\talone\n";
        let head = "id\trfc\tlevel\tquote\tapplicability\tform\toutside\n";
        assert!(
            rows(&format!("{head}{row}")).is_ok() && rows(&format!("{head}{row}{row}")).is_err()
        );
    }

    #[test]
    fn reason_must_be_known() {
        let mut trace = trace(&[]);
        trace.take_not_applicable("A-1\tno such thing here\nA-4\tno\nA-9\tno such thing here\n");
        assert_eq!(trace.missing(|_| true), [""; 0]);
        assert_eq!(trace.wrong.len(), 2, "{:?}", trace.wrong);
    }
}
