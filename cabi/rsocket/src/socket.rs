//! Stream rsockets in all their states, and how threads wait for them to change.
//!
//! One lock protects the state, and no thread waits while it holds the lock. A waiting thread is
//! registered in three places: at the events of the connection, at its completion queue, and at the
//! socket itself, where other threads of the program report what they have found.

use crate::acceptor::{self, Acceptor};
use crate::attempts::Attempts;
use crate::connect::{self, PendingConnection};
use crate::link::{PollMode, TransferState};
use crate::numbers::{FileFlags, Numbers};
use crate::preload::DescriptorSockets;
use crate::preload::connections::{self, Carrier, ConnectionRecord, Role};
use crate::service::{self, ClosingToken, Timer};
use crate::settings::Sizes;
use crate::stream::{Ending, Stream};
use crate::wait::{self, RetryMode, WaitSource};
use crate::watchers::{WakerPolicy, Watchers};
use crate::{LONGEST_CLOSE, PROGRESS_CHECK, is_exiting};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::lock::{Mutex, MutexGuard};
use uiw_cabi_core::ports::PortReservation;
use uiw_verbs::cm::{self, AwaitedRequest, CloseReason, CmChannel, CmEventKind};
use uiw_verbs::{ConnConfig, Cq, Error, integration};

/// Options that a program sets, and that a listener's connections inherit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketOptions {
    pub(crate) sizes: Sizes,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    pub(crate) tos: Option<u8>,
    pub(crate) keep_alive: bool,
    pub(crate) keep_idle: c_int,
    /// TCP_KEEPINTVL and TCP_KEEPCNT, used only after a fallback to TCP. `None` means the system's
    /// default.
    pub(crate) keep_interval: Option<c_int>,
    pub(crate) keep_count: Option<c_int>,
    pub(crate) no_delay: bool,
    pub(crate) oob_inline: bool,
    /// SO_LINGER: the time in seconds, if enabled.
    pub(crate) linger: Option<c_int>,
    /// TCP_LINGER2: time for which a connection waits for its peer to accept it after the program
    /// has closed it.
    pub(crate) orphan_timeout: Duration,
    /// SO_RCVTIMEO; `None` means no limit.
    pub(crate) receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO; `None` means no limit.
    pub(crate) send_timeout: Option<Duration>,
}

/// Maximum number of successive checks of a socket by one task. A peer may send control messages as
/// fast as they are handled, so that each check finds a change.
const MAX_CHECKS: usize = 4;

/// Number of the event that announces that TCP is connected.
pub(crate) const TCP_CONNECTED: u64 = 2;

/// State of an rsocket that replaces a TCP socket of the program whose connection is established or
/// is being established.
pub(crate) struct PendingConversion {
    /// True while TCP is not connected yet.
    pending: bool,
    /// Socket for the case that the peer has no rsockets.
    fallback: Option<FallbackSocket>,
    /// Whether reading and writing, in this order, were shut down before the connection was
    /// established.
    shut: [bool; 2],
    /// Data that the program sent before the connection was established (see [`super::early`]).
    pub(super) early: VecDeque<u8>,
    /// True if a task sends the early data and performs the early shutdown.
    pub(super) has_task: bool,
    /// True after data was sent that the peer does not read: see [`State::loses_send`].
    has_lost: bool,
}

/// Original socket of the program.
pub(crate) struct FallbackSocket {
    pub(crate) socket: OwnedFd,
    /// Address to which the program connects, with its port number.
    pub(crate) to: SocketAddr,
    /// TCP_SYNCNT of the program, if it was changed for the attempt to connect with rsockets;
    /// otherwise 0.
    pub(crate) syn_retries: c_int,
}

impl PendingConversion {
    pub(crate) fn new(pending: bool, fallback: Option<FallbackSocket>) -> Self {
        Self {
            pending,
            fallback,
            shut: [false; 2],
            early: VecDeque::new(),
            has_task: false,
            has_lost: false,
        }
    }
}

