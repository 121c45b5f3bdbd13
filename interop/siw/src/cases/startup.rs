//! Tests connection set-up: private data, rejection, a closed port, MPA revisions, RTR messages,
//! depths, and requests that siw refuses.

use super::conversation::converse_with;
use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::shell::Output;
use crate::test_vm::SPARE;
use crate::{Error, Result};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(25);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for bytes in [0, 1, 251] {
        let case =
            Case::new(format!("private data of {bytes} bytes, both ways"), move |b, s, d| {
                private(b, s, d, bytes)
            });
        cases.push(case);
    }
    for bytes in [252, 253, 400, 508] {
        let name = format!("private data of {bytes} bytes: over siw's limit");
        cases.push(
            Case::new(name, move |b, s, _| too_long(b, s, bytes)).directions(Direction::OURS),
        );
    }
    cases.push(
        Case::new("private data of 509 bytes: over MPA's limit", over_mpa)
            .directions(Direction::OURS),
    );
    cases.push(
        Case::new("private data of 252 bytes: over siw's limit", siws_limit)
            .directions(Direction::THEIRS),
    );
    cases.push(Case::new("rejected with private data", rejected));
    cases.push(Case::new("port closed", closed_port));
    cases.push(Case::new("no answer", silence));
    cases.extend(rtr());
    cases.extend(revisions());
    cases.extend(depths());
    cases.push(Case::new("large FPDUs from siw: with the profile siw-gso", |b, s, d| {
        large(b, s, d, true)
    }));
    cases.push(Case::new("large FPDUs from siw: not without it", |b, s, d| large(b, s, d, false)));
    cases.push(
        Case::new("siw asks for CRCs, uiw does not", crc_required).directions(Direction::THEIRS),
    );
    cases.push(Case::new("Markers asked for: refused", markers));
    for what in ["sendimm", "writeimm", "fetchadd", "cmpswap"] {
        let case = Case::new(format!("{what}: refused before it leaves"), move |b, s, d| {
            refused(b, s, d, what)
        });
        cases.push(case);
    }
    // All cases so far belong to the short set, except those that give up a guest or wait for
    // timeouts.
    let slow = ["over siw's limit", "no answer"];
    let mut cases: Vec<Case> =
        cases
            .into_iter()
            .map(|case| {
                if slow.iter().any(|words| case.name.contains(words)) { case } else { case.short() }
            })
            .collect();
    cases.push(
        Case::new("1000 connections with the RTR message", |b, s, _| race(b, s, &[]))
            .directions(Direction::OURS),
    );
    cases.push(
        Case::new("1000 connections without", |b, s, _| race(b, s, &["--peer-to-peer", "off"]))
            .directions(Direction::OURS),
    );
    cases
}

/// Returns the line in which the connecting end describes the connection.
fn established(output: &Output) -> Option<&str> {
    output.out.lines().find(|line| line.starts_with("established"))
}

/// Passes if the connection was established, was described with all of `expected`, and carried out
/// the orders.
fn stood(output: &Output, expected: &[&str]) -> Verdict {
    let Some(line) = established(output) else {
        return Verdict::Fail(output.last_line().to_owned());
    };
    match expected.iter().find(|expected| !line.contains(**expected)) {
        Some(missing) => Verdict::Fail(format!("no \"{missing}\" in \"{line}\"")),
        None if output.is_ok() => Verdict::pass(),
        None => Verdict::Fail(output.last_line().to_owned()),
    }
}

/// Passes if the program failed in time with one of the texts in `expected`.
fn failed(output: &Output, expected: &[&str]) -> Verdict {
    let line = output.last_line().to_owned();
    let text = format!("{}\n{}", output.out, output.err);
    let right = !output.is_ok()
        && output.status != 124
        && expected.iter().any(|words| text.contains(words));
    Verdict::of(right, line)
}

fn private(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    bytes: u32,
) -> Result<Verdict> {
    let (ours, theirs) = (bytes.to_string(), format!("pd={bytes}"));
    let with: (&[&str], &str) = match direction {
        Direction::Ours => (&["--private-data", &ours], ""),
        Direction::Theirs => (&[], &theirs),
    };
    let output = one_send(bench, setting, direction, with)?;
    Ok(stood(&output, &[&format!("{bytes} bytes of private data")]))
}

