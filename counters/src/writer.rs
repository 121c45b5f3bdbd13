//! The writing side: the numbers that a thread of the engine counts while it holds the lock of their shard.

use crate::address;
use crate::block_file::BlockFile;
use crate::counts::{Count, Traffic};
use crate::datagrams::{DropReason, RejectReason};
use crate::layout::{FIRST_CONN, OTHERS, SAME_DEVICE, SHARD_BLOCKS, Wait, block, conn, shard};
use crate::terminates;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{SystemTime, UNIX_EPOCH};
use uiw_mem::{Block, BlockRef, Blocks};

/// Adds to a number that has one writer: not a read-modify-write instruction, which would lock the cache line.
#[inline(always)]
fn add(number: &AtomicU64, count: u64) {
    number.store(number.load(Relaxed).wrapping_add(count), Relaxed);
}

/// Reason why a peer was not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// The listener had its maximum of connections in set-up.
    SetUpLimit = 0,
    /// No memory key was left.
    Keys = 1,
    /// The system refused: descriptors are exhausted.
    System = 2,
    /// The program rejected the request.
    Program = 3,
}

/// The counters of one shard: the thread that holds its lock counts.
#[derive(Debug)]
pub struct ShardCounters {
    block: BlockRef,
    others: BlockRef,
    same_device: BlockRef,
    index: usize,
    /// Blocks that were ever used.
    used: usize,
    /// Blocks that the file has room for.
    room: usize,
    /// Blocks of connections that are over by their own address, the oldest first; after moves also blocks of other shards.
    free: BTreeMap<IpAddr, VecDeque<usize>>,
    file: Option<Arc<BlockFile>>,
}

/// Published description of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnDetails {
    /// The number of its queue pair.
    pub qp_num: u32,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// True if this end connected.
    pub initiator: bool,
    /// True if the other end is a queue pair of the same device.
    pub same_device: bool,
    /// True if the connection uses the kernel's TCP.
    pub kernel: bool,
}

/// Blocks that are added to the file at a time.
const MORE: usize = 16;

impl ShardCounters {
    /// The counters of shard `index`, in `blocks`, which are those of `file` if there is one.
    pub(crate) fn new(blocks: &Arc<Blocks>, index: usize, file: Option<Arc<BlockFile>>) -> Self {
        let get = |at| match blocks.get(block(index, at)) {
            Some(block) => block,
            None => unreachable!("the blocks of all shards are mapped"),
        };
        Self {
            block: get(0),
            others: get(OTHERS),
            same_device: get(SAME_DEVICE),
            index,
            used: FIRST_CONN,
            room: file.as_ref().map_or(SHARD_BLOCKS, |_| FIRST_CONN + 1),
            free: BTreeMap::new(),
            file,
        }
    }

    /// Full Operation begins on a connection.
    pub fn open(&mut self, details: &ConnDetails) -> ConnCounters {
        add(&self.block[shard::ESTABLISHED], 1);
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = flag(details.same_device, conn::FLAG_SAME_DEVICE)
            | flag(details.initiator, conn::FLAG_INITIATOR)
            | flag(details.kernel, conn::FLAG_KERNEL);
        match self.take(flags, details.qp_num, details.local, details.peer) {
            Some((block, index)) => {
                ConnCounters { block, index: Some(index), same_device: details.same_device }
            }
            None => self.shared(details.same_device),
        }
    }

    /// Takes over the counters of a connection that has come from another shard.
    pub fn adopt(&self, counters: &mut ConnCounters) {
        if counters.index.is_none() {
            *counters = self.shared(counters.same_device);
        }
    }

    fn shared(&self, same_device: bool) -> ConnCounters {
        let block = if same_device { &self.same_device } else { &self.others };
        ConnCounters { block: block.clone(), index: None, same_device }
    }

    /// A UD queue pair was created, at a port with this address.
    pub fn open_datagrams(&mut self, qp_num: u32, local: SocketAddr) -> DatagramCounters {
        let nobody = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
        match self.take(conn::FLAG_DATAGRAMS, qp_num, local, nobody) {
            Some((block, index)) => DatagramCounters { block, index: Some(index) },
            None => DatagramCounters { block: self.others.clone(), index: None },
        }
    }

    /// A UD queue pair is destroyed: its counts stay until another one takes their place.
    pub fn close_datagrams(&mut self, counters: &DatagramCounters) {
        if let Some(index) = counters.close() {
            self.give_back(&counters.block, index);
        }
    }

    /// A datagram arrived that belongs to no queue pair.
    pub fn rejected(&self, why: RejectReason) {
        add(&self.block[why as usize], 1);
    }

    /// A block for a connection or a UD queue pair; `None` when there is none.
    fn take(
        &mut self,
        flags: u64,
        qp_num: u32,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<(BlockRef, usize)> {
        let at = self.free_of(local.ip()).or_else(|| self.unused()).or_else(|| self.free_of_any())?;
        let Some(block) = self.others.blocks().get(at) else {
            unreachable!("the blocks of all shards are mapped")
        };
        let sequence = &block[conn::SEQUENCE];
        sequence.store(sequence.load(Relaxed).wrapping_add(1), Relaxed);
        // The count above is seen before what follows.
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
        // Its contents first: a reader takes all blocks in front of this number for used ones.
        self.block[shard::USED].store(self.used as u64, Release);
        Some((block, at))
    }

    /// A block whose connections had this address of their own: all that it counts is that address's.
    fn free_of(&mut self, local: IpAddr) -> Option<usize> {
        self.free.get_mut(&local)?.pop_front()
    }

    /// Frees a block; later counts go to the next address.
    fn free_of_any(&mut self) -> Option<usize> {
        self.free.values_mut().find_map(VecDeque::pop_front)
    }

    fn give_back(&mut self, block: &Block, index: usize) {
        let local = address::parse(std::array::from_fn(|at| block[conn::LOCAL + at].load(Relaxed)));
        let local = local.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |local| local.ip());
        self.free.entry(local).or_default().push_back(index);
    }

