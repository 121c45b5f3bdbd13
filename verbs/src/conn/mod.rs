//! Connections. Each one joins an RDMAP stream (`uiw_stream::RdmapStream`), the socket that carries
//! its bytes, and the queue pair that uses it.

mod control;
mod events;
mod held_receives;
mod host;
mod host_state;
mod liveness;
mod partial;
mod receive;
mod transmit;

pub(crate) use host::QpHost;
pub(crate) use host_state::HostState;

use crate::cm::{CmSide, HalfOpenGuard};
use crate::driver::{AddressEntry, HeldBytes, Services, Shared};
use crate::options::ConnConfig;
use crate::qp::{ConnLocation, QpInner, RecvSource};
use liveness::Liveness;
use partial::PartialFpdu;
use receive::{STARVED_PAUSE, UnreadSocket};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::Qpn;
use uiw_llp::{Event, Interest, Token};
use uiw_mem::Span;
use uiw_stream::{RdmapStream, Time};

/// Call of the transport stack that a connection needs. The shard makes it, because a connection
/// has no access to the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StackRequest {
    #[default]
    Nothing,
    /// Connect TCP again, to fall back to MPA revision 1 or because the last attempt was refused.
    Reconnect,
    /// Add the socket to the event set again.
    Adopt,
}

/// Connection, owned by one shard.
pub(crate) struct Conn {
    pub(crate) token: Token,
    /// Current token of the connection, shared with its handles. It changes when the connection
    /// moves to another shard.
    pub(crate) location: Arc<ConnLocation>,
    pub(crate) socket: Box<dyn uiw_llp::TransportStream>,
    pub(crate) stream: RdmapStream<Span>,
    pub(crate) options: Arc<ConnConfig>,
    pub(crate) cm: CmSide,
    pub(crate) qp: Option<Arc<QpInner>>,
    state: HostState,
    /// Received bytes that the stream has not taken yet.
    partial: PartialFpdu,
    /// Page offset to which the next read copies (see [`next_page_offset`](partial::next_page_offset)).
    page_offset: usize,
    /// Bytes of this connection that are counted against the receive memory budget.
    counted: HeldBytes,
    /// Time when the first bytes of the FPDU in `partial` arrived.
    partial_since: Time,
    /// Time when bytes of an incomplete long message last arrived.
    message_at: Time,
    /// Set while the socket is not read because the receive memory budget is exhausted.
    starved: Option<UnreadSocket>,
    /// True if the budget is short, so that only whole FPDUs are read. The stack then reports the
    /// socket as readable once a whole FPDU has arrived.
    reads_whole: bool,
    /// True if received bytes may be read in the stack's own memory. True until the socket reports
    /// that it does not support this.
    has_peek: bool,
    /// True if the peer's FIN was read while a Send waits for a receive. It is handled after the
    /// bytes in `partial`.
    eof: bool,
    /// Time of this connection's timer, [`Time::NEVER`] if it has none. It stays when the deadline
    /// moves to a later time, because most deadlines move before they pass.
    timer_at: Time,
    /// Time at which held receive completions are reported even if TCP has not accepted the
    /// acknowledgement yet.
    held_until: Time,
    /// True if `held_until` has passed and TCP has not accepted the acknowledgement since then.
    ack_overdue: bool,
    /// Time of the next retry. During start-up it repeats a TCP connection attempt that was
    /// refused. Later it repeats a read, after the receive memory budget was short or while
    /// [`Conn::lost_sending`] is set.
    retry: Time,
    /// Time without an acknowledgement after which the peer counts as dead
    /// ([`uiw_llp::TransportConfig::dead_after`]).
    dead_after: Option<Duration>,
    liveness: Liveness,
    /// Error of the last send, after which the socket accepts no more data. Bytes that the peer
    /// sent before are read first. Then the transport is lost with this error.
    lost_sending: Option<io::Error>,
    /// While `lost_sending` is set: time until which a Send that has already arrived may wait for a
    /// receive.
    lost_until: Time,
    /// Set if the transport was given up because the peer acknowledged nothing for this time.
    silent_for: Option<Duration>,
    /// TLS error that ended the transport.
    tls_error: Option<(io::ErrorKind, String)>,
    /// Entry among the half-open connections of the listener, during start-up.
    pub(crate) half_open: Option<Arc<HalfOpenGuard>>,
    /// Entry in the device's set of connection addresses, from the time when TCP is connected.
    address_entry: Option<AddressEntry>,
    /// True once Full Operation has begun.
    was_open: bool,
    /// True if the queue pair is being destroyed or reset, so that its requests end without
    /// completions.
    discards_requests: bool,
    /// True if the program has dropped the connection, or closes it, and requests are in progress
    /// ([`Conn::limit_lifetime`]).
    is_limited: bool,
    /// Call of the stack that the shard makes after it has served this connection.
    pub(crate) stack_request: StackRequest,
    /// Local address that the application requested.
    pub(crate) asked_local: Option<SocketAddr>,
    /// Number to report in a [`CmEventKind::Posted`](crate::cm::CmEventKind::Posted) event once TCP
    /// is connected.
    pub(crate) connected_note: Option<u64>,
    /// Time of the first refusal by TCP, and the pause to make after the next refusal.
    refused: Option<(Time, Duration)>,
    /// Interest that is set at the stack.
    interest: Interest,
    /// True if the socket was removed from the event set, which would otherwise report a hang-up
    /// with every poll. It is added again when the interest changes.
    out_of_set: bool,
}

