//! One variant for each rule that can be broken, carrying the value that broke it.

use uiw_ddp::STag;

use crate::{Access, PdId, Right, StreamId};

/// The region, window binding or fast registration behind a span was revoked, or a program has
/// unmapped bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory behind {stag} was deregistered, invalidated or unmapped")]
pub struct MemoryGone {
    /// The STag the span was resolved from.
    pub stag: STag,
}

/// An atomic operation on an address that is no multiple of eight (RFC 7306 5.1.1, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("atomic operation on {address:#x}, which is not 64-bit aligned")]
pub struct Unaligned {
    /// Address of the target byte.
    pub address: usize,
}

/// Reason why eight bytes were not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The address is no multiple of eight.
    #[error(transparent)]
    Unaligned(#[from] Unaligned),
    /// They are not there.
    #[error(transparent)]
    Gone(#[from] MemoryGone),
}

/// Reason why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The table is full.
    #[error("the device already has {max} memory keys, its maximum")]
    TooManyEntries {
        /// The table's bound.
        max: u32,
    },
    /// `ibv_reg_mr(3)`: remote write and remote atomic need local write.
    #[error("access {access}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    RemoteWriteNeedsLocalWrite {
        /// The rights asked for.
        access: Access,
    },
    /// The TO behind the last byte does not fit 64 bits, so RFC 5041 7.1 would refuse every access
    /// to that byte.
    #[error("{len} bytes from tagged offset {base:#x} run past 2^64")]
    TooHigh {
        /// TO of the first byte.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// The system gave no random bytes for the STag.
    #[error("no random bytes for an STag: {0}")]
    NoEntropy(getrandom::Error),
}

/// Reason why a region was not re-registered. The region is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReregError {
    /// No region with this STag.
    #[error("{stag} is not the key of a region")]
    InvalidStag {
        /// The STag given.
        stag: STag,
    },
    /// Windows are bound to it.
    #[error("{windows} memory windows are bound to {stag}")]
    WindowsBound {
        /// The region's STag.
        stag: STag,
        /// Number of windows.
        windows: u32,
    },
    /// The new rights or memory are illegal.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why a region was not deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeregisterError {
    /// No region or fast-register STag with this value.
    #[error("{stag} is not the key of a region")]
    InvalidStag {
        /// The STag given.
        stag: STag,
    },
    /// Windows are bound to it (`ibv_dereg_mr(3)`: EBUSY).
    #[error("{windows} memory windows are still bound to {stag}")]
    WindowsBound {
        /// The region's STag.
        stag: STag,
        /// Number of windows.
        windows: u32,
    },
}

/// Reason why a peer may not touch what it asked for: the checks of RFC 5041 7.1 and 8.2, RFC 5040
/// 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// No such STag, a stale key byte, or an STag that is in the invalid state.
    #[error("{stag} is not valid")]
    InvalidStag {
        /// The STag given.
        stag: STag,
    },
    /// The STag belongs to another protection domain or to another stream.
    #[error("{stag} is not associated with {stream} in {pd}")]
    NotAssociated {
        /// The STag given.
        stag: STag,
        /// The asking stream.
        stream: StreamId,
        /// Protection domain.
        pd: PdId,
    },
    /// The access is not entirely inside the TO range of the STag.
    #[error("bytes {to:#x} + {len} are outside of {stag}")]
    BaseOrBounds {
        /// The STag given.
        stag: STag,
        /// First TO.
        to: u64,
        /// Bytes.
        len: u32,
    },
    /// TO plus length wraps 2^64.
    #[error("tagged offset {to:#x} + {len} wraps (with {stag})")]
    ToWrap {
        /// The STag given.
        stag: STag,
        /// First TO.
        to: u64,
        /// Bytes.
        len: u32,
    },
    /// The STag does not grant this.
    #[error("{stag} grants {access}, not remote {right}")]
    AccessRights {
        /// The STag given.
        stag: STag,
        /// Right that the access needs.
        right: Right,
        /// Rights that the STag grants.
        access: Access,
    },
}

