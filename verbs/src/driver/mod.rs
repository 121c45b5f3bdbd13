//! The driver of a device: the state that its shards share ([`Shared`]), and the shards, on which
//! its connections make progress.
//!
//! The state of a connection is in the [`Core`] of one shard, behind one lock that the data path
//! only *tries* to take: a thread that gets it serves every connection of the shard; a thread that
//! does not sets `pending`, which the holder reads after unlocking. So no post and no poll waits
//! for another thread's system call, and no flush is lost. A control call is a command
//! ([`Shard::call`]): it waits at most for the batch of the connection that is being served.
//!
//! No thread holds the locks of two shards.
//!
//! # Shards
//!
//! By default a device has as many shards as the process has cores, at most 8. A stack whose
//! connections can only be driven together (smoltcp, the simulated one) has one shard. The table of
//! STags, limits, queue pair numbers and the receive memory budget belong to the device.
//!
//! * A connection begins on the shard of its receive completion queue. A token contains the shard,
//!   the slot and the slot's generation.
//! * A completion queue gets its shard with its first connection, each queue the next one in turn.
//!   In C, completion vector 0 lets the device choose, and vectors 1 to n select a shard.
//! * The connections of a queue move to the home shard of the thread that polls it, if that thread
//!   repeatedly finds that other threads poll the same shard (`moves`). Those of a queue whose
//!   program has selected a shard stay there.
//! * A completion queue stores the shards of its connections, and a poll drives only those. A round
//!   ends once a completion is queued or 2 MiB have moved. With several connections each gets one
//!   read and one batch per round, and the next round starts after the last one served.
//! * A connection that a listener accepted on another shard moves when the application accepts it:
//!   out of the listener's shard, then into the queue pair's (`ConnRequest::move_to`).
//! * A queue pair without a connection changes under its own lock. `Qp::set_access` stores the
//!   rights and runs an empty command on the shard: rights are checked for every segment while the
//!   core is locked, so no segment uses a removed right once the command has run.
//! * A shared receive queue belongs to no shard. A post to it rings the doorbells of the
//!   connections that wait for a receive, on every shard.
//! * A shard's background thread starts with its first listener or connection, and blocks all
//!   signals.

mod affinity;
mod closed;
mod contention;
mod core;
mod drive;
mod epoll_waiter;
mod handoff;
mod moves;
mod os;
mod park;
mod pool;
mod progress;
mod relief;
mod services;
mod shard;
mod shared;
mod sync;
mod timers;
mod token;
mod trim;
mod watch;

pub(crate) use self::core::{Core, ROUND_BYTES, Slot};
pub(crate) use contention::{PollContention, thread_id};
pub(crate) use os::ChannelSet;
pub(crate) use pool::Pool;
pub(crate) use progress::ActiveTask;
#[cfg(test)]
pub(crate) use services::STAGING_LEN;
pub(crate) use services::{PAGE, RX_STAGING, Services};
pub(crate) use shard::Shard;
pub(crate) use shared::{AddressEntry, HeldBytes, MessageCharge, Shared};
pub(crate) use timers::Timers;
pub(crate) use watch::Watch;

use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::options::{DeviceConfig, Limits};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use uiw_counters::DeviceCounters;
use uiw_llp::{Token, TransportStack};

/// Number of bits of a token that contain the number of its shard, above the key of its slot.
const SHARD_BITS: u32 = 6;
const SHARD_SHIFT: u32 = 32 - SHARD_BITS;
/// Maximum number of shards of a device.
pub(crate) const MAX_SHARDS: usize = 1 << SHARD_BITS;
/// Maximum number of shards of a device whose options set no number.
const DEFAULT_SHARDS: usize = 8;

/// Returns the number of the shard that serves the object with this token.
fn shard_of(token: Token) -> usize {
    (token.0 as u32 >> SHARD_SHIFT) as usize
}

pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    shards: Box<[Arc<Shard>]>,
    affinity: affinity::Affinity,
    next_listener: AtomicUsize,
    wait_fds: Vec<Arc<OwnedFd>>,
}

