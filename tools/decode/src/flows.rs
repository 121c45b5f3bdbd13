//! TCP connections, and recognising those that are iWARP: their bytes begin with an MPA Key. The
//! port does not matter.
//!
//! A capture may lack packets, or contain them in another order than they were sent. A segment is
//! processed after everything that it acknowledges, because its sender had received that. If
//! acknowledged bytes do not come within [`MAX_LATE`] packets, they are missing from the capture.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use uiw_mpa::wire::startup::{FrameKind, KEY_REPLY, KEY_REQUEST};

use super::connection::{Connection, Findings, Side, opposite};
use super::event::{Event, Record};
use super::keylog::KeyLog;
use super::packet::TcpSegment;
use super::reassembly::{ByteStream, Chunk};
use super::seek::begins_with_fpdu;
use super::select::ConnectionFilter;
use super::tls;

/// Number of connections at which those that are not iWARP, or have ended, are forgotten. If more
/// than half of this number remain, the limit becomes twice the number of the remaining ones.
const MAX_FLOWS: usize = 65_536;

/// Maximum number of packets of a connection by which a segment may be captured after the one that
/// acknowledges it.
const MAX_LATE: usize = 64;
/// Maximum number of payload bytes of segments that wait for the bytes which they acknowledge.
const MAX_LATE_BYTES: usize = 4 << 20;
/// Maximum number of bytes kept for a direction that lacks its beginning, until the other direction
/// shows whether the connection is iWARP.
const MAX_OPENING: usize = 256 << 10;

/// Length of a Key in bytes.
const KEY_LEN: usize = KEY_REQUEST.len();

/// Time and number of a captured packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketTime {
    pub(super) time: Option<u64>,
    pub(super) packet: u64,
}

/// TCP connections of a capture.
#[derive(Debug, Default)]
pub(super) struct Flows {
    table: BTreeMap<(SocketAddr, SocketAddr), TcpFlow>,
    /// Number of connections above which those that are not iWARP are forgotten, if it is more than
    /// [`MAX_FLOWS`].
    most: usize,
    pub(super) shared: SharedState,
}

/// State that all connections share.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    /// Number of iWARP connections so far.
    pub(super) connections: u32,
    /// Number of selected TLS connections so far that cannot be decrypted.
    pub(super) locked: u32,
    /// Secrets of TLS connections.
    pub(super) keys: KeyLog,
    /// Selected connections; all if empty.
    pub(super) selection: Vec<ConnectionFilter>,
}

#[derive(Debug)]
struct TcpFlow {
    ends: [SocketAddr; 2],
    streams: [Option<ByteStream>; 2],
    /// Sequence numbers of the FINs.
    fins: [Option<u32>; 2],
    /// True if a RST arrived while bytes before it were still missing.
    reset: bool,
    /// Segments that are not processed yet, most of them because they acknowledge bytes which have
    /// not arrived.
    late: VecDeque<LateSegment>,
    late_bytes: usize,
    /// Number of packets so far.
    arrived: u64,
    state: FlowState,
    cover: EncryptionLayer,
}

/// Encryption around the bytes of MPA.
#[derive(Debug)]
enum EncryptionLayer {
    /// No bytes were captured yet.
    Unknown,
    Nothing,
    Tls(Box<tls::TlsSession>),
}

/// A segment that waits for bytes which it acknowledges.
#[derive(Debug)]
struct LateSegment {
    side: Side,
    at: PacketTime,
    /// Value of [`TcpFlow::arrived`] when the segment arrived.
    arrived: u64,
    header: SegmentHeader,
    payload: Vec<u8>,
}

/// A segment without its payload.
#[derive(Clone, Copy, Debug)]
struct SegmentHeader {
    sequence: u32,
    acknowledgment: Option<u32>,
    syn: bool,
    fin: bool,
    rst: bool,
    cut: u32,
}

