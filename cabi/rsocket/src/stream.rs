//! A connected rsocket: both halves, and the link that they use. No function in this module waits;
//! the callers hold the socket's lock.

use crate::link::{BATCH, CONTROL_SLOTS, Link, LinkCompletion, MAX_BATCHES, PollMode, TARGETS};
use crate::mappings::Mappings;
use crate::receiver::{Receiver, Violation};
use crate::sender::Sender;
use crate::settings::Sizes;
use crate::wire::{ConnData, Mapping, Message, Order, Target, Variant, WireError};
use std::fmt;
use std::time::{Duration, Instant};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_datagram::Qpn;

/// If the peer fills a target within this number of round trips, longer targets follow, so that the
/// buffer has room for the data of a round trip.
const QUICK_ROUND_TRIPS: u32 = 2;

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer closed the connection, or is gone. Data that it has sent can still be read.
    Closed,
    /// The connection failed.
    Failed(Errno),
}

/// Directions that were shut down.
#[derive(Clone, Copy, Debug, Default)]
struct ShutDirections {
    /// True if this program has shut down writing.
    write: bool,
    /// True if this program has shut down reading.
    read: bool,
    /// True if SHUTDOWN was received: the peer sends no more data.
    peer_write: bool,
    /// True if DISCONNECT was sent.
    notified: bool,
}

impl ShutDirections {
    /// Returns whether both directions were shut down, by this program or by the peer.
    fn is_over(self) -> bool {
        self.write && (self.read || self.peer_write)
    }
}

/// A connection.
pub(crate) struct Stream {
    pub(super) link: Link,
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    /// Byte order in which the peer's memory is written.
    order: Order,
    /// The peer's list of targets.
    lists: Target,
    /// Index of the next entry to write in the peer's list.
    entry: u32,
    /// Index of the next entry to take from our list.
    next_target: usize,
    /// Time at which the last target was published.
    published: Option<Instant>,
    pub(super) mappings: Mappings,
    shut: ShutDirections,
    ended: Option<Ending>,
}

impl Stream {
    /// Creates a connection over `link` to the peer that sent `peer`, which the caller has checked
    /// with [`check_peer`].
    pub(crate) fn new(link: Link, sizes: &Sizes, peer: &ConnData) -> Self {
        let sender = Sender::new(sizes.sent, sizes.sends, CONTROL_SLOTS, peer.credits, peer.first);
        let receiver = link.receiver();
        let mappings = Mappings::new(peer.targets, peer.mappings);
        Self {
            link,
            receiver,
            sender,
            order: peer.order,
            lists: peer.targets,
            // Entry 0 of each list is transmitted in the private data.
            entry: 1,
            next_target: 1,
            published: None,
            mappings,
            shut: ShutDirections::default(),
            ended: None,
        }
    }

    /// Handles completions, at most [`MAX_BATCHES`] batches, and gives credits. Returns whether
    /// there were any completions.
    pub(crate) fn process(&mut self, mut take: PollMode) -> bool {
        let mut any = false;
        for _ in 0..MAX_BATCHES {
            let Self { link, receiver, sender, shut, ended, .. } = self;
            let mut broken = None;
            let taken = link.poll(take, |completed| match completed {
                LinkCompletion::Sent => sender.completed(),
                LinkCompletion::Received(word) if broken.is_none() && ended.is_none() => {
                    broken = receive(word, receiver, sender, shut, ended).err();
                }
                LinkCompletion::Received(_) => {}
                LinkCompletion::Unknown => broken = Some(ProtocolViolation::Form),
            });
            any |= taken > 0;
            if let Some(broken) = broken {
                self.break_off(&broken);
            }
            self.take_target();
            let has_posted = self.give_credits();
            if taken == 0 {
                return any;
            }
            if self.receiver.readable() > 0 {
                // Another round would usually find nothing, but would cost a system call.
                take = PollMode::Queued;
            }
            if take == PollMode::Queued && taken < BATCH && !has_posted {
                // All queued completions were handled. Later ones are detected before a thread
                // waits.
                return any;
            }
        }
        any
    }

