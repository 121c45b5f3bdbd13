//! Layout of the counters in blocks of words. Writers and readers use only these constants.
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
//! The block of an ended connection is reassigned to a later one. Its counts are not reset: the
//! counts of the current connection are the difference to a copy that was made when it began
//! ([`conn::BASE`]). The sum over all blocks of a shard is therefore exact at any time, and nothing
//! is lost or counted twice if the process is killed while a block is reassigned. As long as there
//! are unused blocks, a block is only reassigned to a connection with the same local address, so
//! that it counts for one address.

use uiw_mem::BLOCK_WORDS;

/// Version of the layout. Readers refuse every other version.
pub const VERSION: u64 = 1;

/// First word of a file. On a machine with another byte order it reads differently.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"uiwcount");

/// First block of the first shard. The blocks before it, for the process, fill one page.
pub(crate) const FIRST: usize = 4;

/// Maximum number of shards of a device.
pub(crate) const MAX_SHARDS: usize = 64;
/// Number of blocks of a shard: one for the shard, two shared by connections without their own
/// block, and one for each other connection.
pub(crate) const SHARD_BLOCKS: usize = 1024;
/// Block shared by connections to other devices that have no block of their own.
pub(crate) const OTHERS: usize = 1;
/// Block shared by connections within the device that have no block of their own.
pub(crate) const SAME_DEVICE: usize = 2;
/// First block of a connection.
pub(crate) const FIRST_CONN: usize = 3;

/// Returns the number of blocks of a device with `shards` shards.
pub(crate) const fn block_count(shards: usize) -> usize {
    FIRST + shards * SHARD_BLOCKS
}

/// Returns the index in the device of block `index` of shard `shard`.
pub(crate) const fn block_index(shard: usize, index: usize) -> usize {
    FIRST + shard * SHARD_BLOCKS + index
}

/// Words in the block of the process.
pub(crate) mod process {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const SHARDS: usize = 2;
    /// Process number in the namespace of the process itself; it differs in other PID namespaces.
    pub(crate) const PID: usize = 3;
    /// Time when the device was opened, in nanoseconds since 1970.
    pub(crate) const BEGAN: usize = 4;
    /// Number of opened handles with their own events (`ibv_open_device` in C).
    pub(crate) const DEVICES_OPENED: usize = 5;
    pub(crate) const QUEUE_PAIRS_CREATED: usize = 6;
    /// Name of the process.
    pub(crate) const NAME: Text = Text { at: 8, words: 4 };
    /// Library or program whose code updates the counters.
    pub(crate) const LIBRARY: Text = Text { at: 16, words: super::BLOCK_WORDS - 16 };

    /// Place of a text: a word with its length in bytes, then the bytes.
    #[derive(Clone, Copy)]
    pub(crate) struct Text {
        pub(crate) at: usize,
        pub(crate) words: usize,
    }
}

/// Block with the command line of the process.
pub(crate) const COMMAND: usize = 2;
/// Place of the command line in the block [`COMMAND`].
pub(crate) const COMMAND_TEXT: process::Text = process::Text { at: 0, words: BLOCK_WORDS };

/// Block with the transfers of a server of `uiw cp`.
pub(crate) const TRANSFERS: usize = 1;

/// Words of one direction in the block [`TRANSFERS`]: one for each [`crate::TransferResult`], then
/// these.
pub(crate) mod transfers {
    pub(crate) const FILES: usize = 3;
    pub(crate) const BYTES: usize = 4;
    pub(crate) const WORDS: usize = 8;
}

