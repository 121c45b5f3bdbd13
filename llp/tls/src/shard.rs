//! The connections and listeners of one shard, and the set of those that have something to report.

use super::conn::{Conn, Scratch};
use super::shared::{Shared, StackId, write_wake};
use rustix::event::{EventfdFlags, epoll, eventfd};
use slab::Slab;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_llp::{Event, ListenConfig, Token, TransportListener, TransportStream};

/// Maximum number of connections that one poll accepts at a listener, so that others are served as
/// well.
const ACCEPTS: usize = 64;
/// Maximum number of handshakes that continue in one poll. Each takes some tenths of a millisecond.
const HANDSHAKES: usize = 8;
/// Time for a dropped connection to send its remaining bytes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Key that belongs to no slot, for connections that did not arrive at a listener.
const NO_LISTENER: usize = usize::MAX;
/// Token that belongs to no stream: see [`uiw_llp::StackExtensions::wait_fd`].
const NO_STREAM: Token = Token(u64::MAX);

pub(super) struct Shard {
    pub(super) shared: Arc<Shared>,
    stack: StackId,
    slots: Slab<(u32, ShardSlot)>,
    generation: u32,
    pub(super) scratch: Scratch,
    /// Connections that have an event although the inner stack reports none for them.
    ready: BTreeSet<usize>,
    ready_since: Instant,
    deadlines: BTreeSet<(Instant, usize)>,
    /// Connections that were dropped while they were in no event set, and that still have data to
    /// send.
    orphans: VecDeque<Box<Conn>>,
    /// Time of the last poll.
    now: Instant,
    /// Eventfd in the inner stack's epoll set, if it has one.
    wake: Option<Arc<OwnedFd>>,
    is_signalled: bool,
    /// Generation of the configuration with which connections were last checked.
    config_generation: u64,
}

enum ShardSlot {
    Conn(Box<Conn>),
    TransportListener(Box<ListenerSlot>),
    /// Datagram socket, whose events are passed on.
    Datagrams(Token),
}

struct ListenerSlot {
    inner: Box<dyn TransportListener>,
    token: Token,
    backlog: usize,
    /// Connections in their handshake with their sources (see [`source_of`]), the oldest first.
    handshakes: VecDeque<(usize, IpAddr)>,
    /// Connections whose handshake is complete, and which were not accepted yet.
    waiting: VecDeque<usize>,
    error: Option<io::Error>,
}

impl ListenerSlot {
    /// Takes the oldest handshake of the source that has the most, so that one source cannot evict
    /// the handshakes of others.
    fn take_excess_handshake(&mut self) -> Option<usize> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        for (_, source) in &self.handshakes {
            *counts.entry(*source).or_default() += 1;
        }
        let most = counts.values().max();
        let at = self.handshakes.iter().position(|(_, source)| counts.get(source) == most)?;
        self.handshakes.remove(at).map(|(conn, _)| conn)
    }
}

