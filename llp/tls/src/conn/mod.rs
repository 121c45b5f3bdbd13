//! One connection: its session, its bytes on their way, and the stream below.

mod calls;
mod handshake;
mod incoming;

use super::error::TlsError;
use super::session::Session;
use super::shared::{OwnConnection, Shared, Snapshot};
use super::verify::Peer;
use incoming::{MIN_READ, Sink};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uiw_llp::{Event, Interest, PeerIdentity, Token, TransportStream};
use uiw_mem::IoVec;

/// Buffers that all connections of a shard use.
pub(super) struct Scratch {
    incoming: Vec<u8>,
    plain: Vec<u8>,
    cipher: Vec<u8>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { incoming: Vec::new(), plain: Vec::new(), cipher: Vec::new() }
    }
}

enum ConnState {
    /// TCP connects.
    Connecting {
        name: Box<ServerName<'static>>,
    },
    /// An accepted connection of which nothing has come.
    Accepted,
    /// An accepted connection of this process: its ClientHello is skipped.
    AcceptedOwn,
    Handshake(Session),
    Open(Session),
    /// The ends are in one process and use no TLS.
    Clear {
        connecting: bool,
    },
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinState {
    No,
    /// The alert follows the bytes that are on their way.
    Wanted,
    Sent,
}

/// Reason why every call fails. An `io::Error` cannot be cloned.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    System(i32),
    Kind(ErrorKind),
    Tls(TlsError),
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        error.raw_os_error().map_or_else(|| Self::Kind(error.kind()), Self::System)
    }
}

impl From<&Failure> for io::Error {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::System(code) => Self::from_raw_os_error(*code),
            Failure::Kind(kind) => (*kind).into(),
            Failure::Tls(error) => error.clone().into(),
        }
    }
}

pub(super) struct Conn {
    inner: Box<dyn TransportStream>,
    shared: Arc<Shared>,
    /// The configuration that the peer was accepted by.
    snapshot: Arc<Snapshot>,
    state: ConnState,
    /// Token of the user; `None` while the connection is not the user's: not accepted yet, or dropped.
    pub(super) outer: Option<Token>,
    /// The listener that it came to, while it is in its handshake.
    pub(super) listener: Option<usize>,
    /// Time when the connection is given up: the end of the time for the handshake, or for sending the rest after a drop.
    pub(super) deadline: Option<Instant>,
    /// The interest that the user asked for.
    interest: Interest,
    /// Interest of the inner stream.
    inner_interest: Interest,
    /// The front of a record.
    incoming: Vec<u8>,
    /// Plaintext that the user has not taken, from `plain_at` on.
    plain: Vec<u8>,
    plain_at: usize,
    /// Records that TCP has not taken, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
    fin: FinState,
    peer_closed: bool,
    failure: Option<Failure>,
    /// The last event of the inner stream reported more than was asked for: a hang-up.
    hung_up: bool,
    /// Bytes that came during the handshake.
    handshake_bytes: usize,
    own: Option<Arc<OwnConnection>>,
    identity: Option<Arc<PeerIdentity>>,
    role: Peer,
    /// Plaintext that was received.
    received: u64,
    /// Bytes of buffers that are counted in [`Shared`].
    counted: usize,
}

impl Conn {
    fn new(
        inner: Box<dyn TransportStream>,
        shared: &Arc<Shared>,
        state: ConnState,
        interest: Interest,
        role: Peer,
    ) -> Self {
        shared.counts.connections.fetch_add(1, Ordering::Relaxed);
        Self {
            inner,
            shared: Arc::clone(shared),
            snapshot: shared.snapshot(),
            state,
            outer: None,
            listener: None,
            deadline: None,
            interest,
            inner_interest: interest,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_at: 0,
            out: Vec::new(),
            out_at: 0,
            fin: FinState::No,
            peer_closed: false,
            failure: None,
            hung_up: false,
            handshake_bytes: 0,
            own: None,
            identity: None,
            role,
            received: 0,
            counted: 0,
        }
    }

    /// A connection that has begun to connect to a server of this name.
    pub(super) fn connecting(
        inner: Box<dyn TransportStream>,
        shared: &Arc<Shared>,
        token: Token,
        name: ServerName<'static>,
        own: Option<Arc<OwnConnection>>,
    ) -> Self {
        let role = Peer::Server(name.clone());
        let state = ConnState::Connecting { name: Box::new(name) };
        let mut conn = Self::new(inner, shared, state, Interest::WRITE, role);
        (conn.outer, conn.own) = (Some(token), own);
        conn
    }

