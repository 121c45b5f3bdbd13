//! The requests of one end: their numbers, when each may start and where, and the order of their completions.

mod open;

use crate::error::Violation;
use alloc::collections::VecDeque;
use core::time::Duration;
use open::{Open, Way};

/// A request that is repeated more often fails.
const MAX_REPEATS: u8 = 64;

/// What the count of a peer has decided.
#[derive(Default)]
pub(crate) struct Confirmed {
    /// A request is proven to be placed.
    pub(crate) has_placed: bool,
    /// A request was repeated too often: when it was decided to repeat it first.
    pub(crate) given_up_since: Option<Duration>,
}

/// What a request does.
///
/// ```
/// use uiw_striping::{Config, Endpoint, Op, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config { stripes: 2, ..Config::default() });
/// end.post(Op::Write { idempotent: false }, 1 << 20)?;
/// let second = end.post(Op::Write { idempotent: true }, 1 << 20)?;
/// let read = end.post(Op::Read, 4096)?;
/// assert!(end.poll_start().is_some() && end.poll_start().is_some());
/// // A Read starts when everything in front of it is placed, or is in front of it in the stream of its stripe.
/// assert!(end.poll_start().is_none());
/// end.finished(1, second, uiw_striping::Finish::Placed);
/// assert_eq!(end.poll_start().map(|start| (start.number, start.index)), Some((read, 0)));
/// # Ok::<(), uiw_striping::Closed>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A Send, a notice or a Close: delivered once, in order.
    Message,
    /// A Write.
    Write {
        /// It may be placed more than once until it completes.
        idempotent: bool,
    },
    /// A Read.
    Read,
}

#[derive(Clone, Copy, Debug)]
enum Class {
    Message,
    Write,
    Read,
}

impl Op {
    fn class(self) -> Class {
        match self {
            Self::Message => Class::Message,
            Self::Write { .. } => Class::Write,
            Self::Read => Class::Read,
        }
    }
}

/// A request to be put into the stream of a stripe now.
///
/// ```
/// use uiw_striping::{Config, Endpoint, Op, Role, Start};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// let number = end.post(Op::Message, 100)?;
/// // Messages travel on stripe 0, and are numbered among themselves.
/// assert_eq!(end.poll_start(), Some(Start { index: 0, number, message: Some(1) }));
/// # Ok::<(), uiw_striping::Closed>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The stripe.
    pub index: u8,
    /// The request.
    pub number: u64,
    /// For an [`Op::Message`]: its number among the messages.
    pub message: Option<u64>,
}

/// What a stripe reports of a request.
///
/// ```
/// use uiw_striping::{Config, Done, Endpoint, Finish, Op, Outcome, Role};
/// let mut end = Endpoint::new(Role::Initiator, Config::default());
/// let number = end.post(Op::Read, 4096)?;
/// end.poll_start();
/// end.finished(0, number, Finish::Failed("the peer's memory does not allow it"));
/// let outcome = Outcome::Failed("the peer's memory does not allow it");
/// assert_eq!(end.poll_done(), Some(Done { number, outcome, part: false }));
/// # Ok::<(), uiw_striping::Closed>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish<E> {
    /// It is proven to be placed.
    Placed,
    /// It failed by its own fault.
    Failed(E),
    /// It ended with the stream, which says nothing about it.
    Unknown,
}

/// How a request completes.
///
/// ```
/// use uiw_striping::{Config, Endpoint, Op, Outcome, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// end.post(Op::Message, 100)?;
/// end.post(Op::Message, 100)?;
/// end.abort();
/// let outcomes = [end.poll_done(), end.poll_done()].map(|done| done.map(|done| done.outcome));
/// assert_eq!(outcomes, [Some(Outcome::Lost), Some(Outcome::Flushed)]);
/// # Ok::<(), uiw_striping::Closed>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<E> {
    /// Placed.
    Placed,
    /// It failed by its own fault.
    Failed(E),
    /// Connection lost: it may or may not be placed.
    Lost,
    /// A request before it failed, or the connection was ended.
    Flushed,
}

/// A request that is over.
///
/// ```
/// use uiw_striping::{Config, Endpoint, Finish, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// let write = end.post_write_notice(true, 4096)?;
/// for _ in 0..2 {
///     let Some(start) = end.poll_start() else { break };
///     end.finished(start.index, start.number, Finish::Placed);
/// }
/// // The notice behind the Write reports the outcome of both.
/// let done = [end.poll_done(), end.poll_done()].map(|done| done.map(|done| (done.number, done.part)));
/// assert_eq!(done, [Some((write, true)), Some((write + 1, false))]);
/// # Ok::<(), uiw_striping::Closed>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<E> {
    /// The request.
    pub number: u64,
    /// How it ended.
    pub outcome: Outcome<E>,
    /// It is the Write of a Write with immediate: the notice behind it reports the outcome of both.
    pub part: bool,
}

