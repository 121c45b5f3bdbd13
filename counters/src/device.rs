//! Counters of a device: their memory, which belongs to a file if they are published.

use crate::block_file::BlockFile;
use crate::layout::{
    COMMAND, COMMAND_TEXT, FIRST_CONN, MAGIC, MAX_SHARDS, TRANSFERS, VERSION, block_count,
    block_index, process, shard, transfers,
};
use crate::publish::{NewFile, Publish};
use crate::snapshot::Snapshot;
use crate::transfers::{TransferDirection, TransferResult};
use crate::writer::{ShardCounters, now};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use uiw_mem::{Block, BlockRef, Blocks};

/// Counters of one device.
///
/// ```
/// use uiw_counters::DeviceCounters;
/// let device = DeviceCounters::new(2, None)?;
/// device.device_opened();
/// let snapshot = device.snapshot();
/// assert_eq!((snapshot.process.devices_opened, snapshot.shards.len()), (1, 2));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceCounters {
    blocks: Arc<Blocks>,
    process: BlockRef,
    shards: usize,
    /// File with the counters, if they are published.
    file: Option<Arc<BlockFile>>,
}

impl DeviceCounters {
    /// Creates counters that start at zero, for a device with `shards` shards (at most 64). If the
    /// file cannot be created, which is logged, the counters are only in the memory of this
    /// process.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(shards: usize, publish: Option<&Publish>) -> io::Result<Self> {
        let shards = shards.clamp(1, MAX_SHARDS);
        let published = publish.and_then(|publish| {
            let made = Self::publish(shards, publish);
            made.inspect_err(|error| {
                let directory = publish.directory.path().display();
                tracing::warn!(%error, %directory, "the counters are not published");
            })
            .ok()
        });
        match published {
            Some(counters) => Ok(counters),
            None => Self::with_blocks(Blocks::anonymous(block_count(shards))?, shards, None),
        }
    }

    fn publish(shards: usize, publish: &Publish) -> io::Result<Self> {
        let file = NewFile::create(&publish.directory, shards)?;
        let counters =
            Self::with_blocks(file.blocks.map()?, shards, Some(Arc::clone(&file.blocks)))?;
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        put_text(&counters.process, process::NAME, name.trim_end());
        put_text(&counters.process, process::LIBRARY, &publish.library);
        if let Some(block) = counters.blocks.get(COMMAND) {
            put_text(&block, COMMAND_TEXT, &command_line());
        }
        file.announce()?;
        Ok(counters)
    }

    fn with_blocks(
        blocks: Arc<Blocks>,
        shards: usize,
        file: Option<Arc<BlockFile>>,
    ) -> io::Result<Self> {
        let process = blocks.get(0).ok_or(io::ErrorKind::InvalidInput)?;
        for (at, number) in [
            (process::VERSION, VERSION),
            (process::SHARDS, shards as u64),
            (process::PID, std::process::id().into()),
            (process::BEGAN, now()),
        ] {
            process[at].store(number, Relaxed);
        }
        for index in 0..shards {
            let first = blocks.get(block_index(index, 0)).ok_or(io::ErrorKind::InvalidInput)?;
            first[shard::USED].store(FIRST_CONN as u64, Relaxed);
        }
        process[process::MAGIC].store(MAGIC, Release);
        Ok(Self { blocks, process, shards, file })
    }

    /// Returns the counters for the thread that holds the lock of shard `index`. Must be called
    /// only once for each shard.
    ///
    /// # Panics
    /// Panics if there is no such shard.
    #[must_use]
    pub fn shard(&self, index: usize) -> ShardCounters {
        assert!(index < self.shards, "a shard of the device");
        ShardCounters::new(&self.blocks, index, self.file.clone())
    }

    /// Counts a new handle of the device with its own events.
    pub fn device_opened(&self) {
        self.process[process::DEVICES_OPENED].fetch_add(1, Relaxed);
    }

    /// Counts a new queue pair.
    pub fn queue_pair_created(&self) {
        self.process[process::QUEUE_PAIRS_CREATED].fetch_add(1, Relaxed);
    }

    /// Counts a transfer of files that has ended.
    pub fn transfer_ended(
        &self,
        direction: TransferDirection,
        result: TransferResult,
        files: u64,
        bytes: u64,
    ) {
        // This block is always mapped, together with the block of the process.
        let Some(block) = self.blocks.get(TRANSFERS) else { return };
        let first = direction as usize * transfers::WORDS;
        for (at, count) in
            [(result as usize, 1), (transfers::FILES, files), (transfers::BYTES, bytes)]
        {
            block[first + at].fetch_add(count, Relaxed);
        }
    }

    /// Returns whether the counters are published in a file.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the current counters, without taking a lock.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |index: usize| {
            self.blocks.get(index).map(|block| std::array::from_fn(|at| block[at].load(Acquire)))
        };
        Snapshot::read(read).unwrap_or_default()
    }
}

/// Returns the arguments of this process, separated by spaces.
fn command_line() -> String {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = String::from_utf8_lossy(&bytes);
    arguments.trim_end_matches('\0').replace('\0', " ")
}

/// Stores text, truncated to the available room.
fn put_text(block: &Block, to: process::Text, text: &str) {
    let mut end = text.len().min((to.words - 1) * size_of::<u64>());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = &text.as_bytes()[..end];
    for (word, chunk) in block[to.at + 1..].iter().zip(bytes.chunks(size_of::<u64>())) {
        let mut number = [0; size_of::<u64>()];
        number[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(number), Relaxed);
    }
    block[to.at].store(end as u64, Relaxed);
}
