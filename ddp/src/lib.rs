//! DDP, direct data placement: [RFC 5041]. **No I/O, no clock, no unsafe code**; `no_std`.
//!
//! A DDP segment is one ULPDU of the layer below. It consists of a header, which states the
//! destination of the payload, and the payload.
//!
//! ```text
//!   ULPDU ──▶ Header::parse ──▶ Tagged:   STag, TO ──────▶ the ULP's Tagged Buffers
//!                          └──▶ Untagged: QN, MSN, MO ───▶ UntaggedRx::check ─▶ place ─▶ UntaggedRx::placed
//!
//!   segment of a message ──▶ Header::emit ──▶ ULPDU
//! ```
//!
//! Payload never passes through this crate: it checks where a payload may be placed, and the caller
//! places it.
//!
//! [RFC 5041]: https://www.rfc-editor.org/rfc/rfc5041

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod rx;
mod stag;
pub mod wire;

pub use rx::{DeliveredMessage, TaggedError, UntaggedError, UntaggedRx};
pub use stag::STag;
pub use wire::{Header, HeaderError, Tagged, Untagged};
