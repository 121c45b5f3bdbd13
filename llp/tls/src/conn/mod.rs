//! A TLS connection: the rustls session, its buffers, and the inner stream (the transport stream
//! below TLS).
//!
//! The *user* is the code above this stack that holds the TLS stream: the iWARP engine.

mod calls;
mod handshake;
mod incoming;

use super::error::TlsError;
use super::session::Session;
use super::shared::{InProcessConnection, Shared, Snapshot, StackId};
use super::verify::PeerRole;
use incoming::{MIN_READ, Sink};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uiw_llp::{Event, Interest, PeerIdentity, Token, TransportStream};
use uiw_mem::IoVec;

/// Buffers shared by all connections of a shard, so that an idle connection needs none.
#[derive(Default)]
pub(super) struct Scratch {
    /// Records as they were read.
    incoming: Vec<u8>,
    /// Plaintext to encrypt.
    plain: Vec<u8>,
    /// Encrypted records to send.
    cipher: Vec<u8>,
}

/// State of a connection.
enum ConnState {
    /// TCP is connecting to the server `name`.
    Connecting { name: Box<ServerName<'static>> },
    /// Accepted by TCP; the client has sent nothing yet.
    Accepted,
    /// Like `Accepted`, but the initiator is in this process. Its ClientHello is skipped, and the
    /// connection becomes `Cleartext`.
    AcceptedSameProcess,
    /// The TLS handshake is in progress.
    Handshake(Session),
    /// The handshake is complete.
    Open(Session),
    /// Both ends are in this process and use no TLS.
    Cleartext {
        /// True if TCP is still connecting.
        connecting: bool,
    },
    /// The user has aborted the connection. Every call fails.
    Aborted,
}

/// Progress of TCP's FIN after the user has shut the stream down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinState {
    NotRequested,
    /// The FIN is sent after the bytes in `Conn::out`. With TLS these end with the close_notify
    /// alert.
    Pending,
    Sent,
}

/// Error that every further call returns. An `io::Error` cannot be stored instead, because it
/// cannot be cloned.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Error number of the operating system.
    System(i32),
    /// Error of the inner stream without an error number.
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

/// A TLS connection over an inner stream.
pub(super) struct Conn {
    inner: Box<dyn TransportStream>,
    shared: Arc<Shared>,
    /// Configuration with which the connection was created, or with which its peer was last
    /// verified.
    snapshot: Arc<Snapshot>,
    state: ConnState,
    /// Token of the user's stream; `None` before the user accepts the connection, and after the
    /// user drops the stream.
    pub(super) outer: Option<Token>,
    /// Key of the listener that received the connection, during the handshake.
    pub(super) listener: Option<usize>,
    /// Time at which the connection is given up if its handshake is not complete or, after the user
    /// has dropped it, if its output was not sent.
    pub(super) deadline: Option<Instant>,
    /// Interest that the user has set.
    interest: Interest,
    /// Interest that is set on the inner stream.
    inner_interest: Interest,
    /// Received part of an incomplete record.
    incoming: Vec<u8>,
    /// Decrypted plaintext. The user has read the bytes before `plain_at`.
    plain: Vec<u8>,
    plain_at: usize,
    /// Encrypted records. TCP has accepted the bytes before `out_at`.
    out: Vec<u8>,
    out_at: usize,
    fin: FinState,
    /// True if the peer has closed its sending direction (with TLS, by a close_notify alert).
    peer_closed: bool,
    failure: Option<Failure>,
    /// Error of sending. The bytes that the peer sent before the loss are still read; `failure` is
    /// set at their end.
    send_failure: Option<Failure>,
    /// True if the last event of the inner stream was a hang-up: it reported readiness outside the
    /// inner interest.
    hung_up: bool,
    /// Bytes received during the handshake.
    handshake_bytes: usize,
    /// Entry of an initiator among the connections of this process to itself, until the handshake
    /// shows whether the acceptor is in this process, too.
    own: Option<Arc<InProcessConnection>>,
    identity: Option<Arc<PeerIdentity>>,
    role: PeerRole,
    /// Bytes of plaintext received.
    received: u64,
    /// Bytes of this connection's buffers as counted in [`Shared`].
    counted: usize,
}

