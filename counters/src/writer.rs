//! The writing side: the engine's.

use crate::address;
use crate::datagrams::{DatagramCounters, Rejected};
use crate::directory::Directory;
use crate::file::Published;
use crate::layout::{
    FIRST_CONN, MAGIC, MAX_SHARDS, OTHERS, SAME_DEVICE, SHARD_BLOCKS, VERSION, Wait, block, blocks, conn,
    process, shard,
};
use crate::snapshot::{Snapshot, Traffic};
use crate::terminates;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{SystemTime, UNIX_EPOCH};
use uiw_mem::{Block, BlockRef, Blocks};

/// Adds to a number that has one writer: not a read-modify-write instruction, which would lock the cache line.
#[inline(always)]
pub(crate) fn add(number: &AtomicU64, count: u64) {
    number.store(number.load(Relaxed).wrapping_add(count), Relaxed);
}

/// Publishes a device's counters in a file.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Where.
    pub directory: Directory,
    /// The file whose code counts: a path of `libibverbs.so.1`, or of a program.
    pub library: String,
}

/// Why a peer was not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// As many connections were in set-up as the listener may have.
    SetUpLimit = 0,
    /// No memory key was left.
    Keys = 1,
    /// The system refused: descriptors are exhausted.
    System = 2,
    /// The program rejected the request.
    Program = 3,
}

/// The counters of one device.
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
    /// The file, where they are published.
    file: Option<Arc<Published>>,
}

impl DeviceCounters {
    /// Counters that start at zero, of a device with so many shards (at most 64). Where the file cannot be made, which is logged, they
    /// are in memory of this process alone.
    ///
    /// # Errors
    /// The system's: there is no memory.
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
        let counters = match published {
            Some(counters) => counters,
            None => Self::on(Blocks::anonymous(blocks(shards))?, shards, None)?,
        };
        Ok(counters)
    }

    fn publish(shards: usize, publish: &Publish) -> io::Result<Self> {
        let file = Published::create(&publish.directory, shards)?;
        let counters = Self::on(file.map()?, shards, Some(Arc::new(file)))?;
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        put_text(&counters.process, process::NAME, name.trim_end());
        put_text(&counters.process, process::LIBRARY, &publish.library);
        if let Some(file) = &counters.file {
            file.announce()?;
        }
        Ok(counters)
    }

    fn on(blocks: Arc<Blocks>, shards: usize, file: Option<Arc<Published>>) -> io::Result<Self> {
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
            let first = blocks.get(block(index, 0)).ok_or(io::ErrorKind::InvalidInput)?;
            first[shard::USED].store(FIRST_CONN as u64, Relaxed);
        }
        process[process::MAGIC].store(MAGIC, Release);
        Ok(Self { blocks, process, shards, file })
    }

    /// What the thread uses that holds the lock of shard `index`. To be called once for each shard.
    ///
    /// # Panics
    /// When there is no such shard.
    #[must_use]
    pub fn shard(&self, index: usize) -> ShardCounters {
        assert!(index < self.shards, "a shard of the device");
        let get = |at| match self.blocks.get(block(index, at)) {
            Some(block) => block,
            None => unreachable!("the blocks of all shards are mapped"),
        };
        ShardCounters {
            block: get(0),
            others: get(OTHERS),
            same_device: get(SAME_DEVICE),
            index,
            used: FIRST_CONN,
            room: self.file.as_ref().map_or(SHARD_BLOCKS, |_| FIRST_CONN + 1),
            free: BTreeMap::new(),
            file: self.file.clone(),
        }
    }

    /// A handle of the device was opened that has its own events.
    pub fn device_opened(&self) {
        self.process[process::DEVICES_OPENED].fetch_add(1, Relaxed);
    }

    /// A queue pair was created.
    pub fn queue_pair_created(&self) {
        self.process[process::QUEUE_PAIRS_CREATED].fetch_add(1, Relaxed);
    }

    /// Whether they are in a file.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.file.is_some()
    }

    /// The counters now. No lock is taken.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |index: usize| {
            self.blocks.get(index).map(|block| std::array::from_fn(|at| block[at].load(Acquire)))
        };
        Snapshot::read(read).unwrap_or_default()
    }
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
    /// Blocks of connections that are over by their own address, the oldest first.
    free: BTreeMap<IpAddr, VecDeque<usize>>,
    file: Option<Arc<Published>>,
}

/// What is shown of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnDetails {
    /// The number of its queue pair.
    pub qp_num: u32,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// Whether this end connected.
    pub initiator: bool,
    /// Whether the other end is a queue pair of the same device.
    pub same_device: bool,
    /// Whether the kernel's TCP has the connection.
    pub kernel: bool,
}

/// Blocks that are added to the file at a time.
const MORE: usize = 16;

impl ShardCounters {
    /// Full Operation begins on a connection.
    pub fn open(&mut self, details: &ConnDetails) -> ConnCounters {
        add(&self.block[shard::ESTABLISHED], 1);
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = flag(details.same_device, conn::FLAG_SAME_DEVICE)
            | flag(details.initiator, conn::FLAG_INITIATOR)
            | flag(details.kernel, conn::FLAG_KERNEL);
        match self.take(flags, details.qp_num, details.local, details.peer) {
            Some((block, index)) => ConnCounters { block, index: Some(index) },
            None => {
                let block = if details.same_device { &self.same_device } else { &self.others };
                ConnCounters { block: block.clone(), index: None }
            }
        }
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
    pub fn rejected(&self, why: Rejected) {
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
        let index = self.free_of(local.ip()).or_else(|| self.unused()).or_else(|| self.free_of_any())?;
        let Some(block) = self.others.blocks().get(block(self.index, index)) else {
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
        let used = &self.block[shard::USED];
        used.store(used.load(Relaxed).max(index as u64 + 1), Release);
        Some((block, index))
    }

    /// A block whose connections had this address of their own: all that it counts is that address's.
    fn free_of(&mut self, local: IpAddr) -> Option<usize> {
        self.free.get_mut(&local)?.pop_front()
    }

    /// What it counted is the next address's from then on.
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
        Some(self.used - 1)
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

    /// For a connection in start-up, which counts nothing of its own.
    #[must_use]
    pub fn unassigned(&self) -> ConnCounters {
        ConnCounters { block: self.others.clone(), index: None }
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
        terminates::count(&self.block, code, sent);
    }
}

/// The counters of one connection: the thread counts that holds the lock of its shard.
#[derive(Debug)]
pub struct ConnCounters {
    block: BlockRef,
    /// `None`: the block is shared.
    index: Option<usize>,
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

    /// So many bytes are kept for it.
    #[inline(always)]
    pub fn set_held(&self, bytes: usize) {
        self.block[conn::HELD].store(bytes as u64, Relaxed);
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn put_address(block: &Block, at: usize, address: SocketAddr) {
    for (word, number) in block[at..].iter().zip(address::emit(address)) {
        word.store(number, Relaxed);
    }
}

/// Stores text, cut to what there is room for.
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
