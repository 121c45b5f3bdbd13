//! Decodes the iWARP traffic in a packet capture, of any sender.
//!
//! ```text
//! capture ─► pcap ─► packet ─► flows ─► reassembly ─► connection ─► framing ─► segment ─► message ─► output
//!  file      records  IP, TCP  MPA Key   bytes in     startup      FPDUs      DDP, RDMAP  whole
//!                     header   on any    order, holes  frames       CRC        headers     messages
//!                              port                                 Markers
//! ```
//!
//! With a key log, `tls` decrypts the bytes between `reassembly` and `connection`, with the secrets
//! that `keylog` reads.
//!
//! Datagrams between uiw peers go from `packet` directly to `datagrams`.
//!
//! Captures may lack packets, or contain them in another order than they were sent. `flows`
//! processes a segment after everything that it acknowledges, and treats acknowledged bytes that do
//! not come as missing. `seek` finds the next FPDU after missing bytes. From then on, rules that
//! need both directions from their beginning are not applied.
//!
//! Each step accepts any bytes and never panics. It reports what it cannot follow, with the place
//! and the reason. The capture is read as a stream, and memory is bounded by the number of open
//! connections.
//!
//! # Gaps
//!
//! A decoder continues where a receiver terminates, and captures lack packets or have them in
//! another order.
//!
//! * A segment is processed after everything that it acknowledges, so a response is processed after
//!   its request and the Reply after the Request. Acknowledged bytes that do not come within 64
//!   packets of the connection are missing.
//! * If payload of an FPDU is missing but its length is known, the boundaries are kept. Otherwise
//!   `seek` searches for the next FPDU at multiples of four bytes (with Markers: where they point
//!   to), and recognises it by its headers and its CRC. Without CRCs it requires three FPDUs in a
//!   row, or one that fills a TCP segment.
//! * If one startup frame of a connection is missing, the mode of Full Operation is guessed from
//!   the other one. Bytes that cannot be an FPDU under such a guess are skipped, instead of being
//!   reported as a departure from the RFCs. After missing bytes, rules that need both directions
//!   from their beginning are not applied.

#![warn(missing_debug_implementations)]

mod connection;
mod datagrams;
mod event;
mod flows;
mod framing;
#[doc(hidden)]
pub mod json;
mod keylog;
mod message;
#[doc(hidden)]
pub mod number;
mod output;
mod packet;
pub mod pcap;
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

pub use event::{
    Crc, Datagram, Departure, Event, Fpdu, Message, Negotiated, Record, Segment, Startup, Terminate,
};
pub use keylog::KeyLogError;
pub use output::Summary;
pub use select::ConnectionFilter;
pub use startup::RAW_TCP;

use crate::pcap::{Error, Packet, Reader};
use datagrams::Datagrams;
use flows::{Flows, PacketTime};
use keylog::KeyLog;
use output::Printer;
use packet::PacketContent;

/// Settings of the decoder: files to decode, and findings to print.
#[derive(Clone, Debug, Default)]
pub struct DecodeConfig {
    /// pcap or pcapng files. Several files are parts of one rotated capture, and are decoded in the
    /// order of their times. `-` is standard input.
    pub files: Vec<PathBuf>,
    /// True to print JSON, one object per line.
    pub json: bool,
    /// True to print only departures, missing bytes, parts that could not be decoded, and the
    /// summary.
    pub quiet: bool,
    /// Connections to print; all if empty.
    pub connections: Vec<ConnectionFilter>,
    /// File with the secrets of TLS connections, in the format of Wireshark's key log.
    pub keylog: Option<PathBuf>,
}

/// Decodes the files and prints the findings to `out`.
///
/// # Errors
/// Returns the file that failed and the reason: it cannot be read as a capture, or `out` cannot be
/// written.
pub fn decode_to(
    config: &DecodeConfig,
    out: &mut dyn Write,
) -> Result<Summary, (PathBuf, DecodeError)> {
    let mut printer = Printer::new(out, config.json, config.quiet);
    let mut decoder = Decoder { selection: config.connections.clone(), ..Decoder::default() };
    decoder.flows.shared.selection = config.connections.clone();
    if let Some(path) = &config.keylog {
        let log = KeyLog::read(path).map_err(|wrong| (path.clone(), DecodeError::KeyLog(wrong)))?;
        decoder.flows.shared.keys = log;
        decoder.summary.has_key_log = true;
    }
    for OpenedCapture { mut reader, first, file } in open_all(&config.files)? {
        let is_live = file == Path::new("-");
        decoder.run(&mut reader, first, |decoder, packet| {
            decoder.packet(packet, &mut |record| printer.record(record));
            if is_live {
                printer.flush();
            }
            !printer.has_failed()
        });
        if printer.has_failed() {
            break;
        }
    }
    let summary = decoder.finish(&mut |record| printer.record(record));
    let written = printer.summary(&summary).map_err(DecodeError::Output);
    written.map_err(|failure| (config.files.first().cloned().unwrap_or_default(), failure))?;
    Ok(summary)
}