/// Progress of a socket.
pub(crate) enum Phase {
    /// Initial state, with the reserved local port if the socket is bound.
    New(Option<PortReservation>),
    Listening(Arc<Acceptor>),
    /// The port stays reserved for the socket within this process.
    Connecting(Box<PendingConnection>, Option<PortReservation>),
    /// The program itself has accepted the connection, which waits for the peer's Request. The
    /// Request is answered with these options.
    Requested(#[expect(dead_code, reason = "kept for its drop")] AwaitedRequest, Arc<ConnConfig>),
    /// The Request was accepted, and the peer has not received the Reply yet.
    Accepting(Box<Stream>),
    Connected(
        Box<Stream>,
        #[expect(dead_code, reason = "kept for its drop")] Option<PortReservation>,
    ),
    /// The peer has no rsockets. The thread that detects this tries TCP.
    Refused,
    /// The program has accepted the connection, and the peer has closed it before it was
    /// established.
    Gone,
    /// The connection could not be established, and no `rconnect` has reported this yet. The port
    /// stays reserved for the next attempt.
    Failed(Option<PortReservation>),
    Closed,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) set: SocketOptions,
    pub(crate) ipv6: bool,
    pub(crate) flags: FileFlags,
    /// SO_ERROR.
    pub(crate) error: Option<Errno>,
    /// Real addresses, with the port numbers of TCP.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) opened: Option<PendingConversion>,
    /// True if events of the connection wake the watchers.
    watches_events: bool,
}

pub(crate) struct Socket {
    state: Mutex<State>,
    /// Event channel of the connection.
    channel: Arc<CmChannel>,
    watchers: Arc<Watchers>,
    /// Waker for the engine, which wakes `watchers`.
    engine: Waker,
    attempts: Attempts,
    numbers: Numbers,
    /// True if TCP may still have to be tried instead of the rsocket.
    may_fall_back: AtomicBool,
    /// Sockets of the system behind the descriptor numbers, for an rsocket that replaces a socket
    /// of the kernel.
    descriptor_sockets: OnceLock<DescriptorSockets>,
}

impl Socket {
    pub(crate) fn new(ipv6: bool, set: SocketOptions) -> Arc<Self> {
        let state = State {
            phase: Phase::New(None),
            set,
            ipv6,
            flags: FileFlags { status: libc::O_RDWR, descriptor: 0 },
            error: None,
            local: None,
            peer: None,
            opened: None,
            watches_events: false,
        };
        let watchers: Arc<Watchers> = Arc::default();
        Arc::new(Self {
            state: Mutex::new(state),
            channel: Arc::default(),
            engine: watchers.all(),
            watchers,
            attempts: Attempts::default(),
            numbers: Numbers::default(),
            may_fall_back: AtomicBool::new(false),
            descriptor_sockets: OnceLock::new(),
        })
    }

    /// Sets the sockets of the system behind the socket's descriptor numbers.
    pub(crate) fn set_descriptor_sockets(&self, sockets: Option<DescriptorSockets>) {
        if let Some(sockets) = sockets {
            // Only the first value is stored, because numbers are assigned once.
            let _ = self.descriptor_sockets.set(sockets);
        }
    }

