//! RESULTS.md.

use crate::Result;
use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use std::fmt::Write as _;
use std::time::Duration;

/// Rows and how they came out, in the order in which cases were first seen.
#[derive(Default)]
pub struct Results {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    direction: Direction,
    runs: Vec<(Setting, Verdict)>,
}

/// On what the rows were run.
pub struct Environment {
    kernel: String,
    library: String,
    uiw: String,
    date: String,
    took: Duration,
    boots: u32,
    network: &'static str,
}

impl Environment {
    /// Asks guest and host.
    ///
    /// # Errors
    /// If the guest does not answer.
    pub fn of(bench: &Bench, took: Duration) -> Result<Self> {
        let kernel = bench.guest().must("uname -rv")?.trim().to_owned();
        let library = bench.parts().library.clone();
        let date = crate::shell::must(
            std::process::Command::new("date").args(["-u", "+%Y-%m-%d"]),
            Duration::from_secs(5),
        )?;
        let uiw = bench.run_uiw(&["--version"], Duration::from_secs(10))?.out.trim().to_owned();
        let network =
            if bench.net().is_whole() { "tap in a network namespace" } else { "user-mode networking" };
        Ok(Self { kernel, library, uiw, date: date.trim().to_owned(), took, boots: bench.boots, network })
    }
}

impl Results {
    /// Adds a run of a row.
    pub fn add(&mut self, case: &Case, direction: Direction, setting: Setting, verdict: Verdict) {
        let same = |row: &&mut Row| row.name == case.name && row.direction == direction;
        match self.rows.iter_mut().find(same) {
            Some(row) => row.runs.push((setting, verdict)),
            None => {
                self.rows.push(Row { name: case.name.clone(), direction, runs: vec![(setting, verdict)] });
            }
        }
    }

    /// Runs passed, failed, not applicable.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |of: fn(&Verdict) -> bool| {
            self.rows.iter().flat_map(|row| &row.runs).filter(|(_, verdict)| of(verdict)).count()
        };
        (
            count(|verdict| matches!(verdict, Verdict::Pass(_))),
            count(|verdict| matches!(verdict, Verdict::Fail(_))),
            count(|verdict| matches!(verdict, Verdict::NotApplicable(_))),
        )
    }

    /// The file.
    #[must_use]
    pub fn markdown(&self, environment: &Environment) -> String {
        let Environment { kernel, library, uiw, date, took, boots, network } = environment;
        let (passed, failed, na) = self.counts();
        let mut text = String::from(
            "# uiw and the Linux siw driver\n\nMade by `cargo xtask interop siw`; not edited by hand.\n\n",
        );
        let _ = writeln!(
            text,
            "* {uiw}, {date}\n* kernel {kernel}, its siw driver built from Debian's source package; {library}"
        );
        let _ = writeln!(text, "* {network}; {boots} boot(s), {:.0} s in all", took.as_secs_f64());
        let _ = writeln!(text, "* **{passed} runs passed, {failed} failed, {na} not applicable**\n");
        text += "A row is a case one way round. *n of m* counts settings: CRC on and off, IPv4 and IPv6, MTU 1500 and 9000, \
                 the stock driver and one that sends large FPDUs (`try_gso`) to our profile `siw-gso`. Data is compared octet \
                 for octet at both ends.\n\n| case | who connects | result | |\n|---|---|---|---|\n";
        for row in &self.rows {
            let _ =
                writeln!(text, "| {} | {} | {} | {} |", row.name, row.direction, row.word(), row.remarks());
        }
        text
    }
}

impl Row {
    fn word(&self) -> String {
        let of = self.runs.len();
        let passed = self.runs.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Pass(_))).count();
        let failed = self.runs.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Fail(_))).count();
        match (passed, failed) {
            (0, 0) => "not applicable".to_owned(),
            (passed, 0) if passed == of => format!("pass, {passed} of {of}"),
            (passed, 0) => format!("pass, {passed} of {of}; {} not applicable", of - passed),
            (passed, _) => format!("**FAIL**, {passed} of {of}"),
        }
    }

    /// What the runs said, each thing once, with the setting where it failed.
    fn remarks(&self) -> String {
        let mut seen: Vec<String> = Vec::new();
        for (setting, verdict) in &self.runs {
            let remark = match verdict {
                Verdict::Pass(what) | Verdict::NotApplicable(what) => what.clone(),
                Verdict::Fail(what) => format!("{setting}: {what}"),
            };
            let remark = remark.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ");
            if !remark.is_empty() && !seen.contains(&remark) {
                seen.push(remark);
            }
        }
        // Figures differ from setting to setting: a few are enough.
        let more = seen.len().saturating_sub(3);
        seen.truncate(3);
        if more > 0 {
            seen.push(format!("and {more} more"));
        }
        seen.join("; ")
    }
}
