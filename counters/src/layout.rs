//! Where each number is. Writers and readers use these constants alone.
//!
//! ```text
//!   block 0                                       the process
//!   COMMAND                                       its command line
//!   TRANSFERS                                     files that a server of `uiw cp` has transferred
//!   FIRST + s * SHARD_BLOCKS                      shard s: counts that belong to no connection
//!   FIRST + s * SHARD_BLOCKS + OTHERS, SAME_DEVICE    traffic of connections without a block of their own
//!   FIRST + s * SHARD_BLOCKS + FIRST_CONN, ..     one connection or UD queue pair each
//! ```
//!
//! A block of a connection is used again by a later one. Its counts then go on: what belongs to the
//! present connection is the difference to a copy that was made when it began ([`conn::BASE`]). It
//! goes to one with the same address at this end while there are unused blocks, so that a block
//! counts for one address. So the sum over all blocks of a shard is exact at any time, and nothing
//! is lost or counted twice if the process is killed while a block changes hands.

use uiw_mem::BLOCK_WORDS;

/// Number of the layout. A reader refuses every other one.
pub const VERSION: u64 = 1;

/// The first number of a file. One of a machine with the other byte order has another.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"uiwcount");

/// The first shard's: the process has a page to itself.
pub(crate) const FIRST: usize = 4;

/// Shards that a device has at most.
pub(crate) const MAX_SHARDS: usize = 64;
/// Blocks of a shard: itself, two for connections without one, and connections.
pub(crate) const SHARD_BLOCKS: usize = 1024;
/// Block of connections to other devices that have no block of their own.
pub(crate) const OTHERS: usize = 1;
/// Block of connections within the device that have no block of their own.
pub(crate) const SAME_DEVICE: usize = 2;
/// The first block of a connection.
pub(crate) const FIRST_CONN: usize = 3;

/// Blocks of a device with so many shards.
pub(crate) const fn block_count(shards: usize) -> usize {
    FIRST + shards * SHARD_BLOCKS
}

/// Block `index` of shard `shard`.
pub(crate) const fn block_index(shard: usize, index: usize) -> usize {
    FIRST + shard * SHARD_BLOCKS + index
}

/// Numbers in the block of the process.
pub(crate) mod process {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const SHARDS: usize = 2;
    /// Process number in the namespace of the process itself; it differs in other PID namespaces.
    pub(crate) const PID: usize = 3;
    /// Nanoseconds since 1970.
    pub(crate) const BEGAN: usize = 4;
    /// Handles opened that have their own events: `ibv_open_device` of C.
    pub(crate) const DEVICES_OPENED: usize = 5;
    pub(crate) const QUEUE_PAIRS_CREATED: usize = 6;
    /// Bytes of the name, and the name.
    pub(crate) const NAME: Text = Text { at: 8, words: 4 };
    /// The library or program whose code counts.
    pub(crate) const LIBRARY: Text = Text { at: 16, words: super::BLOCK_WORDS - 16 };

    /// A place for text: a number with its bytes, then the bytes.
    #[derive(Clone, Copy)]
    pub(crate) struct Text {
        pub(crate) at: usize,
        pub(crate) words: usize,
    }
}

/// Block with the command line of the process.
pub(crate) const COMMAND: usize = 2;
/// The command line in that block.
pub(crate) const COMMAND_TEXT: process::Text = process::Text { at: 0, words: BLOCK_WORDS };

/// Block with the transfers of a server of `uiw cp`.
pub(crate) const TRANSFERS: usize = 1;

/// Numbers of one direction in that block: one for each [`crate::TransferResult`], then these.
pub(crate) mod transfers {
    pub(crate) const FILES: usize = 3;
    pub(crate) const BYTES: usize = 4;
    pub(crate) const WORDS: usize = 8;
}