impl SegmentHeader {
    fn from_segment(segment: &TcpSegment<'_>) -> Self {
        let TcpSegment { sequence, acknowledgment, syn, fin, rst, cut, .. } = *segment;
        Self { sequence, acknowledgment, syn, fin, rst, cut }
    }
}

#[derive(Debug)]
enum FlowState {
    /// Initial state, until the first bytes of either direction show whether it is iWARP.
    Watching {
        openings: [OpeningBytes; 2],
    },
    /// Not iWARP so far; RFC 5044 section 7.1.3 allows other traffic before the startup frames.
    Ignored,
    Iwarp {
        id: u32,
        connection: Box<Connection>,
    },
    /// The connection has ended; further segments are repetitions.
    Done,
}

/// The first bytes of a direction, and the number of missing bytes before them.
#[derive(Debug, Default)]
struct OpeningBytes {
    missing: u64,
    bytes: Vec<u8>,
}

impl FlowState {
    fn watching() -> Self {
        Self::Watching { openings: Default::default() }
    }
}

impl Flows {
    /// Takes the next segment of the capture.
    pub(super) fn segment(
        &mut self,
        segment: &TcpSegment<'_>,
        at: PacketTime,
        sink: &mut dyn FnMut(&Record),
    ) {
        if self.table.len() >= self.most.max(MAX_FLOWS) {
            self.table.retain(|_, flow| matches!(flow.state, FlowState::Iwarp { .. }));
            // Search the table again only after the same number of connections has been added.
            self.most = 2 * self.table.len();
        }
        let key = (segment.from.min(segment.to), segment.from.max(segment.to));
        let flow = self.table.entry(key).or_insert_with(|| TcpFlow::new(key));
        let side = usize::from(segment.from != key.0);
        if segment.syn && flow.is_reused(side, segment) {
            flow.finish("the next connection of these ports begins", at, &mut self.shared, sink);
            *flow = TcpFlow::new(key);
        }
        flow.accept_segment(side, segment, at, &mut self.shared, sink);
    }

    /// Finishes all connections at the end of the capture.
    pub(super) fn finish(&mut self, at: PacketTime, sink: &mut dyn FnMut(&Record)) {
        let mut flows: Vec<_> = std::mem::take(&mut self.table).into_values().collect();
        flows.sort_by_key(TcpFlow::id);
        for mut flow in flows {
            let how = if flow.reset { "RST" } else { "the capture ends" };
            flow.finish(how, at, &mut self.shared, sink);
        }
    }
}

impl TcpFlow {
    fn new((low, high): (SocketAddr, SocketAddr)) -> Self {
        Self {
            ends: [low, high],
            streams: [None, None],
            fins: [None, None],
            reset: false,
            late: VecDeque::new(),
            late_bytes: 0,
            arrived: 0,
            state: FlowState::watching(),
            cover: EncryptionLayer::Unknown,
        }
    }

    fn id(&self) -> u32 {
        match self.state {
            FlowState::Iwarp { id, .. } => id,
            _ => 0,
        }
    }

    /// Returns whether a SYN begins a new connection with the same addresses.
    fn is_reused(&self, side: Side, segment: &TcpSegment<'_>) -> bool {
        let first = segment.sequence.wrapping_add(1);
        matches!(self.state, FlowState::Done)
            || matches!(self.state, FlowState::Ignored) && segment.acknowledgment.is_none()
            || self.streams[side].as_ref().is_some_and(|stream| stream.first() != first)
    }

    /// Returns whether both FINs arrived, and all bytes before them.
    fn is_over(&self) -> bool {
        matches!(self.state, FlowState::Iwarp { .. })
            && [0, 1].into_iter().all(|side| match (&self.streams[side], self.fins[side]) {
                (Some(stream), Some(fin)) => stream.is_next(fin),
                _ => false,
            })
    }

