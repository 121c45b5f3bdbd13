//! Thread that connects out-of-band queue pairs. It sleeps until an event arrives or a time is
//! reached.
//!
//! Locks: each pair has a lock, which is held while the engine works for that pair. The tables have
//! one lock, which is held only for look-ups and changes. A pair's lock may not be taken while the
//! tables are locked; the other order is permitted.

use super::pair::{Pair, PairState, Phase};
use super::pair_info::{LATER, PairInfo};
use super::{RetryPolicy, Target};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::denied;
use uiw_cabi_core::settings::Settings;
use uiw_datagram::Qpn;
use uiw_verbs::cm::{self, CmChannel, CmEvent, CmEventKind, ConnId, ConnInfo, ConnRequest};
use uiw_verbs::integration::spawn_thread;
use uiw_verbs::{ConnConfig, QpState, Revision, WcStatus};

/// Time for which a connection of a peer is left unanswered while a connection to the same peer is
/// being made.
const SIMULTANEOUS_DELAY: Duration = Duration::from_millis(500);
/// Time for which a peer waits for a queue pair that is not in RTR.
const PENDING_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of waiting peers for one queue pair.
const MAX_PENDING_EACH: usize = 4;
/// Maximum number of waiting peers for all queue pairs.
const MAX_PENDING: usize = 1024;

/// State shared by the threads of the program and the worker's thread.
pub(super) struct Worker {
    channel: Arc<CmChannel>,
    thread: OnceLock<Thread>,
    options: Arc<ConnConfig>,
    /// Connection options of unreliable queue pairs.
    unreliable_options: Arc<ConnConfig>,
    tables: Mutex<PeerTables>,
    /// Locked by the worker's thread while it works. Tests lock it to stop the thread.
    pending: Mutex<PendingPeers>,
}

#[derive(Default)]
struct PeerTables {
    /// Pairs by queue pair number.
    pairs: HashMap<u32, Arc<Pair>>,
    /// Pairs without an established connection.
    unconnected: BTreeSet<u32>,
    /// Queue pair numbers by connection.
    conns: HashMap<ConnId, u32>,
}

impl PeerTables {
    fn remove(&mut self, number: u32) -> Option<Arc<Pair>> {
        self.unconnected.remove(&number);
        self.pairs.remove(&number)
    }
}

/// Peers whose connection waits until its queue pair is ready.
#[derive(Default)]
struct PendingPeers(Vec<PendingPeer>);

/// Peer that connected before its queue pair was ready.
struct PendingPeer {
    info: PairInfo,
    request: ConnRequest,
    since: Instant,
}

/// Wakes the worker's thread, and makes it read the channel again before it sleeps.
struct WorkerDoorbell(Arc<Worker>, AtomicBool);

impl Wake for WorkerDoorbell {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.wake();
    }
}

impl Worker {
    pub(super) fn start(engine: &uiw_verbs::Device) -> Result<Arc<Self>> {
        let settings = Settings::get()?;
        let limit = engine.limits().max_rd_atomic.min(128);
        let options = settings
            .conn
            .clone()
            // Only revision 2 transmits IRD, ORD and the right to send first.
            .revision(Revision::Two)
            .peer_to_peer(true)
            .ird(settings.ird.unwrap_or(limit))
            .ord(settings.ord.unwrap_or(limit))
            .acknowledged(settings.acknowledged())
            .stable_tx(settings.stable_tx())
            .dead_after(settings.dead_after(None))
            .outlives_peer(true)
            // A Send waits for its receive, as on InfiniBand.
            .no_receive_timeout(Duration::MAX);
        // On an unreliable queue pair, a request succeeds as soon as it was sent.
        let unreliable =
            options.clone().acknowledged(false).no_receive_timeout(RetryPolicy::UNRELIABLE.receive);
        let worker = Arc::new(Self {
            channel: Arc::default(),
            thread: OnceLock::new(),
            unreliable_options: Arc::new(unreliable),
            options: Arc::new(options),
            tables: Mutex::default(),
            pending: Mutex::default(),
        });
        let run = Arc::clone(&worker);
        let thread = spawn_thread("uiw-pairs", move || run.run()).inspect_err(|error| {
            denied::report("starting the thread that connects queue pairs", error);
        })?;
        let _ = worker.thread.set(thread.thread().clone());
        Ok(worker)
    }

    pub(super) fn options(&self) -> &Arc<ConnConfig> {
        &self.options
    }

