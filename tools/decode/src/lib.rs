//! Decodes the iWARP traffic in a packet capture, of any sender.
//!
//! ```text
//! capture ─► pcap ─► packet ─► flows ─► reassembly ─► connection ─► framing ─► segment ─► message ─► output
//!  file      records  IP, TCP  MPA Key   bytes in     startup      FPDUs      DDP, RDMAP  whole
//!                     header   on any    order, holes  frames       CRC        headers     messages
//!                              port                                 Markers
//! ```
//!
//! With a key log, `tls` decrypts what is between `reassembly` and `connection`, by the secrets
//! that `keylog` reads.
//!
//! Datagrams between uiw peers go from `packet` to `datagrams`, each by itself.
//!
//! Captures lack packets, and have them in another order than they were sent. `flows` looks at a
//! segment when what it acknowledges was looked at, and takes for missing what does not come;
//! behind missing bytes `seek` finds the next FPDU. From then on nothing is judged that needs both
//! directions from their beginning.
//!
//! Each step takes any bytes and never panics; what it cannot follow it names, with the place and
//! the reason. The capture is read as a stream: memory is bounded by the connections that are open
//! at a time.
//!
//! # Gaps
//!
//! A decoder continues where a receiver terminates, and captures lack packets or have them in
//! another order.
//!
//! * A segment is handled once everything that it acknowledges was handled, so a response comes
//!   after its request and the Reply after the Request. Acknowledged bytes that do not come within
//!   64 packets of the connection are missing.
//! * An FPDU whose length is known keeps the boundaries although its payload is missing. Otherwise
//!   `seek` looks for the next FPDU at multiples of four bytes (with Markers: where they point to),
//!   by its headers and its CRC; without CRCs by three in a row, or by one that fills a TCP
//!   segment.
//! * A connection of which one start-up frame is missing is followed with the other one. An FPDU
//!   that cannot be right under such a guess is no FPDU, instead of one that departs from the RFCs.
//!   After missing bytes, rules that need both directions from their beginning are not applied.

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
use std::sync::Arc;

pub use event::{
    Crc, Datagram, Departure, Event, Fpdu, Message, Negotiated, Record, Segment, Startup, Terminate,
};
pub use keylog::KeyLogError;
pub use output::Summary;
pub use select::ConnectionFilter;
pub use startup::RAW_TCP;

use crate::pcap::{Error, Packet, Reader};
use datagrams::Datagrams;
use flows::{Flows, Moment};
use keylog::KeyLog;
use output::{Print, Printer};
use packet::Content;

/// Files to decode, and the findings to print.
#[derive(Clone, Debug, Default)]
pub struct DecodeConfig {
    /// pcap or pcapng files; several are one capture that was rotated, in the order of their times.
    /// `-` is standard input.
    pub files: Vec<PathBuf>,
    /// One JSON object per line.
    pub json: bool,
    /// Prints departures, missing bytes and the summary only.
    pub quiet: bool,
    /// Connections to print; all if empty.
    pub connections: Vec<ConnectionFilter>,
    /// File with the secrets of TLS connections, in the format of Wireshark's key log.
    pub keylog: Option<PathBuf>,
}

/// Decodes the files and prints the findings to `out`.
///
/// # Errors
/// The file that failed, and why: it cannot be read as a capture at all, or `out` cannot be
/// written.
pub fn decode_to(config: &DecodeConfig, out: &mut dyn Write) -> Result<Summary, (PathBuf, DecodeError)> {
    let print = if config.quiet { Print::Departures } else { Print::Everything };
    let mut printer = Printer::new(out, config.json, print);
    let mut decoder = Decoder { selection: config.connections.clone(), ..Decoder::default() };
    if let Some(path) = &config.keylog {
        let log = KeyLog::read(path).map_err(|wrong| (path.clone(), DecodeError::KeyLog(wrong)))?;
        decoder.flows.keys = Some(Arc::new(log));
        decoder.summary.has_key_log = true;
    }
    for OpenedCapture { mut reader, first, file } in open_all(&config.files)? {
        let is_live = file == Path::new("-");
        let mut next = first;
        loop {
            match next {
                Ok(Some(packet)) => {
                    decoder.secrets(reader.take_secrets());
                    decoder.packet(&packet, &mut |record| printer.record(record));
                }
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
    let written = printer.summary(&summary).map_err(DecodeError::Output);
    written.map_err(|failure| (config.files.first().cloned().unwrap_or_default(), failure))?;
    Ok(summary)
}

/// A capture of which the first packet was read.
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

/// Decodes a capture; every finding goes to `sink` in the order of the capture.
///
/// # Errors
/// The input is no capture. A capture that is damaged further on is decoded up to there, which the
/// [`Summary`] has it.
pub fn decode(input: impl Read, sink: &mut dyn FnMut(&Record)) -> Result<Summary, DecodeError> {
    let mut reader = Reader::new(BufReader::with_capacity(1 << 16, input)).map_err(DecodeError::Capture)?;
    let mut decoder = Decoder::default();
    loop {
        match reader.next_packet() {
            Ok(Some(packet)) => {
                decoder.secrets(reader.take_secrets());
                decoder.packet(&packet, sink);
            }
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
    /// Selects these connections only; all if there are none.
    selection: Vec<ConnectionFilter>,
}

impl Decoder {
    /// Takes secrets that the capture itself has. Lines that are none are left out.
    fn secrets(&mut self, text: Option<String>) {
        let Some(text) = text else { return };
        let keys = self.flows.keys.get_or_insert_default();
        let log = text.lines().filter_map(|line| KeyLog::parse(line).ok());
        log.for_each(|line| Arc::make_mut(keys).merge(line));
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
        } else {
            summary.left_out = flows.counts.connections - summary.connections.min(flows.counts.connections);
        }
        summary.locked = flows.counts.locked;
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
    /// The file is no capture.
    #[error("{0}")]
    Capture(Error),
    /// The file of secrets cannot be read, or is none.
    #[error("{0}")]
    KeyLog(KeyLogError),
    /// The findings cannot be written.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}
