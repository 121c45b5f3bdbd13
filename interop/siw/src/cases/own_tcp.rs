//! uiw with a TCP of its own on the tap: smoltcp over AF_PACKET and over AF_XDP against the TCP under siw, the kernel's.

use super::ops::{converse, judge};
use crate::Result;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict};
use crate::net::Tcp;
use std::fs;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Name and orders; each is done by both ends.
const ORDERS: &[(&str, &str)] = &[
    ("Send, Write and Read", "send:0 send:64x20 send:65536x4 write:1 write:65536x16 read:3 read:65536x16"),
    ("Send with SE and Invalidate", "sendse:64x20 sendinv:20000 sendseinv:64x3"),
    ("1 MiB by Send, Write and Read", "send:1048576 write:1048576x4 read:1048576x4"),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, tcp) in [("AF_PACKET", Tcp::Packet), ("AF_XDP", Tcp::Xdp)] {
        for (name, orders) in ORDERS {
            let run = move |bench: &mut Bench, setting: &Setting, direction| {
                over(bench, tcp, setting, direction, orders)
            };
            cases.push(Case::new(format!("smoltcp over {kind}: {name}"), run).axes(Axes::Tcp).short());
        }
    }
    cases
}

fn over(
    bench: &mut Bench,
    tcp: Tcp,
    setting: &Setting,
    direction: Direction,
    orders: &str,
) -> Result<Verdict> {
    // A program in front of the kernel's stack gets what the guest sends as it sends it: a packet that a card would cut is lost there.
    let cut = |by: &str| format!("ethtool -K eth0 tso {by} gso {by}");
    let generic = tcp == Tcp::Xdp;
    bench.use_tcp(tcp)?;
    if generic {
        bench.guest().must(&cut("off"))?;
    }
    let orders: Vec<&str> = orders.split_whitespace().collect();
    let result = but_for_wrong_sums(bench, setting, direction, &orders);
    bench.use_tcp(Tcp::Kernel)?;
    if generic {
        bench.guest().must(&cut("on"))?;
    }
    result
}

/// siw at times sums the payload of an FPDU twice when TCP had no room (QUIRKS.md), which ends the stream. Where the capture shows
/// that it was so, the row is run again.
fn but_for_wrong_sums(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    orders: &[&str],
) -> Result<Verdict> {
    let before = bench.captured();
    let own = std::env::temp_dir().join(format!("uiw-siw-{}-sums.pcapng", std::process::id()));
    let file = before.clone().unwrap_or_else(|| own.clone());
    let mut result = Ok(Verdict::Fail("siw summed the payload of an FPDU twice, 5 times of 5".to_owned()));
    for wrong in 0..5 {
        bench.capture(Some(file.clone()));
        let verdict =
            converse(bench, setting, direction, orders, PATIENCE).map(|output| judge(orders, &output));
        // The listener, which holds the file, has ended.
        bench.capture(before.clone());
        let by_siw = matches!(verdict, Ok(Verdict::Fail(_))) && summed_twice(bench, &file);
        if by_siw {
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
