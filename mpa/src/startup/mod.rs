//! The startup dialogue: one Request, one Reply, and what they agree on (RFC 5044 section 7.1, RFC 6581).
//!
//! ```text
//!   initiator                                                responder
//!   Initiator::request ───────── MPA Request ──────────▶ Responder::request
//!   Initiator::reply   ◀──────── MPA Reply ───────────── Responder::accept / reject
//!   first FPDU (the RTR, where one was agreed) ────────▶ only now may the responder send an FPDU
//! ```
//!
//! Neither end keeps bytes: both are shown all that came so far and say how many of them the frame takes.
//! Waiting, time-outs and closing are the caller's. After any [`StartupError`] TCP has to be closed at once
//! (RFC 5044 section 8, code 4); after a rejection MPA is over and TCP may stay open.

mod config;
mod error;
mod initiator;
mod responder;
mod rtr;

pub use config::{Negotiated, Revision, StartupConfig};
pub use error::{ConfigError, StartupError, StartupRefusal};
pub use initiator::{Initiator, Outcome};
pub use responder::{Request, Responder};
pub use rtr::{Rtr, RtrKinds};
