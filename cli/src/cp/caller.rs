//! Single requests, before a transfer begins.

use super::plan::CopyPlan;
use super::stripe::{ConnectTarget, RETRY_PAUSES, Stripe, StripeError, interrupted};
use crate::shared::fail::Result;
use uiw_copy::protocol::{Reply, Request};

/// A connection for single requests, which is made again when it breaks.
pub(super) struct Caller<'a> {
    stripe: Stripe,
    plan: &'a CopyPlan,
    target: &'a ConnectTarget,
    slots: u16,
}

impl<'a> Caller<'a> {
    pub(super) fn new(
        stripe: Stripe,
        plan: &'a CopyPlan,
        target: &'a ConnectTarget,
        slots: u16,
    ) -> Self {
        Self { stripe, plan, target, slots }
    }

    pub(super) fn plan(&self) -> &'a CopyPlan {
        self.plan
    }

    pub(super) fn into_stripe(self) -> Stripe {
        self.stripe
    }

    /// Returns the first bytes of the slot of the last reply.
    pub(super) fn read_slot(&self, len: u32) -> Result<Vec<u8>> {
        self.stripe.read_slot(len)
    }

    /// Sends a request and returns the reply. Repeats the request if the connection breaks, so the
    /// server may execute it more than once.
    pub(super) fn call(&mut self, request: &Request) -> Result<Reply> {
        let mut pause = RETRY_PAUSES.0;
        let mut called = self.stripe.call(request, self.target, &self.plan.stop);
        loop {
            let failure = match called {
                Ok(reply) => return Ok(reply),
                Err(StripeError::Fatal(failure)) => return Err(failure),
                Err(StripeError::Lost(failure)) => failure,
            };
            if self.plan.stop.is_set() {
                return Err(interrupted(self.target.peer));
            }
            if let Some(failure) = self.target.check_give_up(&failure) {
                return Err(failure);
            }
            if self.plan.stop.sleep_for(pause) {
                return Err(interrupted(self.target.peer));
            }
            self.plan.report.count_lost_connection();
            pause = (pause * 2).min(RETRY_PAUSES.1);
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
