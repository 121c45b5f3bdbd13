//! What is refused, and what a peer does wrong.

/// Nothing can be posted: the connection is closed, or is being closed.
///
/// ```
/// use uiw_striping::{Closed, Config, Endpoint, Op, Role};
/// let mut end = Endpoint::<()>::new(Role::Initiator, Config::default());
/// assert_eq!(end.close(), Some(1));
/// assert_eq!(end.post(Op::Read, 4096), Err(Closed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the striped connection is closed")]
pub struct Closed;

/// The peer breaks a rule of striped connections.
///
/// ```
/// use uiw_striping::wire::{Header, Kind};
/// use uiw_striping::{Config, Endpoint, Role, Violation};
/// let mut end = Endpoint::<()>::new(Role::Acceptor, Config::default());
/// let second = end.received(0, &Header { kind: Kind::Send, number: 2 });
/// assert_eq!(second, Err(Violation::Number { given: 2, expected: 1 }));
/// assert!(end.ended().is_some());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A message came out of order, or twice.
    #[error("message {given} came where {expected} is next")]
    Number {
        /// Its number.
        given: u64,
        /// The number that follows.
        expected: u64,
    },
    /// A numbered message came on another stripe than 0.
    #[error("message {number} came on stripe {index}")]
    Stripe {
        /// Its number.
        number: u64,
        /// The stripe.
        index: u8,
    },
    /// A message came behind the Close.
    #[error("message {number} came behind the Close")]
    BehindClose {
        /// Its number.
        number: u64,
    },
    /// The peer's count of delivered messages cannot be.
    #[error("the peer has received {delivered} messages, but {proven} were placed and {sent} were sent")]
    Delivered {
        /// The peer's count.
        delivered: u64,
        /// Messages whose placement is proven.
        proven: u64,
        /// Messages that were sent.
        sent: u64,
    },
    /// The peer says that it has the Close, which was not sent, or without one of its own.
    #[error("the peer says that the connection is closed, which it is not")]
    Closed,
    /// There is no such stripe.
    #[error("there is no stripe {index}")]
    Index {
        /// The index.
        index: u8,
    },
}
