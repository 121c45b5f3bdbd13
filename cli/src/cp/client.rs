//! The connections of a transfer: how many there are, and how they are made again.

use super::caller::Caller;
use super::direction::Direction;
use super::plan::Plan;
use super::stripe::{Broken, CONTINUE, PAUSES, Stripe, Target};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::text::Progress;
use std::time::{Duration, Instant};

/// How many connections there are, and how many slots each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) stripes: u16,
    pub(super) slots: u16,
}

impl Shape {
    /// For a round trip time. A slot is 1 MiB, so these fill 1 Gbit/s at 500 ms, and what is under
    /// way when all connections break is at most 64 MiB. On long paths several connections share
    /// the loss of packets; on short ones they share the processors.
    pub(super) fn of(round_trip: Duration) -> Self {
        match round_trip.as_micros() {
            0..1_000 => Self { stripes: 2, slots: 4 },
            1_000..5_000 => Self { stripes: 4, slots: 4 },
            5_000..150_000 => Self { stripes: 8, slots: 4 },
            _ => Self { stripes: 8, slots: 8 },
        }
    }
}

/// Transfers what `find` adds to the plan by means of `first`, with that and further connections,
/// which are made meanwhile.
pub(super) fn transfer(
    first: Stripe,
    plan: &Plan,
    direction: &dyn Direction,
    target: &Target,
    shape: Shape,
    find: impl FnOnce(&mut Caller<'_>) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let begin = |stripe| scope.spawn(move || connection(stripe, plan, direction, target, shape.slots));
        let mut workers: Vec<_> = (1..shape.stripes).map(|_| begin(None)).collect();
        let mut caller = Caller::new(first, plan, target, shape.slots);
        match find(&mut caller) {
            Ok(()) => plan.all_sources_added(),
            Err(failure) => plan.end(failure),
        }
        workers.push(begin(Some(caller.into_stripe())));
        let mut progress = Progress::new();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            progress.show(|| plan.report.line());
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    match plan.take_failure() {
        Some(failure) => Err(failure),
        None if plan.stop.is_set() && !plan.is_over() => {
            Err(Failure::new(Exit::Failed, target.peer, "interrupted", CONTINUE))
        }
        None => Ok(()),
    }
}

/// One connection, made again whenever it breaks, until everything is done.
fn connection(first: Option<Stripe>, plan: &Plan, direction: &dyn Direction, target: &Target, slots: u16) {
    let mut stripe = first;
    // What one connection does at a time needs no other one, which would be cut in its set-up when
    // everything is done.
    if stripe.is_none() && !plan.wait_for_more_than(slots.into()) {
        return;
    }
    let mut pause = PAUSES.0;
    loop {
        let connected = match stripe.take() {
            Some(stripe) => Ok(stripe),
            // A connection that is of no use any more need not be made.
            None if !plan.wait() => return,
            None => Stripe::connect(target, slots, &plan.stop).map_err(Broken::from),
        };
        let begun = Instant::now();
        let broken = match connected.and_then(|stripe| stripe.work(plan, direction, target)) {
            Ok(()) => return,
            // Everything was done meanwhile, or it is interrupted.
            Err(_) if plan.stop.is_set() => return,
            Err(broken) => broken,
        };
        match broken {
            Broken::Fatal(failure) => return plan.end(failure),
            Broken::Lost(failure) => {
                if let Some(failure) = target.given_up(&failure) {
                    return plan.end(failure);
                }
                let cause = failure.cause();
                if plan.note_loss(&cause) {
                    tracing::warn!(error = cause, "connection lost; connecting again");
                } else {
                    tracing::debug!(error = cause, "connection lost; connecting again");
                }
            }
        }
        plan.report.broke();
        // The server has answered meanwhile.
        if plan.report.silent_for() < begun.elapsed() {
            pause = PAUSES.0;
            plan.note_loss("");
        }
        if plan.stop.sleep_for(pause) {
            return;
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_under_way_bounded() {
        for ms in [0, 1, 3, 10, 100, 149, 150, 5000] {
            let Shape { stripes, slots } = Shape::of(Duration::from_millis(ms));
            assert!(u32::from(stripes) * u32::from(slots) <= 64, "{ms} ms");
            assert!((1..=8).contains(&stripes));
        }
    }
}
