//! MPA Request and Reply Frames (RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9).
//!
//! ```text
//!       0                   1                   2                   3
//!       0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!   0  |                                                               |
//!      +         Key (16 bytes containing "MPA ID Req Frame")          +
//!   4  |      (4D 50 41 20 49 44 20 52 65 71 20 46 72 61 6D 65)        |
//!      +         Or  (16 bytes containing "MPA ID Rep Frame")          +
//!   8  |      (4D 50 41 20 49 44 20 52 65 70 20 46 72 61 6D 65)        |
//!      +                                                               +
//!   12 |                                                               |
//!      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!   16 |M|C|R|S| Res   |     Rev       |          PD_Length            |
//!      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!   20 |A|B|        IRD                |C|D|        ORD                |  with S = 1
//!      +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//!      ~                        Private Data                           ~
//! ```

use alloc::vec::Vec;
use core::fmt;

/// The Key of an MPA Request Frame.
pub const KEY_REQUEST: [u8; 16] = *b"MPA ID Req Frame";

/// The Key of an MPA Reply Frame.
pub const KEY_REPLY: [u8; 16] = *b"MPA ID Rep Frame";

/// Bytes of a frame before its Private Data.
pub const HEADER_LEN: usize = 20;

/// The most PD_Length may say, in bytes; with S = 1 the four bytes of [`Enhanced`] are part of it.
pub const MAX_PRIVATE_DATA: usize = 512;

/// IRD or ORD of all ones: the ULP negotiates that value itself (RFC 6581 section 9.1).
pub const NOT_NEGOTIATED: u16 = 0x3FFF;

/// A bit of Res that the Linux siw driver uses for itself: with it in the Request and in the Reply,
/// siw may send FPDUs larger than a TCP segment. It is not in the RFCs.
pub const SIW_GSO: u8 = 0x08;

const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;

/// Kind of a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Frame from the initiator.
    Request,
    /// Frame from the responder.
    Reply,
}

impl FrameKind {
    /// The sixteen bytes that open such a frame.
    #[must_use]
    pub const fn key(self) -> [u8; 16] {
        match self {
            Self::Request => KEY_REQUEST,
            Self::Reply => KEY_REPLY,
        }
    }

    /// The kind of the frame that `input` begins, as soon as its first ten bytes are there.
    ///
    /// # Errors
    /// [`FrameError::BadKey`] at the first byte that fits neither Key.
    pub fn detect(input: &[u8]) -> Result<Option<Self>, FrameError> {
        let mut possible = [true; 2];
        let kinds = [Self::Request, Self::Reply];
        for (offset, byte) in input.iter().take(16).enumerate() {
            for (possible, kind) in possible.iter_mut().zip(kinds) {
                *possible &= kind.key()[offset] == *byte;
            }
            if possible == [false; 2] {
                return Err(FrameError::BadKey { offset, byte: *byte });
            }
        }
        Ok(match possible {
            [true, false] => Some(Self::Request),
            [false, true] => Some(Self::Reply),
            _ => None,
        })
    }
}

/// The enhanced connection establishment data at the front of the Private Data (RFC 6581 section
/// 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enhanced {
    /// A: the peer-to-peer connection model.
    pub peer_to_peer: bool,
    /// B: a zero-length Send serves as RTR.
    pub rtr_send: bool,
    /// C: a zero-length RDMA Write serves as RTR.
    pub rtr_write: bool,
    /// D: a zero-length RDMA Read serves as RTR.
    pub rtr_read: bool,
    /// RDMA Reads the sender of the frame takes at a time, 14 bits; [`NOT_NEGOTIATED`] leaves it to
    /// the ULP.
    pub ird: u16,
    /// RDMA Reads the sender of the frame issues at a time, 14 bits; [`NOT_NEGOTIATED`] leaves it
    /// to the ULP.
    pub ord: u16,
}

impl Enhanced {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the four bytes; every value of theirs has a meaning.
    #[must_use]
    pub fn parse(bytes: [u8; Self::LEN]) -> Self {
        let ird = u16::from_be_bytes([bytes[0], bytes[1]]);
        let ord = u16::from_be_bytes([bytes[2], bytes[3]]);
        Self {
            peer_to_peer: ird & 0x8000 != 0,
            rtr_send: ird & 0x4000 != 0,
            rtr_write: ord & 0x8000 != 0,
            rtr_read: ord & 0x4000 != 0,
            ird: ird & 0x3FFF,
            ord: ord & 0x3FFF,
        }
    }

    /// The four bytes. Bits of `ird` and `ord` past the fourteenth are not sent.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let flags = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        let ird = flags(self.peer_to_peer, self.rtr_send) | self.ird & 0x3FFF;
        let ord = flags(self.rtr_write, self.rtr_read) | self.ord & 0x3FFF;
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}

