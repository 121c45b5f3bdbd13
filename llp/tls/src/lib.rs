//! TLS 1.3 (RFC 8446) over any stack, with rustls.
//!
//! A [`TlsStack`] contains another stack and encrypts its streams. Both ends authenticate with
//! X.509 certificates or raw public keys (RFC 7250): see [`TlsConfig`]. The initiator of the TCP
//! connection is the TLS client.
//!
//! * The handshakes of a listener's connections take place before the connections are accepted.
//!   [`uiw_llp::TransportListener::accept`] returns only connections whose peers are authentic and
//!   allowed, and [`uiw_llp::StreamExtensions::peer_identity`] returns the identity of the peer. At
//!   most [`TlsConfig::max_handshakes`] are in progress at a listener, each for at most
//!   [`TlsConfig::handshake_timeout`].
//! * A connection whose peer begins without TLS is closed without an answer.
//! * A FIN is transmitted as a close_notify and TCP's FIN. TCP's FIN alone is an error:
//!   [`TlsError::Truncated`].
//! * Between two streams of the same `Tls` and stack, that is within one process, nothing is
//!   encrypted: the two ends find each other in memory. All stacks over the kernel's TCP count as
//!   one.
//! * Datagrams are refused, unless [`TlsConfig::clear_datagrams`] permits them unencrypted.
//! * A connection stores at most one read of plaintext that its user has not taken (128 KiB), the
//!   beginning of one record (16 KiB; 64 KiB in the handshake), and one chunk that TCP has not
//!   accepted (64 KiB). An idle connection has no buffer. [`Tls::counts`] returns the total size.
//!
//! The record layer, its limits and key updates are those of rustls; the cryptography is that of
//! AWS-LC.
//!
//! # Design
//!
//! * The layers are, from bottom to top: TCP, capture, injected faults, TLS. A capture therefore
//!   contains the bytes on the wire. TLS is not a wrapper with hooks (`uiw_llp::wrap`), because an
//!   event of the inner stack may concern only half a record, so a poll must read the stream before
//!   it reports an event. All connections of a shard are in one slab behind one lock, which
//!   normally only the driving thread takes.
//! * Records are decrypted in place, in a buffer that all connections of the shard share, and
//!   copied once to the caller's buffers. A connection has its own buffer only while a record is
//!   incomplete, plaintext was not taken, or TCP does not accept all data. Plaintext is copied to
//!   the shard's buffer before it is encrypted, because peers may write to the source; a fault
//!   during this copy is reported as EFAULT, like that of a system call.
//! * A readable event means plaintext, the FIN or an error. If bytes are left in a buffer, the
//!   deadline of the stack is the current time, and outside of a poll an eventfd in the inner
//!   stack's epoll set is readable.
//! * Listeners complete handshakes before the engine gets a connection. At most eight handshakes
//!   continue in one poll. A dropped stream stays in the slab until its last records and its
//!   close_notify were sent, for at most 60 s.
//! * For a connection of a process to itself, the initiator records stack and addresses under a
//!   lock that it holds while it starts to connect. An acceptor that finds them marks the entry,
//!   skips the ClientHello and answers with one byte that is not a record; the initiator accepts
//!   this byte only if the entry is marked. So memory, not the wire, proves that no other process
//!   is involved.
//! * Identities are verified within rustls's handshake, so that a refused peer gets the appropriate
//!   alert. After `Tls::replace` every shard verifies again what its peers have presented.

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

/// Returns the cryptography provider. Programs may have another default for rustls.
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
