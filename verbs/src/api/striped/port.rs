//! The port of a listener for striped connections: Requests go to the connection that their token names. It stays open while a connection
//! that came to it lives, as stripes are replaced there.

use super::group::Group;
use super::settings::StripedSettings;
use super::shared::{Handle, Parts, Shared, Side};
use crate::api::listener::{Incoming, Listener};
use crate::device::Device;
use crate::driver::Alarm;
use crate::error::{Error, Result};
use crate::notify::register;
use crate::pd::Pd;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use uiw_stream::Time;
use uiw_striping::wire::{Join, JoinError, Reason, Request};

type Token = [u8; 16];

/// Connections in set-up at most.
const MAX_GROUPS: usize = 256;
/// Tokens of connections that ended in order, which are kept.
const MAX_CLOSED: usize = 256;

/// Where Requests come from.
enum Requests {
    /// A port of its own.
    Own(Box<Listener>),
    /// A listener of the program's, at this address: [`Port::give`].
    Given { local: SocketAddr, waiting: Mutex<VecDeque<Incoming>> },
}

pub(super) struct Port {
    requests: Requests,
    pd: Pd,
    device: Device,
    settings: StripedSettings,
    state: Mutex<State>,
    io: Mutex<Io>,
    again: AtomicBool,
    waker: Waker,
    alarm: OnceLock<Alarm>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    connections: HashMap<Token, Weak<Shared>>,
    closed: VecDeque<Token>,
    /// For the program.
    ready: VecDeque<Arc<Handle>>,
    wakers: Vec<Waker>,
    /// No peer can connect any more.
    error: Option<Error>,
    /// The program takes no more connections.
    is_closed: bool,
    failures: u64,
}

/// What only the thread that takes the turn touches.
#[derive(Default)]
struct Io {
    groups: HashMap<Token, Group>,
}

struct Turn(Weak<Port>);

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        if let Some(port) = self.0.upgrade() {
            port.turn();
        }
    }
}

impl Port {
    pub(super) fn bind(pd: &Pd, local: SocketAddr, settings: &StripedSettings) -> Result<Arc<Self>> {
        settings.check(pd.device().limits())?;
        let listener = Listener::bind(pd, local, &settings.of_stripe(0, Vec::new()))?;
        Self::new(pd, Requests::Own(Box::new(listener)), settings)
    }

    /// Without a port of its own.
    pub(super) fn beside(pd: &Pd, local: SocketAddr, settings: &StripedSettings) -> Result<Arc<Self>> {
        settings.check(pd.device().limits())?;
        Self::new(pd, Requests::Given { local, waiting: Mutex::default() }, settings)
    }

    fn new(pd: &Pd, requests: Requests, settings: &StripedSettings) -> Result<Arc<Self>> {
        let port = Arc::new_cyclic(|this: &Weak<Self>| Self {
            requests,
            pd: pd.clone(),
            device: pd.device().clone(),
            settings: settings.clone(),
            state: Mutex::default(),
            io: Mutex::default(),
            again: AtomicBool::new(false),
            waker: Waker::from(Arc::new(Turn(Weak::clone(this)))),
            alarm: OnceLock::new(),
            this: Weak::clone(this),
        });
        let alarm = Alarm::new(pd.driver(), port.waker.clone())?;
        let _ = port.alarm.set(alarm);
        port.turn();
        Ok(port)
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        match &self.requests {
            Requests::Own(listener) => listener.local_addr(),
            Requests::Given { local, .. } => *local,
        }
    }

    /// A Request has come to the program's listener.
    pub(super) fn give(&self, incoming: Incoming) {
        if let Requests::Given { waiting, .. } = &self.requests {
            waiting.lock().push_back(incoming);
        }
        self.turn();
    }

    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming>> {
        match &self.requests {
            Requests::Own(listener) => listener.poll_incoming(cx),
            // The thread that adds one takes a turn.
            Requests::Given { waiting, .. } => {
                waiting.lock().pop_front().map_or(Poll::Pending, |incoming| Poll::Ready(Ok(incoming)))
            }
        }
    }

    pub(super) fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// The next connection of which all stripes are established.
    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<Arc<Handle>>> {
        self.turn();
        let mut state = self.state.lock();
        if let Some(handle) = state.ready.pop_front() {
            return Poll::Ready(Ok(handle));
        }
        if let Some(error) = state.error.take() {
            return Poll::Ready(Err(error));
        }
        register(&mut state.wakers, cx.waker());
        Poll::Pending
    }

