//! Rows in which siw sends much: its wrong sums are distinguished from ours.

use super::conversation::{converse, judge};
use crate::Result;
use crate::bench::Bench;
use crate::case::{Direction, Setting, Verdict, quirk};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Has both ends do `orders` and judges what came of it. siw at times sums the payload of an FPDU
/// twice when TCP had no room (QUIRKS.md), which ends the stream. Where the capture shows that it
/// was so, the row is run again.
pub(super) fn converse_and_judge(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    orders: &[&str],
    timeout: Duration,
) -> Result<Verdict> {
    let before = bench.captured();
    let own = std::env::temp_dir().join(format!("uiw-siw-{}-sums.pcapng", std::process::id()));
    let file = before.clone().unwrap_or_else(|| own.clone());
    let mut result =
        Ok(Verdict::known(quirk::SUMMED_TWICE, "siw summed the payload of an FPDU twice, 5 times of 5"));
    for wrong in 0..5 {
        bench.capture(Some(file.clone()));
        let verdict =
            converse(bench, setting, direction, orders, timeout).map(|output| judge(orders, &output));
        // The listener, which holds the file, has ended.
        bench.capture(before.clone());
        let by_siw = matches!(verdict, Ok(Verdict::Fail(_))) && summed_twice(bench, &file);
        if by_siw {
            bench.retry();
            bench.renew();
        } else {
            result = verdict.map(|verdict| match verdict {
                Verdict::Pass(_) if wrong > 0 => {
                    Verdict::Pass(format!("siw summed the payload of an FPDU twice {wrong} times"))
                }
                verdict => verdict,
            });
            break;
        }
    }
    let _ = fs::remove_file(own);
    result
}

fn summed_twice(bench: &Bench, file: &Path) -> bool {
    let decoded = bench.decode("--quiet", file);
    decoded.is_ok_and(|output| output.out.contains("summed twice, an error of the Linux siw driver"))
}
