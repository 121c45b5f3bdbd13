//! Model of one direction of a path.

use super::chance::{Jitter, Loss, Share};
use super::{Profile, ProfileError};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Maximum number of bytes in transit: 1 Gbit/s for two seconds.
const ON_THE_WAY: usize = 256 << 20;
/// Time for which a frame that has to be overtaken waits for later frames.
const HOLD: Duration = Duration::from_millis(10);
/// Number of bytes in which no bit is flipped: the Ethernet header.
const SPARED: usize = 14;

/// Returns whether a frame is of the Address Resolution Protocol (RFC 826), which has no checksum
/// of its own. Damage that Ethernet's checksum did not detect would give a neighbour a wrong MAC
/// address for minutes.
fn is_arp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6])
}

/// Counters of forwarded, dropped, duplicated and reordered frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of frames that were offered.
    pub offered: u64,
    /// Number of bytes in these frames.
    pub offered_bytes: u64,
    /// Number of frames that were delivered, including duplicates.
    pub delivered: u64,
    /// Number of bytes in these frames.
    pub delivered_bytes: u64,
    /// Number of frames lost by chance.
    pub lost: u64,
    /// Number of runs of such losses.
    pub runs: u64,
    /// Number of frames lost because the queue was full.
    pub queue_full: u64,
    /// Number of frames lost because their packets were longer than [`Profile::max_packet`].
    pub too_long: u64,
    /// Number of frames lost because more than 256 MiB would have been in transit.
    pub too_many: u64,
    /// Number of frames delivered twice.
    pub duplicated: u64,
    /// Number of frames overtaken by others.
    pub reordered: u64,
    /// Number of frames delivered with a flipped bit, and of ARP frames that were dropped instead.
    pub damaged: u64,
    /// Maximum number of bytes that waited for the line.
    pub most_queued: usize,
    /// Sum of the times between the due time of a frame and the time at which it was taken.
    pub late: Duration,
    /// Maximum of the times in `late`.
    pub latest: Duration,
    /// Sum of the times between offering and taking a frame.
    pub way: Duration,
}

/// Frame, with the time at which it was offered and the time at which it is due.
struct TimedFrame {
    bytes: Vec<u8>,
    given: Duration,
    due: Duration,
}

/// Frame that has to be overtaken by later ones.
struct DelayedFrame {
    frame: TimedFrame,
    /// Number of frames that still have to overtake it.
    passing: usize,
    /// True if at least one frame has overtaken it.
    overtaken: bool,
}

/// Model of one direction. Times are relative to an arbitrary beginning, and never go back.
pub struct Direction {
    profile: Profile,
    queue: usize,
    loss: Loss,
    duplicate: Share,
    reorder: Share,
    damage: Share,
    jitter: Jitter,
    /// Time at which the line will have transmitted all frames.
    free_at: Duration,
    /// Frames in transit, in the order in which they leave.
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
    /// Creates a model whose random choices are derived from `seed`.
    ///
    /// # Errors
    /// The errors of [`Profile::check`].
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

    /// Offers a frame to the path.
    pub fn offer(&mut self, now: Duration, bytes: Vec<u8>) {
        self.counts.offered += 1;
        self.counts.offered_bytes += bytes.len() as u64;
        if self.profile.max_packet.is_some_and(|longest| bytes.len() > SPARED + longest) {
            self.counts.too_long += 1;
            return;
        }
        let Some(sent) = self.queue_on_line(now, bytes.len()) else {
            self.counts.queue_full += 1;
            return;
        };
        if self.bytes + bytes.len() > ON_THE_WAY {
            self.counts.too_many += 1;
            return;
        }
        // Every choice is made for every frame, so that the fate of one frame does not affect those
        // of others.
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
        self.note_overtaking_frame(due);
    }

    /// Puts a frame in the queue of the line, and returns the time at which the line will have
    /// transmitted it. Returns `None` if the queue has no room for it.
    fn queue_on_line(&mut self, now: Duration, len: usize) -> Option<Duration> {
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

    /// Notes that a frame due at `due` overtakes all held frames. Held frames that enough frames
    /// have overtaken leave right after it.
    fn note_overtaking_frame(&mut self, due: Duration) {
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

    /// Returns the time at which [`Direction::take`] will return a frame, if any is in transit.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let first = self.on_the_way.front().map(|frame| frame.due);
        let held = self.held.iter().map(|held| held.frame.due + HOLD).min();
        first.into_iter().chain(held).min()
    }

    /// Returns the next frame that is due.
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