/// A startup frame as it stands on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the sender of this frame requires Markers in what it receives.
    pub markers: bool,
    /// C: the sender of this frame requires CRCs, in both directions.
    pub crc: bool,
    /// R: in a Reply, the connection is rejected. In a Request it means nothing.
    pub reject: bool,
    /// Front of the Private Data if S = 1. The S bit exists from revision 2 on.
    pub enhanced: Option<Enhanced>,
    /// Res: sent as zero, ignored on receipt. Low four bits; below revision 2 the place of S is
    /// part of it.
    pub reserved: u8,
    /// Rev: the revision of MPA.
    pub revision: u8,
    /// The ULP's Private Data, without the enhanced data.
    pub private_data: Vec<u8>,
}

impl Frame {
    /// Reads the frame `input` begins with, and returns how many bytes it takes. `Ok(None)` asks
    /// for more bytes; bytes behind the frame are not looked at.
    ///
    /// # Errors
    /// Returns the error that makes the frame improperly formatted (RFC 5044 section 7.1.2), as
    /// soon as it can be seen. The revision is not judged here.
    pub fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let kind = FrameKind::detect(input)?;
        let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let Some(kind) = kind else { return Ok(None) };
        let [flags, revision] = [header[16], header[17]];
        let pd_length = u16::from_be_bytes([header[18], header[19]]);
        if usize::from(pd_length) > MAX_PRIVATE_DATA {
            return Err(FrameError::PrivateDataTooLong { announced: pd_length });
        }
        // Before revision 2 the place of S is reserved and must not be checked.
        let has_enhanced = revision >= 2 && flags & S != 0;
        if has_enhanced && usize::from(pd_length) < Enhanced::LEN {
            return Err(FrameError::EnhancedHeaderMissing { pd_length });
        }
        let Some(mut private_data) = rest.get(..usize::from(pd_length)) else { return Ok(None) };
        let mut enhanced = None;
        if has_enhanced && let Some((bytes, behind)) = private_data.split_first_chunk() {
            enhanced = Some(Enhanced::parse(*bytes));
            private_data = behind;
        }
        let frame = Self {
            kind,
            markers: flags & M != 0,
            crc: flags & C != 0,
            reject: flags & R != 0,
            enhanced,
            reserved: flags & if revision >= 2 { 0x0F } else { 0x1F },
            revision,
            private_data: private_data.to_vec(),
        };
        Ok(Some((frame, HEADER_LEN + usize::from(pd_length))))
    }

    /// The bytes of the frame, as it is: a wrong one comes out wrong.
    ///
    /// # Panics
    /// If the Private Data does not fit the 16 bits of PD_Length.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let enhanced = self.enhanced.map(|enhanced| enhanced.emit());
        let enhanced = enhanced.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let pd_length =
            u16::try_from(enhanced.len() + self.private_data.len()).expect("PD_Length has 16 bits");
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = bit(self.markers, M)
            | bit(self.crc, C)
            | bit(self.reject, R)
            | bit(self.enhanced.is_some(), S)
            | self.reserved & 0x1F;
        let mut bytes = Vec::with_capacity(HEADER_LEN + usize::from(pd_length));
        bytes.extend_from_slice(&self.kind.key());
        bytes.extend_from_slice(&[flags, self.revision]);
        bytes.extend_from_slice(&pd_length.to_be_bytes());
        bytes.extend_from_slice(enhanced);
        bytes.extend_from_slice(&self.private_data);
        bytes
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |on: bool| u8::from(on);
        write!(
            f,
            "MPA {:?} rev {} M={} C={} R={}",
            self.kind,
            self.revision,
            bit(self.markers),
            bit(self.crc),
            bit(self.reject)
        )?;
        if let Some(e) = self.enhanced {
            let [a, b, c, d] = [e.peer_to_peer, e.rtr_send, e.rtr_write, e.rtr_read].map(bit);
            write!(f, " S=1 A={a} B={b} C={c} D={d} IRD={} ORD={}", e.ird, e.ord)?;
        }
        if self.reserved != 0 {
            write!(f, " Res={:#04x}", self.reserved)?;
        }
        write!(f, " private data {} bytes", self.private_data.len())
    }
}

/// The type of a TLS record with handshake messages (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Reason why bytes are not a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes at the front are neither Key (RFC 5044 section 7.1.1).
    #[error(
        "no MPA startup frame: byte {offset} of the Key is {byte:#04x}{}",
        if *offset == 0 && *byte == TLS_HANDSHAKE { ", as TLS begins, which is not used here" } else { "" }
    )]
    BadKey {
        /// The first byte that fits neither Key.
        offset: usize,
        /// Value of the wrong byte.
        byte: u8,
    },
    /// PD_Length is above 512 (RFC 5044 section 7.1.1).
    #[error("PD_Length announces {announced} bytes of Private Data, 512 are the most")]
    PrivateDataTooLong {
        /// Value of PD_Length.
        announced: u16,
    },
    /// S = 1, but the Private Data is too short for the enhanced data (RFC 6581 section 6).
    #[error("S is set, but PD_Length is {pd_length}: too short for IRD and ORD")]
    EnhancedHeaderMissing {
        /// Value of PD_Length.
        pd_length: u16,
    },
}
