//! Messages that are longer than the receives they come for: the safe API takes them in memory that
//! grows with the message.
//!
//! DDP does not announce the length of an untagged message. `QpHost::begin_receive` therefore gives
//! `max_message` as the length of the receive, and `QpHost::place_long` moves the contents of the
//! slot to a vector that grows with the message. Only one message of a stream is incomplete at a
//! time. It can only be completed by reading on, so it does not count against the receive memory
//! budget but against `Limits::max_unfinished_bytes` for all connections of a device: a connection
//! that needs more ends, and before that those of whose message less than 64 KiB arrived in the
//! last second.
//!
//! Flow control is TCP's: a Send that finds no receive stops the reading of its stream, so that the
//! peer's window closes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The long messages of a queue pair. Those that were received and not released take at most
/// [`LongMessages::limit`] bytes together when the next message begins, which may be as long again.
pub(crate) struct LongMessages {
    /// The longest message that is received.
    limit: u32,
    /// Bytes of messages that were received and not released.
    held: AtomicUsize,
    /// Messages that were received and not taken, by the number of their receive.
    received: Mutex<HashMap<u64, Vec<u8>>>,
}

impl LongMessages {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, held: AtomicUsize::new(0), received: Mutex::default() }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns whether another message may begin. Asked with the receive queue locked: a receive is
    /// posted after every [`LongMessages::release`], which wakes a stream that was refused.
    pub(crate) fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.limit as usize
    }

    /// A message is complete.
    pub(crate) fn received(&self, wr_id: u64, message: Vec<u8>) {
        self.held.fetch_add(message.len(), Ordering::Relaxed);
        self.received.lock().insert(wr_id, message);
    }

    /// The message that was received for receive `wr_id`. It counts until
    /// [`LongMessages::release`].
    pub(crate) fn take(&self, wr_id: u64) -> Option<Vec<u8>> {
        self.received.lock().remove(&wr_id)
    }

    /// A message of so many bytes was dropped.
    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_messages_delay_next() {
        let long = LongMessages::new(10);
        assert!(long.has_room());
        long.received(1, vec![0; 9]);
        assert!(long.has_room());
        long.received(2, vec![0; 10]);
        assert!(!long.has_room());
        assert_eq!(long.take(2).map(|message| message.len()), Some(10));
        assert!(long.take(2).is_none());
        assert!(!long.has_room(), "it is not dropped");
        long.release(10);
        assert!(long.has_room());
    }
}
