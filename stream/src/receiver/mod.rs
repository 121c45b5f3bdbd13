//! The receiving half of a stream: from bytes to FPDUs (`mpa`), segments (`ddp`), messages
//! (`rdmap`), and the memory of the host. The functions are in the order in which an FPDU passes
//! them.
//!
//! CRCs are verified before placement (RFC 5044 section 6): all functions after
//! [`Receiver::handle_fpdus`] take [`Verified`] bytes, which only `mpa` creates.

mod answer;
mod control;
mod send;

use crate::Event;
use crate::error::{AccessError, ConnError};
use crate::host::{StreamHost, Traffic, Wait};
use crate::placement;
use crate::reads::QuotedSegment;
use crate::shared::Shared;
use crate::timers::Timer;
use crate::unreliable::{AnnouncedWrite, Discards, RefusedStags};
use uiw_ddp::{Header, Tagged, UntaggedRx};
use uiw_mpa::rx::{FpduRx, Step};
use uiw_mpa::startup::Negotiated;
use uiw_mpa::{Verified, VerifiedBuf};
use uiw_rdmap::{AtomicRequest, Opcode, QN_SEND, StreamRx, Terminate};

/// Maximum length in bytes of messages on the queues of the stream itself.
const CONTROL_LEN: usize = Terminate::MAX_LEN;
const _: () = assert!(AtomicRequest::LEN <= CONTROL_LEN);

/// State of the receiving half between FPDUs.
#[derive(Debug)]
pub(crate) struct Receiver {
    fpdu: FpduRx,
    rdmap: StreamRx,
    /// Untagged queues: Send, Read Request, Terminate, Atomic Response.
    queues: [UntaggedRx; 4],
    /// The part of each queue's current message that has arrived; for queue 0, only of Immediate
    /// Data.
    control: [[u8; CONTROL_LEN]; 4],
    /// Length of the receive that the current Send fills.
    receiving: Option<u32>,
    /// Segment that waits for a receive, and the length of its FPDU.
    pub(crate) parked: Option<(VerifiedBuf, usize)>,
    /// Number of bytes of the current Write that have arrived so far.
    write_len: u32,
    /// Number of bytes of the last complete Write.
    last_write_len: u32,
    /// True while only RTR messages have arrived, so that a capability request may still follow.
    only_rtr: bool,
    /// Unreliable messages that are being discarded.
    discards: Discards,
    /// STags of unreliable Writes that were discarded.
    refused_stags: RefusedStags,
    pub(crate) negotiated: Option<Negotiated>,
    /// Number of bytes that the first FPDU in the input needs, as far as it is known; 0 before the
    /// first input, and while a segment is parked.
    pub(crate) needed: usize,
}

