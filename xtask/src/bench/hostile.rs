//! `cargo xtask bench hostile`: a server under attack. Its speed to a well-behaved peer, measured in pairs
//! before and during each attack; its memory and descriptors before, and when the attackers are gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use uiw_mpa::tx::FpduTx;
use uiw_mpa::wire::startup::{Frame, FrameKind};
use uiw_rdmap::{Opcode, untagged_header};

/// Pairs of measurements of an attack.
const PAIRS: usize = 3;
/// The least share of the speed before that is left during an attack.
const BAR: f64 = 0.5;
/// How far memory and descriptors may be from before, when all is over.
const BACK: f64 = 1.1;
/// The longest that it may take: the start-up time-out and some seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints one line an attack: the speed left (median and range of three pairs), memory and descriptors of the server before,
during and after. Exit code 1 when less than half of the speed is left, or memory or descriptors are not back within 10 %.
10,000 connections need as many descriptors: `ulimit -n 20000`.")]
pub(crate) struct Options {
    /// Only attacks whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
}

/// Peers that stay as long as the value.
type Attackers = Vec<TcpStream>;

/// What so many do to the server at an address.
type Attack = fn(SocketAddr, usize) -> Attackers;

/// Bytes of an FPDU that peers send, of [`FPDU`].
const FRONT: usize = 65_000;
/// Bytes of that FPDU.
const FPDU: usize = 65_500;
/// The attack that runs on a server with [`SHORT_MEMORY`]: 1,000 fronts are 65 MB, and the server accepts 1,024 connections.
const SILENT: &str = "1,000 that send the front of an FPDU and fall silent";
/// Receive memory of the server for [`SILENT`].
const SHORT_MEMORY: &str = "16M";

const ATTACKS: [(&str, usize, Attack); 7] = [
    ("10,000 half-open connections", 10_000, |to, count| connect(count, to, |_| {})),
    ("1,000 that send garbage", 1_000, |to, count| {
        connect(count, to, |tcp| drop(tcp.write_all(&garbage(4096))))
    }),
    ("1,000 that send garbage once connected", 1_000, |to, count| {
        connect(count, to, |tcp| establish(tcp, &garbage(4096)))
    }),
    ("1,000 that sent one byte", 1_000, |to, count| connect(count, to, |tcp| drop(tcp.write_all(b"M")))),
    ("100 that do not read what they asked for", 100, |to, count| {
        connect(count, to, |tcp| establish(tcp, &echoes()))
    }),
    ("10 clients that are killed", 10, killed),
    (SILENT, 1_000, |to, count| connect(count, to, |tcp| establish(tcp, &front()))),
];

/// Runs the attacks.
pub(crate) fn run(options: &Options) -> ExitCode {
    let attacks = match super::chosen(&ATTACKS, |attack| attack.0.to_owned(), options.only.as_deref(), false)
    {
        Ok(attacks) => attacks,
        Err(exit) => return exit,
    };
    match measure(attacks) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(attacks: Vec<&(&str, usize, Attack)>) -> Result<bool, String> {
    super::speed::build()?;
    let (silent, others): (Vec<_>, Vec<_>) = attacks.into_iter().partition(|(name, ..)| *name == SILENT);
    let mut good = true;
    for (server_options, attacks) in [(&[][..], others), (&["--receive-memory", SHORT_MEMORY], silent)] {
        if !attacks.is_empty() {
            good &= attack_one_server(server_options, &attacks)?;
        }
    }
    Ok(good)
}

/// All of `attacks` on one server with these options. False when one of them has not met the bars.
fn attack_one_server(server_options: &[&str], attacks: &[&(&str, usize, Attack)]) -> Result<bool, String> {
    let server = Server::start(server_options)?;
    // What the first client and the first attacker of each kind make it map and allocate for good: most of it its own text.
    for (_, _, attack) in ATTACKS {
        drop(attack(server.address, 1));
    }
    server.speed()?;
    let mut good = true;
    for (name, count, attack) in attacks {
        let before = server.held()?;
        let mut during = before;
        let mut ratios = Vec::new();
        for _ in 0..PAIRS {
            let alone = server.speed()?;
            // They are there when the peer comes.
            let attackers = attack(server.address, *count);
            ratios.push(server.speed()? / alone);
            during = server.held()?;
            drop(attackers);
        }
        ratios.sort_by(f64::total_cmp);
        let (after, waited) = server.back(before)?;
        let ok = ratios[PAIRS / 2] >= BAR && after.within(before);
        good &= ok;
        println!(
            "{name}: {:.2} of the speed left ({:.2} to {:.2}); memory {} -> {} -> {} KiB, descriptors {} -> {} -> {}, {:.1} s after{}",
            ratios[PAIRS / 2],
            ratios[0],
            ratios[PAIRS - 1],
            before.memory,
            during.memory,
            after.memory,
            before.descriptors,
            during.descriptors,
            after.descriptors,
            waited.as_secs_f64(),
            if ok { "" } else { ": NOT GOOD" },
        );
    }
    Ok(good)
}

/// What the server's process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Resident, in KiB.
    memory: u64,
    descriptors: u64,
}