    /// Returns the sockets of the system behind the socket's descriptor numbers, or `None` if they
    /// are unknown.
    pub(crate) fn descriptor_sockets(&self) -> Option<DescriptorSockets> {
        self.descriptor_sockets.get().copied()
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(crate) fn may_fall_back(&self, may: bool) {
        self.may_fall_back.store(may, Ordering::Release);
    }

    /// Returns whether the peer has no rsockets, so that TCP has to be tried.
    pub(crate) fn is_refused(&self) -> bool {
        if !self.may_fall_back.load(Ordering::Acquire) {
            return false;
        }
        let (is_refused, is_connected) = self.update_then(None, |state| {
            (matches!(state.phase, Phase::Refused), matches!(state.phase, Phase::Connected(..)))
        });
        // Every call on the socket asks this, and the check above drives the engine. It is not
        // needed any more once the socket is connected.
        if is_connected {
            self.may_fall_back(false);
        }
        is_refused
    }

    /// Returns the original socket of the program, with its flags and options. Only the first call
    /// returns it.
    pub(crate) fn take_instead(&self) -> Option<(FallbackSocket, c_int, SocketOptions)> {
        self.may_fall_back(false);
        let mut state = self.lock();
        let fallback = state.opened.as_mut()?.fallback.take()?;
        Some((fallback, state.flags.status, state.set))
    }

    /// Records that the connection could not be established.
    pub(crate) fn fail(&self, errno: Errno) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Closed) {
            state.phase = state.fail(errno, None);
        }
        drop(state);
        self.wake(None);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn channel(&self) -> &Arc<CmChannel> {
        &self.channel
    }

    /// Returns whether calls with these flags are non-blocking.
    pub(crate) fn is_nonblocking(&self, flags: c_int) -> bool {
        self.lock().is_nonblocking(flags)
    }

    /// Wakes other threads, so that they check the socket again.
    pub(crate) fn wake(&self, except: Option<&Waker>) {
        self.watchers.wake_all(except);
    }

    /// Like [`Socket::wake`], after a change that this thread has made while it held the socket's
    /// lock.
    pub(crate) fn wake_changed(&self, except: Option<&Waker>) {
        self.watchers.wake_changed(except);
    }

    /// Returns the number of threads and sets that wait for a change.
    #[cfg(test)]
    pub(crate) fn watching(&self) -> usize {
        self.watchers.len()
    }

    /// Handles events of the connection manager that have arrived.
    fn take_events(&self, state: &mut State) -> bool {
        let mut any = false;
        while state.takes_events()
            && let Some(event) = self.channel.try_pop()
        {
            state.handle(event.kind);
            any = true;
        }
        any
    }

    /// Updates the socket, driving the engine if necessary, and calls `ask`. Wakes other threads if
    /// anything was found.
    pub(crate) fn update_then<T>(
        &self,
        own: Option<&Waker>,
        ask: impl FnOnce(&mut State) -> T,
    ) -> T {
        self.update_then_by(PollMode::Driving, own, ask)
    }

    /// Like [`Socket::update_then`], with the given mode.
    pub(super) fn update_then_by<T>(
        &self,
        take: PollMode,
        own: Option<&Waker>,
        ask: impl FnOnce(&mut State) -> T,
    ) -> T {
        let mut state = self.lock();
        let changed = self.update(&mut state, take);
        let answer = ask(&mut state);
        drop(state);
        if changed {
            self.wake_changed(own);
        }
        answer
    }

    /// Handles what has arrived. Returns whether there was anything.
    fn update(&self, state: &mut State, take: PollMode) -> bool {
        // The event for the end of the connection comes after the last completion, so completions
        // are taken after the events.
        let any = self.take_events(state);
        state.process(take) || any
    }

