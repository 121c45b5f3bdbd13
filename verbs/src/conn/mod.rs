//! One connection: a stream (`uiw_stream::RdmapStream`), the socket that carries its bytes, and the queue pair that it serves.

mod control;
mod events;
mod held_receives;
mod host;
mod liveness;
mod partial;
mod receive;
mod transmit;

pub(crate) use host::{HostState, QpHost};

use crate::cm::{CmSide, HalfOpen};
use crate::driver::{HeldBytes, OwnEnd, Services, Shared};
use crate::options::ConnConfig;
use crate::qp::{ConnLocation, QpInner, RecvSource};
use liveness::{Liveness, Verdict};
use partial::PartialFpdu;
use receive::UnreadSocket;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::Qpn;
use uiw_llp::{Event, Interest, Token};
use uiw_mem::Span;
use uiw_stream::{RdmapStream, Time};

/// Result of [`Conn::on_doorbell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    Served,
    /// [`Conn::on_doorbell_with_clock`] is due, at the time as it is now.
    NeedsClock,
}

/// Action that a connection needs of its stack, which only the shard can call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StackRequest {
    #[default]
    Nothing,
    /// A new connection of TCP: for the fall-back to revision 1, or after a refusal.
    Reconnect,
    /// The socket is to enter the event set again.
    Adopt,
}

