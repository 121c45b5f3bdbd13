//! Work requests: what an application asks a queue pair to do.

use crate::ud::Destination;
use bitflags::bitflags;
use smallvec::SmallVec;
use uiw_ddp::STag;
use uiw_mem::Access;

/// One scatter/gather element: `length` bytes at `addr` in the region named by `lkey`.
///
/// `addr` is a virtual address, or an offset for a zero-based region. The layout is that of
/// `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The region's STag.
    pub lkey: STag,
}

/// Elements of a request. Most requests have one, which needs no allocation.
pub(crate) type Sges = SmallVec<[Sge; 1]>;

/// The element of a request that has one, unless it is in an allocation that an earlier request
/// needed.
#[inline(always)]
pub(crate) fn single(stored: &Sges) -> Option<&Sge> {
    if stored.spilled() { None } else { stored.first() }
}

/// Stores the elements of a request that have bytes in place of others.
#[inline(always)]
pub(crate) fn store(stored: &mut Sges, sges: &[Sge]) {
    match sges {
        // The most frequent case, without the checks of the others. An allocation is kept.
        [sge] if sge.length > 0 && !stored.spilled() => *stored = Sges::from_buf([*sge]),
        sges => {
            stored.clear();
            stored.extend(sges.iter().filter(|sge| sge.length > 0).copied());
        }
    }
}

bitflags! {
    /// Flags of a send work request; the values of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Starts only when every earlier Read and atomic of this queue pair has completed.
        const FENCE = 1;
        /// Produces a completion (on a queue pair created without `sq_sig_all`).
        const SIGNALED = 2;
        /// Raises a solicited event at the receiver.
        const SOLICITED = 4;
        /// The data is copied while posting; the memory need not be registered and is free at
        /// return.
        const INLINE = 8;
    }
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// RDMA Write (RFC 5040 section 4.4).
    Write {
        /// The peer's memory.
        remote: Remote,
    },
    /// RDMA Write followed by Immediate Data (RFC 7306 section 6).
    WriteImm {
        /// The peer's memory.
        remote: Remote,
        /// The immediate, as the application's number.
        imm: u32,
    },
    /// RDMA Write of eight bytes, inline or not, which the peer's programs see all at once: what
    /// our own peers do with every aligned word, so only between uiw peers.
    AtomicWrite {
        /// Eight aligned bytes of the peer's.
        remote: Remote,
    },
    /// Send (RFC 5040 section 4.3).
    Send,
    /// A datagram, on a UD queue pair.
    Datagram {
        /// Destination of the datagram.
        to: Destination,
        /// The immediate, as the application's number.
        imm: Option<u32>,
    },
    /// Send with Invalidate: the peer's STag is invalidated before its receive completes.
    SendInvalidate {
        /// The peer's STag.
        stag: STag,
    },
    /// Send with immediate: an extension between uiw peers (RDMAP opcode 15).
    SendImm {
        /// The immediate.
        imm: u32,
    },
    /// RDMA Read into the local elements (RFC 5040 section 4.4).
    Read {
        /// The peer's memory.
        remote: Remote,
        /// Invalidate this STag of ours when the Read has completed.
        invalidate: Option<STag>,
    },
    /// FetchAdd (RFC 7306 section 5.2): the old value lands in the local element.
    FetchAdd {
        /// Eight aligned bytes of the peer's.
        remote: Remote,
        /// Addend.
        add: u64,
        /// A one marks the top bit of a field; its carry is dropped. 0 = one 64-bit field.
        mask: u64,
    },
    /// CmpSwap (RFC 7306 section 5.3): the old value lands in the local element.
    CmpSwap {
        /// Eight aligned bytes of the peer's.
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
    /// Invalidates a type 2 window or fast-register STag of ours.
    LocalInvalidate {
        /// The STag.
        stag: STag,
    },
    /// Binds a memory window.
    Bind(Bind),
    /// Gives a fast-register STag its memory.
    FastRegister(FastRegister),
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Tagged offset.
    pub addr: u64,
    /// The peer's STag.
    pub rkey: STag,
}

