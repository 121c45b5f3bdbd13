//! A shard with a completion queue like those in `driver/shard.rs`, `driver/core.rs` and `cq.rs` of
//! `uiw-verbs`, but without a protocol.

use super::handoff::Handoff;
use super::os::{ChannelSet, Instant, StackFd, WakeFd};
use super::progress::{self, Drive, State};
use super::sync::{AtomicU32, Mutex, TryMutexGuard};
use super::time::{JoinHandle, spawn};
use super::watch::Watch;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

/// Work for the holder of the core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Post {
    /// Completes when it is served.
    Send,
    /// Sets a deadline when it is served, and completes in the first round after the deadline.
    Timer,
}

struct ModelCore {
    stack: Arc<StackFd>,
    ready: VecDeque<Post>,
    deadline: Option<Instant>,
    published_deadline: Option<Instant>,
    wakes: Vec<Waker>,
    /// Tokens of the channels whose queues have raised an event, or may have done so while their
    /// token is withheld.
    tokens: Vec<TokenAction>,
    queue: Arc<Queue>,
    /// Number of completions that commands have requested.
    commands: usize,
}

/// Completion queue with an event channel.
pub struct Queue {
    inner: Mutex<CompletionCount>,
    channel: Arc<EventChannel>,
    set: Arc<ChannelSet>,
}

/// Event channel, including the logic of `comp_channel/withheld.rs` for a program that is always
/// observed to poll before it sleeps.
struct EventChannel {
    fd: WakeFd,
    withheld: Mutex<bool>,
}

impl EventChannel {
    fn release(&self) {
        if std::mem::take(&mut *self.withheld.lock()) {
            self.fd.write();
        }
    }
}

impl Wake for EventChannel {
    fn wake(self: Arc<Self>) {
        self.release();
    }
}

/// Action on a channel's token after the core is unlocked.
enum TokenAction {
    /// The queue has raised an event.
    Due(Arc<EventChannel>),
    /// The queue is not armed.
    Completed(Arc<EventChannel>),
}

impl TokenAction {
    /// Performs the action. `posts` is true if it was caused by a post of the calling thread.
    fn give(&self, state: &State, posts: bool) {
        let (Self::Due(channel) | Self::Completed(channel)) = self;
        match self {
            Self::Due(_) if posts => {
                *channel.withheld.lock() = true;
                if !state.withhold(Arc::as_ptr(channel).cast()) {
                    channel.release();
                }
            }
            Self::Due(_) => channel.fd.write(),
            Self::Completed(_) if posts => {}
            Self::Completed(_) => channel.release(),
        }
    }
}

#[derive(Default)]
struct CompletionCount {
    queued: usize,
    armed: bool,
    wakers: Vec<Waker>,
}

impl Queue {
    fn new() -> Self {
        let fd = WakeFd::new().expect("a model has descriptors");
        let set = Arc::new(ChannelSet::new(&fd));
        let channel = Arc::new(EventChannel { fd, withheld: Mutex::default() });
        Self { inner: Mutex::default(), channel, set }
    }

    fn push(&self, wakes: &mut Vec<Waker>, tokens: &mut Vec<TokenAction>) {
        let mut inner = self.inner.lock();
        inner.queued += 1;
        wakes.append(&mut inner.wakers);
        let channel = Arc::clone(&self.channel);
        let fires = std::mem::take(&mut inner.armed);
        tokens.push(if fires {
            TokenAction::Due(channel)
        } else {
            TokenAction::Completed(channel)
        });
    }

    /// Takes all completions and returns their number.
    pub fn pop(&self) -> usize {
        std::mem::take(&mut self.inner.lock().queued)
    }

