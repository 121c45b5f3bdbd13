//! The writing side of the counters: an engine thread updates the counters of a shard while it
//! holds the shard's lock.

use crate::address;
use crate::block_file::BlockFile;
use crate::counts::{Count, TrafficClass};
use crate::datagrams::{DropReason, RejectReason};
use crate::layout::{
    FIRST_CONN, OTHERS, SAME_DEVICE, SHARD_BLOCKS, WaitReason, block_index, conn, shard,
};
use crate::terminates;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{SystemTime, UNIX_EPOCH};
use uiw_mem::{Block, BlockRef, Blocks};

/// Adds to a counter that has a single writer.
///
/// It is a load and a store instead of `fetch_add`, because an atomic read-modify-write instruction
/// would lock the cache line.
#[inline(always)]
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// Reason why a peer was not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// The listener already had its maximum number of connections in set-up.
    SetUpLimit = 0,
    /// No memory key was left.
    Keys = 1,
    /// The system had no descriptor left.
    System = 2,
    /// The program rejected the connection request.
    Program = 3,
}

/// Counters of one shard, updated by the thread that holds the shard's lock.
#[derive(Debug)]
pub struct ShardCounters {
    block: BlockRef,
    others: BlockRef,
    same_device: BlockRef,
    index: usize,
    /// Number of blocks that have been used at least once.
    used: usize,
    /// Number of blocks allocated in the file.
    allocated: usize,
    /// Blocks of ended connections by local address, the oldest first. If connections have moved
    /// between shards, these include blocks of other shards.
    free: BTreeMap<IpAddr, VecDeque<usize>>,
    file: Option<Arc<BlockFile>>,
}

/// Published description of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnDetails {
    /// Number of its queue pair.
    pub qp_num: u32,
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// True if this end initiated the connection.
    pub initiator: bool,
    /// True if the other end is a queue pair of the same device.
    pub same_device: bool,
    /// True if the connection uses the kernel's TCP.
    pub kernel: bool,
}

/// Number of blocks by which the file grows.
const GROWTH_BLOCKS: usize = 16;

impl ShardCounters {
    /// Creates the counters of shard `index` in `blocks`, which are mapped from `file` if there is
    /// one.
    pub(crate) fn new(blocks: &Arc<Blocks>, index: usize, file: Option<Arc<BlockFile>>) -> Self {
        let get = |at| match blocks.get(block_index(index, at)) {
            Some(block) => block,
            None => unreachable!("the blocks of all shards are mapped"),
        };
        Self {
            block: get(0),
            others: get(OTHERS),
            same_device: get(SAME_DEVICE),
            index,
            used: FIRST_CONN,
            allocated: file.as_ref().map_or(SHARD_BLOCKS, |_| FIRST_CONN + 1),
            free: BTreeMap::new(),
            file,
        }
    }

    /// Counts a connection that enters Full Operation and returns its counters.
    ///
    /// The connection gets a block of its own if one is available. Otherwise it shares a block with
    /// other connections of the shard.
    pub fn open(&mut self, details: &ConnDetails) -> ConnCounters {
        add(&self.block[shard::ESTABLISHED], 1);
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = flag(details.same_device, conn::FLAG_SAME_DEVICE)
            | flag(details.initiator, conn::FLAG_INITIATOR)
            | flag(details.kernel, conn::FLAG_KERNEL);
        match self.assign_block(flags, details.qp_num, details.local, details.peer) {
            Some((block, index)) => {
                ConnCounters { block, index: Some(index), same_device: details.same_device }
            }
            None => self.shared_counters(details.same_device),
        }
    }

    /// Takes over the counters of a connection that moved here from another shard.
    ///
    /// A connection without a block of its own counts in the shared block of this shard from now
    /// on.
    pub fn adopt(&self, counters: &mut ConnCounters) {
        if counters.index.is_none() {
            *counters = self.shared_counters(counters.same_device);
        }
    }

    /// Returns counters in the block that connections without a block of their own share.
    fn shared_counters(&self, same_device: bool) -> ConnCounters {
        let block = if same_device { &self.same_device } else { &self.others };
        ConnCounters { block: block.clone(), index: None, same_device }
    }

    /// Returns the counters of a new UD queue pair, whose port has the address `local`.
    pub fn open_datagrams(&mut self, qp_num: u32, local: SocketAddr) -> DatagramCounters {
        let nobody = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
        match self.assign_block(conn::FLAG_DATAGRAMS, qp_num, local, nobody) {
            Some((block, index)) => DatagramCounters { block, index: Some(index) },
            None => DatagramCounters { block: self.others.clone(), index: None },
        }
    }

