//! Writes RESULTS.md.

use crate::Result;
use crate::bench::Bench;
use crate::case::{Case, Direction, MOST_KNOWN, Setting, Verdict};
use std::fmt::Write as _;
use std::time::Duration;

/// Rows and their results, in the order in which cases were first run.
#[derive(Default)]
pub struct Results {
    rows: Vec<ResultRow>,
}

struct ResultRow {
    name: String,
    direction: Direction,
    runs: Vec<(Setting, Verdict)>,
    /// Number of runs that were repeated.
    retries: u32,
}

/// System on which the rows were run.
pub struct Environment {
    kernel: String,
    /// Version of Linux, if it is not the kernel of the Debian release.
    version: Option<String>,
    library: String,
    uiw: String,
    date: String,
    took: Duration,
    boots: u32,
    network: &'static str,
    /// Number of cores of this machine that another process kept busy during the run.
    busy: usize,
}

impl Environment {
    /// Queries guest and host. `busy` is the number of cores that other processes kept busy.
    ///
    /// # Errors
    /// Fails if the guest does not answer.
    pub fn of(bench: &Bench, took: Duration, busy: usize) -> Result<Self> {
        let kernel = bench.guest().must("uname -rv")?.trim().to_owned();
        let (library, version) = (bench.parts().library.clone(), bench.parts().kernel.clone());
        let date = crate::shell::must(
            std::process::Command::new("date").args(["-u", "+%Y-%m-%d"]),
            Duration::from_secs(5),
        )?;
        let uiw = bench.run_uiw(&["--version"], Duration::from_secs(10))?.out.trim().to_owned();
        let network = if bench.net().is_whole() {
            "tap in a network namespace"
        } else {
            "user-mode networking"
        };
        Ok(Self {
            kernel,
            version,
            library,
            uiw,
            date: date.trim().to_owned(),
            took,
            boots: bench.boots,
            network,
            busy,
        })
    }
}

impl Results {
    /// Adds a run of a row, which was repeated `retries` times.
    pub fn add(
        &mut self,
        case: &Case,
        direction: Direction,
        setting: Setting,
        verdict: Verdict,
        retries: u32,
    ) {
        let same = |row: &&mut ResultRow| row.name == case.name && row.direction == direction;
        match self.rows.iter_mut().find(same) {
            Some(row) => {
                row.runs.push((setting, verdict));
                row.retries += retries;
            }
            None => {
                let runs = vec![(setting, verdict)];
                self.rows.push(ResultRow { name: case.name.clone(), direction, runs, retries });
            }
        }
    }

