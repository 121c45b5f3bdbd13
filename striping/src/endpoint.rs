//! One end of a striped connection.

use crate::action::{Action, Counts, End, Received};
use crate::error::{Closed, Violation};
use crate::requests::{Done, Finish, Op, Outcome, Requests, Start};
use crate::stripes::{JoinFailure, Phase, Stall, Stripe};
use crate::wire::{Header, Kind, Reason};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// Which end it is.
///
/// ```
/// use uiw_striping::{Action, Config, Endpoint, Role};
/// # use core::time::Duration;
/// let now = Duration::ZERO;
/// let mut initiator = Endpoint::<()>::new(Role::Initiator, Config::default());
/// let mut acceptor = Endpoint::<()>::new(Role::Acceptor, Config::default());
/// for end in [&mut initiator, &mut acceptor] {
///     end.died(2, now);
///     assert_eq!(end.poll_action(now), Some(Action::Kill { index: 2 }));
///     end.drained(2, now);
/// }
/// // The end that connects replaces the stripe; the other one says on which that it is dead.
/// let now = now + Duration::from_millis(50);
/// assert_eq!(initiator.poll_action(now), Some(Action::Join { index: 2, generation: 1, delivered: 0 }));
/// assert_eq!(acceptor.poll_action(now), Some(Action::Report { on: 0, index: 2, generation: 0 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The end that connects, and replaces stripes.
    Initiator,
    /// The end that listens.
    Acceptor,
}

/// What an end is made with.
///
/// ```
/// use core::time::Duration;
/// use uiw_striping::{Config, End, Endpoint, Role};
/// let config = Config { stripes: 2, recovery_timeout: Duration::from_secs(60), ..Config::default() };
/// let mut end = Endpoint::<()>::new(Role::Acceptor, config);
/// end.died(1, Duration::from_secs(100));
/// end.handle_timeout(Duration::from_secs(159));
/// assert_eq!(end.ended(), None);
/// end.handle_timeout(Duration::from_secs(160));
/// assert_eq!(end.ended(), Some(End::TimedOut));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Stripes: 1 to [`MAX_STRIPES`](crate::MAX_STRIPES).
    pub stripes: u8,
    /// Requests under way on each stripe at most.
    pub depth: u32,
    /// A stripe that is dead for so long ends the connection, and so does one that dies again when no request was placed for so long.
    pub recovery_timeout: Duration,
}

impl Default for Config {
    /// 4 stripes, 128 requests, 15 minutes.
    fn default() -> Self {
        Self { stripes: 4, depth: 128, recovery_timeout: Duration::from_secs(15 * 60) }
    }
}

/// One end of a striped connection, from the moment at which all stripes are established. Times are counted from any origin. `E` is what the
/// program says of a request that failed by its own fault.
///
/// ```
/// use core::time::Duration;
/// use uiw_striping::{Action, Config, Endpoint, Finish, Op, Role};
/// let (zero, later) = (Duration::ZERO, Duration::from_secs(1));
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config { stripes: 2, ..Config::default() });
/// let write = end.post(Op::Write { idempotent: true }, 4096)?;
/// assert_eq!(end.poll_start().map(|start| start.index), Some(0));
/// // The stripe with the Write dies; its queue pair gives the request back.
/// end.died(0, zero);
/// assert_eq!(end.poll_action(zero), Some(Action::Kill { index: 0 }));
/// end.finished(0, write, Finish::Unknown);
/// end.drained(0, zero);
/// // Whether it was placed is known once the peer's end is drained too: a Reply on a new connection says that.
/// assert_eq!(end.poll_action(later), Some(Action::Join { index: 0, generation: 1, delivered: 0 }));
/// assert!(end.poll_start().is_none());
/// end.joined(0, 0, later);
/// assert_eq!(end.poll_start().map(|start| start.number), Some(write));
/// assert_eq!(end.counts().repeated, 1);
/// # Ok::<(), uiw_striping::Closed>(())
/// ```
#[derive(Debug)]
pub struct Endpoint<E> {
    role: Role,
    config: Config,
    requests: Requests<E>,
    stripes: Vec<Stripe>,
    actions: VecDeque<Action>,
    /// Numbered messages received.
    delivered: u64,
    /// The request that is the Close.
    close: Option<u64>,
    close_is_placed: bool,
    peer_has_closed: bool,
    /// The peer has received the Close.
    peer_is_over: bool,
    end: Option<End>,
    stall: Option<Stall>,
    /// For how long something was lost when that ended the connection.
    lost_for: Option<Duration>,
    counts: Counts,
}

