//! Performs every operation first from the connecting end and then from the other one, and verifies
//! the data at both.

use super::conversation::{converse, judge};
use super::sums::converse_and_judge;
use crate::Result;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict, quirk};
use std::time::Duration;

/// Name and orders of each case. Both ends carry out each order unless the order names one end.
const EVERYWHERE: &[(&str, &str)] = &[
    ("Send of 0, 1, 64, 1441 bytes", "send:0 send:1 send:64x20 send:1441x3"),
    ("Send of 64 KiB", "send:65536x4"),
    ("Send with SE", "sendse:0 sendse:64x20 sendse:20000"),
    ("Send with Invalidate", "sendinv:64x3 sendinv:0 sendinv:20000"),
    ("Send with SE and Invalidate", "sendseinv:64x3 sendseinv:0 sendseinv:20000"),
    ("Write of 0, 1, 1441 bytes", "write:0 write:1 write:1441x3 write:3"),
    ("Write of 64 KiB, 16 at a time", "write:65536x16"),
    ("Read of 1, 3, 1441 bytes", "read:1 read:1441x3 read:3"),
    ("Read of 64 KiB, 16 at a time", "read:65536x16"),
    ("Read, then a fenced Send of what was read", "fence:4096x20"),
];

const ONCE: &[(&str, &str)] = &[
    ("Send, inline", "sendinline:1 sendinline:48x20"),
    ("Send, three and six elements", "send:5000x5x3 send:7001x5x6 send:20x5x6"),
    ("Write, three and six elements", "write:5000x5x3 write:7001x5x6 write:20x5x6"),
    // siw can only read into one element. Another case lets uiw read into several.
    ("Read into one element, 128 outstanding", "read:64x128 read:4096x128"),
    ("Read, ORD used up and resumed", "read:64x400 read:5000x300"),
    ("400 Sends at once", "send:100x400"),
    ("400 Writes at once", "write:100x400"),
    ("1 MiB by Send, Write and Read", "send:1048576 write:1048576x4 read:1048576x4"),
    (
        "sizes around FPDU borders",
        "write:1423 write:1424 write:1425 write:1433 write:1434 write:1435 write:1436 write:1448 send:1430 send:1431 \
      send:1432 send:1436 read:1434 read:1435 read:1436",
    ),
];

/// Orders that are small enough for captures.
const SMALL: &str = "send:0 send:64 send:3000 sendse:64 sendinv:64 sendseinv:64 sendinline:48 write:0 write:64 write:3000 \
                     read:1 read:64 read:3000 fence:64x2";

const LARGE: &[(&str, &str)] = &[
    ("16 MiB by Send, Write and Read", "send:16777216 write:16777216 read:16777216"),
    ("256 MiB by Write", "write:268435456"),
    ("256 MiB by Read", "read:268435456"),
];

const TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for the large orders. Both ends give up by themselves if nothing has moved for half a
/// minute. Each wait also has a limit of ten minutes, and an order has two long waits.
const BOUND: Duration = Duration::from_secs(1500);

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &'static str, text: &'static str| {
        Case::new(name, move |bench, setting, direction| {
            let orders: Vec<&str> = text.split_whitespace().collect();
            converse_and_judge(bench, setting, direction, &orders, TIMEOUT)
        })
    };
    let mut cases = Vec::new();
    cases.extend(EVERYWHERE.iter().map(|(name, text)| case(name, text).axes(Axes::All).short()));
    cases.extend(ONCE.iter().map(|(name, text)| case(name, text).axes(Axes::Crc).short()));
    cases.extend(LARGE.iter().map(|(name, text)| {
        // No capture is made of this much data.
        Case::new(*name, move |bench, setting, direction| {
            let orders: Vec<&str> = text.split_whitespace().collect();
            let output = converse(bench, setting, direction, &orders, BOUND)?;
            Ok(match judge(&orders, &output) {
                // The messages of both ends are needed to tell which of them saw no progress.
                Verdict::Fail(why) if direction == Direction::Theirs => {
                    Verdict::Fail(format!("{why}; our end: {}", bench.listener_last()))
                }
                verdict => verdict,
            })
        })
    }));
    cases.push(case("every operation, small", SMALL).axes(Axes::Crc).short());
    cases.push(Case::new("Read of no bytes", read_nothing).axes(Axes::All).short());
    cases.push(
        Case::new("Read into three and six elements", |bench, setting, direction| {
            // Only uiw reads into several elements; siw's limit (max_sge_rd) is one.
            let orders: &[&str] = match direction {
                Direction::Ours => &["me.read:5000x5x3", "me.read:7001x5x6"],
                Direction::Theirs => &["you.read:5000x5x3", "you.read:7001x5x6"],
            };
            converse_and_judge(bench, setting, direction, orders, TIMEOUT)
        })
        .axes(Axes::Crc),
    );
    cases
}

/// siw sometimes answers a Read of no bytes with the bytes that it sent before (QUIRKS.md, "Reads
/// of no bytes"), and uiw must refuse them. siw does so only while it is still busy sending, so one
/// of several connections should succeed.
fn read_nothing(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let orders = &["me.read:0", "you.read:0"];
    for wrong in 0..20 {
        let output = converse(bench, setting, direction, orders, Duration::from_secs(60))?;
        let verdict = judge(orders, &output);
        if verdict == Verdict::pass() {
            return Ok(if wrong == 0 {
                verdict
            } else {
                Verdict::Pass(format!("siw answered with bytes {wrong} times"))
            });
        }
        // Our Terminate reports a base or bounds violation; siw's program sees its requests
        // flushed.
        let refused = match direction {
            Direction::Ours => output
                .err
                .contains("this end terminated the stream: DDP: tagged buffer: base or bounds"),
            Direction::Theirs => {
                bench.listener_line("base or bounds", Duration::from_secs(5)).is_ok()
            }
        };
        if !refused {
            return Ok(verdict);
        }
        bench.retry();
    }
    Ok(Verdict::known(quirk::READ_OF_NOTHING, "siw answered with bytes 20 times of 20"))
}
