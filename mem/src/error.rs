//! Errors. Each variant stands for one violated rule and contains the invalid value.

use uiw_ddp::STag;

use crate::{Access, PdId, Right, StreamId};

/// The region, window binding or fast registration of a span was revoked, or a program has unmapped
/// some of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory behind {stag} was deregistered, invalidated or unmapped")]
pub struct MemoryGone {
    /// STag through which the span was resolved.
    pub stag: STag,
}

/// The address of an atomic operation is not a multiple of eight (RFC 7306 5.1.1, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("atomic operation on {address:#x}, which is not 64-bit aligned")]
pub struct Unaligned {
    /// Address of the operation.
    pub address: usize,
}

/// Reason why an atomic operation on eight bytes failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The address is not a multiple of eight.
    #[error(transparent)]
    Unaligned(#[from] Unaligned),
    /// The bytes are not accessible.
    #[error(transparent)]
    Gone(#[from] MemoryGone),
}

/// Reason why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The table is full.
    #[error("the device already has {max} memory keys, its maximum")]
    TooManyEntries {
        /// Maximum number of entries.
        max: u32,
    },
    /// `ibv_reg_mr(3)`: remote write and remote atomic require local write.
    #[error("access {access}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    RemoteWriteNeedsLocalWrite {
        /// Requested rights.
        access: Access,
    },
    /// The TO after the last byte does not fit into 64 bits, so that RFC 5041 7.1 would refuse
    /// every access to the last byte.
    #[error("{len} bytes from tagged offset {base:#x} run past 2^64")]
    TooHigh {
        /// TO of the first byte.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The system has provided no random bytes for the STag.
    #[error("no random bytes for an STag: {0}")]
    NoEntropy(getrandom::Error),
}

/// Reason why a region was not re-registered. The region is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReregError {
    /// There is no region with this STag.
    #[error("{stag} is not the key of a region")]
    InvalidStag {
        /// Requested STag.
        stag: STag,
    },
    /// Windows are bound to the region.
    #[error("{windows} memory windows are bound to {stag}")]
    WindowsBound {
        /// STag of the region.
        stag: STag,
        /// Number of windows.
        windows: u32,
    },
    /// The new protection domain belongs to another device.
    #[error("the protection domain belongs to another device")]
    OtherDevice,
    /// The new rights or memory are invalid.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why a region was not deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeregisterError {
    /// There is no region or fast-register STag with this value.
    #[error("{stag} is not the key of a region")]
    InvalidStag {
        /// Requested STag.
        stag: STag,
    },
    /// Windows are bound to the region (`ibv_dereg_mr(3)`: EBUSY).
    #[error("{windows} memory windows are still bound to {stag}")]
    WindowsBound {
        /// STag of the region.
        stag: STag,
        /// Number of windows.
        windows: u32,
    },
}

/// Reason why a peer may not access memory, according to RFC 5041 7.1 and 8.2, and RFC 5040 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// There is no such STag, its key byte is stale, or it is in the invalid state.
    #[error("{stag} is not valid")]
    InvalidStag {
        /// Requested STag.
        stag: STag,
    },
    /// The STag belongs to another protection domain or to another stream.
    #[error("{stag} is not associated with {stream} in {pd}")]
    NotAssociated {
        /// Requested STag.
        stag: STag,
        /// Stream of the request.
        stream: StreamId,
        /// Protection domain of the request.
        pd: PdId,
    },
    /// The access is not entirely within the TO range of the STag.
    #[error("bytes {to:#x} + {len} are outside of {stag}")]
    BaseOrBounds {
        /// Requested STag.
        stag: STag,
        /// First TO.
        to: u64,
        /// Length in bytes.
        len: u32,
    },
    /// TO plus length exceeds 64 bits.
    #[error("tagged offset {to:#x} + {len} wraps (with {stag})")]
    ToWrap {
        /// Requested STag.
        stag: STag,
        /// First TO.
        to: u64,
        /// Length in bytes.
        len: u32,
    },
    /// The STag does not grant the access right.
    #[error("{stag} grants {access}, not remote {right}")]
    AccessRights {
        /// Requested STag.
        stag: STag,
        /// Right that the access requires.
        right: Right,
        /// Rights that the STag grants.
        access: Access,
    },
}

