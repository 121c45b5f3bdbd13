//! State protected by a shard's lock: the stack, the connections and their timers.

use crate::cm::{ListenerSlot, SidrSlot};
use crate::conn::{Conn, StackRequest};
use crate::driver::closed::ClosedStack;
use crate::driver::services::{STAGING_LEN, Services};
use crate::driver::token::{generation_of, key_of, token};
use crate::driver::{Driver, Pool, SHARD_SHIFT, Shard, Shared, Timers};
use crate::error::Error;
use crate::notify::Wakes;
use crate::ud::{self, Endpoint, PortSlot};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use uiw_llp::{Event, Token, TransportStack};
use uiw_stream::{BatchLength, Time};

/// Maximum number of connections and datagram sockets that a round reads directly. With more of
/// them it polls the stack for the ready ones.
const DIRECT_STREAMS: usize = 4;
/// Number of rounds per poll of the stack with few connections, for listeners, connection
/// attempts and hang-ups.
const POLL_STACK_EVERY: u32 = 32;
/// Number of reads, and of send batches, that the only connection of a shard gets per round.
const TURN_ALONE: usize = 4;
/// Number of reads, and of send batches, that each connection gets per round if there are several.
const TURN: usize = 1;
/// Maximum number of connections that may send batches of medium length.
const MEDIUM_BATCHES: usize = 8;
/// Approximate number of bytes after which a round ends, so that the application can run.
pub(crate) const ROUND_BYTES: usize = 2 << 20;

/// Minimum number of removed slots that count as a bulk disconnect, whether they were removed at
/// once or one after the other.
const BULK_DISCONNECT: usize = 32;

/// Object of a shard that a [`Token`] names.
pub(crate) enum Slot {
    Listener(ListenerSlot),
    Conn(Box<Conn>),
    DatagramPort(Box<PortSlot>),
    /// UDP socket of the datagram port that has this token.
    DatagramSocket(Token),
    /// UD queue pair.
    Endpoint(Box<Endpoint>),
    /// Responder or requester of SIDR (service ID resolution) messages.
    Sidr(Box<SidrSlot>),
}

impl Slot {
    /// Returns whether serving the slot needs the current time; datagrams do not.
    fn is_timed(&self) -> bool {
        !matches!(self, Self::DatagramPort(_) | Self::DatagramSocket(_) | Self::Endpoint(_))
    }
}

/// Stack, connections and timers of one shard, protected by the shard's lock.
pub(crate) struct Core {
    pub(crate) stack: Box<dyn TransportStack>,
    pub(crate) services: Services,
    /// Instant that [`Time`] counts from. It is the same in all shards of a device.
    base: Instant,
    /// Number of this shard.
    pub(super) index: usize,
    /// Slots with their generations.
    pub(super) slots: Slab<(u32, Slot)>,
    /// Generation of the last token that was handed out.
    generation: u32,
    /// Connections in Full Operation. They are read directly, without polling the stack, if there
    /// are few ([`DIRECT_STREAMS`]).
    pub(super) established: Vec<Token>,
    /// Datagram sockets, which are read directly as well.
    pub(crate) datagram_sockets: Vec<Token>,
    /// Number of slots that need the current time ([`Slot::is_timed`]).
    timed: usize,
    /// Events of the stack that no round has served yet.
    events: VecDeque<Event>,
    /// Buffer for the events of one poll of the stack.
    polled: Vec<Event>,
    /// Connections and UD queue pairs whose doorbell was rung and not served yet.
    pub(super) ready: VecDeque<Token>,
    /// Earliest time of the next search for connections to end in order to relieve the receive
    /// memory budget.
    pub(super) next_relief: Time,
    /// Index in `established` of the connection that the next round reads first.
    next_direct: usize,
    /// Deadlines of the connections and of the stack that were last passed to `State::set_timer`.
    published_deadline: (Time, Option<Instant>),
    /// Number of rounds so far (wrapping).
    rounds: u32,
    /// Id of the thread that has polled last; 0 before the first poll.
    poller: usize,
    /// Number of slots removed since the last bulk disconnect was reported.
    removed: usize,
    /// True if at least [`BULK_DISCONNECT`] slots were removed and few remain. Reported when the
    /// lock is released.
    pub(crate) bulk_disconnect: bool,
    /// Connections that have ended. They are dropped after unlocking, because their destructors may
    /// run user code or take this lock.
    #[expect(clippy::vec_box, reason = "connections live boxed in their slots")]
    pub(crate) trash: Vec<Box<Conn>>,
}

