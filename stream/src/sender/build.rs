//! Builds FPDUs of messages in the transmit queue.

use super::Sender;
use super::gathered::GatheredFpdu;
use super::message::{Message, MessageEnd, MessageHeader, Source, missing_extension};
use crate::config::StableTx;
use crate::error::{AccessError, ConnError, LocalError};
use crate::host::{Payload, SourceGone, StreamHost, Traffic};
use crate::shared::Shared;
use alloc::vec::Vec;
use uiw_ddp::Header;
use uiw_mpa::tx::FpduTx;

/// Maximum length of a batch. TCP sends long batches faster, but the first byte of a batch is sent
/// when all of it has been built, and other connections wait meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BatchLength {
    /// At most [`USUAL_BUFFER`] bytes.
    #[default]
    Usual,
    /// At most 578 KiB.
    Medium,
    /// At most [`MAX_BUFFER`] bytes.
    Long,
}

impl BatchLength {
    /// Returns the number of staged bytes from which on a batch takes no further FPDU.
    const fn staging(self) -> usize {
        match self {
            Self::Usual => 192 << 10,
            Self::Medium => 512 << 10,
            Self::Long => 1 << 20,
        }
    }
}

/// Number of bytes by which a batch may exceed these limits: its last FPDU, with the longest ULPDU
/// and a Marker in every 512 bytes.
const LAST_FPDU: usize = 66 << 10;
/// Maximum number of pieces of a batch. Each gathered FPDU takes about two: its payload, and its
/// trailer together with the next header.
const BATCH_PIECES: usize = 1000;
/// Maximum capacity, in bytes, of a buffer that
/// [`RdmapStream::take_buffer`](crate::RdmapStream::take_buffer) returns.
pub const MAX_BUFFER: usize = BatchLength::Long.staging() + LAST_FPDU;
/// Capacity, in bytes, that is enough for batches of [`BatchLength::Usual`].
pub const USUAL_BUFFER: usize = BatchLength::Usual.staging() + LAST_FPDU;
/// Length from which on staging grows to [`USUAL_BUFFER`] at once, and from there to
/// [`MAX_BUFFER`]. Doubling it would copy the FPDUs of each batch again, and end with a buffer that
/// is twice as large as a batch.
const SMALL_STAGING: usize = 64 << 10;
/// Maximum number of small requests that are built in one burst. Between two bursts responses get
/// their turn, and the host releases its locks.
const BURST: usize = 32;
/// Minimum length of payloads that are gathered. For shorter ones, separate pieces for the header,
/// the payload and the trailer cost more than a copy.
///
/// Payloads are gathered only if they are not copied in one pass with their CRC, which is faster:
/// the kernel reads the copy from the cache, at a page offset that suits it.
const GATHER_MIN: u32 = 8 << 10;
/// Minimum length of payloads whose CRC is computed while they are copied. For shorter ones, several
/// copies and then several CRCs take less time.
///
/// `mem/examples/send_speed.rs` measures the alternatives for this and [`GATHER_MIN`].
const ONE_PASS_MIN: u32 = 1280;
/// Maximum number of bytes of the FPDUs of a burst in which all requests are shorter than
/// [`ONE_PASS_MIN`].
const BURST_BYTES: usize = BURST * (ONE_PASS_MIN as usize + 64);

/// Result of asking the host for small requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BurstResult {
    /// Some were built, and there may be more.
    Built,
    /// The host has no more requests, whether some were built or not.
    Drained,
    /// The next request is not small, or something else must be sent first.
    NotSmall,
}

impl<M> Sender<M> {
    /// Builds FPDUs until the batch is full or nothing is left to send. Returns true in the latter
    /// case.
    pub(crate) fn build<H: StreamHost<Memory = M>>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<bool, ConnError> {
        self.choose_mulpdu(shared);
        self.settle_acks(shared);
        self.queue_placement_ack(shared);
        let built = self.build_messages(shared, host);
        host.release();
        self.pending_crc.finalize(&self.fpdu, &mut self.queue.staging);
        built
    }

