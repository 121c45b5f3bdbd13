//! A datagram rsocket, and how threads wait for it to change. One lock protects the state, and no
//! thread waits while it holds the lock, as with streams.

use crate::addresses::reachable;
use crate::attempts::Attempts;
use crate::datagram::endpoint::{Endpoint, ReceivedDatagram};
use crate::datagram::peers::{PeerRoute, Peers};
use crate::datagram::watch;
use crate::is_exiting;
use crate::numbers::{FileFlags, Numbers};
use crate::preload::DescriptorSockets;
use crate::settings::Sizes;
use crate::sys;
use crate::wait::{self, Limit, RetryMode, WaitSource};
use crate::watchers::{WakerPolicy, Watchers};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::inherited::close_copy;
use uiw_cabi_core::lock::{Mutex, MutexGuard};
use uiw_cabi_core::ports;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::stack;
use uiw_verbs::Cq;

/// Maximum time for which closing a socket waits until sent messages were passed to UDP.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Message that the program has not read.
pub(super) enum Message {
    /// The message was received by UD.
    Placed(ReceivedDatagram),
    /// The message was received over UDP.
    Whole { from: SocketAddr, bytes: Vec<u8> },
}

pub(crate) struct State {
    /// Duplicate of the program's descriptor; `None` after the socket was closed.
    pub(super) udp: Option<OwnedFd>,
    /// `None` before the first use that needs it.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) peers: Peers,
    /// Port of the socket, if it was bound.
    pub(super) port: u16,
    /// Peer of a connected socket.
    pub(super) connected: Option<SocketAddr>,
    pub(super) messages: VecDeque<Message>,
    pub(super) sizes: Sizes,
    pub(crate) flags: FileFlags,
    /// Error of a message that was sent over UDP, which the next call reports.
    pub(super) error: Option<Errno>,
    pub(super) receive_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    /// Whether reading (index 0) and writing (index 1) were shut down.
    pub(super) shut: [bool; 2],
    /// Number with which the socket is registered at the thread that waits for packets over UDP.
    watched: Option<u64>,
}

pub(crate) struct Datagram {
    state: Mutex<State>,
    ipv6: bool,
    watchers: Arc<Watchers>,
    attempts: Attempts,
    numbers: Numbers,
    /// Sockets of the system behind the descriptor numbers, for a socket of the preload library.
    descriptor_sockets: Option<DescriptorSockets>,
    /// Descriptor number of `State::udp`, for the child of a fork, which cannot take the lock; -1
    /// after the socket was closed.
    own: AtomicI32,
    this: Weak<Self>,
}