    /// Counts the runs by outcome.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, verdict) in self.rows.iter().flat_map(|row| &row.runs) {
            match verdict {
                Verdict::Pass(_) => counts.passed += 1,
                Verdict::Fail(_) => counts.failed += 1,
                Verdict::Known { .. } => counts.known += 1,
                Verdict::NotApplicable(_) => counts.not_applicable += 1,
            }
        }
        counts
    }

    /// Returns the contents of RESULTS.md.
    pub fn markdown(&self, environment: &Environment) -> String {
        let Environment { kernel, version, library, uiw, date, took, boots, network, busy } =
            environment;
        let (of, options) = match version {
            Some(version) => {
                (format!(" of Linux {version}"), format!(" --kernel {version} --short"))
            }
            None => (String::new(), String::new()),
        };
        let mut text = format!(
            "# uiw and the Linux siw driver{of}\n\nMade by `cargo xtask interop siw{options}`; do not edit.\n\n"
        );
        let _ = writeln!(
            text,
            "* {uiw}, {date}\n* kernel {kernel}, its siw driver built from Debian's source package; {library}"
        );
        let beside = match busy {
            0 => String::new(),
            busy => {
                format!(
                    ", with another process that kept a core busy on each of {busy} cores (`--busy`)"
                )
            }
        };
        let _ = writeln!(
            text,
            "* {network}; {boots} boot(s), {:.0} s in all{beside}",
            took.as_secs_f64()
        );
        let _ = writeln!(text, "* **runs: {}**\n", self.counts());
        text += "A number counts the settings in which a case passed: CRC on and off, IPv4 and IPv6, MTU 1500 and 9000, the stock driver and one \
                 that sends large FPDUs (`try_gso`) to our profile `siw-gso`. Data is compared byte for byte at both ends.\n";
        let (plain, other): (Vec<&str>, Vec<&str>) = self
            .names()
            .into_iter()
            .partition(|name| self.of_case(name).iter().all(|row| row.is_plain()));
        text += "\n## Passed in every setting, in the first attempt\n\n";
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for name in plain {
            let counts: Vec<String> = self
                .of_case(name)
                .iter()
                .map(|row| format!("{} {}", row.runs.len(), row.direction))
                .collect();
            let counts = counts.join(", ");
            match groups.iter_mut().find(|(other, _)| *other == counts) {
                Some((_, names)) => names.push(name),
                None => groups.push((counts, vec![name])),
            }
        }
        for (counts, names) in groups {
            let _ = writeln!(text, "* **{counts}**: {}.", names.join("; "));
        }
        if !other.is_empty() {
            text += "\n## Other results\n\nA *known* run failed as [QUIRKS.md](QUIRKS.md) explains, by what the guest shows. A run was *repeated* for a fault \
                     of siw's that QUIRKS.md explains.\n\n";
        }
        for name in other {
            for row in self.of_case(name) {
                let remarks = row.remarks();
                let colon = if remarks.is_empty() { "" } else { ": " };
                let _ =
                    writeln!(text, "* {name}, {}: {}{colon}{remarks}", row.direction, row.word());
            }
        }
        text
    }

    /// Returns the names of the cases, each once, in the order in which they were first run.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        names
    }

    /// Returns the rows of the case `name`, beginning with the one in which uiw connects.
    fn of_case(&self, name: &str) -> Vec<&ResultRow> {
        let of = |way| self.rows.iter().find(move |row| row.name == name && row.direction == way);
        [Direction::Ours, Direction::Theirs].into_iter().filter_map(of).collect()
    }
}

/// Numbers of runs by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of runs that passed.
    pub passed: usize,
    /// Number of runs that failed without an explanation in QUIRKS.md.
    pub failed: usize,
    /// Number of runs that failed because of a fault of siw that QUIRKS.md explains.
    pub known: usize,
    /// Number of runs that were not possible, because siw or this machine lacks something.
    pub not_applicable: usize,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, known, not_applicable } = self;
        write!(
            f,
            "{passed} passed, {failed} failed, {known} known (at most {MOST_KNOWN}), {not_applicable} not applicable"
        )
    }
}

impl ResultRow {
    /// Returns whether every run passed in its first attempt.
    fn is_plain(&self) -> bool {
        self.retries == 0
            && self.runs.iter().all(|(_, verdict)| matches!(verdict, Verdict::Pass(_)))
    }

    fn word(&self) -> String {
        let of = self.runs.len();
        let count =
            |is: fn(&Verdict) -> bool| self.runs.iter().filter(|(_, verdict)| is(verdict)).count();
        let passed = count(|verdict| matches!(verdict, Verdict::Pass(_)));
        let failed = count(|verdict| matches!(verdict, Verdict::Fail(_)));
        let known = count(|verdict| matches!(verdict, Verdict::Known { .. }));
        match (passed, failed, known) {
            (0, 0, 0) => format!("not applicable, {of}"),
            (passed, 0, 0) if passed == of => format!("{passed} of {of}"),
            (passed, 0, 0) => format!("{passed} of {of}, {} not applicable", of - passed),
            (passed, 0, _) => format!("known, {passed} of {of}"),
            (passed, ..) => format!("**FAIL**, {passed} of {of}"),
        }
    }