impl Conn {
    pub(crate) fn new(
        token: Token,
        socket: Box<dyn uiw_llp::TransportStream>,
        stream: RdmapStream<Span>,
        options: Arc<ConnConfig>,
        cm: CmSide,
        services: &Services,
    ) -> Self {
        let initiator = stream.is_initiator();
        Self {
            token,
            location: Arc::new(ConnLocation::new(token)),
            socket,
            stream,
            dead_after: options.stream.dead_after,
            options,
            cm,
            qp: None,
            state: HostState::new(token, services.counters.unassigned()),
            partial: PartialFpdu::default(),
            page_offset: 0,
            counted: HeldBytes::default(),
            partial_since: Time::NEVER,
            message_at: Time::NEVER,
            starved: None,
            reads_whole: false,
            has_peek: true,
            eof: false,
            timer_at: Time::NEVER,
            held_until: Time::NEVER,
            ack_overdue: false,
            retry: Time::NEVER,
            liveness: Liveness::IDLE,
            lost_sending: None,
            lost_until: Time::NEVER,
            silent_for: None,
            tls_error: None,
            half_open: None,
            address_entry: None,
            was_open: false,
            discards_requests: false,
            is_limited: false,
            stack_request: StackRequest::Nothing,
            asked_local: None,
            connected_note: None,
            refused: None,
            interest: Interest { read: true, write: initiator },
            out_of_set: false,
        }
    }

    /// Sets the queue pair of the connection.
    pub(crate) fn set_qp(&mut self, qp: &Arc<QpInner>) {
        self.qp = Some(Arc::clone(qp));
    }

    /// Returns the address of the peer for log lines. A connection has no span, because subscribers
    /// keep memory for each span and for each thread that has entered one.
    pub(crate) fn peer(&self) -> SocketAddr {
        uiw_llp::canonical(self.socket.peer_addr())
    }

    /// Returns the queue pair for log lines; a destroyed one has no number.
    fn logged_qp(&self) -> Option<tracing::field::DisplayValue<Qpn>> {
        self.qp.as_ref().map(|qp| tracing::field::display(Qpn::from_raw(qp.num)))
    }