    /// Ends the connection because the peer has violated the protocol.
    fn break_off(&mut self, broken: &ProtocolViolation) {
        let qp = Qpn::from_raw(self.link.qp().num());
        tracing::warn!(%qp, %broken, "the peer of an rsocket violates the protocol: the connection is ended");
        self.ended = Some(Ending::Failed(Errno(libc::EPROTO)));
        self.link.abort();
    }

    /// Takes the next target, if the current one is full and the peer has published another.
    fn take_target(&mut self) {
        if self.sender.needs_target()
            && let Ok(Some(target)) = self.link.take_target(self.next_target)
        {
            self.next_target = (self.next_target + 1) % TARGETS;
            self.sender.set_target(target);
        }
    }

    /// Gives credits if they are due. Returns whether a message was posted.
    fn give_credits(&mut self) -> bool {
        if self.ended.is_some() || self.shut.notified {
            return false;
        }
        let Some(mut grant) = self.receiver.due() else { return false };
        // The last two slots are reserved for SHUTDOWN and DISCONNECT.
        if self.sender.control_slots() <= 2 || !self.sender.take_control_slot() {
            return false;
        }
        if grant.target.is_some() && self.receiver.can_grow() && self.peer_fills_quickly() {
            self.receiver.grow();
            grant = self.receiver.due().unwrap_or(grant);
        }
        let message = Message::Credits { limit: grant.limit };
        // This fails if the connection has ended, which its event reports.
        let _ = match &grant.target {
            None => self.link.post_message(message),
            Some(target) => {
                let entry = self.link.target(target.clone()).to_bytes(self.order);
                let at = self.lists.addr.wrapping_add(u64::from(self.entry) * Target::LEN as u64);
                self.entry = (self.entry + 1) % self.lists.len;
                let to = Target { addr: at, key: self.lists.key, len: Target::LEN as u32 };
                self.link.write_entry(&entry, to, message)
            }
        };
        self.receiver.given(grant);
        true
    }

    /// Returns whether the peer has filled a target so quickly that it may be waiting for the next
    /// one. Called when a target is published.
    fn peer_fills_quickly(&mut self) -> bool {
        let now = Instant::now();
        let Some(before) = self.published.replace(now) else { return false };
        is_quick(now - before, self.link.round_trip())
    }

    /// Records the end of the connection, which its event has reported.
    pub(crate) fn end(&mut self, ending: Ending) {
        // Data that the peer has sent before is received first.
        while self.process(PollMode::Driving) {}
        self.ended.get_or_insert(ending);
    }

    /// Returns the error with which the connection failed, if it did.
    pub(crate) fn failure(&self) -> Option<Errno> {
        match self.ended {
            Some(Ending::Failed(errno)) => Some(errno),
            _ => None,
        }
    }

