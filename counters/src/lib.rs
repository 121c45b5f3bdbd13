//! Counters of a device: messages and bytes by operation and direction, datagrams, waits, refusals,
//! Terminates; by device, shard, queue pair and connection.
//!
//! ```text
//!   engine, under a shard's lock                 file, mode 0600                       any process of the user
//!   DeviceCounters, ShardCounters, ─▶ mapped blocks of numbers (layout) ─▶ pread ─▶ CounterFile ─▶ Snapshot
//!   ConnCounters: relaxed stores                  locked while the process lives
//! ```
//!
//! * Each number has one writer at a time, the thread that holds its shard's lock: to count is a
//!   load, an addition and a store, without a locked instruction and without a system call.
//! * The numbers outlive the process, however it ends: its pages belong to the file.
//!   [`CounterFile::owner`] reports whether it lives.
//! * Readers read the file into a buffer, and take no lock of the process. What they read is
//!   checked: another program may have written it.
//! * Retransmissions and round trips are not among them: readers ask the kernel, by the addresses
//!   of a connection.
//!
//! A device that publishes nothing has the same counters in memory of its own.
//!
//! * A shard has 1,021 blocks for connections; further ones count in a common block. A connection's
//!   numbers only grow: when a block is given to another connection, they are copied as its base,
//!   which readers subtract. The sum over all blocks is therefore the shard's traffic at any time,
//!   also if the process is killed meanwhile. While there are unused blocks, a block is reused for
//!   the same local address only, so that `Snapshot::addresses` has traffic by network device.
//! * Space for blocks is allocated in the file before they are written (`fallocate`), because a
//!   write to a page that the file system cannot store would end the process. Without space a
//!   connection counts in the common block; without a file, in memory.
//! * Bytes count in the direction in which they travel, so that one end's sent bytes are the other
//!   end's received bytes. `sent` is ahead of TCP by one batch at most. TrafficClass between two queue
//!   pairs of one device is counted a second time (`same_device`); the rest went to another
//!   process, which is what `uiw run --require` asks for.
//! * The file has mode 0600, appears under its random name once it is complete, and is locked by
//!   the process (`fcntl`): a child of a fork inherits neither the lock nor the pages, and F_GETLK
//!   translates the owner's number into the reader's PID namespace.
//! * Readers copy the file and check it: other programs of the user may have truncated it, and a
//!   mapping would end the reader with SIGBUS. Round trips and retransmissions are queried from the
//!   kernel when a reader asks.
//! * The C libraries and the program `uiw` publish by default, Rust programs if they are configured
//!   to. A process with more rights than its user publishes nothing. `uiw stat` reports and removes
//!   the files of ended processes; a process that finds more than 128 files removes the oldest of
//!   these.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod address;
mod block_file;
mod counts;
mod datagrams;
mod device;
mod directory;
mod file;
mod layout;
mod publish;
mod snapshot;
mod terminates;
mod transfers;
mod writer;

pub use counts::{Count, Directions, Operations, TerminateCount, TrafficClass, WaitCounts};
pub use datagrams::{DatagramQueuePair, Datagrams, DropReason, RejectReason};
pub use device::DeviceCounters;
pub use directory::{Directory, DirectoryKind};
pub use file::{CounterFile, FileError, Owner};
pub use layout::{VERSION, WaitReason};
pub use publish::Publish;
pub use snapshot::{
    AddressCounts, ConnectionCounters, ProcessCounters, QueuePairCounters, ShardCounts, Snapshot,
};
pub use transfers::{TransferCounts, TransferDirection, TransferResult, Transfers};
pub use writer::{ConnCounters, ConnDetails, DatagramCounters, Refusal, ShardCounters};
