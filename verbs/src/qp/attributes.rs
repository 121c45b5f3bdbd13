//! What a queue pair is made of, and what can be asked of it.

use crate::cq::Cq;
use crate::qp::QpState;
use crate::srq::Srq;
use std::sync::Arc;
use uiw_mem::Access;

/// Capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Requests in the send queue.
    pub max_send_wr: u32,
    /// Requests in the receive queue; ignored with a shared one.
    pub max_recv_wr: u32,
    /// Elements of one send request.
    pub max_send_sge: u32,
    /// Elements of one receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 16, max_recv_sge: 16, max_inline: 256 }
    }
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where send requests complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// A shared receive queue instead of one of its own.
    pub srq: Option<Arc<Srq>>,
    /// Capacities.
    pub cap: QpCap,
    /// Every send request produces a completion.
    pub signal_all: bool,
    /// Its number, for callers that need a certain number: 2 to 0xFFFFFF. Without it a random one is taken.
    pub num: Option<u32>,
}

/// What can be set and queried of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// Rights of peers on this queue pair; memory needs them too.
    pub access: Access,
    /// Reads and atomics we may have outstanding.
    pub ord: u16,
    /// Reads and atomics the peer may have outstanding.
    pub ird: u16,
    /// Capacities.
    pub cap: QpCap,
}

/// How the bytes of a standing connection travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Bytes a TCP segment carries (RFC 5044 section 5.1).
    pub emss: usize,
    /// Bytes of the longest ULPDU we send.
    pub max_ulpdu: usize,
    /// Whether the peer turned out to be one of ours; false until its answer is here.
    pub uiw_peer: bool,
    /// What TCP says.
    pub stream: uiw_llp::StreamInfo,
}
