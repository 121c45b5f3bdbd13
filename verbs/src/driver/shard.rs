//! A shard: an event set with its connections, timers and staging memory, protected by one lock.

use super::handoff::Handoff;
use super::progress::{self, State};
use super::sync::{Mutex, TryMutexGuard};
use super::{Core, Shared};
use crate::error::{Error, Result};
use crate::options::Progress;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uiw_llp::Token;

pub(crate) struct Shard {
    index: usize,
    shared: Arc<Shared>,
    /// The core, and work that waits for the thread that holds it: connections whose doorbell was
    /// rung, and commands.
    handoff: Handoff<Core, Token>,
    /// Number of rounds (wrapping), without those that poll the stack first. It shows the
    /// background thread whether another thread drives. Written only while the core is held.
    pub(super) rounds: AtomicU32,
    /// Number of the last round during which a poll found the core held.
    pub(super) contended_round: AtomicU32,
    /// Shared with the background thread, which may outlive the shard.
    pub(super) progress: Arc<State>,
    /// True if the background thread was started.
    started: Mutex<bool>,
}

/// Maximum time for which the drop of a device waits for the background thread's round.
const CLOSE_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

impl Shard {
    pub(super) fn new(
        core: Core,
        index: usize,
        shared: Arc<Shared>,
        progress: Progress,
    ) -> Result<Arc<Self>> {
        let state = State::new(core.stack.wait_fd(), progress == Progress::Manual)
            .map_err(Error::io("opening the descriptors that a shard waits with"))?;
        Ok(Arc::new(Self {
            index,
            shared,
            handoff: Handoff::new(core),
            rounds: AtomicU32::new(0),
            contended_round: AtomicU32::new(0),
            progress: Arc::new(state),
            started: Mutex::new(false),
        }))
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn is_manual(&self) -> bool {
        self.progress.is_manual()
    }

    /// Starts the background thread, with the first listener or connection. An idle shard has none.
    /// The thread ends with the shard.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let mut started = self.started.lock();
        if !self.is_manual() && !*started {
            let (state, shard) = (Arc::clone(&self.progress), Arc::downgrade(self));
            crate::thread::spawn("uiw-driver", move || progress::run(&state, &shard))
                .map_err(Error::io("starting the driver thread"))?;
            *started = true;
        }
        Ok(())
    }

    /// Rings the doorbell of a connection, which the thread that holds the core then serves.
    pub(crate) fn ring(&self, token: Token) {
        self.handoff.post(token);
    }

    pub(super) fn is_pending(&self) -> bool {
        self.handoff.is_pending()
    }

