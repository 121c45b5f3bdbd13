//! What the holder of the driver's lock works on: the stack, the connections, their timers.

use crate::cm::ListenerSlot;
use crate::conn::Conn;
use crate::driver::{Driver, Pool, Timers};
use crate::error::Error;
use crate::notify::Wakes;
use llp::{Event, Stack, Token};
use slab::Slab;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use stream::Time;

/// Bytes that one read asks for; also the size of the receive staging that all connections share.
pub(crate) const RX_STAGING: usize = 256 << 10;
/// Up to this many connections a round reads them directly; with more it asks the stack which have something.
const DIRECT_STREAMS: usize = 4;
/// With few connections the stack is still asked every so many rounds: listeners, connects, hang-ups.
const ASK_EVERY: u32 = 32;
/// Fewer connections that close, at a time or one after the other, are no bulk disconnect.
const BULK: usize = 32;

pub(crate) enum Slot {
    Listener(ListenerSlot),
    Conn(Box<Conn>),
}

pub(crate) struct Core {
    pub(crate) stack: Box<dyn Stack>,
    pub(crate) services: Services,
    /// The origin of [`Time`].
    base: Instant,
    slots: Slab<(u32, Slot)>,
    generation: u32,
    /// Connections in Full Operation: candidates for direct reading.
    established: Vec<Token>,
    /// Slots that only the stack's events move: listeners and connections in start-up.
    others: usize,
    events: Vec<Event>,
    /// Where the connections whose doorbell was rung are listed while they are served.
    ready: Vec<Token>,
    /// The deadline that the sleepers know: of the connections, and of the stack.
    told_deadline: (Time, Option<Instant>),
    pumps: u32,
    /// Connections that have left since a bulk disconnect was reported.
    gone: usize,
    /// Most of many connections have left: reported when the lock is released.
    pub(crate) crowd_left: bool,
    /// Connections that are over. They are dropped after the lock: what they hold may run foreign code or lock again.
    #[expect(clippy::vec_box, reason = "connections live boxed in their slots")]
    pub(crate) trash: Vec<Box<Conn>>,
}

/// What a connection needs of the core while it is served.
pub(crate) struct Services {
    pub(crate) driver: Weak<Driver>,
    pub(crate) table: Arc<mem::Table>,
    /// The time at the start of this round.
    pub(crate) now: Time,
    pub(crate) timers: Timers,
    pub(crate) wakes: Wakes,
    pub(crate) pool: Pool,
    pub(crate) staging: Vec<u8>,
}

impl Core {
    pub(crate) fn new(
        stack: Box<dyn Stack>,
        driver: Weak<Driver>,
        table: Arc<mem::Table>,
        held_limit: usize,
    ) -> Self {
        let services = Services {
            driver,
            table,
            now: Time::default(),
            timers: Timers::default(),
            wakes: Wakes::default(),
            pool: Pool::new(held_limit),
            staging: vec![0; RX_STAGING],
        };
        Self {
            base: stack.now(),
            stack,
            services,
            slots: Slab::new(),
            generation: 0,
            established: Vec::new(),
            others: 0,
            events: Vec::new(),
            ready: Vec::new(),
            told_deadline: (Time::NEVER, None),
            pumps: 0,
            gone: 0,
            crowd_left: false,
            trash: Vec::new(),
        }
    }

