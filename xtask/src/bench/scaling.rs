//! Cost of a second thread, of busy streams next to small requests, of sleeping, of a responder that
//! computes, and of control calls on a busy device.
//!
//! The baseline is the engine of commit 02b5a5a, which is built from the history of the repository
//! on this machine, with the same compiler.

use super::programs::{
    self, ExampleProgram, Lab, Slice, TIMEOUT, busy_share, figure, json_object, output,
    require_programs, rotate, start,
};
use super::{RatioBar, RatioLine, RatioSpread, TableRow, Unit, median};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_siw::{Error, Result};

/// Program of a row, with its arguments. The programs of a row alternate.
#[derive(Clone)]
struct ScalingVariant {
    program: LoadProgram,
    /// Whether it runs on the engine of [`BASE`].
    is_base: bool,
    /// Arguments, in which `SECONDS` is replaced by the length of a slice.
    args: String,
    /// True if the device has only one shard.
    one_shard: bool,
    /// Length of a slice, as a multiple of the usual length.
    longer: f64,
    /// Number of processes that run at the same time, whose rates are added.
    processes: usize,
}

#[derive(Clone, Copy)]
enum LoadProgram {
    /// The example `threads` of `uiw-verbs`.
    Rust,
    /// One of `programs/`.
    C(&'static str),
    /// `load idle` under strace, which shows the number of bytes that its thread transfers.
    Idle,
}

/// Figure of a row: the ratio of the first variant's value to that of another variant, or the
/// largest value of all rounds if there is no other variant.
struct VariantCheck {
    what: &'static str,
    figure: &'static str,
    over: Option<usize>,
    bar: Option<RatioBar>,
}

/// Load patterns: 64-byte round trips, and 64-byte and 64 KiB Sends of which 32 are in progress.
const PATTERNS: [&str; 3] = ["ping-pong", "send-64", "send-64K"];

/// Row: its name, the programs that alternate, and the figures to check.
type Case = (String, Vec<ScalingVariant>, Vec<VariantCheck>);

pub(super) fn rows() -> Vec<TableRow> {
    let row = |(name, variants, checks): Case| {
        TableRow::new(name, None, move |lab| measure(lab, &variants, &checks))
    };
    cases().into_iter().map(row).collect()
}

fn cases() -> Vec<Case> {
    let mut rows = Vec::new();
    for pattern in PATTERNS {
        rows.extend([1, 2].map(|queues| rust_threads(pattern, queues)));
    }
    rows.push(one_thread("one thread, ping-pong", rust_variant("ping-pong SECONDS 1 1 1")));
    for pattern in PATTERNS {
        rows.extend(["", "pinned", "asleep"].map(|how| c_threads(pattern, how)));
    }
    rows.push(one_thread("C, one thread, ping-pong", c_variant("load", "ping-pong SECONDS 1")));
    rows.push(idle());
    rows.push(neighbours());
    rows.extend(
        [("otherwise idle machine", "", 0.85), ("one core busy", " busy", 0.6)].map(sleepers),
    );
    rows.push(reads());
    for call in ["modify", "resolve", "connect", "query"] {
        rows.extend([true, false].map(|same| control(call, same)));
    }
    rows
}

fn c_variant(program: &'static str, args: &str) -> ScalingVariant {
    ScalingVariant {
        program: LoadProgram::C(program),
        is_base: false,
        args: args.to_owned(),
        one_shard: false,
        longer: 1.0,
        processes: 1,
    }
}

fn rust_variant(args: &str) -> ScalingVariant {
    ScalingVariant { program: LoadProgram::Rust, ..c_variant("", args) }
}

fn on_baseline(variant: ScalingVariant) -> ScalingVariant {
    ScalingVariant { is_base: true, ..variant }
}

fn check(
    what: &'static str,
    figure: &'static str,
    over: usize,
    bar: impl Into<Option<RatioBar>>,
) -> VariantCheck {
    VariantCheck { what, figure, over: Some(over), bar: bar.into() }
}

/// Two threads on one device, each with `queues` completion queues.
fn rust_threads(pattern: &str, queues: u32) -> Case {
    let variants = vec![
        rust_variant(&format!("{pattern} SECONDS 2 1 {queues}")),
        rust_variant(&format!("{pattern} SECONDS 1 1 {queues}")),
        rust_variant(&format!("{pattern} SECONDS 2 2 {queues}")),
    ];
    let checks = vec![
        check("of two devices", "rate", 2, RatioBar::AtLeast(0.95)),
        check("times one thread", "rate", 1, RatioBar::AtLeast(1.9)),
    ];
    (
        format!("two threads, {pattern}{}", if queues == 1 { "" } else { ", a queue an end" }),
        variants,
        checks,
    )
}

fn c_threads(pattern: &str, how: &str) -> Case {
    let (name, waiting) = match how {
        "pinned" => ("two vectors", ""),
        "asleep" => ("a channel a thread", how),
        _ => ("vector 0", ""),
    };
    let variants = vec![
        c_variant("load", &format!("{pattern} SECONDS 2 {how}")),
        // A process with one thread needs no second shard.
        ScalingVariant {
            processes: 2,
            ..c_variant("load", &format!("{pattern} SECONDS 1 {waiting}"))
        },
    ];
    let checks = vec![check("of two processes", "rate", 1, RatioBar::AtLeast(0.95))];
    (format!("C, two threads, {pattern}, {name}"), variants, checks)
}

fn one_thread(name: &str, variant: ScalingVariant) -> Case {
    (
        name.to_owned(),
        vec![variant.clone(), on_baseline(variant)],
        vec![check("of 02b5a5a", "rate", 1, RatioBar::NoLess)],
    )
}

fn idle() -> Case {
    let variant = ScalingVariant { program: LoadProgram::Idle, ..c_variant("", "idle SECONDS") };
    let bytes = VariantCheck {
        what: "bytes of others",
        figure: "bytes",
        over: None,
        bar: Some(RatioBar::AtMost(0.0)),
    };
    ("poll of an idle queue pair's queue".to_owned(), vec![variant], vec![bytes])
}

fn neighbours() -> Case {
    let beside = |stack| ScalingVariant {
        longer: 2.0,
        one_shard: true,
        ..c_variant("requests", &format!("{stack} SECONDS beside"))
    };
    let checks = vec![
        check("p99 of TCP's", "p99_us", 1, RatioBar::AtMost(2.0)),
        check("p50 of TCP's", "p50_us", 1, None),
        check("requests of TCP's", "rate", 1, None),
        check("bulk of 02b5a5a's", "bytes_per_second", 2, RatioBar::NoLess),
        check("bulk of TCP's", "bytes_per_second", 1, None),
    ];
    let name = "request and answer beside 8 streams of 1 MiB Writes, one shard";
    (name.to_owned(), vec![beside("uiw"), beside("tcp"), on_baseline(beside("uiw"))], checks)
}

fn sleepers((name, busy, bar): (&str, &str, f64)) -> Case {
    let sleepers = |stack: &str| c_variant("requests", &format!("{stack} SECONDS asleep{busy}"));
    let checks = vec![
        check("of epoll's requests", "rate", 1, RatioBar::AtLeast(bar)),
        check("p99 of epoll's", "p99_us", 1, None),
    ];
    (format!("both ends asleep in poll(2), {name}"), vec![sleepers("uiw"), sleepers("tcp")], checks)
}

/// RDMA Reads of 64 bytes one at a time, from a process that computes and makes no call. Only the
/// background thread of its device can answer.
fn reads() -> Case {
    let reads = |how: &str| ScalingVariant {
        longer: 2.0,
        ..c_variant("requests", &format!("uiw SECONDS {how}"))
    };
    let variants =
        vec![reads("reads-computing"), on_baseline(reads("reads-computing")), reads("reads")];
    let checks = vec![
        check("p50 of the baseline's", "p50_us", 1, RatioBar::AtMost(1.1)),
        check("p99 of the baseline's", "p99_us", 1, RatioBar::AtMost(1.1)),
        check("p50 of a sleeping responder's", "p50_us", 2, None),
    ];
    ("read 64 from a process that computes".to_owned(), variants, checks)
}

/// Returns the row of a control call. `same` states that the flooders and the queue pair are on the
/// same shard.
fn control(call: &str, same: bool) -> Case {
    let pinned = if same { "" } else { " pinned" };
    let control = |load: &str| ScalingVariant {
        one_shard: same,
        // The slice must be long enough for a hundred calls. A connection takes up to 30 ms
        // together with its setup.
        longer: if call == "connect" { 6.0 } else { 2.0 },
        ..c_variant("load", &format!("{call} SECONDS {load}{pinned}"))
    };
    let name = match call {
        "modify" => "ibv_modify_qp",
        "resolve" => "rdma_resolve_addr",
        "connect" => "rdma_connect",
        _ => "ibv_query_qp",
    };
    let checks = vec![
        check("p99 of beside loops", "p99_us", 1, RatioBar::AtMost(3.0)),
        check("p50 of beside loops", "p50_us", 1, None),
    ];
    let place = if same { "on the flooders' shard" } else { "on another shard" };
    (format!("{name} {place}"), vec![control("flooders"), control("arithmetic")], checks)
}

fn measure(
    lab: &Lab,
    variants: &[ScalingVariant],
    checks: &[VariantCheck],
) -> Result<Vec<RatioLine>> {
    let seconds = lab.seconds(0.5);
    let slice = |variant: &ScalingVariant| {
        let command = variant.command(lab, seconds * variant.longer)?;
        let (processes, is_idle) =
            (variant.processes, matches!(variant.program, LoadProgram::Idle));
        let trace = lab.folder.join("strace.out");
        Ok::<_, Error>(move |_: u32| {
            let busy = busy_share()?;
            let beside = (1..processes).map(|_| start(&command)).collect::<Result<Vec<_>>>()?;
            let mut value = json_object(&output(&command)?)?;
            for other in beside {
                let rate = figure(&json_object(&other.finish(TIMEOUT).out)?, "/rate")?;
                value["rate"] = json!(figure(&value, "/rate")? + rate);
            }
            if is_idle {
                let trace = fs::read_to_string(&trace).unwrap_or_default();
                value["bytes"] = json!(bytes(&trace, figure(&value, "/thread")?)?);
            }
            value["busy"] = json!(busy);
            Ok(value)
        })
    };
    let slices: Vec<_> = variants.iter().map(slice).collect::<Result<_>>()?;
    let slices: Vec<Slice<'_, Value>> =
        slices.iter().map(|slice| slice as Slice<'_, Value>).collect();
    let rounds = rotate(lab.rounds, &slices)?;
    let of = |variant: usize, name: &str| -> Result<Vec<f64>> {
        rounds[variant].iter().map(|value| figure(value, &format!("/{name}"))).collect()
    };
    let busy =
        rounds.iter().flatten().map(|value| figure(value, "/busy")).collect::<Result<Vec<_>>>()?;
    let line = |check: &VariantCheck| {
        let ours = of(0, check.figure)?;
        let line = match check.over {
            Some(over) => {
                // Noise affects times and rates, but not counts.
                RatioLine::ratio(check.what, &ours, &of(over, check.figure)?, unit(check.figure))
                    .noise(1.0 + median(&busy))
            }
            // A count must be within its bar in every round.
            None => RatioLine::new(
                check.what,
                RatioSpread::new([ours.into_iter().fold(0.0, f64::max)]),
                "",
            ),
        };
        Ok(line.bar(check.bar))
    };
    checks.iter().map(line).collect()
}

fn unit(figure: &str) -> Unit {
    match figure {
        "rate" => (1e3, "k/s"),
        "bytes_per_second" => (1e9, "GB/s"),
        _ => (1.0, "us"),
    }
}

impl ScalingVariant {
    fn command(&self, lab: &Lab, seconds: f64) -> Result<Command> {
        let base = if self.is_base { Some(BaselineBuild::build(lab)?) } else { None };
        let libraries =
            base.as_ref().map_or_else(|| lab.libraries(), |base| Ok(base.libraries.clone()))?;
        let program = match (self.program, &base) {
            (LoadProgram::Rust, Some(base)) => base.threads.clone(),
            (LoadProgram::Rust, None) => lab.example(ExampleProgram::Threads)?,
            (LoadProgram::C(name), _) => lab.c_program(name)?,
            (LoadProgram::Idle, _) => lab.c_program("load")?,
        };
        let mut command = programs::command_with_libraries(&program, &libraries);
        if matches!(self.program, LoadProgram::Idle) {
            require_programs(&[("strace", "strace")])?;
            command = programs::command_with_libraries("strace".as_ref(), &libraries);
            command.args(["--follow-forks", "--string-limit=0", "-e", CALLS]);
            command
                .args(["-e", "verbose=none", "--output"])
                .arg(lab.folder.join("strace.out"))
                .arg(program);
        }
        command.args(self.args.replace("SECONDS", &seconds.to_string()).split_whitespace());
        if self.one_shard {
            command.env("UIW_SHARDS", "1");
        }
        Ok(command)
    }
}

/// System calls that transfer bytes of a stream, and [`MARK`].
const CALLS: &str = "trace=sendmsg,sendto,sendmmsg,recvmsg,recvfrom,recvmmsg,readv,writev,getppid";
/// System call by which the program marks the beginning and the end of the measured phase.
const MARK: &str = "getppid";

/// Returns the number of bytes that a thread transferred between its two marks, according to the
/// output of strace.
fn bytes(trace: &str, thread: f64) -> Result<u64> {
    let (mut marks, mut moved) = (0, 0);
    for line in trace.lines() {
        let Some((number, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if number.parse() != Ok(thread) {
            continue;
        }
        if call.contains(MARK) {
            // An interrupted call has a second line, which does not count as a mark.
            marks += u32::from(call.starts_with(MARK));
        } else if marks == 1 {
            // If another thread makes a call meanwhile, strace prints two lines. The second one has
            // the result.
            let result = call.rsplit_once("= ").and_then(|(_, result)| result.split(' ').next());
            moved += result.and_then(|result| result.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    if marks == 2 {
        Ok(moved)
    } else {
        Err(Error::Failed(format!("strace saw {marks} marks of thread {thread} instead of 2")))
    }
}

/// Commit whose engine is the baseline.
const BASE: &str = "02b5a5a";
/// Path of the Rust program, both in this tree and in that of [`BASE`].
const EXAMPLE: &str = "verbs/examples/threads.rs";
const QP: &str = "verbs/src/qp/handle.rs";
/// Names in the program, each with what it was called in [`BASE`].
const RENAMED: [(&str, &str); 3] =
    [("uiw_verbs::", "verbs::"), ("ConnConfig", "ConnOptions"), ("CqConfig", "CqOptions")];
/// Constructors of queue pairs that the program uses and that [`BASE`] does not have.
const CONSTRUCTORS: &str = "
impl QpInit {
    /// Queues of the usual depth.
    pub fn new(send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>) -> Self {
        let (send_cq, recv_cq) = (Arc::clone(send_cq), Arc::clone(recv_cq));
        Self { send_cq, recv_cq, srq: None, cap: QpCap::default(), signal_all: true, num: None }
    }

    /// Other capacities.
    #[must_use]
    pub fn cap(self, cap: QpCap) -> Self {
        Self { cap, ..self }
    }
}
";

/// The program and the libraries of [`BASE`].
struct BaselineBuild {
    threads: PathBuf,
    libraries: PathBuf,
}

impl BaselineBuild {
    /// Builds the parts that have not been built yet. The sources are extracted with `git archive`,
    /// which registers no worktree in the repository. It gives all files the time of the commit, so
    /// Cargo builds them only once.
    fn build(lab: &Lab) -> Result<Self> {
        let folder = lab.target.join(format!("baseline-{BASE}"));
        let (tree, target, libraries) =
            (folder.join("tree"), folder.join("target"), folder.join("lib"));
        let build = || {
            if !tree.is_dir() {
                crate::history::export(BASE, &tree)?;
            }
            let read = |path: &Path| {
                fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
            };
            let qp = read(&tree.join(QP))?;
            let mut example = read(&crate::workspace::root().join(EXAMPLE))?;
            for (now, then) in RENAMED {
                example = example.replace(now, then);
            }
            for (path, text) in [
                (QP, qp.trim_end_matches(CONSTRUCTORS).to_owned() + CONSTRUCTORS),
                (EXAMPLE, example),
            ] {
                // Writing an unchanged file would make Cargo build again.
                if read(&tree.join(path)).as_ref() != Ok(&text) {
                    fs::write(tree.join(path), text).map_err(|error| format!("{path}: {error}"))?;
                }
            }
            programs::cargo_build(&tree, &target, &["-p", "uiw-verbs", "--example", "threads"])?;
            programs::build_libraries(&tree, &target, &libraries)
        };
        build().map_err(Error::Failed)?;
        Ok(Self { threads: target.join("release/examples/threads"), libraries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
7 sendmsg(3, 0x7ffe, 0) = 1000
7 getppid( <unfinished ...>
8 sendto(9, \"\"..., 64, 0, NULL, 0) = 64
7 <... getppid resumed>) = 1
7 sendto(9, \"\"..., 64, 0, NULL, 0 <unfinished ...>
8 recvfrom(9, \"\"..., 64, 0, NULL, NULL) = 64
7 <... sendto resumed>) = 40
7 recvfrom(9, \"\"..., 64, 0, NULL, NULL) = 24
7 recvfrom(9, 0x1, 64, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
7     getppid() = 1
7 sendmsg(3, 0x7ffe, 0) = 1000
8 +++ exited with 0 +++
";

    #[test]
    fn checks_name_variants_of_their_row() {
        for (name, variants, checks) in cases() {
            assert!(checks.iter().any(|check| check.bar.is_some()), "{name}");
            assert!(checks.iter().all(|check| check.over.unwrap_or(0) < variants.len()), "{name}");
        }
    }

    #[test]
    fn bytes_counted_between_marks_of_thread() {
        assert_eq!(bytes(TRACE, 7.0).unwrap(), 64);
        assert!(bytes(TRACE, 8.0).is_err());
        assert!(bytes(&TRACE.replace("7     getppid() = 1\n", ""), 7.0).is_err());
    }
}
