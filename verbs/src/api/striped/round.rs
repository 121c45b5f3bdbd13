//! One round of a striped connection: what its stripes report goes to the rules, and what these ask for is done.

use super::message::StripedMessage;
use super::shared::{Io, Shared, Side};
use super::state::{Body, Due};
use super::stripe::{Event, Joined, Returned};
use crate::api::connection::Half;
use crate::api::message::Message;
use crate::error::{Error, Result};
use crate::wr::{SendFlags, SendOp};
use std::task::{Context, Poll};
use uiw_striping::wire::{Header, Join, Kind, Reply, Request};
use uiw_striping::{Action, Finish, JoinFailure, Received, Start};

impl Shared {
    pub(super) fn round(&self, io: &mut Io, due: &mut Due) {
        loop {
            let mut moved = self.take_events(io, due);
            moved |= self.act(io);
            moved |= self.start(io);
            self.state.lock().complete(due);
            if !moved {
                break;
            }
        }
        let mut state = self.state.lock();
        let is_over_now = state.endpoint.is_over() && !state.is_over;
        if is_over_now {
            state.is_over = true;
            let end = state.endpoint.ended();
            tracing::debug!(peer = %self.info.peer, ?end, "a striped connection is over");
        }
        state.wake_ended(due);
        let at = state.endpoint.next_timeout();
        drop(state);
        self.set_alarm(io, at);
        if is_over_now {
            self.forget();
            self.reject_offers();
        }
    }