/// A capture whose first packet was read.
struct OpenedCapture {
    reader: Reader<BufReader<Box<dyn Read>>>,
    first: Result<Option<Packet>, Error>,
    file: PathBuf,
}

/// Opens all files, in the order of their first packets.
fn open_all(files: &[PathBuf]) -> Result<Vec<OpenedCapture>, (PathBuf, DecodeError)> {
    let mut all = Vec::new();
    for file in files {
        let failed = |failure| (file.clone(), failure);
        let input = BufReader::with_capacity(1 << 16, open(file).map_err(failed)?);
        let mut reader = Reader::new(input).map_err(|error| failed(DecodeError::Capture(error)))?;
        let first = reader.next_packet();
        all.push(OpenedCapture { reader, first, file: file.clone() });
    }
    all.sort_by_key(|opened| opened.first.as_ref().ok().and_then(Option::as_ref)?.time);
    Ok(all)
}

/// Decodes a capture. Every finding is passed to `sink` in the order of the capture.
///
/// # Errors
/// Returns an error if the input is not a capture. A capture that is damaged later is decoded up to
/// that place, and the [`Summary`] contains the error.
pub fn decode(input: impl Read, sink: &mut dyn FnMut(&Record)) -> Result<Summary, DecodeError> {
    let mut reader =
        Reader::new(BufReader::with_capacity(1 << 16, input)).map_err(DecodeError::Capture)?;
    let first = reader.next_packet();
    let mut decoder = Decoder::default();
    decoder.run(&mut reader, first, |decoder, packet| {
        decoder.packet(packet, sink);
        true
    });
    Ok(decoder.finish(sink))
}

/// Decoder of a capture, packet by packet.
#[derive(Debug, Default)]
struct Decoder {
    flows: Flows,
    datagrams: Datagrams,
    summary: Summary,
    last: PacketTime,
    /// Selected connections; all if empty.
    selection: Vec<ConnectionFilter>,
}

impl Decoder {
    /// Passes `first` and the further packets of a capture to `each`, while it returns true.
    fn run<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        first: Result<Option<Packet>, Error>,
        mut each: impl FnMut(&mut Self, &Packet) -> bool,
    ) {
        let mut next = first;
        loop {
            match next {
                Ok(Some(packet)) => {
                    self.secrets(reader.take_secrets());
                    if !each(self, &packet) {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.summary.capture_error = Some(error.to_string());
                    return;
                }
            }
            next = reader.next_packet();
        }
    }

    /// Adds secrets that the capture contains. Invalid lines are ignored.
    fn secrets(&mut self, text: Option<String>) {
        let Some(text) = text else { return };
        let log = text.lines().filter_map(|line| KeyLog::parse(line).ok());
        log.for_each(|line| self.flows.shared.keys.merge(line));
    }

    fn packet(&mut self, packet: &Packet, sink: &mut dyn FnMut(&Record)) {
        let Self { flows, datagrams, summary, last, selection } = self;
        summary.packets += 1;
        if packet.bytes.len() < packet.original_length {
            summary.cut_packets += 1;
            let cut = (packet.bytes.len(), packet.original_length);
            summary.largest_cut =
                summary.largest_cut.max(Some(cut).map(|(captured, original)| (original, captured)));
        }
        // Packet numbers continue over several files.
        *last = PacketTime { time: packet.time, packet: summary.packets };
        match packet::parse(packet) {
            PacketContent::Tcp(segment) => {
                flows
                    .segment(&segment, *last, &mut |record| summary.count(record, selection, sink));
            }
            PacketContent::Udp(from, to, bytes) => {
                for event in datagrams.datagram(from, to, bytes) {
                    let PacketTime { time, packet } = *last;
                    summary.count(
                        &Record { time, packet, connection: 0, from, to, event },
                        selection,
                        sink,
                    );
                }
            }
            PacketContent::Fragment => summary.fragments += 1,
            PacketContent::BrokenTcp => summary.broken_tcp += 1,
            PacketContent::UnknownLink(link) => {
                summary.unknown_links.insert(link.0);
            }
            PacketContent::Other => {}
        }
    }

    fn finish(self, sink: &mut dyn FnMut(&Record)) -> Summary {
        let Self { mut flows, mut summary, last, selection, .. } = self;
        flows.finish(last, &mut |record| summary.count(record, &selection, sink));
        if selection.is_empty() {
            summary.connections = flows.shared.connections;
        } else {
            summary.left_out =
                flows.shared.connections - summary.connections.min(flows.shared.connections);
        }
        summary.locked = flows.shared.locked;
        summary
    }
}

fn open(file: &Path) -> Result<Box<dyn Read>, DecodeError> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    match File::open(file) {
        Ok(file) => Ok(Box::new(file)),
        Err(error) => Err(DecodeError::Open(error)),
    }
}

/// Reason why nothing was decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The file cannot be opened.
    #[error("{0}")]
    Open(io::Error),
    /// The file is not a capture.
    #[error("{0}")]
    Capture(Error),
    /// The key log cannot be read, or is not valid.
    #[error("{0}")]
    KeyLog(KeyLogError),
    /// The findings cannot be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}
