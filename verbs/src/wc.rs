//! Work completions, which report the results of requests.

use std::fmt;
use uiw_ddp::STag;
use uiw_rdmap::TerminateEncoding;

/// Status of a completion, with the values of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// The request has succeeded.
    Success = 0,
    /// The message was longer than the receive, or longer than a message may be.
    LocalLength = 1,
    /// The queue pair could not execute the request, for example because the peer lacks the
    /// required extension.
    LocalQpOperation = 2,
    /// A local element names no valid region, exceeds it, or lacks the access right.
    LocalProtection = 4,
    /// The request was flushed because the queue pair has entered the error state.
    Flushed = 5,
    /// A bind was refused.
    MwBind = 6,
    /// The response of the peer did not match the request.
    BadResponse = 7,
    /// The peer was refused access to local memory.
    LocalAccess = 8,
    /// The peer has rejected the request as invalid.
    RemoteInvalidRequest = 9,
    /// The peer has refused access to its memory.
    RemoteAccess = 10,
    /// The peer could not execute the request.
    RemoteOperation = 11,
    /// The connection was lost before the request was answered.
    RetryExceeded = 12,
    /// The peer did not post a receive in time.
    RnrRetryExceeded = 13,
    /// The peer has aborted the request.
    RemoteAborted = 16,
    /// The stream has failed.
    Fatal = 19,
    /// Any other error.
    General = 21,
}

impl WcStatus {
    /// Returns a description of the status.
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

/// Completed operation, with the values of `ibv_wc_opcode` where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// Send of any kind.
    Send = 0,
    /// RDMA Write, with or without immediate data.
    Write = 1,
    /// RDMA Read.
    Read = 2,
    /// CmpSwap.
    CmpSwap = 3,
    /// FetchAdd.
    FetchAdd = 4,
    /// Window bind.
    Bind = 5,
    /// Local invalidate.
    LocalInvalidate = 6,
    /// Fast register.
    FastRegister = 7,
    /// Atomic write.
    AtomicWrite = 9,
    /// Receive of a Send.
    Recv = 128,
    /// Receive of the Immediate Data after a Write.
    RecvWriteImm = 129,
}

/// Reason for an error on the wire: the codes of a Terminate message (RFC 5040 section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireReason {
    /// True if the peer has sent the Terminate, false if this end has.
    pub from_peer: bool,
    /// Layer: 0 RDMAP, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type.
    pub etype: u8,
    /// Error code.
    pub code: u8,
    /// Encoding of the Terminate, because the Linux siw driver swaps layer and type. The codes above
    /// are the intended ones.
    pub encoding: TerminateEncoding,
}

impl WireReason {
    /// Returns one number for `vendor_err`: 0x10000 if the Terminate came from the peer, plus
    /// layer, type and code.
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
        match self.encoding {
            TerminateEncoding::Rfc => Ok(()),
            TerminateEncoding::Siw => {
                f.write_str(", in the bytes of the Linux siw driver, which swaps layer and type")
            }
            TerminateEncoding::Ambiguous => {
                let other = uiw_rdmap::TerminateReason::from_codes(etype, layer, code);
                write!(f, "; or, if the peer is the Linux siw driver, {other}")
            }
        }
    }
}

/// Work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Number that was passed when posting.
    pub wr_id: u64,
    /// Result of the request. If it is not `Success`, only `wr_id`, `qp_num` and `reason` are
    /// valid.
    pub status: WcStatus,
    /// Completed operation.
    pub opcode: WcOpcode,
    /// Number of bytes that were received or read.
    pub byte_len: u32,
    /// Immediate data of the message.
    pub imm: Option<u32>,
    /// Local STag that the peer has invalidated.
    pub invalidated: Option<STag>,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Queue pair that has sent a received datagram. The payload follows a route header of 40
    /// bytes.
    pub datagram_from: Option<u32>,
    /// Reason for an error on the wire, if there is one.
    pub reason: Option<WireReason>,
    /// Time of the completion in monotonic nanoseconds; 0 unless the queue was created with
    /// timestamps.
    pub timestamp_ns: u64,
}

#[cfg(test)]
impl Wc {
    /// Creates a completion without immediate data, invalidated STag or reason.
    pub(crate) const fn plain(
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
        byte_len: u32,
    ) -> Self {
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
        let reason = |encoding| {
            WireReason { from_peer: true, layer: 2, etype: 0, code: 6, encoding }.to_string()
        };
        let rfc = reason(TerminateEncoding::Rfc);
        assert!(rfc.ends_with(" (2/0/0x06)") && !rfc.contains("siw"), "{rfc}");
        assert!(
            reason(TerminateEncoding::Siw)
                .ends_with("in the bytes of the Linux siw driver, which swaps layer and type")
        );
        // In the alternative interpretation it is an RDMAP error.
        let both = reason(TerminateEncoding::Ambiguous);
        assert!(
            both.contains("if the peer is the Linux siw driver") && both.contains("(0/2/0x06)"),
            "{both}"
        );
    }
}
