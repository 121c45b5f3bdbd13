//! `uiw decode`: the iWARP traffic in a packet capture, of any sender.
//!
//! ```text
//! capture ─► pcap ─► packet ─► flows ─► reassembly ─► connection ─► framing ─► segment ─► message ─► output
//!  file      records  IP, TCP  MPA Key   bytes in     startup      FPDUs      DDP, RDMAP  whole
//!                     header   on any    order, holes  frames       CRC        headers     messages
//!                              port                                 Markers
//! ```
//!
//! Datagrams between uiw peers go from `packet` to `datagrams`, each by itself.
//!
//! Each step takes any bytes and never panics; what it cannot follow it names, with the place and the reason.
//! The capture is read as a stream: memory is bounded by the connections that are open at a time.

mod connection;
mod datagrams;
mod event;
mod flows;
mod framing;
mod message;
mod output;
mod packet;
mod reassembly;
mod requests;
mod seek;
mod segment;
mod startup;
mod terminate;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use event::{
    Crc, Datagram, Departure, Event, Fpdu, Message, Negotiated, Record, Segment, Startup, Terminate,
};
pub use output::Summary;

use crate::pcap::{Error, Reader};
use datagrams::Datagrams;
use flows::{Flows, Moment};
use packet::Content;

/// Options of `uiw decode`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Exit code: 0 when every byte could be followed (departures from the RFCs included), 1 when some could not, \
2 when the file is no capture or the command line is wrong.")]
pub struct Args {
    /// A pcap or pcapng file; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Only departures, missing bytes and the summary
    #[arg(long)]
    pub quiet: bool,
}

/// Runs `uiw decode`, printing to standard output.
pub fn run(args: &Args) -> ExitCode {
    let stdout = io::stdout().lock();
    match run_to(args, &mut io::BufWriter::new(stdout)) {
        Ok(summary) if summary.followed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}: {failure}\nhint: name a readable pcap or pcapng file", args.file.display());
            ExitCode::from(2)
        }
    }
}

/// Runs `uiw decode`, printing to `out`.
///
/// # Errors
/// The file cannot be read as a capture at all, or `out` not be written.
pub fn run_to(args: &Args, out: &mut dyn Write) -> Result<Summary, Failure> {
    let mut printer = output::Printer::new(out, args.json, args.quiet);
    let summary = decode(open(&args.file)?, &mut |record| printer.record(record))?;
    printer.summary(&summary).map_err(Failure::Output)?;
    Ok(summary)
}

/// Decodes a capture; every finding goes to `sink` in the order of the capture.
///
/// # Errors
/// The input is no capture. A capture that is damaged further on is decoded up to there, which the
/// [`Summary`] has it.
pub fn decode(input: impl Read, sink: &mut dyn FnMut(&Record)) -> Result<Summary, Failure> {
    let mut reader = Reader::new(BufReader::with_capacity(1 << 16, input)).map_err(Failure::Capture)?;
    let mut flows = Flows::default();
    let mut datagrams = Datagrams::default();
    let mut summary = Summary::default();
    let mut last = Moment { time: None, packet: 0 };
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => {
                summary.capture_error = Some(error.to_string());
                break;
            }
        };
        summary.packets += 1;
        last = Moment { time: packet.time, packet: packet.number };
        match packet::parse(&packet) {
            Content::Tcp(segment) => flows.segment(&segment, last, &mut |record| summary.take(record, sink)),
            Content::Udp(from, to, bytes) => {
                for event in datagrams.datagram(from, to, bytes) {
                    let Moment { time, packet } = last;
                    summary.take(&Record { time, packet, connection: 0, from, to, event }, sink);
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
    flows.finish(last, &mut |record| summary.take(record, sink));
    summary.connections = flows.connections;
    summary.repeated_bytes = flows.repeated;
    Ok(summary)
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

/// Why nothing was decoded. `Display` is the cause and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file cannot be opened.
    #[error("{0}: give a pcap or pcapng file that can be read")]
    Open(io::Error),
    /// The file is no capture.
    #[error("{0}: {fix}", fix = fix(.0))]
    Capture(Error),
    /// The findings cannot be written.
    #[error("cannot write the output: {0}: free some space or choose another place")]
    Output(io::Error),
}

fn fix(error: &Error) -> &'static str {
    match error {
        Error::Compressed(_) => "decompress it first",
        Error::Io(_) => "give a file that can be read",
        _ => "give a pcap or pcapng file, such as tcpdump -w or Wireshark write",
    }
}
