//! Counters of a device: messages and bytes by operation and direction, datagrams, waits, refusals
//! and Terminates. They are available for each device, shard, queue pair and connection.
//!
//! ```text
//!   engine, under a shard's lock                 file, mode 0600                       any process of the user
//!   DeviceCounters, ShardCounters, ─▶ mapped blocks of numbers (layout) ─▶ pread ─▶ CounterFile ─▶ Snapshot
//!   ConnCounters: relaxed stores                  locked while the process lives
//! ```
//!
//! * Each counter has one writer at a time, the thread that holds the lock of its shard. Counting
//!   is therefore a load, an addition and a store, without a locked instruction or a system call.
//! * The counters outlive the process, even if it crashes, because their pages belong to the file.
//!   [`CounterFile::owner`] tells whether the process is alive.
//! * Readers read the file into a buffer, because another program of the user may truncate it, and
//!   a mapping would then end the reader with SIGBUS. They take no lock of the process, and check
//!   the contents, because another program may have written them.
//! * Retransmissions and round trips are not counted here: readers query the kernel with the
//!   addresses of a connection.
//!
//! A device that does not publish its counters has them in its own memory.
//!
//! * A shard has 1,021 blocks for connections; further connections count in a shared block. The
//!   counters of a block only grow: when a block is reassigned to another connection, they are
//!   copied as its base, which readers subtract. The sum over all blocks is therefore the traffic
//!   of the shard at any time, even if the process is killed at this moment. While there are unused
//!   blocks, a block is reused only for the same local address, so that `Snapshot::addresses` has
//!   traffic by network device.
//! * Space for blocks is allocated in the file before they are written (`fallocate`), because a
//!   write to a page that the file system cannot store would kill the process. Without space,
//!   connections count in the shared block; without a file, in memory.
//! * Bytes count in the direction in which they travel, so that the bytes sent by one end are those
//!   received by the other. `sent` is ahead of TCP by one batch at most. Traffic between two queue
//!   pairs of the same device is also counted separately (`same_device`); the remaining traffic is
//!   what `uiw run --require` asks for.
//! * The file has mode 0600, gets its final random name when it is complete, and is locked by the
//!   process (`fcntl`). A forked child inherits neither the lock nor the pages, and F_GETLK
//!   translates the process number of the owner into the reader's PID namespace.
//! * The C libraries and the program `uiw` publish their counters by default, Rust programs only if
//!   configured. A process with more rights than its user publishes nothing. `uiw stat` reports and
//!   removes the files of ended processes; a process that finds more than 128 files removes the
//!   oldest files of ended processes.

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
