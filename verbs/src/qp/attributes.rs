//! Settings and attributes of queue pairs.

use crate::cq::Cq;
use crate::qp::QpState;
use crate::srq::Srq;
use std::sync::Arc;
use uiw_mem::Access;

/// Capacities of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Maximum number of requests in the send queue.
    pub max_send_wr: u32,
    /// Maximum number of receives in the receive queue; ignored with a shared receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of elements of a send request.
    pub max_send_sge: u32,
    /// Maximum number of elements of a receive.
    pub max_recv_sge: u32,
    /// Maximum number of bytes of inline data.
    pub max_inline: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_inline: 256,
        }
    }
}

/// Settings of a new queue pair.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpInit {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) num: Option<u32>,
    /// Maximum length of messages that may be longer than their receives; `None` if they may not.
    pub(crate) max_message: Option<u32>,
    pub(crate) newest_receive_first: bool,
    pub(crate) unreliable: bool,
}

impl QpInit {
    /// Creates the settings of a queue pair whose send requests complete in `send_cq` and whose
    /// receives complete in `recv_cq`, with default capacities and its own receive queue. Every
    /// send request produces a completion.
    #[must_use]
    pub fn new(send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>) -> Self {
        Self {
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            srq: None,
            cap: QpCap::default(),
            signal_all: true,
            num: None,
            max_message: None,
            newest_receive_first: false,
            unreliable: false,
        }
    }

    /// Sets a shared receive queue. Default: the queue pair has its own.
    #[must_use]
    pub fn srq(mut self, srq: impl Into<Option<Arc<Srq>>>) -> Self {
        self.srq = srq.into();
        self
    }

    /// Sets the capacities. Default: [`QpCap::default`].
    #[must_use]
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Sets whether every send request produces a completion, instead of only those with
    /// [`crate::SendFlags::SIGNALED`]. Default: true.
    #[must_use]
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Sets the number, from 2 to 0xFFFFFF. Default: a random one.
    #[must_use]
    pub fn num(mut self, num: impl Into<Option<u32>>) -> Self {
        self.num = num.into();
        self
    }

    /// Makes messages take the receive that was posted last, whose memory is likely to be in the
    /// cache. Use it only if all receives are alike. Default: the receive that was posted first, as
    /// verbs require.
    #[must_use]
    pub fn newest_receive_first(mut self) -> Self {
        self.newest_receive_first = true;
        self
    }

    /// Makes the connection unreliable (UC). The queue pair of the peer must be unreliable as well.
    /// It supports Sends and Writes, with or without immediate data.
    ///
    /// A request succeeds once its bytes are sent. The receiver discards a message that it cannot
    /// deliver, because no receive is posted or the memory of a Write is not writable, and stays in
    /// RTS. Both peers must be uiw, because the setting is not negotiated.
    #[must_use]
    pub fn unreliable(mut self) -> Self {
        self.unreliable = true;
        self
    }

    /// Allows messages of up to `bytes` bytes that are longer than their receives (see
    /// [`LongMessages`](crate::qp::LongMessages)).
    pub(crate) fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = Some(bytes);
        self
    }
}

/// Attributes of a queue pair that can be set and queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// Current state.
    pub state: QpState,
    /// Access rights of the peer on this queue pair. The memory must grant them as well.
    pub access: Access,
    /// Maximum number of outstanding Reads and atomics of this end (ORD).
    pub ord: u16,
    /// Maximum number of outstanding Reads and atomics of the peer (IRD).
    pub ird: u16,
    /// Capacities.
    pub cap: QpCap,
}

/// Properties of the path of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Number of bytes that a TCP segment carries (RFC 5044 section 5.1).
    pub emss: usize,
    /// Length, in bytes, of the longest ULPDU that this end sends.
    pub max_ulpdu: usize,
    /// True if the peer is known to be uiw; false until its answer has arrived.
    pub uiw_peer: bool,
    /// Information from TCP.
    pub stream: uiw_llp::StreamInfo,
}