    /// Calls `call` with the stream and its host, then handles the events of the stream.
    #[inline]
    fn with_stream<R>(
        &mut self,
        services: &mut Services,
        call: impl FnOnce(&mut RdmapStream<Span>, &mut QpHost<'_>, Time) -> R,
    ) -> R {
        let now = services.now;
        let mut host = QpHost::new(self.qp.as_deref(), &mut self.state, services);
        let result = call(&mut self.stream, &mut host, now);
        drop(host);
        self.take_events(services);
        result
    }

    /// Returns the time when the first bytes of an incomplete FPDU arrived.
    ///
    /// Returns `None` if no received bytes are kept, if the stream is not open, or if the peer is
    /// not at fault: a Send waits for a receive, or the socket is not read.
    pub(crate) fn partial_since(&self) -> Option<Time> {
        let waits = self.starved.is_none() && !self.stream.is_stalled();
        (self.counted.held > 0 && self.stream.is_open() && waits).then_some(self.partial_since)
    }

    /// Returns the time when bytes last arrived of an incomplete message that is longer than its
    /// receive.
    ///
    /// Returns `None` if there is no such message, if the stream is not open, or if the peer is not
    /// at fault (see [`Conn::partial_since`]).
    pub(crate) fn silent_in_message(&self) -> Option<Time> {
        let waits = self.starved.is_none() && !self.stream.is_stalled();
        (self.state.has_long_message() && self.stream.is_open() && waits).then_some(self.message_at)
    }

    /// Returns whether the connection only sends what was posted, or the last responses and
    /// acknowledgements, because the program has dropped it or closes it.
    pub(crate) fn is_draining(&self) -> bool {
        self.stream.is_draining() || self.is_limited && self.stream.is_open()
    }

    /// Handles the doorbell: requests were posted, or a receive was posted for a stalled stream.
    ///
    /// The time in `services` may be that of an earlier round, so this sets no deadline. If it
    /// returns true, the caller must update the time and call [`Conn::on_doorbell_with_clock`].
    pub(crate) fn on_doorbell(&mut self, services: &mut Services) -> bool {
        self.stream.doorbell();
        if self.stream.is_stalled() {
            return true;
        }
        let was_open = self.stream.is_open();
        self.serve_sends(services);
        let has_ended = was_open && !self.stream.is_open();
        has_ended || self.lost_sending.is_some()
    }

    /// Completes [`Conn::on_doorbell`] with the current time.
    ///
    /// A stalled stream continues, a stream that a failed request has ended gets a new deadline to
    /// close, and a stream that cannot send any more is read to its end.
    #[cold]
    pub(crate) fn on_doorbell_with_clock(&mut self, services: &mut Services) {
        if self.stream.is_stalled() || self.lost_sending.is_some() {
            self.on_readable(services);
        } else {
            self.stream.renew_close_deadline(services.now);
        }
    }

    /// Sends everything that is due, once start-up is complete.
    pub(crate) fn serve_sends(&mut self, services: &mut Services) {
        if self.stream.is_established() {
            self.transmit(services);
        }
    }

    /// Handles an event of the socket.
    pub(crate) fn on_event(&mut self, event: Event, services: &mut Services) {
        if self.stream.is_connecting() {
            return self.on_connect_event(services);
        }
        if event.readable && !self.interest.read && !self.is_closing() {
            // Readability was not requested: the stack reports a hang-up, or the event was listed
            // before the interest changed.
            return self.read_ahead(services);
        }
        if event.readable && !event.writable {
            // Posted requests are not sent here, because they ring the doorbell.
            self.on_poll(services);
        } else if event.readable || !self.stream.is_open() {
            self.on_readable(services);
        } else {
            self.transmit(services);
        }
    }

    /// Returns whether the stream is closing, so that received bytes are discarded.
    fn is_closing(&self) -> bool {
        self.stream.is_established() && !self.stream.is_open()
    }

    /// Handles a send that failed: the socket accepts no more data.
    ///
    /// The socket may still hold bytes that the peer sent before it closed or reset the connection:
    /// Sends, acknowledgements of requests of this end, or a Terminate with the reason. An open
    /// stream is read first; see [`Conn::end_lost_sending`].
    #[cold]
    pub(super) fn on_lost_sending(&mut self, error: io::Error, services: &mut Services) {
        if self.stream.is_open() {
            self.lost_sending = Some(error);
            self.lost_until = services.now.after(self.options.close_timeout);
            self.retry = services.now;
        } else {
            self.on_lost(&error, services);
        }
    }

    /// Ends the transport after [`Conn::on_lost_sending`], once a read has returned nothing more
    /// (`moved` is false).
    ///
    /// A Send that waits for a receive, and bytes that are not read because the receive memory
    /// budget is exhausted, are kept for [`ConnConfig::close_timeout`].
    #[cold]
    fn end_lost_sending(&mut self, moved: bool, services: &mut Services) {
        if moved {
            self.lost_until = services.now.after(self.options.close_timeout);
            self.retry = services.now;
        } else if self.stream.is_stalled() && services.now < self.lost_until {
            self.retry = self.lost_until;
        } else if self.starved.is_some() && services.now < self.lost_until {
            self.retry = self.lost_until.min(services.now.after(STARVED_PAUSE));
        } else if let Some(error) = self.lost_sending.take() {
            self.on_lost(&error, services);
        }
    }

    /// Handles the loss of the transport.
    pub(super) fn on_lost(&mut self, error: &io::Error, services: &mut Services) {
        if error.kind() == io::ErrorKind::ConnectionReset
            && self.stream.may_fall_back(self.partial.len())
        {
            return self.on_eof(self.partial.len(), services);
        }
        if self.stream.is_starting() {
            return self.fail_startup(self.startup_lost_error(error), services);
        }
        tracing::debug!(peer = %self.peer(), %error, "the transport is lost");
        // Kept for the log message about the end of the stream, because a TLS error explains why
        // the connection was lost.
        self.tls_error = error.get_ref().map(|cause| (error.kind(), cause.to_string()));
        if error.kind() == io::ErrorKind::TimedOut {
            // `dead_after` is the only time-out that is set in the stack.
            self.silent_for = self.dead_after;
        }
        self.with_stream(services, |stream, host, now| stream.handle_lost(host, now));
    }

    /// Receives, then sends. Returns whether bytes were received.
    pub(crate) fn on_readable(&mut self, services: &mut Services) -> bool {
        let was_lost = self.lost_sending.is_some();
        let moved = self.receive(services);
        self.transmit(services);
        // If `transmit` has failed just now, bytes may have arrived since the read.
        if was_lost && self.lost_sending.is_some() {
            self.end_lost_sending(moved, services);
        }
        moved
    }

    /// Reads when no request was posted and the stack has not reported room to send. Returns
    /// whether bytes were received.
    ///
    /// Calls [`Conn::transmit`] only if there may be something to send, or the interest in events
    /// must change.
    pub(crate) fn on_poll(&mut self, services: &mut Services) -> bool {
        if !self.stream.is_open() || self.lost_sending.is_some() {
            return self.on_readable(services);
        }
        let moved = self.receive(services);
        let quiet = self.interest == Interest { read: self.wants_reads(), write: false }
            && if moved { self.stream.awaits_doorbell() } else { self.stream.has_nothing_due() };
        if !quiet || !self.stream.is_open() {
            self.transmit(services);
        }
        moved
    }

    /// Returns whether the connection needs readable events. If it cannot read, these events would
    /// wake the active poller repeatedly for nothing.
    fn wants_reads(&self) -> bool {
        self.stream.accepts_bytes() && !self.starved.is_some_and(UnreadSocket::waits_for_timer)
    }

    /// Sets the events for which the stack wakes the shard. Makes a system call only if they
    /// change.
    fn set_interest(&mut self, read: bool, write: bool) -> io::Result<()> {
        let interest = Interest { read, write };
        if interest != self.interest {
            if self.out_of_set {
                // `on_event_set_reentry` sends again, which sets the interest.
                self.stack_request = StackRequest::Adopt;
                return Ok(());
            }
            self.socket.set_interest(interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Removes the socket from the event set. If the stack does not support this, it has no
    /// descriptor on which a thread sleeps, so a hang-up wakes no thread.
    fn leave_event_set(&mut self) {
        self.out_of_set = self.socket.detach().is_ok();
    }

    /// Handles the result of adding the socket to the event set again. It has the same interest as
    /// when it was removed.
    pub(crate) fn on_event_set_reentry(
        &mut self,
        entered: io::Result<()>,
        services: &mut Services,
    ) {
        match entered {
            Ok(()) => {
                self.out_of_set = false;
                self.transmit(services);
            }
            Err(error) => self.on_lost(&error, services),
        }
    }

    /// Returns the time when [`Conn::on_timer`] is due.
    fn deadline(&self) -> Time {
        self.stream.poll_timeout().min(self.retry).min(self.liveness.check).min(self.held_until)
    }

    /// Sets the timer for the deadline, unless an earlier one is set.
    pub(crate) fn enter_timer(&mut self, services: &mut Services) {
        let at = self.deadline();
        if at < self.timer_at {
            self.cancel_timer(services);
            self.timer_at = at;
            services.timers.add(at, self.token);
        }
    }

    /// Removes the timer, before the connection leaves the shard or its timer changes.
    pub(crate) fn cancel_timer(&mut self, services: &mut Services) {
        if self.timer_at != Time::NEVER {
            services.timers.cancel(std::mem::replace(&mut self.timer_at, Time::NEVER), self.token);
        }
    }

    /// Handles a timer of this connection that has expired.
    pub(crate) fn on_timer(&mut self, services: &mut Services) {
        self.timer_at = Time::NEVER;
        let now = services.now;
        if self.retry <= now {
            self.retry = Time::NEVER;
            if self.stream.is_connecting() {
                self.stack_request = StackRequest::Reconnect;
            } else {
                self.on_readable(services);
            }
        }
        if self.liveness.check <= now {
            self.check_peer(services);
        }
        if self.held_until <= now {
            self.on_overdue_ack(services);
        }
        if self.stream.poll_timeout() <= now {
            let was_stalled = self.stream.is_stalled();
            self.with_stream(services, |stream, host, now| stream.handle_timeout(host, now));
            if was_stalled && self.stream.accepts_bytes() {
                // The message that waited for a receive was discarded. Now the bytes after it can
                // be handled, from `partial` and the socket.
                self.on_readable(services);
            } else {
                self.serve_sends(services);
            }
        }
    }

    /// Checks whether the peer still acknowledges, and ends the transport if it does not.
    fn check_peer(&mut self, services: &mut Services) {
        let dead_after = self.dead_after.filter(|_| self.stream.is_open());
        let Some(dead_after) = dead_after else {
            self.liveness = Liveness::IDLE;
            return;
        };
        if self.liveness.is_dead(&self.socket.info(), dead_after, services.now) {
            self.on_lost(&io::ErrorKind::TimedOut.into(), services);
        }
    }

    /// Removes the socket from the shard's event set, before the connection moves to another shard.
    pub(crate) fn leave_shard(&mut self, services: &mut Services) -> io::Result<()> {
        self.socket.detach()?;
        if let Some(buffer) = self.stream.take_buffer() {
            services.pool.give(buffer);
        }
        Ok(())
    }

    /// Sets the token of the shard to which the connection has moved.
    pub(crate) fn enter_shard(&mut self, token: Token, services: &Services) {
        self.token = token;
        self.location.set(Some(token));
        self.state.enter_shard(token, &services.counters);
    }

    /// Returns whether the connection can move to another shard now. It must be established and
    /// open, with its socket in the event set.
    pub(crate) fn may_move(&self) -> bool {
        let undisturbed = self.lost_sending.is_none() && self.starved.is_none() && !self.eof;
        let in_set = !self.out_of_set && self.stack_request == StackRequest::Nothing;
        self.qp.is_some()
            && self.stream.is_established()
            && self.stream.is_open()
            && undisturbed
            && in_set
    }

    /// Begins the move of an established connection that has left its shard.
    ///
    /// Until [`Conn::end_move`], posts ring no doorbell. After it, [`Conn::on_moved`] serves all
    /// requests posted meanwhile.
    pub(crate) fn begin_move(&mut self) {
        self.location.begin_move();
        self.stop_waiting();
        if let Some(qp) = &self.qp {
            qp.conn.begin_move();
        }
    }

    /// Ends the move of an established connection: it belongs to the shard of `token` now.
    pub(crate) fn end_move(&mut self, token: Token, services: &Services) {
        let from = self.token;
        self.enter_shard(token, services);
        if let Some(qp) = &self.qp {
            qp.conn_moved(from, token);
        }
    }

    /// Serves requests that were posted, and reads bytes that arrived, during a move.
    pub(crate) fn on_moved(&mut self, services: &mut Services) {
        self.stream.doorbell();
        self.on_readable(services);
    }

    /// Removes this connection from the connections that wait for a receive of its queue.
    fn stop_waiting(&self) {
        match self.qp.as_ref().map(|qp| &qp.rq) {
            Some(RecvSource::Own(rq)) => rq.lock().stop_waiting(self.token),
            Some(RecvSource::Shared(srq)) => srq.stop_waiting(self.token),
            None => {}
        }
    }

    /// Releases buffers, budget and registrations of a connection that is being removed.
    pub(crate) fn give_back(&mut self, services: &mut Services) {
        if self.stream.is_reset() {
            self.socket.abort();
        }
        services.shared.budget.count(self.counted, HeldBytes::default());
        self.counted = HeldBytes::default();
        self.drop_partial(services);
        if let Some(buffer) = self.stream.take_buffer() {
            services.pool.give(buffer);
        }
        services.table.release(self.stream.sink());
        services.counters.close(&self.state.counters, self.was_open);
        self.address_entry = None;
        // The connection is dropped later, and the listener may accept others before that.
        self.half_open = None;
    }

    /// Registers the addresses of the connection with the device, after TCP has connected.
    pub(crate) fn register_addresses(&mut self, shared: &Arc<Shared>) {
        self.address_entry =
            AddressEntry::new(shared, self.socket.local_addr(), self.socket.peer_addr());
    }
}
