//! The thread that connects hand-made queue pairs. It sleeps unless something happens or is due.

use super::hello::{Hello, LATER};
use super::{Patience, Target};
use crate::boundary::Result;
use crate::settings::Settings;
use crate::signals::Held;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use verbs::cm::{self, CmChannel, CmEvent, CmEventKind, ConnId, ConnInfo, ConnRequest};
use verbs::{ConnOptions, Error, QpState, Revision, WcStatus};

/// How long the end that listens waits before it connects as well.
const TURN: Duration = Duration::from_secs(1);
/// How long a caller waits for us while we are calling it.
const GRACE: Duration = Duration::from_millis(500);
/// How long a caller is kept for a queue pair that is not in RTR.
const PARKED: Duration = Duration::from_secs(5);
/// Callers kept for one queue pair, and for all.
const PARKED_EACH: usize = 4;
const PARKED_ALL: usize = 1024;
/// Between two attempts: at first, and at most.
const RETRY: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_millis(500);

/// The thread's half that others see.
pub(super) struct Worker {
    channel: Arc<CmChannel>,
    thread: OnceLock<Thread>,
    options: Arc<ConnOptions>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pairs: HashMap<u32, Pair>,
    /// Those without a standing connection.
    unconnected: BTreeSet<u32>,
    /// Whose connection it is.
    conns: HashMap<ConnId, u32>,
    callers: Vec<Caller>,
}

struct Pair {
    qp: Arc<verbs::Qp>,
    /// Posting says so here while it is true.
    calling: Arc<AtomicBool>,
    target: Target,
    patience: Patience,
    phase: Phase,
    /// When to connect next, if nobody has called by then.
    next: Option<Instant>,
    retry: Duration,
    /// When to give up; set once something is posted.
    gives_up: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Calling(ConnId),
    Answering(ConnId),
    Standing(ConnId),
}

/// A peer that called before its queue pair was ready for it.
struct Caller {
    hello: Hello,
    request: ConnRequest,
    since: Instant,
}

struct Bell(Arc<Worker>, AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.wake();
    }
}

impl Worker {
    pub(super) fn start(engine: &verbs::Device) -> Result<Arc<Self>> {
        let settings = Settings::get()?;
        let limit = engine.limits().max_rd_atomic.min(128);
        let options = ConnOptions {
            // IRD, ORD and who may send first are told by revision 2 alone.
            revision: Revision::Two,
            peer_to_peer: true,
            ird: limit,
            ord: limit,
            acknowledged: settings.acknowledged(),
            outlives_peer: true,
            // InfiniBand's habit: a Send waits for its receive.
            no_receive_timeout: Duration::MAX,
            ..settings.conn.clone()
        };
        let worker = Arc::new(Self {
            channel: Arc::default(),
            thread: OnceLock::new(),
            options: Arc::new(options),
            state: Mutex::default(),
        });
        let run = Arc::clone(&worker);
        let _held = Held::new();
        let thread = thread::Builder::new().name("uiw-pairs".to_owned()).spawn(move || run.run())?;
        let _ = worker.thread.set(thread.thread().clone());
        Ok(worker)
    }

    pub(super) fn options(&self) -> ConnOptions {
        ConnOptions::clone(&self.options)
    }

