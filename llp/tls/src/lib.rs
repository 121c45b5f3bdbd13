//! TLS 1.3 (RFC 8446) over any stack, by rustls.
//!
//! A [`TlsStack`] contains another stack and encrypts its streams. Both ends authenticate, by X.509
//! or by raw public keys (RFC 7250): see [`TlsConfig`]. The initiator of TCP is the client of TLS.
//!
//! * A listener's connections are in their handshakes before they are accepted:
//!   [`uiw_llp::TransportListener::accept`] gives those whose peers are authentic and allowed, and
//!   [`uiw_llp::StreamExtensions::peer_identity`] has their identities. At most
//!   [`TlsConfig::max_handshakes`] are in progress at a listener, each for at most
//!   [`TlsConfig::handshake_timeout`].
//! * A peer that begins in the clear is closed without an answer.
//! * A FIN is a close_notify and TCP's FIN. TCP's FIN alone is an error: [`TlsError::Truncated`].
//! * Between two streams of the same `Tls` and stack, that is within one process, nothing is
//!   encrypted: both ends find each other in memory.
//! * Datagrams are refused, unless [`TlsConfig::clear_datagrams`] lets them pass in the clear.
//! * A connection keeps at most one read of plaintext that its user has not taken (128 KiB), the
//!   front of one record (16 KiB; 64 KiB in the handshake), and one chunk that TCP has not taken
//!   (64 KiB); an idle one keeps no buffer. [`Tls::counts`] has the sum.
//!
//! The record layer, its limits and key updates are rustls's; the cryptography is that of AWS-LC.
//!
//! # Design
//!
//! * Layers, from below: TCP, capture, injected faults, TLS. A capture has the bytes of the wire.
//!   TLS is no wrapper by hooks (`uiw_llp::wrap`), because an event of the stack below may be half
//!   a record, so a poll must read the stream before it reports one. All connections of a shard are
//!   in one slab behind one lock, which only the driving thread takes.
//! * Records are decrypted where they were read, in a buffer that all connections of the shard
//!   share, and copied once to the caller's buffers. A connection keeps a buffer only while a
//!   record is incomplete, plaintext is not taken or TCP does not take all. Plaintext is copied to
//!   the shard's buffer before it is encrypted, because peers may write to the source; a fault
//!   there is EFAULT as of a system call.
//! * A readable event means plaintext, the FIN or an error. Bytes left in a buffer make the stack's
//!   deadline now, and outside of a poll an eventfd in the inner stack's epoll set readable.
//! * Listeners complete handshakes before the engine gets a connection; at most eight continue in
//!   one poll. A dropped stream stays in the slab until its last records and its close_notify have
//!   left, at most 60 s.
//! * For a connection of a process to itself, the initiator notes both addresses under a lock that
//!   it holds while it begins to connect. An acceptor that finds them marks the entry, skips the
//!   ClientHello and answers with one byte that is no record; the initiator accepts it only if the
//!   entry is marked. So memory, not the wire, is the evidence that no other process is there.
//! * Identities are verified within rustls's handshake, so that a refused peer gets the alert that
//!   fits. After `Tls::replace` every shard verifies again what its peers had presented.

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
