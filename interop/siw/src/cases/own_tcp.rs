//! Runs uiw with a user-space TCP on the tap: smoltcp over AF_PACKET and over AF_XDP against the
//! kernel's TCP below siw.

use super::sums::converse_and_judge;
use crate::Result;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict};
use crate::net::Tcp;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Names and orders of cases; both ends carry out each order.
const ORDERS: &[(&str, &str)] = &[
    (
        "Send, Write and Read",
        "send:0 send:64x20 send:65536x4 write:1 write:65536x16 read:3 read:65536x16",
    ),
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
            cases.push(
                Case::new(format!("smoltcp over {kind}: {name}"), run).axes(Axes::Tcp).short(),
            );
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
    // A program that receives before the kernel's stack gets packets exactly as the guest sends
    // them. A packet that hardware would segment is lost there, so segmentation offload is
    // disabled.
    let cut = |by: &str| format!("ethtool -K eth0 tso {by} gso {by}");
    let generic = tcp == Tcp::Xdp;
    bench.use_tcp(tcp)?;
    if generic {
        bench.guest().must(&cut("off"))?;
    }
    let orders: Vec<&str> = orders.split_whitespace().collect();
    let result = converse_and_judge(bench, setting, direction, &orders, TIMEOUT);
    bench.use_tcp(Tcp::Kernel)?;
    if generic {
        bench.guest().must(&cut("on"))?;
    }
    result
}