#[derive(Debug)]
enum State<E> {
    Waiting,
    Started { index: u8 },
    Unknown,
    Over(Outcome<E>),
}

#[derive(Debug)]
struct Entry<E> {
    op: Op,
    bytes: u64,
    part: bool,
    message: Option<u64>,
    repeats: u8,
    /// When it was decided to repeat it first.
    repeated_since: Option<Duration>,
    state: State<E>,
}

/// What happens to requests that are not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    /// The peer has proven that it has everything.
    Proven,
    /// The connection has ended: the oldest of them is lost, those behind it are flushed.
    Failing,
    /// A failure was reported: all are flushed.
    Flushing,
}

#[derive(Debug)]
pub(crate) struct Requests<E> {
    entries: VecDeque<Entry<E>>,
    /// The number of the first of `entries`.
    first: u64,
    open: Open,
    depth: u32,
    mode: Mode,
    /// A request failed: none behind it starts.
    barrier: Option<u64>,
    /// The failed Write of a Write with immediate, to be reported by its notice.
    carried: Option<Outcome<E>>,
    /// Messages posted; those of them that were sent; those that are proven to be delivered.
    messages: u64,
    sent: u64,
    proven: u64,
    /// Requests that were repeated.
    pub(crate) repeated: u64,
    /// A request was tried this often, and is given up.
    pub(crate) given_up: Option<u32>,
}

