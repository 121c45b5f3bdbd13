//! Concurrent handshakes of a listener's peers, so that a silent peer does not delay others.

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::waiting::WaitingTasks;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Maximum number of concurrent handshakes. Further requests wait in the listener's queue.
const MAX_HANDSHAKES: usize = 1024;
/// Maximum number of failures that are recorded. Older ones are only counted.
const KEPT_FAILURES: usize = 64;

/// Failure of a peer that was accepted but whose connection could not be established.
#[derive(Debug)]
#[non_exhaustive]
pub struct AcceptFailure {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Reason for the failure.
    pub error: Error,
}

type Handshake =
    Pin<Box<dyn Future<Output = std::result::Result<Connection, AcceptFailure>> + Send>>;

/// The handshakes of one listener.
#[derive(Default)]
pub(crate) struct Handshakes {
    running: Mutex<FuturesUnordered<Handshake>>,
    failures: Mutex<FailureLog>,
    /// Tasks that wait for a connection or for a request.
    pub(crate) waiting: Arc<WaitingTasks>,
}

#[derive(Default)]
struct FailureLog {
    count: u64,
    kept: VecDeque<AcceptFailure>,
}

impl Handshakes {
    /// Returns whether another handshake may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.running.lock().len() < MAX_HANDSHAKES
    }

    /// Adds the handshake of an accepted peer.
    pub(crate) fn begin(
        &self,
        peer: SocketAddr,
        established: impl Future<Output = Result<Connection>> + Send + 'static,
    ) {
        let handshake =
            async move { established.await.map_err(|error| AcceptFailure { peer, error }) };
        self.running.lock().push(Box::pin(handshake));
    }

    /// Logs, counts and records a failure.
    pub(crate) fn fail(&self, failure: AcceptFailure) {
        let AcceptFailure { peer, error } = &failure;
        tracing::warn!(%peer, %error, "the peer was not accepted");
        let mut failures = self.failures.lock();
        failures.count += 1;
        if failures.kept.len() == KEPT_FAILURES {
            failures.kept.pop_front();
        }
        failures.kept.push_back(failure);
    }

    /// Polls the handshakes, and returns the next established connection. `cx` wakes all waiting
    /// tasks.
    pub(crate) fn poll_established(&self, cx: &mut Context<'_>) -> Poll<Connection> {
        let mut running = self.running.lock();
        loop {
            match running.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(connection))) => {
                    drop(running);
                    // Another connection may be established as well: let a task that waits poll for
                    // it.
                    cx.waker().wake_by_ref();
                    return Poll::Ready(connection);
                }
                Poll::Ready(Some(Err(failure))) => self.fail(failure),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.lock().count
    }

    pub(crate) fn take_failure(&self) -> Option<AcceptFailure> {
        self.failures.lock().kept.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::task::Waker;

    const PEER: SocketAddr =
        SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1));

    #[test]
    fn handshakes_run_up_to_limit() {
        let handshakes = Handshakes::default();
        for _ in 0..MAX_HANDSHAKES {
            assert!(handshakes.has_room());
            handshakes.begin(PEER, std::future::pending());
        }
        assert!(!handshakes.has_room());
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(handshakes.poll_established(cx).is_pending());
        assert!(!handshakes.has_room(), "none has ended");
    }

    #[test]
    fn last_failures_kept_all_counted() {
        let handshakes = Handshakes::default();
        let count = KEPT_FAILURES as u32 + 10;
        for qp_num in 0..count {
            handshakes
                .begin(PEER, async move { Err(ErrorKind::AlreadyConnected { qp_num }.into()) });
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(handshakes.poll_established(cx).is_pending());
        }
        assert_eq!(handshakes.failures(), count.into());
        let kept: Vec<_> = std::iter::from_fn(|| handshakes.take_failure())
            .map(|failure| match failure.error.into_kind() {
                ErrorKind::AlreadyConnected { qp_num } => qp_num,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(kept, (10..count).collect::<Vec<_>>());
    }
}
