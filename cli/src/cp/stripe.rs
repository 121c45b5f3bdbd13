//! One connection of a client, with its requests and their tasks.

use super::channel::{Channel, LastHeard, SlotMemory};
use super::direction::{Direction, Violation};
use super::plan::{CopyPlan, Task};
use super::rate_limit::RateLimit;
use super::segment_size::SegmentSize;
use crate::shared::args::PeerConfig;
use crate::shared::fail::{Exit, Failure, Refusal, Result};
use crate::shared::qp_setup::WaitLimits;
use crate::shared::service::{CpOrder, CpReply, Service};
use crate::shared::stop::StopFlag;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use uiw::raw::{ConnConfig, Device, RemoteMr};
use uiw_copy::protocol::{Reply, Request, SLOT};
use uiw_llp::PeerIdentity;
use uiw_mem::STag;

/// Time without an acknowledgement or a sign of life after which another connection replaces this
/// one and continues its work.
const SILENCE: Duration = Duration::from_secs(20);

/// First and longest pause between two attempts to connect again.
pub(super) const RETRY_PAUSES: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(5));

/// Minimum time for an attempt to connect, and time limit for the final report.
const LEAST: Duration = Duration::from_secs(1);

/// Number of remaining blocks above which a slow connection may fill all its slots, because it will
/// be done before the others have finished the rest. It is four times the number of slots of all
/// connections on most paths.
const PLENTY: u64 = 128;

/// Server and settings with which all connections of a transfer are made.
pub(super) struct ConnectTarget {
    pub(super) device: Device,
    pub(super) peer: SocketAddr,
    pub(super) share: String,
    pub(super) token: u64,
    pub(super) push: bool,
    pub(super) peer_options: PeerConfig,
    pub(super) rate_limit: Option<RateLimit>,
    pub(super) segment_size: SegmentSize,
    /// Time without a sign of life of the server after which a transfer gives up.
    pub(super) give_up: Duration,
    pub(super) heard: Arc<LastHeard>,
    /// Identity of the server, as verified by the first connection. Further connections must lead
    /// to the same server.
    pub(super) identity: OnceLock<Option<Arc<PeerIdentity>>>,
}

/// A connection, with a task in each slot that is in use.
pub(super) struct Stripe {
    channel: Channel,
    in_flight: Vec<Option<Task>>,
    round_trip: Duration,
    flow: SlotFlow,
    /// Maximum size of its TCP segments, in bytes.
    segment: Option<u16>,
    /// Time of the last answer, or when the current work began.
    answered: Instant,
    /// True if the server has answered a request that moves bytes of files.
    has_moved: bool,
    /// The server's revision of the protocol.
    revision: u8,
}

/// Rate at which the server answers requests with data.
#[derive(Debug, Default)]
struct SlotFlow {
    /// Time of the last answer.
    last: Option<Instant>,
    /// Smoothed interval between two answers.
    interval: Option<Duration>,
}

impl SlotFlow {
    /// Records an answer.
    fn answered(&mut self, is_data: bool, now: Instant) {
        if !is_data {
            *self = Self::default();
            return;
        }
        if let Some(last) = self.last.replace(now) {
            let interval = now.saturating_duration_since(last);
            self.interval =
                Some(self.interval.map_or(interval, |before| (before * 3 + interval) / 4));
        }
    }

    /// Returns the number of slots that keep the connection busy: one more than are answered in two
    /// round trips and a tenth of a second. Further requests would wait on a slow connection while
    /// others have nothing left to do.
    fn depth(&self, round_trip: Duration, slots: usize) -> usize {
        let Some(interval) = self.interval else { return slots };
        let busy = (round_trip * 2 + Duration::from_millis(100)).as_micros();
        let count = 1 + busy.div_ceil(interval.as_micros().max(1));
        usize::try_from(count).unwrap_or(usize::MAX).clamp(2, slots.max(2))
    }
}

/// Error that ends a connection.
pub(super) enum StripeError {
    /// The connection may be made again.
    Lost(Failure),
    /// The server has violated the protocol, or this end cannot continue.
    Fatal(Failure),
}

