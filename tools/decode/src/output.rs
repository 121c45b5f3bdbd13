//! Output of findings as text or as JSON lines, and of the summary.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;

use serde::Serialize;

use super::event::{Crc, Datagram, Event, Fpdu, Message, Negotiated, Record, Segment};
use super::select::ConnectionFilter;
use crate::json;
use crate::number::number;

/// Summary of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Number of packets.
    pub packets: u64,
    /// Number of iWARP connections.
    pub connections: u32,
    /// Number of selected TLS connections that cannot be decrypted, which may or may not be iWARP.
    pub locked: u32,
    /// Number of MPA Request and Reply Frames.
    pub startup_frames: u64,
    /// Number of FPDUs.
    pub fpdus: u64,
    /// Number of FPDUs whose CRC matches.
    pub crc_good: u64,
    /// Number of FPDUs whose CRC does not match.
    pub crc_bad: u64,
    /// Number of FPDUs of connections without CRCs.
    pub crc_off: u64,
    /// Number of FPDUs that are incomplete in the capture.
    pub crc_unknown: u64,
    /// Number of complete RDMAP messages by name.
    pub messages: BTreeMap<&'static str, u64>,
    /// Number of datagrams between uiw peers.
    pub datagrams: u64,
    /// Number of departures from the RFCs.
    pub departures: u64,
    /// Bytes of iWARP connections that are not in the capture.
    pub missing_bytes: u64,
    /// Number of directions that could not be decoded to their end.
    pub not_followed: u64,
    /// Number of times that a direction was decoded again after missing bytes.
    pub resumed: u64,
    /// Bytes of iWARP connections that were captured more than once.
    pub repeated_bytes: u64,
    /// Number of IP fragments of TCP segments, which are not reassembled.
    pub fragments: u64,
    /// Number of packets whose TCP header is damaged or incomplete.
    pub broken_tcp: u64,
    /// Unsupported link types.
    pub unknown_links: BTreeSet<u32>,
    /// Reason why the capture could not be read to its end.
    pub capture_error: Option<String>,
    /// Number of packets that were captured only in part.
    pub cut_packets: u64,
    /// Selected connections, if there is a selection.
    #[serde(skip)]
    pub(super) selected: BTreeSet<u32>,
    /// Connections and senders of directions that are currently not decoded.
    #[serde(skip)]
    pub(super) stopped: BTreeSet<(u32, SocketAddr)>,
    /// Number of connections that are not selected.
    #[serde(skip)]
    pub(super) left_out: u32,
    /// Length on the wire and in the capture of the longest packet that was captured only in part.
    #[serde(skip)]
    pub(super) largest_cut: Option<(usize, usize)>,
    /// True if a key log was given.
    #[serde(skip)]
    pub(super) has_key_log: bool,
}

impl Summary {
    /// Returns whether the decoder could follow every byte of iWARP. TLS connections that cannot be
    /// decrypted do not count, since most are those of other protocols.
    #[must_use]
    pub fn followed(&self) -> bool {
        (self.connections > 0 || self.datagrams > 0)
            && self.missing_bytes == 0
            && self.not_followed == 0
            && self.unknown_links.is_empty()
            && self.capture_error.is_none()
    }

    /// Counts a finding and passes it to `sink`, if it is selected.
    pub(super) fn count(
        &mut self,
        record: &Record,
        selection: &[ConnectionFilter],
        sink: &mut dyn FnMut(&Record),
    ) {
        if !selection.is_empty() {
            if !selection
                .iter()
                .any(|which| which.matches(record.connection, [record.from, record.to]))
            {
                return;
            }
            let is_new = record.connection > 0 && self.selected.insert(record.connection);
            self.connections += u32::from(is_new);
        }
        match &record.event {
            Event::Startup(_) => self.startup_frames += 1,
            Event::Fpdu(fpdu) => {
                self.fpdus += 1;
                *match fpdu.crc {
                    Crc::Good => &mut self.crc_good,
                    Crc::Bad => &mut self.crc_bad,
                    Crc::Off => &mut self.crc_off,
                    Crc::Unknown => &mut self.crc_unknown,
                } += 1;
            }
            Event::Message(message) => *self.messages.entry(message.name).or_default() += 1,
            Event::Datagram(_) => self.datagrams += 1,
            Event::Departure(_) => self.departures += 1,
            Event::Missing { bytes, .. } => self.missing_bytes += bytes,
            Event::NotFollowed { .. } => {
                self.not_followed += 1;
                self.stopped.insert((record.connection, record.from));
            }
            Event::Resumed { .. } => {
                self.resumed += 1;
                self.stopped.remove(&(record.connection, record.from));
            }
            Event::Tcp { repeated_bytes, .. } => self.repeated_bytes += repeated_bytes,
            Event::Negotiated(_) | Event::RawTcp | Event::Closed { .. } | Event::Lost { .. } => {}
        }
        sink(record);
    }

