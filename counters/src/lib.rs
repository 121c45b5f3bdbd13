//! Counters of a device: messages and bytes by operation and direction, datagrams, waits, refusals, Terminates; by device, shard, queue
//! pair and connection.
//!
//! ```text
//!   engine, under a shard's lock                 file, mode 0600                       any process of the user
//!   DeviceCounters, ShardCounters, ─▶ mapped blocks of numbers (layout) ─▶ pread ─▶ CounterFile ─▶ Snapshot
//!   ConnCounters: relaxed stores                  locked while the process lives
//! ```
//!
//! * Each number has one writer at a time, the thread that holds its shard's lock: to count is a load, an addition and a store, without a
//!   locked instruction and without a system call.
//! * The numbers outlive the process, however it ends: its pages belong to the file. [`CounterFile::owner`] reports whether it lives.
//! * Readers read the file into a buffer, and take no lock of the process. What they read is checked: another program may have written it.
//! * Retransmissions and round trips are not among them: readers ask the kernel, by the addresses of a connection.
//!
//! A device that publishes nothing has the same counters in memory of its own.

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

pub use counts::{Count, Directions, Operations, TerminateCount, Traffic, Waits};
pub use datagrams::{DatagramQueuePair, Datagrams, Dropped, Rejected};
pub use device::DeviceCounters;
pub use directory::{Directory, DirectoryKind};
pub use file::{CounterFile, FileError, Owner};
pub use layout::{VERSION, Wait};
pub use publish::Publish;
pub use snapshot::{
    AddressCounts, ConnectionCounters, ProcessCounters, QueuePairCounters, ShardCounts, Snapshot,
};
pub use transfers::{TransferCounts, TransferDirection, TransferResult, Transfers};
pub use writer::{ConnCounters, ConnDetails, DatagramCounters, Refusal, ShardCounters};
