//! Requests one by one, before a transfer begins.

use super::plan::Plan;
use super::stripe::{Broken, PAUSES, Stripe, Target};
use crate::shared::fail::Result;
use uiw_copy::protocol::{Reply, Request};

/// A connection, made again when it breaks.
pub(super) struct Caller<'a> {
    stripe: Stripe,
    plan: &'a Plan,
    target: &'a Target,
    slots: u16,
}

impl<'a> Caller<'a> {
    pub(super) fn new(stripe: Stripe, plan: &'a Plan, target: &'a Target, slots: u16) -> Self {
        Self { stripe, plan, target, slots }
    }

    pub(super) fn plan(&self) -> &'a Plan {
        self.plan
    }

    pub(super) fn into_stripe(self) -> Stripe {
        self.stripe
    }

    /// The first bytes of the slot of the last reply.
    pub(super) fn landed(&self, len: u32) -> Result<Vec<u8>> {
        self.stripe.landed(len)
    }

    /// The reply. A request may be repeated, whether the server has executed it or not.
    pub(super) fn call(&mut self, request: &Request) -> Result<Reply> {
        let mut pause = PAUSES.0;
        let mut called = self.stripe.call(request, self.target, &self.plan.stop);
        loop {
            let failure = match called {
                Ok(reply) => return Ok(reply),
                Err(Broken::Fatal(failure)) => return Err(failure),
                Err(Broken::Lost(failure)) => failure,
            };
            if let Some(failure) = self.target.given_up(&failure) {
                return Err(failure);
            }
            if self.plan.stop.sleep_for(pause) {
                return Err(failure);
            }
            self.plan.report.broke();
            pause = (pause * 2).min(PAUSES.1);
            called = match Stripe::connect(self.target, self.slots, &self.plan.stop) {
                Ok(stripe) => {
                    self.stripe = stripe;
                    self.stripe.call(request, self.target, &self.plan.stop)
                }
                Err(failure) => Err(failure.into()),
            };
        }
    }
}