    /// Like [`Socket::update_then`], but does not drive the engine, because the waiting thread or
    /// task does. If the answer is pending, registers the task, which the next change wakes.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        ask: impl FnMut(&mut State) -> Poll<T>,
    ) -> Poll<T> {
        self.poll_as(WakerPolicy::Pending, cx, ask)
    }

    /// Like [`Socket::poll`]; `registers` determines when the task is registered.
    pub(super) fn poll_as<T>(
        &self,
        registers: WakerPolicy,
        cx: &mut Context<'_>,
        mut ask: impl FnMut(&mut State) -> Poll<T>,
    ) -> Poll<T> {
        let mut answer = Poll::Pending;
        for _ in 0..MAX_CHECKS {
            let mut state = self.lock();
            let changed = self.update(&mut state, PollMode::Queued);
            answer = ask(&mut state);
            let needs_waker = answer.is_pending() || registers == WakerPolicy::Always;
            if changed {
                drop(state);
                self.wake_changed(Some(cx.waker()));
                if needs_waker {
                    continue;
                }
                return answer;
            }
            if needs_waker {
                // The task is registered under the same lock as the check, so changes after the
                // check wake it.
                if self.watch(&mut state, cx) {
                    continue;
                }
                // The connections of a listener are queued without that lock.
                if matches!(state.phase, Phase::Listening(_)) {
                    answer = ask(&mut state);
                }
            }
            return answer;
        }
        // The caller first checks its time limit.
        cx.waker().wake_by_ref();
        answer
    }

    /// Registers the task, which the next change wakes. Returns true if there was a change
    /// meanwhile.
    fn watch(&self, state: &mut State, cx: &mut Context<'_>) -> bool {
        self.watchers.add(cx.waker());
        if state.takes_events() {
            if !std::mem::replace(&mut state.watches_events, true) {
                self.channel.set_waker(self.engine.clone());
            }
            // Something may have been queued before the waker or the watcher was added.
            if !self.channel.is_empty() {
                return true;
            }
        }
        let engine = &mut Context::from_waker(&self.engine);
        state.stream().is_some_and(|stream| stream.link.cq().poll_ready(engine).is_ready())
    }

    /// Repeats `attempt` until it does not return EAGAIN, and waits between the attempts. `how`
    /// returns whether the call is non-blocking, and the maximum time that it waits before it
    /// returns EAGAIN. It is called under the lock of the first attempt.
    pub(crate) fn complete_as<T>(
        &self,
        how: impl FnOnce(&State) -> (bool, Option<Duration>),
        mut attempt: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let ((nonblocking, time), first) = {
            let mut state = self.lock();
            (how(&state), attempt(&mut state))
        };
        wait::complete(first, self, nonblocking, time, |way| match way {
            RetryMode::Processed => self.update_then(None, &mut attempt),
            RetryMode::Watched(cx) => match self.poll(cx, |state| wait::pending(attempt(state))) {
                Poll::Ready(answer) => answer,
                Poll::Pending => Err(Errno::AGAIN),
            },
        })
    }

    /// Ends listening. The socket keeps its address, and can listen again.
    pub(crate) fn stop_listening(&self) {
        let acceptor = match &self.lock().phase {
            Phase::Listening(acceptor) => Arc::clone(acceptor),
            _ => return,
        };
        // The lock is not held while connections end.
        let Some(port) = acceptor.close() else { return };
        let mut state = self.lock();
        if matches!(state.phase, Phase::Listening(_)) {
            state.phase = Phase::New(Some(port));
        }
        drop(state);
        self.wake(None);
    }

    /// Gives up a connection attempt that has not reached the peer, as shutdown(2) does in the
    /// state SYN_SENT. Returns false if there is no such attempt.
    pub(crate) fn abandon_attempt(&self) -> bool {
        let mut state = self.lock();
        self.take_events(&mut state);
        if state.has_peer() {
            return false;
        }
        let State { phase: Phase::Connecting(connecting, _), opened, .. } = &mut *state else {
            return false;
        };
        if let Some(opened) = opened {
            opened.fallback = None;
        }
        cm::abandon(connecting.qp());
        // The channel contains the outcome now. The connection may just have been established.
        self.take_events(&mut state);
        let Phase::Failed(port) = &mut state.phase else { return false };
        state.phase = Phase::New(port.take());
        state.error = Some(Errno(libc::ECONNRESET));
        drop(state);
        self.wake(None);
        true
    }

    /// Closes the socket, after the program has closed its last descriptor.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        if let Some(needs_task) = state.defer_close() {
            drop(state);
            // The socket's task closes it.
            if !needs_task {
                // The socket has a task, which detects that the program has closed the socket.
                self.wake(None);
            } else if let Err(error) = self.spawn_early_task() {
                tracing::warn!(%error, "a closed rsocket does not wait for its connection");
            }
            return;
        }
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        // The original socket refers to the file of the connection, and is closed with it.
        let fallback = state.opened.as_mut().and_then(|opened| opened.fallback.take());
        let aborts = state.set.linger == Some(0);
        let ended = match phase {
            Phase::Connected(mut stream, _) | Phase::Accepting(mut stream)
                if !stream.has_ended() =>
            {
                if aborts {
                    stream.link.abort();
                }
                stream.process(PollMode::Driving);
                stream.close();
                drop(state);
                // The program may free the buffers now, but the peer may still write to them.
                stream.unmap_all();
                self.linger(stream);
                None
            }
            phase => {
                drop(state);
                Some(phase)
            }
        };
        if let Some(Phase::Listening(acceptor)) = &ended {
            acceptor.close();
        }
        let was_requested = matches!(ended, Some(Phase::Requested(..)));
        // Connections are given up and queue pairs are destroyed after the lock is released.
        drop((ended, fallback));
        // From now on no Request arrives. A Request that has arrived unanswered is rejected when
        // its event is dropped.
        while was_requested && self.channel.try_pop().is_some() {}
        self.wake(None);
    }

    /// Keeps a closed connection until the peer has received all data. While the peer acknowledges
    /// data, the time limit of the close starts anew, up to [`LONGEST_CLOSE`], and the end of the
    /// process waits: see [`service::acknowledgement_count`].
    fn linger(self: &Arc<Self>, stream: Box<Stream>) {
        let (socket, closing) = (Arc::clone(self), ClosingToken::new());
        let ended = async move {
            let closed = Instant::now();
            let (mut state, mut check) =
                (TransferState::default(), Timer::after(PROGRESS_CHECK).ok());
            loop {
                let event = std::future::poll_fn(|cx| {
                    let event = socket.channel.poll_pop(cx).map(Some);
                    if event.is_pending()
                        && check.as_mut().is_some_and(|timer| Pin::new(timer).poll(cx).is_ready())
                    {
                        return Poll::Ready(None);
                    }
                    event
                })
                .await;
                match event.map(|event| event.kind) {
                    Some(CmEventKind::Disconnected(_) | CmEventKind::Failed(_)) => break,
                    Some(_) => {}
                    None => {
                        let before = std::mem::replace(&mut state, stream.link.transfer_state());
                        let has_changed = state != before;
                        if has_changed {
                            service::note_acknowledgement();
                            if closed.elapsed() < LONGEST_CLOSE {
                                integration::renew_close_deadline(stream.link.qp());
                            }
                        }
                        let goes_on = has_changed || state.is_unacknowledged();
                        check = goes_on.then(|| Timer::after(PROGRESS_CHECK).ok()).flatten();
                    }
                }
            }
            drop(stream);
            drop(closing);
        };
        if let Err(error) = service::spawn(ended) {
            tracing::warn!(%error, "a closed rsocket does not wait for its last bytes");
        }
    }
}

