//! The Terminate Header (RFC 5040 section 4.8, Figures 7 and 8).
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
//! The Linux siw driver fills the first word through bit fields of its host's byte order. On the
//! usual hosts Layer and EType come out swapped, and M, D and R are the low bits of the third byte
//! instead of the high ones. It reads ours the same way. [`Terminate::parse_any`] distinguishes the
//! two where that is possible.

use alloc::vec::Vec;
use core::fmt;

use uiw_ddp::{Header, HeaderError};

use super::ReadRequest;
use crate::TerminateReason;

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

/// M, D and R as siw has them.
const SIW_M: u8 = 0x01;
const SIW_D: u8 = 0x02;
const SIW_R: u8 = 0x04;

/// Reason why the peer gave up, with the headers of the message concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// The layer that found the error, four bits.
    pub layer: u8,
    /// EType, four bits.
    pub etype: u8,
    /// Error Code.
    pub code: u8,
    /// M: bytes of the DDP segment at fault. By some senders that is the ULPDU's length, by others
    /// its payload's.
    pub segment_len: Option<u16>,
    /// D: the header of the DDP segment at fault.
    pub ddp_header: Option<HeaderCopy>,
    /// R: the Read Request at fault.
    pub read_request: Option<ReadRequest>,
}

/// Implementation whose encoding a Terminate follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The RFC's encoding, or the encodings agree.
    Rfc,
    /// The encoding of siw.
    Siw,
    /// Ambiguous: the two readings differ and both make sense. The RFC's was taken;
    /// [`Terminate::parse_siw`] has the other.
    Ambiguous,
}

/// A message too short to be a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Terminate of {len} bytes, 4 are the least")]
pub struct TerminateTooShort {
    /// Bytes behind the DDP header.
    pub len: usize,
}

impl Terminate {
    /// The most bytes one takes.
    pub const MAX_LEN: usize = 4 + 2 + Header::MAX_LEN + ReadRequest::LEN;

    /// A Terminate that quotes nothing.
    #[must_use]
    pub const fn new(reason: TerminateReason) -> Self {
        let (layer, etype, code) = reason.codes();
        Self { layer, etype, code, segment_len: None, ddp_header: None, read_request: None }
    }