impl From<Failure> for StripeError {
    fn from(failure: Failure) -> Self {
        match failure.exit {
            _ if failure.refusal.is_some() => Self::Fatal(failure),
            Exit::Lost | Exit::Unreachable => Self::Lost(failure),
            Exit::Failed | Exit::Usage => Self::Fatal(failure),
        }
    }
}

impl ConnectTarget {
    fn options(&self, segment: Option<u16>) -> ConnConfig {
        let mut options = self.peer_options.options();
        options.stream.dead_after = Some(SILENCE.min(self.give_up));
        options.stream.max_segment = segment;
        options
    }

    /// Returns the error that ends the transfer if the server has been silent for too long.
    pub(super) fn check_give_up(&self, failure: &Failure) -> Option<Failure> {
        let silent = self.heard.at().elapsed();
        let why =
            || format!("no answer for {} s (--dead-after): {}", silent.as_secs(), failure.cause());
        (silent >= self.give_up).then(|| Failure::new(Exit::Lost, self.peer, why(), CONTINUE))
    }
}

/// Hint for a transfer that has ended early.
const CONTINUE: &str = "run the command again to continue";

/// Returns the failure of a command that a signal has ended.
pub(super) fn interrupted(peer: SocketAddr) -> Failure {
    Failure::new(Exit::Failed, peer, "interrupted", CONTINUE)
}

impl Stripe {
    pub(super) fn connect(target: &ConnectTarget, slots: u16, stop: &StopFlag) -> Result<Self> {
        let memory = SlotMemory::new(&target.device, slots, true)?;
        let at = memory.remote().map(|landing| (landing.addr, landing.rkey.0)).unwrap_or_default();
        let order = Service::Cp(CpOrder {
            share: target.share.clone(),
            token: target.token,
            push: target.push,
            pulse: true,
            slots,
            at,
            peer_options: target.peer_options.clone(),
        });
        let (begun, segment) = (Instant::now(), target.segment_size.for_next_connection());
        let options = target.options(segment);
        let private_data = order.private_data();
        let deadline = target.heard.at() + target.give_up;
        let until =
            WaitLimits { deadline: Some(deadline.max(begun + LEAST)), ..WaitLimits::stop(stop) };
        let channel =
            Channel::connect(&target.device, memory, target.peer, &options, &private_data, until);
        let connected = begun.elapsed();
        let mut channel = match channel {
            Ok(channel) => channel,
            Err(failure) => {
                if failure.refusal.is_none() {
                    target.segment_size.on_connect_failed(connected);
                }
                return Err(failure);
            }
        };
        target.segment_size.on_connected(segment);
        let identity = channel.conn.link.info.peer_identity.clone();
        if *target.identity.get_or_init(|| identity.clone()) != identity {
            let failure =
                Failure::lost(target.peer, "another server answers than for the first connection");
            return Err(failure.with_refusal(Refusal::Unaccepted));
        }
        let said: Option<CpReply> =
            serde_json::from_slice(&channel.conn.link.info.private_data).ok();
        let said = said.filter(|said| said.at.is_some() == target.push).ok_or_else(|| {
            Failure::new(
                Exit::Unreachable,
                target.peer,
                "accepted, but does not speak the protocol of `uiw cp`",
                "check that `uiw serve` of this version listens there",
            )
        })?;
        // If the path loses long packets of the server, nothing arrives, and TCP does not notice
        // because this end has sent nothing that must be acknowledged.
        let silence_limit = if said.pulse { SILENCE.min(target.give_up) } else { target.give_up };
        channel.set_silence_limit(silence_limit, &target.heard);
        let len = usize::from(slots) * SLOT as usize;
        channel.set_remote(said.at.map(|(addr, rkey)| RemoteMr { addr, rkey: STag(rkey), len }));
        let in_flight = (0..slots).map(|_| None).collect();
        // TCP and MPA take one round trip each, and TLS takes a third one.
        let round_trip = connected / if identity.is_some() { 3 } else { 2 };
        Ok(Self {
            channel,
            in_flight,
            round_trip,
            flow: SlotFlow::default(),
            segment,
            answered: Instant::now(),
            has_moved: false,
            revision: said.revision,
        })
    }