    /// Releases the block of a destroyed UD queue pair. Its counts stay readable until the block is
    /// used again.
    pub fn close_datagrams(&mut self, counters: &DatagramCounters) {
        if let Some(index) = counters.index {
            counters.block[conn::STATE].store(conn::CLOSED, Relaxed);
            self.release_block(&counters.block, index);
        }
    }

    /// Counts a datagram that arrived for no queue pair.
    pub fn datagram_rejected(&self, why: RejectReason) {
        add(&self.block[why as usize], 1);
    }

    /// Assigns a block to a connection or a UD queue pair. Returns `None` if no block is available.
    fn assign_block(
        &mut self,
        flags: u64,
        qp_num: u32,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<(BlockRef, usize)> {
        let at = self
            .take_free_of(local.ip())
            .or_else(|| self.take_unused())
            .or_else(|| self.take_any_free())?;
        let Some(block) = self.others.blocks().get(at) else {
            unreachable!("the blocks of all shards are mapped")
        };
        let sequence = &block[conn::SEQUENCE];
        sequence.store(sequence.load(Relaxed).wrapping_add(1), Relaxed);
        // A reader that sees any of the stores below also sees the odd sequence number.
        std::sync::atomic::fence(Release);
        if block[conn::FLAGS].load(Relaxed) & conn::FLAG_SAME_DEVICE != 0 {
            for at in 0..conn::TRAFFIC_WORDS {
                let now = block[conn::TRAFFIC + at].load(Relaxed);
                add(
                    &self.block[shard::SAME_DEVICE + at],
                    now.wrapping_sub(block[conn::BASE + at].load(Relaxed)),
                );
            }
        }
        for at in 0..conn::COUNTS {
            block[conn::BASE + at].store(block[conn::TRAFFIC + at].load(Relaxed), Relaxed);
        }
        block[conn::FLAGS].store(flags, Relaxed);
        block[conn::QP_NUM].store(qp_num.into(), Relaxed);
        block[conn::BEGAN].store(now(), Relaxed);
        put_address(&block, conn::LOCAL, local);
        put_address(&block, conn::PEER, peer);
        block[conn::STATE].store(conn::OPEN, Relaxed);
        sequence.store(sequence.load(Relaxed).wrapping_add(1), Release);
        // The block is filled before it is included here, because a reader reads all blocks below
        // this number.
        self.block[shard::USED].store(self.used as u64, Release);
        Some((block, at))
    }

    /// Takes the oldest free block that was used with this local address, so that the block keeps
    /// counting for one address only.
    fn take_free_of(&mut self, local: IpAddr) -> Option<usize> {
        self.free.get_mut(&local)?.pop_front()
    }

    /// Takes a free block of any local address. Its total then includes counts of several
    /// addresses.
    fn take_any_free(&mut self) -> Option<usize> {
        self.free.values_mut().find_map(VecDeque::pop_front)
    }

    /// Adds a block to the free blocks of its local address.
    fn release_block(&mut self, block: &Block, index: usize) {
        let local =
            address::from_words(std::array::from_fn(|at| block[conn::LOCAL + at].load(Relaxed)));
        let local = local.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |local| local.ip());
        self.free.entry(local).or_default().push_back(index);
    }

    /// Takes a block that was never used. Returns `None` if the shard has none left or the file
    /// cannot grow.
    fn take_unused(&mut self) -> Option<usize> {
        if self.used == SHARD_BLOCKS {
            return None;
        }
        if self.used == self.allocated {
            let more = GROWTH_BLOCKS.min(SHARD_BLOCKS - self.allocated);
            let file = self.file.as_ref()?;
            if let Err(error) = file.allocate(block_index(self.index, self.allocated), more) {
                tracing::warn!(%error, "the file of counters cannot grow: more connections are counted together");
                self.file = None;
                return None;
            }
            self.allocated += more;
        }
        self.used += 1;
        Some(block_index(self.index, self.used - 1))
    }

