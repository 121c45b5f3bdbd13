//! The messages of a byte stream.

use std::io;

/// Bytes of a header.
pub(super) const HEADER: usize = 8;
/// Bytes of the payload of the first message.
const FIRST_PAYLOAD: usize = 4;
const VERSION: u8 = 1;
const FIN: u8 = 1;

/// Header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Messages that the peer may send in addition.
    pub(super) credits: u32,
    /// True if nothing follows the payload in this direction.
    pub(super) fin: bool,
}

/// A message that breaks the format.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FormatError {
    #[error("a message of {len} bytes is shorter than the header of {HEADER}")]
    Short { len: usize },
    #[error("version {version} of the byte stream; only {VERSION} is known")]
    Version { version: u8 },
    #[error("flags {flags:#04x}; only {FIN:#04x} is known")]
    Flags { flags: u8 },
    #[error("the first message has a payload of {len} bytes instead of {FIRST_PAYLOAD}")]
    FirstLength { len: usize },
    #[error("the peer receives payloads of at most 0 bytes")]
    NoPayload,
    #[error("{credits} credits in addition are more than can be counted")]
    Credits { credits: u32 },
    #[error("a payload behind the end of the stream")]
    BehindFin,
    #[error("more messages than credits were given")]
    NoCredit,
    #[error("the connection was closed before the end of the byte stream")]
    Truncated,
}

impl From<FormatError> for io::Error {
    fn from(error: FormatError) -> Self {
        let kind = match error {
            FormatError::Truncated => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

impl Header {
    pub(super) fn emit(self) -> [u8; HEADER] {
        let [a, b, c, d] = self.credits.to_be_bytes();
        [VERSION, if self.fin { FIN } else { 0 }, 0, 0, a, b, c, d]
    }

    /// The header of a message, and its payload.
    pub(super) fn parse(message: &[u8]) -> Result<(Self, &[u8]), FormatError> {
        let short = FormatError::Short { len: message.len() };
        let ([version, flags, _, _, credits @ ..], payload) =
            message.split_first_chunk::<HEADER>().ok_or(short)?;
        if *version != VERSION {
            return Err(FormatError::Version { version: *version });
        }
        if flags & !FIN != 0 {
            return Err(FormatError::Flags { flags: *flags });
        }
        Ok((Self { credits: u32::from_be_bytes(*credits), fin: flags & FIN != 0 }, payload))
    }
}

/// The payload of the first message: the longest payload that its sender receives.
pub(super) fn emit_first(longest: u32) -> [u8; FIRST_PAYLOAD] {
    longest.to_be_bytes()
}

pub(super) fn parse_first(payload: &[u8]) -> Result<u32, FormatError> {
    let longest = payload.try_into().map_err(|_| FormatError::FirstLength { len: payload.len() })?;
    match u32::from_be_bytes(longest) {
        0 => Err(FormatError::NoPayload),
        longest => Ok(longest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_round_trip() {
        for header in [Header::default(), Header { credits: 0x0102_0304, fin: true }] {
            let mut message = header.emit().to_vec();
            message.extend(b"payload");
            assert_eq!(Header::parse(&message), Ok((header, &b"payload"[..])));
        }
        assert_eq!(Header { credits: 0x0102_0304, fin: true }.emit(), [1, 1, 0, 0, 1, 2, 3, 4]);
        assert_eq!(parse_first(&emit_first(7)), Ok(7));
    }

    #[test]
    fn each_rule_has_its_error() {
        assert_eq!(Header::parse(&[1; 7]), Err(FormatError::Short { len: 7 }));
        assert_eq!(Header::parse(&[2, 0, 0, 0, 0, 0, 0, 0]), Err(FormatError::Version { version: 2 }));
        assert_eq!(Header::parse(&[1, 2, 0, 0, 0, 0, 0, 0]), Err(FormatError::Flags { flags: 2 }));
        assert_eq!(parse_first(&[0; 5]), Err(FormatError::FirstLength { len: 5 }));
        assert_eq!(parse_first(&[0; 4]), Err(FormatError::NoPayload));
    }
}
