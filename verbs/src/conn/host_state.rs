//! State of the host of a stream between two calls of the stream.

use crate::cq::Cqe;
use crate::driver::{MessageCharge, Shared};
use crate::qp::{LocalDetail, RecvWqe};
use crate::wr::{Sge, Sges};
use std::collections::VecDeque;
use std::sync::Arc;
use uiw_counters::{ConnCounters, ShardCounters};
use uiw_llp::Token;
use uiw_mem::{MrCache, StreamId};
use uiw_stream::LocalError;

/// State that [`QpHost`](super::QpHost) keeps for one stream between calls of the stream.
pub(crate) struct HostState {
    pub(super) token: Token,
    /// Stream id for STags that are bound to this stream.
    pub(crate) stream: StreamId,
    /// Cache of the memory regions that were used most recently.
    pub(super) cache: MrCache,
    /// The receive that is being filled.
    pub(super) receive: RecvWqe,
    /// True while a message is being received.
    pub(super) receiving: bool,
    /// True if the peer has sent something since the last request that was awaited
    /// ([`StreamHost::is_awaited`]).
    ///
    /// [`StreamHost::is_awaited`]: uiw_stream::StreamHost::is_awaited
    pub(super) has_received: bool,
    /// Counters of the stream. A connection in Full Operation has a block of its own if one was
    /// available; all other connections of a shard share a block.
    pub(crate) counters: ConnCounters,
    /// Data received so far of a message that is longer than its receive.
    pub(super) long: Vec<u8>,
    /// Completions of receives whose message the stream has not acknowledged yet.
    pub(super) held: VecDeque<Cqe>,
    /// Charge of `long` against the device's limit for incomplete messages.
    pub(super) charge: Option<MessageCharge>,
    /// Elements of the Reads and atomics that wait for responses, in order.
    pub(super) sinks: VecDeque<Sges>,
    /// Local error that ends the stream, for the log.
    pub(super) detail: Option<LocalDetail>,
    /// Error of completions that were reported when it could not be returned to the stream. The
    /// connection ends the stream with it after the call.
    pub(super) failure: Option<LocalError>,
}

impl HostState {
    pub(crate) fn new(token: Token, counters: ConnCounters) -> Self {
        Self {
            token,
            counters,
            stream: StreamId(0),
            cache: MrCache::default(),
            receive: RecvWqe::default(),
            receiving: false,
            has_received: false,
            long: Vec::new(),
            held: VecDeque::new(),
            charge: None,
            sinks: VecDeque::new(),
            detail: None,
            failure: None,
        }
    }

    /// Sets the token of the connection on its new shard, whose counters are `counters`.
    pub(super) fn enter_shard(&mut self, token: Token, counters: &ShardCounters) {
        self.token = token;
        counters.adopt(&mut self.counters);
    }

    /// Gives up the message that is being received, and returns the `wr_id` of its receive.
    pub(crate) fn take_receive(&mut self) -> Option<u64> {
        (self.long, self.charge) = (Vec::new(), None);
        self.end_receive()
    }

    /// Gives up the message that is being received, and returns its receive, to be put back.
    pub(crate) fn take_unfilled_receive(&mut self) -> Option<&mut RecvWqe> {
        self.long = Vec::new();
        self.charge = None;
        std::mem::take(&mut self.receiving).then_some(&mut self.receive)
    }

    /// Returns whether a message is being received that is longer than its receive.
    pub(crate) fn has_long_message(&self) -> bool {
        self.charge.is_some()
    }

    /// Records the current length of the long message that is being received. Returns whether it
    /// has made progress (see [`MessageCharge::note_progress`]).
    pub(crate) fn note_message_progress(&mut self) -> bool {
        self.charge.as_mut().is_some_and(|charge| charge.note_progress(self.long.len()))
    }

    /// Reserves memory for `len` bytes of a message that grows to at most `limit` bytes.
    pub(super) fn reserve(
        &mut self,
        shared: &Arc<Shared>,
        len: usize,
        limit: usize,
    ) -> Result<(), LocalError> {
        if len <= self.long.capacity() {
            return Ok(());
        }
        let capacity = len.max((self.long.capacity() * 2).min(limit));
        let charge = self.charge.get_or_insert_with(|| MessageCharge::new(shared));
        if !charge.grow_to(capacity) {
            return Err(LocalError::ReceiveMemory);
        }
        self.long.try_reserve_exact(capacity - self.long.len()).map_err(|_| LocalError::Protection)
    }

    /// Ends filling the receive, and returns its `wr_id`.
    #[inline]
    pub(super) fn end_receive(&mut self) -> Option<u64> {
        std::mem::take(&mut self.receiving).then_some(self.receive.wr_id)
    }

    /// Keeps a completion until the acknowledgement of its message is sent. Not inlined, because
    /// most connections do not need it.
    #[inline(never)]
    pub(super) fn hold_receive(&mut self, cqe: Cqe) {
        self.held.push_back(cqe);
    }

    /// Returns the elements of the oldest Read or atomic that waits for its response.
    pub(super) fn oldest_sink(&self) -> &[Sge] {
        self.sinks.front().map_or(&[], |sges| sges)
    }

    /// Discards the elements of all Reads and atomics, because no response will arrive.
    pub(crate) fn forget_reads(&mut self) {
        self.sinks.clear();
    }
}