/// Reason why a local scatter/gather element is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// There is no region with this key. Windows have no local key.
    #[error("local key {lkey} is not valid")]
    InvalidLkey {
        /// Requested key.
        lkey: STag,
    },
    /// The region belongs to another protection domain.
    #[error("local key {lkey} belongs to {owner}, not to {pd}")]
    ProtectionDomain {
        /// Requested key.
        lkey: STag,
        /// Protection domain of the region.
        owner: PdId,
        /// Protection domain of the request.
        pd: PdId,
    },
    /// The element is not entirely within the region.
    #[error("bytes {addr:#x} + {len} are outside of the region with local key {lkey}")]
    OutOfRange {
        /// Requested key.
        lkey: STag,
        /// First address, or offset for a zero-based region.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The element is to be written, and the region lacks LOCAL_WRITE.
    #[error("the region with local key {lkey} has no LOCAL_WRITE right")]
    NotWritable {
        /// Requested key.
        lkey: STag,
    },
}

/// Reason why a memory window was not bound (`ibv_bind_mw(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The window was deallocated, or is a fast-register STag.
    #[error("{stag} is not a memory window of this device")]
    NotAWindow {
        /// STag of the window.
        stag: STag,
    },
    /// The region was deregistered, is not a plain region, or belongs to another device.
    #[error("{stag} is not a live region of this device")]
    NotARegion {
        /// STag of the region.
        stag: STag,
    },
    /// Window and region belong to different protection domains.
    #[error("the window belongs to {window}, the region to {region}")]
    ProtectionDomain {
        /// Protection domain of the window.
        window: PdId,
        /// Protection domain of the region.
        region: PdId,
    },
    /// The region was registered without MW_BIND.
    #[error("region {stag} has no MW_BIND right")]
    NoBindRight {
        /// STag of the region.
        stag: STag,
    },
    /// The rights would let peers modify a region without LOCAL_WRITE.
    #[error("window access {access}: region {stag} has no LOCAL_WRITE right")]
    RegionNotWritable {
        /// STag of the region.
        stag: STag,
        /// Requested rights.
        access: Access,
    },
    /// The rights include some that are neither remote rights nor ZERO_BASED.
    #[error("window access {access}: only REMOTE_* and ZERO_BASED are possible")]
    Access {
        /// Requested rights.
        access: Access,
    },
    /// The range is not entirely within the region.
    #[error("bytes {to:#x} + {len} are outside of region {stag}")]
    OutOfRange {
        /// STag of the region.
        stag: STag,
        /// First TO.
        to: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A type 2 window is already bound; it must be invalidated first.
    #[error("type 2 window {stag} is bound; invalidate it first")]
    AlreadyBound {
        /// STag of the window.
        stag: STag,
    },
    /// A type 2 window must be bound to a stream, but none was given.
    #[error("type 2 window {stag} needs a stream to be bound to")]
    StreamMissing {
        /// STag of the window.
        stag: STag,
    },
    /// The length is zero, which a type 2 window does not support.
    #[error("type 2 window {stag} cannot be bound with length zero")]
    ZeroLength {
        /// STag of the window.
        stag: STag,
    },
}

/// Reason why a fast registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FastRegisterError {
    /// The STag was deallocated, or is a window.
    #[error("{stag} is not a fast-register STag of this device")]
    NotFastRegister {
        /// Requested STag.
        stag: STag,
    },
    /// The STag is valid; it must be invalidated first.
    #[error("{stag} is valid; invalidate it first")]
    AlreadyValid {
        /// Current value of the STag.
        stag: STag,
    },
    /// The memory is longer than the length for which the STag was allocated.
    #[error("{len} bytes, {stag} was allocated for {max}")]
    TooLong {
        /// Requested STag.
        stag: STag,
        /// Length in bytes.
        len: u64,
        /// Maximum length in bytes.
        max: u64,
    },
    /// The rights or the memory are invalid.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why an STag was not invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidateError {
    /// There is no such STag, its key byte is stale, or (for a peer) it is already in the invalid
    /// state.
    #[error("{stag} is not valid")]
    InvalidStag {
        /// Requested STag.
        stag: STag,
    },
    /// The STag belongs to another protection domain or to another stream.
    #[error("{stag} is not associated with {stream} in {pd}")]
    NotAssociated {
        /// Requested STag.
        stag: STag,
        /// Stream of the request.
        stream: StreamId,
        /// Protection domain of the request.
        pd: PdId,
    },
    /// This kind of STag cannot be invalidated: a region, a type 1 window, or (for a peer) an STag
    /// that several streams share (RFC 5040 8.1.1 item 7).
    #[error("{stag} ({what}) cannot be invalidated")]
    CannotInvalidate {
        /// Requested STag.
        stag: STag,
        /// Kind of the object.
        what: &'static str,
    },
}