impl Datagram {
    /// Returns the reason why this process cannot have datagram rsockets, or `None` if it can.
    ///
    /// # Errors
    /// EINVAL if an environment variable has an invalid value.
    pub(crate) fn missing() -> Result<Option<&'static str>> {
        let own_stack = "datagram rsockets need the kernel's UDP, which UIW_LLP replaces";
        Ok(Settings::get()?.no_datagrams().or_else(|| stack::is_in_process().then_some(own_stack)))
    }

    /// Creates a socket with the descriptor `fd`, which is a UDP socket that has no flags except
    /// `status_flags`.
    ///
    /// # Errors
    /// EMFILE.
    pub(crate) fn new(
        fd: RawFd,
        ipv6: bool,
        sizes: Sizes,
        status_flags: c_int,
        descriptor_sockets: Option<DescriptorSockets>,
    ) -> Result<Arc<Self>> {
        let udp = sys::duplicate(fd)?;
        let own = AtomicI32::new(udp.as_raw_fd());
        let state = State {
            udp: Some(udp),
            endpoint: None,
            peers: Peers::default(),
            port: 0,
            connected: None,
            messages: VecDeque::new(),
            sizes,
            flags: FileFlags { status: libc::O_RDWR | status_flags, descriptor: 0 },
            error: None,
            receive_timeout: None,
            send_timeout: None,
            shut: [false; 2],
            watched: None,
        };
        Ok(Arc::new_cyclic(|this| Self {
            state: Mutex::new(state),
            ipv6,
            watchers: Arc::default(),
            attempts: Attempts::default(),
            numbers: Numbers::default(),
            descriptor_sockets,
            own,
            this: this.clone(),
        }))
    }

    /// Returns the sockets of the system behind the descriptor numbers, or `None` if they are
    /// unknown.
    pub(crate) fn descriptor_sockets(&self) -> Option<DescriptorSockets> {
        self.descriptor_sockets
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Closes the copies of the socket that the child of a fork has. The socket and its port belong
    /// to the parent.
    pub(crate) fn leave_to_parent(&self) {
        let own = self.own.load(Ordering::Relaxed);
        if own >= 0 {
            // Nothing else in the child uses the descriptor, because the socket is forgotten.
            close_copy(own);
        }
    }

    /// Wakes other threads, so that they check the socket again.
    pub(super) fn wake(&self, except: Option<&Waker>) {
        self.watchers.wake_all(except);
    }

    /// Handles what has arrived, and calls `ask`. Wakes other threads if anything has arrived.
    pub(super) fn update_then<T>(
        &self,
        own: Option<&Waker>,
        ask: impl FnOnce(&mut State) -> T,
    ) -> T {
        let mut state = self.lock();
        let changed = state.process();
        let answer = ask(&mut state);
        drop(state);
        if changed {
            self.wake(own);
        }
        answer
    }

    /// Like [`Datagram::update_then`], but if the answer is pending, registers the task, which the
    /// next change wakes.
    fn poll<T>(&self, cx: &mut Context<'_>, ask: impl FnMut(&mut State) -> Poll<T>) -> Poll<T> {
        self.poll_as(WakerPolicy::Pending, cx, ask)
    }

    /// Like [`Datagram::poll`]; `registers` determines when the task is registered.
    fn poll_as<T>(
        &self,
        registers: WakerPolicy,
        cx: &mut Context<'_>,
        mut ask: impl FnMut(&mut State) -> Poll<T>,
    ) -> Poll<T> {
        loop {
            let mut state = self.lock();
            let changed = state.process();
            let answer = ask(&mut state);
            let needs_waker = answer.is_pending() || registers == WakerPolicy::Always;
            if changed {
                drop(state);
                self.wake(Some(cx.waker()));
                if needs_waker {
                    continue;
                }
                return answer;
            }
            // The task is registered under the same lock as the check, so changes after the check
            // wake it.
            if needs_waker && self.watch(&state, cx) {
                continue;
            }
            return answer;
        }
    }

    /// Registers the task, which the next change wakes. Returns true if there was a change
    /// meanwhile.
    fn watch(&self, state: &State, cx: &mut Context<'_>) -> bool {
        self.watchers.add(cx.waker());
        let Some(endpoint) = &state.endpoint else { return false };
        let all = self.watchers.all();
        endpoint.cq().poll_ready(&mut Context::from_waker(&all)).is_ready()
    }

    /// Repeats `attempt` until it does not return EAGAIN. Waits between the attempts, for at most
    /// `time`, unless the call is non-blocking.
    pub(super) fn complete<T>(
        &self,
        nonblocking: bool,
        time: Option<Duration>,
        mut attempt: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let first = attempt(&mut self.lock());
        wait::complete(first, self, nonblocking, time, |route| match route {
            RetryMode::Processed => self.update_then(None, &mut attempt),
            RetryMode::Watched(cx) => match self.poll(cx, |state| wait::pending(attempt(state))) {
                Poll::Ready(answer) => answer,
                Poll::Pending => Err(Errno::AGAIN),
            },
        })
    }

    /// Returns those of the requested `events` that are ready.
    pub(crate) fn ready(&self, events: c_short) -> c_short {
        self.update_then(None, |state| state.ready() & (events | POLLERR | POLLHUP))
    }

    /// Like [`Datagram::ready`], but registers the task, which the next change wakes.
    pub(crate) fn poll_ready(
        &self,
        events: c_short,
        registers: WakerPolicy,
        cx: &mut Context<'_>,
    ) -> Poll<c_short> {
        self.poll_as(registers, cx, |state| match state.ready() & (events | POLLERR | POLLHUP) {
            0 => Poll::Pending,
            revents => Poll::Ready(revents),
        })
    }

    /// Returns the size of the next message in bytes.
    pub(crate) fn readable(&self) -> u64 {
        self.update_then(None, |state| match state.messages.front() {
            Some(Message::Placed(arrived)) => arrived.len as u64,
            Some(Message::Whole { bytes, .. }) => bytes.len() as u64,
            None => 0,
        })
    }

    /// Converts an address to the family of the socket, which is the same for the program and for
    /// the system. An IPv6 socket has IPv4 addresses as mapped ones.
    pub(super) fn in_own_family(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.ipv6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            other => other,
        }
    }

    /// Converts the address of a peer, with the program's port number, to its real address.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if the port offset leads to an invalid port.
    pub(super) fn real(to: SocketAddr) -> Result<SocketAddr> {
        address::to_real(reachable(to)).map(peer_key)
    }

    /// Prepares the first use of the socket: creates the memory of the queue pairs, and starts to
    /// watch its UDP socket.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    pub(super) fn prepare(&self, state: &mut State) -> Result<()> {
        if state.endpoint.is_some() {
            return Ok(());
        }
        let udp = state.udp()?;
        let endpoint = Endpoint::new(&state.sizes)?;
        state.watched = Some(watch::add(&self.this, udp)?);
        state.endpoint = Some(endpoint);
        // Waiting threads have to register at the new completion queue.
        self.wake(None);
        Ok(())
    }

    /// Binds the socket to an address with the program's port number (`rbind`).
    ///
    /// # Errors
    /// OS errors; EADDRNOTAVAIL if the port offset leads to an invalid port.
    pub(crate) fn bind(&self, to: SocketAddr) -> Result<()> {
        let mut state = self.lock();
        let mut real = address::to_real(to)?;
        if to.port() == 0 {
            real.set_port(ports::free_named(real.ip())?);
        }
        let real = if to.is_ipv6() { self.in_own_family(real) } else { real };
        let udp = state.udp()?;
        sys::bind(udp, address::significant_bytes(&address::to_sockaddr(real)))?;
        self.prepare(&mut state)
    }

    /// Connects the socket to a peer with the program's port number, or dissolves the association
    /// if there is no address (`rconnect`).
    ///
    /// # Errors
    /// OS errors, and those of creating a queue pair.
    pub(crate) fn connect(&self, to: Option<SocketAddr>) -> Result<()> {
        let mut state = self.lock();
        let udp = state.udp()?;
        let Some(to) = to else {
            sys::disconnect(udp)?;
            // The system has released a port that the program has not bound. The next datagram to
            // each peer is sent over UDP, for which the system binds the socket again.
            (state.connected, state.port, state.peers) = (None, 0, Peers::default());
            return Ok(());
        };
        self.prepare(&mut state)?;
        let to = Self::real(to)?;
        let own = address::to_sockaddr(self.in_own_family(to));
        sys::connect(udp, address::significant_bytes(&own))?;
        self.route(&mut state, to)?;
        state.connected = Some(to);
        state.shut = [false; 2];
        Ok(())
    }

    /// Returns the route to a peer. Creates it, and the queue pair that it uses, if necessary.
    ///
    /// # Errors
    /// OS errors if there is no route, and those of creating a queue pair.
    pub(super) fn route(&self, state: &mut State, peer: SocketAddr) -> Result<PeerRoute> {
        if let Some(route) = state.peers.get(peer) {
            return Ok(route);
        }
        let own = sys::address_as_is(state.udp()?, false)?.ip().to_canonical();
        let local: IpAddr =
            if own.is_unspecified() { address::source_for(peer)?.ip() } else { own };
        let Some(endpoint) = &mut state.endpoint else { return Err(not_bound_error()) };
        let route = PeerRoute::new(local, endpoint.queue_pair(local)?);
        state.peers.add(peer, route);
        Ok(route)
    }

    /// Returns the socket's own real address or that of its peer.
    ///
    /// # Errors
    /// ENOTCONN; EBADF after the program has closed the socket.
    pub(crate) fn address(&self, of_peer: bool) -> Result<SocketAddr> {
        // The caller converts the port to the program's number when it passes the address to C.
        sys::address_as_is(self.lock().udp()?, of_peer)
    }

    /// Shuts down reading or writing (`rshutdown`).
    ///
    /// # Errors
    /// ENOTCONN, as with UDP.
    pub(crate) fn shutdown(&self, read: bool, write: bool) -> Result<()> {
        let mut state = self.lock();
        if state.connected.is_none() {
            return Err(Errno(libc::ENOTCONN).because("the rsocket has no peer"));
        }
        state.shut = [state.shut[0] | read, state.shut[1] | write];
        drop(state);
        self.wake(None);
        Ok(())
    }

    /// Closes the socket after the program has closed its last descriptor. Waits until sent
    /// messages were passed to UDP, for at most [`FLUSH_TIMEOUT`].
    pub(crate) fn close(&self) {
        let flushed = |state: &State| state.endpoint.as_ref().is_none_or(Endpoint::is_flushed);
        let device = self.lock().endpoint.as_ref().map(|endpoint| endpoint.device().clone());
        if let Some(device) = device
            && !self.update_then(None, |state| flushed(state))
        {
            let all = |cx: &mut Context<'_>| {
                self.poll(cx, |state| if flushed(state) { Poll::Ready(()) } else { Poll::Pending })
            };
            let limit = Limit::within(FLUSH_TIMEOUT);
            if !matches!(
                wait::until_or(
                    Some(&device),
                    &mut Vec::new(),
                    &limit,
                    || self.shards(),
                    |waker| self.unwatch(waker),
                    all
                ),
                Ok(Some(()))
            ) {
                tracing::debug!("a datagram rsocket is closed before UDP has taken everything");
            }
        }
        let (udp, endpoint, watched) = {
            let mut state = self.lock();
            state.messages.clear();
            self.own.store(-1, Ordering::Relaxed);
            (state.udp.take(), state.endpoint.take(), state.watched.take())
        };
        if let (Some(udp), Some(watched)) = (&udp, watched) {
            watch::remove(watched, udp.as_raw_fd());
        }
        // Queue pairs are destroyed after the lock is released.
        drop((udp, endpoint));
        self.wake(None);
    }
}

