//! One connection of a client: requests in slots, and what they are for.

use super::channel::{Channel, Heard, Memory};
use super::direction::{Direction, Violation};
use super::pace::Pace;
use super::plan::{Plan, Task};
use super::segments::Segments;
use crate::shared::args::PeerConfig;
use crate::shared::fail::{Exit, Failure, Refusal, Result};
use crate::shared::qp_setup::WaitLimits;
use crate::shared::service::{CpOrder, CpReply, Service};
use crate::shared::stop::Stop;
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
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Time that an attempt to connect has at least.
const LEAST: Duration = Duration::from_secs(1);

/// While so many blocks are still to be taken, a slow connection is done in time whatever it has
/// under way: four times what all connections have in their slots on most paths.
const PLENTY: u64 = 128;

/// What all connections of a transfer are made with.
pub(super) struct Target {
    pub(super) device: Device,
    pub(super) peer: SocketAddr,
    pub(super) share: String,
    pub(super) token: u64,
    pub(super) push: bool,
    pub(super) peer_options: PeerConfig,
    pub(super) pace: Option<Pace>,
    pub(super) segments: Segments,
    /// Time for which a transfer is continued without a sign of life of the server.
    pub(super) give_up: Duration,
    pub(super) heard: Arc<Heard>,
    /// Of the server, as the first connection has verified it: further ones must lead to the same.
    pub(super) identity: OnceLock<Option<Arc<PeerIdentity>>>,
}

/// A connection.
pub(super) struct Stripe {
    channel: Channel,
    flights: Vec<Option<Task>>,
    round_trip: Duration,
    flow: SlotFlow,
    /// Bytes of its TCP segments at most.
    segment: Option<u16>,
    /// When it had its last answer, or was made.
    answered: Instant,
    /// Bytes of files were answered.
    has_moved: bool,
    /// The server's revision of the protocol.
    revision: u8,
}

/// How fast slots of data are answered.
#[derive(Debug, Default)]
struct SlotFlow {
    /// The last answer to one.
    last: Option<Instant>,
    /// Between two of them, smoothed.
    interval: Option<Duration>,
}

impl SlotFlow {
    /// An answer has come.
    fn answered(&mut self, is_data: bool, now: Instant) {
        if !is_data {
            *self = Self::default();
            return;
        }
        if let Some(last) = self.last.replace(now) {
            let interval = now.saturating_duration_since(last);
            self.interval = Some(self.interval.map_or(interval, |before| (before * 3 + interval) / 4));
        }
    }

    /// Number of slots that keep the connection busy: as many as are answered in two round trips
    /// and a tenth of a second, and one. More of them would wait in a slow connection while others
    /// have nothing left to do.
    fn depth(&self, round_trip: Duration, slots: usize) -> usize {
        let Some(interval) = self.interval else { return slots };
        let busy = (round_trip * 2 + Duration::from_millis(100)).as_micros();
        let count = 1 + busy.div_ceil(interval.as_micros().max(1));
        usize::try_from(count).unwrap_or(usize::MAX).clamp(2, slots.max(2))
    }
}

/// Reason why a connection is of no use any more.
pub(super) enum Broken {
    /// It may be made again.
    Lost(Failure),
    /// The server did what it must not, or this end cannot go on.
    Fatal(Failure),
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        match failure.exit {
            _ if failure.refusal.is_some() => Self::Fatal(failure),
            Exit::Lost | Exit::Unreachable => Self::Lost(failure),
            Exit::Failed | Exit::Usage => Self::Fatal(failure),
        }
    }
}

impl Target {
    fn options(&self, segment: Option<u16>) -> ConnConfig {
        let mut options = self.peer_options.options();
        options.stream.dead_after = Some(SILENCE.min(self.give_up));
        options.stream.max_segment = segment;
        options
    }

    /// The failure that ends the transfer, if the server has been silent for too long.
    pub(super) fn given_up(&self, failure: &Failure) -> Option<Failure> {
        let silent = self.heard.at().elapsed();
        let why = || format!("no answer for {} s (--dead-after): {}", silent.as_secs(), failure.cause());
        (silent >= self.give_up).then(|| Failure::new(Exit::Lost, self.peer, why(), CONTINUE))
    }
}

/// Advice for a transfer that has ended early.
pub(super) const CONTINUE: &str = "run the command again to continue";

