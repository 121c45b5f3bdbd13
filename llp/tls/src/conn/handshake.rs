//! The TLS handshake, which authenticates the peer of a TCP connection, and the verification of the
//! peer after the configuration has changed.

use super::incoming::Sink;
use super::{Conn, ConnState, Failure, Scratch};
use crate::error::TlsError;
use crate::session::Session;
use crate::shared::Snapshot;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uiw_llp::PeerIdentity;

/// First byte that the acceptor sends, instead of its handshake, to an initiator in the same
/// process. It is not the type of a TLS record.
const SAME_PROCESS: u8 = 0;
/// Type of a record with handshake messages.
const HANDSHAKE_RECORD: u8 = 0x16;

impl Conn {
    /// Completes the TCP connection. Returns whether it is established.
    pub(super) fn connect_inner(&mut self) -> io::Result<bool> {
        let connected = self.inner.connect_result()?;
        if let (true, ConnState::Cleartext { connecting }) = (connected, &mut self.state) {
            *connecting = false;
        }
        Ok(connected)
    }

    pub(super) fn on_connect_event(&mut self, scratch: &mut Scratch) {
        match self.connect_inner() {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => return self.fail(Failure::from(&error)),
        }
        let ConnState::Connecting { name } = std::mem::replace(&mut self.state, ConnState::Aborted)
        else {
            return;
        };
        self.deadline = None;
        match Session::client(&self.snapshot.client, *name) {
            Ok(session) => {
                self.state = ConnState::Handshake(session);
                self.process(scratch, 0, &mut Sink::new(&mut []));
                self.flush();
            }
            Err(error) => {
                // In any state but `Aborted`, so that the failure is reported to the user.
                self.state = ConnState::Accepted;
                self.fail(Failure::Tls(error));
            }
        }
    }

    /// Handles bytes that precede the session: a ClientHello at an acceptor, or the marker for the
    /// same process at an initiator. Returns true if the session has nothing to process.
    pub(super) fn begin(
        &mut self,
        bytes: &[u8],
        first_bytes: bool,
        sink: &mut Sink<'_, '_>,
    ) -> bool {
        match &self.state {
            ConnState::Accepted => {
                let Some(&first) = bytes.first() else { return true };
                if first != HANDSHAKE_RECORD {
                    self.fail(Failure::Tls(TlsError::Clear { first }));
                    return true;
                }
                match Session::server(&self.snapshot.server) {
                    Ok(session) => self.state = ConnState::Handshake(session),
                    Err(error) => self.fail(Failure::Tls(error)),
                }
                self.failure.is_some()
            }
            ConnState::AcceptedSameProcess => {
                self.keep(bytes);
                let length = self
                    .incoming
                    .get(3..5)
                    .map(|length| u16::from_be_bytes([length[0], length[1]]));
                if length.is_some_and(|length| self.incoming.len() >= 5 + usize::from(length)) {
                    self.incoming = Vec::new();
                    self.out.push(SAME_PROCESS);
                    self.open_clear();
                }
                true
            }
            ConnState::Handshake(Session::Client(_))
                if first_bytes && bytes.first() == Some(&SAME_PROCESS) =>
            {
                // The marker is valid only if this process has accepted this very connection.
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
        self.state = ConnState::Cleartext { connecting: false };
        self.identity = Some(Arc::new(PeerIdentity::SameProcess));
        tracing::debug!(peer = %self.inner.peer_addr(), "the peer is in this process: no TLS");
        self.flush();
    }

    pub(super) fn finish_handshake(&mut self) {
        let ConnState::Handshake(session) = std::mem::replace(&mut self.state, ConnState::Aborted)
        else {
            return;
        };
        self.own = None;
        let (local, peer) = (self.inner.local_addr(), self.inner.peer_addr());
        // The configuration may have been replaced since the session began.
        match self.snapshot.verifier.check(session.peer_certificates(), &self.role) {
            Ok(identity) => {
                let parameters = session.parameters();
                tracing::info!(%local, %peer, %identity, parameters, "TLS 1.3");
                self.shared.counts.established.fetch_add(1, Ordering::Relaxed);
                self.identity = Some(Arc::new(identity));
            }
            Err(error) => self.fail(Failure::Tls(error)),
        }
        self.state = ConnState::Open(session);
    }

    /// Verifies the peer again after the configuration was replaced. Ends the connection if the
    /// peer is no longer accepted, or if its key has other options.
    pub(crate) fn recheck(&mut self, snapshot: &Arc<Snapshot>) {
        self.snapshot = Arc::clone(snapshot);
        let ConnState::Open(session) = &self.state else { return };
        let reason = match snapshot.verifier.check(session.peer_certificates(), &self.role) {
            Ok(now)
                if self
                    .identity
                    .as_ref()
                    .is_some_and(|before| options(before) != options(&now)) =>
            {
                Some("the options of its key have changed".to_owned())
            }
            Ok(_) => None,
            Err(TlsError::UnknownKey { .. }) => Some("its key is no longer pinned".to_owned()),
            Err(other) => Some(other.to_string()),
        };
        if let Some(reason) = reason {
            let identity = self.identity.as_ref().map_or_else(String::new, ToString::to_string);
            (self.plain, self.plain_at) = (Vec::new(), 0);
            self.fail(Failure::Tls(TlsError::Removed { identity, reason }));
        }
        self.update_interest();
    }

    /// Fails the connection if its handshake is incomplete at the time limit.
    pub(crate) fn on_deadline(&mut self) {
        if !self.is_open() {
            self.fail(Failure::Tls(TlsError::HandshakeTimeout));
        }
    }
}

/// Returns the options of a pinned key, or an empty string for other identities.
fn options(identity: &PeerIdentity) -> &str {
    match identity {
        PeerIdentity::PublicKey { options, .. } => options,
        _ => "",
    }
}
