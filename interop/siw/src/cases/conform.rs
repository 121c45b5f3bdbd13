//! Runs `uiw conform` against the partner in the guest: it must find the violations that QUIRKS.md
//! lists and no others.

use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::{Error, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// Time limit for all connections. Each check ends by itself if nothing moves.
const BOUND: Duration = Duration::from_secs(1800);
/// Heading of the section of QUIRKS.md that lists the requirements.
const SECTION: &str = "## What `uiw conform` finds";
/// Text before the reason of a violation that does not occur in every run.
const AT_TIMES: &str = "at times: ";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("uiw conform: what QUIRKS.md says", findings).directions(Direction::OURS).short(),
    ]
}

/// Returns the requirements that siw violates always and those that it violates sometimes, as
/// listed in the first column of the tables in QUIRKS.md.
fn quirks() -> [BTreeSet<String>; 2] {
    let quirks = include_str!("../../QUIRKS.md");
    let (_, section) = quirks.split_once(SECTION).unwrap_or_default();
    let rows = section.lines().skip(1).take_while(|line| !line.starts_with("## "));
    let cells = rows.filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let [mut always, mut at_times] = [BTreeSet::new(), BTreeSet::new()];
    for (ids, why) in cells.filter(|(ids, _)| ids.starts_with("RFC")) {
        let set = if why.starts_with(AT_TIMES) { &mut at_times } else { &mut always };
        set.extend(ids.split(", ").map(str::to_owned));
    }
    [always, at_times]
}

fn findings(bench: &mut Bench, setting: &Setting, _: Direction) -> Result<Verdict> {
    let verdict = judge(bench, setting);
    // After some of the checks siw accepts no more connections, and its module cannot be unloaded.
    bench.power_off();
    verdict
}

fn judge(bench: &mut Bench, setting: &Setting) -> Result<Verdict> {
    let to = bench.partner(setting.family, "")?;
    // The captures of a row are made by uiw's own stack, which this command does not use.
    bench.capture(None);
    let output = bench.run_uiw(&["conform", &to, "--partner", "--json"], BOUND)?;
    let objects = output.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut found, mut kept, mut partner, mut details) =
        (BTreeSet::new(), 0, String::new(), String::new());
    for object in objects {
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        match (object["type"].as_str(), object["verdict"].as_str()) {
            (Some("listener"), _) => partner = text("partner"),
            (Some("requirement"), Some("kept")) => kept += 1,
            (Some("requirement"), Some("broken")) => {
                let first = &object["findings"][0];
                details += &format!("{}: case {}: {}; ", text("id"), first["case"], first["what"]);
                found.insert(text("id"));
            }
            _ => {}
        }
    }
    if kept == 0 {
        return Err(Error::Failed(format!("nothing was judged: {}", output.last_line())));
    }
    let [always, at_times] = quirks();
    let new: Vec<_> =
        found.difference(&always).filter(|id| !at_times.contains(*id)).cloned().collect();
    let gone: Vec<_> = always.difference(&found).cloned().collect();
    if !new.is_empty() || !gone.is_empty() {
        let why = format!(
            "not in QUIRKS.md: {}; not found: {}; {details}",
            new.join(" "),
            gone.join(" ")
        );
        return Ok(Verdict::Fail(why));
    }
    Ok(Verdict::Pass(format!("{kept} kept, {} broken; {partner}", found.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_parsed() {
        let [always, at_times] = quirks();
        assert!(
            always.contains("RFC5040-4.8-02") && at_times.contains("RFC5040-7.1-04"),
            "{always:?} {at_times:?}"
        );
        let mut ids = always.iter().chain(&at_times);
        assert!(
            ids.all(|id| id.starts_with("RFC") && !id.contains(' ')),
            "{always:?} {at_times:?}"
        );
    }
}
