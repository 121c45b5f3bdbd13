//! Which TCP connections are iWARP: those whose bytes begin with an MPA Key, on whatever port.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use uiw_mpa::wire::startup::{FrameKind, KEY_REPLY, KEY_REQUEST};

use super::connection::{Connection, Findings, Side, other};
use super::event::Record;
use super::packet::Segment;
use super::reassembly::{Chunk, Stream};

/// Connections followed at a time. Above it those that are not iWARP are forgotten.
const MAX_FLOWS: usize = 65_536;

/// Bytes of a Key.
const KEY_LEN: usize = KEY_REQUEST.len();

/// When something was captured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) time: Option<u64>,
    pub(super) packet: u64,
}

/// All TCP connections of a capture.
#[derive(Debug, Default)]
pub(super) struct Flows {
    table: BTreeMap<(SocketAddr, SocketAddr), Flow>,
    /// iWARP connections so far.
    pub(super) connections: u32,
    /// Bytes of iWARP connections that came more than once.
    pub(super) repeated: u64,
}

#[derive(Debug)]
struct Flow {
    ends: [SocketAddr; 2],
    streams: [Option<Stream>; 2],
    /// The FIN's sequence number.
    fins: [Option<u32>; 2],
    state: State,
}

#[derive(Debug)]
enum State {
    /// From the SYN on, until the first bytes of either direction decide.
    Watching {
        openings: [Vec<u8>; 2],
    },
    /// Not iWARP so far; RFC 5044 section 7.1.3 allows other traffic before the startup frames.
    Ignored,
    Iwarp {
        id: u32,
        connection: Box<Connection>,
    },
    /// Over; what still comes is repeated.
    Done,
}

impl Flows {
    /// Takes the next segment of the capture.
    pub(super) fn segment(&mut self, segment: &Segment<'_>, at: Moment, sink: &mut dyn FnMut(&Record)) {
        if self.table.len() >= MAX_FLOWS {
            self.table.retain(|_, flow| matches!(flow.state, State::Iwarp { .. }));
        }
        let key = (segment.from.min(segment.to), segment.from.max(segment.to));
        let flow = self.table.entry(key).or_insert_with(|| Flow::new(key));
        let side = usize::from(segment.from != key.0);
        if segment.syn && flow.is_reused(side, segment.sequence) {
            self.repeated += flow.finish("the next connection of these ports begins", at, sink);
            *flow = Flow::new(key);
        }
        flow.segment(side, segment, &mut self.connections, &mut |flow, findings| {
            flow.report(findings, at, sink);
        });
        if flow.is_over() {
            self.repeated += flow.finish("FIN", at, sink);
        } else if segment.rst && matches!(flow.state, State::Iwarp { .. }) {
            self.repeated += flow.finish("RST", at, sink);
        }
    }

    /// The end of the capture.
    pub(super) fn finish(&mut self, at: Moment, sink: &mut dyn FnMut(&Record)) {
        let mut flows: Vec<_> = std::mem::take(&mut self.table).into_values().collect();
        flows.sort_by_key(Flow::id);
        for mut flow in flows {
            self.repeated += flow.finish("the capture ends", at, sink);
        }
    }
}

impl Flow {
    fn new((low, high): (SocketAddr, SocketAddr)) -> Self {
        let state = State::Watching { openings: [Vec::new(), Vec::new()] };
        Self { ends: [low, high], streams: [None, None], fins: [None, None], state }
    }

    fn id(&self) -> u32 {
        match self.state {
            State::Iwarp { id, .. } => id,
            _ => 0,
        }
    }

    /// Whether a SYN begins another connection than the one that is followed.
    fn is_reused(&self, side: Side, sequence: u32) -> bool {
        matches!(self.state, State::Done)
            || self.streams[side].as_ref().is_some_and(|stream| stream.first() != sequence.wrapping_add(1))
    }

    /// Both FINs came, and all that was sent before them.
    fn is_over(&self) -> bool {
        matches!(self.state, State::Iwarp { .. })
            && [0, 1].into_iter().all(|side| match (&self.streams[side], self.fins[side]) {
                (Some(stream), Some(fin)) => stream.is_next(fin),
                _ => false,
            })
    }

