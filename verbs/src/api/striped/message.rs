//! Received messages.

use crate::api::message::Message;
use std::ops::Deref;
use uiw_striping::wire::{Header, Kind};

/// A message that a striped connection has received, in its receive buffer. Dropping it posts the buffer again; while messages are kept, as
/// many receives fewer are posted.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = striped()?;
/// client.as_async().send_imm(client.as_async().pd().register("text")?, 7).wait()?;
/// let message = server.recv()?.ok_or("closed")?;
/// assert_eq!((&message[..], message.imm()), (&b"text"[..], Some(7)));
/// # Ok(())
/// # }
/// ```
pub struct StripedMessage {
    message: Message,
    /// Bytes in front of the program's.
    header_len: usize,
    kind: Kind,
}

impl StripedMessage {
    /// The message of a Send whose header was parsed, and left `payload` bytes.
    pub(super) fn new(message: Message, header: &Header, payload: usize) -> Self {
        Self { header_len: message.len() - payload, message, kind: header.kind }
    }

    /// The immediate that came along.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        match self.kind {
            Kind::SendImm(imm) | Kind::WriteNotice { imm, .. } => Some(imm),
            _ => None,
        }
    }

    /// For the immediate of a Write: how many bytes the Write had. `None` for a Send.
    #[must_use]
    pub fn write_len(&self) -> Option<u32> {
        match self.kind {
            Kind::WriteNotice { len, .. } => Some(len),
            _ => None,
        }
    }
}

impl Deref for StripedMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.message.get(self.header_len..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for StripedMessage {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for StripedMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripedMessage")
            .field("len", &self.len())
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}
