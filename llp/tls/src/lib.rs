//! TLS 1.3 (RFC 8446) over any stack, by rustls.
//!
//! A [`TlsStack`] contains another stack and encrypts its streams. Both ends authenticate, by X.509 or by raw public keys (RFC 7250): see
//! [`TlsConfig`]. The initiator of TCP is the client of TLS.
//!
//! * A listener's connections are in their handshakes before they are accepted: [`uiw_llp::TransportListener::accept`] gives those whose peers are
//!   authentic and allowed, and [`uiw_llp::StreamExtensions::peer_identity`] has their identities. At most [`TlsConfig::max_handshakes`] are in progress at
//!   a listener, each for at most [`TlsConfig::handshake_timeout`].
//! * A peer that begins in the clear is closed without an answer.
//! * A FIN is a close_notify and TCP's FIN. TCP's FIN alone is an error: [`TlsError::Truncated`].
//! * Between two streams of the same `Tls` and stack, that is within one process, nothing is encrypted: both ends find each other in
//!   memory.
//! * Datagrams are refused, unless [`TlsConfig::clear_datagrams`] lets them pass in the clear.
//! * A connection keeps at most one read of plaintext that its user has not taken (128 KiB), the front of one record (16 KiB; 64 KiB in the
//!   handshake), and one chunk that TCP has not taken (64 KiB); an idle one keeps no buffer. [`Tls::counts`] has the sum.
//!
//! The record layer, its limits and key updates are rustls's; the cryptography is that of AWS-LC.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod config;
mod conn;
mod error;
mod keys;
mod session;
mod shard;
mod shared;
mod stack;
#[cfg(test)]
mod tests;
mod verify;

use rustls::crypto::CryptoProvider;
use std::sync::{Arc, LazyLock};
use uiw_llp::Fingerprint;

pub use config::{HANDSHAKE_TIMEOUT, MAX_HANDSHAKES, TlsConfig, read_certificates};
pub use error::TlsError;
pub use keys::{KeyError, LineError, PinnedKeys, PinnedLine, PublicKey, SecretKey, read_protected};
pub use rustls::pki_types::CertificateDer;
pub use shared::{Tls, TlsCounts};
pub use stack::TlsStack;

/// The cryptography. Programs may have another default of rustls's.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}

fn fingerprint(bytes: &[u8]) -> Fingerprint {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let mut hash = [0; 32];
    if let Some(suite) = suite.tls13() {
        hash.copy_from_slice(suite.common.hash_provider.hash(bytes).as_ref());
    }
    Fingerprint(hash)
}
