//! The shard's side of a UD queue pair.

use super::own::LastPeer;
use super::way::SendRoute;
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
    /// The slot of its port.
    pub(super) port: Token,
    pub(super) index: u8,
    /// MSN of the datagram that was built last.
    pub(super) msn: u32,
    /// Drawn at each transition to RTS.
    pub(super) epoch: u32,
    /// Memory that was named last.
    pub(super) cache: MrCache,
    pub(super) counters: DatagramCounters,
    pub(super) last_peer: LastPeer,
    /// Route of the datagram that was built last.
    pub(super) way: Option<SendRoute>,
    /// The numbers of receives in which messages were placed and whose completions are due, what
    /// these have in common, and the count of the messages of one run of datagrams.
    pub(super) placed: Vec<u64>,
    pub(super) message: Message,
    pub(super) received: ReceivedCount,
    /// The route header that was written last: those of one sender's messages are equal where their
    /// lengths are.
    pub(super) last_grh: (Option<Grh>, [u8; Grh::LEN]),
    /// The receive of a shared queue that is being filled; kept for its allocation.
    pub(super) receive: RecvWqe,
    /// Cause of a failed receive, for the log.
    pub(super) detail: Option<LocalDetail>,
}

/// Common part of the completions of messages with one header.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) byte_len: u32,
    /// The queue pair that sent it.
    pub(super) source: u32,
    pub(super) immediate: Option<u32>,
    pub(super) solicited: bool,
}

impl Message {
    /// The completion of receive `wr_id` of the queue pair number `qp_num`.
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

/// Messages of one run of datagrams, which have one sender.
#[derive(Default)]
pub(super) struct ReceivedCount {
    pub(super) all: Count,
    /// The sender is a queue pair of the same device.
    pub(super) same_device: bool,
}

impl ReceivedCount {
    /// `count` messages of `len` bytes.
    pub(super) fn add(&mut self, count: usize, len: u32) {
        self.all.messages += count as u64;
        self.all.bytes += count as u64 * u64::from(len);
    }
}

impl Endpoint {
    pub(super) fn new(qp: &Arc<QpInner>, port: Token, index: u8, counters: DatagramCounters) -> Self {
        Self {
            qp: Arc::clone(qp),
            port,
            index,
            msn: 0,
            epoch: 0,
            cache: MrCache::default(),
            counters,
            last_peer: LastPeer::default(),
            way: None,
            placed: Vec::new(),
            message: Message::default(),
            received: ReceivedCount::default(),
            last_grh: (None, [0; Grh::LEN]),
            receive: RecvWqe::default(),
            detail: None,
        }
    }

    pub(crate) fn port(&self) -> Token {
        self.port
    }

    /// Returns whether datagrams are received in this state.
    pub(super) fn receives(state: QpState) -> bool {
        matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }
}
