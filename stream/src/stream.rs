//! The stream: its state, and the method families that a host calls.

use crate::capabilities::PeerCaps;
use crate::error::ConnError;
use crate::event::Event;
use crate::host::StreamHost;
use crate::placement::PlacementAcks;
use crate::reads::Reads;
use crate::receiver::Receiver;
use crate::sender::{Batch, Sender};
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
    /// TCP connects.
    Connecting,
    /// Our Request is sent.
    AwaitReply(Box<Initiator>),
    /// The peer's Request has not come.
    AwaitRequest(Box<Responder>),
    /// The host decides.
    Decision(Box<(Responder, Request)>),
    /// Full Operation.
    Open,
    /// The queue is sent, followed by FIN.
    Closing,
    /// The stream is over.
    Over,
}

/// One RDMAP stream (RFC 5040 section 2), from the first start-up frame to the last byte. `M` is [`StreamHost::Memory`].
///
/// The host moves the bytes: it gives what TCP has received to [`RdmapStream::handle_bytes`] and sends what
/// [`RdmapStream::poll_transmit`] returns. After every call it takes the events of [`RdmapStream::poll_event`] and looks at
/// [`RdmapStream::poll_timeout`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/peer.rs"));
/// # fn main() {
/// // `End` and the functions are those of the example of `StreamHost`.
/// let now = Time::default();
/// let mut ends = established(now);
/// ends[1].host.receives.push_back(4096);
/// ends[0].host.post(Op::Send, b"good day");
/// ends[0].stream.doorbell();
/// carry(&mut ends, now);
/// assert_eq!(ends[1].host.received[0].1, b"good day");
/// // An orderly close, from one end.
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
    /// The other end is this one.
    pub(crate) loopback: bool,
    /// The transport ends with a reset.
    pub(crate) reset: bool,
    /// [`Event::Drained`] is due.
    pub(crate) pausing: bool,
    /// Revision 2 was tried, and the peer closed.
    pub(crate) fell_back: bool,
    /// Number of times that the capability request may still be repeated.
    pub(crate) capability_repeats: u8,
    /// Private data of the Request, kept for a fall-back to revision 1.
    pub(crate) private_data: Vec<u8>,
}

/// Action that [`RdmapStream::poll_transmit`] asks of the transport.
#[derive(Debug)]
pub enum Transmit<'a, M> {
    /// Send these bytes. The host reports what the transport took with [`RdmapStream::handle_sent`].
    Bytes(Batch<'a, M>),
    /// Send a FIN behind everything.
    Fin,
}

impl<M> RdmapStream<M> {
    /// An initiator, whose TCP connects: see [`RdmapStream::handle_connected`]. `sink` is the STag that its Reads name; it must name no
    /// memory. `nonce` is a random number for the capability exchange.
    ///
    /// # Errors
    /// [`ConfigError`]: illegal settings, or private data that is too long.
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

    /// A responder, whose TCP is connected. `config` is the listener's: [`RdmapStream::accept`] takes another.
    #[must_use]
    pub fn listen(config: RdmapConfig, sink: STag, now: Time) -> Self {
        let responder = Responder::new(config.startup.clone());
        Self::new(Phase::AwaitRequest(Box::new(responder)), false, config, sink, 0, now)
    }

    /// A stream to itself: what it sends is what it receives. Nothing is negotiated; both ends have `config`.
    #[must_use]
    pub fn loopback(config: RdmapConfig, sink: STag, now: Time) -> Self {
        let mut stream = Self::new(Phase::Connecting, true, config, sink, 0, now);
        stream.loopback = true;
        stream
    }

