//! An emulator of paths with long delays, limited rates and losses.
//!
//! [`Direction`] is the model of one direction: a queue before a line with a bit rate, followed by
//! loss, damage, duplication, delay and reordering. It has no I/O and no clock: the caller passes
//! frames with the current time, and the model returns each frame when it is due. The same seed and
//! the same times therefore have the same result. The model is used for Ethernet frames between two
//! interfaces (`uiw_smol::bridge`; `uiw wan`), and within a process for the pipes of smoltcp
//! (`uiw_smol::pipe`), optionally on a virtual clock.
//!
//! ```
//! # mod uiw { pub use uiw_impair::wan as impair; }
//! use uiw::impair::{Direction, Profile};
//! use std::time::Duration;
//!
//! let profile = Profile { delay: Duration::from_millis(5), rate: Some(1_000_000_000), ..Profile::default() };
//! let mut there = Direction::new(&profile, 1)?;
//! there.offer(Duration::ZERO, vec![0; 1250]);
//! // 10 microseconds on the line, then a delay of 5 milliseconds.
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

/// Properties of one direction of a path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Delay from the end of the line to the receiver.
    pub delay: Duration,
    /// Maximum additional random delay. The order of frames is kept: the delay has random values at
    /// points 10 ms apart (or twice this value, if that is longer), and changes linearly between
    /// them.
    pub jitter: Duration,
    /// Share of frames that are lost after the line, from 0 to 1.
    pub loss: f64,
    /// Average number of successive lost frames (the model of Gilbert: a frame is lost if the path
    /// is in its bad state). `None` means that losses are independent.
    pub burst: Option<f64>,
    /// Share of frames that are overtaken by one to three later ones, if these follow within 10 ms.
    pub reorder: f64,
    /// Share of frames that arrive twice.
    pub duplicate: f64,
    /// Share of frames that arrive with a flipped bit after their Ethernet header. ARP frames,
    /// which have no checksum except that of Ethernet, are lost instead.
    pub damage: f64,
    /// Bit rate of the line, counting each frame from its Ethernet header to its last byte; `None`
    /// means that the line takes no time.
    pub rate: Option<u64>,
    /// Maximum number of bytes that wait for the line. Further frames are lost. `None` means the
    /// amount that the line transmits in a round trip (twice `delay` and `jitter`), and at least
    /// 256 KiB.
    pub queue: Option<usize>,
    /// Maximum size of an IP packet in bytes; `None` means no limit. Longer packets are silently
    /// lost.
    pub max_packet: Option<usize>,
}

/// Error in a profile.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// The value is not between 0 and 1.
    #[error("{what} of {value} is not between 0 and 1")]
    Share {
        /// Name of the value: loss, reorder, duplicate or damage.
        what: &'static str,
        /// Given value.
        value: f64,
    },
    /// The length of a run of losses is below 1.
    #[error("runs of {value} lost frames: a run has at least 1")]
    Burst {
        /// Given value.
        value: f64,
    },
    /// The share of losses is too high for runs of this length with at least one frame between
    /// them.
    #[error("a loss of {loss} is not possible in runs of {burst} frames with a frame between them")]
    LossInBursts {
        /// Share of losses.
        loss: f64,
        /// Length of a run.
        burst: f64,
    },
    /// The bit rate is out of range.
    #[error("a rate of {value} bit/s is not between 1 kbit/s and 1000 Gbit/s")]
    Rate {
        /// Given value.
        value: u64,
    },
    /// The queue is smaller than a frame, or larger than the memory of any host.
    #[error("a queue of {value} bytes: it holds a frame, so 2000 at least, and 64G at most")]
    Queue {
        /// Given value.
        value: usize,
    },
    /// The delay or jitter is longer than on any real path.
    #[error("{what} of {value:?} is longer than a minute")]
    Time {
        /// Name of the value: delay or jitter.
        what: &'static str,
        /// Given value.
        value: Duration,
    },
}

impl Profile {
    /// Checks that the values are valid.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ProfileError> {
        let shares = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("damage", self.damage),
        ];
        if let Some((what, value)) =
            shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value))
        {
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

    /// Returns the maximum number of bytes that wait for the line.
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