/// Reason why a scatter/gather element of ours is illegal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalError {
    /// No region with this key (windows have no local key).
    #[error("local key {lkey} is not valid")]
    InvalidLkey {
        /// The key given.
        lkey: STag,
    },
    /// A region of another protection domain.
    #[error("local key {lkey} belongs to {owner}, not to {pd}")]
    ProtectionDomain {
        /// The key given.
        lkey: STag,
        /// The region's protection domain.
        owner: PdId,
        /// The protection domain that asked.
        pd: PdId,
    },
    /// The element is not entirely inside the region.
    #[error("bytes {addr:#x} + {len} are outside of the region with local key {lkey}")]
    OutOfRange {
        /// The key given.
        lkey: STag,
        /// First address (or offset, for a zero-based region).
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The element is to be written, the region lacks LOCAL_WRITE.
    #[error("the region with local key {lkey} has no LOCAL_WRITE right")]
    NotWritable {
        /// The key given.
        lkey: STag,
    },
}

/// Reason why a memory window was not bound (`ibv_bind_mw(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The window was deallocated, or is a fast-register STag.
    #[error("{stag} is not a memory window of this device")]
    NotAWindow {
        /// The window's STag.
        stag: STag,
    },
    /// The region was deregistered, is no plain region, or belongs to another device.
    #[error("{stag} is not a live region of this device")]
    NotARegion {
        /// The region's STag.
        stag: STag,
    },
    /// Window and region belong to different protection domains.
    #[error("the window belongs to {window}, the region to {region}")]
    ProtectionDomain {
        /// The window's.
        window: PdId,
        /// The region's.
        region: PdId,
    },
    /// The region was registered without MW_BIND.
    #[error("region {stag} has no MW_BIND right")]
    NoBindRight {
        /// The region's STag.
        stag: STag,
    },
    /// The window may grant peers only what changes a region with LOCAL_WRITE.
    #[error("window access {access}: region {stag} has no LOCAL_WRITE right")]
    RegionNotWritable {
        /// The region's STag.
        stag: STag,
        /// The rights asked for.
        access: Access,
    },
    /// A window grants remote rights (and may be zero-based), nothing else.
    #[error("window access {access}: only REMOTE_* and ZERO_BASED are possible")]
    Access {
        /// The rights asked for.
        access: Access,
    },
    /// The range is not entirely inside the region.
    #[error("bytes {to:#x} + {len} are outside of region {stag}")]
    OutOfRange {
        /// The region's STag.
        stag: STag,
        /// First TO.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// A type 2 window is bound already; it must be invalidated first.
    #[error("type 2 window {stag} is bound; invalidate it first")]
    AlreadyBound {
        /// The window's STag.
        stag: STag,
    },
    /// A type 2 window is bound to a stream; none was given.
    #[error("type 2 window {stag} needs a stream to be bound to")]
    StreamMissing {
        /// The window's STag.
        stag: STag,
    },
    /// A type 2 window is not revoked by a bind of length zero, and could grant nothing.
    #[error("type 2 window {stag} cannot be bound with length zero")]
    ZeroLength {
        /// The window's STag.
        stag: STag,
    },
}

/// Reason why a fast registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FastRegisterError {
    /// The STag was deallocated, or is a window.
    #[error("{stag} is not a fast-register STag of this device")]
    NotFastRegister {
        /// The STag given.
        stag: STag,
    },
    /// It is valid; it must be invalidated first.
    #[error("{stag} is valid; invalidate it first")]
    AlreadyValid {
        /// Current value of the STag.
        stag: STag,
    },
    /// More bytes than it was allocated for.
    #[error("{len} bytes, {stag} was allocated for {max}")]
    TooLong {
        /// The STag.
        stag: STag,
        /// Bytes given.
        len: u64,
        /// Maximum.
        max: u64,
    },
    /// The rights or the memory are illegal.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why an STag was not invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidateError {
    /// No such STag, a stale key byte, or (for a peer) an STag that is in the invalid state
    /// already.
    #[error("{stag} is not valid")]
    InvalidStag {
        /// The STag given.
        stag: STag,
    },
    /// The STag belongs to another protection domain or to another stream.
    #[error("{stag} is not associated with {stream} in {pd}")]
    NotAssociated {
        /// The STag given.
        stag: STag,
        /// The asking stream.
        stream: StreamId,
        /// Protection domain.
        pd: PdId,
    },
    /// STags of this kind are not invalidated this way: a region, a type 1 window, or (for a peer)
    /// what several streams share (RFC 5040 8.1.1 item 7).
    #[error("{stag} ({what}) cannot be invalidated")]
    CannotInvalidate {
        /// The STag given.
        stag: STag,
        /// Kind of object that the STag names.
        what: &'static str,
    },
}