    #[inline(always)]
    fn build_messages<H: StreamHost<Memory = M>>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<bool, ConnError> {
        let (mut messages, mut responses) = (0usize, 0);
        self.answer_waits = false;
        let max_responses = shared.reads.max_responses();
        while self.has_room(self.message.as_ref()) && responses < max_responses {
            let next = match self.message.take() {
                Some(message) => Some(message),
                None => match self.burst(shared, host)? {
                    BurstResult::Built => {
                        // Posting threads do not wait for the whole batch.
                        host.release();
                        continue;
                    }
                    BurstResult::Drained
                        if self.is_idle(shared) && shared.reads.inbound.is_empty() =>
                    {
                        return Ok(true);
                    }
                    BurstResult::Drained | BurstResult::NotSmall => {
                        self.next_message(shared, host)?
                    }
                },
            };
            let Some(mut message) = next else { return Ok(!self.answer_waits) };
            let last = match self.build_run(&mut message, shared, host)? {
                true => message.left() == 0,
                false if self.must_send_first(&message, host) => {
                    self.message = Some(message);
                    return Ok(false);
                }
                false => self.build_fpdu(&mut message, shared, host)?,
            };
            if !last {
                self.message = Some(message);
                continue;
            }
            if let Source::Inbound(_) = message.source {
                shared.reads.end_inbound();
            }
            match message.end {
                // A response, or rarely a message of the stream itself.
                MessageEnd::Nothing => responses += 1,
                MessageEnd::Answered(id) => host.built(id, message.header.msn()),
                MessageEnd::Sent(id) => {
                    host.built(id, message.header.msn());
                    self.completes_when_sent(id, shared);
                }
                MessageEnd::Immediate { id, imm, solicited } => {
                    self.message = Some(self.immediate(id, imm, solicited, host));
                }
            }
            messages += 1;
            if messages.is_multiple_of(BURST) {
                host.release();
            }
        }
        Ok(false)
    }

    /// Returns whether a response cannot be begun or continued while earlier bytes are in the
    /// queue. They are sent first: the Terminate names the location that the response has reached
    /// (RFC 5040 section 4.8), and the requests before it have been executed.
    fn must_send_first<H: StreamHost>(&self, message: &Message, host: &mut H) -> bool {
        let Source::Inbound(source) = &message.source else { return false };
        let to = source.to.wrapping_add(u64::from(message.offset));
        let len = match message.offset {
            0 => message.left(),
            _ => self.room(message).min(message.left()),
        };
        len > 0 && !self.queue.is_empty() && host.read_source(source.stag, to, len).is_err()
    }

    /// Returns whether the batch has room for more, of `message` if that was begun.
    fn has_room(&self, message: Option<&Message>) -> bool {
        let part = message.map_or(usize::MAX, |message| message.part);
        let limit = self.batch_length.staging().min(part);
        // Gathered payload is not in staging.
        self.queue.waiting() < (limit + LAST_FPDU) as u64
            && self.queue.pieces() < BATCH_PIECES
            && self.queue.staging.len() < limit
    }

    /// Builds requests that fit into one small FPDU each.
    fn burst<H: StreamHost<Memory = M>>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<BurstResult, ConnError> {
        let mut counts = BurstCounts::default();
        let built = self.build_burst(shared, host, &mut counts);
        counts.give(host);
        built
    }

