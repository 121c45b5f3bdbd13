//! Receiving: moves bytes from the socket to the stream.
//!
//! Bytes are read into a staging buffer of the shard, or taken from the stack's own memory. A
//! connection that has a long partial FPDU keeps the staging buffer until the rest has arrived, so
//! that the bytes need not be copied.

use super::partial::{LONG_PARTIAL, StagedBytes, next_page_offset};
use super::{Conn, QpHost};
use crate::driver::{HeldBytes, RX_STAGING, Services};
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;
use uiw_llp::{Readable, RemainingBytes};
use uiw_mem::IoVecMut;

/// Maximum number of reads of a closing connection per round.
const DISCARDS_PER_ROUND: usize = 4;
/// Maximum number of start-up bytes that are read before a frame is complete: the header, the
/// private data, and some bytes after them.
const STARTUP_BYTES: usize = 4096;
/// Number of bytes at the beginning of an FPDU that are kept even if the receive memory budget is
/// exhausted. They contain its length.
const FRONT: usize = 512;
/// Upper bound, in bytes, for an FPDU with Markers together with the bytes that are read after it.
const WHOLE: usize = 128 << 10;
/// Receive buffer, in bytes, that a socket needs for the longest FPDU: the kernel charges up to
/// four times the length of a segment.
const SOCKET_ROOM: usize = 512 << 10;
/// Number of reads of whole FPDUs that count as one read of the whole staging buffer.
const WHOLE_READS: usize = 4;
/// Initial pause before a socket that is not read is tried again.
pub(super) const STARVED_PAUSE: Duration = Duration::from_millis(1);
/// Maximum pause before a socket that is not read is tried again.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// State of a socket that is not read because the receive memory budget is exhausted.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreadSocket {
    /// Number of bytes that the socket had.
    available: usize,
    /// Pause until the socket is tried again, regardless of events. `None` if the stack reports an
    /// event once the FPDU is complete.
    pause: Option<Duration>,
}

impl UnreadSocket {
    /// Returns whether events of the stack are of no use, so that a timer reads the socket.
    pub(super) fn waits_for_timer(self) -> bool {
        self.pause.is_some()
    }
}

/// Amount of bytes to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadAmount {
    /// All bytes that the socket has.
    All,
    /// Only FPDUs that have arrived completely, so that less than twice [`FRONT`] bytes are kept.
    Whole,
}

/// Result of looking at the received bytes in the stack's memory.
enum PeekResult {
    /// The stack does not support this. The socket is read into the staging buffer.
    Elsewhere,
    /// The FPDU is incomplete, or its beginning is in the staging buffer. Its remaining bytes are
    /// read into the staging buffer, up to this length.
    Staged { until: usize },
    /// FPDUs were handled. `more` is true if there may be more.
    Used { more: bool },
    /// No bytes have arrived.
    Nothing,
    /// The transport is lost.
    Lost(io::Error),
}

impl Conn {
    /// Reads the socket, within the budget. Returns whether bytes were received.
    pub(super) fn receive(&mut self, services: &mut Services) -> bool {
        if !self.stream.is_open() {
            return self.receive_outside(services);
        }
        if self.stream.is_stalled() && !self.unpark(services) || self.stream.peer_has_closed() {
            return false;
        }
        if self.partial.len() < 2 * FRONT && !services.shared.budget.has_room(RX_STAGING) {
            return self.receive_whole_fpdus(services);
        }
        if self.reads_whole {
            self.end_short(services);
        }
        self.receive_into_staging(ReadAmount::All, services)
    }

    /// Ends reading only whole FPDUs.
    #[cold]
    fn end_short(&mut self, services: &mut Services) {
        self.starved = None;
        self.reads_whole = false;
        self.update_held_bytes(services);
        // An error is ignored, because the next read returns it again.
        let _ = self.socket.readable(1);
    }

    /// Reads only FPDUs that have arrived completely, because the receive memory budget is
    /// exhausted: peers that each send the beginning of an FPDU must not prevent reads of other
    /// connections. Returns whether bytes were received.
    #[cold]
    fn receive_whole_fpdus(&mut self, services: &mut Services) -> bool {
        services.is_short = true;
        if !std::mem::replace(&mut self.reads_whole, true) {
            // Enlarges the socket buffer before it is too small and the peer has to wait for its
            // retransmission timer. An error is ignored, because the next read returns it again.
            let _ = self.socket.readable(SOCKET_ROOM);
        }
        let before = self.starved.take();
        if !services.shared.budget.has_room_for_whole(WHOLE) {
            self.starve(
                UnreadSocket { available: 0, pause: Some(STARVED_PAUSE) },
                before,
                services,
            );
            return false;
        }
        let moved = self.receive_into_staging(ReadAmount::Whole, services);
        if let Some(starved) = self.starved.take() {
            self.starve(starved, before.filter(|_| !moved), services);
        }
        moved
    }

