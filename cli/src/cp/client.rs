//! Connections of a transfer: their number, and reconnecting.

use super::caller::Caller;
use super::direction::Direction;
use super::plan::CopyPlan;
use super::stripe::{ConnectTarget, RETRY_PAUSES, Stripe, StripeError, interrupted};
use crate::shared::fail::Result;
use crate::shared::text::Progress;
use std::time::{Duration, Instant};

/// Number of connections, and of slots for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionShape {
    pub(super) stripes: u16,
    pub(super) slots: u16,
}

impl ConnectionShape {
    /// Chooses the numbers for a round-trip time. A slot has 1 MiB, so the largest numbers fill a
    /// path of 1 Gbit/s and 500 ms, and at most 64 MiB are repeated if all connections break. On
    /// long paths, a lost packet slows down only one of several connections; on short paths,
    /// several connections use several processors.
    pub(super) fn from_round_trip(round_trip: Duration) -> Self {
        match round_trip.as_micros() {
            0..1_000 => Self { stripes: 2, slots: 4 },
            1_000..5_000 => Self { stripes: 4, slots: 4 },
            5_000..150_000 => Self { stripes: 8, slots: 4 },
            _ => Self { stripes: 8, slots: 8 },
        }
    }
}

/// Runs a transfer. `find` uses the connection `first` to add entries to the plan, while further
/// connections are made. All of them then do the transfer.
pub(super) fn transfer(
    first: Stripe,
    plan: &CopyPlan,
    direction: &dyn Direction,
    target: &ConnectTarget,
    shape: ConnectionShape,
    find: impl FnOnce(&mut Caller<'_>) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let begin = |stripe| {
            scope.spawn(move || run_connection(stripe, plan, direction, target, shape.slots))
        };
        let mut workers: Vec<_> = (1..shape.stripes).map(|_| begin(None)).collect();
        let mut caller = Caller::new(first, plan, target, shape.slots);
        match find(&mut caller) {
            Ok(()) => plan.on_sources_added(),
            Err(failure) => plan.abort(failure),
        }
        workers.push(begin(Some(caller.into_stripe())));
        let mut progress = Progress::new();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            progress.show(|| plan.report.progress_line());
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    match plan.take_failure() {
        Some(failure) => Err(failure),
        None if plan.stop.is_set() && !plan.is_over() => Err(interrupted(target.peer)),
        None => Ok(()),
    }
}

/// Runs one connection, and makes it again whenever it breaks, until everything is done.
fn run_connection(
    first: Option<Stripe>,
    plan: &CopyPlan,
    direction: &dyn Direction,
    target: &ConnectTarget,
    slots: u16,
) {
    let mut stripe = first;
    // Another connection is of no use while the tasks fit into one. It would be aborted during its
    // set-up when everything is done.
    if stripe.is_none() && !plan.wait_for_more_than(slots.into()) {
        return;
    }
    let mut pause = RETRY_PAUSES.0;
    loop {
        let connected = match stripe.take() {
            Some(stripe) => Ok(stripe),
            // The transfer is over, so another connection is not needed.
            None if !plan.wait_for_tasks() => return,
            None => Stripe::connect(target, slots, &plan.stop).map_err(StripeError::from),
        };
        let begun = Instant::now();
        let broken = match connected.and_then(|stripe| stripe.work(plan, direction, target)) {
            Ok(()) => return,
            // The transfer has been completed or interrupted in the meantime.
            Err(_) if plan.stop.is_set() => return,
            Err(broken) => broken,
        };
        match broken {
            StripeError::Fatal(failure) => return plan.abort(failure),
            StripeError::Lost(failure) => {
                if let Some(failure) = target.check_give_up(&failure) {
                    return plan.abort(failure);
                }
                let cause = failure.cause();
                if plan.note_loss(&cause) {
                    tracing::warn!(error = cause, "connection lost; connecting again");
                } else {
                    tracing::debug!(error = cause, "connection lost; connecting again");
                }
            }
        }
        plan.report.count_lost_connection();
        // The server has answered on this connection, so begin again with the shortest pause.
        if plan.report.silent_for() < begun.elapsed() {
            pause = RETRY_PAUSES.0;
            plan.note_loss("");
        }
        if plan.stop.sleep_for(pause) {
            return;
        }
        pause = (pause * 2).min(RETRY_PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_under_way_bounded() {
        for ms in [0, 1, 3, 10, 100, 149, 150, 5000] {
            let ConnectionShape { stripes, slots } =
                ConnectionShape::from_round_trip(Duration::from_millis(ms));
            assert!(u32::from(stripes) * u32::from(slots) <= 64, "{ms} ms");
            assert!((1..=8).contains(&stripes));
        }
    }
}
