//! `cargo xtask bench stacks`: iWARP over smoltcp beside bare smoltcp and the kernel's TCP, on one veth, in alternating slices.

use super::speed::{Bar, QUIET, TRIES};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uiw_interop::stock::{Network, Running, free_port};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Needs root, for network namespaces of its own. Prints one line a row: the median of the ratios slice by slice with their range, the bar,
the noise (theirs over theirs of the same rounds) and both figures. The three take turns at coming first. On emulated paths ours is
beside the line's rate, and the noise is that of the kernel's TCP over the same path; its share of the line shows what the
emulator can carry here. A row is repeated up to five times until its noise is within 0.95 to 1.05. smoltcp's congestion control is
cubic, ours and the bare one. Exit code 1 when a row is below its bar or never was quiet.")]
pub(crate) struct Options {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
    /// Slices of each side
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    slices: u32,
    /// Seconds of a slice; on emulated paths six times as long
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Lines of a Markdown table
    #[arg(long)]
    markdown: bool,
}

/// The stack that is measured.
#[derive(Clone, Copy)]
enum Subject {
    /// `uiw perf` over a stack: `xdp`, `packet` or `tcp`.
    Uiw(&'static str, &'static str),
    /// smoltcp alone over AF_XDP.
    Smoltcp,
    /// The kernel's TCP with this congestion control; writes of the better of two sizes.
    Tcp(&'static str),
    /// Round trips of the kernel's TCP, spinning.
    TcpPing(&'static str),
}

impl Subject {
    fn name(self) -> String {
        match self {
            Self::Uiw(stack, _) => format!("uiw over {stack}"),
            Self::Smoltcp => "bare smoltcp".to_owned(),
            Self::Tcp(congestion) | Self::TcpPing(congestion) => format!("bare kernel TCP {congestion}"),
        }
    }
}

/// What ours is divided by.
#[derive(Clone, Copy)]
enum Beside {
    /// What they do.
    Them,
    /// A rate in bytes a second that is known; what they do is reported.
    Line(f64),
}

struct Row {
    name: &'static str,
    mtu: u32,
    /// Over IPv6.
    v6: bool,
    /// Options of an emulator in between.
    path: &'static [&'static str],
    ours: Subject,
    theirs: Subject,
    beside: Beside,
    bar: Bar,
}

/// A round trip of 10 ms, and a queue of 1.5 MB.
const PATH: &[&str] = &["--delay", "5ms", "--rate", "1Gbit", "--queue", "1500000", "--seed", "1"];
const WRITE: &str = "--op write --size 1M";
const LINE: Beside = Beside::Line(125e6);

const fn row(name: &'static str, mtu: u32, ours: Subject, theirs: Subject, bar: Bar) -> Row {
    Row { name, mtu, v6: false, path: &[], ours, theirs, beside: Beside::Them, bar }
}

const fn path(name: &'static str, ours: Subject, theirs: Subject) -> Row {
    Row { name, mtu: 1500, v6: false, path: PATH, ours, theirs, beside: LINE, bar: Bar::AtLeast(0.90) }
}

const ROWS: &[Row] = &[
    row(
        "xdp, bare smoltcp, MTU 1500",
        1500,
        Subject::Uiw("xdp", WRITE),
        Subject::Smoltcp,
        Bar::AtLeast(0.90),
    ),
    row(
        "xdp, bare smoltcp, MTU 3498",
        3498,
        Subject::Uiw("xdp", WRITE),
        Subject::Smoltcp,
        Bar::AtLeast(0.90),
    ),
    row(
        "packet, kernel TCP cubic",
        1500,
        Subject::Uiw("packet", WRITE),
        Subject::Tcp("cubic"),
        Bar::AtLeast(1.0),
    ),
    row(
        "packet, kernel TCP bbr",
        1500,
        Subject::Uiw("packet", WRITE),
        Subject::Tcp("bbr"),
        Bar::AtLeast(1.0),
    ),
    Row {
        v6: true,
        ..row(
            "packet IPv6, kernel TCP cubic",
            1500,
            Subject::Uiw("packet", WRITE),
            Subject::Tcp("cubic"),
            Bar::AtLeast(1.0),
        )
    },
    row(
        "xdp ping-pong, kernel TCP cubic",
        1500,
        Subject::Uiw("xdp", "--op write --size 64 --latency --spin"),
        Subject::TcpPing("cubic"),
        Bar::AtMost(0.60),
    ),
    path(
        "1 Gbit/s 10 ms, kernel TCP cubic",
        Subject::Uiw("tcp", "--op write --size 1M --depth 8 --congestion cubic"),
        Subject::Tcp("cubic"),
    ),
    path(
        "1 Gbit/s 10 ms, kernel TCP bbr",
        Subject::Uiw("tcp", "--op write --size 1M --depth 8 --congestion bbr"),
        Subject::Tcp("bbr"),
    ),
    path(
        "1 Gbit/s 10 ms, packet",
        Subject::Uiw("packet", "--op write --size 1M --depth 8"),
        Subject::Tcp("cubic"),
    ),
    path("1 Gbit/s 10 ms, xdp", Subject::Uiw("xdp", "--op write --size 1M --depth 8"), Subject::Tcp("cubic")),
];

/// Where the programs are.
struct Programs {
    uiw: PathBuf,
    bare: PathBuf,
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rows = match super::chosen(ROWS, |row| row.name.to_owned(), options.only.as_deref(), options.list) {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    let programs = match build() {
        Ok(programs) => programs,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    if options.markdown {
        println!("| row | bar | ratio | range | noise | |\n|---|---|---|---|---|---|");
    }
    let mut all = true;
    for row in rows {
        match measure(row, options, &programs) {
            Ok(measured) => all &= print(row, &measured, options.markdown),
            Err(why) => {
                eprintln!("xtask: {}: {why}", row.name);
                all = false;
            }
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn build() -> Result<Programs, String> {
    let cargo = |what: &[&str]| {
        let status = Command::new(env!("CARGO")).args(["build", "--release"]).args(what).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("building {what:?}: {status}")),
            Err(error) => Err(format!("starting cargo: {error}")),
        }
    };
    cargo(&["-p", "uiw-cli"])?;
    cargo(&["-p", "uiw-smol", "--example", "bare"])?;
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = me.parent().and_then(Path::parent).ok_or("no target folder")?.join("release");
    Ok(Programs { uiw: folder.join("uiw"), bare: folder.join("examples/bare") })
}

/// Two namespaces, perhaps with an emulator in between.
struct Place {
    network: Network,
    _wan: Option<Running>,
}

impl Place {
    fn new(row: &Row, programs: &Programs) -> Result<Self, String> {
        let no = "no network namespaces: run it as root";
        if row.path.is_empty() {
            let place = Self { network: Network::veth().ok_or(no)?, _wan: None };
            for (server, address) in [(true, "fd77::1/64"), (false, "fd77::2/64")] {
                place.at(server, "ip", &["link", "set", "veth0", "mtu", &row.mtu.to_string()])?;
                place.at(server, "ip", &["address", "add", address, "dev", "veth0", "nodad"])?;
            }
            return Ok(place);
        }
        let network = Network::path().ok_or(no)?;
        let mut command = Command::new(&programs.uiw);
        command.args(["wan", "server", "client"]).args(row.path);
        let mut wan = Running::start(network.middle(command));
        wan.wait_saying("carrying");
        Ok(Self { network, _wan: Some(wan) })
    }

    fn at(&self, server: bool, program: &str, args: &[&str]) -> Result<(), String> {
        let mut command = Command::new(program);
        command.args(args);
        let mut command = if server { self.network.server(command) } else { self.network.client(command) };
        let output = command.output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("{program} {args:?}: {}", said.trim())) }
    }

    /// A server and a client; the client's last line.
    fn pair(&self, server: Command, ready: &str, client: Command) -> Result<Value, String> {
        let mut there = Running::start(self.network.server(server));
        there.wait_saying(ready);
        let ended = Running::start(self.network.client(client)).end();
        if ended.code != 0 {
            return Err(format!("{}{}", ended.said.trim(), there.said().trim()));
        }
        let line = ended.said.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
        serde_json::from_str(line).map_err(|error| format!("{}: {error}", ended.said.trim()))
    }
}

/// One slice: bytes a second, or microseconds of a round trip.
fn slice(
    subject: Subject,
    place: &Place,
    row: &Row,
    seconds: f64,
    programs: &Programs,
) -> Result<f64, String> {
    let (port, seconds) = (free_port(), seconds.to_string());
    // On the path: more than the product of bandwidth and delay (1.25 MB), less than that and the queue together. A veth holds 256
    // frames: a window of AF_XDP beyond that is lost when the receiver is late, and smoltcp alone recovers after a second.
    let buffer = match (row.path.is_empty(), row.mtu) {
        (true, 1500) if matches!(row.theirs, Subject::Smoltcp) => "256K",
        (true, _) if matches!(row.theirs, Subject::Smoltcp) => "512K",
        // The kernel's TCP beside it takes windows of up to 6 MB by itself.
        (true, _) if matches!(row.ours, Subject::Uiw("packet", _)) => "4M",
        (true, _) => "1M",
        (false, _) => "2M",
    };
    let own = |kind: &str, host: u8| {
        let address = if row.v6 { format!("fd77::{host}/64") } else { format!("10.77.0.{host}/24") };
        format!("{kind}:veth0,ip={address},buffer={buffer}")
    };
    let server_at = |host: u8| {
        if row.v6 { format!("[fd77::{host}]:{port}") } else { format!("10.77.0.{host}:{port}") }
    };
    let bare = |args: &[&str]| {
        let mut command = Command::new(&programs.bare);
        command.args(args);
        command
    };
    let tcp = |congestion: &str, verb: &str, size: &str| {
        let at = server_at(1);
        let server = bare(&["tcp", congestion, "listen", &at]);
        place.pair(server, "listening", bare(&["tcp", congestion, verb, &at, &seconds, size]))
    };
    let rate = |value: Value| value["bytes_per_second"].as_f64().ok_or_else(|| format!("no rate in {value}"));
    let trip =
        |value: Value| value["round_trip_us"]["p50"].as_f64().ok_or_else(|| format!("no trip in {value}"));
    match subject {
        Subject::Tcp(congestion) => {
            let sizes = ["64000", "262144"].map(|size| tcp(congestion, "connect", size).and_then(rate));
            let [a, b] = sizes;
            Ok(a?.max(b?))
        }
        Subject::TcpPing(congestion) => tcp(congestion, "ping", "64").and_then(trip),
        Subject::Smoltcp => {
            let server = bare(&["smoltcp", &own("xdp", 11), "listen", &port.to_string()]);
            let to = server_at(11);
            let client = bare(&["smoltcp", &own("xdp", 12), "connect", &to, &seconds]);
            place.pair(server, "listening", client).and_then(rate)
        }
        Subject::Uiw(kind, args) => {
            let spec = |host| if kind == "tcp" { "tcp".to_owned() } else { own(kind, host) };
            let at = server_at(if kind == "tcp" { 1 } else { 11 });
            let mut server = Command::new(&programs.uiw);
            server.args(["--llp", &spec(11), "serve", "--listen", &at]);
            let mut client = Command::new(&programs.uiw);
            client.args(["--llp", &spec(12), "perf", &at, "--json", "--seconds", &seconds]);
            client.args(args.split_whitespace());
            let figure = place.pair(server, "listening on", client)?;
            if args.contains("--latency") { trip(figure) } else { rate(figure) }
        }
    }
}

/// One measured row.
struct Measured {
    /// Least, median and most of the ratios.
    ratio: (f64, f64, f64),
    noise: f64,
    /// Medians.
    ours: f64,
    theirs: f64,
}

/// Measures until the machine is quiet enough, or no more; then what came nearest to quiet counts.
fn measure(row: &Row, options: &Options, programs: &Programs) -> Result<Measured, String> {
    let place = Place::new(row, programs)?;
    let off = |measured: &Measured| (measured.noise - 1.0).abs();
    let mut best = once(row, &place, options, programs)?;
    for _ in 1..TRIES {
        if QUIET.contains(&best.noise) {
            break;
        }
        let measured = once(row, &place, options, programs)?;
        if off(&measured) < off(&best) {
            best = measured;
        }
    }
    Ok(best)
}

fn once(row: &Row, place: &Place, options: &Options, programs: &Programs) -> Result<Measured, String> {
    let seconds = options.seconds * if row.path.is_empty() { 1.0 } else { 6.0 };
    // Theirs, ours, theirs again.
    let subject = [row.theirs, row.ours, row.theirs];
    let mut slices = [const { Vec::new() }; 3];
    for round in 0..options.slices as usize {
        // The order changes from round to round.
        for step in 0..subject.len() {
            let turn = (round + step) % subject.len();
            slices[turn].push(slice(subject[turn], place, row, seconds, programs)?);
        }
    }
    let [first, ours, second] = slices;
    let over = |a: &[f64], b: &[f64]| spread(a.iter().zip(b).map(|(a, b)| a / b).collect());
    let ratio = match row.beside {
        Beside::Them => over(&ours, &first),
        Beside::Line(rate) => spread(ours.iter().map(|ours| ours / rate).collect()),
    };
    let (_, noise, _) = over(&second, &first);
    Ok(Measured { ratio, noise, ours: spread(ours).1, theirs: spread(first).1 })
}

/// Prints a row; true when it reached its bar in a quiet run.
fn print(row: &Row, measured: &Measured, markdown: bool) -> bool {
    let Measured { ratio: (least, ratio, most), noise, ours, theirs } = *measured;
    let (reached, bar) = match row.bar {
        Bar::AtLeast(bar) => (ratio >= bar, format!(">= {bar}")),
        Bar::AtMost(bar) => (ratio <= bar, format!("<= {bar}")),
    };
    let figures = match (row.bar, row.beside) {
        (Bar::AtMost(_), _) => format!("{ours:.1} beside {theirs:.1} us"),
        (Bar::AtLeast(_), Beside::Them) => format!("{:.3} beside {:.3} GB/s", ours / 1e9, theirs / 1e9),
        (Bar::AtLeast(_), Beside::Line(rate)) => {
            format!("{:.1} MB/s; {} {:.3} of the line", ours / 1e6, row.theirs.name(), theirs / rate)
        }
    };
    let quiet = QUIET.contains(&noise);
    let verdict = match (reached, quiet) {
        (true, true) => "reached",
        (false, true) => "below",
        (_, false) => "too noisy",
    };
    let name = row.name;
    if markdown {
        println!(
            "| {name} | {bar} | {ratio:.3} | {least:.3} to {most:.3} | {noise:.3} | {verdict}; {figures} |"
        );
    } else {
        let range = format!("{least:.3} to {most:.3}");
        println!("{name:<34} {bar:>8}  {ratio:>6.3} ({range:<14}) noise {noise:.3}  {verdict:<9}  {figures}");
    }
    reached && quiet
}

/// Least, median and most.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}
