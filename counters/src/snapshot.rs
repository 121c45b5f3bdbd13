//! Snapshots of the counters of a device of this process, or of a counter file.

use crate::address;
use crate::counts::{Directions, Operations, TerminateCount, WaitCounts};
use crate::datagrams::{DatagramQueuePair, Datagrams, RejectReason};
use crate::layout::{
    self, FIRST_CONN, OTHERS, SAME_DEVICE, SHARD_BLOCKS, block_index, conn, process, shard,
};
use crate::terminates;
use crate::transfers::Transfers;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uiw_mem::BLOCK_WORDS;

/// Properties of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounters {
    /// Process number in the PID namespace of the process.
    pub pid: u32,
    /// Name of the process when the device was opened, as `ps -o comm` shows it.
    pub name: String,
    /// File whose code updates the counters.
    pub library: String,
    /// Command line of the process when the device was opened: arguments separated by spaces,
    /// truncated to 1,016 bytes. Empty if the counters are not published.
    pub command: String,
    /// Time when the device was opened, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Number of device handles opened: by `ibv_open_device` in C; in Rust only the first one.
    pub devices_opened: u64,
    /// Number of queue pairs created.
    pub queue_pairs_created: u64,
}

impl ProcessCounters {
    /// Returns the time when the device was opened.
    #[must_use]
    pub fn began(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.began_ns)
    }
}

/// Counters of one shard, for all its connections together, including those that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Index of the shard.
    pub index: usize,
    /// Traffic of all connections.
    pub traffic: Operations,
    /// Part of `traffic` on connections whose other end is a queue pair of the same device.
    pub same_device: Operations,
    /// Datagrams of all UD queue pairs, and received datagrams that belong to none.
    pub datagrams: Datagrams,
    /// Waits of all connections.
    pub waits: WaitCounts,
    /// Number of bytes of the receive memory budget that open connections use.
    pub held_bytes: u64,
    /// Peers whose TCP connection was accepted.
    pub accepted: u64,
    /// Connections that entered Full Operation.
    pub established: u64,
    /// Number of established connections that have ended.
    pub ended: u64,
    /// Connections that ended in start-up.
    pub failed_startups: u64,
    /// Peers refused because there were too many connections in set-up ([`crate::Refusal`]).
    pub refused_set_up_limit: u64,
    /// Peers refused because no memory key was left.
    pub refused_keys: u64,
    /// Peers refused because the system had no descriptor left.
    pub refused_system: u64,
    /// Peers that the program rejected.
    pub refused_program: u64,
    /// FPDUs with a wrong CRC.
    pub crc_errors: u64,
    /// Terminates by code.
    pub terminates: Vec<TerminateCount>,
}

/// Counters of one connection in Full Operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Index of the shard.
    pub shard: usize,
    /// Number of the connection's queue pair.
    pub qp_num: u32,
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// True if this end connected.
    pub initiator: bool,
    /// True if the other end is a queue pair of the same device.
    pub same_device: bool,
    /// True if the connection uses the kernel's TCP. Round trip time, retransmissions and more are
    /// then queried from the kernel by the two addresses.
    pub kernel: bool,
    /// Start of Full Operation, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Traffic.
    pub traffic: Operations,
    /// Waits.
    pub waits: WaitCounts,
    /// Number of bytes of the receive memory budget that the connection uses.
    pub held_bytes: u64,
}

/// Counters of a queue pair: the sum over its connections in the snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounters {
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Number of connections.
    pub connections: usize,
    /// Traffic.
    pub traffic: Operations,
    /// Waits.
    pub waits: WaitCounts,
}

/// Traffic at one local address: the sum over all connections and UD queue pairs that have used it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressCounts {
    /// Payload on connections.
    pub traffic: Operations,
    /// Payload of datagrams.
    pub datagrams: Directions,
}

/// Counters of a device at one time.
///
/// Counts of messages and bytes only grow. If a thread updates two counters one after the other, a
/// snapshot may contain only the first update.
///
/// ```
/// use uiw_counters::{DeviceCounters, TrafficClass};
/// let device = DeviceCounters::new(1, None)?;
/// # let details = uiw_counters::ConnDetails {
/// #     qp_num: 17,
/// #     local: "192.0.2.1:7174".parse().unwrap(),
/// #     peer: "192.0.2.2:40000".parse().unwrap(),
/// #     initiator: false,
/// #     same_device: false,
/// #     kernel: true,
/// # };
/// let connection = device.shard(0).open(&details);
/// let earlier = device.snapshot();
/// connection.count(TrafficClass::WriteSent, 3, 300);
/// let since = device.snapshot().total().traffic.since(&earlier.total().traffic);
/// assert_eq!(since.write.sent.messages, 3);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Properties of the process.
    pub process: ProcessCounters,
    /// Transfers of a server of `uiw cp`.
    pub transfers: Transfers,
    /// Counters of every shard.
    pub shards: Vec<ShardCounts>,
    /// Connections in Full Operation that have their own counters. A shard has up to 1,021 of them;
    /// further connections are only counted for their shard.
    pub connections: Vec<ConnectionCounters>,
    /// UD queue pairs with their own counters. The limit of 1,021 for each shard applies to
    /// connections and UD queue pairs together.
    pub datagram_queue_pairs: Vec<DatagramQueuePair>,
    /// Counts by local address, of connections and UD queue pairs that have or had their own
    /// counters. If a program uses several addresses and all counters of a shard are in use,
    /// traffic may be counted for another one of its addresses.
    pub addresses: BTreeMap<IpAddr, AddressCounts>,
}

