//! One way of a path.

use super::chance::{Jitter, Loss, Share};
use super::{Profile, ProfileError};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Bytes that are on their way at most: 1 Gbit/s for two seconds.
const ON_THE_WAY: usize = 256 << 20;
/// A frame that is to be overtaken waits so long for those that do.
const HOLD: Duration = Duration::from_millis(10);
/// Bytes that a flipped bit spares: the Ethernet header.
const SPARED: usize = 14;

/// Returns whether a frame is of the Address Resolution Protocol (RFC 826), which has no checksum
/// of its own: damage that Ethernet's check did not find would give a neighbour a MAC that no host
/// has, for minutes.
fn is_arp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6])
}

/// Counters of forwarded, dropped, duplicated and reordered frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were given.
    pub offered: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Frames that left, doubles included.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Runs of such losses.
    pub runs: u64,
    /// Lost because the queue was full.
    pub queue_full: u64,
    /// Lost because their packets were longer than [`Profile::max_packet`].
    pub too_long: u64,
    /// Lost because more than 256 MiB were on their way.
    pub too_many: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Overtaken by others.
    pub reordered: u64,
    /// Delivered with a flipped bit.
    pub damaged: u64,
    /// Bytes that waited for the line, at most.
    pub most_queued: usize,
    /// Sum and maximum of the delay between the due time of frames and the time at which they were
    /// taken.
    pub late: Duration,
    /// See `late`.
    pub latest: Duration,
    /// Sum of the times from giving frames to taking them.
    pub way: Duration,
}

/// A frame and when it was given.
struct TimedFrame {
    bytes: Vec<u8>,
    given: Duration,
    due: Duration,
}

/// A frame that later ones are to overtake.
struct DelayedFrame {
    frame: TimedFrame,
    /// Number of frames that have yet to pass.
    passing: usize,
    /// True if a frame has overtaken.
    overtaken: bool,
}

/// The model of one way. Times are those since any beginning, and never go back.
pub struct Direction {
    profile: Profile,
    queue: usize,
    loss: Loss,
    duplicate: Share,
    reorder: Share,
    damage: Share,
    jitter: Jitter,
    /// Time when the line has sent everything.
    free_at: Duration,
    /// Frames on the way, in the order in which they leave.
    on_the_way: VecDeque<TimedFrame>,
    held: Vec<DelayedFrame>,
    bytes: usize,
    lost_last: bool,
    counts: Counts,
}

impl fmt::Debug for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direction")
            .field("profile", &self.profile)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Direction {
    /// A way whose random choices follow from `seed`.
    ///
    /// # Errors
    /// Those of [`Profile::check`].
    pub fn new(profile: &Profile, seed: u64) -> Result<Self, ProfileError> {
        profile.check()?;
        Ok(Self {
            queue: profile.queue_bytes(),
            loss: Loss::new(profile, seed),
            duplicate: Share::new(profile.duplicate, seed, 3),
            reorder: Share::new(profile.reorder, seed, 4),
            damage: Share::new(profile.damage, seed, 5),
            jitter: Jitter::new(profile.jitter, seed),
            profile: profile.clone(),
            free_at: Duration::ZERO,
            on_the_way: VecDeque::new(),
            held: Vec::new(),
            bytes: 0,
            lost_last: false,
            counts: Counts::default(),
        })
    }

    /// Gives it a frame.
    pub fn offer(&mut self, now: Duration, bytes: Vec<u8>) {
        self.counts.offered += 1;
        self.counts.offered_bytes += bytes.len() as u64;
        if self.profile.max_packet.is_some_and(|longest| bytes.len() > SPARED + longest) {
            self.counts.too_long += 1;
            return;
        }
        let Some(sent) = self.line(now, bytes.len()) else {
            self.counts.queue_full += 1;
            return;
        };
        if self.bytes + bytes.len() > ON_THE_WAY {
            self.counts.too_many += 1;
            return;
        }
        // Every choice is made for every frame: what became of one does not change the others'
        // fates.
        let (lost, twice, late) = (self.loss.hits(), self.duplicate.hits(), self.reorder.hits());
        let damaged = self.damage.hits();
        let begins = lost && !self.lost_last;
        self.lost_last = lost;
        if lost {
            self.counts.lost += 1;
            self.counts.runs += u64::from(begins);
            return;
        }
        let due = sent + self.profile.delay + self.jitter.at(sent);
        let mut frame = TimedFrame { bytes, given: now, due };
        if damaged && frame.bytes.len() > SPARED {
            if is_arp(&frame.bytes) {
                self.counts.damaged += 1;
                return;
            }
            let bit = self.damage.below((frame.bytes.len() - SPARED) * 8);
            frame.bytes[SPARED + bit / 8] ^= 1 << (bit % 8);
            self.counts.damaged += 1;
        }
        self.bytes += frame.bytes.len();
        if late {
            let passing = 1 + self.reorder.below(3);
            self.held.push(DelayedFrame { frame, passing, overtaken: false });
            return;
        }
        if twice {
            self.counts.duplicated += 1;
            self.bytes += frame.bytes.len();
            self.on_the_way.push_back(TimedFrame { bytes: frame.bytes.clone(), ..frame });
        }
        self.on_the_way.push_back(frame);
        self.overtake(due);
    }

    /// Returns the time when the line will have sent a frame; `None` if there is no room to wait
    /// for it.
    fn line(&mut self, now: Duration, len: usize) -> Option<Duration> {
        let Some(rate) = self.profile.rate else { return Some(now) };
        let time = |bytes: usize| {
            let nanos = bytes as u128 * 8 * 1_000_000_000 / u128::from(rate);
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        let waits = self.free_at.saturating_sub(now);
        let queued = (waits.as_nanos() * u128::from(rate) / 8_000_000_000) as usize;
        if queued + len > self.queue {
            return None;
        }
        self.counts.most_queued = self.counts.most_queued.max(queued + len);
        self.free_at = self.free_at.max(now) + time(len);
        Some(self.free_at)
    }

    /// A frame that is due at `due` has passed those that are held.
    fn overtake(&mut self, due: Duration) {
        let mut at = 0;
        while let Some(held) = self.held.get_mut(at) {
            held.passing -= 1;
            held.overtaken = true;
            if held.passing > 0 {
                at += 1;
                continue;
            }
            let mut held = self.held.remove(at);
            held.frame.due = held.frame.due.max(due);
            self.counts.reordered += 1;
            self.on_the_way.push_back(held.frame);
        }
    }

    /// Returns the time when [`Direction::take`] has something.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let first = self.on_the_way.front().map(|frame| frame.due);
        let held = self.held.iter().map(|held| held.frame.due + HOLD).min();
        first.into_iter().chain(held).min()
    }

    /// The next frame that leaves by now.
    pub fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        let held = self.held.iter().position(|held| held.frame.due + HOLD <= now);
        let frame = if self.on_the_way.front().is_some_and(|frame| frame.due <= now) {
            self.on_the_way.pop_front()?
        } else {
            let held = self.held.remove(held?);
            self.counts.reordered += u64::from(held.overtaken);
            TimedFrame { due: held.frame.due + HOLD, ..held.frame }
        };
        self.bytes -= frame.bytes.len();
        let counts = &mut self.counts;
        counts.delivered += 1;
        counts.delivered_bytes += frame.bytes.len() as u64;
        let late = now - frame.due;
        counts.late += late;
        counts.latest = counts.latest.max(late);
        counts.way += now.saturating_sub(frame.given);
        Some(frame.bytes)
    }

    /// Returns the counters of frames so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}