    fn poll_ready(&self, count: usize, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        if inner.queued >= count {
            return Poll::Ready(());
        }
        if !inner.wakers.iter().any(|known| known.will_wake(cx.waker())) {
            inner.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Shard of the model.
pub struct Shard {
    handoff: Handoff<ModelCore, Post>,
    rounds: AtomicU32,
    state: Arc<State>,
    stack: Arc<StackFd>,
    queue: Arc<Queue>,
    watch: Arc<Watch>,
}

impl Shard {
    /// Creates a shard without its background thread.
    pub fn new() -> Arc<Self> {
        let stack = Arc::new(StackFd::new());
        let queue = Arc::new(Queue::new());
        let core = ModelCore {
            stack: Arc::clone(&stack),
            ready: VecDeque::new(),
            deadline: None,
            published_deadline: None,
            wakes: Vec::new(),
            tokens: Vec::new(),
            queue: Arc::clone(&queue),
            commands: 0,
        };
        let state = State::new(Some(Arc::clone(&stack)), false).expect("a model has descriptors");
        let release = Waker::from(Arc::clone(&queue.channel));
        let watch = state.watch(&queue.set, release).expect("a model's descriptors can be watched");
        Arc::new(Self {
            handoff: Handoff::new(core),
            rounds: AtomicU32::new(0),
            state: Arc::new(state),
            stack,
            queue,
            watch: Arc::new(watch),
        })
    }

    /// Runs `model` on a shard with its background thread, which exits afterwards.
    pub fn with_background(model: impl FnOnce(&Arc<Self>)) {
        let shard = Self::new();
        let (state, weak) = (Arc::clone(&shard.state), Arc::downgrade(&shard));
        let background = spawn(move || progress::run(&state, &weak));
        model(&shard);
        drop(shard);
        background.join();
    }

    /// Starts a thread that runs `body` on the shard.
    pub fn spawn(self: &Arc<Self>, body: impl FnOnce(&Arc<Self>) + Send + 'static) -> JoinHandle {
        let shard = Arc::clone(self);
        spawn(move || body(&shard))
    }

    /// Returns the completion queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Simulates data from the peer that completes a receive.
    pub fn arrive(&self) {
        self.stack.arrive();
    }

    /// Models `ibv_post_send`.
    pub fn post(self: &Arc<Self>, post: Post) {
        if let Some(mut busy) = self.try_lock() {
            busy.posts = true;
            busy.core().serve(post);
        } else {
            self.handoff.post(post);
            self.try_flush();
        }
    }

    /// Models a post that may be coalesced.
    pub fn post_coalesced(&self, post: Post) {
        self.handoff.post(post);
        self.state.coalesce_timer();
    }

    /// Models a control call without waiting for its result; the call completes later.
    pub fn command(self: &Arc<Self>) {
        if let Some(mut busy) = self.try_lock() {
            busy.core().command();
        } else {
            self.handoff.command(Box::new(ModelCore::command));
            self.try_flush();
        }
    }

    /// Models `ibv_poll_cq`: takes all completions, and drives the shard if there are none.
    pub fn poll(self: &Arc<Self>) -> usize {
        self.state.hint_poll();
        let taken = self.queue.pop();
        if taken > 0 {
            return taken;
        }
        self.try_pump();
        self.queue.pop()
    }

    /// Models a poll of another completion queue, which is empty.
    pub fn poll_other_queue(self: &Arc<Self>) {
        self.state.hint_poll();
        self.try_pump();
    }

    /// Models `ibv_req_notify_cq`.
    pub fn arm(self: &Arc<Self>) {
        self.queue.inner.lock().armed = true;
        if self.handoff.is_pending() {
            self.try_flush();
        }
        self.state.arm(Some(&self.watch));
    }

    /// Sleeps in poll(2) until the queue's channel is readable, and takes events while it is.
    /// Panics if there is no event.
    pub fn wait_for_event(self: &Arc<Self>) {
        self.queue.set.sleep();
        self.take_event();
        while self.queue.set.is_readable() {
            self.take_event();
        }
    }

    fn take_event(self: &Arc<Self>) {
        let channel = &self.queue.channel;
        let taken = channel.fd.read() > 0 || {
            let withheld = std::mem::take(&mut *channel.withheld.lock());
            let announced = progress::answer_armed(self, &self.watch);
            withheld || channel.fd.read() > 0 || announced
        };
        assert!(taken, "a channel was readable without an event");
        self.queue.inner.lock().armed = false;
        self.state.disarm(&self.watch);
    }

    /// Models a blocking wait until `count` completions have been made; other threads may take
    /// them.
    pub fn wait(self: &Arc<Self>, count: usize) {
        let done = progress::block_on(self, None, |cx| self.queue.poll_ready(count, cx));
        assert!(done.is_some(), "no deadline was given");
    }

    fn try_lock(self: &Arc<Self>) -> Option<BusyCore<'_>> {
        self.handoff.try_lock().map(|core| BusyCore { shard: self, core: Some(core), posts: false })
    }

    fn try_flush(self: &Arc<Self>) {
        if let Some(mut busy) = self.try_lock() {
            busy.flush();
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.state.stop();
    }
}

impl Drive for Shard {
    fn progress(&self) -> &State {
        &self.state
    }

    fn is_pending(&self) -> bool {
        self.handoff.is_pending()
    }

    fn is_held(&self) -> bool {
        self.handoff.is_held()
    }

    fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::Relaxed)
    }

    fn try_pump(self: &Arc<Self>) -> Option<usize> {
        self.try_lock().map(|mut busy| busy.pump())
    }

    fn try_poll_stack(self: &Arc<Self>) -> Option<usize> {
        self.try_pump()
    }

    fn try_handle_stack_event(self: &Arc<Self>) -> bool {
        self.try_pump().is_some()
    }
}

impl ModelCore {
    fn complete(&mut self) {
        self.queue.push(&mut self.wakes, &mut self.tokens);
    }