/// siw stores the length of the private data in eight bits. Its interpretation of a longer frame
/// differs from run to run; sometimes its program hangs in the driver and does not answer.
fn too_long(bench: &mut Bench, setting: &Setting, bytes: u32) -> Result<Verdict> {
    let bytes = bytes.to_string();
    let with: (&[&str], &str) = (&["--private-data", &bytes], "");
    let output = one_send(bench, setting, Direction::Ours, with)?;
    let causes = [
        "closed before its MPA Reply",
        "rejected",
        "reset by peer",
        "PD_Length is",
        "did not answer the MPA Request within",
    ];
    Ok(failed(&output, &causes))
}

fn over_mpa(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let with: (&[&str], &str) = (&["--private-data", "509"], "");
    let output = one_send(bench, setting, direction, with)?;
    Ok(failed(&output, &["508"]))
}

/// siw stores the length of its own private data in eight bits as well: for 252 bytes it sends a
/// length of 0, and its own program waits forever. The guest is therefore powered off afterwards.
fn siws_limit(bench: &mut Bench, setting: &Setting, _: Direction) -> Result<Verdict> {
    let port = bench.listener(&super::wire(setting), setting.family)?;
    let host = bench.host(setting.family)?;
    let script = format!("siwpeer run {host} {port} pd=252 send:64");
    let output = bench.guest().run(&script, Duration::from_secs(8))?;
    let stands = established(&output).is_some();
    bench.power_off();
    Ok(Verdict::of(!stands, "siw sends PD_Length 0 with S set, is refused, and its program hangs"))
}

/// siw may see our FIN before the Reply that precedes it, and then delivers no private data
/// (QUIRKS.md). If siw connects, the case is therefore repeated up to ten times.
fn rejected(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let with: (&[&str], &str) = match direction {
        Direction::Ours => (&["--private-text", "reject-this-one"], ""),
        Direction::Theirs => (&[], "pd=:reject-this-one"),
    };
    for _ in 0..10 {
        let output = one_send(bench, setting, direction, with)?;
        let whole = failed(&output, &["rejected as asked: reject-this-one"]);
        let bare = failed(&output, &["REJECTED"]);
        if direction == Direction::Ours
            || matches!((&whole, &bare), (Verdict::Pass(_), _) | (_, Verdict::Fail(_)))
        {
            return Ok(whole);
        }
        bench.retry();
    }
    Ok(Verdict::Fail("siw never saw the private data of a rejection".to_owned()))
}

fn closed_port(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let output = match direction {
        Direction::Ours => {
            let to = bench.guest_at(setting.family, SPARE)?;
            bench.run_uiw(&["siwtest", &to, "send:64"], TIMEOUT)?
        }
        Direction::Theirs => {
            let host = bench.host(setting.family)?;
            bench.guest().run(&format!("siwpeer run {host} 9 send:64"), TIMEOUT)?
        }
    };
    // With user-mode networking, a refusal appears as a close or a reset.
    Ok(failed(
        &output,
        &[
            "connection refused",
            "closed before its MPA Reply",
            "REJECTED",
            "UNREACHABLE",
            "Connection refused",
            "reset by peer",
        ],
    ))
}

fn silence(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let begun = Instant::now();
    let output = match direction {
        Direction::Ours => {
            // TCP accepts the connection, but nothing answers the MPA Request.
            let mute = bench.serve_guest(
                &format!("sleep 60 | nc -l -p {SPARE} > /dev/null"),
                SPARE,
                TIMEOUT,
            )?;
            let to = bench.guest_at(setting.family, SPARE)?;
            let output = bench.run_uiw(&["siwtest", &to, "send:64", "--timeout", "2"], TIMEOUT)?;
            drop(mute);
            output
        }
        Direction::Theirs => {
            if !bench.net().is_whole() {
                return Err(Error::Missing(
                    "an address that answers nothing (user-mode networking)".to_owned(),
                ));
            }
            bench.guest().run("siwpeer run 10.66.0.99 7471 send:64", TIMEOUT)?
        }
    };
    let took = begun.elapsed().as_secs_f64();
    let no_answer = "did not answer the MPA Request within 2s";
    match failed(&output, &[no_answer, "UNREACHABLE", "ADDR_ERROR", "resolving", "CONNECT_ERROR"]) {
        Verdict::Pass(line) => Ok(Verdict::of(took < 30.0, format!("{line} (after {took:.0} s)"))),
        other => Ok(other),
    }
}