    fn new(phase: Phase, initiator: bool, config: RdmapConfig, sink: STag, nonce: u64, now: Time) -> Self {
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
            hold: false,
            awaits_establish: false,
            first_fpdu: false,
            detached: false,
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

    // What the transport brings.

    /// Takes start-up frames and whole FPDUs from the front of `bytes`, which begin where the last call stopped. Returns how many
    /// bytes it took: the others are given again with more behind them, at least [`RdmapStream::needed`] in all.
    ///
    /// It stops behind a start-up frame, so that the host can take the event of it; and it takes nothing while
    /// [`RdmapStream::accepts_bytes`] is false. The bytes may be changed in place: Markers are removed from them.
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
                if let Some(position) = self.shared.peer_placed.take()
                    && let Err(error) = self.complete_placed(position, host)
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

    /// Completes the requests that the peer has acknowledged. Those before an error complete as well.
    #[inline(never)]
    fn complete_placed<H: StreamHost<Memory = M>>(
        &mut self,
        position: u64,
        host: &mut H,
    ) -> Result<(), ConnError> {
        self.sender.handle_placed(position, &mut self.shared, host)
    }

    /// The peer sent FIN, behind `unread` bytes that were not taken. While [`RdmapStream::accepts_bytes`] is false for a Send that waits
    /// for a receive, the host keeps what was not taken, and reports the FIN behind it.
    pub fn handle_eof<H: StreamHost<Memory = M>>(&mut self, host: &mut H, unread: usize, now: Time) {
        self.shared.now = now;
        self.shared.fin.received = true;
        match self.phase {
            Phase::Open if unread > 0 => self.fail(ConnError::FinInsideFpdu { bytes: unread }, host),
            Phase::Open | Phase::Closing | Phase::Over => {}
            Phase::Connecting | Phase::AwaitReply(_) | Phase::AwaitRequest(_) | Phase::Decision(_) => {
                self.shared.fin.received = false;
                self.handle_startup_eof(unread);
            }
        }
    }

    /// A deadline of [`RdmapStream::poll_timeout`] has passed.
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

    // What the host has to do.

    /// Builds FPDUs of posted requests and of answers, up to a batch, and returns them. Returns `None` if nothing is due until something
    /// happens.
    ///
    /// Returned bytes stay due until [`RdmapStream::handle_sent`] reports that the transport took them.
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
            // The transport carries nothing any more.
            return None;
        }
        Some(Transmit::Bytes(self.sender.batch(more)))
    }

    /// The transport took so many of the bytes that were due.
    #[inline]
    pub fn handle_sent<H: StreamHost<Memory = M>>(&mut self, host: &mut H, bytes: usize, now: Time) {
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

    /// Memory of an FPDU that is partly sent is gone: the FPDU cannot be finished.
    pub fn handle_source_gone<H: StreamHost<Memory = M>>(&mut self, host: &mut H, now: Time) {
        self.shared.now = now;
        self.fail(ConnError::SourceGone, host);
    }

    /// Moves the close on, once nothing is queued. True when FIN is due.
    fn poll_close<H: StreamHost<Memory = M>>(&mut self, host: &mut H) -> Option<Transmit<'_, M>> {
        if matches!(self.phase, Phase::Open) {
            self.poll_drained();
            let fin = self.shared.fin;
            // A Send that waits for a receive came before the FIN.
            let took_all = fin.received && !self.receiver.is_stalled();
            if took_all && self.sender.owes_nothing(&self.shared) {
                self.fail(ConnError::Closed, host);
            } else if fin.wanted && !fin.sent && self.sender.is_finished(&self.shared, host) {
                self.shared.fin.sent = true;
                // Nothing follows a FIN, whatever the peer asks for and the host posts.
                self.shared.hold = true;
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

    fn poll_drained(&mut self) {
        if self.pausing && self.sender.has_no_open_request(&self.shared) {
            self.pausing = false;
            self.shared.events.push_back(Event::Drained);
        }
    }

    /// Number of messages whose placement acknowledgement TCP has taken since the last call, in the order of [`StreamHost::receive`]. See
    /// [`ReceivedMessage::awaits_ack`](crate::ReceivedMessage::awaits_ack).
    #[inline]
    pub fn take_acknowledged(&mut self) -> u32 {
        self.shared.placement.take_acknowledged()
    }

    /// Returns whether a placement acknowledgement waits for TCP to take it.
    #[must_use]
    pub fn owes_acknowledgement(&self) -> bool {
        self.shared.placement.is_waiting()
    }

    /// The host has reported all messages to its program and does not wait for [`RdmapStream::take_acknowledged`] any longer.
    pub fn forget_unacknowledged(&mut self) {
        self.shared.placement.forget_received();
    }

    /// The next event.
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

    // The inputs of the host.

    /// Requests were posted: [`RdmapStream::poll_transmit`] is due.
    #[inline]
    pub fn doorbell(&mut self) {
        self.sender.doorbell();
    }

    /// Receives were posted. True when the stream goes on with [`RdmapStream::handle_bytes`]: a segment that waited was placed, or none
    /// did.
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

    /// Asks for [`Event::Drained`] when no request is under way any more. The host gives no more requests meanwhile.
    pub fn pause(&mut self) {
        self.pausing = self.is_open();
    }

    /// The host gives requests again.
    pub fn resume(&mut self) {
        self.pausing = false;
        self.doorbell();
    }

    /// Sets the time for which an inbound Send may wait for a receive. For a Send that waits already, the time begins anew.
    pub fn set_no_receive_timeout(&mut self, timeout: Duration, now: Time) {
        self.shared.config.no_receive_timeout = timeout;
        if self.receiver.is_stalled() {
            self.shared.timers.set(Timer::NoReceive, now, timeout);
        }
    }

    /// Bytes that a TCP segment carries now (RFC 5044 section 5.1).
    #[inline]
    pub fn set_emss(&mut self, emss: usize) {
        self.sender.set_emss(emss);
    }

    /// Takes `buffer` to build FPDUs in, if the stream has none; the host may keep a pool of them.
    #[inline]
    pub fn give_buffer(&mut self, buffer: impl FnOnce() -> Vec<u8>) {
        self.sender.give_buffer(buffer);
    }

    /// Gives back the buffer while nothing is queued.
    #[inline]
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        self.sender.take_buffer()
    }

    // How it is.

    /// Returns whether [`RdmapStream::handle_bytes`] takes bytes now. It does not while the host decides on a Request, while a Send waits for a
    /// receive, and behind the peer's FIN.
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

    /// Returns whether a Send waits for a receive.
    #[inline]
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.receiver.is_stalled()
    }

    /// Bytes that the front of the input must have before [`RdmapStream::handle_bytes`] takes anything of it, as far as is known.
    #[inline]
    #[must_use]
    pub fn needed(&self) -> usize {
        self.receiver.needed()
    }

    /// Bytes that the stream keeps for a Send that waits for a receive.
    #[must_use]
    pub fn parked_len(&self) -> usize {
        self.receiver.parked_len()
    }

    /// Returns whether nothing is to be sent unless something happens: a post, an arrival, room.
    #[inline]
    #[must_use]
    pub fn has_nothing_due(&self) -> bool {
        self.sender.has_nothing_due(&self.shared) && !self.shared.fin.received
    }

    /// Like [`RdmapStream::has_nothing_due`], and neither a request nor the close waits for an arrival: after an arrival
    /// [`RdmapStream::poll_transmit`] has nothing to do.
    #[inline]
    #[must_use]
    pub fn awaits_doorbell(&self) -> bool {
        self.has_nothing_due() && self.sender.is_drained() && !self.shared.fin.wanted && !self.pausing
    }

    /// Returns whether a request is partly built.
    #[must_use]
    pub fn is_inside_request(&self) -> bool {
        self.sender.is_inside_request()
    }

    /// Returns whether the stream was begun by this end.
    #[must_use]
    pub fn is_initiator(&self) -> bool {
        self.shared.initiator
    }

    /// Returns the result of the negotiation; `None` before it.
    #[must_use]
    pub fn negotiated(&self) -> Option<&uiw_mpa::startup::Negotiated> {
        self.receiver.negotiated()
    }

    /// Returns whether [`RdmapStream::handle_eof`] behind `unread` bytes of a start-up frame would report [`Event::Reconnect`]. A peer that resets the connection
    /// there has refused the Request as well: adapters do so, and a TCP whose program closes without having read all.
    #[must_use]
    pub fn may_fall_back(&self, unread: usize) -> bool {
        matches!(self.phase, Phase::AwaitReply(_))
            && self.shared.config.fallback
            && self.shared.config.startup.revision == Revision::Two
            && !self.fell_back
            && unread == 0
    }

    /// Returns whether it is a stream to itself.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Returns whether start-up is under way.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        !self.is_established() && !self.is_over()
    }

    /// Returns whether the peer's Request has not come.
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        matches!(self.phase, Phase::AwaitRequest(_))
    }

    /// Returns whether TCP connects.
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

    /// Returns whether it is in Full Operation.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Returns whether the orderly close was begun, from this end.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.shared.fin.wanted
    }

    /// Returns whether the close has begun, from either end, or [`Event::Drained`] is due: then [`RdmapStream::poll_transmit`] has something to
    /// find out when everything is sent.
    #[inline]
    #[must_use]
    pub fn is_ending(&self) -> bool {
        !self.is_open() || self.shared.fin.wanted || self.shared.fin.received || self.pausing
    }

    /// Returns whether nothing is left to do.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Returns whether the transport of a stream that is over is to be ended with a reset.
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

    /// Bytes of the longest ULPDU that is sent.
    #[must_use]
    pub fn max_ulpdu(&self) -> usize {
        self.sender.mulpdu()
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &RdmapConfig {
        &self.shared.config
    }

    /// The STag that Reads of this stream name.
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