type Words = [u64; BLOCK_WORDS];

/// Number of attempts to read a block that is being reassigned.
const MAX_READ_ATTEMPTS: usize = 16;

impl Snapshot {
    /// Creates a snapshot from the blocks that `read` returns by index. Returns `None` if `read`
    /// does not return a block, or if the contents are not valid.
    pub(crate) fn read(mut read: impl FnMut(usize) -> Option<Words>) -> Option<Self> {
        let process = read(0)?;
        let shards =
            usize::try_from(process[process::SHARDS]).ok().filter(|n| *n <= layout::MAX_SHARDS)?;
        let mut snapshot = Self {
            process: ProcessCounters {
                pid: process[process::PID] as u32,
                name: read_text(&process, process::NAME),
                library: read_text(&process, process::LIBRARY),
                command: read_text(&read(layout::COMMAND)?, layout::COMMAND_TEXT),
                began_ns: process[process::BEGAN],
                devices_opened: process[process::DEVICES_OPENED].max(1),
                queue_pairs_created: process[process::QUEUE_PAIRS_CREATED],
            },
            transfers: Transfers::read(&read(layout::TRANSFERS)?),
            ..Self::default()
        };
        for index in 0..shards {
            snapshot.read_shard(index, &mut read)?;
        }
        Some(snapshot)
    }

    fn read_shard(
        &mut self,
        index: usize,
        read: &mut impl FnMut(usize) -> Option<Words>,
    ) -> Option<()> {
        let first = read(block_index(index, 0))?;
        let used = usize::try_from(first[shard::USED])
            .ok()
            .filter(|n| (FIRST_CONN..=SHARD_BLOCKS).contains(n))?;
        let mut counts = ShardCounts {
            index,
            accepted: first[shard::ACCEPTED],
            established: first[shard::ESTABLISHED],
            ended: first[shard::ENDED],
            failed_startups: first[shard::FAILED_STARTUPS],
            refused_set_up_limit: first[shard::REFUSED],
            refused_keys: first[shard::REFUSED + 1],
            refused_system: first[shard::REFUSED + 2],
            refused_program: first[shard::REFUSED + 3],
            crc_errors: first[shard::CRC_ERRORS],
            same_device: Operations::parse(words(&first, shard::SAME_DEVICE)),
            terminates: terminates::parse(&first).collect(),
            datagrams: Datagrams {
                bad_crc: first[RejectReason::BadCrc as usize],
                malformed: first[RejectReason::Malformed as usize],
                bad_source: first[RejectReason::BadSource as usize],
                no_queue_pair: first[RejectReason::NoQueuePair as usize],
                ..Datagrams::default()
            },
            ..ShardCounts::default()
        };
        for at in OTHERS..used {
            let words = read_stable(|| read(block_index(index, at)))?;
            let traffic = Operations::parse(self::words(&words, conn::TRAFFIC));
            let waits = WaitCounts::parse(self::words(&words, conn::WAITS));
            counts.traffic.add(&traffic);
            counts.waits.add(&waits);
            counts.datagrams.add(&Datagrams::parse(&self::words(&words, conn::TRAFFIC)));
            if at == SAME_DEVICE {
                counts.same_device.add(&traffic);
            }
            if at < FIRST_CONN {
                continue;
            }
            if let Some(local) = address::from_words(self::words(&words, conn::LOCAL)) {
                let counts = self.addresses.entry(local.ip()).or_default();
                counts.traffic.add(&traffic);
                let datagrams = Datagrams::parse(&self::words(&words, conn::TRAFFIC)).traffic;
                counts.datagrams.sent.add(datagrams.sent);
                counts.datagrams.received.add(datagrams.received);
            }
            if words[conn::FLAGS] & conn::FLAG_DATAGRAMS != 0 {
                self.datagram_queue_pairs.extend(datagram_queue_pair(index, &words));
                continue;
            }
            let Some(connection) = open_connection(index, &words) else { continue };
            if connection.same_device {
                counts.same_device.add(&connection.traffic);
            }
            if words[conn::STATE] == conn::OPEN {
                counts.held_bytes = counts.held_bytes.wrapping_add(connection.held_bytes);
                self.connections.push(connection);
            }
        }
        self.shards.push(counts);
        Some(())
    }

