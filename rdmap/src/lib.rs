//! RDMAP, the protocol of Sends, Writes and Reads ([RFC 5040]), with the atomics and immediate data
//! of [RFC 7306]. **No I/O, no clock, no unsafe code**; `no_std` + `alloc`.
//!
//! ```text
//!   uiw_ddp::Header ──▶ StreamRx::admit ──▶ Opcode of the segment; DeliveryEffects of a Send
//!                          │
//!                          └▶ RdmapError ─┐
//!   ddp errors, mpa errors, protection ───┴▶ Fault ──▶ Terminate, the last message to be sent
//!
//!   Opcode ──▶ untagged_header / tagged_header ──▶ uiw_ddp::Header
//! ```
//!
//! [`wire`] has the formats and [`StreamRx`] the rules of a stream. [`Fault`] maps each error to
//! the Terminate that reports it.
//!
//! [RFC 5040]: https://www.rfc-editor.org/rfc/rfc5040
//! [RFC 7306]: https://www.rfc-editor.org/rfc/rfc7306

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

extern crate alloc;

pub mod fault;
mod opcode;
mod reason;
pub mod stream;
pub mod wire;

pub use fault::{DdpFault, Fault, MpaFault, ProtectionError, QuotedHeaders};
pub use opcode::{Opcode, QN_ATOMIC_RESPONSE, QN_READ, QN_SEND, QN_TERMINATE};
pub use reason::TerminateReason;
pub use stream::{
    DeliveryEffects, Extensions, RdmapError, StreamRx, send_imm_header, tagged_header,
    untagged_header,
};
pub use wire::{
    AtomicOp, AtomicRequest, AtomicResponse, Control, FormatError, HeaderCopy, ImmediateData,
    ReadRequest, Terminate, TerminateEncoding, TerminateTooShort,
};
