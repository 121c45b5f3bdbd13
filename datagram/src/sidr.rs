//! SIDR, the exchange by which a requester learns the number and Q_Key of a listener's queue pair.

use crate::{CRC_LEN, DatagramError, Kind, Qpn, VERSION, check_crc, crc, u32_at};

/// Length in bytes of requests and replies. It is the same for both, so that no reply is larger
/// than its request.
pub const LEN: usize = 256;
/// Maximum length in bytes of the private data in a request.
pub const MAX_REQUEST_DATA: usize = 180;
/// Maximum length in bytes of the private data in a reply.
pub const MAX_REPLY_DATA: usize = 136;

/// Offset of the private data in bytes.
const DATA: usize = 20;

/// Status in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The reply contains the number of the queue pair.
    Valid = 0,
    /// The application rejected the request.
    Rejected = 1,
    /// There is no queue pair.
    NoQp = 2,
}

impl Status {
    fn from_raw(status: u8) -> Result<Self, DatagramError> {
        match status {
            0 => Ok(Self::Valid),
            1 => Ok(Self::Rejected),
            2 => Ok(Self::NoQp),
            _ => Err(DatagramError::SidrStatus { status }),
        }
    }
}

/// Request for the queue pair of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// Random number of the requester.
    pub transaction: u64,
    /// Private data for the application.
    pub private_data: &'a [u8],
}

/// Reply of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reply<'a> {
    /// Transaction number of the request.
    pub transaction: u64,
    /// Result of the request.
    pub status: Status,
    /// Number of the queue pair, if the status is [`Status::Valid`].
    pub qpn: Qpn,
    /// Q_Key of the queue pair.
    pub qkey: u32,
    /// Private data for the application.
    pub private_data: &'a [u8],
}

impl<'a> Request<'a> {
    /// Encodes the request.
    ///
    /// # Errors
    /// Returns [`DatagramError::PrivateData`] if the private data is too long.
    pub fn emit(&self) -> Result<[u8; LEN], DatagramError> {
        emit_message(
            Kind::SidrRequest,
            self.transaction,
            self.private_data,
            MAX_REQUEST_DATA,
            |_| {},
        )
    }

    /// Checks and decodes a datagram.
    ///
    /// # Errors
    /// Returns the first violation of the format.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, DatagramError> {
        let (bytes, private_data) = parse_message(datagram, Kind::SidrRequest, MAX_REQUEST_DATA)?;
        if bytes[2] != 0 {
            return Err(DatagramError::SidrStatus { status: bytes[2] });
        }
        Ok(Self { transaction: transaction_of(bytes), private_data })
    }
}

impl<'a> Reply<'a> {
    /// Encodes the reply.
    ///
    /// # Errors
    /// Returns [`DatagramError::PrivateData`] if the private data is too long.
    pub fn emit(&self) -> Result<[u8; LEN], DatagramError> {
        emit_message(
            Kind::SidrReply,
            self.transaction,
            self.private_data,
            MAX_REPLY_DATA,
            |bytes| {
                bytes[2] = self.status as u8;
                bytes[12..16].copy_from_slice(&self.qpn.raw().to_be_bytes());
                bytes[16..DATA].copy_from_slice(&self.qkey.to_be_bytes());
            },
        )
    }

    /// Checks and decodes a datagram.
    ///
    /// # Errors
    /// Returns the first violation of the format.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, DatagramError> {
        let (bytes, private_data) = parse_message(datagram, Kind::SidrReply, MAX_REPLY_DATA)?;
        let (status, qpn) = (Status::from_raw(bytes[2])?, Qpn::from_raw(u32_at(bytes, 12)));
        if status == Status::Valid && qpn.port() == 0 {
            return Err(DatagramError::DestinationQpn { qpn });
        }
        Ok(Self {
            transaction: transaction_of(bytes),
            status,
            qpn,
            qkey: u32_at(bytes, 16),
            private_data,
        })
    }
}

/// Decodes the transaction number.
fn transaction_of(bytes: &[u8]) -> u64 {
    u64::from(u32_at(bytes, 4)) << 32 | u64::from(u32_at(bytes, 8))
}

/// Encodes a message. `rest` writes the fields that only this kind of message has.
fn emit_message(
    kind: Kind,
    transaction: u64,
    data: &[u8],
    max: usize,
    rest: impl FnOnce(&mut [u8; LEN]),
) -> Result<[u8; LEN], DatagramError> {
    let len = data.len();
    let Some(byte) = u8::try_from(len).ok().filter(|_| len <= max) else {
        return Err(DatagramError::PrivateData { len, max });
    };
    let mut bytes = [0; LEN];
    (bytes[0], bytes[1], bytes[3]) = (VERSION, kind as u8, byte);
    bytes[4..12].copy_from_slice(&transaction.to_be_bytes());
    bytes[DATA..DATA + len].copy_from_slice(data);
    rest(&mut bytes);
    let field = crc(&bytes[..LEN - CRC_LEN]);
    bytes[LEN - CRC_LEN..].copy_from_slice(&field);
    Ok(bytes)
}

/// Checks the common parts of a message. Returns the bytes before the CRC, and the private data in
/// them.
fn parse_message(datagram: &[u8], kind: Kind, max: usize) -> Result<(&[u8], &[u8]), DatagramError> {
    if datagram.len() != LEN {
        return Err(DatagramError::SidrLength { len: datagram.len() });
    }
    kind.check(datagram)?;
    let bytes = check_crc(datagram)?;
    let len = usize::from(bytes[3]);
    if len > max {
        return Err(DatagramError::PrivateData { len, max });
    }
    Ok((bytes, &bytes[DATA..DATA + len]))
}