    /// Accepts the next segment of the capture, and processes it and those that waited for it if
    /// possible.
    fn accept_segment(
        &mut self,
        side: Side,
        segment: &TcpSegment<'_>,
        at: PacketTime,
        shared: &mut SharedState,
        sink: &mut dyn FnMut(&Record),
    ) {
        self.arrived += 1;
        let header = SegmentHeader::from_segment(segment);
        let says =
            !segment.payload.is_empty() || header.cut > 0 || header.syn || header.fin || header.rst;
        if says && self.late.is_empty() && self.is_ready(side, &header, segment.payload) {
            return self.process_segment(side, &header, segment.payload, at, shared, sink);
        }
        if says {
            self.late_bytes += segment.payload.len();
            let (payload, arrived) = (segment.payload.to_vec(), self.arrived);
            self.late.push_back(LateSegment { side, at, arrived, header, payload });
        }
        while let Some(late) = self.next_late(false) {
            self.process_segment(late.side, &late.header, &late.payload, late.at, shared, sink);
        }
    }

    /// Returns whether everything that the segment acknowledges was processed, so that the segment
    /// can be processed.
    fn is_ready(&self, side: Side, header: &SegmentHeader, payload: &[u8]) -> bool {
        // If the beginning of the connection was not captured, a Reply waits for the Request, which
        // may follow in the capture. Only a startup frame may be processed before the Reply.
        let unknown = |side: Side, payload: &[u8]| {
            payload.starts_with(&KEY_REPLY) && self.begins_startup(side, payload)
        };
        if unknown(side, payload) {
            return false;
        }
        let behind_reply = self.late.iter().any(|late| unknown(late.side, &late.payload));
        if behind_reply && !self.begins_startup(side, payload) {
            return false;
        }
        matches!(self.state, FlowState::Ignored | FlowState::Done)
            || self.missing_acknowledged(side, header) == 0
    }

    /// Returns the number of bytes that the segment acknowledges and that have not arrived.
    fn missing_acknowledged(&self, side: Side, header: &SegmentHeader) -> u64 {
        let (Some(stream), Some(acknowledged)) =
            (&self.streams[opposite(side)], header.acknowledgment)
        else {
            return 0;
        };
        let lacking = stream.missing_before(acknowledged);
        // A FIN counts as one byte.
        let fin = self.fins[opposite(side)].is_some_and(|fin| acknowledged == fin.wrapping_add(1));
        lacking - u64::from(fin && lacking > 0)
    }

    /// Takes the next waiting segment to process: one that is ready, or the first one if it has
    /// waited for too long or nothing more will arrive (`is_end`).
    fn next_late(&mut self, is_end: bool) -> Option<LateSegment> {
        let ready =
            self.late.iter().position(|late| self.is_ready(late.side, &late.header, &late.payload));
        let first = self.late.front()?;
        let overdue = is_end
            || self.arrived - first.arrived > MAX_LATE as u64
            || self.late.len() > MAX_LATE
            || self.late_bytes > MAX_LATE_BYTES;
        let late = self.late.remove(ready.or(overdue.then_some(0))?)?;
        self.late_bytes -= late.payload.len();
        Some(late)
    }

