//! Work completions: how a request ended.

use std::fmt;
use uiw_ddp::STag;
use uiw_rdmap::Origin;

/// Status of a completion; the values of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// A message did not fit the receive, or the send was longer than a message may be.
    LocalLength = 1,
    /// The queue pair could not execute the request, for instance because the peer lacks the
    /// extension it needs.
    LocalQpOperation = 2,
    /// A local element names no valid region, leaves it, or lacks the right.
    LocalProtection = 4,
    /// Flushed: the queue pair had entered the error state.
    Flushed = 5,
    /// A bind was refused.
    MwBind = 6,
    /// The peer's answer did not fit the request.
    BadResponse = 7,
    /// Access to local memory by the peer failed.
    LocalAccess = 8,
    /// The peer called the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused access to its memory.
    RemoteAccess = 10,
    /// The peer could not execute the request.
    RemoteOperation = 11,
    /// The connection was lost with the request unanswered.
    RetryExceeded = 12,
    /// The peer had no receive posted in time.
    RnrRetryExceeded = 13,
    /// The peer aborted.
    RemoteAborted = 16,
    /// A fatal error of the stream.
    Fatal = 19,
    /// Anything else.
    General = 21,
}

impl WcStatus {
    /// The status in plain words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed: the queue pair was in error",
            Self::MwBind => "memory window bind error",
            Self::BadResponse => "bad response from the peer",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "the peer called the request invalid",
            Self::RemoteAccess => "the peer refused access to its memory",
            Self::RemoteOperation => "the peer could not execute the request",
            Self::RetryExceeded => "connection lost",
            Self::RnrRetryExceeded => "the peer had no receive posted",
            Self::RemoteAborted => "the peer aborted",
            Self::Fatal => "fatal stream error",
            Self::General => "general error",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Completed operation; the values of `ibv_wc_opcode` where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// A Send of any form.
    Send = 0,
    /// An RDMA Write, with or without immediate.
    Write = 1,
    /// An RDMA Read.
    Read = 2,
    /// A CmpSwap.
    CmpSwap = 3,
    /// A FetchAdd.
    FetchAdd = 4,
    /// A window bind.
    Bind = 5,
    /// A local invalidate.
    LocalInvalidate = 6,
    /// A fast-register.
    FastRegister = 7,
    /// An atomic write.
    AtomicWrite = 9,
    /// A receive, taken by a Send.
    Recv = 128,
    /// A receive, taken by Immediate Data behind a Write.
    RecvWriteImm = 129,
}

/// The wire's reason behind an error status: the codes of a Terminate message (RFC 5040 section
/// 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireReason {
    /// True if the peer sent it, false if this end did.
    pub from_peer: bool,
    /// Layer: 0 RDMAP, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type.
    pub etype: u8,
    /// Error code.
    pub code: u8,
    /// Implementation whose encoding was used: the Linux siw driver swaps layer and type. The codes
    /// above are those that it meant.
    pub origin: Origin,
}

impl WireReason {
    /// Returns one number for `vendor_err`: 0x8000 from the peer, then layer, type, code.
    #[must_use]
    pub fn vendor_err(self) -> u32 {
        u32::from(self.from_peer) << 16
            | u32::from(self.layer) << 12
            | u32::from(self.etype) << 8
            | u32::from(self.code)
    }
}

impl fmt::Display for WireReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.from_peer { "the peer" } else { "this end" };
        let Self { layer, etype, code, .. } = *self;
        let reason = uiw_rdmap::TerminateReason::from_codes(layer, etype, code);
        write!(f, "{end} terminated the stream: {reason}")?;
        match self.origin {
            Origin::Rfc => Ok(()),
            Origin::Siw => f.write_str(", in the bytes of the Linux siw driver, which swaps layer and type"),
            Origin::Ambiguous => {
                let other = uiw_rdmap::TerminateReason::from_codes(etype, layer, code);
                write!(f, "; or, if the peer is the Linux siw driver, {other}")
            }
        }
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The number given when posting.
    pub wr_id: u64,
    /// Result of the request. Unless it is `Success`, only `wr_id`, `qp_num` and `reason` are
    /// meaningful.
    pub status: WcStatus,
    /// Completed operation.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// The immediate that came along.
    pub imm: Option<u32>,
    /// The STag of ours that the peer invalidated.
    pub invalidated: Option<STag>,
    /// The queue pair.
    pub qp_num: u32,
    /// Queue pair that sent a received datagram. A route header of 40 bytes is in front of its
    /// payload.
    pub datagram_from: Option<u32>,
    /// The wire's reason, where an error has one.
    pub reason: Option<WireReason>,
    /// Monotonic nanoseconds at completion; 0 unless the queue was created with timestamps.
    pub timestamp_ns: u64,
}

#[cfg(test)]
impl Wc {
    /// A completion without immediate, invalidated STag or reason.
    pub(crate) const fn plain(wr_id: u64, status: WcStatus, opcode: WcOpcode, byte_len: u32) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            byte_len,
            imm: None,
            invalidated: None,
            qp_num: 0,
            datagram_from: None,
            reason: None,
            timestamp_ns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_origin() {
        let reason = |origin| WireReason { from_peer: true, layer: 2, etype: 0, code: 6, origin }.to_string();
        let rfc = reason(Origin::Rfc);
        assert!(rfc.ends_with(" (2/0/0x06)") && !rfc.contains("siw"), "{rfc}");
        assert!(
            reason(Origin::Siw).ends_with("in the bytes of the Linux siw driver, which swaps layer and type")
        );
        // The other reading is an RDMAP error.
        let both = reason(Origin::Ambiguous);
        assert!(
            both.contains("if the peer is the Linux siw driver") && both.contains("(0/2/0x06)"),
            "{both}"
        );
    }
}
