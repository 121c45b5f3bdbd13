//! Requests that a stream sends.

use uiw_ddp::STag;

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The peer's STag.
    pub stag: STag,
    /// Tagged offset of the first byte.
    pub to: u64,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// RDMA Write (RFC 5040 section 4.4).
    Write {
        /// The peer's memory.
        remote: Remote,
    },
    /// RDMA Write followed by Immediate Data (RFC 7306 section 6).
    WriteImm {
        /// The peer's memory.
        remote: Remote,
        /// The immediate.
        imm: u32,
    },
    /// RDMA Write of eight bytes that the peer's programs see all at once: between uiw peers.
    AtomicWrite {
        /// Eight aligned bytes of the peer's memory.
        remote: Remote,
    },
    /// Send (RFC 5040 section 4.3).
    Send,
    /// Send with Invalidate.
    SendInvalidate {
        /// The peer's STag.
        stag: STag,
    },
    /// Send with immediate: an extension between uiw peers ([`uiw_rdmap::Opcode::SendImm`]).
    SendImm {
        /// The immediate.
        imm: u32,
    },
    /// RDMA Read (RFC 5040 section 4.4).
    Read {
        /// The peer's memory.
        remote: Remote,
        /// The host invalidates this STag when the Read completes.
        invalidate: Option<STag>,
    },
    /// FetchAdd (RFC 7306 section 5.2).
    FetchAdd {
        /// Eight aligned bytes of the peer's memory.
        remote: Remote,
        /// The addend.
        add: u64,
        /// A one marks the top bit of a field, whose carry is dropped. 0: one field of 64 bits.
        mask: u64,
    },
    /// CmpSwap (RFC 7306 section 5.3).
    CmpSwap {
        /// Eight aligned bytes of the peer's memory.
        remote: Remote,
        /// Value compared with.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Value stored on a match.
        swap: u64,
        /// Bits that are stored.
        swap_mask: u64,
    },
    /// Sends nothing: the host executes it in its turn ([`crate::StreamHost::execute_local`]).
    Local,
}

impl Op {
    /// Returns whether it takes one of the ORD credits until its answer has come.
    #[must_use]
    pub const fn needs_ord(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. } | Self::CmpSwap { .. })
    }
}

/// A posted request.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/peer.rs"));
/// # fn main() {
/// // `End` and the functions are those of the example of `StreamHost`.
/// let now = Time::default();
/// let mut ends = established(now);
/// ends[1].host.receives.push_back(64);
/// let request = Request { id: 0, op: Op::Send, len: 5, fence: false, solicited: true, inline: false };
/// ends[0].host.requests.push((request, b"bytes".to_vec()));
/// ends[0].stream.doorbell();
/// carry(&mut ends, now);
/// assert!(ends[1].host.received[0].0.solicited);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request in calls of [`crate::StreamHost`]. Consecutive requests have consecutive
    /// numbers.
    pub id: u32,
    /// Operation to perform.
    pub op: Op,
    /// Bytes of its payload: those sent, or those that a Read asks for.
    pub len: u32,
    /// Starts only when every earlier Read and atomic has completed.
    pub fence: bool,
    /// Raises a solicited event at the receiver.
    pub solicited: bool,
    /// True if the payload is a copy that the host made while posting, which
    /// [`crate::StreamHost::copy_request`] gives.
    pub inline: bool,
}
