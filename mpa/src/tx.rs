//! Transmission of FPDUs: adds length, PAD, Markers and CRC to each ULPDU (RFC 5044 section 4).

use alloc::vec::Vec;

use crate::marker::{self, MARKER_LEN, MarkerLayout};
use crate::size::{CRC_LEN, LENGTH_LEN, MAX_ULPDU, fpdu_len, pad_len};
use crate::{Crc32c, crc32c};

/// Sender of the FPDUs of one direction.
///
/// There are two ways to build the same bytes:
/// * [`seal`](Self::seal) completes an FPDU in a buffer.
/// * [`header`](Self::header) and [`trailer`](Self::trailer) return the bytes before and after a
///   ULPDU that is sent without copying it. This is not possible with Markers, which are inserted
///   in the ULPDU.
///
/// FPDUs must be sent in the order of the calls.
#[derive(Debug)]
pub struct FpduTx {
    crc: bool,
    markers: bool,
    position: u64,
}

impl FpduTx {
    /// Creates a sender that starts at the first byte after the startup frame. `crc` and `markers`
    /// state whether the ends have negotiated CRCs, and Markers for this direction.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, position: 0 }
    }

    /// Returns the number of bytes of Full Operation framed so far.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Continues at `position`, because the bytes after it were never passed to TCP.
    ///
    /// This is for a caller that drops FPDUs which it has built but not begun to send, in order to
    /// send a Terminate instead.
    pub const fn rewind(&mut self, position: u64) {
        self.position = position;
    }

    /// Returns whether the peer requires Markers.
    #[must_use]
    pub const fn markers(&self) -> bool {
        self.markers
    }

    /// Returns whether CRCs are computed. Otherwise the CRC field is sent as zero.
    #[must_use]
    pub const fn crc_on(&self) -> bool {
        self.crc
    }

    /// Converts `buf[start..]` to an FPDU: two bytes that are overwritten by the length, then the
    /// ULPDU up to the end of the buffer. The buffer grows by PAD, Markers and CRC.
    ///
    /// # Panics
    /// Panics if the two bytes are missing or the ULPDU is longer than [`MAX_ULPDU`].
    pub fn seal(&mut self, buf: &mut Vec<u8>, start: usize) {
        self.frame(buf, start);
        self.finalize_crc(&mut buf[start..]);
    }

    /// Like [`seal`](Self::seal), but leaves the CRC at zero; [`finalize_crc`](Self::finalize_crc)
    /// computes it later. For many FPDUs in a row it is faster to compute the CRCs after all bytes
    /// were copied than to read each byte immediately after it was stored.
    ///
    /// # Panics
    /// Panics under the same conditions as [`seal`](Self::seal).
    #[inline]
    pub fn frame(&mut self, buf: &mut Vec<u8>, start: usize) {
        let len = buf.len().saturating_sub(start);
        assert!(len >= LENGTH_LEN, "two bytes are due in front of the ULPDU");
        let ulpdu_len = len - LENGTH_LEN;
        assert!(ulpdu_len <= MAX_ULPDU, "ULPDU of {ulpdu_len} bytes");
        let header = Self::header(ulpdu_len as u16);
        // The CRC reads words, and would wait for a store to a part of one.
        if buf[start..start + LENGTH_LEN] != header {
            buf[start..start + LENGTH_LEN].copy_from_slice(&header);
        }
        if self.markers {
            let layout = MarkerLayout::new(self.position, fpdu_len(ulpdu_len));
            buf.resize(start + layout.wire_len() - CRC_LEN, 0);
            insert_markers(&mut buf[start..], &layout, len + pad_len(ulpdu_len));
            buf.extend_from_slice(&[0; CRC_LEN]);
        } else {
            // Appending a constant number of bytes is faster than appending exactly as many as needed.
            let end = buf.len() + pad_len(ulpdu_len) + CRC_LEN;
            buf.extend_from_slice(&[0; Trailer::MAX_LEN]);
            buf.truncate(end);
        }
        self.position += (buf.len() - start) as u64;
    }

    /// Computes and stores the CRC of an FPDU that [`frame`](Self::frame) built. Does nothing if
    /// CRCs are off.
    #[inline]
    pub fn finalize_crc(&self, fpdu: &mut [u8]) {
        if self.crc
            && let Some((bytes, crc)) = fpdu.split_last_chunk_mut::<CRC_LEN>()
        {
            *crc = crc32c(bytes).to_le_bytes();
        }
    }

    /// Returns the field ULPDU_Length, which precedes a ULPDU of `ulpdu_len` bytes.
    #[inline]
    #[must_use]
    pub const fn header(ulpdu_len: u16) -> [u8; LENGTH_LEN] {
        ulpdu_len.to_be_bytes()
    }

    /// Returns PAD and CRC, which follow a ULPDU of `ulpdu_len` bytes. `crc` is the CRC of
    /// ULPDU_Length and the ULPDU; it is ignored if CRCs are off.
    ///
    /// # Panics
    /// Panics if Markers are on. Use [`seal`](Self::seal) then.
    #[inline]
    #[must_use]
    pub fn trailer(&mut self, ulpdu_len: u16, crc: Crc32c) -> Trailer {
        assert!(!self.markers, "Markers stand in the ULPDU");
        let ulpdu_len = usize::from(ulpdu_len);
        let pad = pad_len(ulpdu_len);
        let mut bytes = [0; Trailer::MAX_LEN];
        if self.crc {
            let crc = if pad == 0 { crc } else { crc.update(&bytes[..pad]) };
            bytes[pad..pad + CRC_LEN].copy_from_slice(&crc.finish_wire());
        }
        self.position += fpdu_len(ulpdu_len) as u64;
        Trailer { bytes, len: (pad + CRC_LEN) as u8 }
    }
}