/// Arguments of a window bind.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = raw()?;
/// use uiw::raw::{Access, Bind, STag, SendFlags, SendOp, SendWr, WindowType};
/// let window = server.pd.alloc_window(WindowType::Two)?;
/// let new_stag = STag::from_parts(window.stag().index(), window.stag().key().wrapping_add(1));
/// let bind = Bind {
///     window: window.stag(),
///     new_stag,
///     region: server.memory.rkey(),
///     addr: server.memory.addr(),
///     length: 64,
///     access: Access::REMOTE_READ,
/// };
/// let request = SendWr { wr_id: 1, op: SendOp::Bind(bind), sges: &[], flags: SendFlags::SIGNALED };
/// // SAFETY: a bind names no memory of its own, and the region is kept until after the queue pair.
/// unsafe { server.qp.post_send([request])? };
/// assert_eq!(server.completion().status, uiw::raw::WcStatus::Success);
/// assert_eq!(window.stag(), new_stag);
/// # let _ = &client;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's present STag.
    pub window: STag,
    /// The STag it has afterwards: same index; type 2 takes the consumer's key byte from here, type
    /// 1 is given one.
    pub new_stag: STag,
    /// The region under it.
    pub region: STag,
    /// First byte, in the region's tagged offsets.
    pub addr: u64,
    /// Bytes; 0 revokes a type 1 window.
    pub length: u64,
    /// Rights of the window.
    pub access: Access,
}

/// Arguments of a fast-register request. The memory must stay valid until the STag is invalidated
/// or freed: part of the contract of [`crate::Qp::post_send`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = raw()?;
/// use uiw::raw::{Access, FastRegister, SendFlags, SendOp, SendWr, WcStatus};
/// let (memory, fast) = (vec![0u8; 4096], server.pd.alloc_fast(4096)?);
/// let register = FastRegister {
///     stag: fast.stag(),
///     addr: memory.as_ptr() as u64,
///     length: 4096,
///     base: 0,
///     access: Access::REMOTE_READ,
/// };
/// let request = SendWr { wr_id: 1, op: SendOp::FastRegister(register), sges: &[], flags: SendFlags::SIGNALED };
/// // SAFETY: the vector is kept until the STag ends with `fast`.
/// unsafe { server.qp.post_send([request])? };
/// assert_eq!(server.completion().status, WcStatus::Success);
/// drop(fast);
/// # drop(memory);
/// # let _ = &client;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The STag with the consumer's key byte.
    pub stag: STag,
    /// Address of the first byte in this process.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Tagged offset of the first byte as peers see it.
    pub base: u64,
    /// Rights.
    pub access: Access,
}

/// A request for the send queue.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// # let [client, server] = raw()?;
/// use uiw::raw::{SendFlags, SendOp, SendWr};
/// let sges = [client.sge(0, 8)];
/// let write = SendOp::Write { remote: server.memory.remote().into() };
/// let request = SendWr { wr_id: 7, op: write, sges: &sges, flags: SendFlags::SIGNALED };
/// // SAFETY: the client keeps its memory, which is the engine's, until after its queue pair.
/// unsafe { client.qp.post_send([request])? };
/// assert_eq!(client.completion().wr_id, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's own number, returned with the completion.
    pub wr_id: u64,
    /// Operation to perform.
    pub op: SendOp,
    /// Local memory: source of Write and Send, target of Read and atomics.
    pub sges: &'a [Sge],
    /// Flags.
    pub flags: SendFlags,
}

/// A request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The application's own number, returned with the completion.
    pub wr_id: u64,
    /// Memory for an inbound Send.
    pub sges: &'a [Sge],
}

impl SendOp {
    /// Returns whether its local elements are written (Read, atomics) instead of read.
    #[must_use]
    pub const fn writes_locally(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. } | Self::CmpSwap { .. })
    }

    /// Returns whether it takes one of the ORD credits until its answer has come.
    #[must_use]
    pub const fn needs_ord(&self) -> bool {
        self.writes_locally()
    }

    /// Returns whether an unreliable connection has it.
    pub(crate) const fn may_be_unreliable(&self) -> bool {
        let sends =
            matches!(self, Self::Send | Self::SendImm { .. } | Self::Write { .. } | Self::WriteImm { .. });
        sends || self.is_local()
    }

    /// Returns whether it never leaves this machine.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::Bind(_) | Self::FastRegister(_))
    }
}
