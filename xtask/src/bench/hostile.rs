//! Server under attack: its speed for a well-behaved peer before and during the attack, and its
//! memory and descriptors before the attack and after the attackers have gone.

use super::programs::{Lab, clean_command, figure, json_object, output, start};
use super::{RatioBar, RatioLine, RatioSpread, TableRow};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use uiw_interop::stock::noise;
use uiw_mpa::tx::FpduTx;
use uiw_mpa::wire::startup::{Frame, FrameKind};
use uiw_rdmap::{Opcode, untagged_header};
use uiw_siw::shell::Process;
use uiw_siw::{Error, Result};

/// Maximum growth of memory and descriptors after the attack, as a factor.
const MAX_GROWTH: f64 = 1.1;
/// Maximum time for the server to release memory and descriptors: the start-up time-out and some
/// seconds more.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Number of open files of this process in addition to the connections of attackers.
const OTHER_FILES: u64 = 100;

/// Connections of attackers, which stay open until the value is dropped.
type Attackers = Vec<TcpStream>;

/// Function that attacks the server at an address with `count` peers.
type Attack = fn(uiw: &Path, to: SocketAddr, count: usize) -> Attackers;

/// Number of bytes that an attacker sends of an FPDU of [`FPDU_LEN`] bytes.
const PARTIAL_LEN: usize = 65_000;
/// Length in bytes of the FPDU that attackers begin to send.
const FPDU_LEN: usize = 65_500;
/// Name of the attack on a server with 16 MiB of receive memory. The partial FPDUs of its 1,000
/// attackers have 65 MB in total. The server accepts 1,024 connections, so it refuses none of them.
const PARTIAL_FPDU_ATTACK: &str = "1,000 that send the front of an FPDU and fall silent";

const ATTACKS: [(&str, usize, Attack); 7] = [
    ("10,000 half-open connections", 10_000, |_, to, count| connect(count, to, |_| {})),
    ("1,000 that send garbage", 1_000, |_, to, count| {
        connect(count, to, |tcp| drop(tcp.write_all(&noise(4096))))
    }),
    ("1,000 that send garbage once connected", 1_000, |_, to, count| {
        connect(count, to, |tcp| establish(tcp, &noise(4096)))
    }),
    ("1,000 that sent one byte", 1_000, |_, to, count| {
        connect(count, to, |tcp| drop(tcp.write_all(b"M")))
    }),
    ("100 that do not read what they asked for", 100, |_, to, count| {
        connect(count, to, |tcp| establish(tcp, &echoes()))
    }),
    ("10 clients that are killed", 10, kill_readers),
    (PARTIAL_FPDU_ATTACK, 1_000, |_, to, count| {
        connect(count, to, |tcp| establish(tcp, &partial_fpdu()))
    }),
];

pub(super) fn rows() -> Vec<TableRow> {
    let row = |(name, count, attack): (&'static str, usize, Attack)| {
        let memory = (name == PARTIAL_FPDU_ATTACK).then_some("16M");
        TableRow::new(name, RatioBar::AtLeast(0.5), move |lab| measure(lab, memory, count, attack))
    };
    ATTACKS.into_iter().map(row).collect()
}

/// Raises the limit of open files, so that the attackers of a row fit into this process.
fn permit_files(count: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let needed = count as u64 + OTHER_FILES;
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit })
        .map_err(|_| Error::Missing(format!("{needed} open files (`ulimit -n`)")))
}

fn measure(
    lab: &Lab,
    memory: Option<&str>,
    count: usize,
    attack: Attack,
) -> Result<Vec<RatioLine>> {
    permit_files(count)?;
    let uiw = &lab.uiw()?;
    let server = ServeProcess::start(uiw, memory)?;
    // The server maps and allocates memory for its first client and for the first attacker of each
    // kind, and keeps it. Most of this memory is the code of the program.
    for (_, _, attack) in ATTACKS {
        drop(attack(uiw, server.address, 1));
    }
    server.speed()?;
    let before = server.held()?;
    let (mut during, mut ratios) = (before, Vec::new());
    for _ in 0..lab.rounds {
        let alone = server.speed()?;
        // The attackers are connected before the well-behaved peer starts.
        let attackers = attack(uiw, server.address, count);
        ratios.push(server.speed()? / alone);
        during = server.held()?;
        drop(attackers);
    }
    let (after, waited) = server.held_after(before)?;
    let kept = |what: &str, at: usize| {
        let note = format!(
            "{} -> {} -> {}, {:.1} s after",
            before[at],
            during[at],
            after[at],
            waited.as_secs_f64()
        );
        RatioLine::new(what, RatioSpread::new([after[at] as f64 / before[at] as f64]), note)
            .bar(RatioBar::AtMost(MAX_GROWTH))
    };
    Ok(vec![
        RatioLine::new("of the speed before", RatioSpread::new(ratios), ""),
        kept("KiB, of before", 0),
        kept("descriptors, of before", 1),
    ])
}

