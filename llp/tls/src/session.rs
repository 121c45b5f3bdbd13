//! The rustls session of one connection, which converts between records and plaintext.

use super::error::TlsError;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError};
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;

/// Size of a record in addition to its plaintext, in bytes: header, type and tag (RFC 8446 section
/// 5.2), rounded up.
const RECORD_OVERHEAD: usize = 32;
/// Maximum size of the plaintext in a record, in bytes.
const RECORD: usize = 16 << 10;

pub(super) enum Session {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// Result of [`Session::advance`].
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Number of input bytes that are not needed any more.
    pub(super) used: usize,
    /// The peer's close_notify was read.
    pub(super) peer_closed: bool,
    pub(super) error: Option<TlsError>,
}

/// Evaluates an expression for the connection of either role.
macro_rules! either {
    ($session:expr, $conn:ident => $body:expr) => {
        match $session {
            Session::Client($conn) => $body,
            Session::Server($conn) => $body,
        }
    };
}

impl Session {
    pub(super) fn client(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, TlsError> {
        Ok(Self::Client(Box::new(UnbufferedClientConnection::new(Arc::clone(config), name)?)))
    }

    pub(super) fn server(config: &Arc<ServerConfig>) -> Result<Self, TlsError> {
        Ok(Self::Server(Box::new(UnbufferedServerConnection::new(Arc::clone(config))?)))
    }

    pub(super) fn is_handshaking(&self) -> bool {
        either!(self, conn => conn.is_handshaking())
    }

    /// Returns the certificates that the peer has presented. The first one is its own certificate
    /// or its key.
    pub(super) fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        either!(self, conn => conn.peer_certificates()).unwrap_or_default()
    }

    /// Returns the negotiated cipher suite and key exchange, for the log.
    pub(super) fn parameters(&self) -> String {
        let (suite, group) = either!(self, conn => {
            (conn.negotiated_cipher_suite(), conn.negotiated_key_exchange_group())
        });
        let suite = suite.and_then(|suite| suite.suite().as_str()).unwrap_or("unknown suite");
        let group = group.and_then(|group| group.name().as_str()).unwrap_or("unknown group");
        format!("{suite}, {group}")
    }

    /// Processes the records of `incoming`. They are decrypted in place: `plaintext` gets their
    /// bytes, and data to be sent is appended to `out`. Bytes that were not used must be passed
    /// again, before the following ones.
    pub(super) fn advance(
        &mut self,
        incoming: &mut [u8],
        out: &mut Vec<u8>,
        mut plaintext: impl FnMut(&[u8]),
    ) -> Progress {
        let mut progress = Progress::default();
        either!(self, conn => loop {
            let status = conn.process_tls_records(&mut incoming[progress.used..]);
            let mut used = status.discard;
            let goes_on = match status.state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                used += record.discard;
                                plaintext(record.payload);
                            }
                            Err(error) => progress.error = Some(error.into()),
                        }
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, 0, |out| data.encode(out).map_err(needed_to_encode)).is_ok()
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                Ok(ConnectionState::PeerClosed) => {
                    progress.peer_closed = true;
                    true
                }
                Ok(_) => false,
                Err(error) => {
                    progress.error = Some(error.into());
                    false
                }
            };
            progress.used += used;
            if !goes_on {
                // After an error, the alert that notifies the peer is appended. No more records are
                // processed.
                while progress.error.is_some() && conn.wants_write() {
                    match conn.process_tls_records(&mut []).state {
                        Ok(ConnectionState::EncodeTlsData(mut data)) => {
                            let _ = append(out, 0, |out| data.encode(out).map_err(needed_to_encode));
                        }
                        _ => break,
                    }
                }
                break;
            }
        });
        progress
    }

    /// Appends records with `plaintext` to `out`. `incoming` contains the bytes that
    /// [`Session::advance`] has left.
    pub(super) fn encrypt(
        &mut self,
        plaintext: &[u8],
        incoming: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        let room = plaintext.len() + (plaintext.len() / RECORD + 2) * RECORD_OVERHEAD;
        self.write(incoming, out, room, Some(plaintext))
    }

    /// Appends a close_notify to `out`.
    pub(super) fn close(&mut self, incoming: &mut [u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.write(incoming, out, 64, None)
    }

    /// Updates the keys of this direction, and requests the same from the peer (RFC 8446 section
    /// 4.6.3).
    #[cfg(test)]
    pub(super) fn update_keys(&mut self, out: &mut Vec<u8>) {
        either!(self, conn => {
            if let Ok(ConnectionState::WriteTraffic(traffic)) = conn.process_tls_records(&mut []).state {
                traffic.refresh_traffic_keys().unwrap();
            }
        });
        self.advance(&mut [], out, |_| {});
    }

    /// Appends records with `plaintext`, or a close_notify if there is none. They probably need
    /// `room` bytes.
    fn write(
        &mut self,
        incoming: &mut [u8],
        out: &mut Vec<u8>,
        room: usize,
        plaintext: Option<&[u8]>,
    ) -> Result<(), TlsError> {
        // Queued data is sent first: an answer to a key update, or an alert. Every complete record
        // was processed when it arrived.
        if let Some(error) = self.advance(incoming, out, |_| {}).error {
            return Err(error);
        }
        either!(self, conn => match conn.process_tls_records(incoming).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let written = append(out, room, |out| match plaintext {
                    Some(plaintext) => traffic.encrypt(plaintext, out).map_err(needed_to_encrypt),
                    None => traffic.queue_close_notify(out).map_err(needed_to_encrypt),
                });
                written.map_err(|()| TlsError::Protocol("its keys are exhausted".into()))
            }
            Ok(_) => Err(TlsError::Protocol("no data can be sent now".into())),
            Err(error) => Err(error.into()),
        })
    }
}

/// Returns the missing room if that is the reason for the error.
fn needed_to_encode(error: EncodeError) -> Option<usize> {
    match error {
        EncodeError::InsufficientSize(error) => Some(error.required_size),
        EncodeError::AlreadyEncoded => None,
    }
}

fn needed_to_encrypt(error: EncryptError) -> Option<usize> {
    match error {
        EncryptError::InsufficientSize(error) => Some(error.required_size),
        EncryptError::EncryptExhausted => None,
    }
}

/// Appends the bytes that `fill` writes to the front of its argument. `fill` returns their number
/// or, if there was not enough room, the size that it needs. Provides `room` bytes at first, and
/// more if `fill` requests that.
fn append(
    out: &mut Vec<u8>,
    mut room: usize,
    mut fill: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> Result<(), ()> {
    let begin = out.len();
    loop {
        out.resize(begin + room, 0);
        match fill(&mut out[begin..]) {
            Ok(written) => {
                out.truncate(begin + written);
                return Ok(());
            }
            Err(Some(needed)) if needed > room => room = needed,
            Err(_) => {
                out.truncate(begin);
                return Err(());
            }
        }
    }
}
