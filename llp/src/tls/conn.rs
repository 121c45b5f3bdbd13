//! One connection: its session, its bytes on their way, and the stream below.

use super::error::TlsError;
use super::session::Session;
use super::shared::{OwnConnection, Shared, Snapshot};
use super::verify::Peer;
use crate::{Event, Interest, PeerIdentity, Stream, Token};
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uiw_mem::{IoVec, IoVecMut};

/// Plaintext that is encrypted at a time. A connection keeps at most this much that TCP does not take, encrypted.
const CHUNK: usize = 64 << 10;
/// Bytes that are read at a time, at least: a record with its overhead (RFC 8446 section 5.2).
const MIN_READ: usize = 5 + (16 << 10) + 256;
/// And at most.
const MAX_READ: usize = 128 << 10;
/// Bytes of a peer's handshake at most: certificate chains have a few KiB.
const MAX_HANDSHAKE: usize = 64 << 10;
/// Bytes of records that are not whole yet, at most. rustls refuses longer records and messages before.
const MAX_INCOMING: usize = 96 << 10;
/// What the acceptor sends instead of its handshake to an initiator of the same process. It is no type of a TLS record.
const SAME_PROCESS: u8 = 0;
/// The type of a record with handshake messages.
const HANDSHAKE_RECORD: u8 = 0x16;

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

enum State {
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
    /// Without TLS: both ends are in this process.
    Clear {
        connecting: bool,
    },
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    No,
    /// Behind what is on its way.
    Wanted,
    Sent,
}

/// Why every call fails. An `io::Error` cannot be cloned.
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
    inner: Box<dyn Stream>,
    shared: Arc<Shared>,
    /// The configuration that the peer was accepted by.
    snapshot: Arc<Snapshot>,
    state: State,
    /// What the user's token is; none while the connection is not the user's: not accepted yet, or dropped.
    pub(super) outer: Option<Token>,
    /// The listener that it came to, while it is in its handshake.
    pub(super) listener: Option<usize>,
    /// When it is given up: the end of the time for the handshake, or for what is left to be sent after a drop.
    pub(super) deadline: Option<Instant>,
    /// The interest that the user asked for.
    interest: Interest,
    /// That of the inner stream.
    inner_interest: Interest,
    /// The front of a record.
    incoming: Vec<u8>,
    /// Plaintext that the user has not taken, from `plain_at` on.
    plain: Vec<u8>,
    plain_at: usize,
    /// Records that TCP has not taken, from `out_at` on.
    out: Vec<u8>,
    out_at: usize,
    fin: Fin,
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

/// Where plaintext goes.
struct Sink<'a, 'b> {
    bufs: &'a mut [IoVecMut<'b>],
    at: usize,
    count: usize,
}

impl Sink<'_, '_> {
    /// Takes what there is room for, and returns how much that is.
    fn put(&mut self, mut bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let (Some(buf), false) = (self.bufs.first_mut(), bytes.is_empty()) {
            let room = buf.len() - self.at;
            let part = room.min(bytes.len());
            if part > 0 {
                buf.sub(self.at..self.at + part).copy_from(&bytes[..part]);
            }
            (self.at, taken, bytes) = (self.at + part, taken + part, &bytes[part..]);
            if self.at == buf.len() {
                let bufs = std::mem::take(&mut self.bufs);
                self.bufs = &mut bufs[1..];
                self.at = 0;
            }
        }
        self.count += taken;
        taken
    }

    fn room(&self) -> usize {
        IoVecMut::total(self.bufs) - self.at
    }
}

impl Conn {
    fn new(
        inner: Box<dyn Stream>,
        shared: &Arc<Shared>,
        state: State,
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
            fin: Fin::No,
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
        inner: Box<dyn Stream>,
        shared: &Arc<Shared>,
        token: Token,
        name: ServerName<'static>,
        own: Option<Arc<OwnConnection>>,
    ) -> Self {
        let role = Peer::Server(name.clone());
        let state = State::Connecting { name: Box::new(name) };
        let mut conn = Self::new(inner, shared, state, Interest::WRITE, role);
        (conn.outer, conn.own) = (Some(token), own);
        conn
    }

