//! Octets on their way to TCP: staged ones and registered memory, in stream order, with FPDU borders.
//!
//! What TCP does not take at once stays here, so a partial write costs nothing and an FPDU is never spliced: a Terminate goes
//! behind the FPDU whose first octet is on the wire.

use mem::{IoVec, Span};
use std::collections::VecDeque;
use std::io;

/// Pieces one system call is given: what Linux takes (UIO_MAXIOV).
const MAX_PIECES: usize = 1024;

enum Piece {
    /// `staging[start..end]`.
    Staged { start: usize, end: usize },
    /// Octets `start..end` of registered memory.
    Memory { memory: MemoryId, start: usize, end: usize },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Staged { start, end } | Self::Memory { start, end, .. } => end - start,
        }
    }
}

/// Registered memory of one or more pieces in a row: counted up, never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemoryId(u64);

/// Why octets could not be given to TCP.
pub(crate) enum SendError {
    /// The region was deregistered while an FPDU that needs it was half on the wire.
    Gone,
    Io(io::Error),
}

/// The out queue of one stream. Positions count octets since the connection began.
#[derive(Default)]
pub(crate) struct OutQueue {
    pub(crate) staging: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// The memory of pieces, oldest first, and the number of the first.
    memory: VecDeque<Span>,
    first_memory: u64,
    /// Octets of the first piece that are sent.
    skip: usize,
    queued: u64,
    sent: u64,
    /// End positions of FPDUs not sent whole.
    ends: VecDeque<u64>,
    /// End position of the last FPDU sent whole: beyond it, the next one is started.
    border: u64,
}

