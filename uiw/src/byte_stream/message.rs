//! Message format of a byte stream, described at [`ByteStream`](crate::ByteStream).

use std::io;

/// Length of a header in bytes.
pub(super) const HEADER_LEN: usize = 8;
/// Length in bytes of the payload of an end's first message.
const FIRST_PAYLOAD_LEN: usize = 4;
/// Version of the format.
const VERSION: u8 = 1;
/// Flag of the last message in a direction.
const FIN: u8 = 1;

/// Decoded header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of further messages that the receiver of this header may send.
    pub(super) credits: u32,
    /// True if the payload is the last one in this direction.
    pub(super) fin: bool,
}

/// Violation of the format by the peer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FormatError {
    #[error("a message of {len} bytes is shorter than the header of {HEADER_LEN}")]
    Short { len: usize },
    #[error("the byte stream has version {version}, but only {VERSION} is supported")]
    Version { version: u8 },
    #[error("the flags {flags:#04x} are not supported, except {FIN:#04x}")]
    Flags { flags: u8 },
    #[error("the first message has a payload of {len} bytes instead of {FIRST_PAYLOAD_LEN}")]
    FirstLength { len: usize },
    #[error("the peer receives payloads of at most 0 bytes")]
    NoPayload,
    #[error("{credits} more credits overflow the counter of credits")]
    Credits { credits: u32 },
    #[error("the peer sent a payload after the end of the stream")]
    AfterFin,
    #[error("a payload of {len} bytes is longer than the announced maximum of {max_payload}")]
    PayloadLength { len: usize, max_payload: u32 },
    #[error("the peer sent more messages than it had credits for")]
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
    /// Encodes the header.
    pub(super) fn emit(self) -> [u8; HEADER_LEN] {
        let [a, b, c, d] = self.credits.to_be_bytes();
        [VERSION, if self.fin { FIN } else { 0 }, 0, 0, a, b, c, d]
    }

    /// Decodes the header of a message, and returns it with the payload.
    pub(super) fn parse(message: &[u8]) -> Result<(Self, &[u8]), FormatError> {
        let short = FormatError::Short { len: message.len() };
        let ([version, flags, _, _, credits @ ..], payload) =
            message.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        if *version != VERSION {
            return Err(FormatError::Version { version: *version });
        }
        if flags & !FIN != 0 {
            return Err(FormatError::Flags { flags: *flags });
        }
        Ok((Self { credits: u32::from_be_bytes(*credits), fin: flags & FIN != 0 }, payload))
    }
}

/// Encodes the payload of the first message: the maximum payload length in bytes that its sender
/// can receive.
pub(super) fn emit_first(max_payload: u32) -> [u8; FIRST_PAYLOAD_LEN] {
    max_payload.to_be_bytes()
}

/// Decodes the payload of the first message: the maximum payload length in bytes that the peer can
/// receive.
pub(super) fn parse_first(payload: &[u8]) -> Result<u32, FormatError> {
    let bytes = payload.try_into().map_err(|_| FormatError::FirstLength { len: payload.len() })?;
    match u32::from_be_bytes(bytes) {
        0 => Err(FormatError::NoPayload),
        max_payload => Ok(max_payload),
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
        assert_eq!(
            Header::parse(&[2, 0, 0, 0, 0, 0, 0, 0]),
            Err(FormatError::Version { version: 2 })
        );
        assert_eq!(Header::parse(&[1, 2, 0, 0, 0, 0, 0, 0]), Err(FormatError::Flags { flags: 2 }));
        assert_eq!(parse_first(&[0; 5]), Err(FormatError::FirstLength { len: 5 }));
        assert_eq!(parse_first(&[0; 4]), Err(FormatError::NoPayload));
    }
}