    /// A stream of this process to itself.
    pub(super) fn to_itself(inner: Box<dyn Stream>, shared: &Arc<Shared>, token: Token) -> Self {
        let state = State::Clear { connecting: true };
        let mut conn = Self::new(inner, shared, state, Interest::WRITE, Peer::Client);
        conn.outer = Some(token);
        conn.identity = Some(Arc::new(PeerIdentity::SameProcess));
        conn
    }

    /// A connection that a listener has just accepted.
    pub(super) fn accepted(inner: Box<dyn Stream>, shared: &Arc<Shared>) -> Self {
        let own = shared.take_own(inner.peer_addr(), inner.local_addr());
        let state = if own { State::AcceptedOwn } else { State::Accepted };
        let mut conn = Self::new(inner, shared, state, Interest::READ, Peer::Client);
        // No event is due before it is accepted.
        conn.interest = Interest::NONE;
        shared.counts.handshakes.fetch_add(1, Ordering::Relaxed);
        conn
    }

    pub(super) fn inner(&self) -> &dyn Stream {
        &*self.inner
    }

    pub(super) fn inner_mut(&mut self) -> &mut Box<dyn Stream> {
        &mut self.inner
    }

    pub(super) fn identity(&self) -> Option<Arc<PeerIdentity>> {
        self.identity.clone()
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    pub(super) fn is_aborted(&self) -> bool {
        matches!(self.state, State::Aborted)
    }

    /// Whether bytes of the user pass.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_) | State::Clear { connecting: false })
    }

    pub(super) fn is_clear(&self) -> bool {
        matches!(self.state, State::Clear { .. })
    }

    /// Whether something waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.out_at < self.out.len()
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    fn has_plain(&self) -> bool {
        self.plain_at < self.plain.len()
    }

