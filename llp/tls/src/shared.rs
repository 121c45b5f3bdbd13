//! State that all shards of a TLS stack share.

use super::config::TlsConfig;
use super::error::TlsError;
use super::keys::KeyError;
use super::verify::Verifier;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustls::{ClientConfig, ServerConfig};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use uiw_llp::TransportStream;

/// Configuration of TLS stacks, which can be replaced while they run. Clones share the same
/// configuration.
#[derive(Clone)]
pub struct Tls(pub(super) Arc<Shared>);

impl Tls {
    /// Creates a context for any number of stacks.
    ///
    /// # Errors
    /// [`KeyError::Refused`] if rustls refuses the configuration.
    pub fn new(config: TlsConfig) -> Result<Self, KeyError> {
        Ok(Self(Arc::new(Shared {
            snapshot: RwLock::new(Arc::new(Snapshot::new(config)?)),
            generation: AtomicU64::new(0),
            counts: Counts::default(),
            own: Mutex::default(),
            wakes: Mutex::default(),
        })))
    }

    /// Replaces the configuration, for new connections and for established ones. An established
    /// connection whose peer is no longer accepted ends with [`TlsError::Removed`].
    ///
    /// # Errors
    /// The same as for [`Tls::new`]. After an error the previous configuration remains in use.
    pub fn replace(&self, config: TlsConfig) -> Result<(), KeyError> {
        let snapshot = Arc::new(Snapshot::new(config)?);
        // The lock is held until the wake-ups are written. A shard that sees the new generation
        // takes the lock before it clears its own wake-up, so it clears a wake-up that was already
        // written.
        let mut wakes = self.0.wakes.lock();
        *self.0.snapshot.write() = snapshot;
        self.0.generation.fetch_add(1, Ordering::Release);
        wakes.retain(|wake| wake.upgrade().inspect(|wake| write_wake(wake)).is_some());
        Ok(())
    }

    /// Returns the current state and the counters of the stacks.
    #[must_use]
    pub fn counts(&self) -> TlsCounts {
        let counts = &self.0.counts;
        TlsCounts {
            connections: counts.connections.load(Ordering::Relaxed),
            handshakes: counts.handshakes.load(Ordering::Relaxed),
            buffered: counts.buffered.load(Ordering::Relaxed),
            established: counts.established.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.snapshot.read().config).finish()
    }
}

/// Snapshot of the state and the counters of TLS stacks, returned by [`Tls::counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsCounts {
    /// Number of connections, including those in their handshake.
    pub connections: usize,
    /// Number of accepted connections in their handshake.
    pub handshakes: usize,
    /// Size of the connections' buffers in bytes: incomplete records, plaintext that the user has
    /// not read, and records that TCP has not accepted.
    pub buffered: usize,
    /// Number of handshakes that succeeded.
    pub established: u64,
    /// Number of connections that failed with a [`TlsError`].
    pub failed: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicUsize,
    pub(super) handshakes: AtomicUsize,
    pub(super) established: AtomicU64,
    pub(super) failed: AtomicU64,
    buffered: AtomicUsize,
}

impl Counts {
    /// Records that the buffers of a connection have grown or shrunk from `before` to `after`
    /// bytes.
    pub(super) fn count_buffers(&self, before: usize, after: usize) {
        self.buffered.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

pub(super) struct Shared {
    snapshot: RwLock<Arc<Snapshot>>,
    /// Number of times that the configuration was replaced.
    generation: AtomicU64,
    pub(super) counts: Counts,
    own: Mutex<InProcessConnections>,
    /// Eventfds of all shards.
    pub(super) wakes: Mutex<Vec<Weak<OwnedFd>>>,
}

/// ALPN protocol that is offered and accepted (RFC 7301).
pub(super) const ALPN: &[u8] = b"iwarp";

/// Configuration, and the values derived from it.
pub(super) struct Snapshot {
    pub(super) config: TlsConfig,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) verifier: Verifier,
}

impl Snapshot {
    fn new(config: TlsConfig) -> Result<Self, KeyError> {
        let (client, server) = config.to_rustls()?;
        // A connection that is meant for another protocol ends in the handshake. Peers that offer
        // no protocol are accepted, because other versions of uiw offer none.
        let (mut client, mut server) = (Arc::unwrap_or_clone(client), Arc::unwrap_or_clone(server));
        client.alpn_protocols = vec![ALPN.to_vec()];
        server.alpn_protocols = vec![ALPN.to_vec()];
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Self { verifier: config.verifier(), config, client, server })
    }
}

impl Shared {
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read())
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn add_wake(&self, wake: &Arc<OwnedFd>) {
        let mut wakes = self.wakes.lock();
        wakes.retain(|wake| wake.strong_count() > 0);
        wakes.push(Arc::downgrade(wake));
    }

    /// Locks the connections of this process to itself. The lock is held while a connection is
    /// started, so that the acceptor cannot look for its entry before the entry exists.
    pub(super) fn lock_in_process(&self) -> MutexGuard<'_, InProcessConnections> {
        self.own.lock()
    }

    /// Returns whether this process has started the connection that `stack` has accepted. In that
    /// case, marks the initiator's entry as accepted.
    pub(super) fn accept_in_process(&self, stack: StackId, accepted: &dyn TransportStream) -> bool {
        let stack = stack.of_stream(accepted);
        let key = (stack, accepted.peer_addr(), accepted.local_addr());
        let found = self.own.lock().0.get(&key).and_then(Weak::upgrade);
        found.is_some_and(|own| !own.accepted.swap(true, Ordering::AcqRel))
    }
}

/// Identifies a [`TlsStack`](super::TlsStack) and its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StackId(u64);

impl StackId {
    /// The stacks over the kernel's TCP, which carries connections of a host to itself in memory.
    const KERNEL: Self = Self(0);

    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the id by which the two ends of a connection within this process find each other.
    /// Packets between two stacks that are not the kernel's may be on a wire.
    pub(super) fn of_stream(self, stream: &dyn TransportStream) -> Self {
        if stream.info().of_kernel { Self::KERNEL } else { self }
    }
}

/// Connections of this process to itself, by their stack and the addresses of the initiator and the
/// acceptor.
#[derive(Default)]
pub(super) struct InProcessConnections(
    HashMap<(StackId, SocketAddr, SocketAddr), Weak<InProcessConnection>>,
);

impl InProcessConnections {
    pub(super) fn begin(
        &mut self,
        stack: StackId,
        (initiator, acceptor): (SocketAddr, SocketAddr),
    ) -> Arc<InProcessConnection> {
        let own = Arc::new(InProcessConnection::default());
        // Entries of ended connections are removed only when the number of entries is a power of
        // two, so that the cost per connection is constant on average.
        if self.0.len() >= 64 && self.0.len().is_power_of_two() {
            self.0.retain(|_, own| own.strong_count() > 0);
        }
        self.0.insert((stack, initiator, acceptor), Arc::downgrade(&own));
        own
    }
}

/// Connection that this process has started and that is in its handshake.
#[derive(Default)]
pub(super) struct InProcessConnection {
    accepted: AtomicBool,
}

impl InProcessConnection {
    /// Returns whether this process has also accepted the connection.
    pub(super) fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }
}

/// Returns the error for a name that no certificate can have.
pub(super) fn invalid_name_error(error: &KeyError) -> std::io::Error {
    TlsError::Certificate(error.to_string().into()).into()
}

pub(super) fn write_wake(wake: &OwnedFd) {
    // The counter cannot overflow, because each write adds only 1. An error would be harmless,
    // because the descriptor would be readable in that case.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}
