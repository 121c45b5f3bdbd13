//! The sending half of a stream: from messages ([`next_message`]) of requests and responses to
//! segments (`ddp`), FPDUs (`mpa`) and bytes for TCP.
//!
//! Large payloads are sent from the memory of the host; small ones, and all with Markers, are built
//! in one piece. Memory that a peer may write, and the source of a Read Response (which may legally
//! change at any time), is copied before its CRC is computed, so that the bytes of an FPDU never
//! change between CRC and wire.

mod build;
mod gathered;
mod message;
mod next_message;
mod pending_crc;
mod transmit_queue;

pub use build::{BatchLength, MAX_BUFFER, USUAL_BUFFER};
pub use transmit_queue::Piece;

use crate::config::FpduSize;
use crate::error::ConnError;
use crate::host::StreamHost;
use crate::placement;
use crate::reads::{Outstanding, ReadOrigin};
use crate::shared::Shared;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use message::{Message, Source};
use pending_crc::PendingCrc;
use transmit_queue::TransmitQueue;
use uiw_ddp::Header;
use uiw_mpa::startup::{Negotiated, Rtr};
use uiw_mpa::tx::FpduTx;
use uiw_rdmap::AtomicRequest;

/// Length in bytes of the longest message of fixed fields.
const MAX_FIELDS: usize = AtomicRequest::LEN;

/// State of the sending half between two FPDUs. `M` is [`StreamHost::Memory`].
#[derive(Debug)]
pub(crate) struct Sender<M> {
    fpdu: FpduTx,
    /// Position in the transmit queue at which Full Operation began.
    base: u64,
    /// Number of bytes that a TCP segment carries.
    pub(crate) emss: usize,
    /// Length of the largest ULPDU.
    pub(crate) mulpdu: usize,
    /// Maximum length of the next batch.
    pub(crate) batch_length: BatchLength,
    /// Next MSN of queues 0 to 3.
    msn: [u32; 4],
    /// Message that is being segmented.
    message: Option<Message>,
    /// Bytes of the message that was begun last, if it consists of fixed fields.
    fields: [u8; MAX_FIELDS],
    /// Completion watermarks: the requests whose last bytes are at these positions complete when
    /// TCP has accepted the bytes, or when the peer has acknowledged their placement.
    watermarks: VecDeque<(u64, u32)>,
    /// RTR message, if it is a Read or a Send. It is sent before everything else.
    rtr: Option<Rtr>,
    /// True if the previous message was chosen with responses before requests. The next one is
    /// chosen in the opposite order, so that neither kind has to wait.
    responses_were_first: bool,
    /// True if the host had no more requests when it was last asked. A doorbell announces new ones.
    pub(crate) drained: bool,
    /// True if the next atomic cannot be executed, which is reported when the queue is empty.
    answer_waits: bool,
    /// True if the drain Read is to be sent as the next message, because the host is detached or
    /// the stream closes in order.
    drain_read: bool,
    /// Number of bytes since Full Operation began that the peer has acknowledged.
    placed: u64,
    /// Unreliable Write whose announcement was built. It is the next request to be built.
    announced: Option<u32>,
    queue: TransmitQueue<M>,
    pending_crc: PendingCrc,
}

impl<M> Sender<M> {
    pub(crate) fn new() -> Self {
        Self {
            fpdu: FpduTx::new(false, false),
            base: 0,
            emss: uiw_mpa::MIN_MULPDU,
            mulpdu: uiw_mpa::MIN_MULPDU,
            batch_length: BatchLength::default(),
            // RFC 5041 section 5.1: the first message on each queue has MSN 1.
            msn: [1; 4],
            message: None,
            fields: [0; MAX_FIELDS],
            watermarks: VecDeque::new(),
            rtr: None,
            responses_were_first: false,
            drained: false,
            answer_waits: false,
            drain_read: false,
            placed: 0,
            announced: None,
            queue: TransmitQueue::new(),
            pending_crc: PendingCrc::default(),
        }
    }