    fn command(&mut self) {
        self.commands += 1;
        self.complete();
    }

    fn serve(&mut self, post: Post) {
        match post {
            Post::Send => self.complete(),
            Post::Timer => self.deadline = Some(Instant::now()),
        }
    }
}

/// The core while it is locked.
struct BusyCore<'a> {
    shard: &'a Arc<Shard>,
    core: Option<TryMutexGuard<'a, ModelCore>>,
    /// Whether the calling thread is posting.
    posts: bool,
}

impl BusyCore<'_> {
    fn core(&mut self) -> &mut ModelCore {
        self.core.as_mut().expect("held until drop")
    }

    fn pump(&mut self) -> usize {
        let shard = self.shard;
        let round = shard.rounds.load(Ordering::Relaxed).wrapping_add(1);
        shard.rounds.store(round, Ordering::Relaxed);
        let core = self.core();
        let mut done = core.stack.read();
        for _ in 0..done {
            core.complete();
        }
        if core.deadline.take().is_some() {
            core.complete();
            done += 1;
        }
        done += self.flush();
        if done > 0 {
            shard.state.note_work();
        }
        done
    }

    fn flush(&mut self) -> usize {
        let shard = self.shard;
        let core = self.core();
        let mut done = 0;
        if shard.handoff.take_pending() {
            shard.handoff.take_posts(&mut core.ready);
            for command in shard.handoff.take_commands().unwrap_or_default() {
                command(core);
                done += 1;
            }
        }
        while let Some(post) = core.ready.pop_front() {
            core.serve(post);
            done += 1;
        }
        done
    }

    /// Unlocks the core and performs the pending wake-ups.
    fn release(&mut self) {
        let Some(mut core) = self.core.take() else { return };
        let wakes = std::mem::take(&mut core.wakes);
        let tokens = std::mem::take(&mut core.tokens);
        let deadline = core.deadline;
        let is_new = std::mem::replace(&mut core.published_deadline, deadline) != deadline;
        let earlier = is_new && self.shard.state.set_timer(deadline);
        drop(core);
        if earlier {
            self.shard.state.wake_owner();
        }
        wakes.into_iter().for_each(Waker::wake);
        let posts = std::mem::take(&mut self.posts);
        tokens.iter().for_each(|token| token.give(&self.shard.state, posts));
    }
}

impl Drop for BusyCore<'_> {
    fn drop(&mut self) {
        self.release();
        let shard = self.shard;
        let has_posts = shard.handoff.serve_rest(|core| {
            self.core = Some(core);
            self.flush();
            self.release();
        });
        if has_posts {
            shard.state.coalesce_timer();
        }
    }
}