/// Process of `uiw serve`.
struct ServeProcess<'a> {
    uiw: &'a Path,
    process: Process,
    address: SocketAddr,
}

impl<'a> ServeProcess<'a> {
    fn start(uiw: &'a Path, memory: Option<&str>) -> Result<Self> {
        let mut command = clean_command(uiw);
        // All peers have the same address, including the well-behaved one. The cost of log lines
        // about the attackers should not be measured.
        command.args(["serve", "--listen", "127.0.0.1:0", "--per-address", "65535"]);
        command.args(memory.iter().flat_map(|memory| ["--receive-memory", memory]));
        let mut process = start(command.env("UIW_LOG", "error"))?;
        let line = process.wait_for("listening on ", TIMEOUT)?;
        let address = line.rsplit(' ').next().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| Error::Failed(format!("uiw serve said {line:?}")))?;
        Ok(Self { uiw, process, address })
    }

    /// Measures the Writes of a well-behaved peer, in bytes per second.
    fn speed(&self) -> Result<f64> {
        let mut command = clean_command(self.uiw);
        command.arg("perf").arg(self.address.to_string());
        command.args("--op write --size 64K --seconds 1 --json".split(' '));
        figure(&json_object(&output(&command)?)?, "/bytes_per_second")
    }

    /// Returns the resident memory in KiB, and the number of descriptors.
    fn held(&self) -> Result<[u64; 2]> {
        let folder = format!("/proc/{}", self.process.id());
        let read = || {
            let status = fs::read_to_string(format!("{folder}/status")).ok()?;
            let memory = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:"))?
                .trim()
                .strip_suffix(" kB")?;
            Some([memory.parse().ok()?, fs::read_dir(format!("{folder}/fd")).ok()?.count() as u64])
        };
        read().ok_or_else(|| Error::Failed("the server is gone".to_owned()))
    }

    /// Returns the memory and descriptors held once they are back at `before`, or when the time-out
    /// expires.
    fn held_after(&self, before: [u64; 2]) -> Result<([u64; 2], Duration)> {
        let begun = Instant::now();
        loop {
            let now = self.held()?;
            let is_back =
                now.iter().zip(before).all(|(now, then)| *now as f64 <= then as f64 * MAX_GROWTH);
            if is_back || begun.elapsed() > TIMEOUT {
                return Ok((now, begun.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Opens connections and calls `begin` for each. Connections that the server refuses are omitted.
fn connect(count: usize, to: SocketAddr, begin: fn(&mut TcpStream)) -> Attackers {
    let one = |_| {
        let mut tcp = TcpStream::connect(to).ok()?;
        tcp.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
        tcp.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        begin(&mut tcp);
        Some(tcp)
    };
    (0..count).filter_map(one).collect()
}

/// Performs the startup of a connection, and sends as many of the bytes as TCP accepts.
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

/// Returns messages that the server echoes, which are longer than the buffers of TCP.
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

/// Returns the first bytes of the FPDU of a Send: the length and most of the ULPDU.
fn partial_fpdu() -> Vec<u8> {
    let mut bytes = ((FPDU_LEN - 6) as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(&untagged_header(Opcode::Send, 0, 1, 0, true, 0).emit());
    bytes.resize(PARTIAL_LEN, 7);
    bytes
}

/// Starts `uiw perf` clients and kills them while they read.
fn kill_readers(uiw: &Path, to: SocketAddr, count: usize) -> Attackers {
    let address = to.to_string();
    let client = |_| {
        start(clean_command(uiw).args(["perf", &address, "--op", "read", "--seconds", "60"])).ok()
    };
    let clients: Vec<_> = (0..count).filter_map(client).collect();
    std::thread::sleep(Duration::from_millis(500));
    drop(clients);
    Vec::new()
}