    /// Begins Full Operation, after the start-up frame.
    pub(crate) fn open(&mut self, negotiated: &Negotiated, initiator: bool) {
        self.fpdu = FpduTx::new(negotiated.crc, negotiated.markers_tx);
        // Marker positions count from here.
        self.base = self.queue.queued();
        self.rtr = negotiated.rtr.filter(|rtr| initiator && *rtr != Rtr::Write);
    }

    /// Restarts on a new TCP connection.
    pub(crate) fn restart(&mut self) {
        self.queue = TransmitQueue::new();
    }

    /// Queues a start-up frame.
    pub(crate) fn startup_frame(&mut self, frame: &[u8]) {
        let start = self.queue.staging.len();
        self.queue.staging.extend_from_slice(frame);
        self.queue.push_staged(start);
        self.queue.end_fpdu();
    }

    /// Chooses the length of the largest ULPDU. An FPDU should fit into one TCP segment (RFC 5044
    /// section 5), unless the peer accepts larger ones. The path may change at any time: queued
    /// FPDUs stay as they are, and the next ones fit (RFC 5041 section 3).
    #[inline]
    pub(crate) fn choose_mulpdu(&mut self, shared: &Shared) {
        let large = uiw_mpa::MAX_ULPDU;
        self.mulpdu = match shared.config.fpdu {
            FpduSize::Auto if shared.caps.capabilities().large_fpdu() => large,
            FpduSize::Auto | FpduSize::Segment => uiw_mpa::mulpdu(self.emss, self.fpdu.markers()),
            FpduSize::Large => large,
            FpduSize::Fixed(size) => usize::from(size).clamp(uiw_mpa::MIN_MULPDU, large),
        };
    }

    /// Schedules the drain Read, because the host is detached or the stream closes in order. Once
    /// it is answered, the peer waits for no acknowledgement of this end.
    pub(crate) fn send_drain_read(&mut self) {
        self.watermarks.clear();
        self.drain_read = true;
    }

    fn next_msn(&mut self, qn: u32) -> u32 {
        let msn = &mut self.msn[qn as usize & 3];
        let now = *msn;
        *msn = msn.wrapping_add(1);
        now
    }

    /// Makes request `id` complete when TCP has accepted everything that is queued so far, or when
    /// the peer has acknowledged it.
    fn completes_when_sent(&mut self, id: u32, shared: &mut Shared) {
        if shared.reads.acks.on && !shared.completes_by_placement() {
            shared.reads.acks.built(id);
            if !shared.caps.is_undecided() {
                return;
            }
            // The peer acknowledges it in one of two ways (see `settle_acks`).
        }
        self.watermarks.push_back((self.queue.queued(), id));
    }

    /// Drops everything that is not on the wire, because the stream has left Full Operation.
    /// Returns false if a partly sent FPDU cannot be finished.
    pub(crate) fn abandon<H: StreamHost<Memory = M>>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> bool {
        let whole = self.queue.keep_started(host);
        shared.placement.truncate(self.queue.queued());
        self.fpdu.rewind(self.queue.queued().saturating_sub(self.base));
        self.message = None;
        shared.reads.acks.clear();
        self.drain_read = false;
        self.watermarks.clear();
        shared.caps.due = None;
        self.rtr = None;
        whole
    }

    /// Returns whether the stream itself has nothing to send.
    #[inline]
    fn is_idle(&self, shared: &Shared) -> bool {
        self.message.is_none()
            && shared.caps.due.is_none()
            && self.rtr.is_none()
            && !self.drain_read
            && shared.reads.acks.covers_all()
            && !shared.placement.is_owed()
    }

