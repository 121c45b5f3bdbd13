//! `uiw demo`: two processes move a real file over iWARP in every way the protocol knows.

mod client;
mod raw;
mod way;

pub(crate) mod peer;

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use verbs::Device;

use crate::fail::{Failure, Result};
use crate::open::Opener;
use way::WAYS;

/// Octets that one line moves at least: short files are moved several times.
const AT_LEAST: u64 = 512 << 20;
/// Largest file: it is held in memory a few times.
const MAX_FILE: u64 = 1 << 30;

/// Moves a file between two processes in every way the protocol knows, each verified octet for octet, beside raw TCP
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file; without one, the program moves its own executable.
    file: Option<PathBuf>,
    /// One JSON object a line instead of the table.
    #[arg(long)]
    json: bool,
    /// Damages one octet of what arrives in this line of the table: shows that the demo notices.
    #[arg(long, hide = true)]
    corrupt: Option<usize>,
}

#[derive(Serialize)]
struct Line {
    way: &'static str,
    octets: u64,
    verified: bool,
    gbit_per_second: f64,
    raw_tcp_gbit_per_second: f64,
    ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs the demo.
///
/// # Errors
/// Unless every line was verified.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::local("finding the program's own executable", error))?;
    let path = args.file.clone().unwrap_or_else(|| own.clone());
    let file = read_file(&path)?;
    if file.is_empty() {
        return Err(Failure::usage(path.display(), "the file is empty", "name one with octets in it"));
    }
    let passes = u32::try_from(AT_LEAST.div_ceil(file.len() as u64)).unwrap_or(u32::MAX).min(4096);
    let device = &opener.device()?;
    let peer = Peer::start(&own, &path, args.corrupt)?;
    if !args.json {
        println!(
            "{}, {} octets, moved {passes} time(s) a line, between two processes on this machine",
            path.display(),
            file.len()
        );
        println!("{:<36} {:>8}  {:>10}  {:>10}  {:>6}", "way", "verified", "Gbit/s", "raw TCP", "ratio");
    }
    let mut failed = 0;
    for (number, way) in WAYS.iter().enumerate() {
        progress(&format!("{}/{} {}", number + 1, WAYS.len(), way.name));
        let line = one_line(device, &peer, number, &file, passes);
        progress("");
        failed += usize::from(!line.verified);
        print(&line, args.json)?;
    }
    drop(peer);
    if failed > 0 {
        return Err(differs(format!("{failed} of {} lines were not verified", WAYS.len())));
    }
    Ok(())
}

fn one_line(device: &Device, peer: &Peer, number: usize, file: &[u8], passes: u32) -> Line {
    let octets = file.len() as u64 * u64::from(passes);
    let raw = raw::measure(peer.tcp, octets).map_or(0.0, |time| gbit(octets, time));
    let patience = Duration::from_secs(60);
    let moved = device
        .block_on_for(patience, client::run(device, peer.iwarp, number, file, passes))
        .unwrap_or_else(|| Err(broken(format!("not done after {patience:?}"))));
    let way = WAYS[number].name;
    match moved {
        Ok(moved) => {
            let speed = gbit(moved.octets, moved.time);
            let ratio = if raw > 0.0 { speed / raw } else { 0.0 };
            let error = (!moved.same).then(|| "the octets that arrived differ from the file".to_owned());
            Line {
                way,
                octets: moved.octets,
                verified: moved.same,
                gbit_per_second: speed,
                raw_tcp_gbit_per_second: raw,
                ratio,
                error,
            }
        }
        Err(failure) => Line {
            way,
            octets: 0,
            verified: false,
            gbit_per_second: 0.0,
            raw_tcp_gbit_per_second: raw,
            ratio: 0.0,
            error: Some(failure.to_string()),
        },
    }
}

fn gbit(octets: u64, time: Duration) -> f64 {
    octets as f64 * 8e-9 / time.as_secs_f64().max(1e-9)
}

fn print(line: &Line, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = if json {
        let text = serde_json::to_string(line).map_err(|error| broken(error.to_string()))?;
        writeln!(out, "{text}")
    } else {
        let verdict = if line.verified { "yes" } else { "NO" };
        writeln!(
            out,
            "{:<36} {verdict:>8}  {:>10.2}  {:>10.2}  {:>6.2}{}",
            line.way,
            line.gbit_per_second,
            line.raw_tcp_gbit_per_second,
            line.ratio,
            line.error.as_ref().map(|error| format!("  {error}")).unwrap_or_default(),
        )
    };
    written.map_err(|error| Failure::local("standard output", error))
}

/// A line that is overwritten, on a terminal only.
fn progress(what: &str) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}");
        let _ = err.flush();
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let cannot =
        |error: std::io::Error| Failure::usage(path.display(), error, "name a file that can be read");
    let len = std::fs::metadata(path).map_err(cannot)?.len();
    if len > MAX_FILE {
        let why = format!("{len} octets, at most {MAX_FILE}");
        return Err(Failure::usage(path.display(), why, "name a smaller file"));
    }
    std::fs::read(path).map_err(cannot)
}

/// The second process. It ends when this is dropped, or this process dies.
struct Peer {
    child: Child,
    iwarp: SocketAddr,
    tcp: SocketAddr,
}

impl Peer {
    fn start(own: &Path, file: &Path, corrupt: Option<usize>) -> Result<Self> {
        let mut command = Command::new(own);
        command.arg("demo-peer").arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(number) = corrupt {
            command.arg("--corrupt").arg(number.to_string());
        }
        let cannot = |what: String| Failure::local("starting the second process", what);
        let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        let mut ports = line.split_whitespace().map_while(|word| word.parse::<u16>().ok());
        let (Some(iwarp), Some(tcp)) = (ports.next(), ports.next()) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(cannot("it did not say its ports".into()));
        };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self { child, iwarp: at(iwarp), tcp: at(tcp) })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Closing its standard input asks it to end.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The peer, or this end, did what the demo does not.
fn broken(why: impl std::fmt::Display) -> Failure {
    Failure::lost("demo", why)
}

/// Something is not as it was sent.
fn differs(why: impl std::fmt::Display) -> Failure {
    Failure::differs("demo", why)
}