    /// Locks the core, waiting for it. Only for programs that drive the device themselves
    /// ([`crate::Device::pump`]).
    pub(crate) fn lock(self: &Arc<Self>) -> LockedCore<'_> {
        let guarded = self.guarded();
        LockedCore::new(self, self.handoff.lock(), guarded)
    }

    pub(super) fn is_held(&self) -> bool {
        self.handoff.is_held()
    }

    #[inline]
    pub(super) fn try_lock(self: &Arc<Self>) -> Option<LockedCore<'_>> {
        self.handoff.try_lock().map(|core| LockedCore::new(self, core, self.guarded()))
    }

    fn guarded(&self) -> Option<HookGuard> {
        self.shared
            .progress_hooks
            .map(|hooks| HookGuard { leave: hooks.leave, entered: (hooks.enter)() })
    }

    /// Runs `command` on the core and returns its result. If another thread drives, that thread
    /// runs it, after the connection that it is serving.
    pub(crate) fn call<R: Send + 'static>(
        self: &Arc<Self>,
        command: impl FnOnce(&mut Core) -> R + Send + 'static,
    ) -> R {
        let results = match self.request(command) {
            Ok(result) => return result,
            Err(results) => results,
        };
        match results.recv() {
            Ok(result) => result,
            Err(_) => {
                unreachable!(
                    "a thread that takes a command runs it, and the shard outlives this call"
                )
            }
        }
    }

    /// Like [`Self::call`], for a thread that may itself be driving, because a signal handler that
    /// ends the process has interrupted its round. Returns `None` if there is no result within
    /// `timeout`.
    pub(super) fn call_within<R: Send + 'static>(
        self: &Arc<Self>,
        timeout: Duration,
        command: impl FnOnce(&mut Core) -> R + Send + 'static,
    ) -> Option<R> {
        // A thread holds the lock of at most one shard, so a thread that was interrupted while it
        // holds one locks no other.
        #[cfg(debug_assertions)]
        if HOLDS.get() {
            return None;
        }
        self.request(command).map_or_else(|results| results.recv_timeout(timeout).ok(), Some)
    }

    /// Runs `command`, or leaves it to the thread that drives; then its result is received from the
    /// returned channel.
    fn request<R: Send + 'static>(
        self: &Arc<Self>,
        command: impl FnOnce(&mut Core) -> R + Send + 'static,
    ) -> std::result::Result<R, mpsc::Receiver<R>> {
        if let Some(mut locked) = self.try_lock() {
            let core = locked.core();
            core.read_clock();
            return Ok(command(core));
        }
        let (result, results) = mpsc::sync_channel(1);
        self.handoff.command(Box::new(move |core| {
            // The caller may no longer be waiting.
            let _ = result.send(command(core));
        }));
        self.try_flush();
        Err(results)
    }

    /// Returns whether commands wait for a thread that drives the shard.
    pub(super) fn has_commands(&self) -> bool {
        self.handoff.has_commands()
    }

    /// Queues `command` for the next thread that drives the shard. May be called while the lock of
    /// another shard is held.
    pub(super) fn enqueue(&self, command: impl FnOnce(&mut Core) + Send + 'static) {
        self.handoff.command(Box::new(command));
        self.coalesce_timer();
    }

    /// Drops connections, listeners and the stack, when the device is dropped. Waits for at most
    /// [`CLOSE_LOCK_TIMEOUT`] until a background thread that drives has unlocked the core.
    pub(super) fn close(&self) {
        // A round takes much less time than this timeout. So locking fails only if this thread
        // holds the lock itself, because the last handle was dropped within a round.
        let Some(mut core) = self.handoff.lock_within(CLOSE_LOCK_TIMEOUT) else { return };
        let left = core.close();
        drop(core);
        drop(left);
    }

    /// Makes one round, unless another thread drives. Returns the amount of work done.
    pub(crate) fn try_pump(self: &Arc<Self>) -> usize {
        self.try_lock().map_or(0, |mut locked| locked.pump())
    }

    /// Serves only the connections whose doorbell was rung, without reading from the network. This
    /// is what a post does. Returns false if another thread drives.
    pub(crate) fn try_flush(self: &Arc<Self>) -> bool {
        let Some(mut locked) = self.try_lock() else { return false };
        locked.flush();
        true
    }

    /// Serves one connection for which something was posted. If another thread drives, that thread
    /// does it.
    pub(crate) fn serve(self: &Arc<Self>, token: Token) {
        if let Some(mut locked) = self.try_lock() {
            // Bytes of earlier posts do not count against the limit of this one.
            locked.core().services.moved = 0;
            locked.core().serve(token);
            locked.is_post = true;
        } else {
            self.ring(token);
            self.try_flush();
        }
    }

    /// Moves the connections whose doorbell was rung to the core's list, then runs the waiting
    /// commands. So a command that serves doorbells ([`super::Driver::serve_posts`]) finds those
    /// that were rung before it was queued.
    #[inline]
    pub(super) fn take_pending(&self, core: &mut Core) {
        if self.handoff.take_pending() {
            self.handoff.take_posts(&mut core.ready);
            self.run_commands(core);
        }
    }

    /// Runs the waiting commands, between two connections.
    #[inline]
    pub(super) fn run_commands(&self, core: &mut Core) {
        if let Some(commands) = self.handoff.take_commands() {
            core.read_clock();
            for command in commands {
                command(core);
            }
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.progress.stop();
    }
}

/// The locked core. Dropping it unlocks the core, executes the collected wake-ups, and serves the
/// work for which other threads have set `pending`.
pub(crate) struct LockedCore<'a> {
    shard: &'a Arc<Shard>,
    core: Option<TryMutexGuard<'a, Core>>,
    /// True if the thread has only served a post of its own since it has locked the core.
    is_post: bool,
    /// Must be dropped last.
    _guarded: Option<HookGuard>,
}

