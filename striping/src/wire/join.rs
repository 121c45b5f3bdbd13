//! The private data of Request and Reply.

use super::{VERSION, array};
use crate::MAX_STRIPES;
use alloc::vec::Vec;
use core::fmt;

const MAGIC: u32 = 0x7569_7753;

/// Bytes in front of the program's private data.
pub const JOIN_LEN: usize = 36;

/// A stripe asks to belong to a connection.
///
/// ```
/// use uiw_striping::wire::{JOIN_LEN, Join, Request};
/// let request = Request { stripes: 4, index: 2, generation: 1, token: [7; 16], delivered: 9 };
/// let bytes = Join::Request(request).emit(b"");
/// assert_eq!(bytes.len(), JOIN_LEN);
/// assert_eq!(Join::parse(&bytes), Ok((Join::Request(request), &b""[..])));
/// assert!(!format!("{request:?}").contains("token"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Stripes of the connection.
    pub stripes: u8,
    /// Which of them this is.
    pub index: u8,
    /// 0 at first, larger for each attempt to replace it.
    pub generation: u32,
    /// The secret of the connection.
    pub token: [u8; 16],
    /// Numbered messages that the sender has received.
    pub delivered: u64,
}

/// Without the token, which is a secret.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("stripes", &self.stripes)
            .field("index", &self.index)
            .field("generation", &self.generation)
            .field("delivered", &self.delivered)
            .finish_non_exhaustive()
    }
}

/// The stripe belongs to the connection.
///
/// ```
/// use uiw_striping::wire::{Join, JoinError, Reply};
/// let mut bytes = Join::Reply(Reply { stripes: 4, index: 2, generation: 1, delivered: 9 }).emit(b"");
/// // A connection of two stripes has no third one.
/// bytes[6] = 2;
/// assert_eq!(Join::parse(&bytes), Err(JoinError::Index { index: 2, stripes: 2 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As in the Request.
    pub stripes: u8,
    /// As in the Request.
    pub index: u8,
    /// As in the Request.
    pub generation: u32,
    /// Numbered messages that the sender has received.
    pub delivered: u64,
}

/// Why a stripe was rejected.
///
/// ```
/// use uiw_striping::wire::{Join, Reason};
/// let bytes = Join::Rejection(Reason::Stale).emit(b"");
/// assert_eq!(Join::parse(&bytes), Ok((Join::Rejection(Reason::Stale), &b""[..])));
/// assert_eq!(Reason::Stale.to_string(), "the generation of the stripe is stale");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// 1: its version is not supported.
    #[error("the peer does not support version {VERSION} of striped connections")]
    Version,
    /// 2: no connection has its token.
    #[error("the peer has no such striped connection, or has ended it")]
    Unknown,
    /// 3: a later attempt is there already.
    #[error("the generation of the stripe is stale")]
    Stale,
    /// 4: its number or index does not fit.
    #[error("the number or index of the stripe does not fit the connection")]
    Mismatch,
    /// 5: it has another identity than the other stripes.
    #[error("the identity of the stripe is not that of the connection")]
    Identity,
    /// 6: too many connections are in set-up.
    #[error("the peer has too many striped connections in set-up")]
    Busy,
    /// 7: the connection was closed in order: the peer has received the Close.
    #[error("the striped connection was closed in order")]
    Closed,
}

impl Reason {
    const fn code(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Unknown => 2,
            Self::Stale => 3,
            Self::Mismatch => 4,
            Self::Identity => 5,
            Self::Busy => 6,
            Self::Closed => 7,
        }
    }

    const fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Version,
            2 => Self::Unknown,
            3 => Self::Stale,
            4 => Self::Mismatch,
            5 => Self::Identity,
            6 => Self::Busy,
            7 => Self::Closed,
            _ => return None,
        })
    }
}