    /// Returns whether there is nothing to send until something happens: a post, an arrival that
    /// unblocks a request, or room in the socket.
    #[inline]
    pub(crate) fn has_nothing_due(&self, shared: &Shared) -> bool {
        self.queue.is_empty() && self.is_idle(shared) && shared.reads.inbound.is_empty()
    }

    /// Returns whether a Read Response is partly built, or waits until the queue is empty.
    pub(crate) fn is_inside_response(&self) -> bool {
        self.message.as_ref().is_some_and(|message| matches!(message.source, Source::Inbound(_)))
    }

    /// Returns whether a request is partly built.
    pub(crate) fn is_inside_request(&self) -> bool {
        self.message.as_ref().is_some_and(Message::is_request)
    }

    /// Returns whether all requests that were begun have completed.
    pub(crate) fn has_no_open_request(&self, shared: &Shared) -> bool {
        // An acknowledging Read that was sent before the peer was known to acknowledge placement.
        // No request waits for its response.
        let by_placement = shared.completes_by_placement();
        let is_surplus =
            |read: &Outstanding| by_placement && matches!(read.origin, ReadOrigin::Ack(_));
        !self.is_inside_request()
            && self.has_completed_all(shared)
            && (by_placement || shared.reads.acks.covers_all())
            && shared.reads.outstanding.iter().all(is_surplus)
    }

    /// Returns whether no request waits for TCP or for an acknowledgement. The response to an
    /// acknowledging Read may have completed some.
    fn has_completed_all(&self, shared: &Shared) -> bool {
        self.watermarks.iter().all(|(_, id)| shared.reads.acks.has_completed(*id))
    }

    /// Returns whether all posted requests are sent and answered. A detached host has none.
    pub(crate) fn is_finished<H: StreamHost<Memory = M>>(
        &self,
        shared: &Shared,
        host: &mut H,
    ) -> bool {
        let finished = self.has_nothing_due(shared)
            && self.has_completed_all(shared)
            && shared.reads.outstanding.is_empty()
            && (shared.detached || host.next_request().is_none());
        host.release();
        finished
    }

    /// Returns whether TCP has accepted all responses and acknowledgements for the peer.
    pub(crate) fn owes_nothing(&self, shared: &Shared) -> bool {
        shared.reads.inbound.is_empty()
            && self.message.is_none()
            && !shared.placement.is_owed()
            && self.queue.is_empty()
    }

    /// Queues a segment of the stream itself, after everything that is already queued.
    pub(crate) fn send_control(&mut self, header: &Header, payload: &[u8]) {
        let start = self.begin_fpdu(header, payload.len() as u32);
        self.queue.staging.extend_from_slice(payload);
        self.fpdu.seal(&mut self.queue.staging, start);
        self.queue.push_staged(start);
        self.queue.end_fpdu();
    }

    /// Settles the kind of acknowledgement for which requests wait, once the capability exchange is
    /// decided. Requests that were built before that wait for either kind.
    pub(super) fn settle_acks(&mut self, shared: &mut Shared) {
        if !shared.reads.acks.on || shared.caps.is_undecided() {
            return;
        }
        if shared.completes_by_placement() {
            shared.reads.acks.forget_uncovered();
        } else if !self.watermarks.is_empty() {
            self.watermarks.clear();
        }
    }

    /// Queues a placement acknowledgement, if one is due and none is in the queue. It may be
    /// between the FPDUs of a message.
    pub(crate) fn queue_placement_ack(&mut self, shared: &mut Shared) {
        if let Some(position) = shared.placement.next()
            && shared.sends_placement_acks()
            // The peer accepts acknowledgements once it has the answer to its capability request.
            && shared.caps.due.is_none()
        {
            let to = placement::encode(position, shared.caps.ack_check());
            let header =
                uiw_rdmap::tagged_header(uiw_rdmap::Opcode::Write, placement::STAG, to, true);
            self.send_control(&Header::Tagged(header), &[]);
            shared.placement.queued(self.queue.queued());
        }
    }