    /// Brings the time up to date: once a round or a call of the control path.
    pub(crate) fn look_at_clock(&mut self) {
        let since = self.stack.now().saturating_duration_since(self.base);
        self.services.now =
            Time::from_nanos(since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos()));
    }

    fn instant(&self, at: Time) -> Instant {
        self.base + Duration::from_nanos(at.as_nanos())
    }

    /// A token for a slot that `fill` makes; the token names this slot and no later one at the same place.
    pub(crate) fn insert<E>(
        &mut self,
        fill: impl FnOnce(&mut dyn Stack, &Services, Token) -> Result<Slot, E>,
    ) -> Result<Token, E> {
        let token = self.next_token();
        let slot = fill(&mut *self.stack, &self.services, token)?;
        self.fill(token, slot);
        Ok(token)
    }

    /// The token of the slot that [`Core::fill`] fills next.
    pub(crate) fn next_token(&mut self) -> Token {
        self.generation = self.generation.wrapping_add(1);
        Token(self.slots.vacant_key() as u64 | u64::from(self.generation) << 32)
    }

    /// Fills the slot of a token that [`Core::next_token`] has just given.
    pub(crate) fn fill(&mut self, token: Token, slot: Slot) {
        let key = self.slots.insert(((token.0 >> 32) as u32, slot));
        debug_assert_eq!(key as u64, token.0 & u64::from(u32::MAX), "no slot was filled in between");
        self.others += 1;
    }

    fn slot(&mut self, token: Token) -> Option<&mut Slot> {
        let (generation, slot) = self.slots.get_mut(token.0 as u32 as usize)?;
        (u64::from(*generation) == token.0 >> 32).then_some(slot)
    }

    pub(crate) fn listener(&mut self, token: Token) -> Option<&mut ListenerSlot> {
        match self.slot(token)? {
            Slot::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// When a round is wanted though nothing came: for a connection, or for the stack's own timers.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.services.timers.next().map(|at| self.instant(at)), self.stack.deadline()) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        }
    }

    /// As [`Core::deadline`]; `None` when that is as it was when this was asked last.
    #[inline]
    pub(crate) fn new_deadline(&mut self) -> Option<Option<Instant>> {
        let next = (self.services.timers.next().unwrap_or(Time::NEVER), self.stack.deadline());
        (std::mem::replace(&mut self.told_deadline, next) != next).then(|| self.deadline())
    }

    /// Whether nothing has to be done once the lock is released.
    #[inline]
    pub(crate) fn has_no_news(&mut self) -> bool {
        self.services.wakes.is_empty()
            && self.trash.is_empty()
            && !self.crowd_left
            && self.told_deadline
                == (self.services.timers.next().unwrap_or(Time::NEVER), self.stack.deadline())
    }

    /// Whether `token` is a connection past its start-up.
    pub(crate) fn is_established(&mut self, token: Token) -> bool {
        matches!(self.slot(token), Some(Slot::Conn(conn)) if conn.is_established())
    }

    /// The connections for which `which` says so.
    pub(crate) fn conn(&mut self, token: Token) -> Option<&Conn> {
        match self.slot(token)? {
            Slot::Conn(conn) => Some(conn),
            _ => None,
        }
    }

    pub(crate) fn conns(&self, which: impl Fn(&Conn) -> bool) -> Vec<Token> {
        let token = |key: usize, generation: u32| Token(key as u64 | u64::from(generation) << 32);
        let found = self.slots.iter().filter_map(|(key, (generation, slot))| match slot {
            Slot::Conn(conn) if which(conn) => Some(token(key, *generation)),
            _ => None,
        });
        found.collect()
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Slot> {
        self.slot(token)?;
        let (_, slot) = self.slots.remove(token.0 as u32 as usize);
        match self.established.iter().position(|t| *t == token) {
            Some(at) => drop(self.established.swap_remove(at)),
            None => self.others -= 1,
        }
        self.services.pool.keep(self.established.len());
        // What many connections took goes back when most have left; asked seldom, as it walks the slots.
        let left = self.slots.len();
        self.gone += 1;
        if self.gone >= BULK && left * 8 <= self.gone {
            self.gone = 0;
            self.crowd_left = true;
        }
        let most_left = left.is_power_of_two() && left * 8 <= self.slots.capacity();
        if most_left {
            self.slots.shrink_to_fit();
            self.established.shrink_to(2 * left);
        }
        if most_left || self.services.timers.is_full() {
            let slots = &self.slots;
            self.services.timers.keep(|token| {
                let slot = slots.get(token.0 as u32 as usize);
                slot.is_some_and(|(generation, _)| u64::from(*generation) == token.0 >> 32)
            });
        }
        Some(slot)
    }

    /// Runs `serve` on a connection; afterwards the connection gets what it asks for, and is removed when it is over.
    pub(crate) fn with_conn<R>(
        &mut self,
        token: Token,
        serve: impl FnOnce(&mut Conn, &mut Services) -> R,
    ) -> Option<R> {
        let (generation, slot) = self.slots.get_mut(token.0 as u32 as usize)?;
        if u64::from(*generation) != token.0 >> 32 {
            return None;
        }
        let Slot::Conn(conn) = slot else { return None };
        let services = &mut self.services;
        let was_established = conn.is_established();
        let result = serve(conn, services);
        if std::mem::take(&mut conn.wants_reconnect) {
            let peer = conn.socket.peer_addr();
            let local = conn.local_again();
            match self.stack.connect(Some(local), peer, &conn.options.stream, token) {
                Ok(socket) => conn.reconnected(socket),
                Err(source) => conn.fail_startup(Error::Lost { peer, source }, services),
            }
        }
        if conn.is_over() {
            conn.give_back(services);
            if let Some(Slot::Conn(conn)) = self.remove(token) {
                self.trash.push(conn);
            }
        } else {
            conn.enter_timer(services);
            if !was_established && conn.is_established() {
                self.established.push(token);
                self.others -= 1;
            }
        }
        Some(result)
    }

    /// Serves a connection for which something was posted.
    pub(crate) fn serve(&mut self, token: Token) {
        self.with_conn(token, Conn::on_doorbell);
    }

    /// Serves the connections whose doorbell was rung.
    pub(crate) fn serve_ready(&mut self, driver: &Arc<Driver>) -> usize {
        let mut ready = std::mem::take(&mut self.ready);
        driver.take_ready(&mut ready);
        for token in &ready {
            self.serve(*token);
        }
        let count = ready.len();
        ready.clear();
        self.ready = ready;
        count
    }

    /// One round for all: receive before send, each stream with a budget. Returns how much was done.
    pub(crate) fn pump(&mut self, driver: &Arc<Driver>) -> usize {
        self.look_at_clock();
        let mut work = self.serve_ready(driver);
        self.pumps = self.pumps.wrapping_add(1);
        let direct = self.established.len() <= DIRECT_STREAMS && !self.established.is_empty();
        let asked = self.pumps.is_multiple_of(ASK_EVERY)
            || self.stack.deadline().is_some_and(|at| at <= self.instant(self.services.now));
        if direct && !asked {
            for at in 0..self.established.len() {
                let Some(token) = self.established.get(at).copied() else { break };
                work += usize::from(self.with_conn(token, Conn::on_look).unwrap_or(false));
            }
        } else {
            work += self.serve_events(driver);
        }
        work + self.serve_timers()
    }

    /// Whether only an answer of the stack can tell of news: used before sleeping.
    pub(crate) fn serve_events(&mut self, driver: &Arc<Driver>) -> usize {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        if let Err(error) = self.stack.poll(&mut events) {
            tracing::error!(%error, "the stack cannot be polled");
        }
        for event in &events {
            self.serve_event(driver, *event);
        }
        let count = events.len();
        self.events = events;
        count
    }

    fn serve_event(&mut self, driver: &Arc<Driver>, event: Event) {
        match self.slot(event.token) {
            Some(Slot::Conn(_)) => {
                self.with_conn(event.token, |conn, services| conn.on_event(event, services));
            }
            Some(Slot::Listener(_)) => crate::cm::accept_all(self, driver, event.token),
            _ => {}
        }
    }

    fn serve_timers(&mut self) -> usize {
        let Some(next) = self.services.timers.next() else { return 0 };
        let now = self.services.now;
        if next > now {
            return 0;
        }
        let mut count = 0;
        while let Some(token) = self.services.timers.due(now) {
            self.with_conn(token, Conn::on_timer);
            count += 1;
        }
        count
    }
}
