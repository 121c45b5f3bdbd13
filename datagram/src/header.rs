//! Header of a message.

use crate::{CRC_LEN, DatagramError, MAX_PAYLOAD, Qpn, VERSION, check_crc, u32_at};
use uiw_rdmap::{Control, Opcode, QN_SEND, wire};

/// Kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Message of a queue pair.
    Message = 1,
    /// SIDR request.
    SidrRequest = 2,
    /// SIDR reply.
    SidrReply = 3,
}

impl Kind {
    /// Returns the kind at the front of a datagram, or `None` if the version or the kind is
    /// unknown.
    #[must_use]
    pub const fn of(datagram: &[u8]) -> Option<Self> {
        match datagram {
            [VERSION, 1, ..] => Some(Self::Message),
            [VERSION, 2, ..] => Some(Self::SidrRequest),
            [VERSION, 3, ..] => Some(Self::SidrReply),
            _ => None,
        }
    }

    /// Checks that `bytes` begins with the version and this kind.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<(), DatagramError> {
        let [version, kind, ..] = *bytes else {
            return Err(DatagramError::TooShort { len: bytes.len() });
        };
        if version != VERSION {
            return Err(DatagramError::Version { version });
        }
        if kind != self as u8 {
            return Err(DatagramError::Kind { kind, expected: self as u8 });
        }
        Ok(())
    }
}

/// Header of a message. The payload follows it, then the [`crc`](crate::crc) of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Random number, chosen when the source queue pair entered RTS.
    pub epoch: u32,
    /// Destination queue pair, or [`Qpn::MULTICAST`].
    pub destination: Qpn,
    /// Source queue pair.
    pub source: Qpn,
    /// Q_Key of the destination.
    pub qkey: u32,
    /// Message Sequence Number within the epoch.
    pub msn: u32,
    /// True if the message raises a solicited event.
    pub solicited: bool,
    /// Immediate data, as an integer of the application.
    pub immediate: Option<u32>,
}

/// Offset of the DDP header.
const DDP: usize = 20;
/// Offset of the MSN: after the DDP control byte, the five bytes for the ULP, and the queue number
/// (RFC 5041 section 4.3).
pub(crate) const MSN: usize = DDP + 10;

impl Header {
    /// Length on the wire in bytes.
    pub const LEN: usize = DDP + uiw_ddp::Untagged::LEN;

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let control = match (self.immediate, self.solicited) {
            (None, solicited) => Control::new(Opcode::send(solicited, false)),
            (Some(_), false) => Control::new(Opcode::SendImm),
            (Some(_), true) => Control { rsv: Control::SOLICITED, ..Control::new(Opcode::SendImm) },
        };
        let ddp = uiw_ddp::Untagged {
            last: true,
            rsvd_ulp: control.emit(),
            rsvd_ulp32: self.immediate.unwrap_or(0),
            qn: QN_SEND,
            msn: self.msn,
            mo: 0,
        };
        let mut bytes = [0; Self::LEN];
        let fields = [
            u32::from_be_bytes([VERSION, Kind::Message as u8, 0, 0]),
            self.epoch,
            self.destination.raw(),
            self.source.raw(),
            self.qkey,
        ];
        for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes[DDP..].copy_from_slice(&ddp.emit());
        bytes
    }

    /// Replaces the MSN in an encoded header. The headers of messages to the same destination often
    /// differ only in the MSN.
    #[inline]
    pub fn set_msn(bytes: &mut [u8; Self::LEN], msn: u32) {
        bytes[MSN..MSN + 4].copy_from_slice(&msn.to_be_bytes());
    }

    /// Checks a datagram and returns its header and payload.
    ///
    /// # Errors
    /// Returns the first violation. The rule about the sender is checked by
    /// [`Header::check_source`].
    // Inlined always, because reading a header that is returned through memory has to wait for its
    // stores.
    #[inline(always)]
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), DatagramError> {
        if datagram.len() < Self::LEN + CRC_LEN {
            return Err(DatagramError::TooShort { len: datagram.len() });
        }
        Kind::Message.check(datagram)?;
        let bytes = check_crc(datagram)?;
        let (header, payload) = bytes.split_at(Self::LEN);
        if payload.len() > MAX_PAYLOAD {
            return Err(DatagramError::TooLong { len: payload.len() });
        }
        let (destination, source) =
            (Qpn::from_raw(u32_at(header, 8)), Qpn::from_raw(u32_at(header, 12)));
        if source.port() == 0 {
            return Err(DatagramError::SourceQpn { qpn: source });
        }
        if destination.port() == 0 {
            return Err(DatagramError::DestinationQpn { qpn: destination });
        }
        let (uiw_ddp::Header::Untagged(ddp), _) = uiw_ddp::Header::parse(&header[DDP..])? else {
            return Err(DatagramError::Tagged);
        };
        let (solicited, immediate) = parse_operation(&ddp)?;
        let header = Self {
            epoch: u32_at(header, 4),
            destination,
            source,
            qkey: u32_at(header, 16),
            msn: ddp.msn,
            solicited,
            immediate,
        };
        Ok((header, payload))
    }

    /// Returns whether two encoded headers are equal except for the MSN.
    #[inline(always)]
    #[must_use]
    pub fn is_equal_but_msn(bytes: &[u8; Self::LEN], other: &[u8; Self::LEN]) -> bool {
        // The lengths of the parts are constant, so each comparison compiles to a few comparisons
        // of integers.
        bytes[..16] == other[..16]
            && bytes[16..MSN] == other[16..MSN]
            && bytes[MSN + 4..] == other[MSN + 4..]
    }

    /// Checks the UDP port that the datagram came from.
    ///
    /// # Errors
    /// Returns [`DatagramError::SourcePort`] if it is not the port of the source QPN.
    #[inline]
    pub fn check_source(&self, port: u16) -> Result<(), DatagramError> {
        if self.source.port() == port {
            Ok(())
        } else {
            Err(DatagramError::SourcePort { port, qpn: self.source })
        }
    }
}

/// Returns whether the message is solicited, and its immediate data.
fn parse_operation(ddp: &uiw_ddp::Untagged) -> Result<(bool, Option<u32>), DatagramError> {
    if !ddp.last {
        return Err(DatagramError::NotLast);
    }
    if ddp.qn != QN_SEND {
        return Err(DatagramError::Queue { qn: ddp.qn });
    }
    if ddp.mo != 0 {
        return Err(DatagramError::MessageOffset { mo: ddp.mo });
    }
    let control = Control::parse(ddp.rsvd_ulp);
    if control.version != wire::VERSION {
        return Err(DatagramError::RdmapVersion { version: control.version });
    }
    match Opcode::from_raw(control.opcode) {
        Some(Opcode::Send) => Ok((false, None)),
        Some(Opcode::SendSe) => Ok((true, None)),
        Some(Opcode::SendImm) => Ok((control.rsv & Control::SOLICITED != 0, Some(ddp.rsvd_ulp32))),
        _ => Err(DatagramError::Opcode { opcode: control.opcode }),
    }
}
