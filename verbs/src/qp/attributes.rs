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

/// Objects and limits of a new queue pair.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpInit {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) num: Option<u32>,
    /// Messages may be longer than their receives, up to so many bytes.
    pub(crate) max_message: Option<u32>,
    pub(crate) newest_receive_first: bool,
    pub(crate) unreliable: bool,
}

impl QpInit {
    /// A queue pair whose send requests complete in `send_cq` and whose receives complete in
    /// `recv_cq`, with the default capacities and a receive queue of its own. Every send request
    /// produces a completion.
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

    /// A shared receive queue instead of one of its own. Default: none.
    #[must_use]
    pub fn srq(mut self, srq: impl Into<Option<Arc<Srq>>>) -> Self {
        self.srq = srq.into();
        self
    }

    /// Capacities. Default: [`QpCap::default`].
    #[must_use]
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Returns whether every send request produces a completion, and not only those with
    /// [`crate::SendFlags::SIGNALED`]. Default: true.
    #[must_use]
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Returns the number, for callers that need a certain number: 2 to 0xFFFFFF. Default: a random
    /// one.
    #[must_use]
    pub fn num(mut self, num: impl Into<Option<u32>>) -> Self {
        self.num = num.into();
        self
    }

    /// Messages take the receive that was posted last, whose memory is likely to be in the cache:
    /// for programs whose receives are alike. Default: the one that was posted first, as verbs
    /// demand.
    #[must_use]
    pub fn newest_receive_first(mut self) -> Self {
        self.newest_receive_first = true;
        self
    }

    /// An unreliable connection (UC), which the queue pair of the peer has to be as well: Sends and
    /// Writes, with or without immediate data.
    ///
    /// A request succeeds once its bytes are sent. The receiving end discards a message that it
    /// cannot deliver, because no receive is posted for it or the memory of a Write may not be
    /// written, and stays in RTS. Both peers are uiw: the setting is not negotiated.
    #[must_use]
    pub fn unreliable(mut self) -> Self {
        self.unreliable = true;
        self
    }

    /// Messages may be longer than their receives, up to `bytes`: see
    /// [`LongMessages`](crate::qp::LongMessages).
    pub(crate) fn max_message(mut self, bytes: u32) -> Self {
        self.max_message = Some(bytes);
        self
    }
}

/// Attributes of a queue pair that can be set and queried.
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

/// Properties of the path of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Bytes a TCP segment carries (RFC 5044 section 5.1).
    pub emss: usize,
    /// Bytes of the longest ULPDU we send.
    pub max_ulpdu: usize,
    /// True if the peer is known to be uiw; false until its answer is here.
    pub uiw_peer: bool,
    /// Information from TCP.
    pub stream: uiw_llp::StreamInfo,
}
