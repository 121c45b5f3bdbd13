//! Reasons why a TLS connection ends.

use std::io;
use std::sync::Arc;
use uiw_llp::Fingerprint;

/// Reason why a TLS connection failed. It is contained in the `io::Error` that every call of the
/// stream returns from then on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A peer connected without TLS. Nothing was sent to it.
    #[error("the peer does not use TLS: its first byte is {first:#04x}{}", if *first == b'M' { ", as an MPA Request in the clear begins" } else { "" })]
    Clear {
        /// First byte received.
        first: u8,
    },
    /// The peer closed the connection before it sent a byte of its handshake.
    #[error(
        "the peer closed the connection during the TLS handshake; it may not use TLS on that port"
    )]
    NoAnswer,
    /// The peer closed the connection during the handshake.
    #[error("the peer closed the connection during the TLS handshake")]
    ClosedInHandshake,
    /// TCP was closed without close_notify (RFC 8446 section 6.1). The peer's process may have been
    /// killed, or an attacker has truncated the stream.
    #[error(
        "the peer closed the connection without close_notify: its process ended, or the stream was truncated"
    )]
    Truncated,
    /// The handshake was not completed in time.
    #[error("the TLS handshake was not completed in time")]
    HandshakeTimeout,
    /// The peer's handshake is longer than any legitimate one.
    #[error("the peer's TLS handshake is longer than {limit} bytes")]
    HandshakeTooLong {
        /// Maximum size in bytes.
        limit: usize,
    },
    /// The peer's raw public key is not among the pinned ones.
    #[error(
        "the peer's key {fingerprint} is not pinned; `uiw key pin` adds the line: {public_key}"
    )]
    UnknownKey {
        /// Fingerprint of the key.
        fingerprint: Fingerprint,
        /// The key in the format of a file of pinned keys.
        public_key: String,
    },
    /// The peer is authentic, but is not on the access list.
    #[error("{identity} is not on the access list")]
    NotAllowed {
        /// The identity of the peer.
        identity: String,
    },
    /// The peer's key or certificate is no longer accepted since the configuration was replaced.
    #[error("{identity} is not accepted any more: {reason}")]
    Removed {
        /// The identity of the peer.
        identity: String,
        /// Reason why the peer is no longer accepted.
        reason: String,
    },
    /// The peer's certificate is not accepted.
    #[error("the peer's certificate is not accepted: {0}")]
    Certificate(Arc<str>),
    /// The peer presented neither a certificate nor a key.
    #[error("the peer presented neither a certificate nor a key")]
    NoCertificate,
    /// The peer refused the connection with this alert.
    #[error("the peer refused the TLS connection: alert {alert}{}", hint(.alert))]
    Alert {
        /// Name of the alert in RFC 8446 section 6.
        alert: String,
    },
    /// The peer violated the TLS protocol.
    #[error("TLS: {0}")]
    Protocol(Arc<str>),
}

/// Returns an explanation of the most frequent alerts.
fn hint(alert: &str) -> &'static str {
    match alert {
        "CertificateUnknown" | "BadCertificate" | "UnknownCA" | "AccessDenied"
        | "CertificateExpired" => "; it does not accept the key or certificate of this end",
        "CertificateRequired" => "; it requires a key or certificate of this end",
        "UnsupportedCertificate" | "HandshakeFailure" => {
            "; the two ends may use different kinds of identity (X.509 and raw public keys)"
        }
        "ProtocolVersion" => "; it does not offer TLS 1.3",
        _ => "",
    }
}

impl TlsError {
    /// Returns the kind of the `io::Error` that contains this error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoAnswer | Self::ClosedInHandshake => io::ErrorKind::ConnectionReset,
            Self::Truncated => io::ErrorKind::UnexpectedEof,
            Self::HandshakeTimeout => io::ErrorKind::TimedOut,
            Self::UnknownKey { .. }
            | Self::NotAllowed { .. }
            | Self::Removed { .. }
            | Self::Certificate(_)
            | Self::NoCertificate
            | Self::Alert { .. } => io::ErrorKind::PermissionDenied,
            Self::Clear { .. } | Self::HandshakeTooLong { .. } | Self::Protocol(_) => {
                io::ErrorKind::InvalidData
            }
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        use rustls::{CertificateError, Error, OtherError, PeerIncompatible};
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
                match inner.downcast_ref::<Self>() {
                    Some(own) => own.clone(),
                    None => Self::Certificate(inner.to_string().into()),
                }
            }
            Error::InvalidCertificate(error) => Self::Certificate(error.to_string().into()),
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::AlertReceived(alert) => Self::Alert { alert: format!("{alert:?}") },
            Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => {
                Self::Protocol(
                    "the peer does not take raw public keys (RFC 7250); it may use certificates"
                        .into(),
                )
            }
            error => Self::Protocol(error.to_string().into()),
        }
    }
}

/// Converts the error of a verifier for rustls, which sends the corresponding alert and returns the
/// error.
impl From<TlsError> for rustls::Error {
    fn from(error: TlsError) -> Self {
        Self::InvalidCertificate(rustls::CertificateError::Other(rustls::OtherError(Arc::new(
            error,
        ))))
    }
}