impl OutQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.queued == self.sent
    }

    /// Octets waiting.
    pub(crate) fn waiting(&self) -> u64 {
        self.queued - self.sent
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Position behind the last queued octet.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Position behind the last octet that TCP took.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Queues what was appended to `staging` since `start`.
    pub(crate) fn push_staged(&mut self, start: usize) {
        let end = self.staging.len();
        self.queued += (end - start) as u64;
        match self.pieces.back_mut() {
            Some(Piece::Staged { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push_back(Piece::Staged { start, end }),
        }
    }

    /// Memory of which pieces are queued next.
    pub(crate) fn add_memory(&mut self, span: Span) -> MemoryId {
        self.memory.push_back(span);
        MemoryId(self.first_memory + self.memory.len() as u64 - 1)
    }

    /// Queues `len` octets from `start` on of memory that was added last.
    pub(crate) fn push_memory(&mut self, memory: MemoryId, start: usize, len: usize) {
        self.queued += len as u64;
        self.pieces.push_back(Piece::Memory { memory, start, end: start + len });
    }

    /// An FPDU (or startup frame) ends at the present end.
    pub(crate) fn end_fpdu(&mut self) {
        self.ends.push_back(self.queued);
    }

    /// Gives TCP what it takes. True when nothing is left, false when TCP is full.
    pub(crate) fn send(&mut self, stream: &mut dyn llp::Stream) -> Result<bool, SendError> {
        while !self.is_empty() {
            match self.send_some(stream) {
                Ok(0) => return Ok(false),
                Ok(count) => self.advance(count),
                Err(SendError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.staging.clear();
        Ok(true)
    }

    fn send_some(&mut self, stream: &mut dyn llp::Stream) -> Result<usize, SendError> {
        let count = self.pieces.len().min(MAX_PIECES);
        if let (1, Some(Piece::Staged { start, end })) = (count, self.pieces.front()) {
            let octets = &self.staging[start + self.skip..*end];
            return stream.send(&[IoVec::from(octets)]).map_err(SendError::Io);
        }
        // Memory in front of the first piece's is sent: its request may be complete, and the memory gone.
        let place = |piece: &Piece| match piece {
            Piece::Memory { memory, .. } => Some(self.place(*memory)),
            Piece::Staged { .. } => None,
        };
        let first = self.pieces.iter().take(count).find_map(place).unwrap_or(0);
        let last = self.pieces.iter().take(count).rev().find_map(place).map_or(first, |last| last + 1);
        let spans = self.memory.range(first..last);
        let pins: Vec<_> = spans.map(Span::pin).collect::<Result<_, _>>().map_err(|_| SendError::Gone)?;
        let mut vecs = Vec::with_capacity(count);
        let mut skip = self.skip;
        for piece in self.pieces.iter().take(count) {
            vecs.push(match piece {
                Piece::Staged { start, end } => IoVec::from(&self.staging[start + skip..*end]),
                Piece::Memory { memory, start, end } => {
                    pins[self.place(*memory) - first].io_vec(start + skip..*end)
                }
            });
            skip = 0;
        }
        stream.send(&vecs).map_err(SendError::Io)
    }

    /// Where in `memory` the span of this number is.
    fn place(&self, id: MemoryId) -> usize {
        (id.0 - self.first_memory) as usize
    }

    /// Lets go of memory of which no piece is queued any more.
    fn drop_memory(&mut self, before: u64) {
        let gone = (before - self.first_memory) as usize;
        self.memory.drain(..gone);
        self.first_memory = before;
    }

    fn advance(&mut self, count: usize) {
        self.sent += count as u64;
        let mut left = count + self.skip;
        while let Some(piece) = self.pieces.front() {
            if left < piece.len() {
                break;
            }
            left -= piece.len();
            // Pieces of one memory stand in a row.
            if let Piece::Memory { memory, .. } = *piece {
                self.drop_memory(memory.0);
            }
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            self.drop_memory(self.first_memory + self.memory.len() as u64);
        }
        self.skip = left;
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= self.sent) {
            self.border = end;
            self.ends.pop_front();
        }
    }

    /// Drops every FPDU of which no octet is with TCP and copies the rest of the one that is half sent, so that nothing here
    /// refers to registered memory any more. False when that memory is gone: then the FPDU cannot be finished.
    pub(crate) fn keep_started(&mut self) -> bool {
        let started_end = match self.ends.front() {
            Some(end) if self.sent > self.border => *end,
            _ => self.sent,
        };
        let mut rest = Vec::new();
        let mut left = (started_end - self.sent) as usize;
        let mut whole = true;
        for (at, piece) in self.pieces.iter().enumerate() {
            let skip = if at == 0 { self.skip } else { 0 };
            let take = left.min(piece.len() - skip);
            if take == 0 {
                break;
            }
            match piece {
                Piece::Staged { start, .. } => {
                    rest.extend_from_slice(&self.staging[start + skip..start + skip + take]);
                }
                Piece::Memory { memory, start, .. } => match self.memory[self.place(*memory)].pin() {
                    Ok(pin) => pin.copy_to_vec(start + skip..start + skip + take, &mut rest),
                    Err(_) => whole = false,
                },
            }
            left -= take;
        }
        self.pieces.clear();
        self.drop_memory(self.first_memory + self.memory.len() as u64);
        self.skip = 0;
        self.ends.clear();
        self.staging = rest;
        self.queued = self.sent;
        if !self.staging.is_empty() {
            self.push_staged(0);
            self.end_fpdu();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llp::{Interest, StreamInfo};
    use mem::{Access, Limits, PdId, Table};
    use std::net::{Ipv4Addr, SocketAddr};

    /// A TCP that has room for so many octets.
    struct Room(usize, Vec<u8>);

    impl llp::Stream for Room {
        fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
            let mut octets = Vec::new();
            bufs.iter().for_each(|buf| buf.append_to(&mut octets));
            octets.truncate(self.0);
            self.0 -= octets.len();
            self.1.extend_from_slice(&octets);
            if octets.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(octets.len()) }
        }

        fn recv(&mut self, _: &mut [mem::IoVecMut<'_>]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn set_interest(&mut self, _: Interest) -> io::Result<()> {
            Ok(())
        }

        fn connect_result(&mut self) -> io::Result<bool> {
            Ok(true)
        }

        fn shutdown(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn abort(&mut self) {}

        fn emss(&self) -> usize {
            1460
        }

        fn local_addr(&self) -> SocketAddr {
            (Ipv4Addr::LOCALHOST, 1).into()
        }

        fn peer_addr(&self) -> SocketAddr {
            (Ipv4Addr::LOCALHOST, 2).into()
        }

        fn info(&self) -> StreamInfo {
            StreamInfo::default()
        }
    }

    /// TCP has no room right behind an FPDU's last octet: its request is complete, and the application gives up the memory, while
    /// the next FPDU with memory of its own still waits.
    #[test]
    fn memory_whose_octets_are_sent_may_go() {
        for taken in [9, 10, 11] {
            let table = Table::new(Limits::default());
            let mut out = OutQueue::default();
            let regions: Vec<_> = (1..=2u8)
                .map(|number| {
                    let memory = vec![number; 4].into();
                    let region = table.register(PdId(1), memory, 0, Access::LOCAL_WRITE).expect("a region");
                    for octet in [b'h', b'c'] {
                        let start = out.staging.len();
                        out.staging.extend([octet; 3]);
                        out.push_staged(start);
                        if octet == b'h' {
                            let id = out.add_memory(region.span(0, 4).expect("in range"));
                            out.push_memory(id, 0, 4);
                        }
                    }
                    out.end_fpdu();
                    region
                })
                .collect();
            // Of an FPDU of 10 octets; with 9 the memory's own octets are sent, and its CRC is not.
            let mut tcp = Room(taken, Vec::new());
            assert!(matches!(out.send(&mut tcp), Ok(false)), "there is no room");
            table.deregister(regions[0].stag()).expect("it is not pinned");
            tcp.0 = 100;
            assert!(matches!(out.send(&mut tcp), Ok(true)), "with {taken} octets sent before");
            assert_eq!(tcp.1, b"hhh\x01\x01\x01\x01ccchhh\x02\x02\x02\x02ccc");
        }
    }
}
