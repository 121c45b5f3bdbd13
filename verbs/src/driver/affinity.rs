//! Which shard a completion queue and a thread get.
//!
//! Nobody knows which thread will poll a queue when the queue or its first connection is created, so queues are spread over the shards
//! and connections move later (`moves`): a thread that finds that it shares a shard with other polling threads gets a shard as its
//! home, and moves the connections of its queues there.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

thread_local! {
    /// Shards of this thread on the device that it used last. One device is enough: a program that uses several in turn only gets new
    /// shards.
    static LAST: Cell<Option<ThreadShards>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct ThreadShards {
    device: u64,
    /// Shard to which the connections of this thread's queues move.
    home: Option<usize>,
    /// Shard that the thread drives while it waits.
    waits: usize,
}

/// The shards of one device's threads.
pub(super) struct Affinity {
    device: u64,
    next_queue: AtomicUsize,
    /// Number of threads that have each shard as their home.
    homes: Box<[AtomicU32]>,
}

impl Affinity {
    /// Creates the state of a device with so many shards.
    pub(super) fn new(shards: usize) -> Self {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Self {
            device: DEVICES.fetch_add(1, Ordering::Relaxed),
            next_queue: AtomicUsize::new(0),
            homes: (0..shards).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn last(&self) -> Option<ThreadShards> {
        LAST.get().filter(|last| last.device == self.device)
    }

    /// Returns the shard of a queue that gets its first connection: each in turn.
    pub(super) fn of_new_queue(&self) -> usize {
        self.next_queue.fetch_add(1, Ordering::Relaxed) % self.homes.len()
    }

    /// Returns the home of the calling thread. A thread that has none gets the shard that is the home of the fewest threads.
    pub(super) fn home(&self) -> usize {
        let last = self.last();
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

    /// The calling thread made or accepted a connection of `shard`.
    pub(super) fn note_use(&self, shard: usize) {
        let home = self.last().and_then(|last| last.home);
        LAST.set(Some(ThreadShards { device: self.device, home, waits: shard }));
    }

    /// Returns the shard that the calling thread drives while it waits.
    pub(super) fn of_wait(&self) -> usize {
        self.last().map_or(0, |last| last.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_spread() {
        let affinity = Affinity::new(2);
        assert_eq!([0; 3].map(|_| affinity.of_new_queue()), [0, 1, 0]);
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
        assert_eq!(affinity.of_wait(), 0);
        affinity.note_use(3);
        assert_eq!(affinity.of_wait(), 3);
        assert_eq!((affinity.home(), affinity.of_wait()), (0, 3));
        assert_eq!(Affinity::new(4).of_wait(), 0, "connections of another device do not count");
    }
}