    /// Returns whether the peer has closed the connection, and this program has not shut down its
    /// direction.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        self.ended == Some(Ending::Closed) && !self.shut.write
    }

    /// Returns whether this end neither sends nor receives data any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_some() || self.shut.is_over()
    }

    /// Returns whether reads return 0 once all received data was read: the connection has ended,
    /// the peer sends no more data, or this program has shut down reading.
    pub(crate) fn at_end(&self) -> bool {
        self.ended.is_some() || self.shut.peer_write || self.shut.read
    }

    /// Returns whether this end may not send data any more.
    pub(crate) fn is_write_closed(&self) -> bool {
        self.ended.is_some() || self.shut.write
    }

    /// Returns whether a read returns immediately.
    pub(crate) fn is_readable(&self) -> bool {
        self.receiver.readable() > 0 || self.at_end()
    }

    /// Copies received bytes after the first `skip` ones, without consuming them. Returns the
    /// number of bytes copied.
    pub(crate) fn copy_out(&self, skip: u64, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() && self.receiver.readable() > skip + done as u64 {
            let chunk = self.receiver.chunk(skip + done as u64, to.len() - done);
            let len = (chunk.end - chunk.start) as usize;
            self.link.copy_received(chunk.start, &mut to[done..done + len])?;
            done += len;
        }
        Ok(done)
    }

    /// Consumes `len` received bytes. Returns whether there were any completions, for which other
    /// threads have to be woken.
    pub(crate) fn consume(&mut self, len: usize) -> bool {
        self.receiver.consume(len as u32);
        // The completion of the credits is taken now, so that an answer which the program sends
        // next is sent immediately. Otherwise it would be coalesced because of the request whose
        // completion was not taken, and the background thread would have to be woken to send it.
        self.give_credits() && self.process(PollMode::Queued)
    }

    /// Returns the result of reading if no data is available.
    ///
    /// # Errors
    /// EAGAIN if data may still arrive, ECONNRESET and other errors of a connection that failed.
    pub(crate) fn nothing_readable(&self) -> Result<usize> {
        match self.ended {
            Some(Ending::Failed(errno)) => Err(errno),
            _ if self.at_end() => Ok(0),
            _ => Err(Errno::AGAIN),
        }
    }

    /// Checks that data may be sent now.
    ///
    /// # Errors
    /// EPIPE after this program shut down the direction, ECONNRESET after the peer closed the
    /// connection, the error of a connection that failed; EAGAIN if there is no room.
    pub(crate) fn check_room(&mut self) -> Result<()> {
        self.check_open()?;
        if self.sender.has_room() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Like [`Stream::check_room`], for a message that needs no target.
    pub(crate) fn check_slot(&self) -> Result<()> {
        self.check_open()?;
        if self.sender.has_slot() { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Checks that this end may send.
    ///
    /// # Errors
    /// EPIPE after this program shut down the direction, and the errors of a connection that has
    /// ended.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.ended {
            _ if self.shut.write => Err(Errno(libc::EPIPE)),
            Some(Ending::Failed(errno)) => Err(errno),
            Some(Ending::Closed) => Err(Errno(libc::ECONNRESET)),
            None => Ok(()),
        }
    }

    /// Sends as much data as there is room for, from the buffers of a program. Returns the number
    /// of bytes sent.
    ///
    /// # Errors
    /// The errors of [`Stream::check_room`], if nothing was sent.
    pub(crate) fn send<'a>(
        &mut self,
        from: impl Iterator<Item = &'a [u8]> + Clone,
        total: u64,
    ) -> Result<u64> {
        let mut from = GatherCursor::new(from);
        let mut sent = 0;
        while sent < total {
            if let Err(errno) = self.check_room() {
                return if sent > 0 { Ok(sent) } else { Err(errno) };
            }
            let piece = self.sender.next(total - sent);
            let len = piece.staged.end - piece.staged.start;
            from.copy(&self.link, piece.staged.start, len)?;
            self.link.write_data(piece.staged, piece.to)?;
            self.take_target();
            sent += u64::from(len);
        }
        Ok(sent)
    }

    /// Publishes the mappings that are not published yet, as far as there is room.
    pub(crate) fn publish_mappings(&mut self) -> Result<()> {
        while let Some((index, mapping, to)) = self.mappings.unpublished() {
            self.check_slot()?;
            self.sender.take_mapping_slot();
            self.link.write_entry(&mapping.to_bytes(self.order), to, Message::Mapped { index })?;
            self.mappings.published();
        }
        Ok(())
    }

    /// Writes to a mapping of the peer. Returns the number of bytes written.
    pub(crate) fn write_mapped(&mut self, from: &[u8], offset: u64) -> Result<u64> {
        let mut sent = 0;
        while sent < from.len() as u64 {
            let at = offset.wrapping_add(sent);
            let Some((to, room)) = self.link.mappings().find_map(|mapping| place(&mapping, at))
            else {
                break;
            };
            if let Err(errno) = self.check_slot() {
                return if sent > 0 { Ok(sent) } else { Err(errno) };
            }
            let staged = self.sender.next_direct(from.len() as u64 - sent, room);
            let len = staged.end - staged.start;
            self.link.stage(staged.start, &from[sent as usize..][..len as usize])?;
            self.link.write_direct(staged, Target { len, ..to })?;
            sent += u64::from(len);
        }
        Ok(sent)
    }

    /// Shuts down directions. Sends DISCONNECT once this program has shut down writing and no data
    /// is to be received any more, and SHUTDOWN if it has shut down writing only.
    pub(crate) fn shutdown(&mut self, read: bool, write: bool) -> Result<()> {
        let was = self.shut;
        self.shut.read |= read;
        self.shut.write |= write;
        if self.ended.is_some() || self.shut.notified {
            return Ok(());
        }
        if self.shut.is_over() {
            self.shut.notified = true;
            self.notify(Message::Disconnect)
        } else if write && !was.write {
            self.notify(Message::Shutdown)
        } else {
            Ok(())
        }
    }

    fn notify(&mut self, message: Message) -> Result<()> {
        if self.sender.take_control_slot() {
            self.link.post_message(message)
        } else {
            Err(Errno::IO)
        }
    }

    /// Closes the connection: transmits all data, then DISCONNECT, and then ends the stream.
    pub(crate) fn close(&mut self) {
        // These fail if the connection has ended.
        if self.ended.is_none() {
            let _ = self.shutdown(true, true);
        }
        let _ = self.link.qp().disconnect();
    }

    /// Removes all mapped buffers.
    pub(crate) fn unmap_all(&mut self) {
        self.mappings.clear();
    }

    /// Returns whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