impl Stripe {
    pub(super) fn connect(target: &Target, slots: u16, stop: &Stop) -> Result<Self> {
        let memory = Memory::new(&target.device, slots, true)?;
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
        let (begun, segment) = (Instant::now(), target.segments.next());
        let options = target.options(segment);
        let private_data = order.private_data();
        let deadline = target.heard.at() + target.give_up;
        let until = WaitLimits { deadline: Some(deadline.max(begun + LEAST)), ..WaitLimits::stop(stop) };
        let channel = Channel::connect(&target.device, memory, target.peer, &options, &private_data, until);
        let connected = begun.elapsed();
        let mut channel = match channel {
            Ok(channel) => channel,
            Err(failure) => {
                if failure.refusal.is_none() {
                    target.segments.not_connected(connected);
                }
                return Err(failure);
            }
        };
        target.segments.connected(segment);
        let identity = channel.conn.link.info.peer_identity.clone();
        if *target.identity.get_or_init(|| identity.clone()) != identity {
            let failure = Failure::lost(target.peer, "another server answers than at the beginning");
            return Err(failure.with_refusal(Refusal::Unaccepted));
        }
        let said: Option<CpReply> = serde_json::from_slice(&channel.conn.link.info.private_data).ok();
        let said = said.filter(|said| said.at.is_some() == target.push).ok_or_else(|| {
            Failure::new(
                Exit::Unreachable,
                target.peer,
                "accepted, but does not speak the protocol of `uiw cp`",
                "check that `uiw serve` of this version listens there",
            )
        })?;
        // On a path that loses long packets of the server's nothing comes, and this end has nothing
        // to be acknowledged.
        let patience = if said.pulse { SILENCE.min(target.give_up) } else { target.give_up };
        channel.set_patience(patience, &target.heard);
        let len = usize::from(slots) * SLOT as usize;
        channel.set_remote(said.at.map(|(addr, rkey)| RemoteMr { addr, rkey: STag(rkey), len }));
        let flights = (0..slots).map(|_| None).collect();
        // TCP and MPA take one each, and TLS a third one.
        let round_trip = connected / if identity.is_some() { 3 } else { 2 };
        Ok(Self {
            channel,
            flights,
            round_trip,
            flow: SlotFlow::default(),
            segment,
            answered: Instant::now(),
            has_moved: false,
            revision: said.revision,
        })
    }

    /// Reports the end of the transfer, and closes in order.
    pub(super) fn finish(mut self, failed: u64) {
        if self.revision >= 1 {
            // An error shows that the connection is lost: then there is nobody to report to.
            let until = WaitLimits::deadline(Instant::now() + LEAST);
            let _ = self.channel.send(&Request::End { failed }.encode(0), until);
        }
        self.channel.close();
    }

