//! Registered memory: the only place where a handle (STag, offset, length) becomes a pointer.
//!
//! A device has a [`Table`] with all STags that refer to memory: regions, memory windows and
//! fast-register STags. The engine queries it for each segment ([`Table::remote`] for a peer,
//! [`Table::local`] for a local scatter/gather element) and gets a [`Span`], a checked handle
//! without an address. Addresses exist only while a span is pinned ([`Span::pin`]), and a region
//! does not end before its last pin is released.
//!
//! # Memory that a peer can access is never a Rust reference
//! A Write of the peer is executed by code of this process, on whichever thread drives the engine,
//! while the program may access the same bytes. Such a race is legal between an RNIC and a program.
//! Between two threads of one Rust program it is undefined behaviour, unless both sides use atomic
//! accesses. Hence:
//!
//! * **Shared** memory ([`Span::is_shared`]): copies consist of relaxed atomic accesses to
//!   naturally aligned words. The last bytes of a copy become visible last, because programs poll
//!   them.
//! * **Exclusive** memory: the caller of an `unsafe` function ([`Memory::borrowed`],
//!   [`Memory::exclusive`]) has guaranteed that only the engine accesses buffers in flight. Copies
//!   use `memcpy`, and [`PinnedSpan::update_crc`] copies nothing.
//!
//! # Memory that may become inaccessible
//! A C program may unmap registered memory ([`Memory::foreign`]). Copies of such memory use
//! [`recover`], and return [`MemoryGone`] if it is not accessible. [`Table::discard`] removes pages
//! from all regions before the program unmaps them, so that nothing is written to memory that is
//! mapped there later.
//!
//! # Who may use and invalidate an STag
//! | | used by | invalidated by a peer | invalidated by the program |
//! |---|---|---|---|
//! | region | all streams of its PD | no ([`Table::set_lenient_invalidate`]) | no: deregister it |
//! | window, type 1 | all streams of its PD | no | no: bind it again, or with length zero |
//! | window, type 2 | the stream that it is bound to | on that stream | on that stream |
//! | fast-register, for one stream | that stream | on that stream | yes |
//! | fast-register, PD-wide | all streams of its PD | no (lenient: yes) | yes |
//!
//! RFC 5040 8.1.1 item 7: "An RNIC MUST ensure that a Remote Peer is not able to invalidate an STag
//! enabled for remote access, if the STag is shared on multiple streams."

#![warn(missing_debug_implementations)]

mod access;
mod blocks;
mod copy;
mod error;
mod iovec;
mod memory;
mod page_state;
mod pin_count;
mod protected;
pub mod recover;
mod region;
mod span;
mod table;

pub use access::{Access, PdId, Right, StreamId, WindowType};
pub use blocks::{BLOCK_BYTES, BLOCK_WORDS, Block, BlockRef, Blocks};
#[doc(hidden)]
pub use copy::bench;
pub use error::{
    BindError, DeregisterError, FastRegisterError, InvalidateError, LocalError, MemoryGone,
    RegisterError, RemoteError, ReregError, Unaligned, UpdateError,
};
pub use iovec::{IoVec, IoVecMut};
pub use memory::{Memory, give_back_free_pages, share_arenas};
pub use page_state::PageState;
pub use region::Region;
pub use span::{PinnedSpan, Span};
pub use table::{Entry, EntryKind, Limits, MrCache, PinnedRegion, Rereg, Table, Window};
pub use uiw_ddp::STag;