    /// Reads the bytes behind the DDP header as the RFC has them.
    ///
    /// Peers set M, D and R without sending what they announce, so a part is taken only if it is
    /// there in full. Bytes behind the last part are ignored.
    ///
    /// # Errors
    /// If there are fewer than four bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, TerminateTooShort> {
        let (&[types, code, bits, _], parts) = split_control(bytes)?;
        let mut terminate = Self::from_parts([bits & M != 0, bits & D != 0, bits & R != 0], parts);
        (terminate.layer, terminate.etype, terminate.code) = (types >> 4, types & 0x0F, code);
        Ok(terminate)
    }

    /// Reads the bytes behind the DDP header as siw writes them.
    ///
    /// # Errors
    /// If there are fewer than four bytes.
    pub fn parse_siw(bytes: &[u8]) -> Result<Self, TerminateTooShort> {
        let (&[types, code, bits, _], parts) = split_control(bytes)?;
        let mut terminate =
            Self::from_parts([bits & SIW_M != 0, bits & SIW_D != 0, bits & SIW_R != 0], parts);
        (terminate.layer, terminate.etype, terminate.code) = (types & 0x0F, types >> 4, code);
        Ok(terminate)
    }

    /// Reads the bytes behind the DDP header the way that makes sense, and returns which it was.
    ///
    /// # Errors
    /// If there are fewer than four bytes.
    pub fn parse_any(bytes: &[u8]) -> Result<(Self, Origin), TerminateTooShort> {
        let (rfc, siw) = (Self::parse(bytes)?, Self::parse_siw(bytes)?);
        let origin = Self::detect_origin(bytes)?;
        Ok((if origin == Origin::Siw { siw } else { rfc }, origin))
    }

    /// Like [`parse_any`](Self::parse_any), for a Terminate whose position in the stream is known.
    ///
    /// Only the initiator's first FPDU may be one of the Terminates that refuse a Reply (2/0/5 to
    /// 2/0/7, RFC 6581 section 8); `refuses_reply` states that this is that FPDU. Otherwise, codes
    /// with two meanings are an RDMAP error.
    ///
    /// # Errors
    /// If there are fewer than four bytes.
    pub fn parse_at(bytes: &[u8], refuses_reply: bool) -> Result<(Self, Origin), TerminateTooShort> {
        let (rfc, origin) = Self::parse_any(bytes)?;
        if origin != Origin::Ambiguous || refuses_reply {
            return Ok((rfc, origin));
        }
        let as_startup = |terminate: &Self| terminate.layer == 2 && matches!(terminate.code, 5..=7);
        let siw = Self::parse_siw(bytes)?;
        Ok(match (as_startup(&rfc), as_startup(&siw)) {
            (true, false) => (siw, Origin::Siw),
            (false, true) => (rfc, Origin::Rfc),
            _ => (rfc, Origin::Ambiguous),
        })
    }

    /// Returns whether the bytes can only be siw's.
    #[must_use]
    pub fn looks_like_siw(bytes: &[u8]) -> bool {
        Self::detect_origin(bytes) == Ok(Origin::Siw)
    }

    fn detect_origin(bytes: &[u8]) -> Result<Origin, TerminateTooShort> {
        let (&[types, code, bits, _], _) = split_control(bytes)?;
        // Each way's bits are the other's reserved ones, which are zero.
        let (rfc_bits, siw_bits) = (bits & (M | D | R) != 0, bits & (SIW_M | SIW_D | SIW_R) != 0);
        if rfc_bits != siw_bits {
            return Ok(if rfc_bits { Origin::Rfc } else { Origin::Siw });
        }
        let (high, low) = (types >> 4, types & 0x0F);
        let as_rfc = TerminateReason::from_codes(high, low, code);
        let as_siw = TerminateReason::from_codes(low, high, code);
        Ok(match (as_rfc.is_known(), as_siw.is_known()) {
            (false, true) => Origin::Siw,
            (true, true) if as_rfc != as_siw => Origin::Ambiguous,
            _ => Origin::Rfc,
        })
    }

    /// The parts behind the control word, as far as they are there.
    fn from_parts([m, d, r]: [bool; 3], mut parts: &[u8]) -> Self {
        let mut terminate = Self::new(TerminateReason::LocalCatastrophic);
        // Present with either bit, valid with M only.
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

    /// The bytes: only the parts there are, with M, D and R to match.
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

/// The control word and what follows.
fn split_control(bytes: &[u8]) -> Result<(&[u8; 4], &[u8]), TerminateTooShort> {
    bytes.split_first_chunk().ok_or(TerminateTooShort { len: bytes.len() })
}

/// A DDP header as it came, whatever is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeaderCopy {
    bytes: [u8; Header::MAX_LEN],
    len: u8,
}

impl HeaderCopy {
    /// Copies the header `segment` begins with: 14 or 18 bytes, by its own T bit. `None` if it is
    /// cut short.
    #[must_use]
    pub fn new(segment: &[u8]) -> Option<Self> {
        let tagged = segment.first()? & 0x80 != 0;
        let len = if tagged { uiw_ddp::Tagged::LEN } else { uiw_ddp::Untagged::LEN };
        let mut bytes = [0; Header::MAX_LEN];
        bytes[..len].copy_from_slice(segment.get(..len)?);
        Some(Self { bytes, len: len as u8 })
    }

    /// The bytes: 14 or 18.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The header they are.
    ///
    /// # Errors
    /// If its version is not DDP's.
    pub fn header(&self) -> Result<Header, HeaderError> {
        Header::parse(self.as_slice()).map(|(header, _)| header)
    }
}

impl fmt::Debug for HeaderCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderCopy({:02x?})", self.as_slice())
    }
}
