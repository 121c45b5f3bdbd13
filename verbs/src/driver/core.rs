//! What the holder of the driver's lock works on: the stack, the streams, their timers.

use crate::cm::ListenerSlot;
use crate::driver::{Driver, Pool, Timers};
use crate::notify::Wakes;
use crate::qp::Conn;
use llp::{Event, Stack, Token};
use slab::Slab;
use std::sync::Arc;
use std::time::Instant;

/// Octets that one read asks for; also the size of the receive staging that all streams share.
pub(crate) const RX_STAGING: usize = 256 << 10;
/// Up to this many streams a pump reads them directly; with more it asks the stack which have something.
const DIRECT_STREAMS: usize = 4;
/// With few streams the stack is still asked every so many pumps: listeners, connects, hang-ups.
const ASK_EVERY: u32 = 32;
/// So many connections are a crowd, at a time or one after the other.
const CROWD: usize = 32;

pub(crate) enum Slot {
    Listener(ListenerSlot),
    Conn(Box<Conn>),
    /// Out of the slab while its stream is served.
    Lent,
}

pub(crate) struct Core {
    pub(crate) stack: Box<dyn Stack>,
    /// The time at the start of this pump.
    now: Instant,
    slots: Slab<(u32, Slot)>,
    generation: u32,
    /// Streams in Full Operation: candidates for direct reading.
    established: Vec<Token>,
    /// Slots that only the stack's events move: listeners and streams in set-up.
    others: usize,
    pub(crate) timers: Timers,
    pub(crate) wakes: Wakes,
    pub(crate) pool: Pool,
    staging: Vec<u8>,
    events: Vec<Event>,
    /// Where the streams that rang are listed while they are served.
    ready: Vec<Token>,
    /// The deadline that the sleepers know.
    told_deadline: Option<Instant>,
    pumps: u32,
    /// Connections that have left since that was told.
    gone: usize,
    /// Of a crowd of connections most have left: told when the lock is released.
    pub(crate) crowd_left: bool,
    /// Connections that are over. They are dropped after the lock: what they hold may run foreign code or lock again.
    #[expect(clippy::vec_box, reason = "connections live boxed in their slots")]
    pub(crate) trash: Vec<Box<Conn>>,
}

/// What a stream needs of the core while it is served.
pub(crate) struct Env<'a> {
    pub(crate) driver: &'a Arc<Driver>,
    pub(crate) now: Instant,
    pub(crate) timers: &'a mut Timers,
    pub(crate) wakes: &'a mut Wakes,
    pub(crate) pool: &'a mut Pool,
    pub(crate) staging: &'a mut [u8],
}

impl Core {
    pub(crate) fn new(stack: Box<dyn Stack>, held_limit: usize) -> Self {
        Self {
            now: stack.now(),
            stack,
            slots: Slab::new(),
            generation: 0,
            established: Vec::new(),
            others: 0,
            timers: Timers::default(),
            wakes: Wakes::default(),
            pool: Pool::new(held_limit),
            staging: vec![0; RX_STAGING],
            events: Vec::new(),
            ready: Vec::new(),
            told_deadline: None,
            pumps: 0,
            gone: 0,
            crowd_left: false,
            trash: Vec::new(),
        }
    }

    /// Brings the time up to date: once a pump or a call of the control path.
    pub(crate) fn look_at_clock(&mut self) {
        self.now = self.stack.now();
    }

    /// A token for a slot that `fill` makes; the token names this slot and no later one at the same place.
    pub(crate) fn insert<E>(
        &mut self,
        fill: impl FnOnce(&mut dyn Stack, Token) -> Result<Slot, E>,
    ) -> Result<Token, E> {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let entry = self.slots.vacant_entry();
        let token = Token(entry.key() as u64 | u64::from(generation) << 32);
        let slot = fill(&mut *self.stack, token)?;
        entry.insert((generation, slot));
        self.others += 1;
        Ok(token)
    }

    /// A token for a slot that is filled later, by [`Core::fill`].
    pub(crate) fn reserve(&mut self) -> Token {
        self.generation = self.generation.wrapping_add(1);
        let key = self.slots.insert((self.generation, Slot::Lent));
        self.others += 1;
        Token(key as u64 | u64::from(self.generation) << 32)
    }