    /// Passes on what the stripes report. True when there was something.
    fn take_events(&self, io: &mut Io, due: &mut Due) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        let mut moved = false;
        for (stripe, index) in io.stripes.iter_mut().zip(0u8..) {
            while let Poll::Ready(event) = stripe.poll_event(&mut cx) {
                moved = true;
                match event {
                    Event::Returned(returned) => self.on_returned(index, returned),
                    Event::Message(message) => self.on_message(index, message, due),
                    Event::Died(reason) => {
                        let now = self.now();
                        tracing::debug!(peer = %self.info.peer, index, %reason, "a stripe died");
                        let mut state = self.state.lock();
                        if state.endpoint.ended().is_none() {
                            state.cause = Some(reason.to_string().into());
                        }
                        state.endpoint.died(index, now);
                    }
                    Event::Drained => {
                        let now = self.now();
                        self.state.lock().endpoint.drained(index, now);
                    }
                    Event::Joined(joined) => self.on_joined(index, &joined),
                    Event::JoinFailed(error) => self.on_join_failed(index, &error),
                }
            }
        }
        moved
    }

    fn on_returned(&self, index: u8, returned: Returned) {
        let Returned { number, finish, buffer } = returned;
        let mut state = self.state.lock();
        state.endpoint.finished(index, number, finish);
        if let Some(job) = state.job(number) {
            job.buffer = buffer;
        }
    }

    fn on_message(&self, index: u8, message: Message, due: &mut Due) {
        let (header, payload) = match Header::parse(&message) {
            Ok((header, payload)) => (header, payload.len()),
            Err(error) => {
                tracing::warn!(peer = %self.info.peer, %error, "a striped connection ends");
                return self.state.lock().endpoint.abort();
            }
        };
        let mut state = self.state.lock();
        match state.endpoint.received(index, &header) {
            Ok(Received::Message) => {
                state.add_message(StripedMessage::new(message, &header, payload), due);
            }
            Ok(Received::Dead { index, generation }) => {
                drop(state);
                let now = self.now();
                self.state.lock().endpoint.peer_died(index, generation, now);
            }
            Ok(_) => {}
            Err(violation) => {
                tracing::warn!(peer = %self.info.peer, %violation, "a striped connection ends");
            }
        }
    }

    fn on_joined(&self, index: u8, joined: &Joined) {
        let now = self.now();
        let delivered = match joined.delivered {
            Some(delivered) => Some(delivered),
            None => match Join::parse(&joined.private_data) {
                Ok((Join::Reply(reply), _)) if reply.index == index => Some(reply.delivered),
                _ => None,
            },
        };
        let is_same_peer = joined.identity == self.info.peer_identity;
        let mut state = self.state.lock();
        match delivered {
            Some(delivered) if is_same_peer && joined.is_acknowledged => {
                state.endpoint.joined(index, delivered, now);
            }
            _ => {
                tracing::warn!(peer = %self.info.peer, index, is_same_peer, "another peer has accepted a stripe");
                state.endpoint.abort();
            }
        }
    }

    fn on_join_failed(&self, index: u8, error: &Error) {
        tracing::debug!(peer = %self.info.peer, index, %error, "a stripe is not replaced");
        let failure = match error {
            Error::Rejected { private_data, .. } => match Join::parse(private_data) {
                Ok((Join::Rejection(reason), _)) => JoinFailure::Rejected(reason),
                _ => JoinFailure::Retry,
            },
            _ => JoinFailure::Retry,
        };
        let now = self.now();
        let mut state = self.state.lock();
        if state.endpoint.ended().is_none() {
            state.cause = Some(error.to_string().into());
        }
        state.endpoint.join_failed(index, failure, now);
    }

    /// Does what the rules ask for. True when they did.
    fn act(&self, io: &mut Io) -> bool {
        let mut moved = false;
        loop {
            let needs_time = !self.state.lock().endpoint.all_up();
            let now = if needs_time { self.now() } else { Default::default() };
            if needs_time {
                self.alarm_passed(io, now);
            }
            let mut state = self.state.lock();
            if needs_time {
                state.endpoint.handle_timeout(now);
            }
            let Some(action) = state.endpoint.poll_action(now) else { return moved };
            drop(state);
            moved = true;
            self.execute(action, io);
        }
    }

    fn execute(&self, action: Action, io: &mut Io) {
        let (Action::Kill { index }
        | Action::Disconnect { index }
        | Action::Join { index, .. }
        | Action::Accept { index, .. }
        | Action::Report { on: index, .. }
        | Action::Abort { on: index }
        | Action::Confirm { on: index }) = action;
        let Some(stripe) = io.stripes.get_mut(usize::from(index)) else { return };
        let control = |kind| Header { kind, number: 0 }.emit();
        match action {
            Action::Kill { .. } => stripe.kill(),
            Action::Disconnect { .. } => stripe.disconnect(),
            Action::Confirm { .. } => {
                stripe.send_control(&self.pd, control(Kind::Closed));
                stripe.disconnect();
            }
            Action::Abort { .. } => {
                stripe.send_control(&self.pd, control(Kind::Abort));
                stripe.die_when_sent();
            }
            Action::Report { index, generation, .. } => {
                stripe.send_control(&self.pd, control(Kind::Dead { index, generation }));
            }
            Action::Join { generation, delivered, .. } => {
                stripe.join(self.connect(index, generation, delivered), None);
            }
            Action::Accept { generation, delivered, .. } => {
                let offer = self.state.lock().offers.remove(&index);
                let count = offer.as_ref().map(|(_, count)| *count);
                let half = offer.ok_or(Error::NotConnected).and_then(|(incoming, _)| {
                    let reply = Reply { stripes: self.stripes(), index, generation, delivered };
                    incoming.begin(&self.pd, &self.settings.of_stripe(index, Join::Reply(reply).emit(b"")))
                });
                stripe.join(half, count);
            }
        }
    }

    fn stripes(&self) -> u8 {
        self.state.lock().endpoint.stripes()
    }

    fn connect(&self, index: u8, generation: u32, delivered: u64) -> Result<Half> {
        let Side::Initiator { peer } = &self.side else { return Err(Error::NotConnected) };
        let request = Request { stripes: self.stripes(), index, generation, token: self.token, delivered };
        Half::connect(&self.pd, *peer, &self.settings.of_stripe(index, Join::Request(request).emit(b"")))
    }

    /// Posts the requests that may start. True when there was one.
    fn start(&self, io: &mut Io) -> bool {
        let mut moved = false;
        loop {
            let mut state = self.state.lock();
            let Some((start, job)) = state.poll_start() else { return moved };
            moved = true;
            let Start { index, number, message } = start;
            let (sge, buffer) = (job.sge, job.buffer.take());
            let (op, flags, header) = match (&job.body, message) {
                (Body::Other(op), _) => (*op, SendFlags::empty(), None),
                (Body::Message { kind, flags }, message) => {
                    let header = Header { kind: *kind, number: message.unwrap_or_default() };
                    (SendOp::Send, *flags, Some(header.emit()))
                }
            };
            drop(state);
            let header = match header.map(|header| self.pd.register(header)).transpose() {
                Ok(header) => header,
                Err(error) => {
                    let finish = Finish::Failed(error.into());
                    self.on_returned(index, Returned { number, finish, buffer });
                    continue;
                }
            };
            if let Some(stripe) = io.stripes.get_mut(usize::from(index)) {
                stripe.post(Some(number), op, flags, sge, buffer, header);
            }
        }
    }
}
