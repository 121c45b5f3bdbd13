//! Assignment of shards to completion queues and threads.
//!
//! When a queue or its first connection is created, it is not known which thread will poll the
//! queue. So queues are spread over the shards at first, and connections move later (`moves`): a
//! thread that notices that it shares a shard with other polling threads is assigned a home shard,
//! and moves the connections of its queues there.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

thread_local! {
    /// Shards of this thread on the device that it used last. One device is enough: a thread that
    /// alternates between devices is merely assigned new shards each time.
    static LAST: Cell<Option<ThreadShards>> = const { Cell::new(None) };
}

/// Shards of one thread on one device.
#[derive(Clone, Copy)]
struct ThreadShards {
    /// Id of the device ([`Affinity::device`]).
    device: u64,
    /// Shard to which the connections of this thread's queues move; `None` until one is needed.
    home: Option<usize>,
    /// Shard that the thread drives while it waits.
    waits: usize,
}

/// Assigns the shards of one device to threads and completion queues.
pub(super) struct Affinity {
    /// Id of the device in this process.
    device: u64,
    next_queue: AtomicUsize,
    /// Number of times that each shard was assigned as a home.
    homes: Box<[AtomicU32]>,
}

impl Affinity {
    /// Creates the state for a device with `shards` shards.
    pub(super) fn new(shards: usize) -> Self {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Self {
            device: DEVICES.fetch_add(1, Ordering::Relaxed),
            next_queue: AtomicUsize::new(0),
            homes: (0..shards).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Returns the calling thread's shards, if this is the device that it used last.
    fn thread_shards(&self) -> Option<ThreadShards> {
        LAST.get().filter(|last| last.device == self.device)
    }

    /// Returns the shard for a queue that gets its first connection, round-robin.
    pub(super) fn shard_for_queue(&self) -> usize {
        self.next_queue.fetch_add(1, Ordering::Relaxed) % self.homes.len()
    }

    /// Returns the home shard of the calling thread. If it has none, assigns the shard that was
    /// assigned least often.
    pub(super) fn home(&self) -> usize {
        let last = self.thread_shards();
        if let Some(home) = last.and_then(|last| last.home) {
            return home;
        }
        let threads = |index: &usize| self.homes[*index].load(Ordering::Relaxed);
        let home = (0..self.homes.len()).min_by_key(threads).unwrap_or(0);
        self.homes[home].fetch_add(1, Ordering::Relaxed);
        let waits = last.map_or(home, |last| last.waits);
        LAST.set(Some(ThreadShards { device: self.device, home: Some(home), waits }));
        home
    }

    /// Records that the calling thread has made or accepted a connection on `shard`.
    pub(super) fn note_use(&self, shard: usize) {
        let home = self.thread_shards().and_then(|last| last.home);
        LAST.set(Some(ThreadShards { device: self.device, home, waits: shard }));
    }

    /// Returns the shard that the calling thread drives while it waits.
    pub(super) fn shard_to_wait_on(&self) -> usize {
        self.thread_shards().map_or(0, |last| last.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_spread() {
        let affinity = Affinity::new(2);
        assert_eq!([0; 3].map(|_| affinity.shard_for_queue()), [0, 1, 0]);
    }

    #[test]
    fn threads_get_separate_homes() {
        let affinity = Affinity::new(2);
        let homes = [(); 4].map(|()| {
            std::thread::scope(|scope| {
                let homes = || [affinity.home(), affinity.home()];
                scope.spawn(homes).join().unwrap()
            })
        });
        assert_eq!(homes, [[0, 0], [1, 1], [0, 0], [1, 1]]);
    }

    #[test]
    fn thread_waits_on_last_shard() {
        let affinity = Affinity::new(4);
        assert_eq!(affinity.shard_to_wait_on(), 0);
        affinity.note_use(3);
        assert_eq!(affinity.shard_to_wait_on(), 3);
        assert_eq!((affinity.home(), affinity.shard_to_wait_on()), (0, 3));
        assert_eq!(
            Affinity::new(4).shard_to_wait_on(),
            0,
            "connections of another device do not count"
        );
    }
}
