//! Tests the log lines about mistakes of a program and about requests that the peer refused.

use std::path::Path;
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, compile};

/// Returns the log lines of level `warn` and above.
fn warnings(ended: &ProcessEnd) -> Vec<&str> {
    ended.said.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).collect()
}

/// Returns the output of `local_errors.c` about `what`: the text before it, and the numbers of its
/// queue pairs.
fn said<'a>(ended: &'a ProcessEnd, what: &str) -> (&'a str, Vec<&'a str>) {
    let line = ended
        .said
        .lines()
        .find(|line| line.contains(what))
        .unwrap_or_else(|| panic!("{what}: {ended:?}"));
    let (front, numbers) = line.split_once(what).expect("it contains it");
    (front, numbers.split_whitespace().collect())
}

#[test]
fn errors_name_request_value_and_limit() {
    let libraries = Libraries::get();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/local_errors.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for (persona, argument) in [("iwarp", ""), ("roce", "acknowledged"), ("ib", "acknowledged")] {
        let mut command = libraries.command(User::Same, &program);
        command.arg(argument).env("UIW_PERSONA", persona).env("UIW_LOG", "warn");
        let ended = Running::start(command).end();
        ended.well();
        let lines = warnings(&ended);
        let of_queue_pair = |number: &str| {
            let field = format!(" qp={number}");
            lines.iter().filter(|line| line.contains(&field)).collect::<Vec<_>>()
        };
        for (what, parts) in [
            ("wrong lkey", &["wr_id 41 (Send)", "element 0 (8 bytes at 0x", "is not valid"][..]),
            (
                "too long for its region",
                &["wr_id 42 (Write)", "(4096 bytes at 0x", "which has 4096 bytes from 0x"],
            ),
            (
                "nowhere to read to",
                &["wr_id 43 (Read)", "(4096 bytes at 0x", "which has 4096 bytes from 0x"],
            ),
            ("too short", &["receive wr_id 51", "at least 8 bytes", "room for 4"]),
            (
                "receive with a wrong lkey",
                &["receive wr_id 52", "element 0 (8 bytes at 0x", "is not valid"],
            ),
        ] {
            let (_, numbers) = said(&ended, what);
            let own = of_queue_pair(numbers[0]);
            let [line] = own[..] else { panic!("{persona}, {what}: {own:#?} of {lines:#?}") };
            assert!(line.contains(" peer=127.0.0.1:"), "{line}");
            parts
                .iter()
                .for_each(|part| assert!(line.contains(part), "{persona}: no {part:?} in {line}"));
        }
        let datagrams = [
            ("too long a datagram", ["request wr_id 91 (Send)", "8192 bytes", "a datagram takes "]),
            (
                "datagram with a wrong lkey",
                ["request wr_id 92 (Send)", "element 0 (8 bytes at 0x", "is not valid"],
            ),
        ];
        for (what, parts) in datagrams.into_iter().filter(|_| persona != "iwarp") {
            let (_, numbers) = said(&ended, what);
            let own = of_queue_pair(numbers[0]);
            let [line] = own[..] else { panic!("{persona}, {what}: {own:#?} of {lines:#?}") };
            parts
                .iter()
                .for_each(|part| assert!(line.contains(part), "{persona}: no {part:?} in {line}"));
        }
        let (milliseconds, numbers) = said(&ended, "again and again");
        let seconds = milliseconds.trim().parse::<usize>().expect("a time") / 1000;
        let count = of_queue_pair(numbers[0]).len();
        assert!(
            (1..=1 + seconds).contains(&count),
            "{persona}: {count} lines in {milliseconds} ms"
        );

        // Each end logs one line: one reports its mistake, the other that its peer terminated the
        // connection for it.
        let (_, numbers) = said(&ended, "wrong rkey");
        for (number, part) in
            [(numbers[0], "invalid STag (1/1/0x00)"), (numbers[1], "no memory has this STag")]
        {
            let own = of_queue_pair(number);
            let [line] = own[..] else { panic!("{persona}: {own:#?} of {lines:#?}") };
            assert!(line.contains(" peer=127.0.0.1:"), "{line}");
            assert!(
                line.contains(part) || line.contains("STag"),
                "{persona}: no {part:?} in {line}"
            );
        }
        let (_, numbers) = said(&ended, "nobody");
        let line = *of_queue_pair(numbers[0]).first().unwrap_or_else(|| panic!("{lines:#?}"));
        for part in
            ["did not connect in time", " peer=127.0.0.1:", &format!("peer_qp={}", numbers[1])]
        {
            assert!(line.contains(part), "{persona}: no {part:?} in {line}");
        }
    }
}