    /// Handles a placement acknowledgement: the peer has placed everything before the position with
    /// these lower bits.
    #[inline(never)]
    pub(crate) fn handle_placed<H: StreamHost<Memory = M>>(
        &mut self,
        position: u64,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        let placed = placement::extend(self.placed, position);
        // A peer cannot have placed what was not sent, so this is an ordinary empty Write.
        if placed > self.queue.sent().saturating_sub(self.base) {
            return Ok(());
        }
        self.placed = placed;
        // An acknowledging Read has completed requests that were built before the capability
        // exchange was decided.
        while self.watermarks.front().is_some_and(|(_, id)| shared.reads.acks.has_completed(*id)) {
            self.watermarks.pop_front();
        }
        shared.reads.acks.forget_completed();
        self.complete_until(self.base + placed, host)
    }

    /// Records that TCP has accepted `count` bytes. Returns the number of bytes that it has
    /// accepted in all.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) -> u64 {
        self.queue.advance(count);
        self.queue.sent()
    }

    /// Completes the requests whose last byte is before position `sent` of the transmit queue.
    #[inline(always)]
    pub(crate) fn complete_until<H: StreamHost<Memory = M>>(
        &mut self,
        sent: u64,
        host: &mut H,
    ) -> Result<(), ConnError> {
        if self.watermarks.front().is_none_or(|(end, _)| *end > sent) {
            return Ok(());
        }
        let watermarks = &mut self.watermarks;
        let ids = core::iter::from_fn(|| {
            let (_, id) = watermarks.front().copied().filter(|(end, _)| *end <= sent)?;
            watermarks.pop_front();
            Some(id)
        });
        host.sent(ids).map_err(|error| ConnError::Local { request: None, error })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the bytes to send.
    pub(crate) fn batch(&self, more: bool) -> Batch<'_, M> {
        Batch { queue: &self.queue, more }
    }

    /// Sets the buffer in which FPDUs are built, if the stream has none.
    pub(crate) fn give_buffer(&mut self, buffer: impl FnOnce() -> Vec<u8>) {
        if self.queue.staging.capacity() == 0 {
            self.queue.staging = buffer();
        }
    }

    /// Returns the buffer, if nothing is queued.
    pub(crate) fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let unused = self.queue.is_empty() && self.queue.staging.capacity() > 0;
        unused.then(|| core::mem::take(&mut self.queue.staging))
    }
}

/// Bytes to send, in pieces (see [`crate::Transmit`]).
#[derive(Debug)]
pub struct Batch<'a, M> {
    queue: &'a TransmitQueue<M>,
    more: bool,
}

impl<'a, M> Batch<'a, M> {
    /// Returns the number of bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.queue.waiting()
    }

    /// Returns whether there are no bytes, which is never the case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the pieces, in stream order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'a, M>> + use<'a, M> {
        self.queue.iter()
    }

    /// Returns the number of pieces.
    #[must_use]
    pub fn count(&self) -> usize {
        self.queue.pieces()
    }

    /// Returns all bytes, if they are a single piece of the stream's own memory.
    #[must_use]
    #[inline]
    pub fn single(&self) -> Option<&'a [u8]> {
        self.queue.single()
    }

    /// Returns whether the stream has more to send after these bytes. Otherwise
    /// [`crate::RdmapStream::poll_transmit`] need not be called again until something happens.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.more
    }
}

impl<M: AsRef<[u8]>> Batch<'_, M> {
    /// Appends all bytes to `out`, for a transport that takes them in one piece.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        for piece in self.pieces() {
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
                Piece::Memory { memory, range } => out.extend_from_slice(&memory.as_ref()[range]),
            }
        }
    }
}

#[cfg(test)]
impl<M> Sender<M> {
    /// Advances the message sequence numbers of all queues, for tests.
    pub(crate) fn set_msn(&mut self, msn: u32) {
        self.msn = [msn; 4];
    }
}