    /// A block that no connection had; `None` when the shard has no more, or the file system.
    fn unused(&mut self) -> Option<usize> {
        if self.used == SHARD_BLOCKS {
            return None;
        }
        if self.used == self.room {
            let more = MORE.min(SHARD_BLOCKS - self.room);
            let file = self.file.as_ref()?;
            if let Err(error) = file.allocate(block(self.index, self.room), more) {
                tracing::warn!(%error, "the file of counters cannot grow: more connections are counted together");
                self.file = None;
                return None;
            }
            self.room += more;
        }
        self.used += 1;
        Some(block(self.index, self.used - 1))
    }

    /// A connection that was in Full Operation is over: its counts stay until another one takes their place. One that was not changes
    /// nothing.
    pub fn close(&mut self, counters: &ConnCounters, was_open: bool) {
        if !was_open {
            return;
        }
        add(&self.block[shard::ENDED], 1);
        if let Some(index) = counters.index {
            counters.block[conn::HELD].store(0, Relaxed);
            counters.block[conn::STATE].store(conn::CLOSED, Relaxed);
            self.give_back(&counters.block, index);
        }
    }

    /// Returns counters for a connection in start-up, which counts nothing of its own.
    #[must_use]
    pub fn unassigned(&self) -> ConnCounters {
        self.shared(false)
    }

    /// TCP accepted a peer.
    pub fn accepted(&self) {
        add(&self.block[shard::ACCEPTED], 1);
    }

    /// A peer was not connected.
    pub fn refused(&self, why: Refusal) {
        add(&self.block[shard::REFUSED + why as usize], 1);
    }

    /// A connection ended before Full Operation.
    pub fn startup_failed(&self) {
        add(&self.block[shard::FAILED_STARTUPS], 1);
    }

    /// An FPDU's CRC was wrong.
    pub fn crc_error(&self) {
        add(&self.block[shard::CRC_ERRORS], 1);
    }

    /// A Terminate was sent or received; its layer, error type and code (RFC 5040 section 4.8).
    pub fn terminate(&self, (layer, etype, code): (u8, u8, u8), sent: bool) {
        let code = u16::from(layer & 15) << 12 | u16::from(etype & 15) << 8 | u16::from(code);
        add(terminates::counter(&self.block, code, sent), 1);
    }
}

/// The counters of one connection: the thread counts that holds the lock of its shard.
#[derive(Debug)]
pub struct ConnCounters {
    block: BlockRef,
    /// `None`: the block is shared with other connections of the shard.
    index: Option<usize>,
    /// The other end is a queue pair of the same device.
    same_device: bool,
}

impl ConnCounters {
    /// `bytes` of payload, and the `messages` that they complete.
    #[inline(always)]
    pub fn count(&self, traffic: Traffic, messages: u32, bytes: u64) {
        let at = conn::TRAFFIC + 2 * traffic as usize;
        add(&self.block[at], messages.into());
        add(&self.block[at + 1], bytes);
    }

    /// The connection waits.
    #[inline]
    pub fn wait(&self, wait: Wait) {
        add(&self.block[conn::WAITS + wait as usize], 1);
    }

    /// Sets the number of bytes that are kept for the connection.
    #[inline(always)]
    pub fn set_held(&self, bytes: usize) {
        self.block[conn::HELD].store(bytes as u64, Relaxed);
    }
}

/// The counters of one UD queue pair: the thread counts that holds the lock of its shard.
#[derive(Debug)]
pub struct DatagramCounters {
    block: BlockRef,
    /// `None`: the block is shared.
    index: Option<usize>,
}

impl DatagramCounters {
    /// Messages that UDP has taken; those in `same_device` went to queue pairs of the same device, or to groups.
    #[inline]
    pub fn sent(&self, all: Count, same_device: Count) {
        self.count(conn::DATAGRAMS, all);
        if same_device.messages > 0 {
            self.count(conn::DATAGRAMS_SAME_DEVICE, same_device);
        }
    }

    /// Messages that completed a receive; those in `same_device` came from queue pairs of the same device.
    #[inline]
    pub fn received(&self, all: Count, same_device: Count) {
        self.count(conn::DATAGRAMS + 2, all);
        if same_device.messages > 0 {
            self.count(conn::DATAGRAMS_SAME_DEVICE + 2, same_device);
        }
    }

    /// Counts datagrams that were not passed on.
    #[inline]
    pub fn dropped(&self, why: DropReason, count: u64) {
        add(&self.block[why as usize], count);
    }

    #[inline(always)]
    fn count(&self, at: usize, count: Count) {
        add(&self.block[at], count.messages);
        add(&self.block[at + 1], count.bytes);
    }

    fn close(&self) -> Option<usize> {
        let index = self.index?;
        self.block[conn::STATE].store(conn::CLOSED, Relaxed);
        Some(index)
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn put_address(block: &Block, at: usize, address: SocketAddr) {
    for (word, number) in block[at..].iter().zip(address::emit(address)) {
        word.store(number, Relaxed);
    }
}