fn is_quick(filled: Duration, round_trip: Option<Duration>) -> bool {
    round_trip.is_some_and(|time| filled < time * QUICK_ROUND_TRIPS)
}

/// Returns the part of a mapping from `offset` on, and its size, or `None` if the mapping does not
/// contain `offset`.
fn place(mapping: &Mapping, offset: u64) -> Option<(Target, u32)> {
    let skip = offset.checked_sub(mapping.offset)?;
    let skip = u32::try_from(skip).ok().filter(|skip| *skip < mapping.target.len)?;
    let addr = mapping.target.addr.wrapping_add(skip.into());
    let room = mapping.target.len - skip;
    Some((Target { addr, len: room, ..mapping.target }, room))
}

/// Checks that the peer can communicate with this end.
///
/// # Errors
/// EPROTO; the reason is logged.
pub(crate) fn check_peer(variant: Variant, peer: &ConnData) -> Result<()> {
    if peer.variant.is_some_and(|other| other != variant) {
        tracing::warn!(
            ours = ?variant,
            peer = ?peer.variant,
            "an rsocket is refused: the ends send messages in different ways; UIW_PERSONA must be iwarp at both or at none"
        );
        return Err(Errno(libc::EPROTO).because("the peer sends messages in another way"));
    }
    if variant == Variant::Send && peer.order != Order::HOST {
        tracing::warn!(
            "an rsocket is refused: messages by Send have no meaning between hosts of different byte order"
        );
        return Err(Errno(libc::EPROTO).because("the peer has another byte order"));
    }
    Ok(())
}

/// Violation of the protocol by a peer.
enum ProtocolViolation {
    Wire(WireError),
    Violation(Violation),
    Form,
}

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(error) => error.fmt(f),
            Self::Violation(violation) => violation.fmt(f),
            Self::Form => f.write_str("the message does not have four bytes"),
        }
    }
}