/// Words in the block of a shard.
pub(crate) mod shard {
    /// Number of blocks of the shard that have been used. The blocks after them are empty.
    pub(crate) const USED: usize = 0;
    pub(crate) const ACCEPTED: usize = 1;
    pub(crate) const ESTABLISHED: usize = 2;
    pub(crate) const ENDED: usize = 3;
    pub(crate) const FAILED_STARTUPS: usize = 4;
    /// One word for each [`crate::Refusal`].
    pub(crate) const REFUSED: usize = 5;
    pub(crate) const REFUSALS: usize = 4;
    pub(crate) const CRC_ERRORS: usize = 9;
    /// Number of sent Terminates whose code has no entry in [`TERMINATES`].
    pub(crate) const OTHER_TERMINATES_SENT: usize = 10;
    /// Number of received Terminates whose code has no entry in [`TERMINATES`].
    pub(crate) const OTHER_TERMINATES_RECEIVED: usize = 11;
    /// Traffic of earlier connections within the device whose blocks have been reassigned, in the
    /// order of [`super::conn::TRAFFIC`].
    pub(crate) const SAME_DEVICE: usize = 16;
    /// Number of datagrams that belong to no queue pair, one word for each [`crate::RejectReason`].
    pub(crate) const DATAGRAMS: usize = SAME_DEVICE + super::conn::TRAFFIC_WORDS;
    pub(crate) const DATAGRAM_WORDS: usize = 24;
    /// Entries of three words: the code with bit 16 set (0 means no entry), Terminates sent, and
    /// Terminates received.
    pub(crate) const TERMINATES: usize = 56;
    pub(crate) const TERMINATE_CODES: usize = (super::BLOCK_WORDS - TERMINATES) / 3;
}

/// Words in the block of a connection.
pub(crate) mod conn {
    /// [`CLOSED`] or [`OPEN`]; 0 means never used.
    pub(crate) const STATE: usize = 0;
    pub(crate) const OPEN: u64 = 1;
    pub(crate) const CLOSED: u64 = 2;
    /// Sequence number, which is odd while the block is being reassigned.
    pub(crate) const SEQUENCE: usize = 1;
    pub(crate) const QP_NUM: usize = 2;
    pub(crate) const FLAGS: usize = 3;
    /// The other end is a queue pair of the same device.
    pub(crate) const FLAG_SAME_DEVICE: u64 = 1;
    pub(crate) const FLAG_INITIATOR: u64 = 2;
    /// The connection uses the kernel's TCP.
    pub(crate) const FLAG_KERNEL: u64 = 4;
    /// The block belongs to a UD queue pair, which has no peer.
    pub(crate) const FLAG_DATAGRAMS: u64 = 8;
    /// Time when the connection began, in nanoseconds since 1970.
    pub(crate) const BEGAN: usize = 4;
    /// Local address, three words (see `address.rs`).
    pub(crate) const LOCAL: usize = 5;
    /// Address of the peer, three words.
    pub(crate) const PEER: usize = 8;
    /// Bytes held for the connection out of the receive memory budget.
    pub(crate) const HELD: usize = 11;
    /// Messages and bytes of each [`crate::TrafficClass`], two words each.
    pub(crate) const TRAFFIC: usize = 16;
    pub(crate) const TRAFFIC_WORDS: usize = 16;
    /// One word for each [`crate::WaitReason`].
    pub(crate) const WAITS: usize = TRAFFIC + TRAFFIC_WORDS;
    pub(crate) const WAITS_WORDS: usize = 3;
    /// Messages and bytes of datagrams, sent and received.
    pub(crate) const DATAGRAMS: usize = 36;
    /// The part of [`DATAGRAMS`] that stayed within the device, in the same order.
    pub(crate) const DATAGRAMS_SAME_DEVICE: usize = DATAGRAMS + 4;
    /// One word for each [`crate::DropReason`].
    pub(crate) const UNSENT: usize = DATAGRAMS_SAME_DEVICE + 4;
    /// Number of words from [`TRAFFIC`] on with counts that only grow.
    pub(crate) const COUNTS: usize = 32;
    /// Copy of these counts, made when the current connection began.
    pub(crate) const BASE: usize = 64;
}

const _: () = assert!(conn::WAITS + conn::WAITS_WORDS <= conn::DATAGRAMS);
const _: () = assert!(conn::UNSENT + 4 <= conn::TRAFFIC + conn::COUNTS);
const _: () =
    assert!(conn::TRAFFIC + conn::COUNTS <= conn::BASE && conn::BASE + conn::COUNTS <= BLOCK_WORDS);
const _: () = assert!(shard::REFUSED + shard::REFUSALS <= shard::CRC_ERRORS);
const _: () = assert!(shard::DATAGRAMS + shard::DATAGRAM_WORDS <= shard::TERMINATES);

/// Resource that a connection waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum WaitReason {
    /// A Read or an atomic waited for the answer to an earlier one, because ORD allowed no more
    /// outstanding ones.
    Credit = 0,
    /// A Send of the peer waited for a receive to be posted.
    Receive = 1,
    /// The socket was not read, because the receive memory budget was used up.
    Memory = 2,
}