    pub(super) fn channel(&self) -> &Arc<CmChannel> {
        &self.channel
    }

    fn options_of(&self, state: &PairState) -> &Arc<ConnConfig> {
        if state.target.unreliable { &self.unreliable_options } else { &self.options }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Connects queue pair `number`, which is in RTR, to `target`.
    pub(super) fn connect(
        &self,
        number: u32,
        qp: &Arc<uiw_verbs::Qp>,
        connecting: &Arc<AtomicBool>,
        target: Target,
    ) {
        let mut new = PairState::new(qp, connecting, target);
        let known = self.pair(number);
        if let Some(known) = &known
            && let Some(state) = &mut *known.lock()
        {
            // RTR was repeated. A connection is kept, even if it is not established yet.
            new.phase = state.phase;
            new.next_attempt = state.next_attempt;
            *state = new;
        } else {
            let mut tables = self.tables.lock();
            tables.pairs.insert(number, Arc::new(Mutex::new(Some(new))));
            tables.unconnected.insert(number);
        }
        self.wake();
    }

    fn pair(&self, number: u32) -> Option<Arc<Pair>> {
        self.tables.lock().pairs.get(&number).map(Arc::clone)
    }

    /// Sets the PSN and time-outs of queue pair `number`, which is in RTS.
    pub(super) fn enter_rts(&self, number: u32, psn: Option<u32>, policy: RetryPolicy) {
        let Some(pair) = self.pair(number) else { return };
        let mut pair = pair.lock();
        let Some(state) = &mut *pair else { return };
        state.policy = policy;
        state.target.first_psn = psn.map(|psn| psn & 0xFF_FFFF).or(state.target.first_psn);
        if let Phase::Established(_) = state.phase {
            state.policy.apply(&state.qp);
        }
    }

    /// Starts the time-out of queue pair `number` after a post. If it is connected, later posts do
    /// not call this function until the connection ends.
    pub(super) fn note_post(&self, number: u32) {
        let Some(pair) = self.pair(number) else { return };
        let mut pair = pair.lock();
        let Some(state) = &mut *pair else { return };
        if let Phase::Established(_) = state.phase {
            return state.connecting.store(false, Ordering::Relaxed);
        }
        if state.deadline.is_none()
            && let Some(timeout) = state.connection_timeout()
        {
            let now = Instant::now();
            state.deadline = Some(now + timeout);
            if state.target.unreliable && state.unreachable && state.phase == Phase::Waiting {
                // The message is lost unless the peer can be reached soon.
                state.next_attempt = Some(now);
            }
            drop(pair);
            self.wake();
        }
    }

    /// Stops connecting queue pair `number`. Waits while the thread works for this queue pair, but
    /// not for others.
    pub(super) fn forget(&self, number: u32) {
        let removed = self.tables.lock().remove(number);
        if let Some(pair) = removed {
            self.drop_state(&mut pair.lock());
        }
    }

    /// Drops the state of a pair. The caller has removed the pair from the tables, or removes it.
    fn drop_state(&self, pair: &mut Option<PairState>) {
        if let Some(conn) = pair.take().and_then(|state| state.phase.conn()) {
            self.tables.lock().conns.remove(&conn);
        }
    }

    fn run(self: Arc<Self>) {
        let doorbell = Arc::new(WorkerDoorbell(Arc::clone(&self), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&doorbell));
        let mut cx = Context::from_waker(&waker);
        loop {
            doorbell.1.store(false, Ordering::Release);
            while let Poll::Ready(event) = self.channel.poll_pop(&mut cx) {
                self.pending.lock().event(event, &self);
            }
            let next = self.pending.lock().run_due_actions(Instant::now(), &self);
            if doorbell.1.load(Ordering::Acquire) {
                continue;
            }
            match next {
                Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
    }

    /// Calls `serve` for the pair that uses the connection `conn`. Does nothing if the pair has
    /// another connection, or none, by now.
    fn with_conn(
        &self,
        conn: ConnId,
        serve: impl FnOnce(u32, &mut MutexGuard<'_, Option<PairState>>),
    ) {
        let (number, pair) = {
            let tables = self.tables.lock();
            let Some(number) = tables.conns.get(&conn) else { return };
            let Some(pair) = tables.pairs.get(number) else { return };
            (*number, Arc::clone(pair))
        };
        let mut pair = pair.lock();
        if pair.as_ref().is_some_and(|state| state.phase.conn() == Some(conn)) {
            serve(number, &mut pair);
        }
    }

    fn handle_established(
        &self,
        number: u32,
        state: &mut PairState,
        conn: ConnId,
        info: &ConnInfo,
    ) -> bool {
        let connecting = state.phase == Phase::Connecting(conn);
        let matches = state.target.is_self
            || PairInfo::parse(&info.private_data)
                .is_some_and(|pair| state.target.matches(&pair, info.peer));
        if connecting && !matches {
            tracing::warn!(qp = %Qpn::from_raw(number), peer = %info.peer, "the peer that answered is not the requested queue pair");
            state.qp.fail(WcStatus::RetryExceeded);
            return false;
        }
        state.phase = Phase::Established(conn);
        state.deadline = None;
        state.unreachable = false;
        state.policy.apply(&state.qp);
        self.tables.lock().unconnected.remove(&number);
        true
    }

    /// Handles the end of a connection. A queue pair that outlives its peer can be connected again,
    /// and a new time-out starts with its next post.
    fn handle_disconnect(&self, number: u32, pair: &mut Option<PairState>) {
        let Some(state) = pair else { return };
        let survives = state.qp.state() == QpState::Rts;
        let mut tables = self.tables.lock();
        if let Some(conn) = state.phase.conn() {
            tables.conns.remove(&conn);
        }
        if survives {
            state.phase = Phase::Waiting;
            state.unreachable = true;
            state.connecting.store(true, Ordering::Relaxed);
            tables.unconnected.insert(number);
        } else {
            // The engine has already reported the end as an error of the queue pair.
            tables.remove(number);
            drop(tables);
            *pair = None;
        }
    }

    /// Connects the queue pair to its peer.
    fn initiate(&self, number: u32, state: &mut PairState) {
        let (target, options) = (&state.target, self.options_of(state));
        let begun = if target.is_self {
            cm::connect_self(&state.qp, target.local, options, &self.channel)
        } else {
            let info = target.info().emit();
            cm::connect(&state.qp, Some(target.local), target.remote, options, &info, &self.channel)
        };
        match begun {
            Ok(handle) => {
                let conn = handle.id();
                state.phase = Phase::Connecting(conn);
                state.next_attempt = None;
                self.tables.lock().conns.insert(conn, number);
            }
            Err(error) => {
                tracing::debug!(qp = %Qpn::from_raw(number), peer = %target.remote, %error, "no connection can be started");
                state.last_failure = Some(error.to_string());
                state.retry_later();
            }
        }
    }

    /// Accepts the connection of a peer.
    fn accept(&self, state: &mut PairState, peer: PendingPeer) {
        let number = peer.info.to.qp_num;
        if let Phase::Connecting(conn) = state.phase {
            self.tables.lock().conns.remove(&conn);
            cm::abandon(&state.qp);
        }
        let info = state.target.info().emit();
        let options = state.target.unreliable.then_some(&self.unreliable_options);
        match peer.request.accept(&state.qp, options, &info, None) {
            Ok(handle) => {
                let conn = handle.id();
                state.phase = Phase::Accepting(conn);
                state.next_attempt = None;
                self.tables.lock().conns.insert(conn, number);
            }
            Err(error) => {
                tracing::debug!(qp = %Qpn::from_raw(number), peer = %state.target.remote, %error, "the peer's connection cannot be accepted");
                state.retry_later();
            }
        }
    }
}

impl PendingPeers {
    fn event(&mut self, event: CmEvent, worker: &Worker) {
        match event.kind {
            CmEventKind::ConnectRequest(request) => self.handle_request(request, worker),
            CmEventKind::Established(info) => worker.with_conn(event.id, |number, pair| {
                if let Some(state) = &mut **pair
                    && worker.handle_established(number, state, event.id, &info)
                {
                    self.0.retain(|peer| peer.info.to.qp_num != number);
                }
            }),
            CmEventKind::Failed(error) => worker.with_conn(event.id, |number, pair| {
                tracing::debug!(qp = %Qpn::from_raw(number), %error, "no connection yet");
                worker.tables.lock().conns.remove(&event.id);
                if let Some(state) = &mut **pair {
                    state.last_failure = Some(error.to_string());
                    state.retry_later();
                }
            }),
            CmEventKind::Disconnected(_) => {
                worker.with_conn(event.id, |number, pair| worker.handle_disconnect(number, pair));
            }
            CmEventKind::ListenerDown { error, .. } => {
                tracing::error!(%error, "no peer can connect");
            }
            // Only the connection manager posts these, to its own channels.
            CmEventKind::Posted(_) | CmEventKind::SidrRequest(_) | CmEventKind::SidrResolved(_) => {
            }
        }
    }

    /// Handles the connection request of a peer.
    fn handle_request(&mut self, request: ConnRequest, worker: &Worker) {
        let Some(info) = PairInfo::parse(request.private_data()) else {
            tracing::warn!(peer = %request.peer_addr(), "the connection does not belong to an out-of-band connected queue pair");
            return;
        };
        let peer = PendingPeer { info, request, since: Instant::now() };
        let pair = worker.pair(info.to.qp_num);
        let mut pair = pair.as_ref().map(|pair| pair.lock());
        match pair.as_deref_mut() {
            Some(Some(state)) if state.target.matches(&info, peer.request.peer_addr()) => {
                match state.phase {
                    Phase::Waiting => worker.accept(state, peer),
                    // Both ends have connected. The connection of the initiator is the one that is
                    // kept.
                    Phase::Connecting(_) if !state.target.initiates() => worker.accept(state, peer),
                    Phase::Connecting(_) => self.keep(peer),
                    Phase::Accepting(_) | Phase::Established(_) => drop(peer.request.reject(LATER)),
                }
            }
            _ => self.keep(peer),
        }
        // The thread has to take the time-out of the waiting peer into account.
        worker.wake();
    }

    fn keep(&mut self, peer: PendingPeer) {
        let number = peer.info.to.qp_num;
        let same = self.0.iter().filter(|other| other.info.to.qp_num == number).count();
        if same >= MAX_PENDING_EACH || self.0.len() >= MAX_PENDING {
            let _ = peer.request.reject(LATER);
        } else {
            self.0.push(peer);
        }
    }

    /// Makes the connections that are due, and returns the time of the next action.
    fn run_due_actions(&mut self, now: Instant, worker: &Worker) -> Option<Instant> {
        let unconnected: Vec<_> = {
            let tables = worker.tables.lock();
            let pair = |number: &u32| Some((*number, Arc::clone(tables.pairs.get(number)?)));
            tables.unconnected.iter().filter_map(pair).collect()
        };
        let times = unconnected.into_iter().filter_map(|(number, pair)| {
            let mut pair = pair.lock();
            self.serve(number, &mut pair, now, worker);
            let state = pair.as_ref()?;
            [state.next_attempt, state.deadline].into_iter().flatten().min()
        });
        let next = times.min();
        self.0.retain(|peer| now < peer.since + PENDING_TIMEOUT);
        let pending = self.0.iter().map(|peer| {
            let answered = peer.since + SIMULTANEOUS_DELAY;
            if now < answered { answered } else { peer.since + PENDING_TIMEOUT }
        });
        pending.chain(next).min()
    }

    fn serve(&mut self, number: u32, pair: &mut Option<PairState>, now: Instant, worker: &Worker) {
        let Some(state) = pair else { return };
        if state.deadline.is_some_and(|at| at <= now) && state.qp.discard_requests() {
            tracing::debug!(
                qp = number,
                "the peer did not connect in time: posted requests are lost"
            );
            state.deadline = None;
            state.unreachable = true;
        }
        if state.deadline.is_some_and(|at| at <= now) {
            let peer_qp = state.target.peer.qp_num;
            tracing::warn!(
                qp = %format_args!("{number:#08x}"),
                peer = %state.target.remote,
                peer_qp = %format_args!("{peer_qp:#08x}"),
                "the peer did not connect in time: {}",
                state.last_failure.as_deref().unwrap_or("it has not connected, and no attempt has ended"),
            );
            worker.tables.lock().remove(number);
            cm::abandon(&state.qp);
            state.qp.fail(WcStatus::RetryExceeded);
            worker.drop_state(pair);
            return;
        }
        if matches!(state.phase, Phase::Accepting(_) | Phase::Established(_)) {
            return;
        }
        let connecting = matches!(state.phase, Phase::Connecting(_));
        let pending = self.0.iter().position(|peer| {
            let matches = peer.info.to.qp_num == number
                && state.target.matches(&peer.info, peer.request.peer_addr());
            matches && (!connecting || now >= peer.since + SIMULTANEOUS_DELAY)
        });
        if let Some(pending) = pending {
            let peer = self.0.swap_remove(pending);
            worker.accept(state, peer);
        } else if !connecting && state.next_attempt.is_some_and(|at| at <= now) {
            worker.initiate(number, state);
        }
    }
}

#[cfg(test)]
mod tests;
