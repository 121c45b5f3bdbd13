//! From the socket to the stream: bytes are read into staging that all connections of a driver share, or taken where they lie in the
//! stack's own memory.

use super::Conn;
use crate::driver::{RX_STAGING, Services};
use std::io;
use std::time::Duration;
use uiw_llp::Rest;
use uiw_mem::IoVecMut;

/// Reads of a closing connection in one round.
const DISCARDS_PER_ROUND: usize = 4;
/// Bytes of start-up read at most before a frame must be whole: header, private data, and some of what follows.
const STARTUP_BYTES: usize = 4096;
/// The receive memory budget is asked again after this time.
const STARVED_PAUSE: Duration = Duration::from_millis(1);

/// What became of a peek at the stack's memory.
enum PeekResult {
    /// The stack has none: the socket is read into staging.
    Elsewhere,
    /// The rest of an FPDU goes to staging, where its front is or will be: up to this many bytes together.
    Staged { until: usize },
    /// FPDUs were taken; perhaps there are `more`.
    Used { more: bool },
    /// Nothing is there.
    Nothing,
    /// The transport is lost.
    Lost(io::Error),
}

impl Conn {
    /// Reads what the socket has, within the budget. True when bytes came.
    pub(super) fn receive(&mut self, services: &mut Services) -> bool {
        if !self.stream.is_open() {
            return self.receive_outside(services);
        }
        if self.stream.is_stalled() && !self.unpark(services) || self.stream.peer_has_closed() {
            return false;
        }
        self.starved = self.partial.is_empty() && !services.shared.budget.has_room(RX_STAGING);
        if self.starved {
            services.is_short = true;
            self.state.counters.wait(uiw_counters::Wait::Memory);
            self.retry = services.now.after(STARVED_PAUSE);
            return false;
        }
        let mut staging = std::mem::take(&mut services.staging);
        let moved = self.receive_into(&mut staging, services);
        services.staging = staging;
        moved
    }

    /// Reads outside of Full Operation.
    #[cold]
    fn receive_outside(&mut self, services: &mut Services) -> bool {
        // Nothing is kept of what is read: the budget does not matter.
        self.starved = false;
        if self.stream.is_starting() { self.receive_startup(services) } else { self.discard(services) }
    }

    /// Reports posted receives to the stream. True when it goes on.
    fn unpark(&mut self, services: &mut Services) -> bool {
        let goes_on = self.with_stream(services, |stream, host, now| stream.receive_posted(host, now));
        // A segment that is placed must not keep its own connection from being read.
        self.count_held(services);
        goes_on && self.stream.is_open()
    }

