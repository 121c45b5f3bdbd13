//! Private data of connection requests and responses, in the lengths that programs expect from
//! their kind of device.
//!
//! On InfiniBand and RoCE an event contains the whole private data field of its message, padded
//! with zeros, and a call accepts at most as many bytes as the field holds. On iWARP an event
//! contains the bytes that the peer sent. In both cases only the program's bytes are transmitted.

use std::ffi::c_int;
use std::net::SocketAddr;
use uiw_cabi_core::abi::cm::RDMA_CM_EVENT_REJECTED;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;

/// Maximum size of private data in an event, in bytes. The C structures store the length in one
/// byte, although MPA can transmit up to 512 bytes.
pub(crate) const MAX_PRIVATE_DATA: usize = 255;

/// Message of InfiniBand's communication manager that carries private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmMessage {
    Request,
    Reply,
    Reject,
    SidrRequest,
    SidrReply,
}

impl CmMessage {
    /// Returns the size of the message's private data field in bytes, as far as a program can use
    /// it. In requests, the first 36 bytes of the field hold the header of the kernel's rdma_cm.
    const fn field_len(self) -> usize {
        match self {
            Self::Request => 92 - 36,
            Self::Reply => 196,
            Self::Reject => 148,
            Self::SidrRequest => 216 - 36,
            Self::SidrReply => 136,
        }
    }

    /// Returns the maximum number of bytes that a program can send in the message or receive from
    /// it. `is_exact` lifts the limit of InfiniBand's field for the messages of connections.
    const fn limit(self, is_exact: bool) -> usize {
        match self {
            Self::Request | Self::Reply | Self::Reject if is_exact => MAX_PRIVATE_DATA,
            _ => self.field_len(),
        }
    }

    /// Checks the length of private data that a program sends.
    ///
    /// # Errors
    /// EINVAL if the message cannot hold it on the program's kind of device.
    pub(crate) fn check(self, private_data: &[u8]) -> Result<()> {
        self.check_len(private_data.len(), is_exact()?)
    }

    fn check_len(self, len: usize, is_exact: bool) -> Result<()> {
        let (limit, exact) = (self.limit(is_exact), self.limit(true));
        if len <= limit {
            return Ok(());
        }
        Err(Errno::INVAL.because(format_args!(
            "{len} bytes of private data, at most {limit} (UIW_PRIVATE_DATA=exact: {exact})"
        )))
    }
}

fn is_exact() -> Result<bool> {
    Ok(Settings::get()?.exact_private_data())
}

/// Private data of an event.
#[derive(Clone, Copy)]
pub(crate) struct PrivateData<'a> {
    message: CmMessage,
    sent: &'a [u8],
}

impl<'a> PrivateData<'a> {
    /// Returns the private data that the peer `sent` in `message`.
    pub(crate) const fn new(message: CmMessage, sent: &'a [u8]) -> Self {
        Self { message, sent }
    }

    /// Returns the empty private data of an event that was caused by TCP rather than by a message
    /// of the peer, or `None` if the event has no private data.
    pub(crate) fn of_event(event: c_int) -> Option<Self> {
        (event == RDMA_CM_EVENT_REJECTED).then_some(Self::new(CmMessage::Reject, &[]))
    }

    /// Writes to `to` the bytes that the program receives, and returns their number. `peer` is the
    /// sender, which is named in a warning if the bytes are truncated.
    pub(crate) fn fill(self, to: &mut [u8; MAX_PRIVATE_DATA], peer: Option<SocketAddr>) -> usize {
        let is_exact = is_exact().unwrap_or(true);
        let (bytes, longest) = (self.sent.len(), self.message.limit(is_exact));
        if bytes > longest {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, bytes, "the peer's private data is cut to {longest} bytes");
        }
        self.fill_as(to, is_exact)
    }

    /// Like [`PrivateData::fill`], for the given value of the setting.
    fn fill_as(self, to: &mut [u8; MAX_PRIVATE_DATA], is_exact: bool) -> usize {
        let longest = self.message.limit(is_exact);
        let shown = &self.sent[..self.sent.len().min(longest)];
        to.fill(0);
        to[..shown.len()].copy_from_slice(shown);
        if is_exact { shown.len() } else { longest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: [(CmMessage, usize); 5] = [
        (CmMessage::Request, 56),
        (CmMessage::Reply, 196),
        (CmMessage::Reject, 148),
        (CmMessage::SidrRequest, 180),
        (CmMessage::SidrReply, 136),
    ];

    #[test]
    fn longer_private_data_refused() {
        assert_eq!((CmMessage::Request.limit(true), CmMessage::SidrReply.limit(true)), (255, 136));
        for (message, limit) in MESSAGES {
            assert_eq!(message.check_len(limit, false), Ok(()), "{message:?}");
            assert_eq!(message.check_len(limit + 1, false), Err(Errno::INVAL), "{message:?}");
            assert_eq!(message.check_len(message.limit(true), true), Ok(()), "{message:?}");
        }
    }

    #[test]
    fn field_padded_or_cut() {
        let sent = [7; 300];
        for (message, limit) in MESSAGES {
            for given in [0, 1, limit, 300] {
                let data = PrivateData::new(message, &sent[..given]);
                let mut field = [9; MAX_PRIVATE_DATA];
                assert_eq!(data.fill_as(&mut field, false), limit, "{message:?}");
                let kept = given.min(limit);
                assert!(field[..kept].iter().all(|byte| *byte == 7), "{message:?}");
                assert!(field[kept..].iter().all(|byte| *byte == 0), "{message:?}");
                assert_eq!(
                    data.fill_as(&mut field, true),
                    given.min(message.limit(true)),
                    "{message:?}"
                );
            }
        }
    }
}