/// PAD and CRC at the end of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl Trailer {
    /// Maximum length in bytes.
    pub const MAX_LEN: usize = 3 + CRC_LEN;

    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Inserts the Markers into an FPDU. The first `len` bytes of `bytes` are the FPDU with PAD but
/// without CRC, and the bytes after them are the room for the Markers.
fn insert_markers(bytes: &mut [u8], layout: &MarkerLayout, len: usize) {
    // The loop starts with the last Marker, so that each byte is moved only once.
    let mut end = len;
    for n in (0..layout.inner_count()).rev() {
        let from = layout.fpdu_offset(n);
        let marker = layout.lead_len + layout.pointer(n);
        bytes.copy_within(from..end, marker + MARKER_LEN);
        // The pointer cannot overflow, because the ULPDU is not longer than MAX_ULPDU.
        bytes[marker..marker + MARKER_LEN].copy_from_slice(&marker::emit(layout.pointer(n) as u16));
        end = from;
    }
    if layout.lead_len != 0 {
        bytes.copy_within(..end, layout.lead_len);
        bytes[..MARKER_LEN].copy_from_slice(&marker::emit(0));
    }
}

#[cfg(test)]
impl FpduTx {
    /// Creates a sender with CRCs and Markers at byte `position` of Full Operation.
    pub(crate) const fn with_position(position: u64) -> Self {
        Self { crc: true, markers: true, position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [test:RFC5044-4.3-04]
    #[test]
    fn marker_at_2_to_32() {
        let mut tx = FpduTx::with_position((1 << 32) - 8);
        let mut buf = Vec::from([0xEE; 12]);
        tx.seal(&mut buf, 0);
        assert_eq!(
            buf[..16],
            [0, 10, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0, 0, 0, 8, 0xEE, 0xEE, 0xEE, 0xEE]
        );
        assert_eq!((buf.len(), tx.position()), (20, (1 << 32) + 12));
    }

    #[test]
    #[should_panic = "two bytes are due"]
    fn seal_requires_room_for_length() {
        FpduTx::new(true, false).seal(&mut Vec::from([0; 5]), 4);
    }
}
