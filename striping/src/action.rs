//! What an end asks the program around it for, and what it reports.

use crate::error::Violation;
use crate::wire::Reason;
use core::fmt;

/// What the program around an end is to do with a stripe.
///
/// ```
/// use core::time::Duration;
/// use uiw_striping::{Action, Config, Endpoint, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config { stripes: 2, ..Config::default() });
/// end.abort();
/// // One stripe carries the report to the peer, the other one just ends.
/// assert_eq!(end.poll_action(Duration::ZERO), Some(Action::Abort { on: 0 }));
/// assert_eq!(end.poll_action(Duration::ZERO), Some(Action::Kill { index: 1 }));
/// assert_eq!(end.poll_action(Duration::ZERO), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Puts the queue pair into the error state, or gives the set-up up. [`crate::Endpoint::drained`] follows when every request has been given
    /// back and every message that it received has been reported.
    Kill {
        /// The stripe.
        index: u8,
    },
    /// The initiator connects. [`crate::Endpoint::joined`] or [`crate::Endpoint::join_failed`] follows.
    Join {
        /// The stripe.
        index: u8,
        /// For the Request.
        generation: u32,
        /// For the Request.
        delivered: u64,
    },
    /// The acceptor accepts the Request that [`crate::Endpoint::offer`] has reported last for this stripe. As for [`Action::Join`].
    Accept {
        /// The stripe.
        index: u8,
        /// For the Reply.
        generation: u32,
        /// For the Reply.
        delivered: u64,
    },
    /// Sends [`crate::wire::Kind::Dead`].
    Report {
        /// The stripe to send it on.
        on: u8,
        /// The stripe that is dead.
        index: u8,
        /// Its generation.
        generation: u32,
    },
    /// Sends [`crate::wire::Kind::Abort`], then closes the stripe in order, for at most 5 s. As for [`Action::Kill`].
    Abort {
        /// The stripe.
        on: u8,
    },
    /// Sends [`crate::wire::Kind::Closed`], then closes the stripe in order. As for [`Action::Kill`].
    Confirm {
        /// The stripe.
        on: u8,
    },
    /// Closes the stripe in order. As for [`Action::Kill`].
    Disconnect {
        /// The stripe.
        index: u8,
    },
}

/// How a connection has ended.
///
/// ```
/// use uiw_striping::wire::{Header, Kind};
/// use uiw_striping::{Config, End, Endpoint, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// end.received(0, &Header { kind: Kind::Abort, number: 0 })?;
/// assert_eq!(end.ended(), Some(End::Aborted));
/// assert_eq!(End::Aborted.to_string(), "the peer has ended the connection");
/// # Ok::<(), uiw_striping::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// In order: both ends have closed.
    Closed,
    /// A request failed.
    Request,
    /// A stripe was dead for `recovery_timeout`.
    TimedOut,
    /// Nothing was placed for `recovery_timeout`, though a stripe was replaced; or a request was not, in more attempts than are made.
    Stalled {
        /// How often the stripe was replaced, or the request tried again.
        attempts: u32,
    },
    /// The peer has ended the connection.
    Aborted,
    /// The peer does not let a stripe join.
    Rejected(Reason),
    /// The peer broke a rule.
    Violation(Violation),
    /// [`crate::Endpoint::abort`].
    Local,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed in order"),
            Self::Request => f.write_str("a request failed"),
            Self::TimedOut => f.write_str("a stripe was lost and could not be replaced in time"),
            Self::Stalled { attempts } => {
                let plural = if *attempts == 1 { "" } else { "s" };
                write!(f, "nothing was placed after a stripe had died, on {attempts} new stripe{plural}")
            }
            Self::Aborted => f.write_str("the peer has ended the connection"),
            Self::Rejected(reason) => reason.fmt(f),
            Self::Violation(violation) => write!(f, "the peer broke a rule: {violation}"),
            Self::Local => f.write_str("ended by this end"),
        }
    }
}

/// What a Send of the peer was.
///
/// ```
/// use uiw_striping::wire::{Header, Kind};
/// use uiw_striping::{Config, Endpoint, Received, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// let message = end.received(0, &Header { kind: Kind::Send, number: 1 })?;
/// assert_eq!(message, Received::Message);
/// let dead = end.received(3, &Header { kind: Kind::Dead { index: 2, generation: 0 }, number: 0 })?;
/// assert_eq!(dead, Received::Dead { index: 2, generation: 0 });
/// let close = end.received(0, &Header { kind: Kind::Close, number: 2 })?;
/// assert_eq!(close, Received::Control);
/// # Ok::<(), uiw_striping::Violation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message for the program.
    Message,
    /// Nothing for the program.
    Control,
    /// The peer's end of a stripe is dead: for [`crate::Endpoint::peer_died`].
    Dead {
        /// The stripe.
        index: u8,
        /// Its generation.
        generation: u32,
    },
}

/// What happened to stripes and requests so far.
///
/// ```
/// use core::time::Duration;
/// use uiw_striping::{Config, Counts, Endpoint, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// end.died(1, Duration::ZERO);
/// assert_eq!(end.counts(), Counts { deaths: 1, replacements: 0, repeated: 0 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stripes that died before this end sent its Close. A peer that has the Close may close in order, which looks the same.
    pub deaths: u64,
    /// Stripes that were replaced.
    pub replacements: u64,
    /// Requests that were repeated.
    pub repeated: u64,
}