    /// Stops reading the socket for now. If it had the same number of bytes `before`, events of the
    /// stack are of no use, and the socket is tried again after growing pauses.
    fn starve(
        &mut self,
        mut starved: UnreadSocket,
        before: Option<UnreadSocket>,
        services: &Services,
    ) {
        if let Some(before) = before.filter(|before| before.available == starved.available) {
            starved.pause =
                Some(before.pause.map_or(STARVED_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE)));
        }
        if let Some(pause) = starved.pause {
            self.retry = services.now.after(pause);
        }
        self.starved = Some(starved);
        self.state.counters.wait(uiw_counters::WaitReason::Memory);
    }

    /// Returns the length up to which the staging buffer, which has `have` bytes of an FPDU, may be
    /// filled, so that less than twice [`FRONT`] bytes are left after the stream has taken its
    /// bytes. Returns `None` to wait until more bytes have arrived.
    fn whole_fill_limit(&mut self, have: usize) -> io::Result<Option<usize>> {
        let needed = self.stream.needed().max(have + 1);
        let available = match self.socket.readable(needed - have)? {
            // The stack keeps no bytes that would have to be left in the socket.
            Some(Readable::All) => return Ok(Some(RX_STAGING)),
            Some(Readable::Bytes(0)) => return Ok(Some(have + FRONT)),
            Some(Readable::Bytes(bytes)) => bytes,
            // An FPDU that has begun is read to its end.
            None if have > 0 => return Ok(Some(RX_STAGING)),
            None => 0,
        };
        if have + available >= needed {
            return Ok(Some((needed + FRONT).min(RX_STAGING)));
        }
        if have < FRONT && available > 0 {
            return Ok(Some(FRONT));
        }
        self.starved = Some(UnreadSocket { available, pause: None });
        Ok(None)
    }

    /// Receives before or after Full Operation.
    #[cold]
    fn receive_outside(&mut self, services: &mut Services) -> bool {
        // No received bytes are kept, so the budget does not matter.
        if self.reads_whole {
            self.end_short(services);
        }
        if self.stream.is_starting() {
            self.receive_startup(services)
        } else {
            self.discard(services)
        }
    }

    /// Tells the stream that receives were posted. Returns whether it continues.
    fn unpark(&mut self, services: &mut Services) -> bool {
        let goes_on =
            self.with_stream(services, |stream, host, now| stream.receive_posted(host, now));
        // The bytes of the parked segment, which is placed now, no longer count against the budget.
        self.update_held_bytes(services);
        goes_on && self.stream.is_open()
    }

    /// Handles the bytes that the previous turn has left, and the end of the stream. Returns
    /// whether bytes were used, as [`ControlFlow::Break`] if this turn must not read the socket.
    #[inline]
    fn resume_partial(&mut self, services: &mut Services) -> ControlFlow<bool, bool> {
        let mut moved = false;
        if !self.partial.is_empty() {
            moved = self.handle_partial(services);
            if !self.stream.is_open() {
                self.keep_bytes(&[], services);
                return ControlFlow::Break(moved);
            }
            if !self.takes_bytes() {
                self.give_back_staging(services);
                self.update_held_bytes(services);
                return ControlFlow::Break(moved);
            }
        }
        if self.eof {
            self.on_eof(self.partial.len(), services);
            self.update_held_bytes(services);
            return ControlFlow::Break(true);
        }
        ControlFlow::Continue(moved)
    }

    fn receive_into_staging(&mut self, reads: ReadAmount, services: &mut Services) -> bool {
        let mut moved = match self.resume_partial(services) {
            ControlFlow::Continue(moved) => moved,
            ControlFlow::Break(moved) => return moved,
        };
        let (begun, mut taken) = (self.partial.len(), moved);
        let mut staged = self.partial.take_staged().unwrap_or_else(|| {
            StagedBytes::new(services.take_staging(), self.partial.bytes(), self.page_offset)
        });
        self.partial.clear();
        // Allows more reads per turn if each reads only one FPDU.
        let turn =
            if reads == ReadAmount::Whole { services.turn * WHOLE_READS } else { services.turn };
        for _ in 0..turn {
            let (mut end, have) = (RX_STAGING, staged.len());
            match self.peek(have, services) {
                PeekResult::Elsewhere if reads == ReadAmount::Whole => {
                    match self.whole_fill_limit(have) {
                        Ok(Some(until)) => end = until,
                        Ok(None) => break,
                        Err(error) => {
                            self.on_lost(&error, services);
                            break;
                        }
                    }
                }
                PeekResult::Elsewhere => {}
                PeekResult::Staged { until } => end = until,
                PeekResult::Used { more } => {
                    moved = true;
                    if more && self.takes_bytes() { continue } else { break }
                }
                PeekResult::Nothing => break,
                PeekResult::Lost(error) => {
                    self.on_lost(&error, services);
                    break;
                }
            }
            let free = staged.free(self.page_offset);
            let room = (end - have).min(free.len());
            match self.socket.recv(&mut [IoVecMut::from(&mut free[..room])]) {
                Ok(0) => {
                    self.on_eof(have, services);
                    break;
                }
                Ok(got) => {
                    moved = true;
                    services.moved += got;
                    staged.add(got);
                    let used = self.handle_bytes(staged.bytes_mut(), services);
                    taken |= used > 0;
                    staged.consume(used);
                    self.page_offset = next_page_offset(self.page_offset);
                    if got < room || !self.takes_bytes() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.on_lost(&error, services);
                    break;
                }
            }
        }
        if reads == ReadAmount::Whole && self.starved.is_none() && self.takes_bytes() {
            // Requests an event for the next FPDU, which may be shorter than the last one.
            if let Err(error) = self.whole_fill_limit(staged.len()) {
                self.on_lost(&error, services);
            }
        }
        if moved && self.state.note_message_progress() {
            self.message_at = services.now;
        }
        self.keep_rest(staged, begun == 0 || taken, services);
        moved
    }

    /// Keeps the bytes that the stream has not taken. `is_new` is true if they are the beginning of
    /// another FPDU than before.
    #[inline]
    fn keep_rest(&mut self, staged: StagedBytes, is_new: bool, services: &mut Services) {
        if is_new {
            self.partial_since = services.now;
        }
        let is_open = self.stream.is_open();
        if is_open
            && staged.len() >= LONG_PARTIAL
            && !self.reads_whole
            && services.shared.budget.has_room_for_staging(self.counted.held)
        {
            services.pool.give(self.partial.keep_staged(staged));
            return self.update_held_bytes(services);
        }
        self.keep_bytes(if is_open { staged.bytes() } else { &[] }, services);
        services.give_staging(staged.into_buffer());
    }

    /// Drops the kept bytes, and returns their buffer to the shard.
    #[inline]
    pub(super) fn drop_partial(&mut self, services: &mut Services) {
        if !self.partial.has_buffer() {
            return;
        }
        match self.partial.take_staged() {
            Some(staged) => services.give_staging(staged.into_buffer()),
            None => services.pool.give(self.partial.replace_buffer(Vec::new())),
        }
    }

    /// Copies a short rest out of a staging buffer, which is kept only for long ones.
    #[inline]
    fn give_back_staging(&mut self, services: &mut Services) {
        if self.partial.len() < LONG_PARTIAL
            && let Some(staged) = self.partial.take_staged()
        {
            self.partial.extend(staged.bytes());
            services.give_staging(staged.into_buffer());
        }
    }

    /// Returns whether the stream is in Full Operation and accepts bytes.
    fn takes_bytes(&self) -> bool {
        self.stream.is_open() && self.stream.accepts_bytes()
    }

    /// Passes the kept bytes to the stream: those that arrived with the Reply, or after a segment
    /// that was parked. Returns whether the stream took some.
    fn handle_partial(&mut self, services: &mut Services) -> bool {
        let mut partial = std::mem::take(&mut self.partial);
        let used = self.handle_bytes(partial.bytes_mut(), services);
        partial.consume(used);
        self.partial = partial;
        used > 0
    }

    /// Passes `bytes` to the stream. Returns how many it took.
    fn handle_bytes(&mut self, bytes: &mut [u8], services: &mut Services) -> usize {
        // Does not use `with_stream`, so that all of it is inlined into one function.
        let now = services.now;
        let mut host = QpHost::new(self.qp.as_deref(), &mut self.state, services);
        let used = self.stream.handle_bytes(&mut host, bytes, now);
        drop(host);
        self.state.has_received |= used > 0;
        self.take_events(services);
        used
    }

    pub(super) fn on_eof(&mut self, unread: usize, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.handle_eof(host, unread, now));
    }

    /// Handles FPDUs in the receive buffer of a stack in this process. They are verified where they
    /// are, and copied once, to their destination.
    ///
    /// An FPDU that wraps around the end of the buffer is completed in the staging buffer, which
    /// has its first `have` bytes.
    fn peek(&mut self, have: usize, services: &mut Services) -> PeekResult {
        if !self.has_peek {
            return PeekResult::Elsewhere;
        }
        let mut buf = match self.socket.peek() {
            Ok(Some(buf)) => buf,
            Ok(None) => {
                self.has_peek = false;
                return PeekResult::Elsewhere;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return PeekResult::Nothing,
            Err(error) => return PeekResult::Lost(error),
        };
        if have > 0 {
            return PeekResult::Staged { until: self.stream.needed().max(have + 1) };
        }
        let bytes = buf.bytes();
        if bytes.is_empty() {
            // `recv` reports the peer's FIN.
            return PeekResult::Elsewhere;
        }
        // Handled in pieces, so that the peer receives window updates in between.
        let piece = bytes.len().min(RX_STAGING);
        let limited = piece < bytes.len();
        let used = self.handle_bytes(&mut bytes[..piece], services);
        services.moved += used;
        let more = limited || !buf.can_grow(used);
        if used == piece || limited || !self.stream.accepts_bytes() {
            buf.consume(used, RemainingBytes::Useful);
            return PeekResult::Used { more };
        }
        if more {
            buf.consume(used, RemainingBytes::Useful);
            return PeekResult::Staged { until: self.stream.needed().max(1) };
        }
        buf.consume(used, RemainingBytes::WaitForMore);
        PeekResult::Used { more }
    }

    /// Reads a socket that the stack reports as readable although it is not being read.
    ///
    /// The reason is a hang-up, after which received bytes may still be in the socket, or a reset.
    /// The bytes are kept until the stream takes them. There are no more than the socket holds,
    /// because no others can arrive.
    pub(super) fn read_ahead(&mut self, services: &mut Services) {
        if self.starved.is_some_and(UnreadSocket::waits_for_timer)
            || !services.shared.budget.has_room(RX_STAGING)
        {
            // A timer reads the socket, or the stream does once it takes bytes again.
            return self.leave_event_set();
        }
        let mut staging = services.take_staging();
        let got = self.socket.recv(&mut [IoVecMut::from(&mut staging[..RX_STAGING])]);
        match got {
            Ok(0) if self.stream.is_starting() => {
                self.on_lost(&io::ErrorKind::ConnectionReset.into(), services);
            }
            Ok(0) => {
                self.eof = !self.stream.peer_has_closed();
                self.leave_event_set();
            }
            Ok(got) => {
                self.partial.extend(&staging[..got]);
                self.update_held_bytes(services);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.on_lost(&error, services),
        }
        services.give_staging(staging);
    }

    /// Keeps bytes until the next round.
    pub(super) fn keep_bytes(&mut self, rest: &[u8], services: &mut Services) {
        if rest.is_empty() {
            self.drop_partial(services);
        } else {
            if !self.partial.has_buffer() {
                self.partial.replace_buffer(services.pool.take());
            }
            self.partial.extend(rest);
        }
        self.update_held_bytes(services);
    }

    /// Updates the bytes of this connection that count against the receive memory budget.
    fn update_held_bytes(&mut self, services: &mut Services) {
        let (partial, parked) = (self.partial.len(), self.stream.parked_len());
        let memory = self.partial.held_bytes();
        let held = if self.reads_whole {
            // The first bytes of an FPDU do not count, because every connection may keep them.
            HeldBytes { held: if memory < 2 * FRONT { 0 } else { memory }, of_whole: parked }
        } else {
            HeldBytes { held: memory + parked, of_whole: 0 }
        };
        // The kept bytes may differ although what counts against the budget is the same.
        if held != self.counted || self.reads_whole || held.held > partial + parked {
            services.shared.budget.count(self.counted, held);
            self.counted = held;
            self.state.counters.set_held(partial + parked);
        }
    }

    /// Reads start-up frames. Bytes after a frame belong to Full Operation and are kept.
    fn receive_startup(&mut self, services: &mut Services) -> bool {
        let have = self.partial.len();
        if self.stream.is_connecting() || have >= STARTUP_BYTES {
            return false;
        }
        let mut bytes = [0u8; STARTUP_BYTES];
        match self.socket.recv(&mut [IoVecMut::from(&mut bytes[..STARTUP_BYTES - have])]) {
            Ok(0) => {
                self.on_eof(have, services);
                false
            }
            Ok(got) => {
                self.partial.extend(&bytes[..got]);
                self.handle_partial(services);
                if self.stream.is_open() {
                    self.receive(services);
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                self.on_lost(&error, services);
                false
            }
        }
    }

    /// Reads and discards bytes of a closing connection. Returns whether bytes were received.
    fn discard(&mut self, services: &mut Services) -> bool {
        let mut scratch = [0u8; 16 << 10];
        let mut moved = false;
        for _ in 0..DISCARDS_PER_ROUND {
            match self.socket.recv(&mut [IoVecMut::from(&mut scratch[..])]) {
                Ok(0) => {
                    self.on_eof(0, services);
                    break;
                }
                Ok(_) => moved = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.on_lost(&error, services);
                    break;
                }
            }
        }
        moved
    }
}