    fn build_burst<H: StreamHost<Memory = M>>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
        counts: &mut BurstCounts,
    ) -> Result<BurstResult, ConnError> {
        let answers_first = !shared.reads.inbound.is_empty() && !self.responses_were_first;
        let own_first =
            shared.caps.due.is_some() || self.rtr.is_some() || shared.reads.acks.is_due();
        if shared.sending_blocked || own_first || answers_first || shared.detached {
            return Ok(BurstResult::NotSmall);
        }
        if self.drained {
            return Ok(BurstResult::Drained);
        }
        // The shortest requests are added without a check, which would cost them much. Their buffer
        // may double until then, but must not exceed `MAX_BUFFER`.
        if self.queue.staging.len() + BURST_BYTES > USUAL_BUFFER {
            self.reserve_staging(BURST_BYTES as u32);
        }
        let offered = shared.caps.capabilities().extensions();
        let one_pass = self.copies_in_one_pass(shared, host);
        let mut built = 0;
        let mut drained = false;
        while built < BURST
            && self.queue.staging.len() < self.batch_length.staging()
            && !shared.reads.acks.is_due()
        {
            let Some(request) = host.next_request() else {
                drained = true;
                break;
            };
            if request.fence || missing_extension(&request.op, offered).is_some() {
                break;
            }
            let id = request.id;
            if request.op.needs_ord() {
                if !shared.reads.has_credit() {
                    break;
                }
                // A copy, because taking the address of the original would keep it in memory on the
                // path of small Sends.
                let read = request;
                let message = self.start(&read, shared, host);
                let start = self.begin_fpdu(&message.segment_header(message.total), message.total);
                self.queue.staging.extend_from_slice(&self.fields[..message.total as usize]);
                self.queue_small(start);
                host.built(id, message.header.msn());
                built += 1;
                continue;
            }
            let small = (request.len as usize)
                < (GATHER_MIN as usize).min(self.mulpdu - uiw_ddp::Untagged::LEN);
            if !small {
                break;
            }
            // Called after all reasons to stop, because it counts the message.
            let Some(header) = self.plain_header(&request.op, request.solicited) else { break };
            if request.len >= ONE_PASS_MIN {
                self.reserve_staging(request.len);
            }
            let start = self.begin_fpdu(&header.segment(0, true), request.len);
            let range = 0..request.len;
            let copied = if one_pass && request.len >= ONE_PASS_MIN {
                let mut fpdu =
                    GatheredFpdu::begin(&mut self.fpdu, &mut self.queue, start, request.len);
                fpdu.request(host, id, range).map(|()| fpdu.end())
            } else {
                let copied = host.copy_request(id, range, &mut self.queue.staging);
                copied.map(|()| self.queue_small(start))
            };
            copied.map_err(|error| ConnError::of_request(id, error))?;
            counts.add(&header, request.len);
            host.built(id, header.msn());
            self.completes_when_sent(id, shared);
            built += 1;
        }
        self.responses_were_first &= built == 0;
        self.drained = drained;
        Ok(match (drained, built) {
            (true, _) => BurstResult::Drained,
            (false, 0) => BurstResult::NotSmall,
            (false, _) => BurstResult::Built,
        })
    }

    /// Queues the FPDU in staging from `start` on. Its CRC is computed later.
    fn queue_small(&mut self, start: usize) {
        self.pending_crc.frame(&mut self.fpdu, &mut self.queue.staging, start);
        self.queue.push_staged(start);
        self.queue.end_fpdu();
    }

    /// Returns whether an FPDU of `message` with `len` bytes of payload may be sent from the memory
    /// of the payload.
    fn may_gather(&self, message: &Message, len: u32, shared: &Shared, one_pass: bool) -> bool {
        let copies = match shared.config.stable_tx {
            StableTx::Off => false,
            StableTx::Writes => matches!(message.header, MessageHeader::Tagged { .. }),
            StableTx::On => true,
        };
        !one_pass && len >= GATHER_MIN && !self.fpdu.markers() && !copies
    }

    /// Returns whether CRCs of long FPDUs are computed while their payload is copied.
    fn copies_in_one_pass<H: StreamHost<Memory = M>>(&self, shared: &Shared, host: &H) -> bool {
        let may = shared.config.copy_with_crc && self.fpdu.crc_on() && !self.fpdu.markers();
        may && host.copies_with_crc()
    }

    /// Returns the maximum number of payload bytes in the next FPDU of `message`.
    fn room(&self, message: &Message) -> u32 {
        let room = u32::try_from(self.mulpdu - message.header.len()).unwrap_or(u32::MAX);
        room.min(message.max_segment)
    }

    /// Builds as many FPDUs as the batch has room for and one contiguous range of memory provides.
    /// The memory is looked up, checked and pinned once for all of them. Returns false if the next
    /// FPDU must be built alone, because it needs no memory or is not contiguous.
    fn build_run<H: StreamHost<Memory = M>>(
        &mut self,
        message: &mut Message,
        shared: &Shared,
        host: &mut H,
    ) -> Result<bool, ConnError> {
        let (room, left) = (self.room(message), message.left());
        if left == 0 {
            return Ok(false);
        }
        let one_pass = self.copies_in_one_pass(shared, host);
        let gathers = self.may_gather(message, room.min(left), shared, one_pass);
        let payload = match &message.source {
            Source::Request { id } => host
                .request_payload(*id, message.offset, left)
                .map_err(|error| ConnError::of_request(*id, error))?,
            Source::Inbound(source) => {
                let to = source.to.wrapping_add(u64::from(message.offset));
                match host.read_source(source.stag, to, left) {
                    Ok(payload) => payload,
                    // RFC 5040 section 7.2: the whole range is checked before the first byte.
                    // Earlier responses are sent before the Terminate.
                    Err(error) if message.offset == 0 && self.queue.is_empty() => {
                        let fault = error.of_read(source.stag, to, left);
                        return Err(ConnError::fault(fault, shared.reads.oldest_segment(0)));
                    }
                    // Memory that was invalidated meanwhile is reported with its segment.
                    Err(_) => return Ok(false),
                }
            }
            Source::Empty | Source::Inline { .. } | Source::Fields => return Ok(false),
        };
        let gathers = gathers && payload.is_stable();
        let mut memory = None;
        let mut done = 0;
        while done < payload.len() && self.has_room(Some(message)) {
            let len = room.min(message.left());
            let end = done + len as usize;
            if end > payload.len() {
                break;
            }
            let start = self.begin_fpdu(&message.segment_header(len), len);
            let added = if gathers {
                let memory =
                    *memory.get_or_insert_with(|| self.queue.add_memory(payload.to_memory()));
                let mut fpdu = GatheredFpdu::begin(&mut self.fpdu, &mut self.queue, start, len);
                fpdu.memory(memory, &payload, done..end).map(|()| fpdu.end())
            } else if one_pass && len >= ONE_PASS_MIN {
                self.reserve_staging(len);
                let mut fpdu = GatheredFpdu::begin(&mut self.fpdu, &mut self.queue, start, len);
                fpdu.copy(&payload, done..end).map(|()| fpdu.end())
            } else {
                self.reserve_staging(len);
                let added = payload.append_to(done..end, &mut self.queue.staging);
                added.map(|()| self.queue_small(start))
            };
            if added.is_err() {
                return Err(source_gone(&message.source, message.offset, len, shared));
            }
            message.offset += len;
            done = end;
        }
        drop(payload);
        if let Some((traffic, bytes)) = message.counted(done as u32) {
            count(host, traffic, bytes, message.left() == 0);
        }
        Ok(done > 0)
    }

    /// Builds one FPDU of `message`. Returns true if it was the last one.
    fn build_fpdu<H: StreamHost<Memory = M>>(
        &mut self,
        message: &mut Message,
        shared: &Shared,
        host: &mut H,
    ) -> Result<bool, ConnError> {
        let len = self.room(message).min(message.left());
        let start = self.begin_fpdu(&message.segment_header(len), len);
        let from = message.offset..message.offset + len;
        let has_memory = matches!(message.source, Source::Request { .. } | Source::Inbound(_));
        let one_pass = self.copies_in_one_pass(shared, host);
        if has_memory && one_pass && len >= ONE_PASS_MIN {
            self.reserve_staging(len);
            let mut fpdu = GatheredFpdu::begin(&mut self.fpdu, &mut self.queue, start, len);
            each_payload(&message.source, from, shared, host, |payload| {
                fpdu.copy(payload, 0..payload.len())
            })?;
            fpdu.end();
        } else if has_memory && self.may_gather(message, len, shared, one_pass) {
            let mut fpdu = GatheredFpdu::begin(&mut self.fpdu, &mut self.queue, start, len);
            each_payload(&message.source, from, shared, host, |payload| fpdu.payload(payload))?;
            fpdu.end();
        } else {
            self.reserve_staging(len);
            let staging = &mut self.queue.staging;
            match &message.source {
                Source::Empty => {}
                Source::Fields => {
                    staging.extend_from_slice(&self.fields[from.start as usize..from.end as usize]);
                }
                Source::Inline { id } => host
                    .copy_request(*id, from, staging)
                    .map_err(|error| ConnError::of_request(*id, error))?,
                source @ (Source::Request { .. } | Source::Inbound(_)) => {
                    each_payload(source, from, shared, host, |payload| {
                        payload.append_to(0..payload.len(), staging)
                    })?;
                }
            }
            self.fpdu.seal(&mut self.queue.staging, start);
            self.queue.push_staged(start);
            self.queue.end_fpdu();
        }
        message.offset += len;
        let last = message.left() == 0;
        if let Some((traffic, bytes)) = message.counted(len) {
            count(host, traffic, bytes, last);
        }
        Ok(last)
    }

    /// Reserves capacity for an FPDU with `len` more bytes of payload.
    #[inline]
    fn reserve_staging(&mut self, len: u32) {
        let staging = &mut self.queue.staging;
        // The trailer and Markers need less than this.
        let needed = staging.len() + len as usize + (1 << 10);
        if needed > staging.capacity() && needed > SMALL_STAGING {
            let capacity = if needed > USUAL_BUFFER { MAX_BUFFER } else { USUAL_BUFFER };
            staging.reserve_exact(capacity.max(needed) - staging.len());
        }
    }

    /// Adds the ULPDU_Length field and the DDP header of an FPDU with `len` bytes of payload to
    /// staging. Returns the index of its first byte.
    #[inline(always)]
    pub(super) fn begin_fpdu(&mut self, header: &Header, len: u32) -> usize {
        let staging: &mut Vec<u8> = &mut self.queue.staging;
        let start = staging.len();
        // The length of a segment is limited by MULPDU, which fits into ULPDU_Length.
        let ulpdu_len = (header.len() + len as usize) as u16;
        let (front, front_len) = header.emit_after(FpduTx::header(ulpdu_len));
        // Appending a constant number of bytes is faster than appending exactly as many as needed.
        staging.extend_from_slice(&front);
        staging.truncate(start + front_len);
        start
    }
}

