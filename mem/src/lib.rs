//! Registered memory: the one place where a handle (STag, offset, length) becomes a pointer.
//!
//! A [`Table`] (one per device) has every STag that stands for memory: regions, memory windows and
//! fast-register STags. The engine asks it per segment ([`Table::remote`] for a peer,
//! [`Table::local`] for a scatter/gather element of ours) and gets a [`Span`]: a checked handle
//! that still holds no address. Only while a span is pinned ([`Span::pin`]) do addresses exist, and
//! a region is not gone before its last pin is.
//!
//! # Memory a peer can reach is never a Rust reference
//! The peer's Write is executed by code of this very process, in whatever thread drives the engine,
//! while the program looks at the same bytes. That race is legal between an RNIC and a program;
//! between two threads of one Rust program it is undefined behaviour, unless both sides use atomic
//! accesses. Hence:
//!
//! * **Shared** memory ([`Span::is_shared`]): every copy is made of relaxed atomic accesses of
//!   naturally aligned words, and the last bytes of a copy become visible last, since programs spin
//!   on them.
//! * **Exclusive** memory: a caller of an `unsafe` function ([`Memory::borrowed`],
//!   [`Memory::exclusive`]) promised that an in-flight buffer belongs to the engine; there a copy
//!   is `memcpy` and [`PinnedSpan::fold`] copies nothing.
//!
//! # Memory that may not be there
//! What a program in C has registered it may unmap ([`Memory::foreign`]). The copies of such memory
//! are those of [`recover`], which end with [`MemoryGone`] where it is not there;
//! [`Table::discard`] takes bytes out of every region before the program unmaps them, so that what
//! is mapped there next is not written.
//!
//! # Which access each STag allows
//! | | reachable for | a peer may invalidate it | the program may invalidate it |
//! |---|---|---|---|
//! | region | all streams of its PD | no ([`Table::set_lenient_invalidate`]) | no, deregister it |
//! | window, type 1 | all streams of its PD | no | no, bind it anew or with length zero |
//! | window, type 2 | the one stream it is bound to | yes, that stream's | yes, on that stream |
//! | fast-register, for one stream | that stream | yes, that stream's | yes |
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
    BindError, DeregisterError, FastRegisterError, InvalidateError, LocalError, MemoryGone, RegisterError,
    RemoteError, ReregError, Unaligned, UpdateError,
};
pub use iovec::{IoVec, IoVecMut};
pub use memory::{Memory, give_back_free_pages, share_arenas};
pub use page_state::PageState;
pub use region::Region;
pub use span::{PinnedSpan, Span};
pub use table::{Entry, EntryKind, HeldRegion, Limits, MrCache, Rereg, Table, Window};
pub use uiw_ddp::STag;
