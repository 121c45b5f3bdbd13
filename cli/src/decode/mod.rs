//! `uiw decode`: the iWARP traffic in a packet capture, of any sender.
//!
//! ```text
//! capture ─► pcap ─► packet ─► flows ─► reassembly ─► connection ─► framing ─► segment ─► message ─► output
//!  file      records  IP, TCP  MPA Key   bytes in     startup      FPDUs      DDP, RDMAP  whole
//!                     header   on any    order, holes  frames       CRC        headers     messages
//!                              port                                 Markers
//! ```
//!
//! With a key log, `tls` decrypts what is between `reassembly` and `connection`, by the secrets that `keylog` reads.
//!
//! Datagrams between uiw peers go from `packet` to `datagrams`, each by itself.
//!
//! Captures lack packets, and have them in another order than they were sent. `flows` looks at a segment when what it acknowledges was looked at, and
//! takes for missing what does not come; behind missing bytes `seek` finds the next FPDU. From then on nothing is judged that needs both directions
//! from their beginning.
//!
//! Each step takes any bytes and never panics; what it cannot follow it names, with the place and the reason.
//! The capture is read as a stream: memory is bounded by the connections that are open at a time.

mod connection;
mod datagrams;
mod event;
mod flows;
mod framing;
mod keylog;
mod message;
mod output;
mod packet;
mod reassembly;
mod requests;
mod seek;
mod segment;
mod select;
mod startup;
mod terminate;
mod tls;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub use event::{
    Crc, Datagram, Departure, Event, Fpdu, Message, Negotiated, Record, Segment, Startup, Terminate,
};
pub use output::Summary;
pub use select::Which;
pub use startup::RAW_TCP;

use crate::pcap::{Error, Packet, Reader};
use datagrams::Datagrams;
use flows::{Flows, Moment};
use keylog::KeyLog;
use output::{Print, Printer};
use packet::Content;

/// Options of `uiw decode`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Exit code: 0 when every byte could be followed (departures from the RFCs included), 1 when some could not, \
2 when a file is no capture or the command line is wrong.")]
pub struct Args {
    /// pcap or pcapng files; several are one capture that was rotated, in the order of their times; `-` reads standard input and prints while it
    /// reads: `tcpdump -U -w - | uiw decode -`
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Only departures, missing bytes and the summary
    #[arg(long)]
    pub quiet: bool,
    /// Only connections with this number, ADDR, ADDR:PORT or :PORT at one end; several times for several
    #[arg(long, value_name = "WHICH")]
    pub connection: Vec<Which>,
    /// Secrets of TLS connections, as `--keylog` of other commands writes them.
    #[arg(skip)]
    pub keylog: Option<PathBuf>,
}

