//! One RDMAP stream ([RFC 5040] section 2), from the start-up frames to the Terminate and the last
//! byte. **No I/O, no clock, no thread, no unsafe code**; `no_std` + `alloc`.
//!
//! ```text
//!   transport                 stream                                             host
//!   ─────────                 ──────                                             ────
//!   received ─▶ handle_bytes ─▶ Receiver: mpa ─▶ ddp ─▶ rdmap ─────────▶ write, place, receive, answered
//!   FIN      ─▶ handle_eof                         │ answers due
//!                                                  ▼
//!   to send  ◀─ poll_transmit ◀─ Sender:  mpa ◀─ ddp ◀─ rdmap ◀──────── next_request, request_payload
//!   taken    ─▶ handle_sent ───────────────────────────────────────────▶ sent
//!   clock    ─▶ handle_timeout ◀─ poll_timeout
//!                              poll_event ─▶ Requested, Established, Ended, ...
//! ```
//!
//! A [`RdmapStream`] belongs to one connection of TCP. The program around it implements
//! [`StreamHost`]: the memory that the peer reaches, the queues of requests and receives, and their
//! completions. Bytes are verified and placed where they lie in the caller's buffer, and payloads
//! are sent from the host's memory ([`Piece::Memory`]).
//!
//! `examples/embed_stream.rs` is a whole peer over any reader and writer,
//! `examples/embed_smoltcp.rs` one within a loop of smoltcp.
//!
//! [RFC 5040]: https://www.rfc-editor.org/rfc/rfc5040

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

extern crate alloc;
// `tests/common`, which is also a part of the unit tests, refers to this crate by this name.
#[cfg(test)]
extern crate self as uiw_stream;

mod acks;
mod capabilities;
mod close;
mod config;
mod error;
mod event;
mod host;
#[cfg(test)]
mod msn_wrap;
mod placement;
mod reads;
mod receiver;
mod request;
mod sender;
mod shared;
mod startup;
mod stream;
mod time;
mod timers;
mod unreliable;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub use capabilities::{Capabilities, CapabilityExchange, PeerKind};
pub use config::{FpduSize, FpduSizeError, RdmapConfig, StableTx};
pub use error::{AccessError, AtomicError, ConnError, LocalError, RequestRefusal, StartupFailure};
pub use event::{AffectedRequest, EstablishedStream, Event, StreamEnd};
pub use host::{
    Payload, ReceiveError, ReceivedKind, ReceivedMessage, ResponsePart, SourceGone, StreamHost,
    Traffic, Wait,
};
pub use reads::QuotedSegment;
pub use request::{Op, Remote, Request};
pub use sender::{Batch, BatchLength, MAX_BUFFER, Piece, USUAL_BUFFER};
pub use stream::{RdmapStream, Transmit};
pub use time::Time;