/// Returns the address of a peer or, for IPv6, its network: a host can use all addresses of a /64.
fn source_of(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

impl Shard {
    pub(super) fn new(
        shared: Arc<Shared>,
        stack: StackId,
        wait: Option<&OwnedFd>,
        now: Instant,
    ) -> io::Result<Self> {
        let wake = match wait {
            Some(set) => {
                let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
                let data = epoll::EventData::new_u64(NO_STREAM.0);
                // If the descriptor is not an epoll set, deadlines serve the same purpose, except
                // for requests of other threads.
                epoll::add(set, &wake, data, epoll::EventFlags::IN).is_ok().then_some(wake)
            }
            None => None,
        };
        if let Some(wake) = &wake {
            shared.add_wake(wake);
        }
        let config_generation = shared.generation();
        Ok(Self {
            shared,
            stack,
            slots: Slab::new(),
            generation: 0,
            scratch: Scratch::default(),
            ready: BTreeSet::new(),
            ready_since: now,
            deadlines: BTreeSet::new(),
            orphans: VecDeque::new(),
            now,
            wake,
            is_signalled: false,
            config_generation,
        })
    }

    /// Returns the token of the next slot in the inner stack.
    pub(super) fn next_token(&mut self) -> Token {
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        Token(self.slots.vacant_key() as u64 | u64::from(self.generation) << 32)
    }

    fn insert(&mut self, slot: ShardSlot) -> usize {
        self.slots.insert((self.generation, slot))
    }

    pub(super) fn insert_conn(&mut self, conn: Box<Conn>) -> usize {
        let deadline = conn.deadline;
        let key = self.insert(ShardSlot::Conn(conn));
        self.deadlines.extend(deadline.map(|at| (at, key)));
        self.update_ready(key);
        key
    }

    /// Inserts a connection that the user has accepted before its handshake, with the token
    /// `outer`.
    pub(super) fn insert_accepted(
        &mut self,
        inner: Box<dyn TransportStream>,
        outer: Token,
    ) -> usize {
        let mut conn = Box::new(Conn::new_accepted(inner, &self.shared, self.stack));
        conn.listener = Some(NO_LISTENER);
        conn.deadline = Some(self.now + self.shared.snapshot().config.handshake_timeout);
        conn.assign_user(outer);
        self.insert_conn(conn)
    }

    pub(super) fn insert_listener(
        &mut self,
        inner: Box<dyn TransportListener>,
        token: Token,
        options: &ListenConfig,
    ) -> usize {
        self.insert(ShardSlot::TransportListener(Box::new(ListenerSlot {
            inner,
            token,
            backlog: options.backlog.max(1) as usize,
            handshakes: VecDeque::new(),
            waiting: VecDeque::new(),
            error: None,
        })))
    }

    pub(super) fn insert_datagrams(&mut self, token: Token) -> usize {
        self.insert(ShardSlot::Datagrams(token))
    }

    pub(super) fn remove_datagrams(&mut self, key: usize) {
        self.slots.try_remove(key);
    }

    pub(super) fn conn(&mut self, key: usize) -> Option<&mut Conn> {
        match self.slots.get_mut(key) {
            Some((_, ShardSlot::Conn(conn))) => Some(conn),
            _ => None,
        }
    }

    /// Calls `call` with a connection and the shard's buffers.
    pub(super) fn with_conn<R>(
        &mut self,
        key: usize,
        call: impl FnOnce(&mut Conn, &mut Scratch) -> R,
    ) -> Option<R> {
        let Some((_, ShardSlot::Conn(conn))) = self.slots.get_mut(key) else { return None };
        let result = call(conn, &mut self.scratch);
        let is_ready = conn.is_ready();
        if is_ready != self.ready.contains(&key) {
            self.update_ready(key);
        }
        Some(result)
    }

    pub(super) fn remove_conn(&mut self, key: usize) -> Option<Box<Conn>> {
        self.ready.remove(&key);
        self.clear_wake();
        match self.slots.try_remove(key)?.1 {
            ShardSlot::Conn(conn) => {
                if let Some(at) = conn.deadline {
                    self.deadlines.remove(&(at, key));
                }
                Some(conn)
            }
            _ => None,
        }
    }

    /// Closes a connection that the user has dropped. It stays until its data was sent or
    /// [`CLOSE_TIMEOUT`] has passed.
    pub(super) fn close_conn(&mut self, key: usize) {
        let now = self.now;
        let Some(conn) = self.conn(key) else { return };
        if conn.close() {
            self.remove_conn(key);
        } else {
            let at = now + CLOSE_TIMEOUT;
            if let Some(before) = conn.deadline.replace(at) {
                self.deadlines.remove(&(before, key));
            }
            self.deadlines.insert((at, key));
            self.update_ready(key);
        }
    }

    /// Takes over a detached connection that the user has dropped.
    pub(super) fn adopt_orphan(&mut self, mut conn: Box<Conn>) {
        if !conn.close() {
            self.orphans.push_back(conn);
            self.signal();
        }
    }

    pub(super) fn take_orphans(&mut self) -> VecDeque<Box<Conn>> {
        std::mem::take(&mut self.orphans)
    }

    /// Inserts an orphan that is in the event set again.
    pub(super) fn insert_orphan(&mut self, mut conn: Box<Conn>) {
        conn.deadline = Some(self.now + CLOSE_TIMEOUT);
        self.insert_conn(conn);
    }

    // ---- listeners ----

    fn listener(&mut self, key: usize) -> Option<&mut ListenerSlot> {
        match self.slots.get_mut(key) {
            Some((_, ShardSlot::TransportListener(listener))) => Some(listener),
            _ => None,
        }
    }

    /// Returns the next connection whose handshake is complete.
    pub(super) fn accept(&mut self, key: usize, token: Token) -> io::Result<usize> {
        let listener = self.listener(key).ok_or(ErrorKind::NotConnected)?;
        if let Some(error) = listener.error.take() {
            self.update_ready(key);
            return Err(error);
        }
        let conn = listener.waiting.pop_front().ok_or(ErrorKind::WouldBlock)?;
        self.with_conn(conn, |conn, _| conn.assign_user(token));
        self.update_ready(conn);
        self.update_ready(key);
        Ok(conn)
    }

    /// Removes a listener and aborts its connections that are in their handshake or not accepted
    /// yet.
    pub(super) fn remove_listener(&mut self, key: usize) {
        let Some((_, ShardSlot::TransportListener(listener))) = self.slots.try_remove(key) else {
            return;
        };
        self.ready.remove(&key);
        let handshakes = listener.handshakes.into_iter().map(|(conn, _)| conn);
        for conn in handshakes.chain(listener.waiting) {
            if let Some(mut conn) = self.remove_conn(conn) {
                conn.abort();
            }
        }
        self.clear_wake();
    }

    /// Accepts the connections that wait at a listener, and starts their handshakes.
    fn accept_all(&mut self, key: usize) {
        let config = self.shared.snapshot();
        for _ in 0..ACCEPTS {
            let token = self.next_token();
            let Some(listener) = self.listener(key) else { return };
            let inner = match listener.inner.accept(token) {
                Ok(inner) => inner,
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        listener.error = Some(error);
                    }
                    return;
                }
            };
            let evicted = if listener.handshakes.len() >= config.config.max_handshakes {
                listener.take_excess_handshake()
            } else {
                None
            };
            let source = source_of(inner.peer_addr().ip());
            let mut conn = Box::new(Conn::new_accepted(inner, &self.shared, self.stack));
            conn.listener = Some(key);
            conn.deadline = Some(self.now + config.config.handshake_timeout);
            let conn = self.insert_conn(conn);
            if let Some(listener) = self.listener(key) {
                listener.handshakes.push_back((conn, source));
            }
            if let Some(mut conn) = evicted.and_then(|evicted| self.remove_conn(evicted)) {
                tracing::warn!(peer = %conn.inner().peer_addr(), "TLS: too many handshakes: the oldest of the address with the most is aborted");
                conn.abort();
            }
        }
    }

    /// Checks whether the handshake of a connection is over. If so, the connection waits to be
    /// accepted, or ends.
    fn sort_handshake(&mut self, key: usize) {
        let Some(conn) = self.conn(key) else { return };
        let Some(at) = conn.listener.filter(|_| conn.is_handshake_over()) else { return };
        let (deadline, failed) = (conn.deadline, conn.failure().is_some());
        conn.leave_listener();
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, key));
        }
        let Some(listener) = self.listener(at) else { return };
        listener.handshakes.retain(|(conn, _)| *conn != key);
        if failed {
            // The connection is closed and not reset, so that an alert can reach the peer.
            self.remove_conn(key);
        } else if listener.waiting.len() >= listener.backlog {
            if let Some(mut conn) = self.remove_conn(key) {
                let peer = conn.inner().peer_addr();
                tracing::warn!(%peer, "TLS: the backlog is full: the newest connection is closed");
                conn.abort();
            }
        } else {
            listener.waiting.push_back(key);
            self.update_ready(at);
        }
    }

    // ---- events ----

    fn is_ready(&self, key: usize) -> bool {
        match self.slots.get(key) {
            Some((_, ShardSlot::Conn(conn))) => conn.is_ready(),
            Some((_, ShardSlot::TransportListener(listener))) => {
                !listener.waiting.is_empty() || listener.error.is_some()
            }
            _ => false,
        }
    }

    /// Updates whether a slot is in the set of those with an event, outside of a poll. If it has an
    /// event, wakes a thread that sleeps in the descriptor.
    pub(super) fn update_ready(&mut self, key: usize) {
        if self.update_ready_in_poll(key) {
            self.signal();
        } else {
            self.clear_wake();
        }
    }

    /// Like [`Shard::update_ready`], but within a poll, whose caller gets the event. Returns
    /// whether there is an event.
    fn update_ready_in_poll(&mut self, key: usize) -> bool {
        let is_ready = self.is_ready(key);
        if !is_ready {
            self.ready.remove(&key);
        } else if self.ready.insert(key) && self.ready.len() == 1 {
            self.ready_since = self.now;
        }
        is_ready
    }

    fn signal(&mut self) {
        if let (Some(wake), false) = (&self.wake, self.is_signalled) {
            write_wake(wake);
            self.is_signalled = true;
        }
    }

    /// Clears the eventfd if there are no events left.
    fn clear_wake(&mut self) {
        if self.is_signalled && self.ready.is_empty() && self.orphans.is_empty() {
            self.take_wake();
        }
    }

    /// Reads the eventfd, but keeps the wake-up for a configuration that was replaced after the
    /// check.
    fn take_wake(&mut self) {
        self.is_signalled = false;
        if let Some(wake) = &self.wake {
            read_wake(wake);
            if self.shared.generation() != self.config_generation {
                write_wake(wake);
            }
        }
    }

    /// Handles the events of the inner stack, and appends events for the user.
    pub(super) fn poll(&mut self, now: Instant, inner: &[Event], events: &mut Vec<Event>) {
        self.now = now;
        self.check_config();
        let mut reported = BTreeSet::new();
        let mut handshakes = 0;
        for event in inner {
            let key = (event.token.0 & u64::from(u32::MAX)) as usize;
            let generation = (event.token.0 >> 32) as u32;
            match self.slots.get_mut(key) {
                Some((found, _)) if *found != generation => {}
                Some((_, ShardSlot::Conn(conn))) => {
                    if conn.listener.is_some() {
                        handshakes += 1;
                        if handshakes > HANDSHAKES {
                            // The next poll reports the event again.
                            continue;
                        }
                    }
                    conn.on_event(*event, &mut self.scratch);
                    if conn.outer.is_none()
                        && conn.listener.is_none()
                        && conn.is_finished()
                        && conn.deadline.is_some()
                    {
                        // The user has dropped the connection, and all its data was sent.
                        self.remove_conn(key);
                        continue;
                    }
                    events.extend(conn.user_event(Some(*event)));
                    reported.insert(key);
                    self.sort_handshake(key);
                    self.update_ready_in_poll(key);
                }
                Some((_, ShardSlot::TransportListener(_))) => {
                    self.accept_all(key);
                    self.update_ready_in_poll(key);
                }
                Some((_, ShardSlot::Datagrams(token))) => {
                    events.push(Event { token: *token, ..*event });
                }
                None => {}
            }
        }
        self.expire();
        for key in &self.ready {
            match self.slots.get(*key) {
                Some((_, ShardSlot::Conn(conn))) if !reported.contains(key) => {
                    events.extend(conn.user_event(None));
                }
                Some((_, ShardSlot::TransportListener(listener))) => {
                    events.push(Event { token: listener.token, readable: true, writable: false });
                }
                _ => {}
            }
        }
        self.clear_wake();
    }

    /// Ends connections whose time limit has passed.
    fn expire(&mut self) {
        while let Some(&(at, key)) = self.deadlines.first()
            && at <= self.now
        {
            self.deadlines.pop_first();
            let Some(conn) = self.conn(key) else { continue };
            conn.deadline = None;
            if conn.listener.is_some() {
                conn.on_deadline();
                self.sort_handshake(key);
                self.update_ready_in_poll(key);
            } else if conn.outer.is_none() {
                conn.abort();
                self.remove_conn(key);
            }
        }
    }

    /// Ends connections whose peers are no longer accepted, after the configuration was replaced.
    fn check_config(&mut self) {
        let generation = self.shared.generation();
        if generation == self.config_generation {
            return;
        }
        self.config_generation = generation;
        let snapshot = self.shared.snapshot();
        let mut changed = Vec::new();
        for (key, (_, slot)) in &mut self.slots {
            if let ShardSlot::Conn(conn) = slot {
                conn.recheck(&snapshot);
                if conn.failure().is_some() {
                    changed.push(key);
                }
            }
        }
        for key in changed {
            self.update_ready_in_poll(key);
        }
        // `Tls::replace` holds this lock until it has written the wake-up, which is then cleared
        // here.
        drop(self.shared.wakes.lock());
        self.take_wake();
        if !self.ready.is_empty() {
            self.signal();
        }
    }

    /// Returns the time at which [`Shard::poll`] must be called even without events of the inner
    /// stack.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let ready =
            (!self.ready.is_empty() || !self.orphans.is_empty()).then_some(self.ready_since);
        ready.into_iter().chain(self.deadlines.first().map(|(at, _)| *at)).min()
    }

    /// Closes every stream like a drop. Returns whether all data was sent.
    pub(super) fn drain(&mut self) -> bool {
        let keys: Vec<_> = self.slots.iter().map(|(key, _)| key).collect();
        let mut done = self.orphans.is_empty();
        for key in keys {
            if let Some(conn) = self.conn(key) {
                if conn.failure().is_none() {
                    // If the connection is not established, there is nothing to send.
                    let _ = conn.shutdown();
                    conn.flush();
                }
                done &= conn.is_finished();
            }
        }
        done
    }
}

fn read_wake(wake: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}
