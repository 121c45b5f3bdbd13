//! Terminate Header (RFC 5040 section 4.8, Figures 7 and 8).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Layer | EType |   Error Code  |M|D|R|        Reserved         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  DDP Segment Length  (if any) |                               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
//! //                Terminated DDP Header (if any)               //
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! //                Terminated RDMA Header (if any)              //
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The Linux siw driver accesses the first word through bit fields, whose order depends on the byte
//! order of its host. On little-endian hosts, Layer and EType are swapped, and M, D and R are the
//! low bits of the third byte instead of the high ones. siw decodes received Terminates in the same
//! way. [`Terminate::parse_any`] distinguishes the two encodings where that is possible.

use alloc::vec::Vec;
use core::fmt;

use uiw_ddp::{Header, HeaderError};

use super::ReadRequest;
use crate::TerminateReason;

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

// Flags M, D and R in siw's encoding.
const SIW_M: u8 = 0x01;
const SIW_D: u8 = 0x02;
const SIW_R: u8 = 0x04;

/// Terminate message: the reason for the end of a stream, with the headers of the message that
/// caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// Layer that detected the error, four bits.
    pub layer: u8,
    /// EType, four bits.
    pub etype: u8,
    /// Error Code.
    pub code: u8,
    /// M: length in bytes of the DDP segment that caused the error. Some senders use the length of
    /// the ULPDU, others the length of its payload.
    pub segment_len: Option<u16>,
    /// D: header of the DDP segment that caused the error.
    pub ddp_header: Option<HeaderCopy>,
    /// R: Read Request that caused the error.
    pub read_request: Option<ReadRequest>,
}

/// Encoding of a received Terminate, which identifies the implementation of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateEncoding {
    /// The encoding of the RFC, or bytes that mean the same in both encodings.
    Rfc,
    /// The encoding of siw.
    Siw,
    /// Both encodings are possible, with different meanings. The message was decoded as the RFC
    /// requires; [`Terminate::parse_siw`] returns the other meaning.
    Ambiguous,
}

/// Error of a message that is too short for a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Terminate of {len} bytes, 4 are the least")]
pub struct TerminateTooShort {
    /// Number of bytes after the DDP header.
    pub len: usize,
}

impl Terminate {
    /// Maximum length on the wire in bytes.
    pub const MAX_LEN: usize = 4 + 2 + Header::MAX_LEN + ReadRequest::LEN;

    /// Creates a Terminate that quotes no headers.
    #[must_use]
    pub const fn new(reason: TerminateReason) -> Self {
        let (layer, etype, code) = reason.codes();
        Self { layer, etype, code, segment_len: None, ddp_header: None, read_request: None }
    }

