//! Memory in which a shard's datagrams are built and received.

use std::net::SocketAddr;
use uiw_datagram::{CRC_LEN, Grh, Header, RunCrc};
use uiw_llp::{DATAGRAM_BUFFER, DatagramSocket, Incoming, Outgoing};

/// Buffers of a call that receives, if the last one at the socket filled its own with few
/// datagrams.
const BUFFERS: usize = 16;
/// Datagrams in a buffer, by average, that are many: then few buffers are enough.
const MANY: usize = 16;
/// Buffers of another call: to prepare one takes some nanoseconds, also where nothing is there.
const FEW_BUFFERS: usize = 2;
/// Bytes in front of the first datagram: a Global Route Header takes the place of a datagram's
/// header, and is longer.
pub(super) const HEADROOM: usize = Grh::LEN - Header::LEN;
/// Bytes and datagrams of one call that sends.
const SEND_BYTES: usize = 256 << 10;
const SEND_DATAGRAMS: usize = 256;

/// Datagrams of one sender that lie one behind the other.
pub(super) struct ReceivedRun<'a> {
    pub(super) peer: SocketAddr,
    /// Their bytes behind [`HEADROOM`]. In front of each datagram is the end of the one before,
    /// which is placed earlier.
    bytes: &'a mut [u8],
    /// Bytes of each but the last, which may have fewer.
    len: usize,
}

impl ReceivedRun<'_> {
    /// The first datagram.
    #[inline(always)]
    pub(super) fn first(&self) -> &[u8] {
        &self.bytes[HEADROOM..][..self.len]
    }

    /// Returns the number of bytes in the first `count` datagrams.
    pub(super) fn bytes(&self, count: usize) -> usize {
        (self.bytes.len() - HEADROOM).min(self.len * count)
    }

    /// Bytes of each datagram but the last.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of datagrams.
    pub(super) fn all(&self) -> usize {
        // One without bytes is a datagram too.
        (self.bytes.len() - HEADROOM).div_ceil(self.len.max(1)).max(1)
    }

    /// Counts the datagrams, from the first on, that have the common length and for which `is_like`
    /// returns true. It is not called for the first `known`, which count as such.
    #[inline(always)]
    pub(super) fn count(&self, known: usize, mut is_like: impl FnMut(&[u8]) -> bool) -> usize {
        let unknown = self.bytes[HEADROOM..].chunks_exact(self.len.max(1)).skip(known);
        known + unknown.take_while(|datagram| is_like(datagram)).count()
    }

    /// A datagram behind [`HEADROOM`], which begins `at` bytes behind the first one; it is not the
    /// last one, if that is shorter.
    #[inline(always)]
    pub(super) fn datagram(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at..][..self.len + HEADROOM]
    }
}

/// Space for datagrams to be built.
pub(super) struct BatchRoom<'a> {
    /// Number of requests that may still be added.
    pub(super) requests: usize,
    /// Space for the next datagrams.
    pub(super) bytes: &'a mut [u8],
    /// The requests that are reported.
    pub(super) reported: &'a mut Vec<u32>,
    /// Gets the number and the length of datagrams that have one header but for the MSN.
    pub(super) alike: &'a mut Vec<(usize, usize)>,
}

/// Shared by the ports of a shard. Its buffers are allocated by the first call that receives, and
/// by the first that sends.
#[derive(Default)]
pub(crate) struct Staging {
    buffer: Vec<u8>,
    incoming: Vec<Incoming>,
    /// The datagram that is looked at next: its run in `incoming`, and where it begins in `buffer`.
    next: (usize, usize),
    /// Datagrams that are being built, one behind the other; [`SEND_BYTES`], once there was one.
    out: Vec<u8>,
    /// Bytes of those that were built.
    filled: usize,
    /// Items to send; datagrams of one length to one destination are one item.
    outgoing: Vec<Outgoing>,
    /// Numbers of consecutive datagrams that have one header except for the MSN, and their length.
    alike: Vec<(usize, usize)>,
    /// True for items to a queue pair of the same device, or to a group.
    same_device: Vec<bool>,
    /// Number of built datagrams.
    pub(super) built: usize,
    /// Sequence number of the request of the first one; those of the others follow.
    pub(super) first: u32,
    /// Requests whose success has a completion.
    pub(super) reported: Vec<u32>,
    /// Requests that the present turn may still send.
    turn: usize,
}