    /// Returns the texts of the runs, each once. Texts of failed runs begin with the setting.
    fn remarks(&self) -> String {
        let mut seen: Vec<String> = Vec::new();
        for (setting, verdict) in &self.runs {
            let remark = match verdict {
                Verdict::Pass(what) | Verdict::NotApplicable(what) => what.clone(),
                Verdict::Fail(what) => format!("{setting}: {what}"),
                Verdict::Known { quirk, seen } => {
                    format!("{setting}: {seen} ([QUIRKS.md](QUIRKS.md), \"{quirk}\")")
                }
            };
            let remark = remark.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ");
            if !remark.is_empty() && !seen.contains(&remark) {
                seen.push(remark);
            }
        }
        // Measured figures differ between settings, so at most three texts are listed.
        let more = seen.len().saturating_sub(3);
        seen.truncate(3);
        if more > 0 {
            seen.push(format!("and {more} more"));
        }
        if self.retries > 0 {
            seen.push(format!("{} repeated", self.retries));
        }
        seen.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(&str, Verdict)]) -> Results {
        let mut results = Results::default();
        for (name, verdict) in rows {
            let case = Case::new(*name, |_, _, _| Ok(Verdict::pass()));
            let retries = u32::from(*verdict == Verdict::known("a quirk", "seen")) * 5;
            results.add(&case, Direction::Ours, Setting::USUAL, verdict.clone(), retries);
        }
        results
    }

    fn environment() -> Environment {
        let text = |text: &str| text.to_owned();
        let (kernel, library, uiw, date) = (text("6"), text("44"), text("uiw 1"), text("today"));
        Environment {
            kernel,
            version: None,
            library,
            uiw,
            date,
            took: Duration::from_secs(7),
            boots: 1,
            network: "tap",
            busy: 0,
        }
    }

    #[test]
    fn busy_cores_are_stated() {
        let text = results(&[("a", Verdict::pass())]).markdown(&environment());
        assert!(text.contains("* tap; 1 boot(s), 7 s in all\n"), "{text}");
        let text =
            results(&[("a", Verdict::pass())]).markdown(&Environment { busy: 2, ..environment() });
        assert!(
            text.contains(
                "7 s in all, with another process that kept a core busy on each of 2 cores (`--busy`)\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn rows_and_counts() {
        let rows = [
            ("a", Verdict::Fail("why".to_owned())),
            ("b", Verdict::pass()),
            ("c", Verdict::NotApplicable("that".to_owned())),
            ("d", Verdict::known("a quirk", "seen")),
        ];
        let text = results(&rows).markdown(&environment());
        assert!(
            text.contains("* **runs: 1 passed, 1 failed, 1 known (at most 3), 1 not applicable**"),
            "{text}"
        );
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("* ")).skip(4).collect();
        assert_eq!(
            rows,
            [
                "* **1 uiw to siw**: b.",
                "* a, uiw to siw: **FAIL**, 0 of 1: CRC, IPv4, MTU 1500, stock: why",
                "* c, uiw to siw: not applicable, 1: that",
                "* d, uiw to siw: known, 0 of 1: CRC, IPv4, MTU 1500, stock: seen ([QUIRKS.md](QUIRKS.md), \"a quirk\"); 5 repeated"
            ]
        );
    }

    #[test]
    fn equal_results_share_line() {
        let mut results = results(&[
            ("a", Verdict::pass()),
            ("b", Verdict::Pass("9 MB/s".to_owned())),
            ("c", Verdict::pass()),
        ]);
        for name in ["b", "a"] {
            let case = Case::new(name, |_, _, _| Ok(Verdict::pass()));
            results.add(&case, Direction::Theirs, Setting::USUAL, Verdict::pass(), 0);
        }
        let text = results.markdown(&environment());
        let rows = "* **1 uiw to siw, 1 siw to uiw**: a; b.\n* **1 uiw to siw**: c.\n";
        assert!(text.contains(rows), "{text}");
    }
}
