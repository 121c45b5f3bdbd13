//! The rows and their bars.

use super::slices::{Bar, Check, Engine, Program, Row, Variant};

/// Every row.
pub(super) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for pattern in PATTERNS {
        rows.extend([1, 2].map(|queues| rust_threads(pattern, queues)));
    }
    rows.push(one_thread("one thread, ping-pong", || rust("ping-pong SECONDS 1 1 1")));
    for pattern in PATTERNS {
        rows.extend(["", "pinned", "asleep"].map(|how| c_threads(pattern, how)));
    }
    rows.push(one_thread("C, one thread, ping-pong", || c("threads", "ping-pong SECONDS 1")));
    rows.push(idle());
    rows.push(neighbours());
    rows.extend([("otherwise idle machine", "", 0.85), ("one core busy", "busy", 0.6)].map(sleepers));
    for call in ["modify", "resolve", "connect", "query"] {
        rows.extend([true, false].map(|same| control(call, same)));
    }
    rows
}

/// 64-byte round trips, 64-byte and 64 KiB Sends with 32 under way.
const PATTERNS: [&str; 3] = ["ping-pong", "send-64", "send-64K"];

fn rust(args: &str) -> Variant {
    Variant { program: Program::Rust, ..c("", args) }
}

fn c(program: &'static str, args: &str) -> Variant {
    Variant {
        program: Program::C(program),
        engine: Engine::Own,
        args: args.to_owned(),
        one_shard: false,
        longer: 1.0,
    }
}

fn base(variant: Variant) -> Variant {
    Variant { engine: Engine::Base, ..variant }
}

/// `figure` of the first variant over that of number `over`.
fn check(what: &'static str, figure: &'static str, over: usize, bar: Option<Bar>) -> Check {
    Check { what, figure, of: 0, over: Some(over), bar }
}

/// Two threads on one device, each with `queues` completion queues.
fn rust_threads(pattern: &str, queues: u32) -> Row {
    let variants = vec![
        rust(&format!("{pattern} SECONDS 2 1 {queues}")),
        rust(&format!("{pattern} SECONDS 1 1 {queues}")),
        base(rust(&format!("{pattern} SECONDS 2 2 {queues}"))),
    ];
    let checks = vec![
        check("of two devices", "rate", 2, Some(Bar::AtLeast(0.95))),
        check("times one thread", "rate", 1, Some(Bar::AtLeast(1.9))),
    ];
    let queues = if queues == 1 { "" } else { ", a queue an end" };
    Row { name: format!("two threads, {pattern}{queues}"), variants, checks }
}

fn c_threads(pattern: &str, how: &str) -> Row {
    // A process of one thread needs no second shard.
    let waiting = if how == "asleep" { how } else { "" };
    let variants = vec![
        c("threads", &format!("{pattern} SECONDS 2 {how}")),
        base(c("threads", &format!("{pattern} SECONDS 2 processes {waiting}"))),
    ];
    let checks = vec![check("of two processes", "rate", 1, Some(Bar::AtLeast(0.95)))];
    let how = match how {
        "pinned" => "two vectors",
        "asleep" => "a channel a thread",
        _ => "vector 0",
    };
    Row { name: format!("C, two threads, {pattern}, {how}"), variants, checks }
}

fn one_thread(name: &str, variant: impl Fn() -> Variant) -> Row {
    Row {
        name: name.to_owned(),
        variants: vec![variant(), base(variant())],
        checks: vec![check("of 02b5a5a", "rate", 1, Some(Bar::NoLess))],
    }
}

fn idle() -> Row {
    Row {
        name: "poll of an idle queue pair's queue".to_owned(),
        variants: vec![Variant { program: Program::Idle, ..c("", "SECONDS") }],
        checks: vec![Check {
            what: "bytes of others",
            figure: "bytes",
            of: 0,
            over: None,
            bar: Some(Bar::AtMost(0.0)),
        }],
    }
}

fn neighbours() -> Row {
    let neighbours = |args| Variant { longer: 2.0, one_shard: true, ..c("neighbours", args) };
    Row {
        name: "request and answer beside 8 streams of 1 MiB Writes, one shard".to_owned(),
        variants: vec![neighbours("uiw SECONDS"), neighbours("tcp SECONDS"), base(neighbours("uiw SECONDS"))],
        checks: vec![
            check("p99 of TCP's", "p99_us", 1, Some(Bar::AtMost(2.0))),
            check("p50 of TCP's", "p50_us", 1, None),
            check("requests of TCP's", "rate", 1, None),
            check("bulk of 02b5a5a's", "bytes_per_second", 2, Some(Bar::NoLess)),
            check("bulk of TCP's", "bytes_per_second", 1, None),
        ],
    }
}

fn sleepers((name, busy, bar): (&str, &str, f64)) -> Row {
    let sleepers = |stack: &str| c("sleepers", &format!("{stack} SECONDS {busy}"));
    Row {
        name: format!("both ends asleep in poll(2), {name}"),
        variants: vec![sleepers("uiw"), sleepers("tcp")],
        checks: vec![
            check("of epoll's requests", "rate", 1, Some(Bar::AtLeast(bar))),
            check("p99 of epoll's", "p99_us", 1, None),
        ],
    }
}

/// `same`: the flooders and the queue pair are on one shard.
fn control(call: &str, same: bool) -> Row {
    let pinned = if same { "" } else { "pinned" };
    let control = |load: &str| Variant {
        one_shard: same,
        // For a hundred calls at least: one with its set-up takes up to 30 ms.
        longer: if call == "connect" { 6.0 } else { 2.0 },
        ..c("control", &format!("{call} SECONDS {load} {pinned}"))
    };
    let name = match call {
        "modify" => "ibv_modify_qp",
        "resolve" => "rdma_resolve_addr",
        "connect" => "rdma_connect",
        _ => "ibv_query_qp",
    };
    let place = if same { "on the flooders' shard" } else { "on another shard" };
    Row {
        name: format!("{name} {place}"),
        variants: vec![control("flooders"), control("arithmetic")],
        checks: vec![
            check("p99 of beside loops", "p99_us", 1, Some(Bar::AtMost(3.0))),
            check("p50 of beside loops", "p50_us", 1, None),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_of_rows_are_distinct() {
        let rows = all();
        let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn every_row_has_a_bar_and_compares_variants_that_it_has() {
        for row in all() {
            assert!(row.checks.iter().any(|check| check.bar.is_some()), "{}", row.name);
            for check in &row.checks {
                assert!(check.of.max(check.over.unwrap_or(0)) < row.variants.len(), "{}", row.name);
            }
        }
    }
}
