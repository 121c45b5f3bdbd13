//! Requests that a stream sends.

use uiw_ddp::STag;

/// Address in the memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// STag of the peer.
    pub stag: STag,
    /// Tagged offset of the first byte.
    pub to: u64,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// RDMA Write (RFC 5040 section 4.3).
    Write {
        /// Destination in the peer's memory.
        remote: Remote,
    },
    /// RDMA Write followed by Immediate Data (RFC 7306 section 6).
    WriteImm {
        /// Destination in the peer's memory.
        remote: Remote,
        /// Immediate data.
        imm: u32,
    },
    /// RDMA Write of eight bytes, all of which become visible to the programs of the peer at once.
    /// Supported only between uiw peers.
    AtomicWrite {
        /// Eight aligned bytes in the peer's memory.
        remote: Remote,
    },
    /// Send (RFC 5040 section 4.6).
    Send,
    /// Send with Invalidate.
    SendInvalidate {
        /// STag of the peer that is invalidated.
        stag: STag,
    },
    /// Send with immediate data, an extension between uiw peers ([`uiw_rdmap::Opcode::SendImm`]).
    SendImm {
        /// Immediate data.
        imm: u32,
    },
    /// RDMA Read (RFC 5040 section 4.4).
    Read {
        /// Source in the peer's memory.
        remote: Remote,
        /// STag that the host invalidates when the Read completes.
        invalidate: Option<STag>,
    },
    /// FetchAdd (RFC 7306 section 5.2).
    FetchAdd {
        /// Eight aligned bytes in the peer's memory.
        remote: Remote,
        /// Addend.
        add: u64,
        /// Mask whose set bits are the most significant bits of the fields. The carry out of a
        /// field is dropped. 0 selects one field of 64 bits.
        mask: u64,
    },
    /// CmpSwap (RFC 7306 section 5.3).
    CmpSwap {
        /// Eight aligned bytes in the peer's memory.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Mask of the bits that are compared.
        compare_mask: u64,
        /// Value that is stored if the comparison succeeds.
        swap: u64,
        /// Mask of the bits that are stored.
        swap_mask: u64,
    },
    /// Request that sends nothing. The host executes it when all requests before it have been
    /// started ([`crate::StreamHost::execute_local`]).
    Local,
}

impl Op {
    /// Returns whether the operation uses one of the ORD credits until its response has arrived.
    #[must_use]
    pub const fn needs_ord(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. } | Self::CmpSwap { .. })
    }
}

/// Posted request.
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
    /// Identifier of the request in calls of [`crate::StreamHost`]. Consecutive requests have
    /// consecutive ids.
    pub id: u32,
    /// Operation to perform.
    pub op: Op,
    /// Number of payload bytes that are sent, or that a Read requests.
    pub len: u32,
    /// True if the request starts only after all earlier Reads and atomics have completed.
    pub fence: bool,
    /// True if the message raises a solicited event at the receiver.
    pub solicited: bool,
    /// True if the host has copied the payload while posting. [`crate::StreamHost::copy_request`]
    /// returns the copy.
    pub inline: bool,
}