pub(crate) struct Conn {
    pub(crate) token: Token,
    /// The token, for handles of the connection.
    pub(crate) location: Arc<ConnLocation>,
    pub(crate) socket: Box<dyn uiw_llp::TransportStream>,
    pub(crate) stream: RdmapStream<Span>,
    pub(crate) options: Arc<ConnConfig>,
    pub(crate) cm: CmSide,
    pub(crate) qp: Option<Arc<QpInner>>,
    state: HostState,
    partial: PartialFpdu,
    /// Page offset at which the kernel is expected to hold the next byte of the stream. It starts a page when everything before
    /// was read.
    page_offset: usize,
    /// Bytes counted against the receive memory budget.
    counted: HeldBytes,
    /// Time when the kept FPDU began.
    partial_since: Time,
    /// Time of the last bytes while a long message is incomplete.
    message_at: Time,
    /// Set while the socket is not read, as the receive memory budget is short.
    starved: Option<UnreadSocket>,
    /// The stack reports the socket as readable once a whole FPDU has come.
    reads_whole: bool,
    /// The socket may have memory to peek at: so until it has said otherwise.
    has_peek: bool,
    /// The peer's FIN was read while a Send waits for a receive: it counts behind what is kept.
    eof: bool,
    /// Earliest entry of this connection among the timers: a deadline that moves later needs no entry of its own, so that the heap
    /// does not grow with what a peer does.
    entry: Time,
    /// Deadline after which held completions are reported without an acknowledgement.
    held_until: Time,
    /// The deadline has passed, and TCP has not taken the acknowledgement since.
    ack_overdue: bool,
    /// Time of a retry: while TCP connects, the attempt that was refused; later, the read that the receive memory budget prevented.
    retry: Time,
    /// See [`uiw_llp::TransportConfig::dead_after`].
    dead_after: Option<Duration>,
    liveness: Liveness,
    /// Set once the socket takes nothing any more: what the peer sent before is read first, then the transport is lost with this error.
    lost_sending: Option<io::Error>,
    /// Time until which a Send that came before the loss may wait for a receive.
    lost_until: Time,
    /// The time-out by which the transport was given up.
    silent_for: Option<Duration>,
    /// The error of TLS for which the transport was lost.
    tls_error: Option<(io::ErrorKind, String)>,
    /// Counted by the listener during start-up.
    pub(crate) half_open: Option<HalfOpen>,
    /// Addresses among those of the device, from the connection of TCP on.
    ends: Option<OwnEnd>,
    /// Full Operation has begun.
    was_open: bool,
    /// Carried out when the connection has been served.
    pub(crate) stack_request: StackRequest,
    /// The local address that the application asked for.
    pub(crate) asked_local: Option<SocketAddr>,
    /// The number of an event of its own that says that TCP is connected.
    pub(crate) connected_note: Option<u64>,
    /// Time of the first refusal by TCP, and length of the next pause.
    refused: Option<(Time, Duration)>,
    interest: Interest,
    /// The socket was removed from the event set, as a hang-up would be reported with every poll. It enters the set again when the
    /// interest changes.
    out_of_set: bool,
    pub(crate) span: tracing::Span,
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
        let (peer, qp) = (uiw_llp::canonical(socket.peer_addr()), tracing::field::Empty);
        // Its lines name the connection at every level of the log.
        let span = tracing::error_span!("connection", %peer, qp, id = cm.id.0, initiator);
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
            entry: Time::NEVER,
            held_until: Time::NEVER,
            ack_overdue: false,
            retry: Time::NEVER,
            liveness: Liveness::IDLE,
            lost_sending: None,
            lost_until: Time::NEVER,
            silent_for: None,
            tls_error: None,
            half_open: None,
            ends: None,
            was_open: false,
            stack_request: StackRequest::Nothing,
            asked_local: None,
            connected_note: None,
            refused: None,
            interest: Interest { read: true, write: initiator },
            out_of_set: false,
            span,
        }
    }

    /// Gives the connection its queue pair.
    pub(crate) fn set_qp(&mut self, qp: &Arc<QpInner>) {
        self.span.record("qp", tracing::field::display(Qpn::from_raw(qp.num)));
        self.qp = Some(Arc::clone(qp));
    }

    /// Calls the stream with its host, and takes the events that follow.
    #[inline]
    fn with_stream<R>(
        &mut self,
        services: &mut Services,
        call: impl FnOnce(&mut RdmapStream<Span>, &mut QpHost<'_>, Time) -> R,
    ) -> R {
        let mut host = QpHost::new(self.qp.as_deref(), &mut self.state, &services.table, &mut services.wakes);
        let result = call(&mut self.stream, &mut host, services.now);
        drop(host);
        self.take_events(services);
        result
    }

    /// Returns whether the stream is past start-up: the driver may read it without asking the stack first.
    pub(crate) fn is_established(&self) -> bool {
        self.stream.is_established()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stream.is_over()
    }

    /// Returns the time when the FPDU began that the peer has sent a part of and is silent since; `None` where nothing is kept, or the peer is not to
    /// blame, as a Send waits for a receive or the socket is not read.
    pub(crate) fn partial_since(&self) -> Option<Time> {
        let waits = self.starved.is_none() && !self.stream.is_stalled();
        (self.counted.held > 0 && self.stream.is_open() && waits).then_some(self.partial_since)
    }

    /// Since when the peer is silent inside a message that is longer than its receive; `None` as for [`Conn::partial_since`].
    pub(crate) fn silent_in_message(&self) -> Option<Time> {
        let waits = self.starved.is_none() && !self.stream.is_stalled();
        (self.state.has_long_message() && self.stream.is_open() && waits).then_some(self.message_at)
    }

    /// Returns whether the queue pair is gone while its peer still waits for answers.
    pub(crate) fn is_draining(&self) -> bool {
        self.stream.is_draining()
    }

    /// Requests were posted, or a receive for a stalled stream. The time may be that of an earlier round: no deadline is set by it.
    pub(crate) fn on_doorbell(&mut self, services: &mut Services) -> Doorbell {
        self.stream.doorbell();
        if self.stream.is_stalled() {
            return Doorbell::NeedsClock;
        }
        let was_open = self.stream.is_open();
        self.serve_sends(services);
        let has_ended = was_open && !self.stream.is_open();
        if has_ended || self.lost_sending.is_some() { Doorbell::NeedsClock } else { Doorbell::Served }
    }

    /// The rest of [`Conn::on_doorbell`]: a stalled stream goes on, one that a request has ended gets its time to close, and one that
    /// cannot send is read to its end.
    #[cold]
    pub(crate) fn on_doorbell_with_clock(&mut self, services: &mut Services) {
        if self.stream.is_stalled() || self.lost_sending.is_some() {
            self.on_readable(services);
        } else {
            self.stream.renew_close_deadline(services.now);
        }
    }

    pub(crate) fn serve_sends(&mut self, services: &mut Services) {
        if self.is_established() {
            self.transmit(services);
        }
    }

    pub(crate) fn on_event(&mut self, event: Event, services: &mut Services) {
        if self.stream.is_connecting() {
            return self.on_connect_event(services);
        }
        if event.readable && !self.interest.read && !self.is_closing() {
            // Readability was not requested: the stack reports a hang-up, or the event was listed before the interest changed.
            return self.read_ahead(services);
        }
        if event.readable && !event.writable {
            // What was posted has a doorbell of its own.
            self.on_poll(services);
        } else if event.readable || !self.stream.is_open() {
            self.on_readable(services);
        } else {
            self.transmit(services);
        }
    }

    /// Returns whether what comes is read and discarded.
    fn is_closing(&self) -> bool {
        self.is_established() && !self.stream.is_open()
    }

    /// The socket takes nothing any more. What the peer sent before it closed or reset the connection may wait in the socket: Sends, the
    /// acknowledgement of ours, or the Terminate with the reason.
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

    /// Completes [`Conn::on_lost_sending`]: the transport is lost once nothing more is read. A Send that waits for a receive is kept for
    /// [`ConnConfig::close_timeout`].
    #[cold]
    fn end_lost_sending(&mut self, moved: bool, services: &mut Services) {
        if moved {
            self.lost_until = services.now.after(self.options.close_timeout);
            self.retry = services.now;
        } else if self.stream.is_stalled() && services.now < self.lost_until {
            self.retry = self.lost_until;
        } else if let Some(error) = self.lost_sending.take() {
            self.on_lost(&error, services);
        }
    }

    /// The transport is lost.
    pub(super) fn on_lost(&mut self, error: &io::Error, services: &mut Services) {
        if error.kind() == io::ErrorKind::ConnectionReset && self.stream.may_fall_back(self.partial.len()) {
            return self.on_eof(self.partial.len(), services);
        }
        if self.stream.is_starting() {
            return self.fail_startup(self.startup_lost_error(error), services);
        }
        tracing::debug!(parent: &self.span, %error, "the transport is lost");
        // An error of TLS says more than that the connection is gone: the end of the stream is logged with it.
        self.tls_error = error.get_ref().map(|cause| (error.kind(), cause.to_string()));
        if error.kind() == io::ErrorKind::TimedOut {
            // Only this time-out is set in the stack.
            self.silent_for = self.dead_after;
        }
        self.with_stream(services, |stream, host, now| stream.handle_lost(host, now));
    }

    /// Receives, then sends. True when bytes moved.
    pub(crate) fn on_readable(&mut self, services: &mut Services) -> bool {
        let moved = self.receive(services);
        self.transmit(services);
        if self.lost_sending.is_some() {
            self.end_lost_sending(moved, services);
        }
        moved
    }

    /// Reads though nothing was posted, and the stack did not report room: sends only if something came or waits. True when bytes moved.
    pub(crate) fn on_poll(&mut self, services: &mut Services) -> bool {
        if !self.stream.is_open() || self.lost_sending.is_some() {
            return self.on_readable(services);
        }
        let moved = self.receive(services);
        let quiet = self.interest == Interest { read: self.reads(), write: false }
            && if moved { self.stream.awaits_doorbell() } else { self.stream.has_nothing_due() };
        if !quiet || !self.stream.is_open() {
            self.transmit(services);
        }
        moved
    }

    /// Returns whether news of the socket can be used. Otherwise an interest in it would wake the active poller repeatedly.
    fn reads(&self) -> bool {
        self.stream.accepts_bytes() && !self.starved.is_some_and(UnreadSocket::is_deaf)
    }

    /// Sets the stack's interest for wake-ups; a system call only on change.
    fn want(&mut self, read: bool, write: bool) -> io::Result<()> {
        let interest = Interest { read, write };
        if interest != self.interest {
            if self.out_of_set {
                // Then it is set: see `reentered`.
                self.stack_request = StackRequest::Adopt;
                return Ok(());
            }
            self.socket.set_interest(interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Removes the socket from the event set. A stack that cannot do it has no descriptor that is slept on.
    fn leave_set(&mut self) {
        self.out_of_set = self.socket.detach().is_ok();
    }

    /// The socket is in the event set again, with the interest that it left with.
    pub(crate) fn reentered(&mut self, entered: io::Result<()>, services: &mut Services) {
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

    /// Sees to it that the deadline has an entry among the timers.
    pub(crate) fn enter_timer(&mut self, services: &mut Services) {
        let at = self.deadline();
        if at < self.entry {
            self.entry = at;
            services.timers.add(at, self.token);
        }
    }

    /// An entry of this connection has come up.
    pub(crate) fn on_timer(&mut self, services: &mut Services) {
        self.entry = Time::NEVER;
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
                // The message that waited for a receive is discarded: what came behind it is kept, or in the socket.
                self.on_readable(services);
            } else {
                self.serve_sends(services);
            }
        }
    }

    /// Gives up a peer that acknowledges nothing any more.
    fn check_peer(&mut self, services: &mut Services) {
        let dead_after = self.dead_after.filter(|_| self.stream.is_open());
        let Some(dead_after) = dead_after else {
            self.liveness = Liveness::IDLE;
            return;
        };
        if self.liveness.on_check(&self.socket.info(), dead_after, services.now) == Verdict::Dead {
            self.on_lost(&io::ErrorKind::TimedOut.into(), services);
        }
    }

    /// Leaves its shard, for another one: the socket leaves the event set.
    pub(crate) fn leave_shard(&mut self, services: &mut Services) -> io::Result<()> {
        self.socket.detach()?;
        if let Some(buffer) = self.stream.take_buffer() {
            services.pool.give(buffer);
        }
        Ok(())
    }

    /// Has entered another shard.
    pub(crate) fn enter_shard(&mut self, token: Token, services: &Services) {
        self.token = token;
        self.location.set(Some(token));
        self.state.enter_shard(token, &services.counters);
        self.entry = Time::NEVER;
    }

    /// Returns whether the established connection may move to another shard now: it is open, and its socket is in the event set.
    pub(crate) fn may_move(&self) -> bool {
        let undisturbed = self.lost_sending.is_none() && self.starved.is_none() && !self.eof;
        let in_set = !self.out_of_set && self.stack_request == StackRequest::Nothing;
        self.qp.is_some() && self.is_established() && self.stream.is_open() && undisturbed && in_set
    }

    /// Has left its shard as an established connection. Posts ring no doorbell until [`Conn::end_move`], after which everything that
    /// was posted is served.
    pub(crate) fn begin_move(&mut self) {
        self.location.begin_move();
        self.stop_waiting();
        if let Some(qp) = &self.qp {
            qp.conn.begin_move();
        }
    }

    /// Has entered another shard as an established connection.
    pub(crate) fn end_move(&mut self, token: Token, services: &Services) {
        let from = self.token;
        self.enter_shard(token, services);
        if let Some(qp) = &self.qp {
            qp.conn_moved(from, token);
        }
    }

    /// Serves what was posted and has arrived during a move.
    pub(crate) fn on_moved(&mut self, services: &mut Services) {
        self.stream.doorbell();
        self.on_readable(services);
    }

    /// Does not wait for a receive any more.
    fn stop_waiting(&self) {
        match self.qp.as_ref().map(|qp| &qp.rq) {
            Some(RecvSource::Own(rq)) => rq.lock().waiting.retain(|token| *token != self.token),
            Some(RecvSource::Shared(srq)) => srq.forget(self.token),
            None => {}
        }
    }

    /// The connection is removed: what it held goes back.
    pub(crate) fn give_back(&mut self, services: &mut Services) {
        if self.stream.is_reset() {
            self.socket.abort();
        }
        services.shared.budget.count(self.counted, HeldBytes::default());
        self.counted = HeldBytes::default();
        services.pool.give(self.partial.replace_buffer(Vec::new()));
        if let Some(buffer) = self.stream.take_buffer() {
            services.pool.give(buffer);
        }
        services.table.release(self.stream.sink());
        services.counters.close(&self.state.counters, self.was_open);
        self.ends = None;
    }

    /// TCP is connected.
    pub(crate) fn note_ends(&mut self, shared: &Arc<Shared>) {
        // Those of an earlier connection of TCP.
        self.ends = None;
        self.ends = OwnEnd::new(shared, self.socket.local_addr(), self.socket.peer_addr());
    }
}