impl<E> Endpoint<E> {
    /// An end whose stripes are all up, in generation 0.
    #[must_use]
    pub fn new(role: Role, config: Config) -> Self {
        let stripes = config.stripes.clamp(1, crate::MAX_STRIPES);
        Self {
            role,
            config,
            requests: Requests::new(stripes, config.depth),
            stripes: (0..stripes).map(|_| Stripe::new()).collect(),
            actions: VecDeque::new(),
            delivered: 0,
            close: None,
            close_is_placed: false,
            peer_has_closed: false,
            peer_is_over: false,
            end: None,
            stall: None,
            lost_for: None,
            counts: Counts::default(),
        }
    }

    fn stripe(&mut self, index: u8) -> Option<&mut Stripe> {
        self.stripes.get_mut(usize::from(index))
    }

    fn indices(&self) -> impl Iterator<Item = u8> + use<E> {
        0..self.stripes.len() as u8
    }

    /// How many stripes it has.
    #[must_use]
    pub fn stripes(&self) -> u8 {
        self.stripes.len() as u8
    }

    fn is_up(&self, index: u8) -> bool {
        self.stripes.get(usize::from(index)).is_some_and(|stripe| stripe.phase == Phase::Up)
    }

    // ---- requests --------------------------------------------------------------------------------------------