    fn receive_into(&mut self, staging: &mut [u8], services: &mut Services) -> bool {
        let mut moved = false;
        if !self.partial.is_empty() {
            // Bytes that came with the Reply, or behind a segment that was parked.
            let mut partial = std::mem::take(&mut self.partial);
            let used = self.handle_bytes(partial.bytes_mut(), services);
            moved = used > 0;
            partial.consume(used);
            self.partial = partial;
            if !self.stream.is_open() {
                self.hold(&[], services);
                return moved;
            }
            if !self.takes_bytes() {
                self.count_held(services);
                return moved;
            }
        }
        if self.eof {
            self.on_eof(self.partial.len(), services);
            self.count_held(services);
            return true;
        }
        let (begun, mut taken) = (self.partial.len(), moved);
        let mut have = begun;
        staging[..have].copy_from_slice(self.partial.bytes());
        self.partial.clear();
        for _ in 0..services.turn {
            let mut end = staging.len();
            match self.peek(have, services) {
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
            let room = end - have;
            match self.socket.recv(&mut [IoVecMut::from(&mut staging[have..end])]) {
                Ok(0) => {
                    self.on_eof(have, services);
                    break;
                }
                Ok(got) => {
                    moved = true;
                    services.moved += got;
                    let used = self.handle_bytes(&mut staging[..have + got], services);
                    taken |= used > 0;
                    staging.copy_within(used..have + got, 0);
                    have = have + got - used;
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
        let keep = if self.stream.is_open() { have } else { 0 };
        if begun == 0 || taken {
            self.partial_since = services.now;
        }
        self.hold(&staging[..keep], services);
        moved
    }

    /// Whether the stream goes on in Full Operation.
    fn takes_bytes(&self) -> bool {
        self.stream.is_open() && self.stream.accepts_bytes()
    }

    /// Gives `bytes` to the stream. Returns how many it took.
    fn handle_bytes(&mut self, bytes: &mut [u8], services: &mut Services) -> usize {
        self.with_stream(services, |stream, host, now| stream.handle_bytes(host, bytes, now))
    }

    pub(super) fn on_eof(&mut self, unread: usize, services: &mut Services) {
        self.with_stream(services, |stream, host, now| stream.handle_eof(host, unread, now));
    }

    /// FPDUs of a stack in this process: verified where they lie in its receive buffer, behind `have` bytes of an FPDU that are in
    /// staging, then copied once, to their place. Only one that wraps the buffer's end is staged.
    fn peek(&mut self, have: usize, services: &mut Services) -> PeekResult {
        let mut buf = match self.socket.peek() {
            Ok(Some(buf)) => buf,
            Ok(None) => return PeekResult::Elsewhere,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return PeekResult::Nothing,
            Err(error) => return PeekResult::Lost(error),
        };
        if have > 0 {
            return PeekResult::Staged { until: self.stream.needed().max(have + 1) };
        }
        let bytes = buf.bytes();
        if bytes.is_empty() {
            // The peer's FIN, which `recv` reports.
            return PeekResult::Elsewhere;
        }
        // In pieces, between which the peer receives window updates.
        let piece = bytes.len().min(RX_STAGING);
        let limited = piece < bytes.len();
        let used = self.handle_bytes(&mut bytes[..piece], services);
        services.moved += used;
        let more = limited || !buf.can_grow(used);
        if used == piece || limited || !self.stream.accepts_bytes() {
            buf.consume(used, Rest::Useful);
            return PeekResult::Used { more };
        }
        if more {
            buf.consume(used, Rest::Useful);
            return PeekResult::Staged { until: self.stream.needed().max(1) };
        }
        buf.consume(used, Rest::WaitForMore);
        PeekResult::Used { more }
    }

    /// The stack reports the socket as readable, though it is not read: a hang-up, where both ends have closed and what the peer sent
    /// may still wait in the socket, or a reset. What is there is kept until the stream takes it; that is no more than the socket
    /// holds, as nothing else comes.
    pub(super) fn read_ahead(&mut self, services: &mut Services) {
        if self.starved {
            // A timer reads it.
            return self.leave_set();
        }
        let mut staging = std::mem::take(&mut services.staging);
        let got = self.socket.recv(&mut [IoVecMut::from(&mut staging[..])]);
        match got {
            Ok(0) if self.stream.is_starting() => {
                self.on_lost(&io::ErrorKind::ConnectionReset.into(), services);
            }
            Ok(0) => {
                self.eof = !self.stream.peer_has_closed();
                self.leave_set();
            }
            Ok(got) => {
                self.partial.extend(&staging[..got]);
                self.count_held(services);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.on_lost(&error, services),
        }
        services.staging = staging;
    }

    /// Keeps bytes until the next round.
    pub(super) fn hold(&mut self, rest: &[u8], services: &mut Services) {
        if rest.is_empty() {
            if self.partial.has_buffer() {
                services.pool.give(self.partial.replace_buffer(Vec::new()));
            }
        } else {
            if !self.partial.has_buffer() {
                self.partial.replace_buffer(services.pool.take());
            }
            self.partial.extend(rest);
        }
        self.count_held(services);
    }

    /// Counts what this connection keeps against the receive memory budget.
    fn count_held(&mut self, services: &mut Services) {
        let counted = self.partial.len() + self.stream.parked_len();
        services.shared.budget.count(self.counted, counted);
        self.counted = counted;
        self.state.counters.set_held(counted);
    }

    /// Reads start-up frames. Bytes behind a frame belong to Full Operation and stay in the buffer.
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
                let mut partial = std::mem::take(&mut self.partial);
                let used = self.handle_bytes(partial.bytes_mut(), services);
                partial.consume(used);
                self.partial = partial;
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

    /// Reads and discards, while closing. True when bytes came.
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
