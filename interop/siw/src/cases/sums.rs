//! Runs rows in which siw sends large amounts of data, and distinguishes faults of siw from those
//! of uiw.

use super::conversation::{converse, judge};
use crate::Result;
use crate::bench::Bench;
use crate::case::{Direction, Setting, Verdict, quirk};
use crate::guest::Folder;
use std::path::Path;
use std::time::Duration;

/// Runs `orders` at both ends and judges the result. A run that a fault of siw has ended is
/// repeated ([`repeat_faults_of_siw`]).
pub(super) fn converse_and_judge(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    orders: &[&str],
    timeout: Duration,
) -> Result<Verdict> {
    repeat_faults_of_siw(bench, setting, |bench| {
        let mut verdict = converse(bench, setting, direction, orders, timeout)
            .map(|output| judge(orders, &output));
        if let (Ok(Verdict::Fail(why)), Direction::Theirs) = (&mut verdict, direction) {
            *why += &format!("; our end: {}", bench.listener_last());
        }
        verdict
    })
}

/// Runs a row in which siw sends large amounts of data.
///
/// When TCP has no room, siw sometimes computes a wrong CRC or skips an FPDU (QUIRKS.md), which
/// ends the stream. If the capture shows such a fault, the row is repeated, up to [`MAX_RUNS`]
/// runs.
pub(super) fn repeat_faults_of_siw(
    bench: &mut Bench,
    setting: &Setting,
    mut run: impl FnMut(&mut Bench) -> Result<Verdict>,
) -> Result<Verdict> {
    let before = bench.captured();
    let folder = Folder::create("sums")?;
    let file = before.clone().unwrap_or_else(|| folder.path("sums.pcapng"));
    let mut faults: Vec<SenderFault> = Vec::new();
    let verdict = loop {
        bench.capture(Some(file.clone()));
        let verdict = run(bench);
        // This call ends the listener, which has the file open.
        bench.capture(before.clone());
        let fault = match &verdict {
            Ok(Verdict::Fail(why)) => SenderFault::find(why, &decoded(bench, &file)),
            _ => None,
        };
        let Some(fault) = fault else { break verdict };
        faults.push(fault);
        bench.retry();
        bench.renew();
        if faults.len() == MAX_RUNS {
            break Ok(Verdict::known(
                fault.quirk(),
                format!("siw {}, {MAX_RUNS} times of {MAX_RUNS}", fault.text()),
            ));
        }
        // The row may have to run in another guest.
        bench.apply(setting)?;
    };
    verdict.map(|verdict| match (verdict, faults.last()) {
        (Verdict::Pass(_), Some(fault)) => {
            Verdict::Pass(format!("siw {} {} times", fault.text(), faults.len()))
        }
        (verdict, _) => verdict,
    })
}

/// Maximum number of runs of a row.
const MAX_RUNS: usize = 5;

/// Fault of siw that ends a stream on which it sends large amounts of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderFault {
    /// The CRC of an FPDU covers its payload twice.
    SummedTwice,
    /// The MO of an FPDU lies one FPDU too far.
    SkippedFpdu,
}

impl SenderFault {
    /// Finds the fault in the decoded capture of a row that has failed because of `why`.
    fn find(why: &str, decoded: &str) -> Option<Self> {
        if decoded.contains("summed twice, an error of the Linux siw driver") {
            return Some(Self::SummedTwice);
        }
        // uiw has reported the wrong MO, and the decoder finds it too.
        let skipped = why
            .contains("this end terminated the stream: DDP: untagged buffer: invalid MO")
            && decoded.lines().any(|line| line.contains("MO ") && line.ends_with(" is due"));
        skipped.then_some(Self::SkippedFpdu)
    }

    fn quirk(self) -> &'static str {
        match self {
            Self::SummedTwice => quirk::SUMMED_TWICE,
            Self::SkippedFpdu => quirk::SKIPPED_FPDU,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::SummedTwice => "summed the payload of an FPDU twice",
            Self::SkippedFpdu => "skipped an FPDU",
        }
    }
}

/// Returns the output of `uiw decode` for a capture.
fn decoded(bench: &Bench, file: &Path) -> String {
    bench.decode("--quiet", file).map(|output| output.out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_siw_found_in_capture() {
        let why = "1 of 2 done: error: this end terminated the stream: DDP: untagged buffer: invalid MO (1/2/0x04)";
        let skipped = "DEPARTURE (RFC 5041 5.2): MO 2880 in MSN 1 on queue 0, 1440 is due\n";
        assert_eq!(SenderFault::find(why, skipped), Some(SenderFault::SkippedFpdu));
        assert_eq!(SenderFault::find("the peer terminated the stream", skipped), None);
        assert_eq!(SenderFault::find(why, "nothing"), None);
        let summed = "CRC: that of the payload summed twice, an error of the Linux siw driver";
        assert_eq!(SenderFault::find("", summed), Some(SenderFault::SummedTwice));
    }
}