    /// Decodes the bytes after the DDP header in the encoding of the RFC.
    ///
    /// Some peers set M, D and R without sending the parts that these flags announce, so a part is
    /// decoded only if it is complete. Bytes after the last part are ignored.
    ///
    /// # Errors
    /// Returns [`TerminateTooShort`] if there are fewer than four bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, TerminateTooShort> {
        let (&[types, code, bits, _], parts) = split_control(bytes)?;
        let mut terminate = Self::from_parts([bits & M != 0, bits & D != 0, bits & R != 0], parts);
        (terminate.layer, terminate.etype, terminate.code) = (types >> 4, types & 0x0F, code);
        Ok(terminate)
    }

    /// Decodes the bytes after the DDP header in the encoding of siw.
    ///
    /// # Errors
    /// Returns [`TerminateTooShort`] if there are fewer than four bytes.
    pub fn parse_siw(bytes: &[u8]) -> Result<Self, TerminateTooShort> {
        let (&[types, code, bits, _], parts) = split_control(bytes)?;
        let mut terminate =
            Self::from_parts([bits & SIW_M != 0, bits & SIW_D != 0, bits & SIW_R != 0], parts);
        (terminate.layer, terminate.etype, terminate.code) = (types & 0x0F, types >> 4, code);
        Ok(terminate)
    }

    /// Detects the encoding of the bytes after the DDP header, decodes them, and returns both.
    ///
    /// # Errors
    /// Returns [`TerminateTooShort`] if there are fewer than four bytes.
    pub fn parse_any(bytes: &[u8]) -> Result<(Self, TerminateEncoding), TerminateTooShort> {
        let (rfc, siw) = (Self::parse(bytes)?, Self::parse_siw(bytes)?);
        let encoding = Self::detect_encoding(bytes)?;
        Ok((if encoding == TerminateEncoding::Siw { siw } else { rfc }, encoding))
    }

    /// Like [`parse_any`](Self::parse_any), for a Terminate whose position in the stream is known.
    ///
    /// Only the initiator's first FPDU may be one of the Terminates that refuse a Reply (2/0/5 to
    /// 2/0/7, RFC 6581 section 8). `refuses_reply` states that the message is this FPDU. If it is
    /// not, codes with two meanings are taken as an error of RDMAP.
    ///
    /// # Errors
    /// Returns [`TerminateTooShort`] if there are fewer than four bytes.
    pub fn parse_at(
        bytes: &[u8],
        refuses_reply: bool,
    ) -> Result<(Self, TerminateEncoding), TerminateTooShort> {
        let (rfc, encoding) = Self::parse_any(bytes)?;
        if encoding != TerminateEncoding::Ambiguous || refuses_reply {
            return Ok((rfc, encoding));
        }
        let as_startup = |terminate: &Self| terminate.layer == 2 && matches!(terminate.code, 5..=7);
        let siw = Self::parse_siw(bytes)?;
        Ok(match (as_startup(&rfc), as_startup(&siw)) {
            (true, false) => (siw, TerminateEncoding::Siw),
            (false, true) => (rfc, TerminateEncoding::Rfc),
            _ => (rfc, TerminateEncoding::Ambiguous),
        })
    }

    /// Determines the encoding from the flags or, if they do not show it, from the codes.
    fn detect_encoding(bytes: &[u8]) -> Result<TerminateEncoding, TerminateTooShort> {
        let (&[types, code, bits, _], _) = split_control(bytes)?;
        // The flags of each encoding are reserved bits of the other one, and so zero there.
        let (rfc_bits, siw_bits) = (bits & (M | D | R) != 0, bits & (SIW_M | SIW_D | SIW_R) != 0);
        if rfc_bits != siw_bits {
            return Ok(if rfc_bits { TerminateEncoding::Rfc } else { TerminateEncoding::Siw });
        }
        let (high, low) = (types >> 4, types & 0x0F);
        let as_rfc = TerminateReason::from_codes(high, low, code);
        let as_siw = TerminateReason::from_codes(low, high, code);
        Ok(match (as_rfc.is_known(), as_siw.is_known()) {
            (false, true) => TerminateEncoding::Siw,
            (true, true) if as_rfc != as_siw => TerminateEncoding::Ambiguous,
            _ => TerminateEncoding::Rfc,
        })
    }

    /// Decodes the parts after the control word that are complete.
    fn from_parts([m, d, r]: [bool; 3], mut parts: &[u8]) -> Self {
        let mut terminate = Self::new(TerminateReason::LocalCatastrophic);
        // The length is present if M or D is set, but valid only if M is set.
        if m || d {
            let Some((len, behind)) = parts.split_first_chunk() else { return terminate };
            terminate.segment_len = m.then(|| u16::from_be_bytes(*len));
            parts = behind;
        }
        if d {
            let Some(header) = HeaderCopy::new(parts) else { return terminate };
            parts = &parts[header.as_slice().len()..];
            terminate.ddp_header = Some(header);
        }
        if r {
            terminate.read_request = parts.first_chunk().map(ReadRequest::from_bytes);
        }
        terminate
    }

    /// Encodes the message: the parts that are present, and the matching flags M, D and R.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let bits = bit(self.segment_len.is_some(), M)
            | bit(self.ddp_header.is_some(), D)
            | bit(self.read_request.is_some(), R);
        let mut bytes = Vec::with_capacity(Self::MAX_LEN);
        bytes.extend_from_slice(&[self.layer << 4 | self.etype & 0x0F, self.code, bits, 0]);
        if self.segment_len.is_some() || self.ddp_header.is_some() {
            bytes.extend_from_slice(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if let Some(header) = &self.ddp_header {
            bytes.extend_from_slice(header.as_slice());
        }
        if let Some(request) = &self.read_request {
            bytes.extend_from_slice(&request.emit());
        }
        bytes
    }

    /// Returns the meaning of the codes.
    #[must_use]
    pub const fn reason(&self) -> TerminateReason {
        TerminateReason::from_codes(self.layer, self.etype, self.code)
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason().fmt(f)
    }
}

/// Splits the control word from the bytes after it.
fn split_control(bytes: &[u8]) -> Result<(&[u8; 4], &[u8]), TerminateTooShort> {
    bytes.split_first_chunk().ok_or(TerminateTooShort { len: bytes.len() })
}

/// Unchecked copy of a received DDP header, which may be invalid.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeaderCopy {
    bytes: [u8; Header::MAX_LEN],
    len: u8,
}

impl HeaderCopy {
    /// Copies the header at the front of `segment`: 14 or 18 bytes, depending on its T bit. Returns
    /// `None` if the header is incomplete.
    #[must_use]
    pub fn new(segment: &[u8]) -> Option<Self> {
        let tagged = segment.first()? & uiw_ddp::wire::T != 0;
        let len = if tagged { uiw_ddp::Tagged::LEN } else { uiw_ddp::Untagged::LEN };
        let mut bytes = [0; Header::MAX_LEN];
        bytes[..len].copy_from_slice(segment.get(..len)?);
        Some(Self { bytes, len: len as u8 })
    }

    /// Returns the 14 or 18 bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Decodes the header.
    ///
    /// # Errors
    /// Returns a [`HeaderError`] if its version is not 1.
    pub fn header(&self) -> Result<Header, HeaderError> {
        Header::parse(self.as_slice()).map(|(header, _)| header)
    }
}

impl fmt::Debug for HeaderCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderCopy({:02x?})", self.as_slice())
    }
}
