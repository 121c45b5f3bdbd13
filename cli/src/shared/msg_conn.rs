//! A connection with a ring of receives of one size.

use crate::shared::fail::Result;
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{Link, PendingQp, RECV, Wait, WaitLimits, completions, post_recvs};
use std::net::SocketAddr;
use std::ops::Range;
use uiw::raw::cm::ConnRequest;
use uiw::raw::{ConnConfig, Sge, WcStatus};

/// A connection whose messages arrive in slots of a ring.
pub(crate) struct MsgConn {
    pub(crate) link: Link,
    ring: ReceiveRing,
}

struct ReceiveRing {
    buffer: Buffer,
    size: usize,
}

/// What comes out of a conn.
pub(crate) enum Event {
    /// A message of `len` bytes in `slot`, which is to be posted again.
    Message { slot: u64, len: usize },
    /// A request of ours is done.
    Sent(u64),
}

impl ReceiveRing {
    fn post(half: &PendingQp, slots: u32, size: u32) -> Result<Self> {
        let size = size.max(1) as usize;
        let ring = Self { buffer: Buffer::untouched(&half.pd, size * slots as usize)?, size };
        post_recvs(&half.qp, (0..slots.into()).map(|slot| ring.receive(slot)))?;
        Ok(ring)
    }

    fn receive(&self, slot: u64) -> (u64, Option<Sge>) {
        (slot, Some(self.buffer.sge(self.range(slot, self.size))))
    }

    fn range(&self, slot: u64, len: usize) -> Range<usize> {
        let start = slot as usize * self.size;
        start..start + len
    }
}

impl MsgConn {
    /// Connects `half` with `slots` receives of `size` bytes.
    pub(crate) fn connect(
        half: PendingQp,
        (slots, size): (u32, u32),
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let ring = ReceiveRing::post(&half, slots, size)?;
        Ok(Self { link: half.begin(peer, options, private_data)?.finish(until)?, ring })
    }

    /// Accepts with `half` and `slots` receives of `size` bytes.
    pub(crate) fn accept(
        half: PendingQp,
        (slots, size): (u32, u32),
        request: ConnRequest,
        options: &ConnConfig,
        reply: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let ring = ReceiveRing::post(&half, slots, size)?;
        Ok(Self { link: half.accept(request, options, reply, until)?, ring })
    }

    /// The next event; `None` when the peer has closed in order, or `until` came first.
    pub(crate) fn next(&self, wait: Wait, until: WaitLimits<'_>) -> Result<Option<Event>> {
        let mut next = None;
        completions(&self.link.device, &self.link.cq, wait, until, 1, |wc| next = Some(wc));
        let Some(wc) = next else { return Ok(None) };
        if wc.status != WcStatus::Success {
            return if self.link.ended_in_order(&wc) { Ok(None) } else { Err(self.link.failure(&wc)) };
        }
        let slot = wc.wr_id & !RECV;
        let message = Event::Message { slot, len: wc.byte_len as usize };
        Ok(Some(if wc.wr_id & RECV == 0 { Event::Sent(wc.wr_id) } else { message }))
    }

    /// The bytes of a message.
    pub(crate) fn bytes(&self, slot: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.ring.buffer.read(self.ring.range(slot, len).start, &mut bytes)?;
        Ok(bytes)
    }

    /// A message as an element: to be sent back from where it lies.
    pub(crate) fn sge(&self, slot: u64, len: usize) -> Sge {
        self.ring.buffer.sge(self.ring.range(slot, len))
    }

    /// Posts the receive of `slot` again.
    pub(crate) fn repost(&self, slot: u64) -> Result<()> {
        post_recvs(&self.link.qp, [self.ring.receive(slot)])
    }

    /// The next message, copied out; its receive is posted again. Completions of requests are
    /// dropped.
    pub(crate) fn message(&self, wait: Wait, until: WaitLimits<'_>) -> Result<Option<Vec<u8>>> {
        loop {
            match self.next(wait, until)? {
                None => return Ok(None),
                Some(Event::Sent(_)) => {}
                Some(Event::Message { slot, len }) => {
                    let bytes = self.bytes(slot, len)?;
                    self.repost(slot)?;
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Waits until request `wr_id` is done. False when the connection ended in order instead.
    pub(crate) fn sent(&self, wr_id: u64, wait: Wait, until: WaitLimits<'_>) -> Result<bool> {
        loop {
            match self.next(wait, until)? {
                None => return Ok(false),
                Some(Event::Sent(id)) if id == wr_id => return Ok(true),
                Some(Event::Sent(_)) => {}
                // The peer sent a message out of turn.
                Some(Event::Message { slot, .. }) => self.repost(slot)?,
            }
        }
    }
}
