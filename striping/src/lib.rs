//! Striped connections: one connection over several RDMAP streams. `docs/striping.md` is the definition of the rules that are here.
//! **No I/O, no clock, no unsafe code**; `no_std`.
//!
//! An [`Endpoint`] is one end. The program around it posts requests, asks what to start where ([`Endpoint::poll_start`]), reports
//! what became of it ([`Endpoint::finished`]), and gets the completions in order ([`Endpoint::poll_done`]). What is to be done with the
//! stripes themselves comes from [`Endpoint::poll_action`].
//!
//! ```
//! use uiw_striping::{Config, Endpoint, Finish, Op, Outcome, Role};
//!
//! let mut end = Endpoint::<()>::new(Role::Initiator, Config { stripes: 2, ..Config::default() });
//! let write = end.post(Op::Write { idempotent: true }, 1 << 20)?;
//! let other = end.post(Op::Write { idempotent: true }, 1 << 20)?;
//! let send = end.post(Op::Message, 100)?;
//! let first = end.poll_start().unwrap();
//! let second = end.poll_start().unwrap();
//! assert_eq!((first.number, first.index, second.number, second.index), (write, 0, other, 1));
//! // The Send waits for the Write on the other stripe; the one on its own is in front of it.
//! assert!(end.poll_start().is_none());
//! end.finished(1, other, Finish::Placed);
//! assert_eq!(end.poll_start().map(|start| (start.number, start.index)), Some((send, 0)));
//! end.finished(0, write, Finish::Placed);
//! assert_eq!(end.poll_done().map(|done| (done.number, done.outcome)), Some((write, Outcome::Placed)));
//! # Ok::<(), uiw_striping::Closed>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

extern crate alloc;

mod action;
mod endpoint;
mod error;
mod requests;
mod stripes;
pub mod wire;

pub use action::{Action, Counts, End, Received};
pub use endpoint::{Config, Endpoint, Role};
pub use error::{Closed, Violation};
pub use requests::{Done, Finish, Op, Outcome, Start};
pub use stripes::JoinFailure;

/// Most stripes of a connection.
pub const MAX_STRIPES: u8 = 64;