    /// Reports the end of the transfer to the server, and closes in order.
    pub(super) fn finish(mut self, failed: u64) {
        if self.revision >= 1 {
            // An error means that the connection is lost, so that the report is not possible.
            let until = WaitLimits::deadline(Instant::now() + LEAST);
            let _ = self.channel.send(&Request::End { failed }.encode(0), until);
        }
        self.channel.close();
    }

    /// Called when the connection is lost while an answer is awaited.
    fn on_lost(&self, target: &ConnectTarget) {
        if !self.has_moved {
            target.segment_size.on_stuck(self.segment, self.answered.elapsed());
        }
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns whether the server supports [`Request::Remove`].
    pub(super) fn can_remove(&self) -> bool {
        self.revision >= 1
    }

    /// Returns the first bytes of the slot used by [`Stripe::call`].
    pub(super) fn read_slot(&self, len: u32) -> Result<Vec<u8>> {
        self.channel.read_slot(0, len)
    }

    /// Returns the identity of the server, if connections are encrypted.
    pub(super) fn identity(&self) -> Option<&PeerIdentity> {
        self.channel.conn.link.info.peer_identity.as_deref()
    }

    /// Sends one request and waits for the reply, while no other request is under way.
    pub(super) fn call(
        &mut self,
        request: &Request,
        target: &ConnectTarget,
        stop: &StopFlag,
    ) -> std::result::Result<Reply, StripeError> {
        self.answered = Instant::now();
        let called = self.exchange(request, stop);
        if matches!(called, Err(StripeError::Lost(_))) {
            self.on_lost(target);
        }
        called
    }

    fn exchange(
        &mut self,
        request: &Request,
        stop: &StopFlag,
    ) -> std::result::Result<Reply, StripeError> {
        let until = WaitLimits::stop(stop);
        self.channel.restart_silence()?;
        self.channel.send(&request.encode(0), until)?;
        let message = self.channel.next(until)?.ok_or_else(|| self.channel.ended())?;
        let (_, reply) = Reply::decode(&message).map_err(|error| self.broken(&error.into()))?;
        Ok(reply)
    }

    fn broken(&self, violation: &Violation) -> StripeError {
        StripeError::Fatal(Failure::lost(self.channel.peer(), violation))
    }

    /// Takes tasks until there are none left. If the connection breaks, the tasks under way go back
    /// to the plan.
    pub(super) fn work(
        mut self,
        plan: &CopyPlan,
        direction: &dyn Direction,
        target: &ConnectTarget,
    ) -> std::result::Result<(), StripeError> {
        self.answered = Instant::now();
        let worked = self.run_tasks(plan, direction, target);
        if worked.is_err() && self.in_flight.iter().any(Option::is_some) {
            self.on_lost(target);
        }
        plan.requeue(self.in_flight.iter_mut().filter_map(Option::take));
        match worked {
            Ok(()) => {
                if let Some(failed) = plan.failures_to_report() {
                    self.finish(failed);
                }
                Ok(())
            }
            // A failed post on a connection that has ended is not an error of this machine.
            Err(StripeError::Fatal(failure))
                if failure.exit == Exit::Failed && self.channel.is_down() =>
            {
                Err(StripeError::Lost(failure))
            }
            broken => broken,
        }
    }

    fn run_tasks(
        &mut self,
        plan: &CopyPlan,
        direction: &dyn Direction,
        target: &ConnectTarget,
    ) -> std::result::Result<(), StripeError> {
        loop {
            while let Some(slot) = self.free_slot(plan) {
                let Some(task) = plan.take_task() else { break };
                self.start_task(slot as u16, task, plan, direction, target)?;
            }
            if self.in_flight.iter().all(Option::is_none) {
                if !plan.wait_for_tasks() {
                    return Ok(());
                }
                continue;
            }
            let Some(message) = self.channel.next(WaitLimits::stop(&plan.stop))? else {
                if plan.stop.is_set() {
                    return Ok(());
                }
                return Err(self.channel.ended().into());
            };
            self.on_message(&message, plan, direction, target)?;
        }
    }

    /// Returns a slot for another task. As long as there is plenty to do, every free slot is used,
    /// so that the peer always has bytes to send, even when several blocks arrive at once after a
    /// lost packet. Towards the end, only as many slots are used as keep the connection busy.
    fn free_slot(&self, plan: &CopyPlan) -> Option<usize> {
        let free = self.in_flight.iter().position(Option::is_none)?;
        let under_way = self.in_flight.iter().flatten().count();
        let is_short = under_way < self.flow.depth(self.round_trip, self.in_flight.len());
        (is_short || plan.has_blocks(PLENTY)).then_some(free)
    }

    fn start_task(
        &mut self,
        slot: u16,
        mut task: Task,
        plan: &CopyPlan,
        direction: &dyn Direction,
        target: &ConnectTarget,
    ) -> std::result::Result<(), StripeError> {
        let Some((request, bytes)) = direction.start(plan, &mut task) else { return Ok(()) };
        let (is_waiting, bytes_to_send) =
            (self.in_flight.iter().any(Option::is_some), task_bytes(&task));
        // From now on the task is under way, and is repeated if the connection breaks.
        self.in_flight[usize::from(slot)] = Some(task);
        if let Some(rate_limit) = &target.rate_limit {
            self.channel.wait_until(rate_limit.reserve(bytes_to_send), &plan.stop, is_waiting)?;
        }
        if !is_waiting {
            self.channel.restart_silence()?;
        }
        let until = WaitLimits::stop(&plan.stop);
        if let Some(bytes) = bytes {
            self.channel.write(slot, &bytes, until)?;
        }
        Ok(self.channel.send(&request.encode(slot), until)?)
    }

    fn on_message(
        &mut self,
        message: &[u8],
        plan: &CopyPlan,
        direction: &dyn Direction,
        target: &ConnectTarget,
    ) -> std::result::Result<(), StripeError> {
        let (slot, reply) = Reply::decode(message).map_err(|error| self.broken(&error.into()))?;
        let task = self.in_flight.get_mut(usize::from(slot)).and_then(Option::take);
        let task = task.ok_or_else(|| self.broken(&Violation::Reply("none was asked for")))?;
        let is_data = matches!(task, Task::Block(..) | Task::Batch(..));
        self.answered = Instant::now();
        self.has_moved |= is_data;
        self.flow.answered(is_data, self.answered);
        let failure = RefCell::new(None);
        let read_slot = |len| match self.channel.read_slot(slot, len) {
            Ok(bytes) => bytes,
            Err(error) => {
                failure.replace(Some(error));
                Vec::new()
            }
        };
        let next = direction.reply(plan, task, reply, &read_slot);
        if let Some(failure) = failure.into_inner() {
            return Err(StripeError::Fatal(failure));
        }
        match next.map_err(|violation| self.broken(&violation))? {
            Some(task) => self.start_task(slot, task, plan, direction, target),
            None => Ok(()),
        }
    }
}

/// Returns the bytes of files that a task moves.
fn task_bytes(task: &Task) -> u64 {
    match task {
        Task::Block(large_file, index) => large_file.head().block_len(*index),
        Task::Batch(items) => items.iter().map(|item| item.meta.size).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_connections_have_less_under_way() {
        let ms = Duration::from_millis;
        let depth = |interval: u64, round_trip: u64| {
            let (mut flow, begun) = (SlotFlow::default(), Instant::now());
            assert_eq!(flow.depth(ms(round_trip), 8), 8, "nothing is known yet");
            (0..20).for_each(|number| flow.answered(true, begun + ms(interval) * number));
            flow.depth(ms(round_trip), 8)
        };
        assert_eq!(depth(1500, 100), 2);
        assert_eq!(depth(100, 100), 4);
        assert_eq!(depth(1, 100), 8);
        assert_eq!(depth(0, 0), 8);
        let mut flow = SlotFlow::default();
        (0..3).for_each(|_| flow.answered(true, Instant::now() + ms(0)));
        flow.answered(false, Instant::now());
        assert_eq!(flow.depth(ms(1), 8), 8, "small requests are not limited");
    }
}
