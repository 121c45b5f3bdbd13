//! Received messages.

use crate::dispatcher::{ConnectionHandle, is_write_imm};
use std::ops::Deref;
use std::sync::Arc;
use uiw_verbs::{STag, Wc};

/// Received message, which derefs to its bytes.
///
/// The bytes stay in the receive buffer, and dropping the message posts the buffer again. So each
/// message that the program keeps reduces the number of posted receives
/// ([`ConnectionConfig::recv_depth`](crate::ConnectionConfig::recv_depth())) by one.
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
    dispatcher: Arc<ConnectionHandle>,
    wc: Wc,
    /// Bytes of the message if it is longer than the receive buffer.
    long: Option<Vec<u8>>,
}

impl Message {
    pub(crate) fn new(dispatcher: Arc<ConnectionHandle>, wc: Wc) -> Self {
        let is_long = !is_write_imm(&wc) && wc.byte_len > dispatcher.ring.size;
        let long = if is_long { dispatcher.take_long_message(wc.wr_id as u32) } else { None };
        Self { dispatcher, wc, long }
    }

    /// Returns the immediate data of the message, if it has any.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        self.wc.imm
    }

    /// Returns the local STag that the peer invalidated with this message, if any.
    #[must_use]
    pub fn invalidated(&self) -> Option<STag> {
        self.wc.invalidated
    }

    /// Returns the length in bytes of the Write that this message announces with its immediate
    /// data. Returns `None` if the message is a Send.
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
        // SAFETY: slot `wr_id` is within the ring's memory, which lives as long as the dispatcher
        // held by this message. Peers have no access to it. The engine writes to the slot only
        // while its receive is posted, and it is not posted again before this message is dropped.
        // The memory was zeroed when it was allocated, so every byte is initialised.
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
        f.debug_struct("Message")
            .field("len", &self.len())
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}
