//! Random events. Each kind of event has its own generator, so changing the probability of one kind
//! does not change which frames the other kinds affect.

use super::Profile;
use crate::Random;
use std::time::Duration;

/// Minimum interval between the random values of the jitter. Between two values, the delay is
/// interpolated linearly.
const POINTS: Duration = Duration::from_millis(10);

/// Returns a number in 0..1.
fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Random event with a fixed probability.
#[derive(Clone, Debug)]
pub(super) struct Share {
    share: f64,
    random: Random,
}

impl Share {
    pub(super) fn new(share: f64, seed: u64, source: u64) -> Self {
        Self { share, random: Random::new(seed ^ source << 56) }
    }

    /// Returns whether the event occurs this time.
    pub(super) fn hits(&mut self) -> bool {
        self.share > 0.0 && unit(&mut self.random) < self.share
    }

    /// Returns a number in 0..bound.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }
}

/// Random losses, independent or in runs.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// Probability that a run begins.
    begin: f64,
    /// Probability that a run continues.
    go_on: f64,
    lost_last: bool,
    random: Random,
}

impl Loss {
    pub(super) fn new(profile: &Profile, seed: u64) -> Self {
        let loss = profile.loss;
        let (begin, go_on) = match profile.burst {
            // After each lost frame, the run ends with probability 1 / burst. On average, as many
            // runs begin as end: (1 - loss) begin = loss / burst.
            Some(burst) if loss > 0.0 => {
                ((loss / ((1.0 - loss) * burst)).min(1.0), 1.0 - 1.0 / burst)
            }
            _ => (loss, loss),
        };
        Self { begin, go_on, lost_last: false, random: Random::new(seed ^ 1 << 56) }
    }

    /// Returns whether the next frame is lost.
    pub(super) fn hits(&mut self) -> bool {
        let chance = if self.lost_last { self.go_on } else { self.begin };
        self.lost_last = chance > 0.0 && unit(&mut self.random) < chance;
        self.lost_last
    }
}

/// Random delay in addition to the minimum of the path.
#[derive(Clone, Debug)]
pub(super) struct Jitter {
    most: Duration,
    points: Duration,
    seed: u64,
}

impl Jitter {
    pub(super) fn new(most: Duration, seed: u64) -> Self {
        // The points are at least twice the maximum apart, so the delay decreases at most half as
        // fast as time passes, and no frame overtakes another one.
        Self { most, points: POINTS.max(2 * most), seed: seed ^ 2 << 56 }
    }

    /// Returns the random delay of a frame that is sent at `time`.
    pub(super) fn at(&self, time: Duration) -> Duration {
        if self.most.is_zero() {
            return Duration::ZERO;
        }
        let step = self.points.as_nanos();
        let point = (time.as_nanos() / step) as u64;
        let share = (time.as_nanos() % step) as f64 / step as f64;
        let value = |point: u64| {
            unit(&mut Random::new(self.seed.wrapping_add(point.wrapping_mul(0x9E37_79B1))))
        };
        let (before, after) = (value(point), value(point + 1));
        self.most.mul_f64(before + (after - before) * share)
    }
}