impl Core {
    pub(crate) fn new(
        stack: Box<dyn TransportStack>,
        index: usize,
        base: Instant,
        driver: Weak<Driver>,
        shared: &Arc<Shared>,
    ) -> Self {
        let services = Services {
            driver,
            shared: Arc::clone(shared),
            table: Arc::clone(&shared.table),
            now: Time::default(),
            timers: Timers::default(),
            wakes: Wakes::default(),
            pool: Pool::default(),
            received: Vec::new(),
            counters: shared.counters.shard(index),
            staging: vec![vec![0; STAGING_LEN]],
            turn: TURN_ALONE,
            longest_batch: BatchLength::Long,
            moved: 0,
            datagrams: None,
            is_short: false,
        };
        Self {
            base,
            index,
            stack,
            services,
            slots: Slab::new(),
            generation: 0,
            established: Vec::new(),
            datagram_sockets: Vec::new(),
            timed: 0,
            events: VecDeque::new(),
            polled: Vec::new(),
            ready: VecDeque::new(),
            next_relief: Time::default(),
            next_direct: 0,
            published_deadline: (Time::NEVER, None),
            rounds: 0,
            poller: 0,
            removed: 0,
            bulk_disconnect: false,
            trash: Vec::new(),
        }
    }

    /// Reads the clock into `services.now`. Called once per round, and once per call of the control
    /// path.
    pub(crate) fn read_clock(&mut self) {
        let since = self.stack.now().saturating_duration_since(self.base);
        self.services.now =
            Time::from_nanos(since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos()));
    }

    fn instant(&self, at: Time) -> Instant {
        self.base + Duration::from_nanos(at.as_nanos())
    }

    /// Returns a new token for a slot, which no later slot with the same key gets. The slot is
    /// inserted with [`Core::fill_slot`] before any other one.
    pub(crate) fn next_token(&mut self) -> Token {
        self.generation = self.generation.wrapping_add(1);
        let key = self.slots.vacant_key();
        assert!(key < 1 << SHARD_SHIFT, "more slots than a token can name");
        token(key, self.index, self.generation)
    }

    /// Inserts the slot of a token that [`Core::next_token`] has just returned.
    pub(crate) fn fill_slot(&mut self, token: Token, slot: Slot) {
        self.timed += usize::from(slot.is_timed());
        let key = self.slots.insert((generation_of(token), slot));
        debug_assert_eq!(key, key_of(token), "no slot was filled in between");
    }

    fn slot(&mut self, token: Token) -> Option<&mut Slot> {
        self.slot_and_services(token).map(|(slot, _)| slot)
    }

    #[inline]
    fn slot_and_services(&mut self, token: Token) -> Option<(&mut Slot, &mut Services)> {
        let (generation, slot) = self.slots.get_mut(key_of(token))?;
        (*generation == generation_of(token)).then_some((slot, &mut self.services))
    }

    pub(crate) fn listener(&mut self, token: Token) -> Option<&mut ListenerSlot> {
        match self.slot(token)? {
            Slot::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns a SIDR responder or requester, with the services.
    pub(crate) fn sidr(&mut self, token: Token) -> Option<(&mut SidrSlot, &mut Services)> {
        match self.slot_and_services(token)? {
            (Slot::Sidr(slot), services) => Some((slot, services)),
            _ => None,
        }
    }

    pub(crate) fn datagram_port(&mut self, token: Token) -> Option<&mut PortSlot> {
        self.port_and_services(token).map(|(port, _)| port)
    }

    /// Returns a datagram port, with the services.
    pub(crate) fn port_and_services(
        &mut self,
        token: Token,
    ) -> Option<(&mut PortSlot, &mut Services)> {
        match self.slot_and_services(token)? {
            (Slot::DatagramPort(port), services) => Some((port, services)),
            _ => None,
        }
    }

    pub(crate) fn endpoint(&mut self, token: Token) -> Option<&mut Endpoint> {
        match self.slot(token)? {
            Slot::Endpoint(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    /// Returns a UD queue pair and its port, with the services.
    pub(crate) fn endpoint_and_port(
        &mut self,
        token: Token,
    ) -> Option<(&mut Endpoint, &mut PortSlot, &mut Services)> {
        let port = self.endpoint(token)?.port;
        match self.slots.get2_mut(key_of(token), key_of(port))? {
            // The port's generation needs no check, because a port outlives its queue pairs.
            ((_, Slot::Endpoint(endpoint)), (_, Slot::DatagramPort(port))) => {
                Some((endpoint, port, &mut self.services))
            }
            _ => None,
        }
    }

    /// Returns the time of the next round even if nothing arrives: the earliest deadline of the
    /// connections and of the stack's own timers.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = self.services.timers.next();
        let ours = (next != Time::NEVER).then(|| self.instant(next));
        [ours, self.stack.deadline()].into_iter().flatten().min()
    }

    /// Like [`Core::deadline`], but returns `None` if the deadline has not changed since the last
    /// call.
    #[inline]
    pub(crate) fn new_deadline(&mut self) -> Option<Option<Instant>> {
        let next = (self.services.timers.next(), self.stack.deadline());
        (std::mem::replace(&mut self.published_deadline, next) != next).then(|| self.deadline())
    }

    /// Returns whether unlocking requires no further work: no wake-up, connection to drop, bulk
    /// disconnect or new deadline.
    #[inline]
    pub(crate) fn has_nothing_to_release(&mut self) -> bool {
        self.services.wakes.is_empty()
            && self.trash.is_empty()
            && !self.bulk_disconnect
            && self.published_deadline == (self.services.timers.next(), self.stack.deadline())
    }

    /// Returns whether `token` names a connection that has completed its start-up.
    pub(crate) fn is_established(&mut self, token: Token) -> bool {
        matches!(self.slot(token), Some(Slot::Conn(conn)) if conn.stream.is_established())
    }

    /// Returns the connection of `token`; `None` if the slot is not a connection, or was removed.
    pub(crate) fn conn(&mut self, token: Token) -> Option<&Conn> {
        match self.slot(token)? {
            Slot::Conn(conn) => Some(conn),
            _ => None,
        }
    }

    /// Returns the tokens of the connections for which `predicate` returns true.
    pub(crate) fn conns(&self, predicate: impl Fn(&Conn) -> bool) -> Vec<Token> {
        let found = self.slots.iter().filter_map(|(key, (generation, slot))| match slot {
            Slot::Conn(conn) if predicate(conn) => Some(token(key, self.index, *generation)),
            _ => None,
        });
        found.collect()
    }

    /// Removes a slot, and releases memory if most slots were removed.
    pub(crate) fn remove(&mut self, token: Token) -> Option<Slot> {
        self.slot(token)?;
        let (_, mut slot) = self.slots.remove(key_of(token));
        self.timed -= usize::from(slot.is_timed());
        if let Slot::Conn(conn) = &mut slot {
            conn.cancel_timer(&mut self.services);
        }
        if let Some(at) = self.established.iter().position(|t| *t == token) {
            self.established.swap_remove(at);
        }
        self.services.pool.keep(self.established.len());
        let left = self.slots.len();
        self.removed += 1;
        if self.removed >= BULK_DISCONNECT && left * 8 <= self.removed {
            self.removed = 0;
            self.bulk_disconnect = true;
        }
        // Shrinking visits all slots, so it happens only at powers of two.
        if left.is_power_of_two() && left * 8 <= self.slots.capacity() {
            self.slots.shrink_to_fit();
            self.established.shrink_to(2 * left);
        }
        Some(slot)
    }

    /// Runs `serve` on a connection. Returns `None` if `token` names no connection.
    ///
    /// Afterwards this makes the stack call that the connection requested, and either updates the
    /// connection's timer or removes the connection if it has ended.
    pub(crate) fn with_conn<R>(
        &mut self,
        token: Token,
        serve: impl FnOnce(&mut Conn, &mut Services) -> R,
    ) -> Option<R> {
        let (generation, slot) = self.slots.get_mut(key_of(token))?;
        if *generation != generation_of(token) {
            return None;
        }
        let Slot::Conn(conn) = slot else { return None };
        let services = &mut self.services;
        let was_established = conn.stream.is_established();
        let result = serve(conn, services);
        if conn.stack_request != StackRequest::Nothing && !conn.stream.is_over() {
            serve_stack_request(&mut *self.stack, conn, services);
        }
        if conn.stream.is_over() {
            conn.give_back(services);
            if let Some(Slot::Conn(conn)) = self.remove(token) {
                self.trash.push(conn);
            }
        } else {
            conn.enter_timer(services);
            if !was_established && conn.stream.is_established() {
                self.established.push(token);
            }
        }
        Some(result)
    }

    /// Records the id of the thread that polls this shard. Returns whether another thread has
    /// polled since the last poll of this one.
    #[inline]
    pub(super) fn record_poller(&mut self, thread: usize) -> bool {
        let before = std::mem::replace(&mut self.poller, thread);
        before != thread && before != 0
    }

    /// Serves a connection or UD queue pair that has new requests.
    ///
    /// `services.now` may be old, because the last round may be long ago. The clock is read only if
    /// a deadline depends on it, not for every post.
    pub(crate) fn serve(&mut self, token: Token) {
        match self.with_conn(token, Conn::on_doorbell) {
            Some(true) => {
                self.read_clock();
                self.with_conn(token, Conn::on_doorbell_with_clock);
            }
            Some(false) => {}
            None => ud::transmit(self, token),
        }
    }

    /// Takes a connection out of this shard, for [`Core::adopt`] of another shard. Returns `None`
    /// if the connection has ended or its socket cannot leave the stack.
    pub(crate) fn take_conn(&mut self, token: Token) -> Option<Box<Conn>> {
        self.with_conn(token, Conn::leave_shard)?.ok()?;
        match self.remove(token)? {
            Slot::Conn(conn) => Some(conn),
            _ => None,
        }
    }

    /// Takes over a connection of another shard and returns its new token.
    ///
    /// If the stack refuses the socket, the connection is aborted and returned. The caller drops it
    /// after unlocking.
    pub(crate) fn adopt(&mut self, mut conn: Box<Conn>) -> Result<Token, Box<Conn>> {
        let token = self.next_token();
        if let Err(error) = self.stack.adopt(&mut conn.socket, token) {
            let peer = conn.peer();
            tracing::warn!(%peer, %error, "the connection cannot move to its queue pair's shard");
            conn.socket.abort();
            conn.give_back(&mut self.services);
            return Err(conn);
        }
        conn.enter_shard(token, &self.services);
        self.fill_slot(token, Slot::Conn(conn));
        Ok(token)
    }

    /// Takes out everything that holds a socket or an address. The caller drops it after unlocking.
    pub(super) fn close(&mut self) -> impl Sized + use<> {
        self.established.clear();
        self.datagram_sockets.clear();
        self.events.clear();
        self.ready.clear();
        let slots = std::mem::take(&mut self.slots);
        let stack = std::mem::replace(&mut self.stack, Box::new(ClosedStack));
        (slots, std::mem::take(&mut self.trash), stack)
    }

    /// Returns whether a connection whose queue pair was destroyed still has something to send.
    pub(crate) fn has_draining(&self) -> bool {
        self.slots
            .iter()
            .any(|(_, (_, slot))| matches!(slot, Slot::Conn(conn) if conn.is_draining()))
    }

    /// Returns whether the round ends, because it has moved [`ROUND_BYTES`] or `enough` returns
    /// true.
    #[inline]
    fn is_round_over(&self, enough: &dyn Fn() -> bool) -> bool {
        self.services.moved >= ROUND_BYTES || enough()
    }

    /// Serves all connections and UD queue pairs whose doorbell was rung. Returns their number.
    ///
    /// None is left for the next round, because nothing would report it again.
    #[inline]
    pub(crate) fn serve_ready(&mut self, shard: &Shard) -> usize {
        shard.take_pending(self);
        let mut count = 0;
        while let Some(token) = self.ready.pop_front() {
            self.serve(token);
            count += 1;
            shard.run_commands(self);
        }
        count
    }

    /// Returns whether anything in a round depends on the time. Shards that serve only datagrams do
    /// without reading the clock.
    fn needs_clock(&self) -> bool {
        self.timed > 0
            || self.services.timers.next() != Time::NEVER
            || self.stack.deadline().is_some()
    }

    /// Makes one round over the connections. Each connection receives before it sends, and has a
    /// budget per round. Returns the amount of work done; 0 if there was none.
    ///
    /// Ends early once `enough` returns true; the next round continues after the connection that
    /// was served last.
    pub(crate) fn pump(&mut self, shard: &Shard, enough: &dyn Fn() -> bool) -> usize {
        if self.needs_clock() {
            self.read_clock();
        }
        self.services.moved = 0;
        (self.services.turn, self.services.longest_batch) = match self.established.len() {
            0 | 1 => (TURN_ALONE, BatchLength::Long),
            2..=MEDIUM_BATCHES => (TURN, BatchLength::Medium),
            _ => (TURN, BatchLength::Usual),
        };
        let mut work = self.serve_ready(shard);
        self.rounds = self.rounds.wrapping_add(1);
        let readable = self.established.len() + self.datagram_sockets.len();
        let direct = (1..=DIRECT_STREAMS).contains(&readable);
        let polls_stack = !self.events.is_empty()
            || self.rounds.is_multiple_of(POLL_STACK_EVERY)
            || self.stack.deadline().is_some_and(|at| at <= self.instant(self.services.now));
        if direct && !polls_stack {
            work += self.poll_all(shard, enough);
        } else {
            self.poll_stack();
            work += self.serve_events(shard, enough);
        }
        work += self.serve_timers();
        let is_short = std::mem::take(&mut self.services.is_short);
        if is_short || self.services.shared.budget.is_short_of_messages() {
            self.relieve_all_shards();
        }
        work
    }

    /// Reads the established connections directly, without polling the stack first, and then the
    /// datagram sockets, until the round ends.
    fn poll_all(&mut self, shard: &Shard, enough: &dyn Fn() -> bool) -> usize {
        let mut work = 0;
        for _ in 0..self.established.len() {
            if self.next_direct >= self.established.len() {
                self.next_direct = 0;
            }
            let Some(token) = self.established.get(self.next_direct).copied() else { break };
            self.next_direct += 1;
            let moved = self.with_conn(token, Conn::on_poll).unwrap_or(false);
            work += usize::from(moved);
            shard.run_commands(self);
            if moved && self.is_round_over(enough) {
                break;
            }
        }
        work + self.poll_datagrams(shard, enough)
    }

    /// Reads the datagram sockets directly until the round ends.
    fn poll_datagrams(&mut self, shard: &Shard, enough: &dyn Fn() -> bool) -> usize {
        let mut work = 0;
        let mut next = 0;
        while let Some(socket) = self.datagram_sockets.get(next).copied()
            && !self.is_round_over(enough)
        {
            next += 1;
            if let Some(Slot::DatagramSocket(port)) = self.slot(socket) {
                let port = *port;
                work += ud::receive(self, port, socket);
                shard.run_commands(self);
            }
        }
        work
    }

    /// Polls the stack, unless events of an earlier poll are still queued. Returns the number of
    /// queued events.
    ///
    /// A second poll would report the queued events again, and the duplicates would be stale by the
    /// time they are served.
    pub(crate) fn poll_stack(&mut self) -> usize {
        if !self.events.is_empty() {
            return self.events.len();
        }
        self.polled.clear();
        if let Err(error) = self.stack.poll(&mut self.polled) {
            tracing::error!(%error, "the stack cannot be polled");
        }
        self.events.extend(&self.polled);
        self.events.len()
    }

    /// Serves queued events until none is left or the round ends. The remaining ones stay queued
    /// for the next round.
    fn serve_events(&mut self, shard: &Shard, enough: &dyn Fn() -> bool) -> usize {
        let mut count = 0;
        while let Some(event) = self.events.pop_front() {
            self.serve_event(event);
            count += 1;
            shard.run_commands(self);
            if self.is_round_over(enough) {
                break;
            }
        }
        count
    }

    fn serve_event(&mut self, event: Event) {
        match self.slot(event.token) {
            Some(Slot::Conn(_)) => {
                self.with_conn(event.token, |conn, services| conn.on_event(event, services));
            }
            Some(Slot::Listener(_)) => crate::cm::accept_waiting(self, event.token),
            Some(Slot::DatagramSocket(port)) => {
                let port = *port;
                if event.writable {
                    ud::resume(self, port, event.token);
                }
                if event.readable {
                    ud::receive(self, port, event.token);
                }
            }
            Some(Slot::Sidr(_)) => {
                if let Some((slot, services)) = self.sidr(event.token) {
                    slot.on_event(services);
                }
            }
            Some(Slot::DatagramPort(_) | Slot::Endpoint(_)) | None => {}
        }
    }

    fn serve_timers(&mut self) -> usize {
        let now = self.services.now;
        let mut count = 0;
        while let Some(token) = self.services.timers.due(now) {
            if self.with_conn(token, Conn::on_timer).is_none()
                && let Some((slot, services)) = self.sidr(token)
            {
                slot.on_timer(token, services);
            }
            count += 1;
        }
        count
    }
}

/// Makes the call to the stack that `conn` has requested.
#[cold]
fn serve_stack_request(stack: &mut dyn TransportStack, conn: &mut Conn, services: &mut Services) {
    let token = conn.token;
    match std::mem::take(&mut conn.stack_request) {
        StackRequest::Nothing => {}
        StackRequest::Reconnect => {
            let peer = conn.socket.peer_addr();
            let local = conn.reconnect_addr();
            match stack.connect(Some(local), peer, &conn.options.stream, token) {
                Ok(socket) => conn.replace_socket(socket),
                Err(source) => conn.fail_startup(Error::Lost { peer, source }, services),
            }
        }
        StackRequest::Adopt => {
            let entered = stack.adopt(&mut conn.socket, token);
            conn.on_event_set_reentry(entered, services);
        }
    }
}