    /// Whether an event is due though the inner stream has none.
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
            State::Connecting { .. } => self.on_connect_event(scratch),
            State::Clear { connecting: true } => {
                if let Err(error) = self.connect_inner() {
                    self.fail(Failure::from(&error));
                }
            }
            State::Clear { .. } => self.flush(),
            _ => {
                self.flush();
                let wants = self.interest.read || !self.is_open();
                if event.readable && wants && !self.has_plain() && !self.peer_closed && self.failure.is_none()
                {
                    self.read(scratch, MIN_READ, &mut Sink { bufs: &mut [], at: 0, count: 0 });
                }
            }
        }
        self.update_interest();
    }

    /// Whether TCP is connected.
    fn connect_inner(&mut self) -> io::Result<bool> {
        let connected = self.inner.connect_result()?;
        if let (true, State::Clear { connecting }) = (connected, &mut self.state) {
            *connecting = false;
        }
        Ok(connected)
    }

    fn on_connect_event(&mut self, scratch: &mut Scratch) {
        match self.connect_inner() {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => return self.fail(Failure::from(&error)),
        }
        let State::Connecting { name } = std::mem::replace(&mut self.state, State::Aborted) else { return };
        self.deadline = None;
        match Session::client(&self.snapshot.client, *name) {
            Ok(session) => {
                self.state = State::Handshake(session);
                self.process(scratch, 0, &mut Sink { bufs: &mut [], at: 0, count: 0 });
                self.flush();
            }
            Err(error) => {
                self.state = State::Accepted;
                self.fail(Failure::Tls(error));
            }
        }
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
        if self.fin == Fin::Wanted {
            self.fin = Fin::Sent;
            // Of a connection that is gone: the next read says so.
            let _ = self.inner.shutdown();
        }
    }

    /// The stream below is lost. What it says during the handshake may be the peer's way to refuse TLS.
    fn lose(&mut self, error: &io::Error) {
        let reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        match &self.state {
            State::Handshake(_) if reset && self.handshake_bytes == 0 => {
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
            tracing::warn!(local = %self.inner.local_addr(), peer = %self.inner.peer_addr(), %error, "TLS: the connection ends");
        }
        self.failure = Some(failure);
        self.own = None;
    }

    /// Reads up to `limit` bytes from the inner stream and processes them. False when nothing more is there now.
    fn read(&mut self, scratch: &mut Scratch, limit: usize, sink: &mut Sink<'_, '_>) -> bool {
        let have = self.incoming.len();
        if scratch.incoming.len() < have + limit {
            scratch.incoming.resize(have + limit, 0);
        }
        scratch.incoming[..have].copy_from_slice(&self.incoming);
        match self.inner.recv(&mut [IoVecMut::from(&mut scratch.incoming[have..have + limit])]) {
            Ok(0) => {
                self.on_eof();
                false
            }
            Ok(got) => {
                self.process(scratch, have + got, sink);
                got == limit
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => {
                self.lose(&error);
                false
            }
        }
    }

    /// The peer's FIN.
    fn on_eof(&mut self) {
        if self.peer_closed {
            return;
        }
        let error = match &self.state {
            State::Open(_) => TlsError::Truncated,
            _ if self.handshake_bytes == 0 => TlsError::NoAnswer,
            _ => TlsError::ClosedInHandshake,
        };
        self.fail(Failure::Tls(error));
    }

    /// Processes the first `len` bytes of the shard's buffer, which begin with those that were kept.
    fn process(&mut self, scratch: &mut Scratch, len: usize, sink: &mut Sink<'_, '_>) {
        let kept = self.incoming.len();
        if !self.is_open() {
            let first_bytes = self.handshake_bytes == 0;
            self.handshake_bytes += len - kept.min(len);
            if self.handshake_bytes > MAX_HANDSHAKE {
                return self.fail(Failure::Tls(TlsError::HandshakeTooLong { limit: MAX_HANDSHAKE }));
            }
            if self.begin(&scratch.incoming[..len], first_bytes, sink) {
                return;
            }
        }
        let (State::Handshake(session) | State::Open(session)) = &mut self.state else { return };
        let (plain, received) = (&mut self.plain, &mut self.received);
        let progress = session.advance(&mut scratch.incoming[..len], &mut self.out, |bytes| {
            *received += bytes.len() as u64;
            let taken = if plain.is_empty() { sink.put(bytes) } else { 0 };
            plain.extend_from_slice(&bytes[taken..]);
        });
        self.keep(&scratch.incoming[progress.used..len]);
        self.peer_closed |= progress.peer_closed;
        let done = matches!(&self.state, State::Handshake(session) if !session.is_handshaking());
        if done && progress.error.is_none() {
            self.finish_handshake();
        }
        if let Some(error) = progress.error {
            // The alert leaves, if TCP takes it at once.
            self.flush();
            self.fail(Failure::Tls(error));
        } else if self.incoming.len() > MAX_INCOMING {
            self.fail(Failure::Tls(TlsError::HandshakeTooLong { limit: MAX_INCOMING }));
        }
    }

    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            // Idle connections keep no buffer.
            self.incoming = Vec::new();
        } else {
            self.incoming.clear();
            self.incoming.extend_from_slice(rest);
        }
    }

    /// What stands before a session: the bytes are a ClientHello, or the marker of this process. True if there is none of it to go on
    /// with.
    fn begin(&mut self, bytes: &[u8], first_bytes: bool, sink: &mut Sink<'_, '_>) -> bool {
        match &self.state {
            State::Accepted => {
                let Some(&first) = bytes.first() else { return true };
                if first != HANDSHAKE_RECORD {
                    self.fail(Failure::Tls(TlsError::Clear { first }));
                    return true;
                }
                match Session::server(&self.snapshot.server) {
                    Ok(session) => self.state = State::Handshake(session),
                    Err(error) => self.fail(Failure::Tls(error)),
                }
                self.failure.is_some()
            }
            State::AcceptedOwn => {
                self.keep(bytes);
                let length = self.incoming.get(3..5).map(|length| u16::from_be_bytes([length[0], length[1]]));
                if length.is_some_and(|length| self.incoming.len() >= 5 + usize::from(length)) {
                    self.incoming = Vec::new();
                    self.out.push(SAME_PROCESS);
                    self.open_clear();
                }
                true
            }
            State::Handshake(Session::Client(_)) if first_bytes && bytes.first() == Some(&SAME_PROCESS) => {
                // Only if this very connection was accepted by this process.
                let own = self.own.as_ref().is_some_and(|own| own.is_accepted());
                if own {
                    self.incoming = Vec::new();
                    let taken = sink.put(&bytes[1..]);
                    self.plain.extend_from_slice(&bytes[1 + taken..]);
                    self.received += bytes.len() as u64 - 1;
                    self.open_clear();
                }
                own
            }
            _ => false,
        }
    }

    fn open_clear(&mut self) {
        self.own = None;
        self.state = State::Clear { connecting: false };
        self.identity = Some(Arc::new(PeerIdentity::SameProcess));
        tracing::debug!(peer = %self.inner.peer_addr(), "the peer is in this process: no TLS");
        self.flush();
    }

    fn finish_handshake(&mut self) {
        let State::Handshake(session) = std::mem::replace(&mut self.state, State::Aborted) else { return };
        self.own = None;
        let (local, peer) = (self.inner.local_addr(), self.inner.peer_addr());
        let identity = match session.peer_certificates().first() {
            Some(own) => self.snapshot.verifier.identify(own),
            None => Err(TlsError::NoCertificate),
        };
        match identity {
            Ok(identity) => {
                let parameters = session.parameters();
                tracing::info!(%local, %peer, %identity, parameters, "TLS 1.3");
                self.shared.counts.established.fetch_add(1, Ordering::Relaxed);
                self.identity = Some(Arc::new(identity));
            }
            Err(error) => self.fail(Failure::Tls(error)),
        }
        self.state = State::Open(session);
    }

    /// The configuration was loaded again: a peer that it does not accept is cut off.
    pub(super) fn recheck(&mut self, snapshot: &Arc<Snapshot>) {
        self.snapshot = Arc::clone(snapshot);
        let State::Open(session) = &self.state else { return };
        if let Err(reason) = snapshot.verifier.check(session.peer_certificates(), &self.role) {
            let identity = self.identity.as_ref().map_or_else(String::new, ToString::to_string);
            let reason = match reason {
                TlsError::UnknownKey { .. } => "its key is not pinned any more".to_owned(),
                other => other.to_string(),
            };
            (self.plain, self.plain_at) = (Vec::new(), 0);
            self.fail(Failure::Tls(TlsError::Removed { identity, reason }));
        }
        self.update_interest();
    }

    /// The time is over: that of the handshake.
    pub(super) fn on_deadline(&mut self) {
        if !self.is_open() {
            self.fail(Failure::Tls(TlsError::HandshakeTimeout));
        }
    }

    /// Interest and counts follow the state. Called when a call ends.
    fn update_interest(&mut self) {
        self.count_buffers();
        let output = self.has_output() || self.fin == Fin::Wanted;
        let user = self.interest;
        let wanted = match &self.state {
            State::Aborted => return,
            _ if self.failure.is_some() => Interest { read: false, write: output },
            State::Connecting { .. } | State::Clear { connecting: true } => Interest::WRITE,
            State::Accepted | State::AcceptedOwn | State::Handshake(_) => {
                Interest { read: true, write: output }
            }
            State::Open(_) => Interest { read: user.read && !self.peer_closed, write: user.write || output },
            State::Clear { .. } => Interest { read: user.read, write: user.write || output },
        };
        if wanted != self.inner_interest {
            match self.inner.set_interest(wanted) {
                Ok(()) => self.inner_interest = wanted,
                // Detached: it is set again when the stream is adopted.
                Err(error) => tracing::trace!(%error, "no interest"),
            }
        }
    }

    /// The inner stream is in an event set again.
    pub(super) fn on_adopted(&mut self, shared: &Arc<Shared>) {
        self.shared = Arc::clone(shared);
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

    // ---- calls of the user ---------------------------------------------------------------------------------

    pub(super) fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.interest = interest;
        self.update_interest();
        Ok(())
    }

    pub(super) fn connect_result(&mut self, scratch: &mut Scratch) -> io::Result<bool> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        if matches!(self.state, State::Connecting { .. } | State::Clear { connecting: true })
            && self.failure.is_none()
        {
            let event = Event { token: Token(0), readable: false, writable: true };
            self.on_event(event, scratch);
            self.hung_up = false;
        }
        // A failure that came behind the handshake is reported where the bytes are.
        if self.is_open() {
            return Ok(true);
        }
        match &self.failure {
            Some(failure) => Err(failure.into()),
            None => Ok(false),
        }
    }

    pub(super) fn recv(&mut self, bufs: &mut [IoVecMut<'_>], scratch: &mut Scratch) -> io::Result<usize> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        let total = IoVecMut::total(bufs);
        if total == 0 {
            return Err(crate::no_bytes());
        }
        if self.has_output() {
            self.flush();
        }
        if self.is_clear() && !self.has_plain() {
            if self.failure.is_some() {
                return self.nothing();
            }
            let received = self.inner.recv(bufs);
            self.update_interest();
            return received.inspect(|received| self.received += *received as u64);
        }
        let mut sink = Sink { bufs, at: 0, count: 0 };
        if self.has_plain() {
            self.plain_at += sink.put(&self.plain[self.plain_at..]);
            if !self.has_plain() {
                (self.plain, self.plain_at) = (Vec::new(), 0);
            }
        }
        while !self.has_plain() && !self.is_clear() && !self.peer_closed && self.failure.is_none() {
            let room = sink.room();
            if room == 0 || matches!(self.state, State::Connecting { .. }) {
                break;
            }
            if !self.read(scratch, room.clamp(MIN_READ, MAX_READ), &mut sink) {
                break;
            }
        }
        if self.has_output() {
            self.flush();
        }
        let count = sink.count;
        self.update_interest();
        if count > 0 { Ok(count) } else { self.nothing() }
    }

    /// What is said instead of bytes.
    fn nothing(&self) -> io::Result<usize> {
        match &self.failure {
            _ if self.peer_closed => Ok(0),
            Some(failure) => Err(failure.into()),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    pub(super) fn send(&mut self, bufs: &[IoVec<'_>], scratch: &mut Scratch) -> io::Result<usize> {
        if self.is_aborted() {
            return Err(ErrorKind::NotConnected.into());
        }
        if self.fin != Fin::No {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if let Some(failure) = &self.failure {
            return Err(failure.into());
        }
        if IoVec::total(bufs) == 0 {
            return Err(crate::no_bytes());
        }
        if !self.is_open() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.flush();
        let sent = match self.has_output() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => match &self.failure {
                Some(failure) => Err(failure.into()),
                None if self.is_clear() => self.inner.send(bufs),
                None => self.send_records(bufs, scratch),
            },
        };
        self.update_interest();
        sent
    }

    /// Encrypts and sends, until TCP takes no more.
    fn send_records(&mut self, bufs: &[IoVec<'_>], scratch: &mut Scratch) -> io::Result<usize> {
        let (mut sent, mut at) = (0, (0, 0));
        while !self.has_output() {
            let Some(plain) = gather(bufs, &mut at, &mut scratch.plain) else {
                // What was sent before is reported first.
                return if sent == 0 { Err(io::Error::from_raw_os_error(libc::EFAULT)) } else { Ok(sent) };
            };
            if plain == 0 {
                break;
            }
            let State::Open(session) = &mut self.state else { break };
            scratch.cipher.clear();
            let encrypted = session.encrypt(&scratch.plain[..plain], &mut self.incoming, &mut scratch.cipher);
            if let Err(error) = encrypted {
                self.fail(Failure::Tls(error));
                break;
            }
            sent += plain;
            let taken = match self.inner.send(&[IoVec::from(&scratch.cipher[..])]) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => {
                    self.lose(&error);
                    sent -= plain;
                    break;
                }
            };
            if taken < scratch.cipher.len() {
                self.out.extend_from_slice(&scratch.cipher[taken..]);
            }
        }
        match &self.failure {
            Some(failure) if sent == 0 => Err(failure.into()),
            _ => Ok(sent),
        }
    }

    pub(super) fn shutdown(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Aborted => return Err(ErrorKind::NotConnected.into()),
            _ if self.fin != Fin::No => return Ok(()),
            _ if self.failure.is_some() => {}
            State::Open(session) => {
                if let Err(error) = session.close(&mut self.incoming, &mut self.out) {
                    self.fail(Failure::Tls(error));
                }
            }
            State::Connecting { .. } => return self.inner.shutdown(),
            _ => {}
        }
        self.fin = Fin::Wanted;
        self.flush();
        self.update_interest();
        Ok(())
    }

    pub(super) fn abort(&mut self) {
        // An alert that was sent is to reach the peer: a reset could overtake it there.
        if !matches!(self.failure, Some(Failure::Tls(_))) {
            self.inner.abort();
        } else {
            let _ = self.inner.shutdown();
            // A hang-up would be reported with every poll.
            let _ = self.inner.detach();
        }
        self.state = State::Aborted;
        self.own = None;
        (self.incoming, self.plain, self.out) = Default::default();
        (self.plain_at, self.out_at) = (0, 0);
        self.count_buffers();
    }

    /// The user has dropped it. True when nothing is left to be sent.
    pub(super) fn close(&mut self) -> bool {
        self.outer = None;
        self.interest = Interest::NONE;
        (self.plain, self.plain_at) = (Vec::new(), 0);
        if !self.is_open() {
            return true;
        }
        // Its error is that of a connection that is gone.
        let _ = self.shutdown();
        self.is_finished()
    }

    /// Whether a closed connection can be forgotten.
    pub(super) fn is_finished(&self) -> bool {
        !self.has_output() || self.failure.is_some() || self.is_aborted()
    }

    /// Whether the handshake is over, be it by a failure.
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

/// Copies the next [`CHUNK`] bytes of `bufs` to the front of `to`, from `at` (buffer, byte) on, and returns how many there were. `None`:
/// a buffer is not there.
fn gather(bufs: &[IoVec<'_>], at: &mut (usize, usize), to: &mut Vec<u8>) -> Option<usize> {
    if to.len() < CHUNK {
        to.resize(CHUNK, 0);
    }
    let mut count = 0;
    while let Some(buf) = bufs.get(at.0)
        && count < CHUNK
    {
        let part = (buf.len() - at.1).min(CHUNK - count);
        if !buf.sub(at.1..at.1 + part).try_copy_to(&mut to[count..count + part]) {
            return None;
        }
        count += part;
        at.1 += part;
        if at.1 == buf.len() {
            *at = (at.0 + 1, 0);
        }
    }
    Some(count)
}

#[cfg(test)]
impl Conn {
    /// Makes the keys of this direction anew.
    pub(super) fn update_keys(&mut self) {
        if let State::Open(session) = &mut self.state {
            session.update_keys(&mut self.out);
        }
        self.flush();
        self.update_interest();
    }
}
