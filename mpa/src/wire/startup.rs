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

/// Key of an MPA Request Frame.
pub const KEY_REQUEST: [u8; 16] = *b"MPA ID Req Frame";

/// Key of an MPA Reply Frame.
pub const KEY_REPLY: [u8; 16] = *b"MPA ID Rep Frame";

/// Length in bytes of a frame without its Private Data.
pub const HEADER_LEN: usize = 20;

/// Maximum value of PD_Length, in bytes. With S = 1, it includes the four bytes of [`Enhanced`].
pub const MAX_PRIVATE_DATA: usize = 512;

/// Value of IRD or ORD with all bits set: the ULP negotiates that depth itself (RFC 6581 section
/// 9.1).
pub const NOT_NEGOTIATED: u16 = 0x3FFF;

/// Bit of Res that the Linux siw driver uses for an extension, which is not in the RFCs.
///
/// If it is set in the Request and in the Reply, siw may send FPDUs larger than a TCP segment.
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
    /// Returns the Key: the first 16 bytes of such a frame.
    #[must_use]
    pub const fn key(self) -> [u8; 16] {
        match self {
            Self::Request => KEY_REQUEST,
            Self::Reply => KEY_REPLY,
        }
    }

    /// Returns the kind of the frame at the front of `input`, or `None` if `input` has fewer than
    /// the ten bytes that are needed to distinguish the kinds.
    ///
    /// # Errors
    /// Returns [`FrameError::BadKey`] if a byte matches neither Key.
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

/// Enhanced connection establishment data at the front of the Private Data (RFC 6581 section 9).
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
    /// Maximum number of RDMA Reads that the sender of the frame serves at a time, 14 bits.
    /// [`NOT_NEGOTIATED`] leaves it to the ULP.
    pub ird: u16,
    /// Maximum number of RDMA Reads that the sender of the frame issues at a time, 14 bits.
    /// [`NOT_NEGOTIATED`] leaves it to the ULP.
    pub ord: u16,
}

impl Enhanced {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;

    /// Decodes the four bytes. All values are valid.
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

    /// Encodes the four bytes. Only the low 14 bits of `ird` and `ord` are used.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let flags = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        let ird = flags(self.peer_to_peer, self.rtr_send) | self.ird & 0x3FFF;
        let ord = flags(self.rtr_write, self.rtr_read) | self.ord & 0x3FFF;
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}

/// Startup frame, with all fields as they are on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the sender of this frame requires Markers in the stream that it receives.
    pub markers: bool,
    /// C: the sender of this frame requires CRCs, in both directions.
    pub crc: bool,
    /// R: the connection is rejected. The flag has a meaning only in a Reply.
    pub reject: bool,
    /// Enhanced data, which is present if S = 1. The flag S exists since revision 2.
    pub enhanced: Option<Enhanced>,
    /// Res: sent as zero and ignored on receipt. It has four bits, and before revision 2 also the
    /// bit that is now S.
    pub reserved: u8,
    /// Rev: the revision of MPA.
    pub revision: u8,
    /// The ULP's Private Data, without the enhanced data.
    pub private_data: Vec<u8>,
}

impl Frame {
    /// Decodes the frame at the front of `input`, and returns it with its length in bytes. Returns
    /// `Ok(None)` if the frame is not complete yet. Bytes after the frame are ignored.
    ///
    /// # Errors
    /// Returns a [`FrameError`] if the frame is improperly formatted (RFC 5044 section 7.1.2), as
    /// soon as the received bytes show it. The revision is not checked here.
    pub fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let kind = FrameKind::detect(input)?;
        let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let Some(kind) = kind else { return Ok(None) };
        let [flags, revision] = [header[16], header[17]];
        let pd_length = u16::from_be_bytes([header[18], header[19]]);
        if usize::from(pd_length) > MAX_PRIVATE_DATA {
            return Err(FrameError::PrivateDataTooLong { announced: pd_length });
        }
        // Before revision 2, the bit of S is reserved and must not be checked.
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

    /// Encodes the frame. The fields are not checked, so an invalid frame is encoded as it is.
    ///
    /// # Panics
    /// Panics if the length of the Private Data does not fit the 16 bits of PD_Length.
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

/// Type of a TLS record with handshake messages (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Reason why bytes are not a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes match neither Key (RFC 5044 section 7.1.1).
    #[error(
        "no MPA startup frame: byte {offset} of the Key is {byte:#04x}{}",
        if *offset == 0 && *byte == TLS_HANDSHAKE { ", the start of TLS, which is not used here" } else { "" }
    )]
    BadKey {
        /// Offset of the first byte that matches neither Key.
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
