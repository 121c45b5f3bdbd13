//! MPA startup: one Request, one Reply, and the negotiated properties (RFC 5044 section 7.1, RFC
//! 6581).
//!
//! ```text
//!   initiator                                                responder
//!   Initiator::request ───────── MPA Request ──────────▶ Responder::request
//!   Initiator::reply   ◀──────── MPA Reply ───────────── Responder::accept / reject
//!   first FPDU (the RTR, if one was agreed) ───────────▶ only now may the responder send an FPDU
//! ```
//!
//! Neither end buffers bytes: the caller passes all bytes received so far and gets the length of
//! the frame. The caller is also responsible for waiting, time-outs and closing. After a
//! [`StartupError`] it must close TCP at once (RFC 5044 section 8, code 4). After a rejection MPA
//! is over and TCP may stay open.

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
