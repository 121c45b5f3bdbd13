//! Which shard a completion queue gets, and where a thread waits.
//!
//! Completion queues are spread over the shards in turn. Those that one thread creates get the same shard, as one thread will poll
//! them: with a shard each, its polls would meet those of other threads on every shard. The thread that opened the device is the
//! exception: programs create the queues of all their threads there, so its queues are spread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;

thread_local! {
    /// The device for which this thread created a queue or a connection last, and the shard. One device is enough: a program that
    /// uses several in turn gets a new shard each time, which is no worse than any other.
    static LAST: Cell<Option<LastShard>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct LastShard {
    device: u64,
    /// Shard of this thread's queues.
    queues: Option<usize>,
    /// Shard on which the thread waits.
    waits: usize,
}

/// The shards of one device's threads.
pub(super) struct Affinity {
    device: u64,
    opened_by: ThreadId,
    next: AtomicUsize,
}

impl Affinity {
    pub(super) fn new() -> Self {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Self {
            device: DEVICES.fetch_add(1, Ordering::Relaxed),
            opened_by: std::thread::current().id(),
            next: AtomicUsize::new(0),
        }
    }

    fn last(&self) -> Option<LastShard> {
        LAST.get().filter(|last| last.device == self.device)
    }

    /// The shard of a queue that the calling thread creates; the device has `shards`.
    pub(super) fn of_new_queue(&self, shards: usize) -> usize {
        let own = self.last().and_then(|last| last.queues);
        let spread = std::thread::current().id() == self.opened_by;
        let place = own.filter(|_| !spread);
        let shard = place.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed) % shards);
        LAST.set(Some(LastShard { device: self.device, queues: Some(shard), waits: shard }));
        shard
    }

    /// The calling thread made or accepted a connection of `shard`.
    pub(super) fn note_use(&self, shard: usize) {
        let queues = self.last().and_then(|last| last.queues);
        LAST.set(Some(LastShard { device: self.device, queues, waits: shard }));
    }

    /// The shard that the calling thread drives while it waits.
    pub(super) fn of_wait(&self) -> usize {
        self.last().map_or(0, |last| last.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_opening_thread_are_spread() {
        let affinity = Affinity::new();
        assert_eq!([0; 3].map(|_| affinity.of_new_queue(2)), [0, 1, 0]);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!([0; 3].map(|_| affinity.of_new_queue(2)), [1, 1, 1])).join().unwrap();
            scope.spawn(|| assert_eq!([0; 3].map(|_| affinity.of_new_queue(2)), [0, 0, 0])).join().unwrap();
        });
    }

    #[test]
    fn thread_waits_on_last_shard() {
        let affinity = Affinity::new();
        assert_eq!(affinity.of_wait(), 0);
        affinity.note_use(3);
        assert_eq!(affinity.of_wait(), 3);
        assert_eq!(Affinity::new().of_wait(), 0, "connections of another device do not count");
    }
}
