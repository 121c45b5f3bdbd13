//! Messages that are longer than their receives. The safe API receives them in memory that grows
//! with the message.
//!
//! DDP does not announce the length of an untagged message. `QpHost::begin_receive` therefore
//! reports `max_message` as the length of the receive, and `QpHost::place_long` moves the contents
//! of the receive to a vector that grows with the message.
//!
//! Only one message of a stream is incomplete at a time, and it can be completed only by reading
//! on. So it does not count against the receive memory budget but against
//! `Limits::max_unfinished_bytes`, which all connections of a device share. A connection that needs
//! more is ended; connections whose message has received less than 64 KiB during the last second
//! are ended first.
//!
//! TCP provides the flow control: if no receive is posted for a Send, its stream is not read, so
//! that the peer's window closes.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Long messages of a queue pair that were received. The next message begins only if those that
/// were not released take less than [`LongMessages::max_len`] bytes together. It may itself be as
/// long as that.
pub(crate) struct LongMessages {
    /// Maximum length of a message.
    max_len: u32,
    /// Number of bytes of messages that were received and not released.
    held: AtomicUsize,
    /// Messages that were received and not taken, by the `wr_id` of their receive.
    received: Mutex<HashMap<u64, Vec<u8>>>,
}

impl LongMessages {
    pub(crate) fn new(max_len: u32) -> Self {
        Self { max_len, held: AtomicUsize::new(0), received: Mutex::default() }
    }

    pub(crate) fn max_len(&self) -> u32 {
        self.max_len
    }

    /// Returns whether another message may begin, because fewer than `max_len` bytes are held. The
    /// caller has locked the receive queue. After every [`LongMessages::release`] a receive is
    /// posted, which resumes a stream that was refused.
    pub(crate) fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.max_len as usize
    }

    /// Adds a complete message.
    pub(crate) fn add(&self, wr_id: u64, message: Vec<u8>) {
        self.held.fetch_add(message.len(), Ordering::Relaxed);
        self.received.lock().insert(wr_id, message);
    }

    /// Takes the message that was received for receive `wr_id`. It counts until
    /// [`LongMessages::release`].
    pub(crate) fn take(&self, wr_id: u64) -> Option<Vec<u8>> {
        self.received.lock().remove(&wr_id)
    }

    /// Releases a message of this length, which was dropped.
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
        long.add(1, vec![0; 9]);
        assert!(long.has_room());
        long.add(2, vec![0; 10]);
        assert!(!long.has_room());
        assert_eq!(long.take(2).map(|message| message.len()), Some(10));
        assert!(long.take(2).is_none());
        assert!(!long.has_room(), "it is not dropped");
        long.release(10);
        assert!(long.has_room());
    }
}