/// Makes a connection with these arguments for uiw and keys for siwpeer, and a Send.
fn one_send(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    with: (&[&str], &str),
) -> Result<Output> {
    converse_with(bench, setting, direction, with, &["send:64"], TIMEOUT)
}

fn three_operations(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    with: (&[&str], &str),
) -> Result<Output> {
    converse_with(bench, setting, direction, with, &["send:64", "write:64", "read:64"], TIMEOUT)
}

fn rtr() -> Vec<Case> {
    let ours = |name: &'static str, args: &'static [&'static str], expected: &'static str| {
        Case::new(name, move |bench, setting, direction| {
            let output = three_operations(bench, setting, direction, (args, ""))?;
            Ok(stood(&output, &[expected]))
        })
        .directions(Direction::OURS)
    };
    let theirs = |name: &'static str, modes: &'static str, args: &'static [&'static str]| {
        Case::new(name, move |bench, setting, direction| {
            bench.tunable(&[("peer_to_peer", "1"), ("rtr_modes", modes)])?;
            let output = three_operations(bench, setting, direction, (args, ""))?;
            Ok(stood(&output, &[]))
        })
        .directions(Direction::THEIRS)
    };
    vec![
        ours("RTR: every kind offered", &[], "RTR Write"),
        ours("RTR: Write", &["--rtr", "write"], "RTR Write"),
        ours("RTR: Read", &["--rtr", "read"], "RTR Read"),
        ours("RTR: Write and Read", &["--rtr", "write,read"], "RTR Write"),
        ours("without the peer-to-peer model", &["--peer-to-peer", "off"], "established"),
        Case::new("RTR: only Send, which siw lacks", |bench, setting, direction| {
            let output = one_send(bench, setting, direction, (&["--rtr", "send"], ""))?;
            // A Terminate directly after its Reply can leave siw stuck (QUIRKS.md).
            bench.renew();
            Ok(failed(&output, &["RTR"]))
        })
        .directions(Direction::OURS),
        theirs("siw peer-to-peer, RTR: Write", "32768", &[]),
        theirs("siw peer-to-peer, RTR: Read", "16384", &[]),
        theirs("siw peer-to-peer, RTR: both", "49152", &[]),
        theirs("siw peer-to-peer, RTR: both, uiw takes a Read", "49152", &["--rtr", "read"]),
        theirs("siw peer-to-peer, RTR: both, uiw takes a Write", "49152", &["--rtr", "write"]),
        Case::new("siw peer-to-peer, no RTR in common", |bench, setting, direction| {
            bench.tunable(&[("peer_to_peer", "1"), ("rtr_modes", "16384")])?;
            let output = one_send(bench, setting, direction, (&["--rtr", "send"], ""))?;
            Ok(failed(&output, &["FAIL"]))
        })
        .directions(Direction::THEIRS),
    ]
}

/// Carries out the orders over a connection for which the connecting end asks for MPA revision 1.
fn at_revision_1(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    orders: &[&str],
) -> Result<Output> {
    let args: &[&str] = match direction {
        Direction::Ours => &["--revision", "1"],
        Direction::Theirs => {
            bench.tunable(&[("mpa_version", "1")])?;
            &[]
        }
    };
    converse_with(bench, setting, direction, (args, ""), orders, TIMEOUT)
}

fn revisions() -> Vec<Case> {
    vec![
        Case::new("MPA revision 1", |bench, setting, direction| {
            let orders = ["send:64", "send:3000", "write:64", "write:3000"];
            Ok(stood(&at_revision_1(bench, setting, direction, &orders)?, &[]))
        }),
        Case::new("MPA revision 1, Reads", |bench, setting, direction| {
            let output = at_revision_1(bench, setting, direction, &["read:64"])?;
            let verdict = stood(&output, &[]);
            Ok(match verdict {
                // In revision 1 the frames do not contain the number of Reads that siw accepts, and
                // siw accepts no Reads unless its application has requested some. Their failure is
                // therefore accepted.
                Verdict::Fail(why) => {
                    let clear = why.contains("terminated")
                        || why.contains("ibv_post_send")
                        || why.contains("receive");
                    Verdict::of(
                        clear && output.status != 124,
                        format!("no Reads at revision 1: {why}"),
                    )
                }
                other => other,
            })
        }),
        Case::new(
            "uiw speaks only revision 1: siw does not fall back",
            |bench, setting, direction| {
                let output = one_send(bench, setting, direction, (&["--revision", "1"], ""))?;
                Ok(failed(&output, &["FAIL connect"]))
            },
        )
        .directions(Direction::THEIRS),
    ]
}

