//! Memory in which a shard's datagrams are built and received.

use std::net::SocketAddr;
use uiw_datagram::{Grh, Header};
use uiw_llp::{DATAGRAM_BUFFER, DatagramSocket, Incoming, Outgoing};

/// Buffers of a call that receives, if the last one at the socket filled its own.
const BUFFERS: usize = 16;
/// Buffers of another call: to prepare one takes some nanoseconds, also where nothing is there.
const FEW_BUFFERS: usize = 2;
/// Bytes in front of the first datagram: a Global Route Header takes the place of a datagram's header, and is longer.
pub(super) const HEADROOM: usize = Grh::LEN - Header::LEN;
/// Bytes and datagrams of one call that sends.
const SEND_BYTES: usize = 256 << 10;
const SEND_DATAGRAMS: usize = 256;

/// Shared by the ports of a shard. Its buffers are allocated by the first call that receives, and by the first that sends.
#[derive(Default)]
pub(crate) struct Staging {
    buffer: Vec<u8>,
    pub(super) incoming: Vec<Incoming>,
    /// Datagrams that are being built, one behind the other; [`SEND_BYTES`], once there was one.
    out: Vec<u8>,
    /// Bytes of those that were built.
    filled: usize,
    /// Those of one length to one destination are an item.
    outgoing: Vec<Outgoing>,
    /// Of each item: it goes to a queue pair of the same device, or to a group.
    same_device: Vec<bool>,
    /// How many datagrams these are.
    pub(super) built: usize,
    /// Sequence number of the request of the first one; those of the others follow.
    pub(super) first: u32,
    /// Those of the requests whose success has a completion.
    pub(super) reported: Vec<u32>,
    /// Requests that the present turn may still send.
    turn: usize,
}

impl Staging {
    /// Receives from a socket, more if it `takes_many`. Returns whether the buffers are filled, so that datagrams may be left; nothing where none was there.
    pub(super) fn receive(&mut self, socket: &mut dyn DatagramSocket, takes_many: bool) -> Option<bool> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; HEADROOM + BUFFERS * DATAGRAM_BUFFER];
        }
        self.incoming.clear();
        let buffers = if takes_many { BUFFERS } else { FEW_BUFFERS };
        let room = &mut self.buffer[HEADROOM..][..buffers * DATAGRAM_BUFFER];
        let len = room.len();
        socket.recv(room, &mut self.incoming).ok()?;
        // Datagrams are one behind the other, or each buffer has those of one sender.
        Some(self.incoming.last().is_some_and(|last| len - last.bytes.end < DATAGRAM_BUFFER))
    }

    /// The sender of a datagram that was received, and the datagram behind [`HEADROOM`]: in front of it is the end of the one before, which
    /// has been placed.
    pub(super) fn arrived(&mut self, number: usize) -> (SocketAddr, &mut [u8]) {
        let Incoming { peer, bytes } = &self.incoming[number];
        (*peer, &mut self.buffer[bytes.start..bytes.end + HEADROOM])
    }

    /// A queue pair sends at most so many requests.
    pub(super) fn begin(&mut self, requests: u32) {
        self.turn = requests as usize;
    }

    /// So many requests were sent.
    pub(super) fn count(&mut self, sent: usize) {
        self.turn -= sent;
    }

    /// Whether the turn has a request left, when those that were sent are counted.
    pub(super) fn has_turn(&self) -> bool {
        self.turn > 0
    }

    pub(super) fn prepare_send(&mut self) {
        if self.out.is_empty() {
            self.out = vec![0; SEND_BYTES];
        }
        self.filled = 0;
        self.outgoing.clear();
        self.same_device.clear();
        self.reported.clear();
        self.built = 0;
    }

    /// Where the next datagram is built. Called where there is room for `len` bytes.
    #[inline]
    pub(super) fn place(&mut self, len: usize) -> &mut [u8] {
        &mut self.out[self.filled..][..len]
    }

    /// The datagrams that were built, their items, and of each item whether it stays on the device.
    pub(super) fn batch(&mut self) -> (&[u8], &mut [Outgoing], &[bool]) {
        (&self.out[..self.filled], &mut self.outgoing, &self.same_device)
    }

    /// Adds the datagram of `len` bytes that was just built: to the last item, or in one of its own, `new`, where it has another length, or is the
    /// first one to its destination (`is_first`).
    #[inline(always)]
    pub(super) fn add(&mut self, len: usize, is_first: bool, new: impl FnOnce() -> (Outgoing, bool)) {
        self.built += 1;
        self.filled += len;
        match self.outgoing.last_mut() {
            Some(last) if !is_first && last.len == len => last.count += 1,
            _ => {
                let (outgoing, same_device) = new();
                self.outgoing.push(outgoing);
                self.same_device.push(same_device);
            }
        }
    }

    /// Fills in the CRCs, when all datagrams were built: bytes that were just written, in other pieces than those that the CRC reads, would
    /// have to reach the cache first.
    pub(super) fn fill_crcs(&mut self) {
        let mut rest = &mut self.out[..self.filled];
        for Outgoing { len, count, .. } in &self.outgoing {
            let (datagrams, behind) = rest.split_at_mut(len * count);
            for datagram in datagrams.chunks_exact_mut(*len) {
                if let Some((bytes, field)) = datagram.split_last_chunk_mut() {
                    *field = uiw_datagram::crc(bytes);
                }
            }
            rest = behind;
        }
    }

    /// Whether a datagram of `len` bytes may be added: there is room, and the turn has a request left.
    #[inline(always)]
    pub(super) fn may_add(&self, len: usize) -> bool {
        // One that is longer than any message is refused later.
        self.built < self.turn.min(SEND_DATAGRAMS) && (self.built == 0 || self.filled + len <= SEND_BYTES)
    }
}