    /// Posts a request of so many bytes; returns its number.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn post(&mut self, op: Op, bytes: u64) -> Result<u64, Closed> {
        if self.is_closing() { Err(Closed) } else { Ok(self.requests.post(op, bytes, false)) }
    }

    /// Posts a Write and the notice behind it; returns the number of the Write. The notice has the next one, and the completion of both.
    ///
    /// # Errors
    /// [`Closed`].
    pub fn post_write_notice(&mut self, idempotent: bool, bytes: u64) -> Result<u64, Closed> {
        if self.is_closing() {
            return Err(Closed);
        }
        let number = self.requests.post(Op::Write { idempotent }, bytes, true);
        self.requests.post(Op::Message, 0, false);
        Ok(number)
    }

    /// Closes behind everything posted before; returns the number of the Close, which is a message. `None`: it is closed already.
    pub fn close(&mut self) -> Option<u64> {
        if self.is_closing() {
            return None;
        }
        let number = self.requests.post(Op::Message, 0, false);
        self.close = Some(number);
        self.close
    }

    /// Whether nothing can be posted any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.close.is_some() || self.end.is_some()
    }

    /// The request that is the Close.
    #[must_use]
    pub fn close_number(&self) -> Option<u64> {
        self.close
    }

    /// The next request to be put into the stream of a stripe.
    pub fn poll_start(&mut self) -> Option<Start> {
        if self.end.is_some() {
            return None;
        }
        let stripes = &self.stripes;
        self.requests.poll_start(|index| stripes[usize::from(index)].phase == Phase::Up)
    }

    /// A stripe has given back a request that [`Endpoint::poll_start`] has put there.
    ///
    /// # Panics
    /// When it was not put there.
    pub fn finished(&mut self, index: u8, number: u64, finish: Finish<E>) {
        let was_placed = matches!(finish, Finish::Placed);
        let was_there = self.requests.finished(index, number, finish);
        assert!(was_there, "request {number} is not on stripe {index}");
        if was_placed {
            self.has_placed(index);
        }
    }

    /// Something is proven to be placed.
    fn has_placed(&mut self, index: u8) {
        self.stall = None;
        if let Some(stripe) = self.stripe(index) {
            stripe.has_placed = true;
        }
    }

    /// The next completion, in the order of the numbers.
    pub fn poll_done(&mut self) -> Option<Done<E>> {
        let done = self.requests.poll_done()?;
        if self.close == Some(done.number) && !self.requests.has_failed() {
            self.close_is_placed = true;
            self.end_if_closed();
        } else if self.requests.has_failed() {
            let is_lost = !matches!(done.outcome, Outcome::Failed(_));
            let given_up = self.requests.given_up.filter(|_| is_lost);
            self.end(given_up.map_or(End::Request, |attempts| End::Stalled { attempts }));
        } else {
            self.end_if_alone();
        }
        Some(done)
    }

    // ---- stripes ---------------------------------------------------------------------------------------------

    /// What is to be done next.
    pub fn poll_action(&mut self, now: Duration) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.role == Role::Acceptor || self.end.is_some() {
            return None;
        }
        let is_due = |stripe: &Stripe| stripe.phase == Phase::Down && stripe.retry_at <= now;
        let index = self.stripes.iter().position(is_due)?;
        let stripe = self.stripes.get_mut(index)?;
        stripe.phase = Phase::Joining;
        stripe.generation += 1;
        let (index, generation) = (index as u8, stripe.generation);
        Some(Action::Join { index, generation, delivered: self.delivered_on(index) })
    }

    fn delivered_on(&self, index: u8) -> u64 {
        if index == 0 { self.delivered } else { 0 }
    }

    /// The connection of a stripe has ended at this end.
    pub fn died(&mut self, index: u8, now: Duration) {
        if !self.is_up(index) {
            return;
        }
        self.kill(index, now);
        // An initiator that sends Closed on one stripe closes the others at the same time, which may be seen here first. One that has lost
        // a stripe asks for it again without a report.
        if self.role == Role::Acceptor
            && self.end.is_none()
            && !self.lacks_only_proof_of_close()
            && let Some(on) = self.indices().find(|on| self.is_up(*on))
        {
            let generation = self.stripes[usize::from(index)].generation;
            self.actions.push_back(Action::Report { on, index, generation });
        }
    }

    fn kill(&mut self, index: u8, now: Duration) {
        // A peer that has the Close may have closed in order. What says so comes on another stripe, and may be seen here later.
        self.counts.deaths += u64::from(self.is_up(index) && !self.peer_may_have_close());
        let had_requests = self.requests.has_undecided(index);
        if had_requests {
            self.stall.get_or_insert(Stall { since: now, attempts: 0 });
        }
        if let Some(stripe) = self.stripe(index) {
            stripe.had_requests |= had_requests;
            stripe.die(now);
            self.actions.push_back(Action::Kill { index });
        }
    }

    /// The queue pair of a dead stripe is in the error state, every request of it was given back ([`Endpoint::finished`]) and every message
    /// that it had received was reported ([`Endpoint::received`]).
    ///
    /// # Panics
    /// When a request is still there.
    pub fn drained(&mut self, index: u8, now: Duration) {
        let under_way = self.requests.under_way(index);
        assert_eq!(under_way, 0, "requests are under way on stripe {index}");
        let Some(stripe) = self.stripe(index) else { return };
        if stripe.phase != Phase::Dying {
            return;
        }
        stripe.go_down(now);
        self.accept(index);
        self.end_if_alone();
    }

    /// The acceptor answers the Request that waits.
    fn accept(&mut self, index: u8) {
        // One that has waited until the end gets no stripe, which nothing would close.
        let has_ended = self.end.is_some();
        let delivered = self.delivered_on(index);
        let Some(stripe) = self.stripe(index) else { return };
        if stripe.phase != Phase::Down || !core::mem::take(&mut stripe.is_offered) || has_ended {
            return;
        }
        stripe.phase = Phase::Joining;
        let generation = stripe.generation;
        self.actions.push_back(Action::Accept { index, generation, delivered });
    }

    /// A Request with the token of this connection has come to the acceptor. It waits until [`Action::Accept`]; one that came for the same
    /// stripe before is to be dropped, and one that still waits when the connection is over is to be rejected.
    ///
    /// # Errors
    /// The reason of the Rejection.
    pub fn offer(&mut self, stripes: u8, index: u8, generation: u32, now: Duration) -> Result<(), Reason> {
        match self.end {
            Some(End::Closed) => return Err(Reason::Closed),
            Some(_) => return Err(Reason::Unknown),
            None if self.role == Role::Initiator => return Err(Reason::Unknown),
            None => {}
        }
        if usize::from(stripes) != self.stripes.len() {
            return Err(Reason::Mismatch);
        }
        let Some(stripe) = self.stripe(index) else { return Err(Reason::Mismatch) };
        if generation <= stripe.generation {
            return Err(Reason::Stale);
        }
        stripe.generation = generation;
        stripe.is_offered = true;
        match stripe.phase {
            Phase::Up | Phase::Joining => self.kill(index, now),
            Phase::Dying => {}
            Phase::Down => self.accept(index),
        }
        Ok(())
    }

    /// The connection of a stripe is established. `delivered` is from the peer's Request or Reply.
    pub fn joined(&mut self, index: u8, delivered: u64, now: Duration) {
        let Some(stripe) = self.stripe(index).filter(|stripe| stripe.phase == Phase::Joining) else { return };
        stripe.go_up(now);
        self.counts.replacements += 1;
        match self.requests.confirmed(index, delivered, now) {
            Err(violation) => self.end(End::Violation(violation)),
            Ok(confirmed) => {
                if confirmed.has_placed {
                    self.has_placed(index);
                }
                if let Some(since) = confirmed.given_up_since {
                    self.lost_for = Some(now.saturating_sub(since));
                }
            }
        }
        if let Some(stall) = &mut self.stall {
            stall.attempts = stall.attempts.saturating_add(1);
        }
        self.end_if_closed();
    }

    /// The connection of a stripe was not established.
    pub fn join_failed(&mut self, index: u8, failure: JoinFailure, now: Duration) {
        let Some(stripe) = self.stripe(index) else { return };
        match stripe.phase {
            Phase::Joining => stripe.fail_to_join(now),
            // A later Request waits.
            Phase::Dying => stripe.go_down(now),
            Phase::Up | Phase::Down => return,
        }
        if self.role == Role::Acceptor {
            self.accept(index);
            self.end_if_alone();
        } else if failure == JoinFailure::Rejected(Reason::Closed) && self.peer_may_have_close() {
            self.peer_is_over = true;
            self.end_if_proven();
        } else if self.lacks_only_proof_of_close() {
            self.end(End::Closed);
        } else if let JoinFailure::Rejected(reason) = failure
            && reason != Reason::Busy
        {
            self.end(End::Rejected(reason));
        }
    }

    /// Whether the Close was sent.
    fn peer_may_have_close(&self) -> bool {
        self.close.is_some() && self.requests.all_sent()
    }

    /// The peer has everything but this end's Close, or has that as well and its proof was lost.
    fn lacks_only_proof_of_close(&self) -> bool {
        self.peer_has_closed
            && self.close.is_some_and(|close| self.close_is_placed || self.requests.is_first(close))
    }

    // ---- messages --------------------------------------------------------------------------------------------

    /// A Send has come on a stripe. Those of a dead stripe are reported too, before [`Endpoint::drained`].
    ///
    /// # Errors
    /// [`Violation`]; the connection has ended then.
    pub fn received(&mut self, index: u8, header: &Header) -> Result<Received, Violation> {
        self.take(index, header).inspect_err(|violation| self.end(End::Violation(*violation)))
    }

    fn take(&mut self, index: u8, header: &Header) -> Result<Received, Violation> {
        let number = header.number;
        match header.kind {
            Kind::Abort => {
                self.end(End::Aborted);
                return Ok(Received::Control);
            }
            Kind::Dead { index, generation } => {
                self.stripe(index).ok_or(Violation::Index { index })?;
                return Ok(Received::Dead { index, generation });
            }
            Kind::Closed if self.peer_may_have_close() => {
                self.peer_is_over = true;
                self.end_if_proven();
                return Ok(Received::Control);
            }
            Kind::Closed => return Err(Violation::Closed),
            Kind::Send | Kind::SendImm(_) | Kind::WriteNotice { .. } | Kind::Close => {}
        }
        if index != 0 {
            return Err(Violation::Stripe { number, index });
        }
        if self.peer_has_closed {
            return Err(Violation::BehindClose { number });
        }
        let expected = self.delivered + 1;
        if number != expected {
            return Err(Violation::Number { given: number, expected });
        }
        self.delivered = number;
        if header.kind != Kind::Close {
            return Ok(Received::Message);
        }
        self.peer_has_closed = true;
        self.close();
        self.end_if_closed();
        self.end_if_proven();
        Ok(Received::Control)
    }

    /// The peer has reported ([`Received::Dead`]) that its end of a stripe is dead.
    pub fn peer_died(&mut self, index: u8, generation: u32, now: Duration) {
        let is_that_one = |stripe: &mut Stripe| stripe.generation == generation && stripe.phase == Phase::Up;
        if self.end.is_none() && self.stripe(index).is_some_and(is_that_one) {
            self.kill(index, now);
        }
    }

    /// Whether the peer sends no message any more.
    #[must_use]
    pub fn peer_has_closed(&self) -> bool {
        self.peer_has_closed
    }

    // ---- the end ---------------------------------------------------------------------------------------------

    fn end_if_closed(&mut self) {
        // The initiator joins first if it has to: the peer may still lack the proof that it is closed.
        let can_confirm = self.role == Role::Acceptor || self.indices().any(|index| self.is_up(index));
        if self.close_is_placed && self.peer_has_closed && can_confirm {
            self.end(End::Closed);
        }
    }

    /// The peer is over, so it has everything. An initiator is over only when it has the acceptor's Close; its own, on stripe 0, may still be
    /// to be taken here. An acceptor may have lost its Close, and be over without it.
    fn end_if_proven(&mut self) {
        if self.peer_is_over && (self.peer_has_closed || self.role == Role::Initiator) {
            self.requests.prove();
            self.end(End::Closed);
        }
    }

    /// An acceptor that lacks only the proof for its Close, and has no stripe 0 to get it on, does not wait: an initiator that lacks that
    /// Close gets [`Reason::Closed`].
    fn end_if_alone(&mut self) {
        let first = self.stripes.first();
        let has_none = first.is_some_and(|stripe| stripe.phase == Phase::Down && !stripe.is_offered);
        if self.role == Role::Acceptor && has_none && self.lacks_only_proof_of_close() {
            self.end(End::Closed);
        }
    }

    /// Ends the connection as failed.
    pub fn abort(&mut self) {
        self.end(End::Local);
    }

    fn end(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        let end = match end {
            // What is missing is of no consequence.
            End::TimedOut | End::Stalled { .. } | End::Rejected(_) if self.lacks_only_proof_of_close() => {
                End::Closed
            }
            end => end,
        };
        self.end = Some(end);
        if end != End::Closed {
            self.requests.fail();
        }
        // Only what ends stripes is still to be done.
        self.actions.retain(|action| matches!(action, Action::Kill { .. }));
        let mut on = self.indices().find(|index| self.is_up(*index)).filter(|_| end != End::Aborted);
        for index in self.indices() {
            let Some(stripe) = self.stripe(index) else { continue };
            let action = match stripe.phase {
                Phase::Up if end == End::Closed => {
                    on.take().map_or(Action::Disconnect { index }, |on| Action::Confirm { on })
                }
                Phase::Up => on.take().map_or(Action::Kill { index }, |on| Action::Abort { on }),
                Phase::Joining => Action::Kill { index },
                Phase::Dying | Phase::Down => continue,
            };
            stripe.phase = Phase::Dying;
            self.actions.push_back(action);
        }
    }

    /// How it has ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<End> {
        self.end
    }

    /// For how long a stripe or a request was lost, where it has ended with [`End::TimedOut`] or [`End::Stalled`].
    #[must_use]
    pub fn lost_for(&self) -> Option<Duration> {
        self.lost_for.filter(|_| matches!(self.end, Some(End::TimedOut | End::Stalled { .. })))
    }

    /// Whether it has ended, and no stripe has a connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end.is_some() && self.stripes.iter().all(|stripe| stripe.phase == Phase::Down)
    }

    // ---- time ------------------------------------------------------------------------------------------------

    /// Whether every stripe is up: nothing depends on the time then.
    #[must_use]
    pub fn all_up(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.phase == Phase::Up)
    }

    /// When [`Endpoint::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        if self.end.is_some() {
            return None;
        }
        let retries = self
            .stripes
            .iter()
            .filter(|stripe| self.role == Role::Initiator && stripe.phase == Phase::Down)
            .map(|stripe| stripe.retry_at);
        let limit = self.config.recovery_timeout;
        let stall = self.stall.as_ref();
        let deadlines = self.stripes.iter().filter_map(|stripe| stripe.deadline(stall, limit));
        retries.chain(deadlines).min()
    }

    /// Ends the connection if a stripe is dead for too long, or one died that places nothing for too long. Attempts that are due come from [`Endpoint::poll_action`].
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.end.is_some() {
            return;
        }
        let (limit, stall) = (self.config.recovery_timeout, self.stall.as_ref());
        let is_late = |stripe: &&Stripe| stripe.deadline(stall, limit).is_some_and(|at| at <= now);
        let Some(stripe) = self.stripes.iter().find(is_late) else { return };
        let lost_since = stripe.lost_since(stall);
        let attempts = stall.filter(|_| stripe.had_requests).map_or(0, |stall| stall.attempts);
        let attempts = attempts.max(stripe.replaced);
        self.lost_for = lost_since.map(|since| now.saturating_sub(since));
        self.end(if attempts > 0 { End::Stalled { attempts } } else { End::TimedOut });
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { repeated: self.requests.repeated, ..self.counts }
    }
}