fn depths() -> Vec<Case> {
    let mut cases = Vec::new();
    for depth in ["0", "1", "128", "16382"] {
        let orders: &'static [&'static str] = if depth == "0" {
            &["send:64", "write:64"]
        } else {
            &["send:64", "write:64", "read:4096x200"]
        };
        cases.push(Case::new(
            format!("IRD and ORD {depth} at uiw"),
            move |bench, setting, direction| {
                // siw's application cannot specify more than 255, and siw itself accepts at most
                // 128.
                let args: &[&str] = &["--ird", depth, "--ord", depth];
                let keys = if depth == "0" { "ird=0 ord=0" } else { "" };
                let keys = if direction == Direction::Theirs { keys } else { "" };
                let output =
                    converse_with(bench, setting, direction, (args, keys), orders, TIMEOUT)?;
                let expected = format!("ORD {},", if depth == "16382" { "128" } else { depth });
                Ok(stood(
                    &output,
                    &[if direction == Direction::Ours { &expected[..] } else { "established" }],
                ))
            },
        ));
    }
    for depth in ["1", "16", "128", "255"] {
        cases.push(Case::new(
            format!("IRD and ORD {depth} at siw"),
            move |bench, setting, direction| {
                let keys = format!("ird={depth} ord={depth}");
                let orders: &[&str] = &["send:64", "write:64", "read:4096x200"];
                let output =
                    converse_with(bench, setting, direction, (&[], &keys), orders, TIMEOUT)?;
                // siw adopts the values that uiw requests, whatever its application has specified,
                // because it uses relaxed negotiation.
                Ok(stood(&output, &[]))
            },
        ));
    }
    cases.push(
        Case::new("a Read with ORD 0: refused before it leaves", |bench, setting, direction| {
            let output = converse_with(
                bench,
                setting,
                direction,
                (&["--ord", "0"], ""),
                &["me.read:64"],
                TIMEOUT,
            )?;
            Ok(failed(&output, &["ORD", "ord", "queue pair operation"]))
        })
        .directions(Direction::OURS),
    );
    cases
}

/// A driver that may send large FPDUs sends them only to a peer that sets or returns its private
/// flag.
fn large(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    profile: bool,
) -> Result<Verdict> {
    bench.tunable(&[("try_gso", "1")])?;
    let file = std::env::temp_dir().join(format!("uiw-siw-{}-large.pcapng", std::process::id()));
    bench.capture(Some(file.clone()));
    let setting = Setting { gso: profile, ..*setting };
    // Both orders transfer data towards uiw: siw writes and answers a Read.
    let orders: &[&str] = match direction {
        Direction::Ours => &["me.read:65536x4", "you.write:65536x4"],
        Direction::Theirs => &["you.read:65536x4", "me.write:65536x4"],
    };
    let output = super::conversation::converse(bench, &setting, direction, orders, TIMEOUT);
    bench.capture(None);
    let decoded = bench.decode("--json", &file);
    // The file is removed whatever the result is.
    let _ = std::fs::remove_file(&file);
    if let Verdict::Fail(why) = super::conversation::judge(orders, &output?) {
        return Ok(Verdict::Fail(why));
    }
    let decoded = decoded?;
    let records =
        decoded.out.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    // Writes and Read Responses are the FPDUs that carry the data.
    let data = records.filter(|record| {
        record["type"] == "fpdu" && matches!(record["opcode"].as_u64(), Some(0 | 2))
    });
    let largest = data.filter_map(|record| record["ulpdu_length"].as_u64()).max().unwrap_or(0);
    let right = if profile { largest > 1460 } else { (1000..=1460).contains(&largest) };
    Ok(Verdict::of(right, format!("the largest FPDU has a ULPDU of {largest} bytes")))
}

fn crc_required(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    bench.tunable(&[("mpa_crc_required", "1")])?;
    let setting = Setting { crc: false, ..*setting };
    let output = converse_with(
        bench,
        &setting,
        direction,
        (&["--json"], ""),
        &["send:64", "write:5000", "read:5000"],
        TIMEOUT,
    )?;
    Ok(stood(&output, &[]))
}