    /// Returns the reasons why the decoder could not follow every byte, one for each line.
    fn unfollowed_reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.connections == 0 && self.datagrams == 0 {
            if self.left_out > 0 {
                let connections = number(self.left_out.into(), "connection");
                reasons.push(format!("--connection leaves out every one of {connections}"));
            } else if self.locked == 0 {
                let why = "no MPA Request or Reply Frame in the capture: capture from the connection's start on";
                reasons.push(why.to_owned());
            }
        }
        if self.locked > 0 {
            let connections = number(self.locked.into(), "connection");
            reasons.push(if self.has_key_log {
                format!(
                    "{connections} of TLS, whose secrets neither the file of --keylog nor the capture has"
                )
            } else {
                format!("{connections} of TLS: name the file of their secrets with --keylog")
            });
        }
        if self.missing_bytes > 0 {
            reasons.push(format!("{} missing from the capture", are(self.missing_bytes, "byte")));
        }
        if let Some((original, captured)) = self.largest_cut {
            reasons.push(format!(
                "{} captured in part, such as {captured} bytes of {original}: raise the snapshot length (`tcpdump -s 0`)",
                are(self.cut_packets, "packet")
            ));
        }
        if self.not_followed > 0 {
            let stopped = self.stopped.len() as u64;
            for (count, part) in [
                (stopped, "to the end"),
                (self.not_followed.saturating_sub(stopped), "from the beginning on"),
            ] {
                if count > 0 {
                    reasons.push(format!(
                        "{} could not be decoded {part}",
                        number(count, "direction")
                    ));
                }
            }
        }
        for link in &self.unknown_links {
            reasons.push(format!("link type {link} is not understood"));
        }
        reasons.extend(
            self.capture_error
                .iter()
                .map(|error| format!("the capture could not be read on: {error}")),
        );
        reasons
    }
}

/// Formats a number with a noun and a verb: "1 byte is", "2 bytes are".
fn are(count: u64, what: &str) -> String {
    format!("{} {}", number(count, what), if count == 1 { "is" } else { "are" })
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {}, {}, {}",
            number(self.packets, "packet"),
            number(self.connections.into(), "iWARP connection"),
            number(self.startup_frames, "startup frame"),
            number(self.fpdus, "FPDU"),
        )?;
        writeln!(
            f,
            "CRC: {} good, {} bad, {} off, {} not checkable",
            self.crc_good, self.crc_bad, self.crc_off, self.crc_unknown
        )?;
        if !self.messages.is_empty() {
            let messages: Vec<_> =
                self.messages.iter().map(|(name, count)| format!("{count} {name}")).collect();
            writeln!(f, "messages: {}", messages.join(", "))?;
        }
        for (count, what) in [
            (self.datagrams, "datagrams between uiw peers"),
            (self.repeated_bytes, "bytes came more than once"),
            (self.fragments, "IP fragments of TCP were not put together"),
            (self.broken_tcp, "packets have no whole TCP header"),
        ] {
            if count > 0 {
                writeln!(f, "{count} {what}")?;
            }
        }
        writeln!(f, "{} from the RFCs", number(self.departures, "departure"))?;
        for reason in self.unfollowed_reasons() {
            writeln!(f, "not followed: {reason}")?;
        }
        Ok(())
    }
}

/// Printer of findings.
pub(super) struct Printer<'a> {
    out: &'a mut dyn Write,
    json: bool,
    /// True to print only departures, missing bytes, and parts of directions that could not be
    /// decoded.
    quiet: bool,
    /// Time of the first record. Times are printed relative to it.
    start: Option<u64>,
    /// First write error, after which nothing more is written.
    failed: Option<io::Error>,
}

impl<'a> Printer<'a> {
    pub(super) fn new(out: &'a mut dyn Write, json: bool, quiet: bool) -> Self {
        Self { out, json, quiet, start: None, failed: None }
    }

    pub(super) fn record(&mut self, record: &Record) {
        self.start = self.start.or(record.time);
        let wanted = matches!(
            record.event,
            Event::Departure(_)
                | Event::Missing { .. }
                | Event::Lost { .. }
                | Event::Resumed { .. }
                | Event::NotFollowed { .. }
        );
        if self.quiet && !wanted || self.failed.is_some() {
            return;
        }
        let result = if self.json { self.json(record) } else { self.text(record) };
        self.failed = result.err();
    }

    pub(super) fn summary(mut self, summary: &Summary) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.json {
            #[derive(Serialize)]
            struct OutputLine<'a> {
                r#type: &'static str,
                #[serde(flatten)]
                summary: &'a Summary,
                followed: bool,
            }
            self.json(&OutputLine { r#type: "summary", summary, followed: summary.followed() })?;
        } else {
            write!(self.out, "{summary}")?;
        }
        self.out.flush()
    }

    /// Returns whether a write has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Flushes the output.
    pub(super) fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.flush().err();
        }
    }

    fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        json::write(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    fn text(&mut self, record: &Record) -> io::Result<()> {
        let Record { time, packet, connection, from, to, event } = record;
        let since = time.zip(self.start).map(|(time, start)| time.saturating_sub(start));
        let Some(text) = text(event) else { return Ok(()) };
        match since {
            Some(since) => {
                write!(self.out, "{:>4}.{:06}", since / 1_000_000_000, since / 1000 % 1_000_000)?;
            }
            None => write!(self.out, "{:>11}", "-")?,
        }
        let connection = if *connection == 0 { "UDP".to_owned() } else { connection.to_string() };
        writeln!(self.out, " #{packet} [{connection}] {from} > {to}  {text}")
    }
}

