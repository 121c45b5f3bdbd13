//! An emulator of long, narrow and lossy paths.
//!
//! [`Direction`] is the model of one way: a queue before a line of some rate, then loss, damage,
//! doubling, delay and reordering. It has no I/O and no clock: it is given frames with the time and
//! says what leaves when, so the same seed and the same times are the same run. It works on
//! Ethernet frames between two interfaces (`uiw_smol::bridge`; `uiw wan`), and within a process on
//! the pipes of smoltcp (`uiw_smol::pipe`), there on a virtual clock if wanted.
//!
//! ```
//! # mod uiw { pub use uiw_impair::wan as impair; }
//! use uiw::impair::{Direction, Profile};
//! use std::time::Duration;
//!
//! let profile = Profile { delay: Duration::from_millis(5), rate: Some(1_000_000_000), ..Profile::default() };
//! let mut there = Direction::new(&profile, 1)?;
//! there.offer(Duration::ZERO, vec![0; 1250]);
//! // 10 microseconds on the line, then 5 milliseconds of way.
//! assert_eq!(there.next(), Some(Duration::from_micros(5010)));
//! assert!(there.take(Duration::from_micros(5010)).is_some());
//! # Ok::<(), uiw::impair::ProfileError>(())
//! ```

mod chance;
mod direction;
#[cfg(test)]
mod tests;

pub use direction::{Counts, Direction};

use std::time::Duration;

/// Effects of one direction of a path on frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Delay from the end of the line to the receiver.
    pub delay: Duration,
    /// Extra random delay, from zero to this. Order is kept: points 10 ms apart (or twice this,
    /// where that is longer) have random values, and between them the delay changes evenly.
    pub jitter: Duration,
    /// Share of frames that are lost behind the line, from 0 to 1.
    pub loss: f64,
    /// Frames that are lost in one go, on average (the model of Gilbert: a frame is lost when the
    /// path is in its bad state). `None`: each by itself.
    pub burst: Option<f64>,
    /// Share of frames that one to three later ones overtake, as far as some come within 10 ms.
    pub reorder: f64,
    /// Share of frames that arrive twice.
    pub duplicate: f64,
    /// Share of frames that arrive with a flipped bit behind their Ethernet header. ARP, which has
    /// no checksum but Ethernet's, does not arrive then.
    pub damage: f64,
    /// Bits a second on the line, counting each frame from its Ethernet header to its last byte;
    /// `None` takes no time.
    pub rate: Option<u64>,
    /// Bytes that wait for the line at most; a frame beyond is lost. `None`: what the line sends in
    /// a round trip (twice `delay` and `jitter`), at least 256 KiB.
    pub queue: Option<usize>,
    /// Bytes of the longest IP packet that passes; `None`: any. A longer one is lost, and no
    /// message says so.
    pub max_packet: Option<usize>,
}

/// Error in a profile.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// The value is not between 0 and 1.
    #[error("{what} of {value} is not between 0 and 1")]
    Share {
        /// Loss, reorder, duplicate or damage.
        what: &'static str,
        /// Given value.
        value: f64,
    },
    /// A run of losses has a frame at least.
    #[error("runs of {value} lost frames: a run has at least 1")]
    Burst {
        /// Given value.
        value: f64,
    },
    /// More is to be lost than runs of this length with a frame between them can lose.
    #[error("a loss of {loss} is not possible in runs of {burst} frames with a frame between them")]
    LossInBursts {
        /// The loss.
        loss: f64,
        /// The length of a run.
        burst: f64,
    },
    /// A line that sends nothing, or faster than any.
    #[error("a rate of {value} bit/s is not between 1 kbit/s and 1000 Gbit/s")]
    Rate {
        /// Given value.
        value: u64,
    },
    /// A frame would not fit, or it is larger than a machine's memory.
    #[error("a queue of {value} bytes: it holds a frame, so 2000 at least, and 64G at most")]
    Queue {
        /// Given value.
        value: usize,
    },
    /// More than a path on this planet has.
    #[error("{what} of {value:?} is longer than a minute")]
    Time {
        /// Delay or jitter.
        what: &'static str,
        /// Given value.
        value: Duration,
    },
}

impl Profile {
    /// Returns whether a path can be like this.
    ///
    /// # Errors
    /// The first value that it cannot have.
    pub fn check(&self) -> Result<(), ProfileError> {
        let shares = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("damage", self.damage),
        ];
        if let Some((what, value)) = shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            return Err(ProfileError::Share { what, value });
        }
        if let Some(burst) = self.burst {
            if !(burst >= 1.0 && burst.is_finite()) {
                return Err(ProfileError::Burst { value: burst });
            }
            if self.loss > burst / (burst + 1.0) {
                return Err(ProfileError::LossInBursts { loss: self.loss, burst });
            }
        }
        if let Some(value) = self.rate.filter(|rate| !(1_000..=1_000_000_000_000).contains(rate)) {
            return Err(ProfileError::Rate { value });
        }
        if let Some(value) = self.queue.filter(|queue| !(2000..=64 << 30).contains(queue)) {
            return Err(ProfileError::Queue { value });
        }
        let times = [("a delay", self.delay), ("a jitter", self.jitter)];
        match times.into_iter().find(|(_, value)| *value > Duration::from_secs(60)) {
            Some((what, value)) => Err(ProfileError::Time { what, value }),
            None => Ok(()),
        }
    }

    /// Bytes that wait for the line at most.
    #[must_use]
    pub fn queue_bytes(&self) -> usize {
        const LEAST: usize = 256 << 10;
        self.queue.unwrap_or_else(|| {
            let round_trip = 2 * self.delay + 2 * self.jitter;
            let bits = round_trip.as_nanos() * u128::from(self.rate.unwrap_or(0)) / 1_000_000_000;
            usize::try_from(bits / 8).unwrap_or(usize::MAX).max(LEAST)
        })
    }
}