/// Handles a message of the peer.
fn receive(
    word: u32,
    receiver: &mut Receiver,
    sender: &mut Sender,
    shut: &mut ShutDirections,
    ended: &mut Option<Ending>,
) -> std::result::Result<(), ProtocolViolation> {
    match Message::from_word(word).map_err(ProtocolViolation::Wire)? {
        Message::Data { len } => receiver.arrive(len).map_err(ProtocolViolation::Violation)?,
        Message::Credits { limit } => sender.set_credit_limit(limit),
        // The entry was written to memory, and is read when it is used.
        Message::Mapped { .. } | Message::KeepAlive => {}
        Message::Shutdown => shut.peer_write = true,
        Message::Disconnect => *ended = Some(Ending::Closed),
    }
    Ok(())
}

/// Position in the buffers of a program, which are treated as contiguous.
struct GatherCursor<'a, I: Iterator<Item = &'a [u8]>> {
    rest: I,
    current: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> GatherCursor<'a, I> {
    fn new(from: I) -> Self {
        Self { rest: from, current: &[] }
    }

    /// Copies the next `len` bytes to `at` in the ring of `link`.
    fn copy(&mut self, link: &Link, at: u32, len: u32) -> Result<()> {
        let (mut at, mut left) = (at, len as usize);
        while left > 0 {
            if self.current.is_empty() {
                self.current = self.rest.next().ok_or(Errno::IO)?;
                continue;
            }
            let (part, rest) = self.current.split_at(left.min(self.current.len()));
            link.stage(at, part)?;
            at += part.len() as u32;
            left -= part.len();
            self.current = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::tests::{SIZES, pair};

    #[test]
    fn peer_waiting_for_targets_gets_longer() {
        let ms = Duration::from_millis;
        assert!(is_quick(ms(50), Some(ms(30))));
        assert!(!is_quick(ms(50), Some(ms(20))));
        assert!(!is_quick(ms(0), None), "not known");
    }

    /// Returns two ends of a connection.
    fn streams(sizes: &Sizes) -> (Stream, Stream) {
        let links = pair(Variant::Send, sizes);
        let data = links.each_ref().map(Link::conn_data);
        let peers = [data[1], data[0]];
        let mut ends =
            links.into_iter().zip(&peers).map(|(link, peer)| Stream::new(link, sizes, peer));
        (ends.next().unwrap(), ends.next().unwrap())
    }

    #[test]
    fn reader_takes_completions_of_credits() {
        let (mut from, mut to) = streams(&SIZES);
        let mut open = 0;
        // The sender could not send everything without credits.
        for _ in 0..3000 {
            while from.send(std::iter::once(&[7; 10][..]), 10).is_err() {
                from.process(PollMode::Driving);
            }
            while to.receiver.readable() == 0 {
                to.process(PollMode::Driving);
            }
            to.consume(to.receiver.readable() as usize);
            open += usize::from(to.sender.control_slots() < CONTROL_SLOTS);
        }
        // The background thread may delay some of them.
        assert!(open < 20, "{open}");
    }

    #[test]
    fn bytes_ordered_while_targets_grow() {
        let sizes = Sizes { received: 4 << 20, ..SIZES };
        let (mut from, mut to) = streams(&sizes);
        let bytes: Vec<u8> = (0..12_000_000u32).map(|at| (at % 251) as u8).collect();
        let (mut sent, mut received) = (0, Vec::<u8>::new());
        while received.len() < bytes.len() {
            match from.send(std::iter::once(&bytes[sent..]), (bytes.len() - sent) as u64) {
                Ok(done) => sent += done as usize,
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
            from.process(PollMode::Driving);
            to.process(PollMode::Driving);
            let mut part = vec![0; to.receiver.readable() as usize];
            let len = to.copy_out(0, &mut part).unwrap();
            if received.len() / 2_000_000 < (received.len() + len) / 2_000_000 {
                to.receiver.grow();
            }
            to.consume(len);
            received.extend(&part[..len]);
        }
        assert!(received == bytes, "the bytes of the stream");
        assert!(!to.receiver.can_grow());
    }
}