    /// Counts the end of a connection and releases its block. Its counts stay readable until the
    /// block is used again.
    ///
    /// Does nothing unless `was_open`, that is, unless the connection had reached Full Operation.
    pub fn close(&mut self, counters: &ConnCounters, was_open: bool) {
        if !was_open {
            return;
        }
        add(&self.block[shard::ENDED], 1);
        if let Some(index) = counters.index {
            counters.block[conn::HELD].store(0, Relaxed);
            counters.block[conn::STATE].store(conn::CLOSED, Relaxed);
            self.release_block(&counters.block, index);
        }
    }

    /// Returns shared counters for a connection in start-up, which has no block yet.
    #[must_use]
    pub fn unassigned(&self) -> ConnCounters {
        self.shared_counters(false)
    }

    /// Counts a TCP connection accepted from a peer.
    pub fn accepted(&self) {
        add(&self.block[shard::ACCEPTED], 1);
    }

    /// Counts a peer that was refused.
    pub fn refused(&self, why: Refusal) {
        add(&self.block[shard::REFUSED + why as usize], 1);
    }

    /// Counts a connection that ended before Full Operation.
    pub fn startup_failed(&self) {
        add(&self.block[shard::FAILED_STARTUPS], 1);
    }

    /// Counts an FPDU with a wrong CRC.
    pub fn crc_error(&self) {
        add(&self.block[shard::CRC_ERRORS], 1);
    }

    /// Counts a Terminate that was sent or received, by its layer, error type and code (RFC 5040
    /// section 4.8).
    pub fn terminate(&self, (layer, etype, code): (u8, u8, u8), sent: bool) {
        let code = u16::from(layer & 15) << 12 | u16::from(etype & 15) << 8 | u16::from(code);
        add(terminates::counter_of_code(&self.block, code, sent), 1);
    }
}

/// Counters of one connection, updated by the thread that holds the lock of its shard.
#[derive(Debug)]
pub struct ConnCounters {
    block: BlockRef,
    /// Index of the connection's own block, or `None` if it shares a block with other connections
    /// of the shard.
    index: Option<usize>,
    /// True if the other end is a queue pair of the same device.
    same_device: bool,
}

impl ConnCounters {
    /// Counts `bytes` of payload and the `messages` that they complete.
    #[inline(always)]
    pub fn count(&self, traffic: TrafficClass, messages: u32, bytes: u64) {
        let at = conn::TRAFFIC + 2 * traffic as usize;
        add(&self.block[at], messages.into());
        add(&self.block[at + 1], bytes);
    }

    /// Counts one wait of the connection.
    #[inline]
    pub fn wait(&self, wait: WaitReason) {
        add(&self.block[conn::WAITS + wait as usize], 1);
    }

    /// Sets the number of bytes held for the connection out of the receive memory budget.
    #[inline(always)]
    pub fn set_held(&self, bytes: usize) {
        self.block[conn::HELD].store(bytes as u64, Relaxed);
    }
}

/// Counters of one UD queue pair, updated by the thread that holds the lock of its shard.
#[derive(Debug)]
pub struct DatagramCounters {
    block: BlockRef,
    /// Index of the queue pair's own block, or `None` if it shares a block.
    index: Option<usize>,
}

impl DatagramCounters {
    /// Counts messages that UDP accepted for sending.
    ///
    /// `same_device` is the part of `all` that went to queue pairs of the same device or to
    /// multicast groups.
    #[inline]
    pub fn sent(&self, all: Count, same_device: Count) {
        self.count(conn::DATAGRAMS, all);
        if same_device.messages > 0 {
            self.count(conn::DATAGRAMS_SAME_DEVICE, same_device);
        }
    }

    /// Counts messages that completed a receive.
    ///
    /// `same_device` is the part of `all` that came from queue pairs of the same device.
    #[inline]
    pub fn received(&self, all: Count, same_device: Count) {
        self.count(conn::DATAGRAMS + 2, all);
        if same_device.messages > 0 {
            self.count(conn::DATAGRAMS_SAME_DEVICE + 2, same_device);
        }
    }

    /// Counts datagrams that were not sent or not delivered.
    #[inline]
    pub fn dropped(&self, why: DropReason, count: u64) {
        add(&self.block[why as usize], count);
    }

    #[inline(always)]
    fn count(&self, at: usize, count: Count) {
        add(&self.block[at], count.messages);
        add(&self.block[at + 1], count.bytes);
    }
}

/// Returns the current time in nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn put_address(block: &Block, at: usize, address: SocketAddr) {
    for (word, number) in block[at..].iter().zip(address::to_words(address)) {
        word.store(number, Relaxed);
    }
}
