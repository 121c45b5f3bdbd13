//! MPA, the framing that carries DDP segments over a TCP byte stream: [RFC 5044] with the enhanced
//! connection establishment of [RFC 6581]. **No I/O, no clock, no unsafe code**; `no_std` +
//! `alloc`.
//!
//! ```text
//!   TCP stream                                                             DDP
//!   ──────────                                                             ───
//!   MPA Request ─────▶ Responder::request ─▶ Request ─▶ accept / reject
//!   MPA Reply  ◀───── (bytes of accept)                └─▶ Negotiated
//!                      Initiator::request / reply ──────────▶ Negotiated
//!
//!   FPDU FPDU ... ───▶ FpduRx::next ───▶ Fpdu { ulpdu: Verified } ─────────▶ segment
//!   FPDU FPDU ... ◀─── FpduTx::seal / header + trailer ◀──────────────────── segment
//! ```
//!
//! A connection starts with one Request and one Reply ([`startup`], formats in [`wire`]). The
//! result of this exchange is a [`startup::Negotiated`]. After it, each direction is a sequence of
//! FPDUs: an [`rx::FpduRx`] parses the received ones, and a [`tx::FpduTx`] builds those to send.
//!
//! All buffers belong to the caller, and nothing is allocated after startup.
//!
//! # Features
//! With `std` (on by default), CRC32C uses the widest vector instructions of the machine
//! (`uiw-crc32c`). Without it, a table-driven CRC works on any target. Nothing else changes.
//!
//! [RFC 5044]: https://www.rfc-editor.org/rfc/rfc5044
//! [RFC 6581]: https://www.rfc-editor.org/rfc/rfc6581

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

extern crate alloc;

mod marker;
pub mod rx;
mod size;
pub mod startup;
pub mod tx;
pub mod wire;

pub use rx::{Fpdu, FpduError, FpduRx, Step, Verified, VerifiedBuf};
pub use size::{MAX_FPDU_ON_WIRE, MAX_ULPDU, MIN_FPDU, MIN_MULPDU, fpdu_len, mulpdu, pad_len};
pub use tx::{FpduTx, Trailer};
pub use uiw_crc32c::{Crc32c, crc32c};
