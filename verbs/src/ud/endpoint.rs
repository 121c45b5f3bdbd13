//! The shard's side of a UD queue pair.

use super::own::LastPeer;
use super::way::Way;
use crate::cq::Cqe;
use crate::qp::{QpInner, QpState, RecvWqe};
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
    /// Of the datagram that was built last.
    pub(super) way: Option<Way>,
    /// Completions of messages that were placed, and the count of these messages, of one run of datagrams.
    pub(super) completions: Vec<Cqe>,
    pub(super) received: Received,
    /// The route header that was written last: those of one sender's messages are equal where their lengths are.
    pub(super) last_grh: (Option<Grh>, [u8; Grh::LEN]),
    /// The receive that is being filled; kept for its allocation.
    pub(super) receive: RecvWqe,
}

/// Messages of one run of datagrams, which have one sender.
#[derive(Default)]
pub(super) struct Received {
    pub(super) all: Count,
    /// The sender is a queue pair of the same device.
    pub(super) same_device: bool,
}

impl Received {
    pub(super) fn add(&mut self, len: u32) {
        self.all.messages += 1;
        self.all.bytes += u64::from(len);
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
            completions: Vec::new(),
            received: Received::default(),
            last_grh: (None, [0; Grh::LEN]),
            receive: RecvWqe::default(),
        }
    }

    pub(crate) fn port(&self) -> Token {
        self.port
    }

    /// Whether datagrams are received in this state.
    pub(super) fn receives(state: QpState) -> bool {
        matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }
}
