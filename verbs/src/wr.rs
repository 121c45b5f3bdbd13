//! Work requests, which an application posts to a queue pair.

use crate::ud::Destination;
use bitflags::bitflags;
use smallvec::SmallVec;
use uiw_ddp::STag;
use uiw_mem::Access;

/// Scatter/gather element: `length` bytes at `addr` in the region with the key `lkey`.
///
/// `addr` is a virtual address, or an offset for a zero-based region. The layout is that of
/// `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// STag of the region.
    pub lkey: STag,
}

/// Elements of a request. Most requests have one element, which needs no allocation.
pub(crate) type Sges = SmallVec<[Sge; 1]>;

/// Returns the element of a request that has exactly one element with bytes. Returns `None` for
/// other requests, and also if the element is stored in the allocation of an earlier request.
#[inline(always)]
pub(crate) fn single(stored: &Sges) -> Option<&Sge> {
    if stored.spilled() { None } else { stored.first() }
}

/// Replaces the stored elements by those of a request, without elements that have no bytes.
#[inline(always)]
pub(crate) fn store(stored: &mut Sges, sges: &[Sge]) {
    match sges {
        // The most frequent case, without further checks. An existing allocation is kept.
        [sge] if sge.length > 0 && !stored.spilled() => *stored = Sges::from_buf([*sge]),
        sges => {
            stored.clear();
            stored.extend(sges.iter().filter(|sge| sge.length > 0).copied());
        }
    }
}

bitflags! {
    /// Flags of a send request, with the values of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// The request starts only after all earlier Reads and atomics of this queue pair have
        /// completed.
        const FENCE = 1;
        /// The request produces a completion, on a queue pair that was created without
        /// `sq_sig_all`.
        const SIGNALED = 2;
        /// The message raises a solicited event at the receiver.
        const SOLICITED = 4;
        /// The data is copied during the call. Its memory need not be registered, and can be reused
        /// afterwards.
        const INLINE = 8;
    }
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// RDMA Write (RFC 5040 section 4.3).
    Write {
        /// Destination in the peer's memory.
        remote: Remote,
    },
    /// RDMA Write followed by Immediate Data (RFC 7306 section 6).
    WriteImm {
        /// Destination in the peer's memory.
        remote: Remote,
        /// Immediate data, as a number in host byte order.
        imm: u32,
    },
    /// RDMA Write of eight bytes, inline or not, that the programs of the peer see at once. Only
    /// between uiw peers, which place every aligned word atomically.
    AtomicWrite {
        /// Destination: eight aligned bytes in the peer's memory.
        remote: Remote,
    },
    /// Send (RFC 5040 section 4.6).
    Send,
    /// Datagram, on a UD queue pair.
    Datagram {
        /// Destination of the datagram.
        to: Destination,
        /// Immediate data, as a number in host byte order.
        imm: Option<u32>,
    },
    /// Send with Invalidate: the STag of the peer is invalidated before its receive completes.
    SendInvalidate {
        /// STag of the peer.
        stag: STag,
    },
    /// Send with immediate data, an extension between uiw peers (RDMAP opcode 15).
    SendImm {
        /// Immediate data.
        imm: u32,
    },
    /// RDMA Read into the local elements (RFC 5040 section 4.4).
    Read {
        /// Source in the peer's memory.
        remote: Remote,
        /// Local STag to invalidate once the Read has completed.
        invalidate: Option<STag>,
    },
    /// FetchAdd (RFC 7306 section 5.2). The local element receives the old value.
    FetchAdd {
        /// Eight aligned bytes in the peer's memory.
        remote: Remote,
        /// Addend.
        add: u64,
        /// Bit mask of the most significant bit of each field; a carry out of a field is dropped. 0
        /// selects one field of 64 bits.
        mask: u64,
    },
    /// CmpSwap (RFC 7306 section 5.3). The local element receives the old value.
    CmpSwap {
        /// Eight aligned bytes in the peer's memory.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Value that is stored if the comparison succeeds.
        swap: u64,
        /// Bits that are stored.
        swap_mask: u64,
    },
    /// Invalidates a local STag of a type 2 window or of fast-register memory.
    LocalInvalidate {
        /// STag to invalidate.
        stag: STag,
    },
    /// Binds a memory window.
    Bind(Bind),
    /// Assigns memory to a fast-register STag.
    FastRegister(FastRegister),
}

/// Address in the memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Tagged offset.
    pub addr: u64,
    /// STag of the peer.
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
    /// Current STag of the window.
    pub window: STag,
    /// STag after the bind, with the same index. For type 2, its key byte is taken from here; for
    /// type 1, the device chooses it.
    pub new_stag: STag,
    /// STag of the region to bind to.
    pub region: STag,
    /// First byte, as a tagged offset of the region.
    pub addr: u64,
    /// Length in bytes. 0 unbinds a type 1 window.
    pub length: u64,
    /// Access rights of the window.
    pub access: Access,
}

/// Arguments of a fast-register request. The memory must stay valid until the STag is invalidated
/// or freed, as [`crate::Qp::post_send`] requires.
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
    /// STag with the key byte to use.
    pub stag: STag,
    /// Address of the first byte in this process.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Tagged offset of the first byte, for peers.
    pub base: u64,
    /// Access rights.
    pub access: Access,
}

/// Request for a send queue.
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
    /// Number chosen by the application, returned with the completion.
    pub wr_id: u64,
    /// Operation to perform.
    pub op: SendOp,
    /// Local memory: the source of Writes and Sends, the destination of Reads and atomics.
    pub sges: &'a [Sge],
    /// Flags.
    pub flags: SendFlags,
}

/// Request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Number chosen by the application, returned with the completion.
    pub wr_id: u64,
    /// Memory for an incoming Send.
    pub sges: &'a [Sge],
}

impl SendOp {
    /// Returns whether the local elements are written (Reads and atomics).
    #[must_use]
    pub const fn writes_locally(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. } | Self::CmpSwap { .. })
    }

    /// Returns whether the request uses one of the ORD credits until its response has arrived.
    #[must_use]
    pub const fn needs_ord(&self) -> bool {
        self.writes_locally()
    }

    /// Returns whether an unreliable connection supports the operation.
    pub(crate) const fn may_be_unreliable(&self) -> bool {
        let sends = matches!(
            self,
            Self::Send | Self::SendImm { .. } | Self::Write { .. } | Self::WriteImm { .. }
        );
        sends || self.is_local()
    }

    /// Returns whether the operation is executed without the peer.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::Bind(_) | Self::FastRegister(_))
    }
}