fn markers(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    let output = one_send(bench, setting, direction, (&["--markers", "on"], ""))?;
    let expected: &[&str] =
        if direction == Direction::Ours { &["--markers off"] } else { &["FAIL connect"] };
    Ok(failed(&output, expected))
}

/// Operations that siw lacks end with an error of our end, so siw is not mistaken for a peer of our
/// own kind.
fn refused(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    what: &str,
) -> Result<Verdict> {
    let args: &[&str] = &["--refused", what];
    let output = one_send(bench, setting, direction, (args, ""))?;
    let line = match direction {
        Direction::Ours => {
            output.out.lines().find(|line| line.contains("refused")).map(str::to_owned)
        }
        Direction::Theirs => bench.listener_line("refused", Duration::from_secs(5)).ok(),
    };
    Ok(Verdict::of(line.is_some(), line.unwrap_or_else(|| output.last_line().to_owned())))
}

/// Number of connections, which are made one after the other.
const CONNECTIONS: usize = 1000;
/// Time limit for all connections. Each ends by itself if nothing has moved for half a minute.
const CONNECTIONS_BOUND: Duration = Duration::from_secs(1800);

/// siw misses the wake-up for an FPDU that arrives too soon after its Reply. Without another
/// segment, such a connection waits forever, so our end wakes it by repeating the FPDU. All
/// connections must succeed. The repetitions take time, so the distribution of the times shows
/// them: at most one connection in a hundred may take longer than [`SLOW`].
fn race(bench: &mut Bench, setting: &Setting, more: &[&str]) -> Result<Verdict> {
    let to = bench.partner(setting.family, "")?;
    let count = CONNECTIONS.to_string();
    let args =
        [&["siwtest", &to, "me.send:64", "--connections", &count, "--json"][..], more].concat();
    let output = bench.run_uiw(&args, CONNECTIONS_BOUND)?;
    let lines: Vec<serde_json::Value> =
        output.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |kind: &str| {
        let ms =
            lines.iter().filter(|line| line["type"] == kind).filter_map(|line| line["ms"].as_f64());
        ms.collect::<Vec<f64>>()
    };
    // The first time ends when the connection is established. The second one starts then, and ends
    // when a Send has been sent and acknowledged.
    let (standing, first) = (of("established"), of("order"));
    let times: Vec<f64> =
        standing.iter().zip(&first).map(|(standing, first)| standing + first).collect();
    if times.is_empty() {
        return Ok(Verdict::Fail(output.last_line().to_owned()));
    }
    let TimeSpread { median, p99, longest } = TimeSpread::of(times.clone());
    let seen = format!(
        "{} of {CONNECTIONS}; connecting and a first Send with its answer: median {median:.1} ms, 99th percentile {p99:.1} ms, \
         longest {longest:.0} ms",
        times.len()
    );
    let all = output.is_ok() && times.len() == CONNECTIONS;
    let seen = if output.is_ok() { seen } else { format!("{seen}; {}", output.last_line()) };
    Ok(Verdict::of(all && p99 <= SLOW.max(5.0 * median), seen))
}

/// Time in milliseconds that a connection may take: enough if our end wakes it by the fourth
/// repetition of its first FPDU at the latest. On a slow machine all connections take longer, so
/// five times the median is accepted as well.
const SLOW: f64 = 200.0;

/// Distribution of the times of connections, in milliseconds.
struct TimeSpread {
    median: f64,
    p99: f64,
    longest: f64,
}

impl TimeSpread {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at =
            |share: usize| times.get((times.len() * share / 100).min(times.len() - 1)).copied();
        let [median, p99, longest] = [50, 99, 100].map(|share| at(share).unwrap_or(f64::NAN));
        Self { median, p99, longest }
    }
}

#[cfg(test)]
mod tests {
    use super::TimeSpread;

    #[test]
    fn one_percent_may_be_slow() {
        let times = |slow: usize| (0..1000).map(|n| if n < slow { 4000.0 } else { 70.0 }).collect();
        let TimeSpread { median, p99, longest } = TimeSpread::of(times(9));
        assert_eq!((median, p99, longest), (70.0, 70.0, 4000.0));
        assert_eq!(TimeSpread::of(times(11)).p99, 4000.0);
        assert_eq!(TimeSpread::of(vec![1.0]).longest, 1.0);
    }
}
