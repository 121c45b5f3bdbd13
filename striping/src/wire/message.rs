//! The header in front of each Send.

use super::array;
use alloc::vec::Vec;

/// Bytes of the header of every Send but a notice, which has four more.
pub const MESSAGE_HEADER_LEN: usize = 16;

/// What a Send is.
///
/// ```
/// use uiw_striping::wire::{Header, Kind};
/// let notice = Kind::WriteNotice { imm: 7, len: 4096 };
/// let bytes = Header { kind: notice, number: 1 }.emit();
/// assert_eq!(Header::parse(&bytes).map(|(header, _)| header.kind), Ok(notice));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// 1: a Send of the program.
    Send,
    /// 2: a Send of the program with an immediate.
    SendImm(u32),
    /// 3: a Write with immediate has been placed.
    WriteNotice {
        /// The immediate.
        imm: u32,
        /// Bytes of the Write.
        len: u32,
    },
    /// 4: the sender posts nothing more.
    Close,
    /// 5: the sender has ended the connection.
    Abort,
    /// 6: the sender's end of a stripe is dead.
    Dead {
        /// The stripe.
        index: u8,
        /// The connection of it.
        generation: u32,
    },
    /// 7: the sender has received the Close, and the connection is over in order.
    Closed,
}

/// The header of a Send.
///
/// ```
/// use uiw_striping::wire::{Header, Kind, MESSAGE_HEADER_LEN};
/// let header = Header { kind: Kind::Close, number: 12 };
/// let bytes = header.emit();
/// assert_eq!(bytes.len(), MESSAGE_HEADER_LEN);
/// assert_eq!(Header::parse(&bytes), Ok((header, &b""[..])));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// The number of a message, from 1 on; 0 for [`Kind::Abort`], [`Kind::Dead`] and [`Kind::Closed`].
    pub number: u64,
}

/// Why bytes are no such header.
///
/// ```
/// use uiw_striping::wire::{Header, HeaderError, Kind};
/// let mut bytes = Header { kind: Kind::Abort, number: 0 }.emit();
/// assert_eq!(Header::parse(&bytes[..15]), Err(HeaderError::Short(15)));
/// bytes[0] = 9;
/// assert_eq!(Header::parse(&bytes), Err(HeaderError::Kind(9)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Too few bytes.
    #[error("a message of {0} bytes is shorter than its header")]
    Short(usize),
    /// No such kind.
    #[error("no message has kind {0}")]
    Kind(u8),
    /// A number where none belongs, or none where one does.
    #[error("number {number} in a message of kind {kind}")]
    Number {
        /// The number.
        number: u64,
        /// The kind.
        kind: u8,
    },
    /// A field that is zero in this kind is not.
    #[error("a field of a message of kind {0} is not zero")]
    NotZero(u8),
    /// Only Sends have a payload.
    #[error("{len} bytes of payload in a message of kind {kind}")]
    Payload {
        /// Bytes.
        len: usize,
        /// The kind.
        kind: u8,
    },
}

impl Header {
    /// The bytes.
    ///
    /// ```
    /// use uiw_striping::wire::{Header, Kind};
    /// let header = Header { kind: Kind::SendImm(7), number: 3 };
    /// let mut message = header.emit();
    /// message.extend_from_slice(b"text");
    /// assert_eq!(Header::parse(&message), Ok((header, &b"text"[..])));
    /// ```
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (kind, index, word) = match self.kind {
            Kind::Send => (1, 0, 0),
            Kind::SendImm(imm) => (2, 0, imm),
            Kind::WriteNotice { imm, .. } => (3, 0, imm),
            Kind::Close => (4, 0, 0),
            Kind::Abort => (5, 0, 0),
            Kind::Dead { index, generation } => (6, index, generation),
            Kind::Closed => (7, 0, 0),
        };
        let mut bytes = Vec::with_capacity(MESSAGE_HEADER_LEN + 4);
        bytes.extend_from_slice(&[kind, index, 0, 0]);
        bytes.extend_from_slice(&word.to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
        if let Kind::WriteNotice { len, .. } = self.kind {
            bytes.extend_from_slice(&len.to_be_bytes());
        }
        bytes
    }

    /// The header and the program's bytes.
    ///
    /// # Errors
    /// [`HeaderError`]: one variant for each rule.
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Some((bytes, rest)) = message.split_at_checked(MESSAGE_HEADER_LEN) else {
            return Err(HeaderError::Short(message.len()));
        };
        let [code, index, zero, also_zero] = array(bytes, 0);
        let word = u32::from_be_bytes(array(bytes, 4));
        let number = u64::from_be_bytes(array(bytes, 8));
        let (kind, payload) = match code {
            1 => (Kind::Send, rest),
            2 => (Kind::SendImm(word), rest),
            3 => {
                let Some((len, rest)) = rest.split_first_chunk() else {
                    return Err(HeaderError::Short(message.len()));
                };
                (Kind::WriteNotice { imm: word, len: u32::from_be_bytes(*len) }, rest)
            }
            4 => (Kind::Close, rest),
            5 => (Kind::Abort, rest),
            6 => (Kind::Dead { index, generation: word }, rest),
            7 => (Kind::Closed, rest),
            _ => return Err(HeaderError::Kind(code)),
        };
        let has_index = code == 6;
        let has_word = matches!(code, 2 | 3 | 6);
        if zero != 0 || also_zero != 0 || (!has_index && index != 0) || (!has_word && word != 0) {
            return Err(HeaderError::NotZero(code));
        }
        if (code <= 4) != (number != 0) {
            return Err(HeaderError::Number { number, kind: code });
        }
        if code > 2 && !payload.is_empty() {
            return Err(HeaderError::Payload { len: payload.len(), kind: code });
        }
        Ok((Self { kind, number }, payload))
    }
}