    /// The program's handle is dropped: only stripes are replaced from now on.
    pub(super) fn close(&self) {
        let ready = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.ready)
        };
        drop(ready);
        self.turn();
    }

    /// A connection has ended, or its handle is dropped.
    pub(super) fn forget(&self, token: &Token, is_closed: bool) {
        let mut state = self.state.lock();
        if state.connections.remove(token).is_some() && is_closed {
            if state.closed.len() == MAX_CLOSED {
                state.closed.pop_front();
            }
            state.closed.push_back(*token);
        }
    }

    fn now(&self) -> Time {
        self.alarm.get().map_or(Time::default(), Alarm::now)
    }

    /// As [`Shared::turn`].
    fn turn(&self) {
        self.again.store(true, Ordering::SeqCst);
        while self.again.load(Ordering::SeqCst)
            && let Some(mut io) = self.io.try_lock()
        {
            let mut wakers = Vec::new();
            let mut gone = Vec::new();
            while self.again.swap(false, Ordering::SeqCst) {
                self.round(&mut io, &mut wakers, &mut gone);
            }
            drop(io);
            drop(gone);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn round(&self, io: &mut Io, wakers: &mut Vec<Waker>, gone: &mut Vec<Group>) {
        let mut cx = Context::from_waker(&self.waker);
        loop {
            match self.poll_incoming(&mut cx) {
                Poll::Ready(Ok(incoming)) => self.route(incoming, io),
                Poll::Ready(Err(error)) => {
                    let mut state = self.state.lock();
                    state.error = Some(error);
                    wakers.append(&mut state.wakers);
                }
                Poll::Pending => break,
            }
        }
        if io.groups.is_empty() {
            return;
        }
        let is_closed = self.state.lock().is_closed;
        let now = self.now();
        let mut over = Vec::new();
        for (token, group) in &mut io.groups {
            match group.poll(&mut cx) {
                _ if is_closed => over.push((*token, Some(Error::NotConnected))),
                Poll::Ready(Ok(())) => over.push((*token, None)),
                Poll::Ready(Err(error)) => over.push((*token, Some(error))),
                Poll::Pending if group.deadline <= now => {
                    let after = self.settings.conn.options.startup_timeout;
                    over.push((*token, Some(Error::TimedOut { peer: group.peer, after })));
                }
                Poll::Pending => {}
            }
        }
        for (token, error) in over {
            let Some(mut group) = io.groups.remove(&token) else { continue };
            let peer = group.peer;
            let error = error.or_else(|| self.add(token, &mut group, wakers).err());
            if let Some(error) = error {
                tracing::warn!(%peer, %error, "a striped connection was not set up");
                self.state.lock().failures += 1;
            }
            gone.push(group);
        }
        if let (Some(alarm), Some(next)) =
            (self.alarm.get(), io.groups.values().map(|group| group.deadline).min())
        {
            alarm.set(next);
        }
    }

    /// All stripes of a group are established.
    fn add(&self, token: Token, group: &mut Group, wakers: &mut Vec<Waker>) -> Result<()> {
        let Some(port) = self.this.upgrade() else { return Err(Error::NotConnected) };
        let (connections, info) = group.take()?;
        let settings = self.settings.clone();
        let side = Side::Acceptor { port };
        let shared = Shared::new(Parts { pd: self.pd.clone(), settings, side, token, connections, info })?;
        {
            let mut state = self.state.lock();
            state.connections.insert(token, Arc::downgrade(&shared));
            let device = self.device.to_handle();
            state.ready.push_back(Arc::new(Handle { shared: Arc::clone(&shared), device }));
            wakers.append(&mut state.wakers);
        }
        shared.turn();
        Ok(())
    }

    /// Passes a Request on.
    fn route(&self, incoming: Incoming, io: &mut Io) {
        let peer = incoming.peer_addr();
        let parsed = Join::parse(incoming.private_data()).map(|(join, rest)| (join, rest.to_vec()));
        let Ok((Join::Request(request), private_data)) = parsed else {
            tracing::warn!(%peer, "a peer that is no striped connection is rejected");
            let reply = match parsed {
                Err(JoinError::Version(_)) => Join::Rejection(Reason::Version).emit(b""),
                _ => Vec::new(),
            };
            // Fails when the peer is gone.
            let _ = incoming.reject(&reply);
            return;
        };
        let connection = self.state.lock().connections.get(&request.token).and_then(Weak::upgrade);
        let reason = match connection {
            Some(shared) if incoming.peer_identity() != shared.info.peer_identity.as_deref() => {
                Reason::Identity
            }
            Some(shared) => return shared.offer(incoming, &request),
            None => match self.admit(&request, &incoming, io) {
                Err(reason) => reason,
                Ok(()) => {
                    let now = self.now();
                    let deadline = now.after(self.settings.conn.options.startup_timeout);
                    let group = io
                        .groups
                        .entry(request.token)
                        .or_insert_with(|| Group::new(&request, &incoming, deadline));
                    group.accept(incoming, &request, private_data, &self.pd, &self.settings);
                    return;
                }
            },
        };
        let (index, generation) = (request.index, request.generation);
        tracing::warn!(%peer, index, generation, %reason, "a stripe is rejected");
        let _ = incoming.reject(&Join::Rejection(reason).emit(b""));
    }

    /// Whether a Request belongs to a connection in set-up, or begins one.
    fn admit(&self, request: &Request, incoming: &Incoming, io: &Io) -> std::result::Result<(), Reason> {
        let state = self.state.lock();
        if state.closed.contains(&request.token) {
            return Err(Reason::Closed);
        }
        if request.generation != 0 || state.is_closed {
            return Err(Reason::Unknown);
        }
        match io.groups.get(&request.token) {
            Some(group) => group.admit(request, incoming),
            None if request.stripes > self.settings.max_stripes => Err(Reason::Mismatch),
            None if io.groups.len() >= MAX_GROUPS => Err(Reason::Busy),
            None => Ok(()),
        }
    }
}