/// Messages and payload bytes of a burst, which are counted together.
#[derive(Default)]
struct BurstCounts {
    sends: (u32, u64),
    writes: (u32, u64),
}

impl BurstCounts {
    /// Adds a message of `len` bytes. Writes without payload do not count.
    #[inline(always)]
    fn add(&mut self, header: &MessageHeader, len: u32) {
        if let MessageHeader::Tagged { .. } = header {
            self.writes.0 += u32::from(len > 0);
            self.writes.1 += u64::from(len);
        } else {
            self.sends.0 += 1;
            self.sends.1 += u64::from(len);
        }
    }

    #[inline(always)]
    fn give<H: StreamHost>(self, host: &mut H) {
        for (traffic, (messages, bytes)) in
            [(Traffic::SendSent, self.sends), (Traffic::WriteSent, self.writes)]
        {
            if messages > 0 {
                host.count(traffic, messages, bytes);
            }
        }
    }
}

/// Counts payload that was sent, except Writes and Reads without payload.
#[inline(always)]
fn count<H: StreamHost>(host: &mut H, traffic: Traffic, len: u32, last: bool) {
    host.count(traffic, (last && (len > 0 || traffic == Traffic::SendSent)).into(), len.into());
}

/// Calls `each` for the ranges of memory that contain the bytes `from` of a message.
fn each_payload<H: StreamHost>(
    source: &Source,
    from: core::ops::Range<u32>,
    shared: &Shared,
    host: &mut H,
    mut each: impl FnMut(&H::Payload<'_>) -> Result<(), SourceGone>,
) -> Result<(), ConnError> {
    let mut at = from.start;
    while at < from.end {
        let left = from.end - at;
        let payload = match source {
            Source::Request { id } => host
                .request_payload(*id, at, left)
                .map_err(|error| ConnError::of_request(*id, error))?,
            Source::Inbound(source) => {
                let (stag, to) = (source.stag, source.to.wrapping_add(u64::from(at)));
                host.read_source(stag, to, left).map_err(|error| {
                    ConnError::fault(
                        error.of_read(stag, to, left),
                        shared.reads.oldest_segment(from.start),
                    )
                })?
            }
            Source::Empty | Source::Inline { .. } | Source::Fields => return Ok(()),
        };
        let len = payload.len() as u32;
        if each(&payload).is_err() {
            return Err(source_gone(source, at, len, shared));
        }
        at += len;
    }
    Ok(())
}

/// Returns the error if the memory for `len` bytes at `offset` of a message was valid when it was
/// looked up, and no longer is.
#[cold]
fn source_gone(source: &Source, offset: u32, len: u32, shared: &Shared) -> ConnError {
    match source {
        Source::Inbound(source) => {
            let (stag, to) = (source.stag, source.to.wrapping_add(u64::from(offset)));
            let quoted = shared.reads.oldest_segment(offset);
            ConnError::fault(AccessError::InvalidStag.of_read(stag, to, len), quoted)
        }
        Source::Request { id } | Source::Inline { id } => {
            ConnError::of_request(*id, LocalError::Protection)
        }
        // These have no memory of the host.
        Source::Empty | Source::Fields => {
            ConnError::Local { request: None, error: LocalError::Protection }
        }
    }
}