impl Staging {
    /// Receives from a socket, into many buffers if `takes_many`, which is set for the next call.
    /// Returns how many datagrams, and whether the buffers are filled, so that more may be left;
    /// nothing where none was there.
    pub(super) fn receive(
        &mut self,
        socket: &mut dyn DatagramSocket,
        takes_many: &mut bool,
    ) -> Option<(usize, bool)> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; HEADROOM + BUFFERS * DATAGRAM_BUFFER];
        }
        self.incoming.clear();
        self.next = (0, 0);
        let buffers = if std::mem::take(takes_many) { BUFFERS } else { FEW_BUFFERS };
        let room = &mut self.buffer[HEADROOM..][..buffers * DATAGRAM_BUFFER];
        let len = room.len();
        socket.recv(room, &mut self.incoming).ok()?;
        self.next.1 = self.incoming.first().map_or(0, |first| first.bytes.start);
        let count = self.incoming.iter().map(|run| run.each().len()).sum();
        // Datagrams are one behind the other, or each buffer has those of one sender.
        let is_filled = self.incoming.last().is_some_and(|last| len - last.bytes.end < DATAGRAM_BUFFER);
        *takes_many = is_filled && count < buffers * MANY;
        Some((count, is_filled))
    }

    /// The datagrams of one sender that were received and are looked at next.
    #[inline]
    pub(super) fn arrived(&mut self) -> Option<ReceivedRun<'_>> {
        let (run, at) = self.next;
        let run = self.incoming.get(run)?;
        Some(ReceivedRun {
            peer: run.peer,
            bytes: &mut self.buffer[at..run.bytes.end + HEADROOM],
            len: run.len.min(run.bytes.end - at),
        })
    }

    /// The first `count` datagrams of [`Staging::arrived`] were looked at.
    #[inline]
    pub(super) fn advance(&mut self, count: usize) {
        let (run, at) = &mut self.next;
        // A datagram without bytes is a run of its own.
        *at += self.incoming[*run].len.max(1) * count;
        if *at >= self.incoming[*run].bytes.end {
            *run += 1;
            *at = self.incoming.get(*run).map_or(0, |run| run.bytes.start);
        }
    }

    /// A queue pair sends at most so many requests.
    pub(super) fn begin(&mut self, requests: u32) {
        self.turn = requests as usize;
    }

    /// Removes requests that were sent.
    pub(super) fn count(&mut self, sent: usize) {
        self.turn -= sent;
    }

    /// Returns whether the turn has a request left, when those that were sent are counted.
    pub(super) fn has_turn(&self) -> bool {
        self.turn > 0
    }

    pub(super) fn prepare_send(&mut self) {
        if self.out.is_empty() {
            self.out = vec![0; SEND_BYTES];
        }
        self.filled = 0;
        self.outgoing.clear();
        self.alike.clear();
        self.same_device.clear();
        self.reported.clear();
        self.built = 0;
    }

    /// The datagrams that were built, their items, and of each item whether it stays on the device.
    pub(super) fn batch(&mut self) -> (&[u8], &mut [Outgoing], &[bool]) {
        (&self.out[..self.filled], &mut self.outgoing, &self.same_device)
    }

    /// Returns the space for the next datagrams.
    #[inline(always)]
    pub(super) fn room(&mut self) -> BatchRoom<'_> {
        BatchRoom {
            requests: self.turn.min(SEND_DATAGRAMS).saturating_sub(self.built),
            bytes: &mut self.out[self.filled..],
            reported: &mut self.reported,
            alike: &mut self.alike,
        }
    }

    /// Adds an item whose datagrams were just built.
    pub(super) fn add(&mut self, outgoing: Outgoing, same_device: bool) {
        self.built += outgoing.count;
        self.filled += outgoing.count * outgoing.len;
        self.outgoing.push(outgoing);
        self.same_device.push(same_device);
    }

    /// Fills in the CRCs, when all datagrams were built: bytes that were just written, in other
    /// pieces than those that the CRC reads, would have to reach the cache first.
    pub(super) fn fill_crcs(&mut self) {
        let mut rest = &mut self.out[..self.filled];
        for (count, len) in &self.alike {
            let (datagrams, behind) = rest.split_at_mut(len * count);
            let run = (*count > 1).then(|| RunCrc::of(&datagrams[..len - CRC_LEN]));
            for datagram in datagrams.chunks_exact_mut(*len) {
                if let Some((bytes, field)) = datagram.split_last_chunk_mut() {
                    *field = run.map_or_else(|| uiw_datagram::crc(bytes), |run| run.crc(bytes));
                }
            }
            rest = behind;
        }
    }

    /// Returns whether a datagram of `len` bytes may be added: there is room, and the turn has a
    /// request left.
    #[inline(always)]
    pub(super) fn may_add(&self, len: usize) -> bool {
        // One that is longer than any message is refused later.
        self.built < self.turn.min(SEND_DATAGRAMS) && (self.built == 0 || self.filled + len <= SEND_BYTES)
    }
}