    /// Processes a segment. Bytes that it acknowledges and that have not arrived are reported as
    /// missing from the capture.
    fn process_segment(
        &mut self,
        side: Side,
        header: &SegmentHeader,
        payload: &[u8],
        at: PacketTime,
        shared: &mut SharedState,
        sink: &mut dyn FnMut(&Record),
    ) {
        // A single missing byte may be a FIN that is not in the capture.
        if let Some(acknowledged) = header.acknowledgment
            && self.missing_acknowledged(side, header) > 0
            && let Some(stream) = &mut self.streams[opposite(side)]
            && (stream.missing_before(acknowledged) > 1 || stream.has_hole())
        {
            let before_fin = acknowledged.wrapping_sub(1);
            let is_of_fin = self.fins[opposite(side)] == Some(before_fin);
            let mut chunks = Vec::new();
            stream.give_up_to(if is_of_fin { before_fin } else { acknowledged }, &mut chunks);
            for chunk in chunks {
                let mut findings = Findings::new();
                self.feed_chunk(opposite(side), chunk, shared, &mut findings);
                self.report(&mut findings, at, sink);
            }
        }
        self.feed_segment(side, header, payload, shared, &mut |flow, findings| {
            flow.report(findings, at, sink);
        });
        if self.is_over() {
            self.finish("FIN", at, shared, sink);
            return;
        }
        if header.rst && matches!(self.state, FlowState::Iwarp { .. }) {
            let whole = |stream: &Option<ByteStream>| {
                stream.as_ref().is_none_or(|stream| !stream.has_hole())
            };
            let in_order =
                self.streams[side].as_ref().is_none_or(|stream| stream.is_next(header.sequence));
            if in_order && self.late.is_empty() && self.streams.iter().all(whole) {
                return self.finish("RST", at, shared, sink);
            }
            self.reset = true;
        }
    }

