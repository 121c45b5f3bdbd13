//! The token of a connection, as its handles and its queue pair know it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};
use uiw_llp::Token;

/// A token that no connection has.
const NO_CONN: u64 = u64::MAX;
/// A move takes microseconds. Only a thread that a signal handler interrupts for good, and one that
/// does not exist in a forked child, never completes it.
const MOVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Stands for the token while the connection is between two shards.
const MOVING: u64 = u64::MAX - 1;

/// Token of a connection that may move between shards.
///
/// A move changes it only while the core is held of the shard that the connection leaves or enters.
/// So a command that runs on the shard of the token, and finds with [`ConnLocation::has_left`] that
/// the connection has not left, has the connection to itself.
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

    /// The connection is taken out of its shard.
    pub(crate) fn begin_move(&self) {
        self.0.store(MOVING, Ordering::Release);
    }
}