/// Returns the error for a socket that has neither an address nor a peer, and has not sent
/// anything.
pub(super) fn not_bound_error() -> Errno {
    Errno::INVAL.because("a datagram rsocket receives once it is bound, connected or has sent")
}

/// Returns the address by which a peer is looked up: mapped addresses are converted to IPv4, and
/// fields that do not identify a peer are 0.
pub(super) fn peer_key(address: SocketAddr) -> SocketAddr {
    match address::to_canonical(address) {
        SocketAddr::V6(v6) => {
            let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
        v4 @ SocketAddr::V4(_) => v4,
    }
}

impl State {
    /// Returns the UDP socket.
    ///
    /// # Errors
    /// EBADF after the program has closed it.
    pub(super) fn udp(&self) -> Result<RawFd> {
        self.udp
            .as_ref()
            .map(AsRawFd::as_raw_fd)
            .ok_or_else(|| Errno(libc::EBADF).because("the rsocket is closed"))
    }

    /// Handles what has arrived. Returns whether anything has changed.
    pub(super) fn process(&mut self) -> bool {
        let (connected, is_shut) = (self.connected, self.shut[0]);
        let Some(endpoint) = &mut self.endpoint else { return false };
        let most = endpoint.receives();
        let (messages, mut dropped) = (&mut self.messages, Vec::new());
        let any = endpoint.process(|arrived| {
            // A connected socket receives only from its peer, as with UDP.
            let is_wanted = connected.is_none_or(|peer| peer == arrived.from) && !is_shut;
            if is_wanted && messages.len() < most {
                messages.push_back(Message::Placed(arrived));
            } else {
                dropped.push(arrived.slot);
            }
        });
        endpoint.receive_again(&dropped);
        any
    }

    /// Returns all ready events of poll(2).
    fn ready(&self) -> c_short {
        if self.udp.is_none() {
            return if is_exiting() { 0 } else { POLLERR | POLLHUP };
        }
        let mut ready = 0;
        if !self.messages.is_empty() || self.shut[0] || self.error.is_some() {
            ready |= POLLIN | POLLRDNORM;
        }
        if self.endpoint.as_ref().is_none_or(Endpoint::has_room)
            || self.shut[1]
            || self.error.is_some()
        {
            ready |= POLLOUT | POLLWRNORM;
        }
        if self.error.is_some() {
            ready |= POLLERR;
        }
        if self.shut == [true; 2] {
            ready |= POLLHUP;
        }
        ready
    }
}

impl WaitSource for Datagram {
    fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    fn unwatch(&self, waker: &Waker) {
        self.watchers.remove(waker);
    }

    fn cq(&self) -> Option<Arc<Cq>> {
        self.lock().endpoint.as_ref().map(|endpoint| Arc::clone(endpoint.cq()))
    }
}
