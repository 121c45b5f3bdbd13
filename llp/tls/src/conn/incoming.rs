//! Reading from the inner stream, and decryption.

use super::{Conn, ConnState, Failure, Scratch};
use crate::error::TlsError;
use std::io::ErrorKind;
use uiw_mem::IoVecMut;

/// Minimum number of bytes that are read at a time: a record with its overhead (RFC 8446 section
/// 5.2).
pub(super) const MIN_READ: usize = 5 + (16 << 10) + 256;
/// Maximum size of a peer's handshake in bytes. Certificate chains have a few KiB.
const MAX_HANDSHAKE: usize = 64 << 10;
/// Maximum number of bytes of incomplete records. rustls refuses longer records and messages
/// earlier.
const MAX_INCOMING: usize = 96 << 10;

/// Destination of plaintext.
pub(super) struct Sink<'a, 'b> {
    bufs: &'a mut [IoVecMut<'b>],
    at: usize,
    count: usize,
}

impl<'a, 'b> Sink<'a, 'b> {
    pub(super) fn new(bufs: &'a mut [IoVecMut<'b>]) -> Self {
        Self { bufs, at: 0, count: 0 }
    }

    /// Returns the number of bytes that were stored.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Stores as many bytes as there is room for. Returns their number.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let (Some(buf), false) = (self.bufs.first_mut(), bytes.is_empty()) {
            let room = buf.len() - self.at;
            let part = room.min(bytes.len());
            if part > 0 {
                buf.sub(self.at..self.at + part).copy_from(&bytes[..part]);
            }
            (self.at, taken, bytes) = (self.at + part, taken + part, &bytes[part..]);
            if self.at == buf.len() {
                let bufs = std::mem::take(&mut self.bufs);
                self.bufs = &mut bufs[1..];
                self.at = 0;
            }
        }
        self.count += taken;
        taken
    }

    pub(super) fn room(&self) -> usize {
        IoVecMut::total(self.bufs) - self.at
    }
}

impl Conn {
    /// Reads up to `limit` bytes from the inner stream and processes them. Returns false if no more
    /// data is available now.
    pub(super) fn read(
        &mut self,
        scratch: &mut Scratch,
        limit: usize,
        sink: &mut Sink<'_, '_>,
    ) -> bool {
        let have = self.incoming.len();
        if scratch.incoming.len() < have + limit {
            scratch.incoming.resize(have + limit, 0);
        }
        scratch.incoming[..have].copy_from_slice(&self.incoming);
        match self.inner.recv(&mut [IoVecMut::from(&mut scratch.incoming[have..have + limit])]) {
            Ok(0) => {
                self.on_eof();
                false
            }
            Ok(got) => {
                self.process(scratch, have + got, sink);
                got == limit
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => {
                self.on_inner_lost(&error);
                false
            }
        }
    }

    /// Handles the FIN of the peer.
    fn on_eof(&mut self) {
        if self.peer_closed {
            return;
        }
        let failure = match (&self.send_failure, &self.state) {
            _ if self.handshake_bytes == 0 => Failure::Tls(TlsError::NoAnswer),
            (Some(failure), _) => failure.clone(),
            (None, ConnState::Open(_)) => Failure::Tls(TlsError::Truncated),
            _ => Failure::Tls(TlsError::ClosedInHandshake),
        };
        self.fail(failure);
    }

    /// Processes the first `len` bytes of the shard's buffer, which begin with the bytes that were
    /// kept from before.
    pub(super) fn process(&mut self, scratch: &mut Scratch, len: usize, sink: &mut Sink<'_, '_>) {
        let kept = self.incoming.len();
        if !self.is_open() {
            let first_bytes = self.handshake_bytes == 0;
            self.handshake_bytes += len - kept.min(len);
            if self.handshake_bytes > MAX_HANDSHAKE {
                return self
                    .fail(Failure::Tls(TlsError::HandshakeTooLong { limit: MAX_HANDSHAKE }));
            }
            if self.begin(&scratch.incoming[..len], first_bytes, sink) {
                return;
            }
        }
        let (ConnState::Handshake(session) | ConnState::Open(session)) = &mut self.state else {
            return;
        };
        let (plain, received) = (&mut self.plain, &mut self.received);
        let progress = session.advance(&mut scratch.incoming[..len], &mut self.out, |bytes| {
            *received += bytes.len() as u64;
            let taken = if plain.is_empty() { sink.put(bytes) } else { 0 };
            plain.extend_from_slice(&bytes[taken..]);
        });
        self.keep(&scratch.incoming[progress.used..len]);
        self.peer_closed |= progress.peer_closed;
        let done =
            matches!(&self.state, ConnState::Handshake(session) if !session.is_handshaking());
        if done && progress.error.is_none() {
            self.finish_handshake();
            if self.failure.is_some() {
                // The user gets no data of a peer that is not accepted.
                (self.plain, self.plain_at) = (Vec::new(), 0);
                sink.count = 0;
            }
        }
        if let Some(error) = progress.error {
            // Sends the alert, if TCP accepts it immediately.
            self.flush();
            self.fail(Failure::Tls(error));
        } else if self.incoming.len() > MAX_INCOMING {
            self.fail(Failure::Tls(TlsError::HandshakeTooLong { limit: MAX_INCOMING }));
        }
    }

    pub(super) fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            // Idle connections have no buffer.
            self.incoming = Vec::new();
        } else {
            self.incoming.clear();
            self.incoming.extend_from_slice(rest);
        }
    }
}