impl WaitSource for Socket {
    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    fn unwatch(&self, waker: &Waker) {
        self.watchers.remove(waker);
    }

    fn cq(&self) -> Option<Arc<Cq>> {
        self.lock().stream().map(|stream| Arc::clone(stream.link.cq()))
    }
}

impl State {
    /// Returns whether this state handles the events of the connection. Those of a lingering
    /// connection are handled by its task.
    fn takes_events(&self) -> bool {
        !matches!(self.phase, Phase::Closed)
    }

    /// Returns whether calls with these flags are non-blocking.
    pub(crate) fn is_nonblocking(&self, flags: c_int) -> bool {
        (flags & libc::MSG_DONTWAIT) | (self.flags.status & libc::O_NONBLOCK) != 0
    }

    pub(crate) fn stream(&self) -> Option<&Stream> {
        match &self.phase {
            Phase::Connected(stream, _) | Phase::Accepting(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Connected(stream, _) | Phase::Accepting(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the connection.
    ///
    /// # Errors
    /// ENOTCONN; EAGAIN while it is being established; the error with which it failed.
    pub(crate) fn connected(&mut self) -> Result<&mut Stream> {
        match &mut self.phase {
            Phase::Connected(stream, _) => Ok(stream),
            Phase::Connecting(..) | Phase::Accepting(_) | Phase::Requested(..) => Err(Errno::AGAIN),
            Phase::Refused => Err(Errno(libc::ECONNREFUSED)),
            Phase::Gone => Err(Errno(libc::EPIPE)),
            Phase::Closed if is_exiting() => Err(Errno::AGAIN),
            Phase::New(_) | Phase::Failed(_) | Phase::Listening(_) | Phase::Closed => {
                let none = || Errno(libc::ENOTCONN).because("the rsocket has no connection");
                Err(self.error.take().unwrap_or_else(none))
            }
        }
    }

    /// Handles completions. Returns whether there were any.
    fn process(&mut self, take: PollMode) -> bool {
        self.change_stream(|stream| stream.process(take)).unwrap_or(false)
    }

    /// Calls `change` for the stream, if there is one, and stores the error with which it failed
    /// meanwhile.
    pub(super) fn change_stream<R>(&mut self, change: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        let stream = self.stream_mut()?;
        let before = stream.failure();
        let result = change(stream);
        let failure = stream.failure().filter(|_| before.is_none());
        self.error = failure.or(self.error);
        Some(result)
    }

    fn handle(&mut self, event: CmEventKind) {
        match event {
            CmEventKind::Established(info) => {
                self.local = Some(address::to_canonical(info.local));
                self.peer = Some(address::to_canonical(info.peer));
                self.note_connection();
                self.phase = match std::mem::replace(&mut self.phase, Phase::Closed) {
                    Phase::Connecting(connecting, port) => {
                        match connect::established(*connecting, &info) {
                            Ok(stream) => Phase::Connected(Box::new(stream), port),
                            Err(errno) => self.fail(errno, port),
                        }
                    }
                    Phase::Accepting(stream) => Phase::Connected(stream, None),
                    other => other,
                };
                self.apply_early_shutdown();
            }
            CmEventKind::Posted(TCP_CONNECTED) => {
                if let Some(opened) = &mut self.opened {
                    (opened.pending, opened.fallback) = (false, None);
                }
            }
            CmEventKind::ConnectRequest(request) => {
                if let Phase::Requested(_, options) = &self.phase {
                    let answered = acceptor::answer(request, &self.set, options, None);
                    self.phase = match answered {
                        Ok(stream) => Phase::Accepting(stream),
                        Err(Errno(libc::ENOTCONN)) => Phase::Gone,
                        Err(errno) => self.fail(errno, None),
                    };
                }
            }
            CmEventKind::Failed(Error::NotConnected | Error::ClosedInStartup { .. })
                if self.opened.is_some()
                    && matches!(self.phase, Phase::Requested(..) | Phase::Accepting(_)) =>
            {
                self.phase = Phase::Gone;
            }
            CmEventKind::Failed(_)
                if matches!(&self.opened, Some(PendingConversion { fallback: Some(_), .. })) =>
            {
                self.phase = Phase::Refused;
            }
            CmEventKind::Failed(error) if !matches!(self.phase, Phase::Closed) => {
                let port = match std::mem::replace(&mut self.phase, Phase::Closed) {
                    Phase::Connecting(_, port) => port,
                    _ => None,
                };
                self.phase = self.fail(connect::failure(error), port);
            }
            CmEventKind::Disconnected(reason) => {
                self.change_stream(|stream| stream.end(ending(&reason)));
            }
            _ => {}
        }
    }

    /// Records the connection for the report of `uiw run`, for sockets of the preload library.
    fn note_connection(&self) {
        let (role, address) = match self.phase {
            Phase::Connecting(..) => (Role::Connected, self.peer),
            _ => (Role::Accepted, self.local),
        };
        if let (Some(_), Some(mut address)) = (&self.opened, address) {
            address.set_port(address::program_port(address.port()));
            connections::note(ConnectionRecord { carrier: Carrier::Rsocket, role, address });
        }
    }

    /// Converts an address for the program. An IPv6 TCP socket gets IPv4 addresses as mapped ones.
    pub(crate) fn to_program_address(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.ipv6 && self.opened.is_some() => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            other => other,
        }
    }

    /// Shuts down the directions that were shut down while the connection was being established,
    /// once all early data has been sent.
    pub(super) fn apply_early_shutdown(&mut self) {
        let Some(opened) = self.opened.as_mut().filter(|opened| opened.early.is_empty()) else {
            return;
        };
        let shut = std::mem::take(&mut opened.shut);
        if let Phase::Connected(stream, _) = &mut self.phase
            && shut != [false; 2]
        {
            // This fails if the connection has ended.
            let _ = stream.shutdown(shut[0], shut[1]);
        }
    }

    /// Returns whether the program has shut down reading before the connection was established.
    pub(super) fn is_read_shut_early(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.shut[0])
    }

    /// Returns whether the program has shut down writing before the connection was established.
    pub(super) fn is_write_shut_early(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.shut[1])
    }

    /// Returns whether the caller has to start a task that shuts down the directions when the peer
    /// answers, and records that there is such a task.
    pub(super) fn needs_task_to_shut(&mut self) -> bool {
        match &mut self.opened {
            Some(opened) if opened.shut != [false; 2] => {
                !std::mem::replace(&mut opened.has_task, true)
            }
            _ => false,
        }
    }

    /// Returns whether data that is sent now is lost without an error. TCP accepts data after the
    /// peer has closed the connection, and learns of that only by the peer's answer. This is
    /// emulated once for each socket that a program created as a TCP socket.
    pub(crate) fn loses_send(&mut self) -> bool {
        let closed = match &self.phase {
            Phase::Connected(stream, _) => stream.is_closed_by_peer(),
            phase => matches!(phase, Phase::Gone),
        };
        closed
            && self
                .opened
                .as_mut()
                .is_some_and(|opened| !std::mem::replace(&mut opened.has_lost, true))
    }

    /// Returns whether the peer's address is known, because the connection or its TCP connection is
    /// established.
    pub(crate) fn has_peer(&self) -> bool {
        match &self.phase {
            Phase::Connected(..) | Phase::Accepting(_) | Phase::Requested(..) => true,
            Phase::Connecting(..) => {
                matches!(&self.opened, Some(PendingConversion { pending: false, .. }))
            }
            _ => false,
        }
    }

    /// Shuts down directions.
    ///
    /// # Errors
    /// ENOTCONN if there is no connection, and none is being established for a TCP socket of the
    /// program.
    pub(crate) fn shutdown(&mut self, read: bool, write: bool) -> Result<()> {
        let waits = self.is_beginning() || self.flush_early_data().is_err();
        // `connected` would take the error of a failed connection, which SO_ERROR returns.
        if !waits && let Phase::Connected(stream, _) = &mut self.phase {
            return stream.shutdown(read, write);
        }
        match &mut self.opened {
            Some(opened) if waits => {
                opened.shut = [opened.shut[0] | read, opened.shut[1] | write];
                Ok(())
            }
            _ => Err(Errno(libc::ENOTCONN).because("the rsocket has no connection")),
        }
    }

    fn fail(&mut self, errno: Errno, port: Option<PortReservation>) -> Phase {
        self.error = Some(errno);
        self.local = port.as_ref().map(PortReservation::address).or(self.local);
        Phase::Failed(port)
    }
}

/// Returns the end of the stream that the program sees. As with TCP, a peer that is gone without an
/// error is reported as one that has closed the connection.
fn ending(reason: &CloseReason) -> Ending {
    match reason {
        CloseReason { silent_for: Some(_), .. } => Ending::Failed(Errno(libc::ETIMEDOUT)),
        CloseReason { orderly: true, .. } => Ending::Closed,
        _ => Ending::Failed(Errno(libc::ECONNRESET)),
    }
}