/// Why private data is not that of a stripe.
///
/// ```
/// use uiw_striping::wire::{Join, JoinError};
/// // An ordinary client's private data.
/// assert_eq!(Join::parse(b"plain"), Err(JoinError::Foreign));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// It is too short or has another magic: an ordinary connection.
    #[error("not the private data of a striped connection")]
    Foreign,
    /// Another version.
    #[error("version {0} of striped connections, not {VERSION}")]
    Version(u8),
    /// No such kind.
    #[error("kind {0} is not that of a Request, Reply or Rejection of a stripe")]
    Kind(u8),
    /// Number of stripes out of range.
    #[error("{0} stripes, not 1 to {MAX_STRIPES}")]
    Stripes(u8),
    /// Index out of range.
    #[error("index {index} of {stripes} stripes")]
    Index {
        /// The index.
        index: u8,
        /// The stripes.
        stripes: u8,
    },
    /// No such reason.
    #[error("reason {0} is not that of a Rejection")]
    Reason(u8),
}

/// What the private data of a stripe says.
///
/// ```
/// use uiw_striping::wire::{Join, Reply, Request};
/// let request = Request { stripes: 2, index: 1, generation: 0, token: [3; 16], delivered: 0 };
/// let bytes = Join::Request(request).emit(b"for the program");
/// let Ok((Join::Request(asked), private_data)) = Join::parse(&bytes) else { unreachable!() };
/// assert_eq!(private_data, b"for the program");
/// let Request { stripes, index, generation, .. } = asked;
/// let reply = Join::Reply(Reply { stripes, index, generation, delivered: 0 });
/// assert_eq!(Join::parse(&reply.emit(b"")).map(|(join, _)| join), Ok(reply));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// In the MPA Request.
    Request(Request),
    /// In an accepting MPA Reply.
    Reply(Reply),
    /// In a rejecting MPA Reply.
    Rejection(Reason),
}

impl Join {
    /// The bytes, with the program's private data behind them.
    ///
    /// ```
    /// use uiw_striping::wire::{Join, Reply};
    /// let reply = Join::Reply(Reply { stripes: 4, index: 2, generation: 1, delivered: 7 });
    /// let bytes = reply.emit(b"data");
    /// assert_eq!(Join::parse(&bytes), Ok((reply, &b"data"[..])));
    /// ```
    #[must_use]
    pub fn emit(&self, private_data: &[u8]) -> Vec<u8> {
        let (kind, third, index, generation, token, delivered) = match *self {
            Self::Request(request) => {
                let Request { stripes, index, generation, token, delivered } = request;
                (1, stripes, index, generation, token, delivered)
            }
            Self::Reply(Reply { stripes, index, generation, delivered }) => {
                (2, stripes, index, generation, [0; 16], delivered)
            }
            Self::Rejection(reason) => (3, reason.code(), 0, 0, [0; 16], 0),
        };
        let mut bytes = Vec::with_capacity(JOIN_LEN + private_data.len());
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&[VERSION, kind, third, index]);
        bytes.extend_from_slice(&generation.to_be_bytes());
        bytes.extend_from_slice(&token);
        bytes.extend_from_slice(&delivered.to_be_bytes());
        bytes.extend_from_slice(private_data);
        bytes
    }

    /// The fields, and the program's private data.
    ///
    /// # Errors
    /// [`JoinError`]: one variant for each rule.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), JoinError> {
        let Some((header, rest)) = bytes.split_at_checked(JOIN_LEN) else { return Err(JoinError::Foreign) };
        if u32::from_be_bytes(array(header, 0)) != MAGIC {
            return Err(JoinError::Foreign);
        }
        let [version, kind, third, index] = array(header, 4);
        if kind == 3 {
            // Whatever its version: the peer says that it does not support this one.
            return match Reason::of_code(third) {
                Some(reason) => Ok((Self::Rejection(reason), rest)),
                None => Err(JoinError::Reason(third)),
            };
        }
        if version != VERSION {
            return Err(JoinError::Version(version));
        }
        if kind != 1 && kind != 2 {
            return Err(JoinError::Kind(kind));
        }
        let stripes = third;
        if stripes == 0 || stripes > MAX_STRIPES {
            return Err(JoinError::Stripes(stripes));
        }
        if index >= stripes {
            return Err(JoinError::Index { index, stripes });
        }
        let generation = u32::from_be_bytes(array(header, 8));
        let delivered = u64::from_be_bytes(array(header, 28));
        let join = if kind == 1 {
            let token = array(header, 12);
            Self::Request(Request { stripes, index, generation, token, delivered })
        } else {
            Self::Reply(Reply { stripes, index, generation, delivered })
        };
        Ok((join, rest))
    }
}
