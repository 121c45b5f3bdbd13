//! State of a UD queue pair in its shard.

use super::own_sockets::LastPeer;
use super::send_route::SendRoute;
use crate::cq::Cqe;
use crate::qp::{LocalDetail, QpInner, QpState, RecvWqe};
use crate::wc::{Wc, WcOpcode, WcStatus};
use std::sync::Arc;
use uiw_counters::{Count, DatagramCounters};
use uiw_datagram::Grh;
use uiw_llp::Token;
use uiw_mem::MrCache;

pub(crate) struct Endpoint {
    pub(super) qp: Arc<QpInner>,
    /// Slot of its port.
    pub(crate) port: Token,
    pub(super) index: u8,
    /// MSN of the last datagram that was built.
    pub(super) msn: u32,
    /// Random number, drawn at each transition from RTR to RTS.
    pub(super) epoch: u32,
    /// Cache of the memory regions that were used most recently.
    pub(super) cache: MrCache,
    pub(super) counters: DatagramCounters,
    pub(super) last_peer: LastPeer,
    /// Route of the last datagram that was built.
    pub(super) route: Option<SendRoute>,
    /// Receives in which messages were placed and whose completions are pending, by `wr_id`.
    pub(super) placed: Vec<u64>,
    /// Common part of the pending completions.
    pub(super) message: Message,
    /// Counts of the current run of datagrams.
    pub(super) received: ReceivedCount,
    /// Route header that was written last. Messages of one sender have equal route headers if they
    /// have equal lengths.
    pub(super) last_grh: (Option<Grh>, [u8; Grh::LEN]),
    /// Receive of a shared queue that is being filled. Kept for its allocation.
    pub(super) receive: RecvWqe,
    /// Cause of a failed receive, for the log.
    pub(super) detail: Option<LocalDetail>,
}

/// Common part of the completions of messages with the same header.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) byte_len: u32,
    /// Queue pair that has sent the messages.
    pub(super) source: u32,
    pub(super) immediate: Option<u32>,
    pub(super) solicited: bool,
}

impl Message {
    /// Returns the completion of receive `wr_id` on queue pair `qp_num`.
    #[inline(always)]
    pub(super) fn completion(self, wr_id: u64, qp_num: u32) -> Cqe {
        let wc = Wc {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: self.byte_len,
            imm: self.immediate,
            invalidated: None,
            qp_num,
            datagram_from: Some(self.source),
            reason: None,
            timestamp_ns: 0,
        };
        Cqe { wc, solicited: self.solicited }
    }
}

/// Numbers of messages and bytes in one run of datagrams, which have the same sender.
#[derive(Default)]
pub(super) struct ReceivedCount {
    pub(super) all: Count,
    /// True if the sender is a queue pair of the same device.
    pub(super) same_device: bool,
}

impl ReceivedCount {
    /// Adds `count` messages of `len` bytes.
    pub(super) fn add(&mut self, count: usize, len: u32) {
        self.all.messages += count as u64;
        self.all.bytes += count as u64 * u64::from(len);
    }
}

impl Endpoint {
    pub(super) fn new(
        qp: &Arc<QpInner>,
        port: Token,
        index: u8,
        counters: DatagramCounters,
    ) -> Self {
        Self {
            qp: Arc::clone(qp),
            port,
            index,
            msn: 0,
            epoch: 0,
            cache: MrCache::default(),
            counters,
            last_peer: LastPeer::default(),
            route: None,
            placed: Vec::new(),
            message: Message::default(),
            received: ReceivedCount::default(),
            last_grh: (None, [0; Grh::LEN]),
            receive: RecvWqe::default(),
            detail: None,
        }
    }

    /// Returns whether datagrams are received in this state.
    pub(super) fn receives(state: QpState) -> bool {
        matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }
}
