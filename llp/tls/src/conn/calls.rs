//! Calls of the user: those of [`uiw_llp::TransportStream`].

use super::incoming::{MIN_READ, Sink};
use super::{Conn, ConnState, Failure, FinState, Scratch};
use std::io::{self, ErrorKind};
use uiw_llp::{Event, Interest, Token};
use uiw_mem::{IoVec, IoVecMut};

/// Number of plaintext bytes that are encrypted at a time. A connection stores at most this amount,
/// encrypted, if TCP does not accept it.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes that are read at a time.
const MAX_READ: usize = 128 << 10;

impl Conn {
    pub(crate) fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.interest = interest;
        self.update_interest();
        Ok(())
    }

    pub(crate) fn connect_result(&mut self, scratch: &mut Scratch) -> io::Result<bool> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        if matches!(
            self.state,
            ConnState::Connecting { .. } | ConnState::Cleartext { connecting: true }
        ) && self.failure.is_none()
        {
            let event = Event { token: Token(0), readable: false, writable: true };
            self.on_event(event, scratch);
            self.hung_up = false;
        }
        // A failure after the handshake is reported by the calls that transfer data.
        if self.is_open() {
            return Ok(true);
        }
        match &self.failure {
            Some(failure) => Err(failure.into()),
            None => Ok(false),
        }
    }

    pub(crate) fn recv(
        &mut self,
        bufs: &mut [IoVecMut<'_>],
        scratch: &mut Scratch,
    ) -> io::Result<usize> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        let total = IoVecMut::total(bufs);
        if total == 0 {
            return Err(uiw_llp::no_bytes());
        }
        if self.has_output() {
            self.flush();
        }
        if self.is_cleartext() && !self.has_plaintext() {
            if self.failure.is_some() {
                return self.nothing();
            }
            let received = self.inner.recv(bufs);
            self.update_interest();
            return received.inspect(|received| self.received += *received as u64);
        }
        let mut sink = Sink::new(bufs);
        if self.has_plaintext() {
            self.plain_at += sink.put(&self.plain[self.plain_at..]);
            if !self.has_plaintext() {
                (self.plain, self.plain_at) = (Vec::new(), 0);
            }
        }
        while !self.has_plaintext()
            && !self.is_cleartext()
            && !self.peer_closed
            && self.failure.is_none()
        {
            let room = sink.room();
            if room == 0 || matches!(self.state, ConnState::Connecting { .. }) {
                break;
            }
            if !self.read(scratch, room.clamp(MIN_READ, MAX_READ), &mut sink) {
                break;
            }
        }
        if self.has_output() {
            self.flush();
        }
        let count = sink.count();
        self.update_interest();
        if count > 0 { Ok(count) } else { self.nothing() }
    }

    /// Returns the result of a [`Conn::recv`] that transfers no bytes.
    fn nothing(&self) -> io::Result<usize> {
        match &self.failure {
            _ if self.peer_closed => Ok(0),
            Some(failure) => Err(failure.into()),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    pub(crate) fn send(&mut self, bufs: &[IoVec<'_>], scratch: &mut Scratch) -> io::Result<usize> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        if self.fin != FinState::NotRequested {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if let Some(failure) = self.failure.as_ref().or(self.send_failure.as_ref()) {
            return Err(failure.into());
        }
        if IoVec::total(bufs) == 0 {
            return Err(uiw_llp::no_bytes());
        }
        if !self.is_open() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.flush();
        let sent = match self.has_output() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => match self.failure.as_ref().or(self.send_failure.as_ref()) {
                Some(failure) => Err(failure.into()),
                None if self.is_cleartext() => self.inner.send(bufs),
                None => self.send_records(bufs, scratch),
            },
        };
        self.update_interest();
        sent
    }

    /// Encrypts and sends data until TCP accepts no more.
    fn send_records(&mut self, bufs: &[IoVec<'_>], scratch: &mut Scratch) -> io::Result<usize> {
        let (mut sent, mut at) = (0, (0, 0));
        while !self.has_output() {
            let Some(plain) = gather(bufs, &mut at, &mut scratch.plain) else {
                // If data was sent before, that is reported first.
                return if sent == 0 {
                    Err(io::Error::from_raw_os_error(libc::EFAULT))
                } else {
                    Ok(sent)
                };
            };
            if plain == 0 {
                break;
            }
            let ConnState::Open(session) = &mut self.state else { break };
            scratch.cipher.clear();
            let encrypted =
                session.encrypt(&scratch.plain[..plain], &mut self.incoming, &mut scratch.cipher);
            if let Err(error) = encrypted {
                self.fail(Failure::Tls(error));
                break;
            }
            sent += plain;
            let taken = match self.inner.send(&[IoVec::from(&scratch.cipher[..])]) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => {
                    self.on_send_lost(&error);
                    sent -= plain;
                    break;
                }
            };
            if taken < scratch.cipher.len() {
                self.out.extend_from_slice(&scratch.cipher[taken..]);
            }
        }
        match self.failure.as_ref().or(self.send_failure.as_ref()) {
            Some(failure) if sent == 0 => Err(failure.into()),
            _ => Ok(sent),
        }
    }

    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        match &mut self.state {
            ConnState::Aborted => return Err(ErrorKind::NotConnected.into()),
            _ if self.fin != FinState::NotRequested => return Ok(()),
            _ if self.failure.is_some() => {}
            ConnState::Open(session) => {
                if let Err(error) = session.close(&mut self.incoming, &mut self.out) {
                    self.fail(Failure::Tls(error));
                }
            }
            ConnState::Connecting { .. } => return self.inner.shutdown(),
            _ => {}
        }
        self.fin = FinState::Pending;
        self.flush();
        self.update_interest();
        Ok(())
    }

    pub(crate) fn abort(&mut self) {
        // If an alert was sent, the connection is not reset, because the reset could overtake the
        // alert.
        if !matches!(self.failure, Some(Failure::Tls(_))) {
            self.inner.abort();
        } else {
            let _ = self.inner.shutdown();
            // Otherwise every poll would report a hang-up.
            let _ = self.inner.detach();
        }
        self.state = ConnState::Aborted;
        self.own = None;
        (self.incoming, self.plain, self.out) = Default::default();
        (self.plain_at, self.out_at) = (0, 0);
        self.count_buffers();
    }

    /// Closes the connection after the user has dropped the stream. Returns true if nothing is left
    /// to be sent.
    pub(crate) fn close(&mut self) -> bool {
        self.outer = None;
        self.interest = Interest::NONE;
        (self.plain, self.plain_at) = (Vec::new(), 0);
        if !self.is_open() {
            return true;
        }
        // If this fails, the connection is already gone.
        let _ = self.shutdown();
        self.is_finished()
    }
}

/// Copies up to [`CHUNK`] bytes of `bufs`, from `at` (buffer, byte) on, to the front of `to`, and
/// returns their number. Returns `None` if a buffer is not mapped.
fn gather(bufs: &[IoVec<'_>], at: &mut (usize, usize), to: &mut Vec<u8>) -> Option<usize> {
    if to.len() < CHUNK {
        to.resize(CHUNK, 0);
    }
    let mut count = 0;
    while let Some(buf) = bufs.get(at.0)
        && count < CHUNK
    {
        let part = (buf.len() - at.1).min(CHUNK - count);
        if !buf.sub(at.1..at.1 + part).try_copy_to(&mut to[count..count + part]) {
            return None;
        }
        count += part;
        at.1 += part;
        if at.1 == buf.len() {
            *at = (at.0 + 1, 0);
        }
    }
    Some(count)
}