impl Conn {
    fn new(
        inner: Box<dyn TransportStream>,
        shared: &Arc<Shared>,
        state: ConnState,
        interest: Interest,
        role: PeerRole,
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
            fin: FinState::NotRequested,
            peer_closed: false,
            failure: None,
            send_failure: None,
            hung_up: false,
            handshake_bytes: 0,
            own: None,
            identity: None,
            role,
            received: 0,
            counted: 0,
        }
    }

    /// Creates the initiator's connection to the server `name`, over an inner stream that has begun
    /// to connect.
    pub(super) fn new_connecting(
        inner: Box<dyn TransportStream>,
        shared: &Arc<Shared>,
        token: Token,
        name: ServerName<'static>,
        own: Option<Arc<InProcessConnection>>,
    ) -> Self {
        let role = PeerRole::Server(name.clone());
        let state = ConnState::Connecting { name: Box::new(name) };
        let mut conn = Self::new(inner, shared, state, Interest::WRITE, role);
        (conn.outer, conn.own) = (Some(token), own);
        conn
    }

    /// Creates a connection whose two ends are the same stream, without TLS.
    pub(super) fn new_loopback(
        inner: Box<dyn TransportStream>,
        shared: &Arc<Shared>,
        token: Token,
    ) -> Self {
        let state = ConnState::Cleartext { connecting: true };
        let mut conn = Self::new(inner, shared, state, Interest::WRITE, PeerRole::Client);
        conn.outer = Some(token);
        conn.identity = Some(Arc::new(PeerIdentity::SameProcess));
        conn
    }

    /// Creates the responder's connection, over an inner stream that has just been accepted.
    pub(super) fn new_accepted(
        inner: Box<dyn TransportStream>,
        shared: &Arc<Shared>,
        stack: StackId,
    ) -> Self {
        let own = shared.accept_in_process(stack, &*inner);
        let state = if own { ConnState::AcceptedSameProcess } else { ConnState::Accepted };
        let mut conn = Self::new(inner, shared, state, Interest::READ, PeerRole::Client);
        // The user gets no events before it accepts the connection.
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

    /// Returns whether the user can send and receive: the handshake is complete, or none is needed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ConnState::Open(_) | ConnState::Cleartext { connecting: false })
    }

    /// Returns whether the connection uses no TLS.
    pub(super) fn is_cleartext(&self) -> bool {
        matches!(self.state, ConnState::Cleartext { .. })
    }

    /// Returns whether encrypted records wait to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.out_at < self.out.len()
    }

    /// Returns the number of plaintext bytes received.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    fn has_plaintext(&self) -> bool {
        self.plain_at < self.plain.len()
    }

    /// Returns whether the user must get an event even if the inner stream reports none.
    pub(super) fn is_ready(&self) -> bool {
        self.outer.is_some()
            && !self.is_aborted()
            && (self.failure.is_some()
                || self.interest.read && (self.has_plaintext() || self.peer_closed))
    }

    /// Returns the event to report to the user, given the event of the inner stream, if it has one.
    pub(super) fn user_event(&self, inner: Option<Event>) -> Option<Event> {
        let token = self.outer?;
        if self.is_aborted() {
            return None;
        }
        let broken = self.failure.is_some() || self.hung_up && inner.is_some();
        let writable = self.is_open() && !self.has_output();
        let (readable, writable) = if self.is_cleartext() {
            let inner = inner.unwrap_or(Event { token, readable: false, writable: false });
            (
                inner.readable && self.interest.read,
                inner.writable && self.interest.write && !self.has_output(),
            )
        } else {
            (false, inner.is_some_and(|inner| inner.writable) && self.interest.write && writable)
        };
        let readable = readable || self.interest.read && (self.has_plaintext() || self.peer_closed);
        let event = Event { token, readable: readable || broken, writable: writable || broken };
        (event.readable || event.writable).then_some(event)
    }

    /// Handles an event of the inner stream.
    pub(super) fn on_event(&mut self, event: Event, scratch: &mut Scratch) {
        let asked = self.inner_interest;
        self.hung_up = event.readable && !asked.read || event.writable && !asked.write;
        if self.is_aborted() {
            return;
        }
        match &self.state {
            _ if self.failure.is_some() => self.flush(),
            ConnState::Connecting { .. } => self.on_connect_event(scratch),
            ConnState::Cleartext { connecting: true } => {
                if let Err(error) = self.connect_inner() {
                    self.fail(Failure::from(&error));
                }
            }
            ConnState::Cleartext { .. } => self.flush(),
            _ => {
                self.flush();
                let wants = self.interest.read || !self.is_open();
                if event.readable
                    && wants
                    && !self.has_plaintext()
                    && !self.peer_closed
                    && self.failure.is_none()
                {
                    self.read(scratch, MIN_READ, &mut Sink::new(&mut []));
                }
            }
        }
        self.update_interest();
    }

    /// Sends queued records until TCP accepts no more. After the last one, sends the FIN if it is
    /// pending.
    pub(super) fn flush(&mut self) {
        if self.send_failure.is_some() {
            (self.out, self.out_at) = (Vec::new(), 0);
        }
        while self.has_output() {
            match self.inner.send(&[IoVec::from(&self.out[self.out_at..])]) {
                Ok(sent) => self.out_at += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    (self.out, self.out_at) = (Vec::new(), 0);
                    return self.on_send_lost(&error);
                }
            }
        }
        (self.out, self.out_at) = (Vec::new(), 0);
        if self.fin == FinState::Pending {
            self.fin = FinState::Sent;
            // This fails only if the connection is gone, which the next read reports.
            let _ = self.inner.shutdown();
        }
    }

    /// Handles an error of sending. Bytes that the peer sent before the loss remain readable; they
    /// may include an alert.
    fn on_send_lost(&mut self, error: &io::Error) {
        if self.is_open() || is_reset(error) {
            self.send_failure.get_or_insert_with(|| Failure::from(error));
        } else {
            self.on_inner_lost(error);
        }
    }

    /// Handles the loss of the inner stream.
    ///
    /// A reset before the peer has sent any handshake byte is reported as [`TlsError::NoAnswer`],
    /// because a peer without TLS may refuse it that way.
    fn on_inner_lost(&mut self, error: &io::Error) {
        match &self.state {
            ConnState::Handshake(_) if is_reset(error) && self.handshake_bytes == 0 => {
                self.fail(Failure::Tls(TlsError::NoAnswer));
            }
            _ => self.fail(Failure::from(error)),
        }
    }

    /// Records and logs the first failure; later ones are ignored.
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        if let Failure::Tls(error) = &failure {
            self.shared.counts.failed.fetch_add(1, Ordering::Relaxed);
            let [local, peer] =
                [self.inner.local_addr(), self.inner.peer_addr()].map(uiw_llp::canonical);
            if matches!(self.state, ConnState::Open(_)) {
                // The engine logs this failure as well, together with the queue pair.
                tracing::debug!(%local, %peer, %error, "TLS: the connection ends");
            } else {
                tracing::warn!(%local, %peer, %error, "TLS: the connection ends");
            }
        }
        self.failure = Some(failure);
        self.own = None;
    }

    /// Updates the inner stream's interest and the buffer counts to the current state. Every
    /// function that may change the state calls this last.
    fn update_interest(&mut self) {
        self.count_buffers();
        let output = self.has_output() || self.fin == FinState::Pending;
        let user = self.interest;
        let wanted = match &self.state {
            ConnState::Aborted => return,
            _ if self.failure.is_some() => Interest { read: false, write: output },
            ConnState::Connecting { .. } | ConnState::Cleartext { connecting: true } => {
                Interest::WRITE
            }
            ConnState::Accepted | ConnState::AcceptedSameProcess | ConnState::Handshake(_) => {
                Interest { read: true, write: output }
            }
            ConnState::Open(_) => {
                Interest { read: user.read && !self.peer_closed, write: user.write || output }
            }
            ConnState::Cleartext { .. } => {
                Interest { read: user.read, write: user.write || output }
            }
        };
        if wanted != self.inner_interest {
            match self.inner.set_interest(wanted) {
                Ok(()) => self.inner_interest = wanted,
                // The stream is detached; `on_adopted` sets the interest.
                Err(error) => tracing::trace!(%error, "no interest"),
            }
        }
    }

    /// Sets the interest again after a shard has adopted the stream
    /// ([`uiw_llp::StackExtensions::adopt`]), and applies a configuration that was loaded
    /// meanwhile.
    pub(super) fn on_adopted(&mut self, shared: &Arc<Shared>) {
        self.shared = Arc::clone(shared);
        let snapshot = shared.snapshot();
        if !Arc::ptr_eq(&self.snapshot, &snapshot) {
            self.recheck(&snapshot);
        }
        self.update_interest();
    }

    /// Updates this connection's share of the bytes counted in [`Shared`].
    fn count_buffers(&mut self) {
        let bytes = self.incoming.capacity() + self.plain.capacity() + self.out.capacity();
        if bytes != self.counted {
            self.shared.counts.count_buffers(self.counted, bytes);
            self.counted = bytes;
        }
    }

    /// Clears the time limit of the handshake, and no longer counts the connection among those
    /// whose handshake is in progress.
    pub(super) fn leave_listener(&mut self) {
        if self.listener.take().is_some() {
            self.shared.counts.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
        self.deadline = None;
    }

    /// Gives the connection to the user, who has accepted it and knows it by `token`.
    pub(super) fn assign_user(&mut self, token: Token) {
        self.outer = Some(token);
        self.interest = Interest::READ;
        self.update_interest();
    }

    /// Returns whether a connection that the user has dropped has nothing left to send and can be
    /// removed.
    pub(super) fn is_finished(&self) -> bool {
        !self.has_output() || self.failure.is_some() || self.is_aborted()
    }

    /// Returns whether the handshake is over, successfully or not.
    pub(super) fn is_handshake_over(&self) -> bool {
        self.is_open() || self.failure.is_some()
    }

    /// Returns the local and the peer's address.
    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.inner.local_addr(), self.inner.peer_addr())
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
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
    /// Updates the sending keys (RFC 8446 section 4.6.3).
    pub(super) fn update_keys(&mut self) {
        if let ConnState::Open(session) = &mut self.state {
            session.update_keys(&mut self.out);
        }
        self.flush();
        self.update_interest();
    }
}
