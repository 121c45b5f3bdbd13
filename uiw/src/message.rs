//! Received messages.

use crate::dispatcher::{Handle, is_write_imm};
use std::ops::Deref;
use std::sync::Arc;
use uiw_verbs::{STag, Wc};

/// A received message, in its receive buffer. Dropping it posts the buffer again; while messages are kept, as many receives
/// fewer are posted.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = blocking()?;
/// client.send_imm(client.pd().register("text")?, 7).wait()?;
/// let message = server.recv()?.ok_or("closed")?;
/// assert_eq!((&message[..], message.imm()), (&b"text"[..], Some(7)));
/// # Ok(())
/// # }
/// ```
pub struct Message {
    dispatcher: Arc<Handle>,
    wc: Wc,
    /// Bytes of the message, if it is longer than the receive buffer.
    long: Option<Vec<u8>>,
}

impl Message {
    pub(crate) fn new(dispatcher: Arc<Handle>, wc: Wc) -> Self {
        let is_long = !is_write_imm(&wc) && wc.byte_len > dispatcher.ring.size;
        let long = if is_long { dispatcher.take_long(wc.wr_id as u32) } else { None };
        Self { dispatcher, wc, long }
    }

    /// The immediate that came along.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.wc.imm
    }

    /// The STag of ours that the peer invalidated with this message.
    #[must_use]
    pub fn invalidated(&self) -> Option<STag> {
        self.wc.invalidated
    }

    /// Returns the number of bytes of the Write that an immediate belongs to; `None` for a Send.
    #[must_use]
    pub fn write_len(&self) -> Option<u32> {
        is_write_imm(&self.wc).then_some(self.wc.byte_len)
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if let Some(long) = &self.long {
            return long;
        }
        let ring = &self.dispatcher.ring;
        let len = if is_write_imm(&self.wc) { 0 } else { self.wc.byte_len.min(ring.size) };
        let start = self.wc.wr_id as usize * ring.size as usize;
        let region = ring.memory.region();
        // SAFETY: slot `wr_id` lies inside the ring's memory, which lives as long as the dispatcher held here; no peer has a right
        // on it, and the engine writes it only while its receive is posted, which is not before this message is dropped. The
        // memory was zeroed at the start, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(region.as_ptr().add(start), len as usize) }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.dispatcher.release(self.wc.wr_id as u32, self.long.take());
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("len", &self.len()).field("imm", &self.imm()).finish_non_exhaustive()
    }
}