impl Held {
    fn within(self, before: Self) -> bool {
        let near = |now: u64, then: u64| now as f64 <= then as f64 * BACK + 1.0;
        near(self.memory, before.memory) && near(self.descriptors, before.descriptors)
    }
}

/// `uiw serve`, which ends with its standard input.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(options: &[&str]) -> Result<Self, String> {
        let mut command = uiw()?;
        // All come from one address, the well-behaved peer as well; and what the log says of each attacker is not to be measured.
        command.args(["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends", "--per-address", "65535"]);
        command.args(options).env("UIW_LOG", "error");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("starting uiw: {error}"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        let address = line.trim().strip_prefix("listening on ").and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| format!("uiw serve said {line:?}"))?;
        Ok(Self { child, address })
    }

    /// Bytes a second that a peer of good manners gets through.
    fn speed(&self) -> Result<f64, String> {
        let address = self.address.to_string();
        let output = uiw()?
            .args(["perf", &address, "--op", "write", "--size", "64K", "--seconds", "1", "--json"])
            .output()
            .map_err(|error| format!("starting uiw: {error}"))?;
        let result: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| format!("uiw perf: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
        result["bytes_per_second"].as_f64().ok_or_else(|| format!("uiw perf said {result}"))
    }

    fn held(&self) -> Result<Held, String> {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status =
            std::fs::read_to_string(folder.join("status")).map_err(|_| "the server is gone".to_owned())?;
        let memory = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB").and_then(|number| number.parse().ok()));
        let descriptors =
            std::fs::read_dir(folder.join("fd")).map_err(|_| "the server is gone".to_owned())?.count();
        Ok(Held { memory: memory.ok_or("no VmRSS in /proc")?, descriptors: descriptors as u64 })
    }

    /// Waits until it holds what it held before, or the time-out expires.
    fn back(&self, before: Held) -> Result<(Held, Duration), String> {
        let begun = Instant::now();
        loop {
            let now = self.held()?;
            if now.within(before) || begun.elapsed() > TIMEOUT {
                return Ok((now, begun.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The program, beside ours.
fn uiw() -> Result<Command, String> {
    Ok(Command::new(crate::workspace::target()?.join("release/uiw")))
}

/// So many connections, each with `begin` done to it; what the server refuses is left out.
fn connect(count: usize, to: SocketAddr, begin: fn(&mut TcpStream)) -> Attackers {
    let mut attackers = Vec::new();
    for _ in 0..count {
        let Ok(mut tcp) = TcpStream::connect(to) else { continue };
        let _ = tcp.set_write_timeout(Some(Duration::from_millis(100)));
        let _ = tcp.set_read_timeout(Some(Duration::from_secs(2)));
        begin(&mut tcp);
        attackers.push(tcp);
    }
    attackers
}

/// Full Operation, and then these bytes, as far as they are taken.
fn establish(tcp: &mut TcpStream, bytes: &[u8]) {
    let request = Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        reject: false,
        enhanced: None,
        reserved: 0,
        revision: 1,
        private_data: Vec::new(),
    };
    let mut reply = [0; 20];
    if tcp.write_all(&request.emit()).is_ok() && tcp.read_exact(&mut reply).is_ok() {
        let _ = tcp.write_all(bytes);
    }
}

/// Messages that are answered in kind: more than the buffers of TCP hold.
fn echoes() -> Vec<u8> {
    let mut tx = FpduTx::new(true, false);
    let mut all = Vec::new();
    for msn in 1..200 {
        let mut fpdu = vec![0, 0];
        fpdu.extend_from_slice(&untagged_header(Opcode::Send, 0, msn, 0, true, 0).emit());
        fpdu.resize(fpdu.len() + 32_000, 7);
        tx.seal(&mut fpdu, 0);
        all.extend_from_slice(&fpdu);
    }
    all
}

/// The front of a Send.
fn front() -> Vec<u8> {
    let mut bytes = vec![0; 2];
    // The length of the ULPDU, then the ULPDU: what is missing is the rest of it and the CRC.
    bytes[..2].copy_from_slice(&((FPDU - 6) as u16).to_be_bytes());
    bytes.extend_from_slice(&untagged_header(Opcode::Send, 0, 1, 0, true, 0).emit());
    bytes.resize(FRONT, 7);
    bytes
}

/// The same each time, and of no meaning.
fn garbage(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Clients of ours that end in the middle of what they do.
fn killed(to: SocketAddr, count: usize) -> Attackers {
    let clients: Vec<Child> = (0..count)
        .filter_map(|_| {
            let mut command = uiw().ok()?;
            command.args(["perf", &to.to_string(), "--op", "read", "--seconds", "60"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    for mut client in clients {
        let _ = client.kill();
        let _ = client.wait();
    }
    Vec::new()
}