    /// Returns the counters of the device: the sum over all shards.
    #[must_use]
    pub fn total(&self) -> ShardCounts {
        let mut total = ShardCounts::default();
        for shard in &self.shards {
            total.traffic.add(&shard.traffic);
            total.same_device.add(&shard.same_device);
            total.waits.add(&shard.waits);
            total.datagrams.add(&shard.datagrams);
            for (sum, part) in [
                (&mut total.held_bytes, shard.held_bytes),
                (&mut total.accepted, shard.accepted),
                (&mut total.established, shard.established),
                (&mut total.ended, shard.ended),
                (&mut total.failed_startups, shard.failed_startups),
                (&mut total.refused_set_up_limit, shard.refused_set_up_limit),
                (&mut total.refused_keys, shard.refused_keys),
                (&mut total.refused_system, shard.refused_system),
                (&mut total.refused_program, shard.refused_program),
                (&mut total.crc_errors, shard.crc_errors),
            ] {
                *sum = sum.wrapping_add(part);
            }
            for count in &shard.terminates {
                match total.terminates.iter_mut().find(|sum| sum.code == count.code) {
                    Some(sum) => {
                        sum.sent = sum.sent.wrapping_add(count.sent);
                        sum.received = sum.received.wrapping_add(count.received);
                    }
                    None => total.terminates.push(*count),
                }
            }
        }
        total
    }

    /// Returns the traffic on connections whose other end is not a queue pair of the same device.
    #[must_use]
    pub fn with_other_devices(&self) -> Operations {
        let total = self.total();
        total.traffic.since(&total.same_device)
    }

    /// Returns the queue pairs that have a connection in the snapshot, ordered by number.
    #[must_use]
    pub fn queue_pairs(&self) -> Vec<QueuePairCounters> {
        let mut pairs = BTreeMap::<u32, QueuePairCounters>::new();
        for connection in &self.connections {
            let pair = pairs.entry(connection.qp_num).or_default();
            pair.qp_num = connection.qp_num;
            pair.connections += 1;
            pair.traffic.add(&connection.traffic);
            pair.waits.add(&connection.waits);
        }
        pairs.into_values().collect()
    }
}

/// Reads a block until it is not being reassigned. The number of attempts is limited, because the
/// writer may have been killed while it reassigned the block.
fn read_stable(mut read: impl FnMut() -> Option<Words>) -> Option<Words> {
    let mut words = read()?;
    for _ in 0..MAX_READ_ATTEMPTS {
        let before = words[conn::SEQUENCE];
        if before.is_multiple_of(2) {
            let again = read()?;
            if again[conn::SEQUENCE] == before {
                // The sequence number, which is read before the counts, did not change while the
                // first copy was read. It may have changed while the second one was.
                return Some(words);
            }
            words = again;
        } else {
            words = read()?;
        }
    }
    Some(words)
}

/// Returns the connection of a block, or `None` if the block has none or is being reassigned.
fn open_connection(shard: usize, words: &Words) -> Option<ConnectionCounters> {
    if words[conn::STATE] == 0 || !words[conn::SEQUENCE].is_multiple_of(2) {
        return None;
    }
    let counts = own_counts(words);
    let flag = |flag| words[conn::FLAGS] & flag != 0;
    Some(ConnectionCounters {
        shard,
        qp_num: words[conn::QP_NUM] as u32,
        local: address::from_words(self::words(words, conn::LOCAL))?,
        peer: address::from_words(self::words(words, conn::PEER))?,
        initiator: flag(conn::FLAG_INITIATOR),
        same_device: flag(conn::FLAG_SAME_DEVICE),
        kernel: flag(conn::FLAG_KERNEL),
        began_ns: words[conn::BEGAN],
        traffic: Operations::parse(std::array::from_fn(|at| counts[at])),
        waits: WaitCounts::parse(std::array::from_fn(|at| {
            counts[conn::WAITS - conn::TRAFFIC + at]
        })),
        held_bytes: words[conn::HELD],
    })
}

/// Returns the UD queue pair of a block, or `None` if it has been destroyed or the block is being
/// reassigned.
fn datagram_queue_pair(shard: usize, words: &Words) -> Option<DatagramQueuePair> {
    if words[conn::STATE] != conn::OPEN || !words[conn::SEQUENCE].is_multiple_of(2) {
        return None;
    }
    Some(DatagramQueuePair {
        shard,
        qp_num: words[conn::QP_NUM] as u32,
        local: address::from_words(self::words(words, conn::LOCAL))?,
        began_ns: words[conn::BEGAN],
        datagrams: Datagrams::parse(&own_counts(words)),
    })
}

/// Returns the counts since the block was assigned to its current owner.
fn own_counts(words: &Words) -> [u64; conn::COUNTS] {
    std::array::from_fn(|at| words[conn::TRAFFIC + at].wrapping_sub(words[conn::BASE + at]))
}

/// Returns the words of a block from `at` on. All callers stay within the block.
fn words<const N: usize>(block: &Words, at: usize) -> [u64; N] {
    std::array::from_fn(|i| block[at + i])
}

/// Reads a text, and removes control characters, which a terminal would obey.
fn read_text(block: &Words, at: process::Text) -> String {
    let bytes: Vec<u8> =
        block[at.at + 1..at.at + at.words].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let len = usize::try_from(block[at.at]).unwrap_or(usize::MAX).min(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).chars().filter(|c| !c.is_control()).collect()
}