/// Result of placing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlacementResult {
    Placed,
    /// No receive is posted for the segment.
    NoReceive,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            fpdu: FpduRx::new(false, false),
            rdmap: StreamRx::new(uiw_rdmap::Extensions::default()),
            // RFC 5041 section 5.1: the first message on each queue has MSN 1.
            queues: [
                UntaggedRx::new(1),
                UntaggedRx::new(1),
                UntaggedRx::new(1),
                UntaggedRx::new(1),
            ],
            control: [[0; CONTROL_LEN]; 4],
            receiving: None,
            parked: None,
            write_len: 0,
            last_write_len: 0,
            only_rtr: true,
            discards: Discards::default(),
            refused_stags: RefusedStags::default(),
            negotiated: None,
            needed: 0,
        }
    }

    /// Begins Full Operation.
    pub(crate) fn open(&mut self, negotiated: &Negotiated, shared: &Shared) {
        self.fpdu = FpduRx::new(negotiated.crc, negotiated.markers_rx);
        self.negotiated = Some(*negotiated);
        self.set_extensions(shared);
    }

    /// Admits the messages of the extensions that both ends support.
    pub(crate) fn set_extensions(&mut self, shared: &Shared) {
        self.rdmap.set_extensions(shared.caps.capabilities().extensions());
    }

    /// Returns whether a Send waits for a receive, so that nothing is read.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.parked.is_some()
    }

    /// Returns the number of bytes that are kept until a receive is posted.
    pub(crate) fn parked_len(&self) -> usize {
        self.parked.as_ref().map_or(0, |(parked, _)| parked.as_verified().len())
    }

    /// Returns whether a message other than a Read Response has partly arrived.
    pub(crate) fn is_inside_message(&self) -> bool {
        self.receiving.is_some()
            || self.write_len > 0
            || self.queues.iter().any(UntaggedRx::in_progress)
    }

    /// Places the segment that waits for a receive. Returns false if there is still no receive.
    pub(crate) fn unpark<H: StreamHost>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<bool, ConnError> {
        let Some((parked, bytes)) = self.parked.take() else { return Ok(true) };
        match self.segment(parked.as_verified(), shared, host)? {
            PlacementResult::Placed => {
                shared.placement.advance(bytes);
                shared.timers.cancel(Timer::NoReceive);
                Ok(true)
            }
            PlacementResult::NoReceive => {
                self.parked = Some((parked, bytes));
                Ok(false)
            }
        }
    }

    /// Handles the complete FPDUs at the beginning of `input`. Returns the number of bytes used.
    #[inline]
    pub(crate) fn handle_fpdus<H: StreamHost>(
        &mut self,
        input: &mut [u8],
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<usize, ConnError> {
        let (mut at, mut placed) = (0, 0);
        let result = loop {
            let fpdu = match self.fpdu.next(&mut input[at..]) {
                Ok(Step::Fpdu(fpdu)) => fpdu,
                Ok(Step::NeedMore { at_least }) => {
                    self.needed = at_least;
                    break Ok(());
                }
                Err(error) => break Err(ConnError::of_fpdu(&error)),
            };
            at += fpdu.consumed;
            match self.segment(fpdu.ulpdu, shared, host) {
                Ok(PlacementResult::Placed) => placed = at,
                Ok(PlacementResult::NoReceive) => {
                    host.count_wait(Wait::Receive);
                    break self.park(fpdu.ulpdu, fpdu.consumed, shared);
                }
                Err(error) => break Err(error),
            }
        };
        if !shared.discarded {
            shared.placement.advance(placed);
        }
        result.map(|()| at)
    }

    /// Handles a DDP segment.
    fn segment<H: StreamHost>(
        &mut self,
        ulpdu: Verified<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<PlacementResult, ConnError> {
        let (header, header_len) = Header::parse(&ulpdu).map_err(|error| {
            ConnError::fault(error, Some(QuotedSegment::new(&ulpdu, uiw_ddp::Untagged::LEN)))
        })?;
        let segment = Segment { ulpdu, header_len };
        let opcode = self.rdmap.admit(&header).map_err(|error| segment.fault(error))?;
        let undecided = shared.caps.is_undecided();
        let awaited_rtr = undecided && shared.reads.awaits_rtr();
        match (header, opcode) {
            (Header::Tagged(tagged), Opcode::Write) => {
                if !self.discards.tagged {
                    self.write(&tagged, &segment, shared, host)?;
                } else if self.write_unreliable(&tagged, &segment, shared, host)?
                    == PlacementResult::NoReceive
                {
                    return Ok(PlacementResult::NoReceive);
                }
            }
            (Header::Tagged(tagged), _) => self.read_response(&tagged, &segment, shared, host)?,
            (Header::Untagged(untagged), _) if untagged.qn == QN_SEND => {
                if self.send(&untagged, opcode, &segment, shared, host)?
                    == PlacementResult::NoReceive
                {
                    return Ok(PlacementResult::NoReceive);
                }
            }
            (Header::Untagged(untagged), _) => {
                self.control(&untagged, opcode, &segment, shared, host)?;
            }
        }
        if undecided || !shared.first_fpdu {
            self.valid_fpdu(awaited_rtr == shared.reads.awaits_rtr(), shared);
        }
        Ok(PlacementResult::Placed)
    }

    /// Handles a valid FPDU. `classifies` is false for the response to an RTR Read, after which the
    /// answer to the capability request may still arrive.
    fn valid_fpdu(&mut self, classifies: bool, shared: &mut Shared) {
        if shared.caps.is_undecided() {
            self.judge_peer(classifies, shared);
        }
        if shared.first_fpdu {
            return;
        }
        shared.first_fpdu = true;
        shared.sending_blocked = shared.fin.sent;
        shared.timers.cancel(Timer::Startup);
        shared.report_established();
    }

    /// Classifies the peer by an FPDU that is neither a capability request nor its answer. Any such
    /// FPDU makes it a foreign peer, except RTR messages at the responder and the response to an
    /// RTR Read at the initiator.
    fn judge_peer(&mut self, classifies: bool, shared: &mut Shared) {
        let foreign = if shared.initiator { classifies } else { !self.only_rtr };
        if foreign {
            shared.timers.cancel(Timer::Capabilities);
            shared.caps.give_up();
            self.peer_decided(shared);
        } else if !shared.first_fpdu {
            // The first FPDU restarts the time limit. At the responder it shows that the initiator
            // has accepted the Reply; at the initiator it is the response to the RTR Read.
            let wait = shared.capability_timeout();
            shared.timers.set(Timer::Capabilities, shared.now, wait);
        }
    }

    /// Handles the outcome of the capability exchange, and reports it to the host.
    pub(crate) fn peer_decided(&mut self, shared: &mut Shared) {
        self.set_extensions(shared);
        shared.events.push_back(Event::Peer(shared.caps.kind));
    }

    /// Handles a segment of an RDMA Write (RFC 5041 section 5.2, RFC 5040 section 5.2.1).
    #[inline(always)]
    fn write<H: StreamHost>(
        &mut self,
        header: &Tagged,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        let payload = segment.payload();
        let len = payload.len() as u32;
        if payload.is_empty() {
            // STag and TO of an empty Write are not checked; uiw peers use these fields for the
            // capability exchange.
            let first = shared.initiator || self.only_rtr;
            if header.stag == placement::STAG && self.placement_ack(header.to, shared) {
                return Ok(());
            }
            if shared.caps.on_zero_write(header.stag, header.to, first) {
                if shared.fin.sent {
                    // No message may follow a FIN.
                    shared.caps.due = None;
                }
                self.peer_decided(shared);
                if shared.caps.gave_up {
                    // Messages before this Write may still wait for an acknowledgement.
                    self.message_placed(true, shared);
                }
            } else {
                // A uiw peer would have sent its capability request in this Write.
                self.only_rtr = false;
                self.message_placed(header.last, shared);
            }
            if host.is_unreliable() {
                self.discards.announce(AnnouncedWrite::from_write(header.stag, header.to));
            }
        } else if shared.detached {
            shared.discarded = true;
        } else {
            self.only_rtr = false;
            match host.write(header.stag, header.to, payload) {
                Ok(()) => host.count(Traffic::WriteReceived, header.last.into(), len.into()),
                Err(error) if host.is_unreliable() => {
                    self.discards.discard_write(header.last);
                    self.refuse_stag(error, header, segment)?;
                }
                Err(error) => {
                    return Err(segment.fault(error.of_write(header.stag, header.to, len)));
                }
            }
            self.message_placed(header.last, shared);
        }
        self.write_placed(header.last, len);
        Ok(())
    }

    /// Counts the bytes of a Write, for Immediate Data that follows it.
    #[inline]
    fn write_placed(&mut self, last: bool, len: u32) {
        self.write_len = self.write_len.wrapping_add(len);
        if last {
            self.last_write_len = core::mem::take(&mut self.write_len);
        }
    }

    /// Like [`Receiver::write`], for an unreliable Write that was announced or is being discarded.
    #[cold]
    #[inline(never)]
    fn write_unreliable<H: StreamHost>(
        &mut self,
        header: &Tagged,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<PlacementResult, ConnError> {
        let payload = segment.payload();
        let len = payload.len() as u32;
        if len == 0 || shared.detached {
            return self.write(header, segment, shared, host).map(|()| PlacementResult::Placed);
        }
        self.only_rtr = false;
        if let Some(announced) = self.discards.announced {
            let checked = host.check_write(header.stag, header.to, announced.len);
            let mut may_begin = checked.is_ok();
            if let Err(error) = checked {
                self.refuse_stag(error, header, segment)?;
            }
            if may_begin && announced.immediate && self.receiving.is_none() {
                self.receiving = host.begin_receive();
                if self.receiving.is_none() && self.may_wait(shared) {
                    return Ok(PlacementResult::NoReceive);
                }
                self.discards.waits_no_more = self.receiving.is_none();
                may_begin = self.receiving.is_some();
            }
            self.discards.announced = None;
            self.discards.awaits_immediate = announced.immediate;
            self.discards.write = !may_begin;
        }
        if !self.discards.write {
            match host.write(header.stag, header.to, payload) {
                Ok(()) => host.count(Traffic::WriteReceived, header.last.into(), len.into()),
                Err(error) => {
                    self.discards.write = true;
                    self.refuse_stag(error, header, segment)?;
                }
            }
        }
        self.write_placed(header.last, len);
        if header.last {
            self.discards.end_write();
        }
        self.message_placed(header.last, shared);
        Ok(PlacementResult::Placed)
    }

    /// Records the STag of an unreliable Write that is discarded because of `error`. Returns an
    /// error, which ends the stream, if the peer appears to be guessing STags.
    #[cold]
    fn refuse_stag(
        &mut self,
        error: AccessError,
        header: &Tagged,
        segment: &Segment<'_>,
    ) -> Result<(), ConnError> {
        if self.refused_stags.note(header.stag) {
            return Ok(());
        }
        let len = segment.payload().len() as u32;
        Err(segment.fault(error.of_write(header.stag, header.to, len)))
    }

    /// Returns whether an unreliable message waits if no receive is posted for it.
    fn may_wait(&self, shared: &Shared) -> bool {
        !self.discards.waits_no_more && !shared.config.no_receive_timeout.is_zero()
    }

    /// Handles a placement acknowledgement. Returns false if the empty Write is not one.
    fn placement_ack(&self, to: u64, shared: &mut Shared) -> bool {
        // Acknowledgements are recognised even if requests do not complete by them. Otherwise they
        // would be acknowledged in turn, again and again.
        if !shared.caps.receives_placement_acks() {
            return false;
        }
        let Some(position) = placement::decode(to, shared.caps.ack_check()) else { return false };
        if shared.completes_by_placement() {
            shared.peer_placed = Some(position);
        }
        true
    }

    /// Counts a message whose last segment was placed (`last`), if this end acknowledges placement.
    #[inline]
    pub(super) fn message_placed(&self, last: bool, shared: &mut Shared) {
        if last && shared.sends_placement_acks() && !shared.discarded {
            shared.placement.message_placed();
        }
    }

    /// Keeps a segment, and stops reading the stream, until a receive is posted.
    fn park(
        &mut self,
        ulpdu: Verified<'_>,
        bytes: usize,
        shared: &mut Shared,
    ) -> Result<(), ConnError> {
        // The segment counts as received and validated, because a missing receive must not block
        // the sending half.
        self.only_rtr = false;
        self.valid_fpdu(true, shared);
        self.parked = Some((ulpdu.to_buf(), bytes));
        // The length of the next FPDU is not known yet.
        self.needed = 0;
        let timeout = shared.config.no_receive_timeout;
        if timeout.is_zero() {
            return Err(self.no_receive_in_time());
        }
        shared.timers.set(Timer::NoReceive, shared.now, timeout);
        Ok(())
    }

    /// Discards the parked segment of an unreliable message, because no receive was posted for it
    /// in time. The stream continues.
    pub(crate) fn discard_parked<H: StreamHost>(
        &mut self,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        self.discards.waits_no_more = true;
        self.unpark(shared, host).map(drop)
    }

    /// Takes the parked segment, and returns the error that no receive was posted for it in time
    /// (RFC 5041 section 7.1: layer 1, type 2, error code 02).
    pub(crate) fn no_receive_in_time(&mut self) -> ConnError {
        let quoted = self
            .parked
            .take()
            .map(|(parked, _)| QuotedSegment::new(&parked.as_verified(), uiw_ddp::Untagged::LEN));
        let msn = self.queues[0].expected_msn();
        ConnError::fault(uiw_ddp::UntaggedError::NoBuffer { msn }, quoted)
    }
}

/// Received segment, and the length of its DDP header.
struct Segment<'a> {
    ulpdu: Verified<'a>,
    header_len: usize,
}

impl<'a> Segment<'a> {
    #[inline]
    fn payload(&self) -> Verified<'a> {
        self.ulpdu.split_at(self.header_len).1
    }

    fn quoted(&self) -> QuotedSegment {
        QuotedSegment::new(&self.ulpdu, self.header_len)
    }

    /// Returns the error that a peer has caused by sending this segment.
    #[cold]
    fn fault(&self, fault: impl Into<uiw_rdmap::Fault>) -> ConnError {
        ConnError::fault(fault, Some(self.quoted()))
    }
}

#[cfg(test)]
impl Receiver {
    /// Advances the message sequence numbers of all queues except the Terminate's, for tests.
    pub(crate) fn set_msn(&mut self, msn: u32) {
        for qn in [0, 1, 3] {
            self.queues[qn] = UntaggedRx::new(msn);
        }
    }
}