    /// Passes a segment to its stream. `report` is called after every piece of the stream, so that
    /// findings do not accumulate.
    fn feed_segment(
        &mut self,
        side: Side,
        header: &SegmentHeader,
        payload: &[u8],
        shared: &mut SharedState,
        report: &mut dyn FnMut(&Self, &mut Findings),
    ) {
        if matches!(self.state, FlowState::Done) {
            return;
        }
        let mut sequence = header.sequence;
        if header.syn {
            sequence = sequence.wrapping_add(1);
            self.streams[side].get_or_insert_with(|| ByteStream::new(sequence));
        }
        let mut missed = false;
        if !payload.is_empty() && self.begins_startup(side, payload) {
            missed = self.begin_mid_stream(side, header, payload);
        }
        let is_unknown = matches!(self.state, FlowState::Watching { .. } | FlowState::Ignored);
        if is_unknown
            && self.streams.iter().all(Option::is_none)
            && !header.syn
            && begins_with_fpdu(payload)
        {
            let mut findings = Findings::new();
            self.begin_without_startup(side, header, shared, &mut findings);
            report(self, &mut findings);
        }
        if !payload.is_empty()
            && self.streams[side].is_some()
            && self.streams[opposite(side)].is_none()
        {
            // The SYN of the other direction is not in the capture.
            self.streams[opposite(side)] = header.acknowledgment.map(ByteStream::new);
            missed |=
                payload.starts_with(&KEY_REPLY) && matches!(self.state, FlowState::Watching { .. });
        }
        if header.fin {
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).wrapping_add(header.cut);
            self.fins[side] = Some(sequence.wrapping_add(length));
        }
        let mut chunks = Vec::new();
        match &mut self.streams[side] {
            Some(stream) => stream.push(sequence, payload, header.cut, &mut chunks),
            None if !payload.is_empty() => self.ignore(),
            None => {}
        }
        for chunk in chunks {
            let mut findings = Findings::new();
            self.feed_chunk(side, chunk, shared, &mut findings);
            if missed
                && let FlowState::Iwarp { connection, .. } = &mut self.state
                && connection.has_frame(side)
            {
                connection.request_was_missed(side, &mut findings);
                missed = false;
            }
            report(self, &mut findings);
        }
    }

    /// Returns whether this segment begins with a startup frame, in a direction that is not
    /// followed from its SYN on.
    fn begins_startup(&self, side: Side, payload: &[u8]) -> bool {
        let open = match self.state {
            FlowState::Ignored => true,
            FlowState::Watching { .. } => self.streams[side].is_none(),
            FlowState::Iwarp { .. } | FlowState::Done => false,
        };
        open && (payload.starts_with(&KEY_REQUEST) || payload.starts_with(&KEY_REPLY))
    }

    /// Follows both directions from here on. Returns true if this is a Reply whose Request was not
    /// captured.
    fn begin_mid_stream(&mut self, side: Side, header: &SegmentHeader, payload: &[u8]) -> bool {
        self.streams[side] = Some(ByteStream::new(header.sequence));
        self.streams[opposite(side)] = header.acknowledgment.map(ByteStream::new);
        self.state = FlowState::watching();
        payload.starts_with(&KEY_REPLY)
    }

    /// Follows both directions from an FPDU on. The startup frames are in a file that is no longer
    /// available, or were not captured.
    fn begin_without_startup(
        &mut self,
        side: Side,
        header: &SegmentHeader,
        shared: &mut SharedState,
        findings: &mut Findings,
    ) {
        self.streams[side] = Some(ByteStream::new(header.sequence));
        self.streams[opposite(side)] = header.acknowledgment.map(ByteStream::new);
        // The CRC of the FPDU is correct, so it is no record of TLS.
        self.cover = EncryptionLayer::Nothing;
        shared.connections += 1;
        let connection = Box::new(Connection::without_startup(findings));
        self.state = FlowState::Iwarp { id: shared.connections, connection };
    }

    fn ignore(&mut self) {
        if matches!(self.state, FlowState::Watching { .. }) {
            self.state = FlowState::Ignored;
            self.streams = [None, None];
        }
    }

    fn feed_chunk(
        &mut self,
        side: Side,
        chunk: Chunk,
        shared: &mut SharedState,
        findings: &mut Findings,
    ) {
        if let (EncryptionLayer::Unknown, Chunk::Bytes(bytes)) = (&self.cover, &chunk) {
            self.cover = match tls::begins_tls(bytes) {
                true => EncryptionLayer::Tls(Box::default()),
                false => EncryptionLayer::Nothing,
            };
        }
        let EncryptionLayer::Tls(session) = &mut self.cover else {
            return self.feed_plaintext(side, chunk, shared, findings);
        };
        let was_locked = session.is_any_locked();
        let chunks = session.decrypt(side, chunk, &shared.keys);
        let locked = [0, 1].map(|side| session.is_locked(side));
        for (side, chunk) in chunks {
            self.feed_plaintext(side, chunk, shared, findings);
        }
        if let FlowState::Iwarp { connection, .. } = &mut self.state {
            for side in [0, 1].into_iter().filter(|side| locked[*side]) {
                connection.stop_following(side, "a record of TLS cannot be decrypted", findings);
            }
            return;
        }
        if !was_locked && locked.contains(&true) {
            self.count_locked(shared);
        }
        if locked == [true; 2] {
            self.cover = EncryptionLayer::Nothing;
            self.ignore();
        }
    }

    /// Counts a TLS connection that cannot be decrypted, if it is selected.
    fn count_locked(&self, shared: &mut SharedState) {
        let selection = &shared.selection;
        let is_selected =
            selection.is_empty() || selection.iter().any(|which| which.matches(0, self.ends));
        shared.locked += u32::from(is_selected);
    }

    /// Takes the next decrypted piece of a direction, which contains the bytes of MPA.
    fn feed_plaintext(
        &mut self,
        side: Side,
        chunk: Chunk,
        shared: &mut SharedState,
        findings: &mut Findings,
    ) {
        match (&mut self.state, chunk) {
            (FlowState::Iwarp { connection, .. }, chunk) => connection.feed(side, chunk, findings),
            (FlowState::Watching { openings }, Chunk::Bytes(bytes)) => {
                let opening = &mut openings[side];
                opening.bytes.extend(bytes);
                let key = &opening.bytes[..opening.bytes.len().min(KEY_LEN)];
                if opening.missing > 0 {
                    // The other direction will show whether this is iWARP.
                    if opening.bytes.len() > MAX_OPENING {
                        self.ignore();
                    }
                    return;
                }
                match FrameKind::detect(key) {
                    Err(_) => self.ignore(),
                    Ok(Some(_)) if key.len() == KEY_LEN => self.begin_iwarp(side, shared, findings),
                    Ok(_) => {}
                }
            }
            (FlowState::Watching { openings }, Chunk::Missing(bytes)) => {
                if openings[side].bytes.is_empty() {
                    openings[side].missing += bytes;
                } else {
                    self.ignore();
                }
            }
            (FlowState::Ignored | FlowState::Done, _) => {}
        }
    }

    /// Begins an iWARP connection after a complete Key.
    fn begin_iwarp(&mut self, side: Side, shared: &mut SharedState, findings: &mut Findings) {
        let FlowState::Watching { openings } = &mut self.state else { return };
        let mut openings = std::mem::take(openings);
        let mut connection = Box::new(Connection::new());
        shared.connections += 1;
        for side in [side, opposite(side)] {
            let OpeningBytes { missing, bytes } = std::mem::take(&mut openings[side]);
            if missing > 0 {
                connection.feed(side, Chunk::Missing(missing), findings);
            }
            if !bytes.is_empty() {
                connection.feed(side, Chunk::Bytes(bytes), findings);
            }
        }
        self.state = FlowState::Iwarp { id: shared.connections, connection };
    }

    /// Finishes a connection and reports its end.
    fn finish(
        &mut self,
        how: &str,
        at: PacketTime,
        shared: &mut SharedState,
        sink: &mut dyn FnMut(&Record),
    ) {
        // Process all waiting segments, because nothing more will arrive.
        while let Some(late) = self.next_late(true) {
            self.process_segment(late.side, &late.header, &late.payload, late.at, shared, sink);
        }
        if !matches!(self.state, FlowState::Iwarp { .. }) {
            if matches!(&self.cover, EncryptionLayer::Tls(session) if session.is_waiting()) {
                self.count_locked(shared);
            }
            return;
        }
        let mut findings = Findings::new();
        for side in [0, 1] {
            let mut chunks = Vec::new();
            if let Some(stream) = &mut self.streams[side] {
                stream.finish(&mut chunks);
            }
            for chunk in chunks {
                self.feed_chunk(side, chunk, shared, &mut findings);
            }
        }
        let FlowState::Iwarp { connection, .. } = &mut self.state else { return };
        for side in [0, 1] {
            connection.close(side, how, &mut findings);
            if let Some(ByteStream { repeated, retransmissions, .. }) = self.streams[side] {
                findings.push((side, Event::Tcp { repeated_bytes: repeated, retransmissions }));
            }
        }
        self.report(&mut findings, at, sink);
        self.state = FlowState::Done;
        self.streams = [None, None];
    }

    fn report(&self, findings: &mut Findings, at: PacketTime, sink: &mut dyn FnMut(&Record)) {
        let connection = self.id();
        for (side, event) in findings.drain(..) {
            let (from, to) = (self.ends[side], self.ends[opposite(side)]);
            sink(&Record { time: at.time, packet: at.packet, connection, from, to, event });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn flows_beyond_limit_cost_little() {
        let mut flows = Flows::default();
        let address =
            |number: usize| SocketAddr::new([10, 0, (number >> 16) as u8, 1].into(), number as u16);
        let peer = SocketAddr::from(([10, 1, 0, 0], 1));
        for number in 0..MAX_FLOWS {
            let key = (address(number), peer);
            let mut flow = TcpFlow::new(key);
            flow.state = FlowState::Iwarp { id: 1, connection: Box::new(Connection::new()) };
            flows.table.insert(key, flow);
        }
        let begun = Instant::now();
        for number in MAX_FLOWS..MAX_FLOWS + 30_000 {
            let segment = TcpSegment {
                from: address(number),
                to: peer,
                sequence: 0,
                acknowledgment: None,
                syn: true,
                fin: false,
                rst: false,
                payload: &[],
                cut: 0,
            };
            flows.segment(&segment, PacketTime::default(), &mut |_| {});
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(flows.table.len(), MAX_FLOWS + 30_000);
    }
}