    pub(super) fn channel(&self) -> &Arc<CmChannel> {
        &self.channel
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// `number` is in RTR and looks for `target`.
    pub(super) fn want(&self, number: u32, qp: &Arc<verbs::Qp>, calling: &Arc<AtomicBool>, target: Target) {
        let now = Instant::now();
        let pair = Pair {
            qp: Arc::clone(qp),
            calling: Arc::clone(calling),
            target,
            patience: Patience { connection: None, receive: Duration::MAX },
            phase: Phase::Waiting,
            next: Some(if target.leads() { now } else { now + TURN }),
            retry: RETRY,
            gives_up: None,
        };
        let mut state = self.state.lock();
        state.pairs.insert(number, pair);
        state.unconnected.insert(number);
        drop(state);
        self.wake();
    }

    /// `number` is in RTS.
    pub(super) fn ready(&self, number: u32, psn: Option<u32>, patience: Patience) {
        let mut state = self.state.lock();
        let Some(pair) = state.pairs.get_mut(&number) else { return };
        pair.patience = patience;
        pair.target.begins = psn.map(|psn| psn & 0xFF_FFFF).or(pair.target.begins);
        if let Phase::Standing(_) = pair.phase {
            let _ = pair.qp.set_no_receive_timeout(patience.receive);
        }
    }

    /// A request may wait for the connection of `number`. False when nobody is making one.
    pub(super) fn posted(&self, number: u32) -> bool {
        let mut state = self.state.lock();
        let Some(pair) = state.pairs.get_mut(&number) else { return false };
        if let Phase::Standing(_) = pair.phase {
            return false;
        }
        if pair.gives_up.is_none()
            && let Some(patience) = pair.patience.connection
        {
            pair.gives_up = Some(Instant::now() + patience);
            drop(state);
            self.wake();
        }
        true
    }

    pub(super) fn forget(&self, number: u32) {
        let mut state = self.state.lock();
        state.unconnected.remove(&number);
        if let Some(pair) = state.pairs.remove(&number)
            && let Phase::Calling(conn) | Phase::Answering(conn) | Phase::Standing(conn) = pair.phase
        {
            state.conns.remove(&conn);
        }
    }

    fn run(self: Arc<Self>) {
        let bell = Arc::new(Bell(Arc::clone(&self), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&bell));
        let mut cx = Context::from_waker(&waker);
        loop {
            bell.1.store(false, Ordering::Release);
            while let Poll::Ready(event) = self.channel.poll_pop(&mut cx) {
                self.event(event);
            }
            let next = self.state.lock().due(Instant::now(), &self);
            if bell.1.load(Ordering::Acquire) {
                continue;
            }
            match next {
                Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
    }

    fn event(&self, event: CmEvent) {
        let mut state = self.state.lock();
        match event.kind {
            CmEventKind::ConnectRequest(request) => state.called(request, self),
            CmEventKind::Established(info) => state.stands(event.id, &info),
            CmEventKind::Failed(error) => state.failed(event.id, &error),
            CmEventKind::Disconnected(_) => {
                if let Some(number) = state.conns.remove(&event.id) {
                    state.ended(number);
                }
            }
            CmEventKind::Deaf { error, .. } => tracing::error!(%error, "nobody can call"),
            // Only the connection manager posts events of its own, to its own channels.
            CmEventKind::Posted(_) => {}
        }
    }
}

impl State {
    /// Somebody calls.
    fn called(&mut self, request: ConnRequest, worker: &Worker) {
        let Some(hello) = Hello::parse(request.private_data()) else {
            tracing::warn!(peer = %request.peer_addr(), "a caller that is no queue pair connected by hand");
            return;
        };
        let caller = Caller { hello, request, since: Instant::now() };
        match self.pairs.get(&hello.to.qp_num) {
            Some(pair) if pair.target.fits(&hello, caller.request.peer_addr()) => match pair.phase {
                Phase::Waiting => self.answer(caller),
                // Both called. The leader's connection is the one that stays.
                Phase::Calling(_) if !pair.target.leads() => self.answer(caller),
                Phase::Calling(_) => self.park(caller),
                Phase::Answering(_) | Phase::Standing(_) => drop(caller.request.reject(LATER)),
            },
            _ => self.park(caller),
        }
        // A parked caller sets a time.
        worker.wake();
    }

    fn park(&mut self, caller: Caller) {
        let number = caller.hello.to.qp_num;
        let same = self.callers.iter().filter(|other| other.hello.to.qp_num == number).count();
        if same >= PARKED_EACH || self.callers.len() >= PARKED_ALL {
            let _ = caller.request.reject(LATER);
        } else {
            self.callers.push(caller);
        }
    }

    /// Takes the connection that a peer offers.
    fn answer(&mut self, caller: Caller) {
        let number = caller.hello.to.qp_num;
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if let Phase::Calling(conn) = pair.phase {
            self.conns.remove(&conn);
            cm::abandon(&pair.qp);
        }
        let hello = pair.target.hello().emit();
        match caller.request.accept(&pair.qp, None, &hello, None) {
            Ok(conn) => {
                pair.phase = Phase::Answering(conn);
                pair.next = None;
                self.conns.insert(conn, number);
            }
            Err(error) => {
                tracing::debug!(qp = number, %error, "the peer's connection cannot be taken");
                pair.again();
            }
        }
    }

    fn call(&mut self, number: u32, worker: &Worker) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let target = &pair.target;
        let (options, channel) = (&worker.options, &worker.channel);
        let begun = if target.itself {
            cm::connect_self(&pair.qp, target.local, options, channel)
        } else {
            let hello = target.hello().emit();
            cm::connect(&pair.qp, Some(target.local), target.remote, options, &hello, channel)
        };
        match begun {
            Ok(conn) => {
                pair.phase = Phase::Calling(conn);
                pair.next = None;
                self.conns.insert(conn, number);
            }
            Err(error) => {
                tracing::debug!(qp = number, %error, "cannot call the peer");
                pair.again();
            }
        }
    }

    fn stands(&mut self, conn: ConnId, info: &ConnInfo) {
        let Some(number) = self.conns.get(&conn).copied() else { return };
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let calling = pair.phase == Phase::Calling(conn);
        let fits = pair.target.itself
            || Hello::parse(&info.private_data).is_some_and(|hello| pair.target.fits(&hello, info.peer));
        if calling && !fits {
            tracing::warn!(qp = number, peer = %info.peer, "whoever answered is not the queue pair that was called");
            pair.qp.fail(WcStatus::RetryExceeded);
            return;
        }
        pair.phase = Phase::Standing(conn);
        pair.gives_up = None;
        let _ = pair.qp.set_no_receive_timeout(pair.patience.receive);
        self.unconnected.remove(&number);
        self.callers.retain(|caller| caller.hello.to.qp_num != number);
    }

    /// The peer has gone. A queue pair that outlives it can be called again, and what it posts from now on has its time.
    fn ended(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.qp.state() == QpState::Rts {
            pair.phase = Phase::Waiting;
            pair.calling.store(true, Ordering::Relaxed);
            self.unconnected.insert(number);
        } else {
            // The engine has said so in the queue pair's own terms.
            self.pairs.remove(&number);
            self.unconnected.remove(&number);
        }
    }

    fn failed(&mut self, conn: ConnId, error: &Error) {
        let Some(number) = self.conns.remove(&conn) else { return };
        tracing::debug!(qp = number, %error, "no connection yet");
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.again();
        }
    }

    /// Does what is due; the time when something is next.
    fn due(&mut self, now: Instant, worker: &Worker) -> Option<Instant> {
        for number in self.unconnected.iter().copied().collect::<Vec<_>>() {
            self.serve(number, now, worker);
        }
        self.callers.retain(|caller| now < caller.since + PARKED);
        let pairs = self.unconnected.iter().filter_map(|number| self.pairs.get(number));
        let times = pairs.flat_map(|pair| [pair.next, pair.gives_up]).flatten();
        let callers = self.callers.iter().map(|caller| {
            let grace = caller.since + GRACE;
            if now < grace { grace } else { caller.since + PARKED }
        });
        times.chain(callers).min()
    }

    fn serve(&mut self, number: u32, now: Instant, worker: &Worker) {
        let Some(pair) = self.pairs.get(&number) else { return };
        if pair.gives_up.is_some_and(|at| at <= now) {
            tracing::warn!(qp = number, "the peer did not come in time");
            let qp = Arc::clone(&pair.qp);
            if let Phase::Calling(conn) | Phase::Answering(conn) = pair.phase {
                self.conns.remove(&conn);
            }
            self.pairs.remove(&number);
            self.unconnected.remove(&number);
            cm::abandon(&qp);
            qp.fail(WcStatus::RetryExceeded);
            return;
        }
        if matches!(pair.phase, Phase::Answering(_) | Phase::Standing(_)) {
            return;
        }
        let calling = matches!(pair.phase, Phase::Calling(_));
        let here = self.callers.iter().position(|caller| {
            let fits = caller.hello.to.qp_num == number
                && pair.target.fits(&caller.hello, caller.request.peer_addr());
            fits && (!calling || now >= caller.since + GRACE)
        });
        if let Some(here) = here {
            let caller = self.callers.swap_remove(here);
            self.answer(caller);
        } else if !calling && pair.next.is_some_and(|at| at <= now) {
            self.call(number, worker);
        }
    }
}

impl Pair {
    /// Another attempt later: soon at first, then less often.
    fn again(&mut self) {
        self.phase = Phase::Waiting;
        self.next = Some(Instant::now() + self.retry);
        self.retry = (self.retry * 2).min(RETRY_MOST);
    }
}

#[cfg(test)]
mod tests;