/// Represents the time between the two calls of a [`crate::ProgressHooks`].
struct HookGuard {
    leave: fn(i32),
    entered: i32,
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        (self.leave)(self.entered);
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// True while this thread holds the lock of a shard.
    static HOLDS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl<'a> LockedCore<'a> {
    fn new(
        shard: &'a Arc<Shard>,
        core: TryMutexGuard<'a, Core>,
        guarded: Option<HookGuard>,
    ) -> Self {
        #[cfg(debug_assertions)]
        assert!(!HOLDS.replace(true), "a thread holds the locks of two shards");
        Self { shard, core: Some(core), is_post: false, _guarded: guarded }
    }

    /// Returns the core.
    pub(crate) fn core(&mut self) -> &mut Core {
        match &mut self.core {
            Some(core) => core,
            None => unreachable!("the core is held until drop"),
        }
    }

    /// Makes one round: doorbells, arrivals, timers.
    pub(crate) fn pump(&mut self) -> usize {
        self.pump_until(&|| false)
    }

    /// Like [`LockedCore::pump`], but ends early, between two connections, once `enough` returns true.
    pub(crate) fn pump_until(&mut self, enough: &dyn Fn() -> bool) -> usize {
        let shard = self.shard;
        let round = shard.rounds.load(Ordering::Relaxed).wrapping_add(1);
        shard.rounds.store(round, Ordering::Relaxed);
        let work = self.core().pump(shard, enough);
        if work > 0 {
            shard.progress.note_work();
        }
        work
    }

    /// Makes a round that polls the stack first. Returns the number of the stack's events.
    pub(super) fn poll_stack(&mut self) -> usize {
        let shard = self.shard;
        let core = self.core();
        core.read_clock();
        let events = core.poll_stack();
        let work = core.pump(shard, &|| false);
        if events + work > 0 {
            shard.progress.note_work();
        }
        events
    }

    /// Makes a round. If it moves nothing, polls the stack, which most rounds with few connections
    /// do not. Returns the amount of work done.
    pub(super) fn pump_all(&mut self) -> usize {
        let work = self.pump();
        if work > 0 || self.core().services.moved > 0 { work.max(1) } else { self.poll_stack() }
    }

    fn flush(&mut self) {
        let shard = self.shard;
        self.core().services.moved = 0;
        self.core().serve_ready(shard);
    }

    #[inline(always)]
    fn release(&mut self) {
        if let Some(mut core) = self.core.take() {
            #[cfg(debug_assertions)]
            HOLDS.set(false);
            if !core.has_nothing_to_release() {
                Self::release_all(self.shard, core, self.is_post);
            }
        }
    }

    /// Unlocks the core, and does what the round has left for afterwards. A separate function,
    /// because most rounds leave nothing.
    #[inline(never)]
    fn release_all(shard: &Shard, mut core: TryMutexGuard<'_, Core>, is_post: bool) {
        let wakes = std::mem::take(&mut core.services.wakes);
        let trash = std::mem::take(&mut core.trash);
        // Stored while the core is held, so that it does not overwrite a deadline that another
        // thread sets after unlocking.
        let earlier = core.new_deadline().is_some_and(|next| shard.progress.set_timer(next));
        let bulk_disconnect = std::mem::take(&mut core.bulk_disconnect);
        drop(core);
        if earlier {
            shard.progress.wake_owner();
        }
        drop(trash);
        if is_post {
            wakes.give_after_post(|withheld| shard.progress.withhold(Arc::as_ptr(withheld).cast()));
        } else {
            wakes.give();
        }
        if bulk_disconnect {
            shard.shared.trim.bulk_disconnect(!shard.is_manual());
        }
    }
}

impl Drop for LockedCore<'_> {
    fn drop(&mut self) {
        self.release();
        let shard = self.shard;
        let has_posts = shard.handoff.serve_rest(|core| {
            #[cfg(debug_assertions)]
            HOLDS.set(true);
            self.core = Some(core);
            self.is_post = false;
            self.flush();
            self.release();
        });
        if has_posts {
            // Leaves the posts to another thread, because this one has other work.
            shard.coalesce_timer();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceConfig};

    /// The completion queue's `resize` counts the completions of requests that were posted before
    /// it.
    #[test]
    fn command_sees_earlier_doorbells() {
        let device = Device::open().unwrap();
        let shard = device.driver().shard_at(0);
        let (served, results) = mpsc::channel();
        let locked = shard.lock();
        shard.ring(Token(0));
        let same = Arc::clone(shard);
        shard.enqueue(move |core| served.send(core.serve_ready(&same)).unwrap());
        drop(locked);
        assert_eq!(results.recv().unwrap(), 1);
    }

    /// No thread drives a shard without connections.
    #[test]
    fn relief_of_idle_shards_does_not_accumulate() {
        let device = Device::open_with(DeviceConfig::default().shards(2)).unwrap();
        let mut locked = device.driver().shard_at(0).lock();
        for _ in 0..10 {
            let core = locked.core();
            core.services.now = core.services.now.after(Duration::from_secs(1));
            core.relieve_all_shards();
        }
        let waiting = device.driver().shard_at(1).handoff.take_commands().unwrap();
        assert_eq!(waiting.len(), 1);
    }

    /// Another thread holds the core, or this thread does, and a signal handler calls `exit` during
    /// its round.
    #[test]
    fn final_wait_respects_timeout() {
        let device = Device::open().unwrap();
        let locked = device.driver().shard_at(0).lock();
        assert!(!device.wait_idle(Duration::from_millis(10)));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| device.wait_idle(Duration::from_millis(10)));
            assert!(!other.join().unwrap());
        });
        drop(locked);
        assert!(device.wait_idle(Duration::from_secs(60)));
    }
}