impl<E> Requests<E> {
    pub(crate) fn new(stripes: u8, depth: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 1,
            open: Open::new(stripes),
            depth: depth.max(1),
            mode: Mode::Running,
            barrier: None,
            carried: None,
            messages: 0,
            sent: 0,
            proven: 0,
            repeated: 0,
            given_up: None,
        }
    }

    pub(crate) fn post(&mut self, op: Op, bytes: u64, part: bool) -> u64 {
        let number = self.first + self.entries.len() as u64;
        let message = (op == Op::Message).then(|| {
            self.messages += 1;
            self.messages
        });
        let state = State::Waiting;
        self.entries.push_back(Entry { op, bytes, part, message, repeats: 0, repeated_since: None, state });
        self.open.wait(number, op);
        number
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry<E>> {
        let at = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// The next request to start; `is_up` says which stripes are.
    pub(crate) fn poll_start(&mut self, is_up: impl Fn(u8) -> bool) -> Option<Start> {
        if self.mode != Mode::Running {
            return None;
        }
        let mut chosen: Option<(u64, u8)> = None;
        for class in [Class::Message, Class::Write, Class::Read] {
            let Some(number) = self.open.next(class) else { continue };
            let is_behind = self.barrier.is_some_and(|barrier| number > barrier);
            if is_behind || chosen.is_some_and(|(other, _)| other < number) {
                continue;
            }
            if let Some(index) = self.stripe_for(number, class, &is_up) {
                chosen = Some((number, index));
            }
        }
        let (number, index) = chosen?;
        let entry = self.entry(number)?;
        entry.state = State::Started { index };
        let (op, bytes, message) = (entry.op, entry.bytes, entry.message);
        self.open.start(number, op, bytes, index);
        self.sent = self.sent.max(message.unwrap_or(0));
        Some(Start { index, number, message })
    }

    fn stripe_for(&self, number: u64, class: Class, is_up: impl Fn(u8) -> bool) -> Option<u8> {
        let has_room =
            |index: &u8| is_up(*index) && self.open.stripes[usize::from(*index)].count < self.depth;
        match self.open.way(number, class) {
            Way::Closed => None,
            Way::Only(index) => Some(index).filter(has_room),
            Way::Any => {
                let all = 0..self.open.stripes.len() as u8;
                all.filter(has_room).min_by_key(|index| self.open.load(*index))
            }
        }
    }

    /// A stripe has given a request back. False: it had none of this number.
    pub(crate) fn finished(&mut self, index: u8, number: u64, finish: Finish<E>) -> bool {
        let Some(entry) = self.entry(number) else { return false };
        if !matches!(entry.state, State::Started { index: on } if on == index) {
            return false;
        }
        let (op, bytes, message) = (entry.op, entry.bytes, entry.message);
        self.open.leave(number, bytes, index);
        match finish {
            Finish::Placed => {
                self.proven = self.proven.max(message.unwrap_or(0));
                self.over(number, op, Outcome::Placed);
            }
            Finish::Failed(error) => self.over(number, op, Outcome::Failed(error)),
            Finish::Unknown => {
                if let Some(entry) = self.entry(number) {
                    entry.state = State::Unknown;
                }
                self.open.set_unknown(number, op, index);
            }
        }
        true
    }

    fn over(&mut self, number: u64, op: Op, outcome: Outcome<E>) {
        if !matches!(outcome, Outcome::Placed) {
            self.barrier = Some(self.barrier.map_or(number, |barrier| barrier.min(number)));
        }
        if let Some(entry) = self.entry(number) {
            entry.state = State::Over(outcome);
        }
        self.open.close(number, op);
    }

    /// How many requests a stripe has not given back.
    pub(crate) fn under_way(&self, index: u8) -> u32 {
        self.open.stripes.get(usize::from(index)).map_or(0, |stripe| stripe.count)
    }

    /// Whether a stripe has requests that it has not given back, or that it gave back without an outcome: it may do so before its death is
    /// reported.
    pub(crate) fn has_undecided(&self, index: u8) -> bool {
        let stripe = self.open.stripes.get(usize::from(index));
        stripe.is_some_and(|stripe| stripe.count > 0 || !stripe.unknown.is_empty())
    }

    /// The peer has confirmed that its end of a dead stripe is drained: what is unknown is decided (docs/striping.md, "Death of a
    /// stripe"). For stripe 0 it has received `delivered` messages.
    ///
    /// # Errors
    /// [`Violation::Delivered`].
    pub(crate) fn confirmed(
        &mut self,
        index: u8,
        delivered: u64,
        now: Duration,
    ) -> Result<Confirmed, Violation> {
        let mut confirmed = Confirmed::default();
        if self.mode != Mode::Running {
            return Ok(confirmed);
        }
        let mut last_delivered = 0;
        if index == 0 {
            if delivered < self.proven || delivered > self.sent {
                let (proven, sent) = (self.proven, self.sent);
                return Err(Violation::Delivered { delivered, proven, sent });
            }
            (self.proven, self.sent) = (delivered, delivered);
            let unknown =
                self.open.stripes.first().into_iter().flat_map(|stripe| stripe.unknown.iter().rev());
            for number in unknown {
                let at = (number - self.first) as usize;
                if self
                    .entries
                    .get(at)
                    .and_then(|entry| entry.message)
                    .is_some_and(|message| message <= delivered)
                {
                    last_delivered = *number;
                    break;
                }
            }
        }
        for number in self.open.take_unknown(index) {
            let Some(entry) = self.entry(number) else { continue };
            let op = entry.op;
            let was_placed = match op {
                Op::Message => number <= last_delivered,
                // It was in front of that message in the stream: the message's gate says so.
                Op::Write { .. } => number < last_delivered,
                Op::Read => false,
            };
            entry.repeats += 1;
            if was_placed {
                confirmed.has_placed = true;
                self.over(number, op, Outcome::Placed);
            } else if op == (Op::Write { idempotent: false }) {
                self.over(number, op, Outcome::Lost);
            } else if entry.repeats > MAX_REPEATS {
                confirmed.given_up_since = entry.repeated_since;
                self.given_up = Some(entry.repeats.into());
                self.over(number, op, Outcome::Lost);
            } else {
                entry.repeated_since.get_or_insert(now);
                entry.state = State::Waiting;
                self.open.wait(number, op);
                self.repeated += 1;
            }
        }
        Ok(confirmed)
    }

    /// The connection ends: the oldest request that is not over is lost, the others are flushed.
    pub(crate) fn fail(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Failing;
        }
    }

    /// The peer has received the Close: every request is placed.
    pub(crate) fn prove(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Proven;
        }
    }

    /// Whether every message that was posted was sent, and not taken back since.
    pub(crate) fn all_sent(&self) -> bool {
        self.sent == self.messages
    }

    /// Whether the connection has ended, or a failure was reported.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.mode, Mode::Failing | Mode::Flushing)
    }

    /// Whether every request with a smaller number has been placed and reported.
    pub(crate) fn is_first(&self, number: u64) -> bool {
        self.first == number
    }

    /// The next completion, in order. A request is reported when its stripe has given it back.
    pub(crate) fn poll_done(&mut self) -> Option<Done<E>> {
        let front = self.entries.front_mut()?;
        let reported = match &front.state {
            State::Started { .. } => return None,
            State::Waiting | State::Unknown if self.mode == Mode::Running => return None,
            State::Waiting | State::Unknown if self.mode == Mode::Proven => Outcome::Placed,
            State::Waiting | State::Unknown if self.mode == Mode::Failing => Outcome::Lost,
            State::Over(_) if self.mode != Mode::Flushing => {
                match core::mem::replace(&mut front.state, State::Waiting) {
                    State::Over(outcome) => outcome,
                    _ => return None,
                }
            }
            State::Waiting | State::Unknown | State::Over(_) => Outcome::Flushed,
        };
        let entry = self.entries.pop_front()?;
        let number = self.first;
        self.first += 1;
        let is_failure = !matches!(reported, Outcome::Placed);
        let outcome = match self.carried.take() {
            Some(carried) => carried,
            None => reported,
        };
        if is_failure && self.mode != Mode::Flushing {
            self.mode = Mode::Flushing;
            if entry.part {
                self.carried = Some(outcome);
                return Some(Done { number, outcome: Outcome::Flushed, part: true });
            }
        }
        Some(Done { number, outcome, part: entry.part })
    }
}