    /// The connection is lost while an answer is due.
    fn lost(&self, target: &Target) {
        if !self.has_moved {
            target.segments.stuck(self.segment, self.answered.elapsed());
        }
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns whether the server takes [`Request::Remove`].
    pub(super) fn can_remove(&self) -> bool {
        self.revision >= 1
    }

    /// The first bytes of the slot of [`Stripe::call`].
    pub(super) fn landed(&self, len: u32) -> Result<Vec<u8>> {
        self.channel.landed(0, len)
    }

    /// The identity of the server, if connections are encrypted.
    pub(super) fn identity(&self) -> Option<&PeerIdentity> {
        self.channel.conn.link.info.peer_identity.as_deref()
    }

    /// One request and its reply, with nothing else under way.
    pub(super) fn call(
        &mut self,
        request: &Request,
        target: &Target,
        stop: &Stop,
    ) -> std::result::Result<Reply, Broken> {
        self.answered = Instant::now();
        let called = self.exchange(request, stop);
        if matches!(called, Err(Broken::Lost(_))) {
            self.lost(target);
        }
        called
    }

    fn exchange(&mut self, request: &Request, stop: &Stop) -> std::result::Result<Reply, Broken> {
        let until = WaitLimits::stop(stop);
        self.channel.wait_anew()?;
        self.channel.send(&request.encode(0), until)?;
        let Some(message) = self.channel.next(until)? else {
            return Err(Broken::Lost(Failure::lost(self.channel.peer(), "closed the connection")));
        };
        let (_, reply) = Reply::decode(&message).map_err(|error| self.broken(&error.into()))?;
        Ok(reply)
    }

    fn broken(&self, violation: &Violation) -> Broken {
        Broken::Fatal(Failure::lost(self.channel.peer(), violation))
    }

    /// Takes tasks until there are none left. What was under way when the connection broke goes
    /// back to the plan.
    pub(super) fn work(
        mut self,
        plan: &Plan,
        direction: &dyn Direction,
        target: &Target,
    ) -> std::result::Result<(), Broken> {
        self.answered = Instant::now();
        let worked = self.tasks(plan, direction, target);
        if worked.is_err() && self.flights.iter().any(Option::is_some) {
            self.lost(target);
        }
        plan.requeue(self.flights.iter_mut().filter_map(Option::take));
        match worked {
            Ok(()) => {
                if let Some(failed) = plan.end_report() {
                    self.finish(failed);
                }
                Ok(())
            }
            // What cannot be posted any more is no fault of this machine.
            Err(Broken::Fatal(failure)) if failure.exit == Exit::Failed && self.channel.is_down() => {
                Err(Broken::Lost(failure))
            }
            broken => broken,
        }
    }

    fn tasks(
        &mut self,
        plan: &Plan,
        direction: &dyn Direction,
        target: &Target,
    ) -> std::result::Result<(), Broken> {
        loop {
            while let Some(slot) = self.free_slot(plan) {
                let Some(task) = plan.take() else { break };
                self.start(slot as u16, task, plan, direction, target)?;
            }
            if self.flights.iter().all(Option::is_none) {
                if !plan.wait() {
                    return Ok(());
                }
                continue;
            }
            let Some(message) = self.channel.next(WaitLimits::stop(&plan.stop))? else {
                if plan.stop.is_set() {
                    return Ok(());
                }
                return Err(Broken::Lost(Failure::lost(self.channel.peer(), "closed the connection")));
            };
            self.message(&message, plan, direction, target)?;
        }
    }

    /// A slot for another task: any, as long as there is plenty to do, so that the peer has bytes
    /// to send also where several blocks come at once, behind a packet that was lost; towards the
    /// end none if as many are under way as keep the connection busy.
    fn free_slot(&self, plan: &Plan) -> Option<usize> {
        let free = self.flights.iter().position(Option::is_none)?;
        let under_way = self.flights.iter().flatten().count();
        let is_short = under_way < self.flow.depth(self.round_trip, self.flights.len());
        (is_short || plan.has_blocks(PLENTY)).then_some(free)
    }

    fn start(
        &mut self,
        slot: u16,
        mut task: Task,
        plan: &Plan,
        direction: &dyn Direction,
        target: &Target,
    ) -> std::result::Result<(), Broken> {
        let Some((request, bytes)) = direction.start(plan, &mut task) else { return Ok(()) };
        let (is_waiting, weight) = (self.flights.iter().any(Option::is_some), weight(&task));
        // From now on it is under way: if the connection breaks, it is done again.
        self.flights[usize::from(slot)] = Some(task);
        if let Some(pace) = &target.pace {
            self.channel.wait_until(pace.turn(weight), &plan.stop, is_waiting)?;
        }
        if !is_waiting {
            self.channel.wait_anew()?;
        }
        let until = WaitLimits::stop(&plan.stop);
        if let Some(bytes) = bytes {
            self.channel.write(slot, &bytes, until)?;
        }
        Ok(self.channel.send(&request.encode(slot), until)?)
    }

    fn message(
        &mut self,
        message: &[u8],
        plan: &Plan,
        direction: &dyn Direction,
        target: &Target,
    ) -> std::result::Result<(), Broken> {
        let (slot, reply) = Reply::decode(message).map_err(|error| self.broken(&error.into()))?;
        let task = self.flights.get_mut(usize::from(slot)).and_then(Option::take);
        let task = task.ok_or_else(|| self.broken(&Violation::Reply("none was asked for")))?;
        let is_data = matches!(task, Task::Block(..) | Task::Batch(..));
        self.answered = Instant::now();
        self.has_moved |= is_data;
        self.flow.answered(is_data, self.answered);
        let failure = RefCell::new(None);
        let landed = |len| match self.channel.landed(slot, len) {
            Ok(bytes) => bytes,
            Err(error) => {
                failure.replace(Some(error));
                Vec::new()
            }
        };
        let next = direction.reply(plan, task, reply, &landed);
        if let Some(failure) = failure.into_inner() {
            return Err(Broken::Fatal(failure));
        }
        match next.map_err(|violation| self.broken(&violation))? {
            Some(task) => self.start(slot, task, plan, direction, target),
            None => Ok(()),
        }
    }
}

/// Bytes of files that a task moves.
fn weight(task: &Task) -> u64 {
    match task {
        Task::Block(transfer, index) => transfer.head().block_len(*index),
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
