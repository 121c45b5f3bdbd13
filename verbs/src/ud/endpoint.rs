//! The shard's side of a UD queue pair.

use super::own::LastPeer;
use crate::qp::{QpInner, QpState, RecvWqe};
use std::sync::Arc;
use uiw_counters::DatagramCounters;
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
    /// The receive that is being filled; kept for its allocation.
    pub(super) receive: RecvWqe,
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
