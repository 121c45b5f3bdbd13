//! Memory in which a shard builds and receives datagrams.

use std::net::SocketAddr;
use uiw_datagram::{CRC_LEN, Grh, Header, RunCrc};
use uiw_llp::{DATAGRAM_BUFFER, DatagramSocket, Incoming, Outgoing};

/// Number of buffers of a receive call, if the previous call on the socket has filled its buffers
/// with few datagrams each.
const BUFFERS: usize = 16;
/// Average number of datagrams per buffer from which on few buffers are enough.
const MANY: usize = 16;
/// Number of buffers of other receive calls. Preparing a buffer takes some nanoseconds even if it
/// is not used.
const FEW_BUFFERS: usize = 2;
/// Space before the first datagram: a Global Route Header, which is longer than the header of a
/// datagram, replaces it.
pub(super) const HEADROOM: usize = Grh::LEN - Header::LEN;
/// Maximum number of bytes of one send call.
const SEND_BYTES: usize = 256 << 10;
/// Maximum number of datagrams of one send call.
const SEND_DATAGRAMS: usize = 256;

/// Consecutive datagrams of one sender.
pub(super) struct ReceivedRun<'a> {
    pub(super) peer: SocketAddr,
    /// Bytes of the datagrams, after [`HEADROOM`]. The space for the route header of a datagram
    /// overlaps the end of the previous one, which is placed earlier.
    bytes: &'a mut [u8],
    /// Length of each datagram except the last one, which may be shorter.
    len: usize,
}

impl ReceivedRun<'_> {
    /// Returns the first datagram.
    #[inline(always)]
    pub(super) fn first(&self) -> &[u8] {
        &self.bytes[HEADROOM..][..self.len]
    }

    /// Returns the number of bytes in the first `count` datagrams.
    pub(super) fn bytes(&self, count: usize) -> usize {
        (self.bytes.len() - HEADROOM).min(self.len * count)
    }

    /// Returns the length of each datagram except the last one.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of datagrams.
    pub(super) fn all(&self) -> usize {
        // A datagram without bytes counts, too.
        (self.bytes.len() - HEADROOM).div_ceil(self.len.max(1)).max(1)
    }

    /// Returns how many datagrams, from the first one on, have the common length and satisfy
    /// `is_like`. The first `known` ones are not checked again.
    #[inline(always)]
    pub(super) fn count_similar(
        &self,
        known: usize,
        mut is_like: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        let unknown = self.bytes[HEADROOM..].chunks_exact(self.len.max(1)).skip(known);
        known + unknown.take_while(|datagram| is_like(datagram)).count()
    }

    /// Returns a datagram, with [`HEADROOM`] before it, that begins `at` bytes after the first one.
    /// It must not be a last datagram that is shorter.
    #[inline(always)]
    pub(super) fn datagram(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at..][..self.len + HEADROOM]
    }
}

/// Remaining space for the batch of datagrams that is being built.
pub(super) struct BatchRoom<'a> {
    /// Number of requests that may still be added.
    pub(super) requests: usize,
    /// Memory for the next datagrams.
    pub(super) bytes: &'a mut [u8],
    /// Sequence numbers of the requests that produce a completion.
    pub(super) reported: &'a mut Vec<u32>,
    /// Collects the number and the length of consecutive datagrams that have the same header except
    /// for the MSN.
    pub(super) alike: &'a mut Vec<(usize, usize)>,
}

/// Staging memory that the ports of a shard share. Its buffers are allocated when they are first
/// used.
#[derive(Default)]
pub(crate) struct Staging {
    buffer: Vec<u8>,
    incoming: Vec<Incoming>,
    /// Position of the next datagram to handle: its run in `incoming`, and its offset in `buffer`.
    next: (usize, usize),
    /// Buffer for datagrams that are being built; [`SEND_BYTES`] long once it is used.
    out: Vec<u8>,
    /// Length in bytes of all datagrams that were built.
    filled: usize,
    /// Items to send. Consecutive datagrams with the same length and destination are one item.
    outgoing: Vec<Outgoing>,
    /// Number of consecutive datagrams that have the same header except for the MSN, and their
    /// length.
    alike: Vec<(usize, usize)>,
    /// Flags of the items: true if an item goes to a queue pair of the same device, or to a group.
    same_device: Vec<bool>,
    /// Number of datagrams that were built.
    pub(super) built: usize,
    /// Sequence number of the request of the first datagram. The others have consecutive numbers.
    pub(super) first: u32,
    /// Requests that produce a completion if they succeed.
    pub(super) reported: Vec<u32>,
    /// Number of requests that this turn may still send.
    turn: usize,
}

impl Staging {
    /// Receives from a socket, into many buffers if `takes_many` is set; sets it for the next call.
    /// Returns the number of datagrams, and whether the buffers are filled so that more may have
    /// arrived. Returns `None` if there was no datagram.
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
        // Either all datagrams are consecutive, or each buffer has those of one sender.
        let is_filled =
            self.incoming.last().is_some_and(|last| len - last.bytes.end < DATAGRAM_BUFFER);
        *takes_many = is_filled && count < buffers * MANY;
        Some((count, is_filled))
    }

    /// Returns the next received datagrams of one sender.
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

    /// Removes the first `count` datagrams of [`Staging::arrived`].
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

    /// Begins a turn in which a queue pair sends at most this number of requests.
    pub(super) fn begin_turn(&mut self, requests: u32) {
        self.turn = requests as usize;
    }

    /// Deducts requests that were sent from those that the turn may still send.
    pub(super) fn deduct_sent(&mut self, sent: usize) {
        self.turn -= sent;
    }

    /// Returns whether the turn may send another request, in addition to those that were built.
    pub(super) fn has_turn(&self) -> bool {
        self.turn > 0
    }

    /// Discards the previous batch of built datagrams.
    pub(super) fn begin_batch(&mut self) {
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

    /// Returns the built datagrams, their items, and for each item whether it stays on the device.
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

    /// Adds an item for datagrams that were just built.
    pub(super) fn add(&mut self, outgoing: Outgoing, same_device: bool) {
        self.built += outgoing.count;
        self.filled += outgoing.count * outgoing.len;
        self.outgoing.push(outgoing);
        self.same_device.push(same_device);
    }

    /// Computes the CRCs after all datagrams were built, because reading bytes right after they
    /// were written in other sizes is slow.
    pub(super) fn fill_crcs(&mut self) {
        let mut rest = &mut self.out[..self.filled];
        for (count, len) in &self.alike {
            let (datagrams, behind) = rest.split_at_mut(len * count);
            let run = (*count > 1).then(|| RunCrc::new(&datagrams[..len - CRC_LEN]));
            for datagram in datagrams.chunks_exact_mut(*len) {
                if let Some((bytes, field)) = datagram.split_last_chunk_mut() {
                    *field = run.map_or_else(|| uiw_datagram::crc(bytes), |run| run.crc(bytes));
                }
            }
            rest = behind;
        }
    }

    /// Returns whether a datagram of `len` bytes may be added: there is room, and the turn may send
    /// another request.
    #[inline(always)]
    pub(super) fn may_add(&self, len: usize) -> bool {
        // A message that is longer than any datagram is refused later.
        self.built < self.turn.min(SEND_DATAGRAMS)
            && (self.built == 0 || self.filled + len <= SEND_BYTES)
    }
}