    /// A stream of this process to itself.
    pub(super) fn to_itself(inner: Box<dyn TransportStream>, shared: &Arc<Shared>, token: Token) -> Self {
        let state = ConnState::Clear { connecting: true };
        let mut conn = Self::new(inner, shared, state, Interest::WRITE, Peer::Client);
        conn.outer = Some(token);
        conn.identity = Some(Arc::new(PeerIdentity::SameProcess));
        conn
    }

    /// A connection that a listener has just accepted.
    pub(super) fn accepted(inner: Box<dyn TransportStream>, shared: &Arc<Shared>) -> Self {
        let own = shared.take_own(inner.peer_addr(), inner.local_addr());
        let state = if own { ConnState::AcceptedOwn } else { ConnState::Accepted };
        let mut conn = Self::new(inner, shared, state, Interest::READ, Peer::Client);
        // No event is due before it is accepted.
        conn.interest = Interest::NONE;
        shared.counts.handshakes.fetch_add(1, Ordering::Relaxed);
        conn
    }

    pub(super) fn inner(&self) -> &dyn TransportStream {
        &*self.inner
    }

    pub(super) fn inner_mut(&mut self) -> &mut Box<dyn TransportStream> {
        &mut self.inner
    }

    pub(super) fn identity(&self) -> Option<Arc<PeerIdentity>> {
        self.identity.clone()
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    pub(super) fn is_aborted(&self) -> bool {
        matches!(self.state, ConnState::Aborted)
    }

    /// Returns whether bytes of the user pass.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ConnState::Open(_) | ConnState::Clear { connecting: false })
    }

    pub(super) fn is_clear(&self) -> bool {
        matches!(self.state, ConnState::Clear { .. })
    }

    /// Returns whether something waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.out_at < self.out.len()
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    fn has_plain(&self) -> bool {
        self.plain_at < self.plain.len()
    }

    /// Returns whether an event is due though the inner stream has none.
    pub(super) fn is_ready(&self) -> bool {
        self.outer.is_some()
            && !self.is_aborted()
            && (self.failure.is_some() || self.interest.read && (self.has_plain() || self.peer_closed))
    }

    /// The user's event, given the one of the inner stream.
    pub(super) fn event(&self, inner: Option<Event>) -> Option<Event> {
        let token = self.outer?;
        if self.is_aborted() {
            return None;
        }
        let broken = self.failure.is_some() || self.hung_up && inner.is_some();
        let writable = self.is_open() && !self.has_output();
        let (readable, writable) = if self.is_clear() {
            let inner = inner.unwrap_or(Event { token, readable: false, writable: false });
            (
                inner.readable && self.interest.read,
                inner.writable && self.interest.write && !self.has_output(),
            )
        } else {
            (false, inner.is_some_and(|inner| inner.writable) && self.interest.write && writable)
        };
        let readable = readable || self.interest.read && (self.has_plain() || self.peer_closed);
        let event = Event { token, readable: readable || broken, writable: writable || broken };
        (event.readable || event.writable).then_some(event)
    }

    /// The inner stream has news.
    pub(super) fn on_event(&mut self, event: Event, scratch: &mut Scratch) {
        let asked = self.inner_interest;
        self.hung_up = event.readable && !asked.read || event.writable && !asked.write;
        if self.is_aborted() {
            return;
        }
        match &self.state {
            _ if self.failure.is_some() => self.flush(),
            ConnState::Connecting { .. } => self.on_connect_event(scratch),
            ConnState::Clear { connecting: true } => {
                if let Err(error) = self.connect_inner() {
                    self.fail(Failure::from(&error));
                }
            }
            ConnState::Clear { .. } => self.flush(),
            _ => {
                self.flush();
                let wants = self.interest.read || !self.is_open();
                if event.readable && wants && !self.has_plain() && !self.peer_closed && self.failure.is_none()
                {
                    self.read(scratch, MIN_READ, &mut Sink::new(&mut []));
                }
            }
        }
        self.update_interest();
    }

