//! Captured streams.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use uiw_mem::{IoVec, IoVecMut};

use super::{
    CaptureHooks,
    packet::{self, ACK, FIN, Header, MAX_PAYLOAD, PSH, RST, SYN},
};
use crate::{
    TransportStream,
    wrap::{Origin, StreamHooks},
};

/// Stream of a [`super::CaptureStack`], and the state of its capture.
#[derive(Debug)]
pub struct CaptureStream {
    /// Hooks of the stream's shard.
    pub(super) shared: CaptureHooks,
    /// Local address and address of the peer. The local one may be chosen only when the connection
    /// is established.
    ends: (SocketAddr, SocketAddr),
    initiator: bool,
    /// True if the stream is connected to itself. In that case the received bytes are the sent
    /// ones, and are captured only once.
    to_itself: bool,
    /// True after the handshake was written.
    begun: bool,
    /// True when the capture of the connection is complete: after a RST, after the FINs of both
    /// sides, or after the socket was taken.
    ended: bool,
    /// Next sequence number of this end.
    ours: u32,
    /// Next sequence number of the peer.
    theirs: u32,
    our_fin: bool,
    their_fin: bool,
}

impl CaptureStream {
    pub(super) fn new(inner: &dyn TransportStream, shared: CaptureHooks, origin: Origin) -> Self {
        let mut stream = Self {
            shared,
            ends: (inner.local_addr(), inner.peer_addr()),
            initiator: origin != Origin::Accepted,
            to_itself: origin == Origin::ConnectedToSelf,
            begun: false,
            ended: false,
            ours: 0,
            theirs: 0,
            our_fin: false,
            their_fin: false,
        };
        if origin == Origin::Accepted {
            stream.begin();
        }
        stream
    }

    /// Writes one segment, and advances the sequence numbers.
    fn write(&mut self, outgoing: bool, flags: u8, len: usize, payload: impl FnOnce(&mut Vec<u8>)) {
        let (local, peer) = self.ends;
        let (from, to, seq, ack) = if outgoing {
            (local, peer, self.ours, self.theirs)
        } else {
            (peer, local, self.theirs, self.ours)
        };
        let ack = if flags & ACK == 0 { 0 } else { ack };
        let header = Header { from, to, seq, ack, flags };
        self.shared.sink.packet(self.shared.interface, self.shared.time(), outgoing, |out| {
            packet::emit(out, &header, payload);
        });
        let counted = len as u32 + u32::from(flags & (SYN | FIN) != 0);
        let next = if outgoing { &mut self.ours } else { &mut self.theirs };
        *next = next.wrapping_add(counted);
    }

    fn control(&mut self, outgoing: bool, flags: u8) {
        self.write(outgoing, flags, 0, |_| {});
    }

    /// Writes the handshake.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            if self.to_itself {
                // A stream connected to itself performs a simultaneous open.
                self.control(true, SYN);
                self.control(true, SYN | ACK);
                return;
            }
            self.control(self.initiator, SYN);
            self.control(!self.initiator, SYN | ACK);
            self.control(self.initiator, ACK);
        }
    }

    fn fin(&mut self, outgoing: bool) {
        let seen = if outgoing { &mut self.our_fin } else { &mut self.their_fin };
        if !std::mem::replace(seen, true) && !self.ended {
            self.control(outgoing, FIN | ACK);
            if self.to_itself {
                self.end();
            } else if self.our_fin && self.their_fin {
                self.control(!outgoing, ACK);
                self.end();
            }
        }
    }

    fn reset(&mut self, outgoing: bool) {
        if self.begun && !self.ended {
            self.control(outgoing, RST | ACK);
            self.end();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        // The sink keeps the error.
        let _ = self.shared.sink.flush();
    }

    fn note_error(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionReset {
            self.reset(false);
        }
    }

    /// Writes the first `total` bytes of `bufs`.
    fn bytes<'a>(&mut self, outgoing: bool, bufs: impl Iterator<Item = IoVec<'a>>, total: usize) {
        self.begin();
        let mut left = total;
        let mut segment: Vec<IoVec<'a>> = Vec::new();
        let mut len = 0;
        for buf in bufs {
            let mut at = 0;
            let end = buf.len().min(left);
            left -= end;
            while at < end {
                let part = (end - at).min(MAX_PAYLOAD - len);
                segment.push(buf.sub(at..at + part));
                at += part;
                len += part;
                if len == MAX_PAYLOAD {
                    self.segment(outgoing, &mut segment, &mut len);
                }
            }
        }
        if len > 0 {
            self.segment(outgoing, &mut segment, &mut len);
        }
    }

    fn segment(&mut self, outgoing: bool, parts: &mut Vec<IoVec<'_>>, len: &mut usize) {
        self.write(outgoing, PSH | ACK, *len, |out| {
            for part in parts.iter() {
                let at = out.len();
                out.resize(at + part.len(), 0);
                // The program may have unmapped the bytes since they were sent.
                let _ = part.try_copy_to(&mut out[at..]);
            }
        });
        parts.clear();
        *len = 0;
    }
}

impl StreamHooks for CaptureStream {
    fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        let sent = inner.send(bufs).inspect_err(|error| self.note_error(error))?;
        self.bytes(true, bufs.iter().copied(), sent);
        Ok(sent)
    }

    fn recv(
        &mut self,
        inner: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        let received = inner.recv(bufs).inspect_err(|error| self.note_error(error))?;
        if self.to_itself {
            return Ok(received);
        }
        if received == 0 {
            self.begin();
            self.fin(false);
        } else {
            self.bytes(false, bufs.iter().map(IoVecMut::as_io_vec), received);
        }
        Ok(received)
    }

    fn connect_result(&mut self, inner: &mut dyn TransportStream) -> io::Result<bool> {
        let result = inner.connect_result();
        self.ends.0 = inner.local_addr();
        match result {
            Ok(true) => {
                self.begin();
                Ok(true)
            }
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && !self.begun
                    && !self.ended =>
            {
                self.control(true, SYN);
                self.control(false, RST | ACK);
                self.end();
                Err(error)
            }
            other => other,
        }
    }

    fn shutdown(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        inner.shutdown()?;
        self.fin(true);
        Ok(())
    }

    fn abort(&mut self, inner: &mut dyn TransportStream) {
        inner.abort();
        self.reset(true);
    }

    /// Ends the capture of the connection without a FIN, because the connection continues
    /// elsewhere.
    fn take_socket(&mut self, inner: &mut dyn TransportStream) -> io::Result<OwnedFd> {
        inner.take_socket().inspect(|_| self.end())
    }

    fn before_drop(&mut self, _inner: &mut dyn TransportStream) {
        if self.begun {
            self.fin(true);
        }
    }
}
