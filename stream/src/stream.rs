//! State of an RDMAP stream, and the methods that its host calls.

use crate::capabilities::PeerCaps;
use crate::error::ConnError;
use crate::event::Event;
use crate::host::StreamHost;
use crate::placement::PlacementAcks;
use crate::reads::Reads;
use crate::receiver::Receiver;
use crate::sender::{Batch, BatchLength, Sender};
use crate::shared::{Fin, Shared};
use crate::timers::{Timer, Timers};
use crate::{PeerKind, RdmapConfig, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use uiw_ddp::STag;
use uiw_mpa::startup::{ConfigError, Initiator, Request, Responder, Revision};

/// Phase of a stream's life.
#[derive(Debug)]
pub(crate) enum Phase {
    /// TCP is being connected.
    Connecting,
    /// The Request was sent and the Reply has not arrived.
    AwaitReply(Box<Initiator>),
    /// The peer's Request has not arrived.
    AwaitRequest(Box<Responder>),
    /// The host has to accept or reject the peer's Request.
    Decision(Box<(Responder, Request)>),
    /// Full Operation.
    Open,
    /// The bytes already queued are sent, followed by a FIN.
    Closing,
    /// The stream is over.
    Over,
}

/// RDMAP stream (RFC 5040 section 2), from the first start-up frame to the last byte. `M` is
/// [`StreamHost::Memory`].
///
/// The host moves the bytes: it passes the bytes received from TCP to [`RdmapStream::handle_bytes`]
/// and sends the bytes that [`RdmapStream::poll_transmit`] returns. After every call it takes the
/// events from [`RdmapStream::poll_event`] and checks [`RdmapStream::poll_timeout`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/peer.rs"));
/// # fn main() {
/// // `End`, `established` and `carry` are defined in the example of `StreamHost`.
/// let now = Time::default();
/// let mut ends = established(now);
/// ends[1].host.receives.push_back(4096);
/// ends[0].host.post(Op::Send, b"good day");
/// ends[0].stream.doorbell();
/// carry(&mut ends, now);
/// assert_eq!(ends[1].host.received[0].1, b"good day");
/// // One end begins an orderly close.
/// assert!(ends[0].stream.close(now));
/// carry(&mut ends, now);
/// assert!(ends.iter().all(|end| end.stream.is_over() && !end.stream.is_reset()));
/// # }
/// ```
#[derive(Debug)]
pub struct RdmapStream<M> {
    pub(crate) phase: Phase,
    pub(crate) shared: Shared,
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender<M>,
    /// True if the stream is connected to itself.
    pub(crate) loopback: bool,
    /// True if the transport ends with a reset.
    pub(crate) reset: bool,
    /// True if [`Event::Drained`] is still to be reported.
    pub(crate) pausing: bool,
    /// True if this end fell back to revision 1 because the peer closed after a Request of revision
    /// 2.
    pub(crate) fell_back: bool,
    /// Number of times that the capability request may still be repeated.
    pub(crate) capability_repeats: u8,
    /// Private data of the Request, kept for a fall-back to revision 1.
    pub(crate) private_data: Vec<u8>,
}

/// Output of [`RdmapStream::poll_transmit`] for the transport.
#[derive(Debug)]
pub enum Transmit<'a, M> {
    /// Bytes to send. The host reports the number of bytes that the transport accepted with
    /// [`RdmapStream::handle_sent`].
    Bytes(Batch<'a, M>),
    /// FIN to send after all bytes.
    Fin,
}

impl<M> RdmapStream<M> {
    /// Creates an initiator whose TCP is being connected (see [`RdmapStream::handle_connected`]).
    ///
    /// `sink` is the sink STag of its RDMA Reads, which must not name any memory. `nonce` is a
    /// random number for the capability exchange.
    ///
    /// # Errors
    /// A [`ConfigError`] if the settings are illegal or the private data is too long.
    pub fn connect(
        config: RdmapConfig,
        private_data: &[u8],
        sink: STag,
        nonce: u64,
        now: Time,
    ) -> Result<Self, ConfigError> {
        Initiator::new(config.startup.clone(), private_data)?;
        let mut stream = Self::new(Phase::Connecting, true, config, sink, nonce, now);
        stream.private_data = private_data.to_vec();
        Ok(stream)
    }

    /// Creates a responder whose TCP is connected. `config` belongs to the listener;
    /// [`RdmapStream::accept`] has a separate one.
    #[must_use]
    pub fn listen(config: RdmapConfig, sink: STag, now: Time) -> Self {
        let responder = Responder::new(config.startup.clone());
        Self::new(Phase::AwaitRequest(Box::new(responder)), false, config, sink, 0, now)
    }

    /// Creates a stream that is connected to itself and receives the bytes that it sends.
    ///
    /// Nothing is negotiated, because both ends have the same `config`.
    #[must_use]
    pub fn loopback(config: RdmapConfig, sink: STag, now: Time) -> Self {
        let mut stream = Self::new(Phase::Connecting, true, config, sink, 0, now);
        stream.loopback = true;
        stream
    }

    fn new(
        phase: Phase,
        initiator: bool,
        config: RdmapConfig,
        sink: STag,
        nonce: u64,
        now: Time,
    ) -> Self {
        let mut timers = Timers::new();
        timers.set(Timer::Startup, now, config.startup_timeout);
        let caps = PeerCaps::new(initiator, config.capabilities, config.acknowledged, nonce);
        let shared = Shared {
            config,
            initiator,
            now,
            startup_sent: now,
            timers,
            caps,
            reads: Reads::new(sink),
            placement: PlacementAcks::default(),
            peer_placed: None,
            fin: Fin::default(),
            sending_blocked: false,
            awaits_establish: false,
            first_fpdu: false,
            detached: false,
            discarded: false,
            events: VecDeque::new(),
            established: None,
        };
        Self {
            phase,
            shared,
            receiver: Receiver::new(),
            sender: Sender::new(),
            loopback: false,
            reset: false,
            pausing: false,
            fell_back: false,
            capability_repeats: 0,
            private_data: Vec::new(),
        }
    }

    // Input from the transport.

    /// Processes start-up frames and whole FPDUs at the front of `bytes`. Returns the number of
    /// bytes consumed.
    ///
    /// The next call must begin with the bytes that were not consumed, followed by more, at least
    /// [`RdmapStream::needed`] bytes in total.
    ///
    /// Processing stops after a start-up frame, so that the host can handle its event. Nothing is
    /// consumed while TCP is being connected, while the host decides on a Request, or while a Send
    /// waits for a receive. Once the stream has left Full Operation, all bytes are discarded and
    /// count as consumed.
    ///
    /// The bytes may be changed in place, because Markers are removed from them.
    #[inline]
    pub fn handle_bytes<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        bytes: &mut [u8],
        now: Time,
    ) -> usize {
        self.shared.now = now;
        match self.phase {
            Phase::Open if self.receiver.is_stalled() => 0,
            Phase::Open => {
                let handled = self.receiver.handle_fpdus(bytes, &mut self.shared, host);
                // Requests that the peer has acknowledged complete even if an error followed in the
                // same bytes.
                if let Some(position) = self.shared.peer_placed.take()
                    && let Err(error) = self.sender.handle_placed(position, &mut self.shared, host)
                {
                    self.fail(error, host);
                    return bytes.len();
                }
                match handled {
                    Ok(used) => used,
                    Err(error) => {
                        self.fail(error, host);
                        bytes.len()
                    }
                }
            }
            Phase::AwaitReply(_) | Phase::AwaitRequest(_) => self.handle_startup(host, bytes),
            Phase::Connecting | Phase::Decision(_) => 0,
            Phase::Closing | Phase::Over => bytes.len(),
        }
    }

    /// Reports the peer's FIN, which followed `unread` bytes that were not consumed.
    ///
    /// While [`RdmapStream::accepts_bytes`] is false because a Send waits for a receive, the host
    /// keeps the unconsumed bytes, and reports the FIN only after they have been consumed.
    pub fn handle_eof<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        unread: usize,
        now: Time,
    ) {
        self.shared.now = now;
        self.shared.fin.received = true;
        match self.phase {
            Phase::Open if unread > 0 => {
                self.fail(ConnError::FinInsideFpdu { bytes: unread }, host);
            }
            Phase::Open | Phase::Closing | Phase::Over => {}
            Phase::Connecting
            | Phase::AwaitReply(_)
            | Phase::AwaitRequest(_)
            | Phase::Decision(_) => {
                self.shared.fin.received = false;
                self.handle_startup_eof(unread);
            }
        }
    }

    /// Handles the timers that have expired at `now`. Called once the time of
    /// [`RdmapStream::poll_timeout`] has passed.
    pub fn handle_timeout<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) {
        self.shared.now = now;
        while let Some(timer) = self.shared.timers.expire(now) {
            match timer {
                Timer::Startup => self.on_startup_timer(host),
                Timer::NoReceive if host.is_unreliable() => {
                    if let Err(error) = self.receiver.discard_parked(&mut self.shared, host) {
                        self.fail(error, host);
                    }
                }
                Timer::NoReceive => {
                    let error = self.receiver.no_receive_in_time();
                    self.fail(error, host);
                }
                Timer::Close => {
                    self.fail(ConnError::Lost, host);
                    self.reset();
                }
                Timer::Capabilities => self.on_capability_timer(),
            }
        }
    }

    fn on_startup_timer<H: StreamHost<Memory = M>>(&mut self, host: &mut H) {
        match self.phase {
            Phase::Open => self.fail(ConnError::NoFirstFpdu, host),
            Phase::Closing | Phase::Over => {}
            _ => self.fail_startup(crate::StartupFailure::TimedOut),
        }
    }

    // Output to the host.

    /// Builds FPDUs for posted requests and for responses, up to one batch, and returns them.
    ///
    /// Returns `None` if there is nothing to send until the next post, arrival or other input.
    /// Returned bytes are returned again until [`RdmapStream::handle_sent`] reports that the
    /// transport accepted them.
    #[inline]
    pub fn poll_transmit<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        now: Time,
    ) -> Option<Transmit<'_, M>> {
        self.shared.now = now;
        let mut more = false;
        if matches!(self.phase, Phase::Open) {
            self.begin_close_drain(host);
            match self.sender.build(&mut self.shared, host) {
                Ok(all) => more = !all || self.shared.placement.is_owed(),
                Err(error) => self.fail(error, host),
            }
        }
        if self.sender.is_empty() {
            return self.poll_close(host);
        }
        if matches!(self.phase, Phase::Over) {
            // The transport does not carry any more bytes.
            return None;
        }
        Some(Transmit::Bytes(self.sender.batch(more)))
    }

    /// Reports that the transport accepted `bytes` bytes of those returned by
    /// [`RdmapStream::poll_transmit`].
    #[inline]
    pub fn handle_sent<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        bytes: usize,
        now: Time,
    ) {
        self.shared.now = now;
        let sent = self.sender.advance(bytes);
        self.shared.placement.handle_sent(sent);
        if !self.shared.reads.acks.on
            && let Err(error) = self.sender.complete_until(sent, host)
        {
            self.fail(error, host);
        }
        self.poll_drained();
    }

    /// Reports that the memory of a queued FPDU is no longer available. The stream ends: with a
    /// Terminate, or with a reset if a partly sent FPDU cannot be finished.
    pub fn handle_source_gone<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) {
        self.shared.now = now;
        self.fail(ConnError::SourceGone, host);
    }

    /// Advances the close while nothing is queued. Returns [`Transmit::Fin`] if the FIN is to be
    /// sent now.
    fn poll_close<H: StreamHost<Memory = M>>(&mut self, host: &mut H) -> Option<Transmit<'_, M>> {
        if matches!(self.phase, Phase::Open) {
            self.poll_drained();
            let fin = self.shared.fin;
            // If a Send waits for a receive, it precedes the FIN and has to be delivered first.
            let took_all = fin.received && !self.receiver.is_stalled();
            if took_all && self.sender.owes_nothing(&self.shared) {
                self.fail(ConnError::Closed, host);
            } else if fin.wanted && !fin.sent && self.sender.is_finished(&self.shared, host) {
                self.shared.fin.sent = true;
                // Nothing may follow the FIN, whatever the peer requests or the host posts.
                self.shared.sending_blocked = true;
                return Some(Transmit::Fin);
            }
        }
        if matches!(self.phase, Phase::Closing) && self.sender.is_empty() {
            let fin = &mut self.shared.fin;
            let due = !core::mem::replace(&mut fin.sent, true);
            if fin.received {
                self.phase = Phase::Over;
            }
            if due {
                return Some(Transmit::Fin);
            }
        }
        None
    }

    /// Queues [`Event::Drained`] once no request is outstanding.
    fn poll_drained(&mut self) {
        if self.pausing && self.sender.has_no_open_request(&self.shared) {
            self.pausing = false;
            self.shared.events.push_back(Event::Drained);
        }
    }

    /// Returns the number of messages whose placement acknowledgement was passed to TCP since the
    /// last call, in the order of [`StreamHost::receive`].
    ///
    /// See [`ReceivedMessage::awaits_ack`](crate::ReceivedMessage::awaits_ack).
    #[inline]
    pub fn take_acknowledged(&mut self) -> u32 {
        self.shared.placement.take_acknowledged()
    }

    /// Returns whether a placement acknowledgement has not been passed to TCP yet.
    #[must_use]
    pub fn owes_acknowledgement(&self) -> bool {
        self.shared.placement.is_waiting()
    }

    /// Discards the count of [`RdmapStream::take_acknowledged`], after the host has reported all
    /// messages to its program.
    pub fn forget_unacknowledged(&mut self) {
        self.shared.placement.forget_received();
    }

    /// Returns the next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Returns the time at which [`RdmapStream::handle_timeout`] is due, or [`Time::NEVER`].
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        self.shared.timers.earliest()
    }

    // Input from the host.

    /// Reports that requests were posted. The host calls [`RdmapStream::poll_transmit`] next.
    #[inline]
    pub fn doorbell(&mut self) {
        self.sender.drained = false;
    }

    /// Reports that receives were posted. Returns whether [`RdmapStream::handle_bytes`] can
    /// continue.
    ///
    /// It can if no segment was waiting for a receive, or the waiting segment was placed.
    pub fn receive_posted<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) -> bool {
        self.shared.now = now;
        if !self.is_open() {
            return false;
        }
        match self.receiver.unpark(&mut self.shared, host) {
            Ok(placed) => placed,
            Err(error) => {
                self.fail(error, host);
                false
            }
        }
    }

    /// Requests [`Event::Drained`], which is reported once no request is outstanding.
    ///
    /// The host must not provide further requests until [`RdmapStream::resume`].
    pub fn pause(&mut self) {
        self.pausing = self.is_open();
    }

    /// Ends a [`RdmapStream::pause`]: the host provides requests again.
    pub fn resume(&mut self) {
        self.pausing = false;
        self.doorbell();
    }

    /// Sets the time for which an inbound Send may wait for a receive. The time restarts for a Send
    /// that is already waiting.
    pub fn set_no_receive_timeout(&mut self, timeout: Duration, now: Time) {
        self.shared.config.no_receive_timeout = timeout;
        if self.receiver.is_stalled() {
            self.shared.timers.set(Timer::NoReceive, now, timeout);
        }
    }

    /// Sets the EMSS: the number of bytes that a TCP segment currently carries (RFC 5044 section
    /// 5.1).
    #[inline]
    pub fn set_emss(&mut self, emss: usize) {
        self.sender.emss = emss;
    }

    /// Sets the maximum length of the next batches.
    #[inline]
    pub fn set_batch_length(&mut self, length: BatchLength) {
        self.sender.batch_length = length;
    }

    /// Returns the maximum length of the next batch.
    #[inline]
    #[must_use]
    pub fn batch_length(&self) -> BatchLength {
        self.sender.batch_length
    }

    /// Returns whether Read or Atomic Responses are due that the stream has not begun to send.
    #[inline]
    pub fn has_responses(&self) -> bool {
        self.shared.reads.inbound.len() > usize::from(self.sender.is_inside_response())
    }

    /// Provides a buffer in which FPDUs are built.
    ///
    /// `buffer` is called only if the stream has none, so that the host can keep a pool of buffers.
    #[inline]
    pub fn give_buffer(&mut self, buffer: impl FnOnce() -> Vec<u8>) {
        self.sender.give_buffer(buffer);
    }

    /// Takes the buffer out of the stream if nothing is queued, for the host's pool.
    #[inline]
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        self.sender.take_buffer()
    }

    // State of the stream.

    /// Returns whether [`RdmapStream::handle_bytes`] consumes bytes now.
    ///
    /// It does not while TCP is being connected, while the host decides on a Request, while a Send
    /// waits for a receive, after the peer's FIN, and after the end of the stream.
    #[inline]
    #[must_use]
    pub fn accepts_bytes(&self) -> bool {
        match self.phase {
            Phase::Open => !self.shared.fin.received && !self.receiver.is_stalled(),
            Phase::AwaitReply(_) | Phase::AwaitRequest(_) => true,
            Phase::Closing => !self.shared.fin.received,
            Phase::Decision(_) | Phase::Connecting | Phase::Over => false,
        }
    }

    /// Returns whether an inbound Send waits for a receive.
    #[inline]
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.receiver.is_stalled()
    }

    /// Returns the minimum number of bytes that [`RdmapStream::handle_bytes`] needs to make
    /// progress, as far as is known.
    #[inline]
    #[must_use]
    pub fn needed(&self) -> usize {
        self.receiver.needed
    }

    /// Returns the number of bytes that the stream keeps for a Send that waits for a receive.
    #[must_use]
    pub fn parked_len(&self) -> usize {
        self.receiver.parked_len()
    }

    /// Returns whether there is nothing to send until a request is posted, bytes arrive or the
    /// transport has room.
    #[inline]
    #[must_use]
    pub fn has_nothing_due(&self) -> bool {
        self.sender.has_nothing_due(&self.shared) && !self.shared.fin.received
    }

    /// Like [`RdmapStream::has_nothing_due`], but also requires that neither a request nor the
    /// close waits for an arrival.
    ///
    /// If true, the host need not call [`RdmapStream::poll_transmit`] after an arrival, only after
    /// [`RdmapStream::doorbell`].
    #[inline]
    #[must_use]
    pub fn awaits_doorbell(&self) -> bool {
        self.has_nothing_due() && self.sender.drained && !self.shared.fin.wanted && !self.pausing
    }

    /// Returns whether the FPDUs of a request are only partly built.
    #[must_use]
    pub fn is_inside_request(&self) -> bool {
        self.sender.is_inside_request()
    }

    /// Returns whether this end is the initiator.
    #[must_use]
    pub fn is_initiator(&self) -> bool {
        self.shared.initiator
    }

    /// Returns the negotiated properties, or `None` before the negotiation.
    #[must_use]
    pub fn negotiated(&self) -> Option<&uiw_mpa::startup::Negotiated> {
        self.receiver.negotiated.as_ref()
    }

    /// Returns whether [`RdmapStream::handle_eof`] with these `unread` bytes would report
    /// [`Event::Reconnect`].
    ///
    /// In that state a reset of the connection means that the peer refused the Request, too:
    /// adapters refuse with a reset, and TCP sends one if a program closes before it has read all
    /// bytes.
    #[must_use]
    pub fn may_fall_back(&self, unread: usize) -> bool {
        matches!(self.phase, Phase::AwaitReply(_))
            && self.shared.config.fallback
            && self.shared.config.startup.revision == Revision::Two
            && !self.fell_back
            && unread == 0
    }

    /// Returns whether the stream is connected to itself.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Returns whether start-up is in progress.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        !self.is_established() && !self.is_over()
    }

    /// Returns whether the peer's Request has not arrived yet.
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        matches!(self.phase, Phase::AwaitRequest(_))
    }

    /// Returns whether TCP is being connected.
    #[inline]
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        matches!(self.phase, Phase::Connecting)
    }

    /// Returns whether the stream is past start-up: in Full Operation, or closing.
    #[inline]
    #[must_use]
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Closing)
    }

    /// Returns whether the stream is in Full Operation.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Returns whether this end has begun the orderly close.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.shared.fin.wanted
    }

    /// Returns whether the stream is not in Full Operation, either end has begun the close, or
    /// [`Event::Drained`] is still to be reported.
    ///
    /// In this state the host must call [`RdmapStream::poll_transmit`] even if there is nothing to
    /// send, because it advances the close and reports the event once everything is sent.
    #[inline]
    #[must_use]
    pub fn is_ending(&self) -> bool {
        !self.is_open() || self.shared.fin.wanted || self.shared.fin.received || self.pausing
    }

    /// Returns whether the stream has ended.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Returns whether the host has to reset the transport of an ended stream.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.reset
    }

    /// Returns whether the peer has sent FIN.
    #[inline]
    #[must_use]
    pub fn peer_has_closed(&self) -> bool {
        self.shared.fin.received
    }

    /// Returns the kind of the peer, as far as the capability exchange has determined it.
    #[must_use]
    pub fn peer(&self) -> PeerKind {
        self.shared.caps.kind
    }

    /// Returns the length of the longest ULPDU that this end sends, in bytes.
    #[must_use]
    pub fn max_ulpdu(&self) -> usize {
        self.sender.mulpdu
    }

    /// Returns the current settings.
    #[must_use]
    pub fn config(&self) -> &RdmapConfig {
        &self.shared.config
    }

    /// Returns the sink STag of this stream's RDMA Reads.
    #[must_use]
    pub fn sink(&self) -> STag {
        self.shared.reads.sink
    }

    /// Advances the message sequence numbers of all queues, for tests of their wrap.
    #[cfg(test)]
    pub(crate) fn set_msn(&mut self, msn: u32) {
        self.sender.set_msn(msn);
        self.receiver.set_msn(msn);
    }
}