impl Driver {
    pub(crate) fn start(
        stack: Box<dyn TransportStack>,
        options: DeviceConfig,
    ) -> Result<Arc<Self>> {
        let encrypts = options.encrypts();
        let DeviceConfig { limits, progress, progress_hooks, shards, counters, faults, .. } =
            options;
        let wanted = match shards {
            Some(0) => return Err(Error::Zero { what: "number of shards" }),
            Some(shards) if shards > MAX_SHARDS => {
                return Err(Error::Limit {
                    what: "number of shards",
                    asked: shards as u64,
                    limit: MAX_SHARDS as u64,
                });
            }
            Some(shards) => shards,
            None => std::thread::available_parallelism()
                .map_or(1, |cores| cores.get().min(DEFAULT_SHARDS)),
        };
        let base = stack.now();
        let mut stacks = vec![stack];
        while stacks.len() < wanted {
            match stacks[0].shard().map_err(Error::io("opening a shard of the stack"))? {
                Some(stack) => stacks.push(stack),
                // All connections of this stack are driven together.
                None => break,
            }
        }
        let wait_fds = stacks.iter().filter_map(|stack| stack.wait_fd()).collect();
        let counters = DeviceCounters::new(stacks.len(), counters.as_ref())
            .map_err(Error::io("mapping the memory of the device's counters"))?;
        let shared =
            Arc::new(Shared::new(limits, progress_hooks, counters, Faults::new(faults), encrypts));
        let (mut failed, shard_count) = (None, stacks.len());
        let driver = Arc::new_cyclic(|this| {
            let shards = stacks.into_iter().enumerate().map_while(|(index, stack)| {
                let core = Core::new(stack, index, base, this.clone(), &shared);
                Shard::new(core, index, Arc::clone(&shared), progress)
                    .map_err(|e| failed = Some(e))
                    .ok()
            });
            Self {
                shards: shards.collect(),
                shared: Arc::clone(&shared),
                affinity: affinity::Affinity::new(shard_count),
                next_listener: AtomicUsize::new(0),
                wait_fds,
            }
        });
        failed.map_or(Ok(driver), Err)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    pub(crate) fn wait_fds(&self) -> &[Arc<OwnedFd>] {
        &self.wait_fds
    }

    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Returns the shard that serves the object with this token.
    #[inline]
    pub(crate) fn shard(&self, token: Token) -> &Arc<Shard> {
        &self.shards[shard_of(token)]
    }

    /// Records that a queue is polled. `shards` has the bits of the shards of its connections.
    #[inline]
    pub(crate) fn note_poll(&self, shards: u64) {
        self.each_shard(shards, |shard| shard.progress.hint_poll());
    }

    /// Makes one round of each of these shards, for a poll that found nothing. A round ends early
    /// once `enough` returns true.
    ///
    /// `thread` is the id of the calling thread if the poll is observed. Then this returns whether
    /// another thread has polled one of the shards since the last observed poll of this thread.
    #[inline]
    pub(crate) fn poll_progress(
        &self,
        shards: u64,
        thread: Option<usize>,
        enough: &dyn Fn() -> bool,
    ) -> bool {
        let mut contended = false;
        self.each_shard(shards, |shard| contended |= shard.poll_progress(thread, enough));
        contended
    }

    /// Returns whether one of these shards has posted requests that no round has served yet.
    pub(crate) fn has_pending(&self, shards: u64) -> bool {
        let mut pending = false;
        self.each_shard(shards, |shard| pending |= shard.is_pending());
        pending
    }

    /// Records that a queue is armed. `shards` has the bits of the shards of its connections, and
    /// `watch` returns the watch of a shard in the queue's channel.
    pub(crate) fn arm(&self, shards: u64, watch: impl Fn(usize) -> Option<Arc<Watch>>) {
        self.each_shard(shards, |shard| shard.arm(watch(shard.index()).as_ref()));
    }

    /// Like [`Driver::arm`] for one shard, for a thread that sleeps in its own poll(2) next (see
    /// [`State::arm_waiter`](progress::State::arm_waiter)).
    pub(crate) fn arm_waiter(&self, shard: usize, watch: Option<&Arc<Watch>>) {
        self.shard_at(shard).arm_waiter(watch);
    }

    /// Records that the thread of a watch on this shard no longer sleeps for it.
    pub(crate) fn end_served(&self, shard: usize) {
        self.shard_at(shard).progress.end_served();
    }

    /// Creates a [`Watch`] of a shard in the set of a channel, whose program is expected to drive
    /// the shard.
    pub(crate) fn watch(
        &self,
        shard: usize,
        set: &Arc<ChannelSet>,
        release: Waker,
    ) -> Option<Watch> {
        self.shard_at(shard).progress.watch(set, release)
    }

    /// Records that the program of `watch`, which is on this shard, has taken its event (see
    /// [`State::disarm`](progress::State::disarm)).
    pub(crate) fn disarm(&self, shard: usize, watch: &Arc<Watch>) {
        self.shard_at(shard).progress.disarm(watch);
    }

    /// Calls [`progress::answer_armed`].
    pub(crate) fn answer_armed(&self, shard: usize, watch: &Arc<Watch>) -> bool {
        progress::answer_armed(self.shard_at(shard), watch)
    }

    /// Calls [`State::note_spurious_wake_up`](progress::State::note_spurious_wake_up).
    pub(crate) fn note_spurious_wake_up(&self, shard: usize, watch: &Arc<Watch>) {
        self.shard_at(shard).progress.note_spurious_wake_up(watch);
    }

    /// Serves all requests that were posted on the shards whose bits are set, and then returns.
    pub(crate) fn serve_posts(&self, shards: u64) {
        self.each_shard(shards, |shard| {
            let same = Arc::clone(shard);
            shard.call(move |core| core.serve_ready(&same));
        });
    }

    /// Calls `each` with the shards whose bits are set.
    #[inline(always)]
    fn each_shard(&self, mut bits: u64, mut each: impl FnMut(&Arc<Shard>)) {
        while bits != 0 {
            if let Some(shard) = self.shards.get(bits.trailing_zeros() as usize) {
                each(shard);
            }
            bits &= bits - 1;
        }
    }

    /// Returns the shard with this number, modulo the number of shards.
    pub(crate) fn shard_at(&self, index: usize) -> &Arc<Shard> {
        &self.shards[index % self.shards.len()]
    }

    /// Returns the shard for the first connection of a receive completion queue.
    pub(crate) fn shard_for_queue(&self) -> usize {
        self.affinity.shard_for_queue()
    }

    /// Returns the shard for a new listener, round-robin.
    pub(crate) fn shard_for_listener(&self) -> &Arc<Shard> {
        self.shard_at(self.next_listener.fetch_add(1, Ordering::Relaxed))
    }

    /// Records that the calling thread has made or accepted a connection on the shard of this
    /// token. The thread drives that shard when it waits.
    pub(crate) fn note_use(&self, token: Token) {
        self.affinity.note_use(shard_of(token));
    }

    /// Rings the doorbells of connections.
    pub(crate) fn ring_all(&self, tokens: &[Token]) {
        for token in tokens {
            self.shard(*token).ring(*token);
        }
        for shard in &self.shards {
            // A connection that is served at once would take one receive and stall again. The next
            // poll serves it with more receives.
            if tokens.iter().any(|token| shard_of(*token) == shard.index()) {
                shard.coalesce_timer();
            }
        }
    }

    /// Returns whether a connection whose queue pair was destroyed still has something to send, or
    /// `None` if there is no answer within `timeout`.
    pub(crate) fn is_draining(&self, timeout: Duration) -> Option<bool> {
        self.any_within(timeout, |core| core.has_draining())
    }

    /// Returns whether `ask` returns true for any shard, or `None` if there is no answer within
    /// `timeout`.
    fn any_within(&self, timeout: Duration, ask: fn(&mut Core) -> bool) -> Option<bool> {
        let begun = Instant::now();
        let mut any = false;
        for shard in &self.shards {
            any |= shard.call_within(timeout.saturating_sub(begun.elapsed()), ask)?;
        }
        Some(any)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.call(|core| core.deadline())).min()
    }

    /// Returns whether the stacks have sent everything that must be sent before the process ends,
    /// or `None` if there is no answer within `timeout`.
    pub(crate) fn drain(&self, timeout: Duration) -> Option<bool> {
        self.any_within(timeout, |core| !core.stack.drain()).map(|left| !left)
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.shards[0].is_manual()
    }

    /// Makes one round of each shard. Returns the amount of work done.
    pub(crate) fn pump(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().pump_all()).sum()
    }

    /// Calls `poll` until it is ready or `deadline` has passed. Meanwhile the thread drives the
    /// shard that it used last, and wakers wake it for the others. If the device has manual
    /// progress, it drives all of them.
    pub(crate) fn block_on<T>(
        &self,
        deadline: Option<Instant>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let manual = self.is_manual();
        progress::block_on(self.shard_at(self.affinity.shard_to_wait_on()), deadline, |cx| {
            if manual {
                for shard in &self.shards {
                    shard.try_pump();
                }
            }
            poll(cx)
        })
    }
}

impl Drop for Driver {
    /// Releases sockets, addresses and ports before the drop of the last handle of the device
    /// returns, because a thread of the engine that is about to end must not hold any.
    fn drop(&mut self) {
        for shard in &self.shards {
            shard.close();
        }
    }
}
