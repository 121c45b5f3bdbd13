//! A connection that receives messages in a ring of equal slots.

use crate::shared::fail::Result;
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, PendingQp, RECV, WaitLimits, WaitMode, completions, post_recvs,
};
use std::net::SocketAddr;
use std::ops::Range;
use uiw::raw::cm::ConnRequest;
use uiw::raw::{ConnConfig, Sge};

/// A connection whose messages arrive in slots of a ring.
pub(crate) struct MsgConn {
    pub(crate) link: Link,
    ring: ReceiveRing,
}

struct ReceiveRing {
    buffer: Buffer,
    size: usize,
}

/// Event of a connection.
pub(crate) enum ConnEvent {
    /// A message of `len` bytes has arrived in `slot`, which must be posted again.
    Message { slot: u64, len: usize },
    /// The request with this number is complete.
    Sent(u64),
}

impl ReceiveRing {
    fn post(pending: &PendingQp, slots: u32, size: u32) -> Result<Self> {
        let size = size.max(1) as usize;
        let ring = Self { buffer: Buffer::untouched(&pending.pd, size * slots as usize)?, size };
        post_recvs(
            &pending.qp,
            &(0..slots.into()).map(|slot| ring.receive(slot)).collect::<Vec<_>>(),
        )?;
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
    /// Posts `slots` receives of `size` bytes and connects.
    pub(crate) fn connect(
        pending: PendingQp,
        (slots, size): (u32, u32),
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let ring = ReceiveRing::post(&pending, slots, size)?;
        Ok(Self { link: pending.begin(peer, options, private_data)?.finish(until)?, ring })
    }

    /// Posts `slots` receives of `size` bytes and accepts the connection.
    pub(crate) fn accept(
        pending: PendingQp,
        (slots, size): (u32, u32),
        request: ConnRequest,
        options: &ConnConfig,
        reply: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let ring = ReceiveRing::post(&pending, slots, size)?;
        Ok(Self { link: pending.accept(request, options, reply, until)?, ring })
    }

    /// Returns the next event, or `None` if the peer has closed in order or `until` is reached
    /// first.
    pub(crate) fn next(&self, wait: WaitMode, until: WaitLimits<'_>) -> Result<Option<ConnEvent>> {
        let mut next = None;
        completions(&self.link.device, &self.link.cq, wait, until, 1, |wc| next = Some(wc));
        let Some(wc) = next else { return Ok(None) };
        if !self.link.goes_on(&wc)? {
            return Ok(None);
        }
        let slot = wc.wr_id & !RECV;
        let message = ConnEvent::Message { slot, len: wc.byte_len as usize };
        Ok(Some(if wc.wr_id & RECV == 0 { ConnEvent::Sent(wc.wr_id) } else { message }))
    }

    /// Returns the bytes of a message.
    pub(crate) fn bytes(&self, slot: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.ring.buffer.read(self.ring.range(slot, len).start, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the element of a received message, with which it can be sent back without a copy.
    pub(crate) fn sge(&self, slot: u64, len: usize) -> Sge {
        self.ring.buffer.sge(self.ring.range(slot, len))
    }

    /// Posts the receive of `slot` again.
    pub(crate) fn repost(&self, slot: u64) -> Result<()> {
        post_recvs(&self.link.qp, &[self.ring.receive(slot)])
    }

    /// Returns a copy of the next message, and posts its receive again. Ignores completions of
    /// requests. Returns `None` if the peer has closed in order or `until` is reached first.
    pub(crate) fn message(&self, wait: WaitMode, until: WaitLimits<'_>) -> Result<Option<Vec<u8>>> {
        loop {
            match self.next(wait, until)? {
                None => return Ok(None),
                Some(ConnEvent::Sent(_)) => {}
                Some(ConnEvent::Message { slot, len }) => {
                    let bytes = self.bytes(slot, len)?;
                    self.repost(slot)?;
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Waits until request `wr_id` is complete. Returns false if the peer has closed in order or
    /// `until` is reached first.
    pub(crate) fn wait_sent(
        &self,
        wr_id: u64,
        wait: WaitMode,
        until: WaitLimits<'_>,
    ) -> Result<bool> {
        loop {
            match self.next(wait, until)? {
                None => return Ok(false),
                Some(ConnEvent::Sent(id)) if id == wr_id => return Ok(true),
                Some(ConnEvent::Sent(_)) => {}
                // The peer sent a message out of turn.
                Some(ConnEvent::Message { slot, .. }) => self.repost(slot)?,
            }
        }
    }
}