/// Returns the line for an event, or `None` for an event that needs no line.
fn text(event: &Event) -> Option<String> {
    Some(match event {
        Event::Startup(startup) => startup.text.clone(),
        Event::Negotiated(negotiated) => negotiated_text(negotiated),
        Event::Fpdu(fpdu) => fpdu_text(fpdu),
        Event::Message(message) => return message_text(message),
        Event::Datagram(datagram) => datagram_text(datagram),
        Event::Departure(departure) => {
            format!("DEPARTURE ({}): {}", departure.rule, departure.what)
        }
        Event::Missing { position, bytes } => {
            format!("MISSING: {bytes} bytes after byte {position}")
        }
        Event::Lost { position } => {
            format!("LOST: the length of the FPDU at {position} is missing")
        }
        Event::Resumed { position, skipped } => {
            format!("RESUMED: an FPDU at {position}, behind {skipped} bytes that were not decoded")
        }
        Event::NotFollowed { position, why } => {
            format!("NOT FOLLOWED from byte {position} on: {why}")
        }
        Event::RawTcp => "raw TCP from here on: a connection of `uiw perf --compare`".into(),
        Event::Closed { what } => format!("unfinished: {what}"),
        Event::Tcp { .. } => return None,
    })
}

fn datagram_text(datagram: &Datagram) -> String {
    let Datagram { name, length, order, .. } = datagram;
    let order = order.as_ref().map_or_else(String::new, |order| format!(" ({order})"));
    match datagram {
        Datagram {
            destination_qpn: Some(to),
            source_qpn: Some(from),
            msn: Some(msn),
            epoch: Some(epoch),
            ..
        } => {
            let imm = datagram
                .immediate
                .map_or_else(String::new, |imm| format!(", immediate {imm:#010x}"));
            let qkey = datagram.qkey.unwrap_or_default();
            format!(
                "datagram {name} to QPN {to:#08x} Q_Key {qkey:#010x} from QPN {from:#08x} epoch {epoch:#010x} MSN {msn}, \
                 {length} bytes{imm}{order}"
            )
        }
        Datagram { transaction, private_data_length, destination_qpn, .. } => {
            let qpn = destination_qpn.map_or_else(String::new, |qpn| format!(" QPN {qpn:#08x},"));
            let qkey =
                datagram.qkey.map_or_else(String::new, |qkey| format!(" Q_Key {qkey:#010x},"));
            format!(
                "{name},{qpn}{qkey} transaction {:#018x}, {} bytes of private data{}",
                transaction.unwrap_or_default(),
                private_data_length.unwrap_or_default(),
                datagram.private_text
            )
        }
    }
}

fn negotiated_text(negotiated: &Negotiated) -> String {
    let on = |on: bool| if on { "on" } else { "off" };
    let rtr = if negotiated.rtr.is_empty() { "none".into() } else { negotiated.rtr.join(" or ") };
    format!(
        "Full Operation: CRC {}, Markers from initiator {}, from responder {}, RTR {rtr}",
        on(negotiated.crc),
        on(negotiated.markers_from_initiator),
        on(negotiated.markers_from_responder)
    )
}

fn fpdu_text(fpdu: &Fpdu) -> String {
    let crc = match fpdu.crc {
        Crc::Good => "CRC good",
        Crc::Bad => "CRC BAD",
        Crc::Off => "CRC off",
        Crc::Unknown => "CRC not checkable",
    };
    let markers = match fpdu.markers {
        0 => String::new(),
        1 => ", 1 Marker".into(),
        count => format!(", {count} Markers"),
    };
    let segment =
        fpdu.segment.as_ref().map_or_else(|| "no readable DDP header".into(), segment_text);
    format!("FPDU at {}, ULPDU of {}, {crc}{markers}: {segment}", fpdu.position, fpdu.ulpdu_length)
}

fn segment_text(segment: &Segment) -> String {
    let last = if segment.last { ", last" } else { "" };
    let place = match segment {
        Segment { stag: Some(stag), tagged_offset: Some(to), .. } => {
            format!("STag {stag:#010x} TO {to:#x}")
        }
        Segment { qn: Some(qn), msn: Some(msn), mo: Some(mo), .. } => {
            format!("QN {qn} MSN {msn} MO {mo}")
        }
        _ => String::new(),
    };
    format!("{} {place}, {} bytes{last}", segment.name, segment.payload_length)
}

fn message_text(message: &Message) -> Option<String> {
    let Message { name, length, segments, details, .. } = message;
    if *segments == 1 && (details.is_empty() || matches!(message.opcode, 0 | 2)) {
        return None;
    }
    let separator = if details.is_empty() { "" } else { ": " };
    let segments = if *segments == 1 { String::new() } else { format!(" in {segments} segments") };
    Some(format!("  message {name}, {length} bytes{segments}{separator}{details}"))
}