/// Runs `uiw decode`, printing to standard output.
pub fn run(args: &Args) -> ExitCode {
    let stdout = io::stdout().lock();
    match run_to(args, &mut io::BufWriter::new(stdout)) {
        Ok(summary) if summary.followed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err((_, Failure::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err((file, failure)) => {
            crate::note!("error: {}: {failure}\nhint: {}", file.display(), failure.hint());
            ExitCode::from(2)
        }
    }
}

/// Runs `uiw decode`, printing to `out`.
///
/// # Errors
/// A file cannot be read as a capture at all, or `out` not be written: the file, and why.
pub fn run_to(args: &Args, out: &mut dyn Write) -> Result<Summary, (PathBuf, Failure)> {
    let print = if args.quiet { Print::Departures } else { Print::Everything };
    let mut printer = Printer::new(out, args.json, print);
    let mut decoder = Decoder { selection: args.connection.clone(), ..Decoder::default() };
    if let Some(path) = &args.keylog {
        let log = KeyLog::read(path).map_err(|wrong| (path.clone(), Failure::KeyLog(wrong)))?;
        decoder.flows.keys = Some(Arc::new(log));
    }
    for Opened { mut reader, first, file } in open_all(&args.files)? {
        let is_live = file == Path::new("-");
        let mut next = first;
        loop {
            match next {
                Ok(Some(packet)) => decoder.packet(&packet, &mut |record| printer.record(record)),
                Ok(None) => break,
                Err(error) => {
                    decoder.summary.capture_error = Some(error.to_string());
                    break;
                }
            }
            if is_live {
                printer.flush();
            }
            next = reader.next_packet();
        }
    }
    let summary = decoder.finish(&mut |record| printer.record(record));
    let written = printer.summary(&summary).map_err(Failure::Output);
    written.map_err(|failure| (args.files.first().cloned().unwrap_or_default(), failure))?;
    Ok(summary)
}

/// A capture of which the first packet was read.
struct Opened {
    reader: Reader<BufReader<Box<dyn Read>>>,
    first: Result<Option<Packet>, Error>,
    file: PathBuf,
}

/// All files, in the order of their first packets.
fn open_all(files: &[PathBuf]) -> Result<Vec<Opened>, (PathBuf, Failure)> {
    let mut all = Vec::new();
    for file in files {
        let failed = |failure| (file.clone(), failure);
        let input = BufReader::with_capacity(1 << 16, open(file).map_err(failed)?);
        let mut reader = Reader::new(input).map_err(|error| failed(Failure::Capture(error)))?;
        let first = reader.next_packet();
        all.push(Opened { reader, first, file: file.clone() });
    }
    all.sort_by_key(|opened| opened.first.as_ref().ok().and_then(Option::as_ref)?.time);
    Ok(all)
}

/// Decodes a capture; every finding goes to `sink` in the order of the capture.
///
/// # Errors
/// The input is no capture. A capture that is damaged further on is decoded up to there, which the
/// [`Summary`] has it.
pub fn decode(input: impl Read, sink: &mut dyn FnMut(&Record)) -> Result<Summary, Failure> {
    let mut reader = Reader::new(BufReader::with_capacity(1 << 16, input)).map_err(Failure::Capture)?;
    let mut decoder = Decoder::default();
    loop {
        match reader.next_packet() {
            Ok(Some(packet)) => decoder.packet(&packet, sink),
            Ok(None) => break,
            Err(error) => {
                decoder.summary.capture_error = Some(error.to_string());
                break;
            }
        }
    }
    Ok(decoder.finish(sink))
}

/// A capture that is being decoded, packet by packet.
#[derive(Debug, Default)]
struct Decoder {
    flows: Flows,
    datagrams: Datagrams,
    summary: Summary,
    last: Moment,
    /// Only what is of these; everything if there are none.
    selection: Vec<Which>,
}

impl Decoder {
    fn packet(&mut self, packet: &Packet, sink: &mut dyn FnMut(&Record)) {
        let Self { flows, datagrams, summary, last, selection } = self;
        summary.packets += 1;
        // Of several files the numbers go on.
        *last = Moment { time: packet.time, packet: summary.packets };
        match packet::parse(packet) {
            Content::Tcp(segment) => {
                flows.segment(&segment, *last, &mut |record| summary.take(record, selection, sink));
            }
            Content::Udp(from, to, bytes) => {
                for event in datagrams.datagram(from, to, bytes) {
                    let Moment { time, packet } = *last;
                    summary.take(&Record { time, packet, connection: 0, from, to, event }, selection, sink);
                }
            }
            Content::Fragment => summary.fragments += 1,
            Content::BrokenTcp => summary.broken_tcp += 1,
            Content::UnknownLink(link) => {
                summary.unknown_links.insert(link.0);
            }
            Content::Other => {}
        }
    }

    fn finish(self, sink: &mut dyn FnMut(&Record)) -> Summary {
        let Self { mut flows, mut summary, last, selection, .. } = self;
        flows.finish(last, &mut |record| summary.take(record, &selection, sink));
        if selection.is_empty() {
            summary.connections = flows.counts.connections;
        }
        summary.locked = flows.counts.locked;
        summary
    }
}

fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    match File::open(file) {
        Ok(file) => Ok(Box::new(file)),
        Err(error) => Err(Failure::Open(error)),
    }
}

/// Why nothing was decoded.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file cannot be opened.
    #[error("{0}")]
    Open(io::Error),
    /// The file is no capture.
    #[error("{0}")]
    Capture(Error),
    /// The file of secrets cannot be read, or is none.
    #[error("{0}")]
    KeyLog(keylog::Wrong),
    /// The findings cannot be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// What to do about it.
    fn hint(&self) -> &'static str {
        match self {
            Self::Capture(Error::Compressed(_)) => "decompress it first",
            Self::Open(_) | Self::Capture(_) => {
                "name a readable pcap or pcapng file, such as tcpdump -w or Wireshark write"
            }
            Self::KeyLog(_) => "name a file that --keylog or UIW_KEYLOG of another command has written",
            Self::Output(_) => "free some space or choose another place",
        }
    }
}
