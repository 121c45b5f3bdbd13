//! `uiw demo`: transfers a file between two processes with every RDMA operation, verifies it byte for byte, and compares with raw TCP.

mod case;
mod client;
pub(crate) mod peer;
mod raw;
mod talk;

use crate::shared::args::seconds;
use crate::shared::child::Server;
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::open::Opener;
use crate::shared::text::{self, Progress};
use case::Case;
use client::{Line, Moved};
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uiw::raw::{Device, Pd};

/// Bytes of the file at most: it lies in memory four times.
const MAX_FILE: u64 = 1 << 30;

/// Options of `uiw demo`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to move [default: this program's own executable]
    file: Option<PathBuf>,
    /// One JSON object a line, and one at the end
    #[arg(long)]
    json: bool,
    /// How long each line moves the file, and raw TCP beside it
    #[arg(long, hide = true, default_value = "0.25", value_parser = seconds)]
    seconds: f64,
    /// The peer flips a bit in this line: for tests of the verification
    #[arg(long, hide = true, value_name = "LINE")]
    corrupt: Option<usize>,
}

/// Runs `uiw demo`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(|error| Failure::local("cannot find the program's own file", error))?,
    };
    let file = read_file(&path)?;
    let demo = Demo::start(opener, &path, &file, args)?;
    if !args.json {
        text::line(format!(
            "{} ({} bytes) from process to process over iWARP on 127.0.0.1, in every way; beside it raw TCP:",
            path.display(),
            text::grouped(file.len() as u64)
        ));
        text::line(format!(
            "{:>3}  {:<35} {:<14} {:>14} {:>9} {:>12} {:>12} {:>6}",
            "", "", "wire", "bytes", "verified", "uiw", "raw TCP", "ratio"
        ));
    }
    demo.lines(args.json)
}

/// The whole file.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::usage(path.display(), why, "name a file that is not empty and at most 1 GiB")
    };
    let bytes = std::fs::metadata(path).map_err(|error| wrong(&error))?.len();
    if bytes > MAX_FILE {
        return Err(wrong(&format_args!("has {bytes} bytes")));
    }
    let file = std::fs::read(path).map_err(|error| wrong(&error))?;
    if file.is_empty() { Err(wrong(&"is empty")) } else { Ok(file) }
}

struct Demo<'a> {
    device: Device,
    pd: Pd,
    file: &'a [u8],
    server: Server,
    raw: SocketAddr,
    time: Duration,
}

/// A line that was verified.
struct Verified {
    ours: Moved,
    raw: Moved,
}

impl<'a> Demo<'a> {
    fn start(opener: &Opener, path: &Path, file: &'a [u8], args: &Args) -> Result<Self> {
        let device = opener.device()?;
        let pd = device.alloc_pd()?;
        let path = path.to_str().ok_or_else(|| {
            Failure::usage(path.display(), "the name is not UTF-8", "name a file whose name is")
        })?;
        let corrupt = args.corrupt.map(|line| format!("--corrupt={}", line.saturating_sub(1)));
        let mut peer_args = vec!["demo-peer", path];
        peer_args.extend(corrupt.as_deref());
        let server = Server::start(&peer_args)?;
        let raw = server.first_line().split_whitespace().nth(3).and_then(|word| word.parse().ok());
        let raw =
            raw.ok_or_else(|| Failure::local("cannot start a second process", "it printed no address"))?;
        let time = Duration::from_secs_f64(args.seconds);
        Ok(Self { device, pd, file, server, raw, time })
    }

    /// Runs every line, even behind one that failed; fails with the first that did.
    fn lines(&self, as_json: bool) -> Result<()> {
        let mut progress = Progress::new();
        let cases = case::all();
        let mut first_failure = None;
        let mut verified = 0;
        for (number, case) in cases.iter().enumerate() {
            progress.show(|| format!("line {} of {}: {}", number + 1, cases.len(), case.way.name()));
            let outcome = self.line(number, case);
            progress.clear();
            verified += usize::from(outcome.is_ok());
            if as_json {
                text::json(&line_json(number, case, &outcome));
            } else {
                text::line(line_text(number, case, &outcome));
            }
            if let Err(failure) = outcome {
                first_failure.get_or_insert(failure);
            }
        }
        if as_json {
            let all = verified == cases.len();
            text::json(&json!({"type": "summary", "lines": cases.len(), "verified": verified, "all": all}));
        } else {
            text::line(format!("{verified} of {} lines verified, byte for byte", cases.len()));
        }
        match first_failure {
            None => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    fn line(&self, number: usize, case: &Case) -> Result<Verified> {
        let peer = self.server.address();
        let mut line = Line::connect(&self.device, &self.pd, peer, number, case, self.file)?;
        let ours = line.run(self.time);
        line.close();
        let ours = ours?;
        let raw = raw::run(self.raw, self.file, !case.way.is_read(), self.time)?;
        Ok(Verified { ours, raw })
    }
}

impl Moved {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

fn line_text(number: usize, case: &Case, outcome: &Result<Verified>) -> String {
    let head = format!("{:>3}  {:<35} {:<14}", number + 1, case.way.name(), case.wire);
    match outcome {
        Ok(Verified { ours, raw }) => format!(
            "{head} {:>14} {:>9} {:>12} {:>12} {:>6.2}",
            text::grouped(ours.bytes),
            "yes",
            text::rate(ours.rate()),
            text::rate(raw.rate()),
            ours.rate() / raw.rate()
        ),
        Err(failure) => {
            format!("{head} {:>14} {:>9}  {failure}", "", if lost(failure) { "LOST" } else { "NO" })
        }
    }
}

fn lost(failure: &Failure) -> bool {
    failure.exit != Exit::Failed
}

fn line_json(number: usize, case: &Case, outcome: &Result<Verified>) -> serde_json::Value {
    let mut value = json!({
        "type": "line",
        "line": number + 1,
        "name": case.way.name(),
        "crc": case.peer_options.crc,
        "markers": case.peer_options.markers,
        "fpdu": case.peer_options.fpdu.to_string(),
        "verified": outcome.is_ok(),
    });
    match outcome {
        Ok(Verified { ours, raw }) => {
            value["bytes"] = ours.bytes.into();
            value["bytes_per_second"] = ours.rate().into();
            value["raw_bytes_per_second"] = raw.rate().into();
            value["ratio"] = (ours.rate() / raw.rate()).into();
        }
        Err(failure) => value["error"] = failure.to_string().into(),
    }
    value
}
