//! Location of a connection: its current token, which its handles and its queue pair share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};
use uiw_llp::Token;

/// Value for the absence of a connection.
const NO_CONN: u64 = u64::MAX;
/// Maximum time that [`ConnLocation::settled`] waits. A move takes microseconds. It stays
/// incomplete only if a signal handler has interrupted its thread and does not return, or in a
/// forked child, which has no such thread.
const MOVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Value while the connection is between two shards.
const MOVING: u64 = u64::MAX - 1;

/// Token of a connection that may move between shards.
///
/// It is replaced by another token only while the thread that moves the connection holds the core
/// of the shard that the connection leaves or enters. So a command that runs on the shard of the
/// token, and finds with [`ConnLocation::has_left`] that the connection has not left, has the
/// connection to itself.
#[derive(Debug)]
pub(crate) struct ConnLocation(AtomicU64);

impl Default for ConnLocation {
    fn default() -> Self {
        Self(AtomicU64::new(NO_CONN))
    }
}

impl ConnLocation {
    /// Creates the location of a connection that has this token.
    pub(crate) fn new(token: Token) -> Self {
        Self(AtomicU64::new(token.0))
    }

    /// Returns the token; `None` if there is no connection, or while it moves.
    #[inline]
    pub(crate) fn get(&self) -> Option<Token> {
        let token = self.0.load(Ordering::Acquire);
        (token < MOVING).then_some(Token(token))
    }

    /// Like [`ConnLocation::get`], but waits while the connection moves, at most for
    /// [`MOVE_TIMEOUT`].
    pub(crate) fn settled(&self) -> Option<Token> {
        if self.0.load(Ordering::Acquire) == MOVING {
            let begun = Instant::now();
            while self.0.load(Ordering::Acquire) == MOVING && begun.elapsed() < MOVE_TIMEOUT {
                yield_now();
            }
        }
        self.get()
    }

    /// Returns whether there is a connection, which may be moving.
    pub(crate) fn has_conn(&self) -> bool {
        self.0.load(Ordering::Acquire) != NO_CONN
    }

    /// Returns whether the connection has left `token` for another shard.
    pub(crate) fn has_left(&self, token: Token) -> bool {
        let now = self.0.load(Ordering::Acquire);
        now != token.0 && now != NO_CONN
    }

    /// Sets the token and returns the one before.
    pub(crate) fn set(&self, token: Option<Token>) -> Option<Token> {
        let before = self.0.swap(token.map_or(NO_CONN, |token| token.0), Ordering::AcqRel);
        (before < MOVING).then_some(Token(before))
    }

    /// Marks the connection as moving, after it was taken out of its shard.
    pub(crate) fn begin_move(&self) {
        self.0.store(MOVING, Ordering::Release);
    }
}