    /// Sends what waits, as much as TCP takes; then the FIN, if one is due.
    fn flush(&mut self) {
        while self.has_output() {
            match self.inner.send(&[IoVec::from(&self.out[self.out_at..])]) {
                Ok(sent) => self.out_at += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    // What has come before is still to be read, an alert above all.
                    (self.out, self.out_at) = (Vec::new(), 0);
                    return self.lose(&error);
                }
            }
        }
        (self.out, self.out_at) = (Vec::new(), 0);
        if self.fin == FinState::Wanted {
            self.fin = FinState::Sent;
            // Of a connection that is gone: the next read says so.
            let _ = self.inner.shutdown();
        }
    }

    /// The stream below is lost. What it says during the handshake may be the peer's way to refuse TLS.
    fn lose(&mut self, error: &io::Error) {
        let reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        match &self.state {
            ConnState::Handshake(_) if reset && self.handshake_bytes == 0 => {
                self.fail(Failure::Tls(TlsError::NoAnswer));
            }
            _ => self.fail(Failure::from(error)),
        }
    }

    fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        if let Failure::Tls(error) = &failure {
            self.shared.counts.failed.fetch_add(1, Ordering::Relaxed);
            let [local, peer] = [self.inner.local_addr(), self.inner.peer_addr()].map(uiw_llp::canonical);
            if matches!(self.state, ConnState::Open(_)) {
                // The engine reports it with the queue pair.
                tracing::debug!(%local, %peer, %error, "TLS: the connection ends");
            } else {
                tracing::warn!(%local, %peer, %error, "TLS: the connection ends");
            }
        }
        self.failure = Some(failure);
        self.own = None;
    }

    /// Interest and counts follow the state. Called when a call ends.
    fn update_interest(&mut self) {
        self.count_buffers();
        let output = self.has_output() || self.fin == FinState::Wanted;
        let user = self.interest;
        let wanted = match &self.state {
            ConnState::Aborted => return,
            _ if self.failure.is_some() => Interest { read: false, write: output },
            ConnState::Connecting { .. } | ConnState::Clear { connecting: true } => Interest::WRITE,
            ConnState::Accepted | ConnState::AcceptedOwn | ConnState::Handshake(_) => {
                Interest { read: true, write: output }
            }
            ConnState::Open(_) => {
                Interest { read: user.read && !self.peer_closed, write: user.write || output }
            }
            ConnState::Clear { .. } => Interest { read: user.read, write: user.write || output },
        };
        if wanted != self.inner_interest {
            match self.inner.set_interest(wanted) {
                Ok(()) => self.inner_interest = wanted,
                // Detached: it is set again when the stream is adopted.
                Err(error) => tracing::trace!(%error, "no interest"),
            }
        }
    }

    /// The inner stream is in an event set again. A configuration loaded meanwhile applies to it.
    pub(super) fn on_adopted(&mut self, shared: &Arc<Shared>) {
        self.shared = Arc::clone(shared);
        let snapshot = shared.snapshot();
        if !Arc::ptr_eq(&self.snapshot, &snapshot) {
            self.recheck(&snapshot);
        }
        self.update_interest();
    }

    fn count_buffers(&mut self) {
        let bytes = self.incoming.capacity() + self.plain.capacity() + self.out.capacity();
        if bytes != self.counted {
            self.shared.counts.count_buffers(self.counted, bytes);
            self.counted = bytes;
        }
    }

    /// The connection is past its handshake: the listener counts it no more.
    pub(super) fn leave_listener(&mut self) {
        if self.listener.take().is_some() {
            self.shared.counts.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
        self.deadline = None;
    }

    /// Accepted by the user.
    pub(super) fn hand_over(&mut self, token: Token) {
        self.outer = Some(token);
        self.interest = Interest::READ;
        self.update_interest();
    }

    /// Returns whether a closed connection can be forgotten.
    pub(super) fn is_finished(&self) -> bool {
        !self.has_output() || self.failure.is_some() || self.is_aborted()
    }

    /// Returns whether the handshake is over, be it by a failure.
    pub(super) fn is_decided(&self) -> bool {
        self.is_open() || self.failure.is_some()
    }

    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.inner.local_addr(), self.inner.peer_addr())
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.leave_listener();
        self.shared.counts.count_buffers(self.counted, 0);
        self.shared.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Conn {
    /// Makes the keys of this direction anew.
    pub(super) fn update_keys(&mut self) {
        if let ConnState::Open(session) = &mut self.state {
            session.update_keys(&mut self.out);
        }
        self.flush();
        self.update_interest();
    }
}