    /// `report` is called after every piece of the stream, so that findings do not pile up.
    fn segment(
        &mut self,
        side: Side,
        segment: &Segment<'_>,
        connections: &mut u32,
        report: &mut dyn FnMut(&Self, &mut Findings),
    ) {
        if matches!(self.state, State::Done) {
            return;
        }
        let mut sequence = segment.sequence;
        if segment.syn {
            sequence = sequence.wrapping_add(1);
            self.streams[side].get_or_insert_with(|| Stream::new(sequence));
        }
        let mut missed = false;
        if !segment.payload.is_empty() && self.begins_here(side, segment) {
            missed = self.begin_mid_stream(side, segment);
        }
        if segment.fin {
            let length = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX).wrapping_add(segment.cut);
            self.fins[side] = Some(sequence.wrapping_add(length));
        }
        let mut chunks = Vec::new();
        match &mut self.streams[side] {
            Some(stream) => stream.push(sequence, segment.payload, segment.cut, &mut chunks),
            None if !segment.payload.is_empty() => self.ignore(),
            None => {}
        }
        for chunk in chunks {
            let mut findings = Findings::new();
            self.chunk(side, chunk, connections, &mut findings);
            if missed
                && let State::Iwarp { connection, .. } = &mut self.state
                && connection.has_frame(side)
            {
                connection.request_was_missed(side, &mut findings);
                missed = false;
            }
            report(self, &mut findings);
        }
    }

    /// A startup frame begins with this segment, in a direction that is not followed from its SYN on.
    fn begins_here(&self, side: Side, segment: &Segment<'_>) -> bool {
        let open = match self.state {
            State::Ignored => true,
            State::Watching { .. } => self.streams[side].is_none(),
            State::Iwarp { .. } | State::Done => false,
        };
        open && (segment.payload.starts_with(&KEY_REQUEST) || segment.payload.starts_with(&KEY_REPLY))
    }

    /// Follows both directions from here on. `true`: it is a Reply, and its Request was not captured.
    fn begin_mid_stream(&mut self, side: Side, segment: &Segment<'_>) -> bool {
        self.streams[side] = Some(Stream::new(segment.sequence));
        self.streams[other(side)] = segment.acknowledgment.map(Stream::new);
        self.state = State::Watching { openings: [Vec::new(), Vec::new()] };
        segment.payload.starts_with(&KEY_REPLY)
    }

    fn ignore(&mut self) {
        if matches!(self.state, State::Watching { .. }) {
            self.state = State::Ignored;
            self.streams = [None, None];
        }
    }

    fn chunk(&mut self, side: Side, chunk: Chunk, connections: &mut u32, findings: &mut Findings) {
        match (&mut self.state, chunk) {
            (State::Iwarp { connection, .. }, chunk) => connection.feed(side, chunk, findings),
            (State::Watching { openings }, Chunk::Bytes(bytes)) => {
                openings[side].extend(bytes);
                let opening = &openings[side];
                let key = &opening[..opening.len().min(KEY_LEN)];
                match FrameKind::detect(key) {
                    Err(_) => self.ignore(),
                    Ok(Some(_)) if key.len() == KEY_LEN => self.promote(side, connections, findings),
                    Ok(_) => {}
                }
            }
            (State::Watching { .. }, Chunk::Missing(_)) => self.ignore(),
            (State::Ignored | State::Done, _) => {}
        }
    }

    /// The Key is whole: an iWARP connection.
    fn promote(&mut self, side: Side, connections: &mut u32, findings: &mut Findings) {
        let State::Watching { openings } = &mut self.state else { return };
        let mut openings = std::mem::take(openings);
        let mut connection = Box::new(Connection::new());
        *connections += 1;
        for side in [side, other(side)] {
            let opening = std::mem::take(&mut openings[side]);
            if !opening.is_empty() {
                connection.feed(side, Chunk::Bytes(opening), findings);
            }
        }
        self.state = State::Iwarp { id: *connections, connection };
    }

    /// Nothing more will come. Returns the bytes that came more than once.
    fn finish(&mut self, how: &str, at: Moment, sink: &mut dyn FnMut(&Record)) -> u64 {
        let State::Iwarp { connection, .. } = &mut self.state else { return 0 };
        let mut findings = Findings::new();
        let mut repeated = 0;
        for side in [0, 1] {
            let mut chunks = Vec::new();
            if let Some(stream) = &mut self.streams[side] {
                stream.finish(&mut chunks);
                repeated += stream.repeated;
            }
            for chunk in chunks {
                connection.feed(side, chunk, &mut findings);
            }
        }
        for side in [0, 1] {
            connection.close(side, how, &mut findings);
        }
        self.report(&mut findings, at, sink);
        self.state = State::Done;
        self.streams = [None, None];
        repeated
    }

    fn report(&self, findings: &mut Findings, at: Moment, sink: &mut dyn FnMut(&Record)) {
        let connection = self.id();
        for (side, event) in findings.drain(..) {
            let (from, to) = (self.ends[side], self.ends[other(side)]);
            sink(&Record { time: at.time, packet: at.packet, connection, from, to, event });
        }
    }
}