    pub(crate) fn fill(&mut self, token: Token, slot: Slot) {
        if let Some(place) = self.slot(token) {
            *place = slot;
        }
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

    /// When somebody must look at the streams, or the stack at its own timers, though nothing came.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.timers.next(), self.stack.deadline()) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        }
    }

    /// As [`Core::deadline`]; `None` when that is as it was when this was asked last.
    pub(crate) fn new_deadline(&mut self) -> Option<Option<Instant>> {
        let next = self.deadline();
        (std::mem::replace(&mut self.told_deadline, next) != next).then_some(next)
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
        self.pool.keep(self.established.len());
        // What a crowd of connections took goes back when most have left; asked seldom, as it walks the slots.
        let left = self.slots.len();
        self.gone += 1;
        if self.gone >= CROWD && left * 8 <= self.gone {
            self.gone = 0;
            self.crowd_left = true;
        }
        let most_left = left.is_power_of_two() && left * 8 <= self.slots.capacity();
        if most_left {
            self.slots.shrink_to_fit();
            self.established.shrink_to(2 * left);
        }
        if most_left || self.timers.is_full() {
            let slots = &self.slots;
            self.timers.keep(|token| {
                let slot = slots.get(token.0 as u32 as usize);
                slot.is_some_and(|(generation, _)| u64::from(*generation) == token.0 >> 32)
            });
        }
        Some(slot)
    }

    /// Runs `serve` on a connection; afterwards the connection is settled: removed when it is over.
    pub(crate) fn with_conn<R>(
        &mut self,
        driver: &Arc<Driver>,
        token: Token,
        serve: impl FnOnce(&mut Conn, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slot(token)?;
        let Slot::Conn(_) = slot else { return None };
        let Slot::Conn(mut conn) = std::mem::replace(slot, Slot::Lent) else { return None };
        let was_established = conn.is_established();
        let mut env = Env {
            driver,
            now: self.now,
            timers: &mut self.timers,
            wakes: &mut self.wakes,
            pool: &mut self.pool,
            staging: &mut self.staging,
        };
        let result = serve(&mut conn, &mut env);
        if std::mem::take(&mut conn.wants_reconnect) {
            let peer = conn.stream.peer_addr();
            let local = conn.local_again();
            match self.stack.connect(Some(local), peer, &conn.options.stream, token) {
                Ok(stream) => conn.reconnected(stream),
                Err(source) => conn.give_up_startup(crate::error::Error::Lost { peer, source }, &mut env),
            }
        }
        if conn.is_over() {
            conn.let_go(&mut env);
            self.remove(token);
            self.trash.push(conn);
        } else {
            if !was_established && conn.is_established() {
                self.established.push(token);
                self.others -= 1;
            }
            if let Some(slot) = self.slot(token) {
                *slot = Slot::Conn(conn);
            }
        }
        Some(result)
    }

    /// Serves a stream for which something was posted.
    pub(crate) fn serve(&mut self, driver: &Arc<Driver>, token: Token) {
        self.with_conn(driver, token, Conn::on_doorbell);
    }

    /// Serves the streams that rang.
    pub(crate) fn serve_ready(&mut self, driver: &Arc<Driver>) -> usize {
        let mut ready = std::mem::take(&mut self.ready);
        driver.take_ready(&mut ready);
        for token in &ready {
            self.serve(driver, *token);
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
        let asked =
            self.pumps.is_multiple_of(ASK_EVERY) || self.stack.deadline().is_some_and(|at| at <= self.now);
        if direct && !asked {
            for at in 0..self.established.len() {
                let Some(token) = self.established.get(at).copied() else { break };
                work += usize::from(self.with_conn(driver, token, Conn::on_look).unwrap_or(false));
            }
        } else {
            work += self.serve_events(driver);
        }
        work + self.serve_timers(driver)
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
                self.with_conn(driver, event.token, |conn, env| conn.on_event(event, env));
            }
            Some(Slot::Listener(_)) => crate::cm::accept_all(self, driver, event.token),
            _ => {}
        }
    }

    fn serve_timers(&mut self, driver: &Arc<Driver>) -> usize {
        let Some(next) = self.timers.next() else { return 0 };
        let now = self.now;
        if next > now {
            return 0;
        }
        let mut count = 0;
        while let Some((token, kind)) = self.timers.due(now) {
            self.with_conn(driver, token, |conn, env| conn.on_timer(kind, env));
            count += 1;
        }
        count
    }
}