/// Numbers in the block of a shard.
pub(crate) mod shard {
    /// Blocks of the shard that were ever used: behind them there is nothing.
    pub(crate) const USED: usize = 0;
    pub(crate) const ACCEPTED: usize = 1;
    pub(crate) const ESTABLISHED: usize = 2;
    pub(crate) const ENDED: usize = 3;
    pub(crate) const FAILED_STARTUPS: usize = 4;
    /// One for each [`crate::Refusal`].
    pub(crate) const REFUSED: usize = 5;
    pub(crate) const REFUSALS: usize = 4;
    pub(crate) const CRC_ERRORS: usize = 9;
    /// Terminates whose code has no entry below.
    pub(crate) const OTHER_TERMINATES_SENT: usize = 10;
    pub(crate) const OTHER_TERMINATES_RECEIVED: usize = 11;
    /// TrafficClass of earlier connections within the device, as in [`super::conn::TRAFFIC`]: their
    /// blocks are other connections' by now.
    pub(crate) const SAME_DEVICE: usize = 16;
    /// Datagrams that belong to no queue pair: one for each [`crate::RejectReason`].
    pub(crate) const DATAGRAMS: usize = SAME_DEVICE + super::conn::TRAFFIC_WORDS;
    pub(crate) const DATAGRAM_WORDS: usize = 24;
    /// Entries of a code with bit 16 set (0: no entry), Terminates sent and received.
    pub(crate) const TERMINATES: usize = 56;
    pub(crate) const TERMINATE_CODES: usize = (super::BLOCK_WORDS - TERMINATES) / 3;
}

/// Numbers in the block of a connection.
pub(crate) mod conn {
    /// [`CLOSED`] or [`OPEN`]; 0: never used.
    pub(crate) const STATE: usize = 0;
    pub(crate) const OPEN: u64 = 1;
    pub(crate) const CLOSED: u64 = 2;
    /// Odd while the block changes hands.
    pub(crate) const SEQUENCE: usize = 1;
    pub(crate) const QP_NUM: usize = 2;
    pub(crate) const FLAGS: usize = 3;
    /// The other end is a queue pair of the same device.
    pub(crate) const FLAG_SAME_DEVICE: u64 = 1;
    pub(crate) const FLAG_INITIATOR: u64 = 2;
    /// The kernel's TCP has the connection.
    pub(crate) const FLAG_KERNEL: u64 = 4;
    /// The block belongs to a UD queue pair, which has no peer.
    pub(crate) const FLAG_DATAGRAMS: u64 = 8;
    /// Nanoseconds since 1970.
    pub(crate) const BEGAN: usize = 4;
    /// Three each: see `address.rs`.
    pub(crate) const LOCAL: usize = 5;
    pub(crate) const PEER: usize = 8;
    /// Bytes that are kept for it against the receive memory budget.
    pub(crate) const HELD: usize = 11;
    /// Messages and bytes of each [`crate::TrafficClass`].
    pub(crate) const TRAFFIC: usize = 16;
    pub(crate) const TRAFFIC_WORDS: usize = 16;
    /// One for each [`crate::WaitReason`].
    pub(crate) const WAITS: usize = TRAFFIC + TRAFFIC_WORDS;
    pub(crate) const WAITS_WORDS: usize = 3;
    /// Messages and bytes of datagrams, sent and received; those within the device; then one for
    /// each [`crate::DropReason`].
    pub(crate) const DATAGRAMS: usize = 36;
    pub(crate) const DATAGRAMS_SAME_DEVICE: usize = DATAGRAMS + 4;
    pub(crate) const UNSENT: usize = DATAGRAMS_SAME_DEVICE + 4;
    /// Number of words with counts that only grow.
    pub(crate) const COUNTS: usize = 32;
    pub(crate) const BASE: usize = 64;
}

const _: () = assert!(conn::WAITS + conn::WAITS_WORDS <= conn::DATAGRAMS);
const _: () = assert!(conn::UNSENT + 4 <= conn::TRAFFIC + conn::COUNTS);
const _: () = assert!(conn::TRAFFIC + conn::COUNTS <= conn::BASE && conn::BASE + conn::COUNTS <= BLOCK_WORDS);
const _: () = assert!(shard::REFUSED + shard::REFUSALS <= shard::CRC_ERRORS);
const _: () = assert!(shard::DATAGRAMS + shard::DATAGRAM_WORDS <= shard::TERMINATES);

/// Resource that a connection waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum WaitReason {
    /// A Read or an atomic, for the answer to an earlier one: as many were outstanding as ORD
    /// allows.
    Credit = 0,
    /// A Send of the peer, for a receive to be posted.
    Receive = 1,
    /// The socket was not read, as the receive memory budget was used up.
    Memory = 2,
}
