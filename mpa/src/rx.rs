//! Reception of FPDUs: verifies them and returns their ULPDUs (RFC 5044 sections 4 and 6).

use alloc::vec::Vec;
use core::ops::{Deref, Range};

use crate::crc32c;
use crate::marker::{self, FPDU_STRIDE, MARKER_LEN, MarkerLayout};
use crate::size::{CRC_LEN, LENGTH_LEN, MIN_FPDU, fpdu_len};

/// Receiver of the FPDUs of one direction.
///
/// The caller owns the buffer and passes the bytes that it has received from the current position
/// of the stream on:
///
/// ```text
///   position()
///   ▼
///   ┌────────────────┬──────────────┬────────╌╌
///   │ FPDU, complete │ FPDU, partly │
///   └────────────────┴──────────────┴────────╌╌
///    ◀── consumed ──▶ next call starts here
/// ```
///
/// The result does not depend on how the bytes are split into reads.
#[derive(Debug)]
pub struct FpduRx {
    crc: bool,
    markers: bool,
    position: u64,
    failed: Option<FpduError>,
}

/// Result of [`FpduRx::next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The input does not contain a complete FPDU yet.
    NeedMore {
        /// Number of bytes, counted from the front, that are needed to make progress.
        at_least: usize,
    },
    /// A complete and valid FPDU.
    Fpdu(Fpdu<'a>),
}

/// Valid FPDU at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// Length of the FPDU in bytes, including Markers.
    pub consumed: usize,
    /// Offset of the ULPDU in the input, in bytes.
    pub start: usize,
    /// ULPDU, contiguous and without Markers.
    pub ulpdu: Verified<'a>,
}

/// Bytes of an FPDU that was verified, as RFC 5044 section 6 demands before its ULPDU may reach
/// DDP.
///
/// Either the CRC was correct, or the ends have negotiated not to use CRCs. Only [`FpduRx`] creates
/// this type, so a function that takes it cannot be called with bytes that were not verified:
///
/// ```compile_fail,E0423
/// let forged = uiw_mpa::Verified(b"no CRC was checked");
/// ```
///
/// ```compile_fail,E0308
/// let place: fn(uiw_mpa::Verified<'_>) = |_| {};
/// place(b"no CRC was checked");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified<'a>(&'a [u8]);

impl<'a> Verified<'a> {
    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the first `mid` bytes and the remaining bytes.
    ///
    /// # Panics
    /// Panics if there are fewer than `mid` bytes.
    #[inline]
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        let (front, rest) = self.0.split_at(mid);
        (Self(front), Self(rest))
    }

    /// Returns a copy that can be kept after the buffer is reused.
    #[must_use]
    pub fn to_buf(self) -> VerifiedBuf {
        VerifiedBuf(Vec::from(self.0))
    }
}

impl Deref for Verified<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0
    }
}

/// Copy of [`Verified`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedBuf(Vec<u8>);

impl VerifiedBuf {
    /// Returns the bytes.
    #[must_use]
    pub fn as_verified(&self) -> Verified<'_> {
        Verified(&self.0)
    }
}

/// Error after which no more FPDUs can be received in this direction (RFC 5044 section 8).
///
/// TCP must stay open for the Terminate that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FpduError {
    /// Code 2: the CRC does not match.
    #[error("FPDU at byte {position}: CRC32C is {received:#010x}, computed {computed:#010x}")]
    Crc {
        /// Position of the FPDU: number of bytes of Full Operation before it.
        position: u64,
        /// CRC computed over the received bytes.
        computed: u32,
        /// Value of the CRC field.
        received: u32,
    },
    /// Code 3: the CRC is correct, but a Marker and the ULPDU_Lengths disagree on where the FPDU
    /// starts.
    #[error(
        "Marker at byte {position}: FPDUPTR is {found}, the FPDU starts {expected} bytes before"
    )]
    Marker {
        /// Position of the Marker: number of bytes of Full Operation before it.
        position: u64,
        /// FPDUPTR that follows from the ULPDU_Lengths.
        expected: u16,
        /// FPDUPTR as received.
        found: u16,
    },
}

impl FpduRx {
    /// Creates a receiver that starts at the first byte after the startup frame. `crc` and
    /// `markers` state whether the ends have negotiated CRCs, and Markers for this direction.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, position: 0, failed: None }
    }

    /// Creates a receiver that starts at byte `position` of Full Operation, where an FPDU must
    /// begin. This is for a decoder of captures that lack the beginning of the stream.
    #[must_use]
    pub const fn with_position(crc: bool, markers: bool, position: u64) -> Self {
        Self { crc, markers, position, failed: None }
    }

    /// Verifies and returns the FPDU at the front of `input`, whose first byte is at
    /// [`position`](Self::position) of the stream.
    ///
    /// A complete FPDU is verified and counted as consumed. If it contains Markers, they are
    /// removed in place, so that [`Fpdu::ulpdu`] is contiguous. `input` is not modified until the
    /// FPDU is complete.
    ///
    /// # Errors
    /// Returns an [`FpduError`] if the FPDU is invalid. All later calls return the same error,
    /// because MPA must not pass any more FPDUs on a half connection after it has reported an error
    /// (RFC 5044 section 8).
    #[inline]
    pub fn next<'a>(&mut self, input: &'a mut [u8]) -> Result<Step<'a>, FpduError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let step =
            if self.markers { self.next_with_markers(input) } else { self.next_plain(input) };
        match &step {
            Ok(Step::Fpdu(fpdu)) => self.position += fpdu.consumed as u64,
            Ok(Step::NeedMore { .. }) => {}
            Err(error) => self.failed = Some(*error),
        }
        step
    }

    /// Returns the number of bytes of Full Operation consumed so far.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether CRCs are checked.
    #[must_use]
    pub const fn crc_on(&self) -> bool {
        self.crc
    }

    /// Returns whether Markers are expected.
    #[must_use]
    pub const fn markers(&self) -> bool {
        self.markers
    }

    #[inline]
    fn next_plain<'a>(&self, input: &'a [u8]) -> Result<Step<'a>, FpduError> {
        let Some(length) = input.first_chunk::<LENGTH_LEN>() else {
            return Ok(Step::NeedMore { at_least: MIN_FPDU });
        };
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let consumed = fpdu_len(ulpdu_len);
        let Some(fpdu) = input.get(..consumed) else {
            return Ok(Step::NeedMore { at_least: consumed });
        };
        self.check_crc(fpdu)?;
        Ok(Step::Fpdu(Self::verified_fpdu(fpdu, LENGTH_LEN..LENGTH_LEN + ulpdu_len)))
    }

    fn next_with_markers<'a>(&self, input: &'a mut [u8]) -> Result<Step<'a>, FpduError> {
        let lead_len = MarkerLayout::new(self.position, MIN_FPDU).lead_len;
        let Some(length) =
            input.get(lead_len..).and_then(|input| input.first_chunk::<LENGTH_LEN>())
        else {
            return Ok(Step::NeedMore { at_least: lead_len + MIN_FPDU });
        };
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let layout = MarkerLayout::new(self.position, fpdu_len(ulpdu_len));
        let consumed = layout.wire_len();
        let Some(fpdu) = input.get_mut(..consumed) else {
            return Ok(Step::NeedMore { at_least: consumed });
        };
        // The CRC is checked first, because error code 3 is for FPDUs whose CRC is valid.
        self.check_crc(fpdu)?;
        self.check_markers(fpdu, &layout)?;
        remove_markers(fpdu, &layout, LENGTH_LEN + ulpdu_len);
        let start = lead_len + LENGTH_LEN;
        Ok(Step::Fpdu(Self::verified_fpdu(fpdu, start..start + ulpdu_len)))
    }

    /// Wraps an FPDU that the caller has checked completely. Only this function creates
    /// [`Verified`] bytes of the input.
    #[inline]
    fn verified_fpdu(fpdu: &[u8], ulpdu: Range<usize>) -> Fpdu<'_> {
        Fpdu { consumed: fpdu.len(), start: ulpdu.start, ulpdu: Verified(&fpdu[ulpdu]) }
    }

    /// Checks the CRC if CRCs are used. It covers all bytes before the CRC field, including a
    /// leading Marker and a Marker between PAD and CRC.
    #[inline]
    fn check_crc(&self, fpdu: &[u8]) -> Result<(), FpduError> {
        if self.crc
            && let Some((covered, field)) = fpdu.split_last_chunk::<CRC_LEN>()
        {
            let (computed, received) = (crc32c(covered), u32::from_le_bytes(*field));
            if computed != received {
                return Err(FpduError::Crc { position: self.position, computed, received });
            }
        }
        Ok(())
    }

    fn check_markers(&self, fpdu: &[u8], layout: &MarkerLayout) -> Result<(), FpduError> {
        let check = |at: usize, expected: usize| {
            // In an oversized ULPDU, the distance between the header and a Marker may exceed the
            // range of FPDUPTR.
            let Ok(expected) = u16::try_from(expected) else { return Ok(()) };
            let marker = fpdu.get(at..).and_then(|bytes| bytes.first_chunk::<MARKER_LEN>());
            match marker.map(|marker| marker::parse(*marker)) {
                Some(found) if found != expected => {
                    Err(FpduError::Marker { position: self.position + at as u64, expected, found })
                }
                _ => Ok(()),
            }
        };
        if layout.lead_len != 0 {
            check(0, 0)?;
        }
        (0..layout.inner_count())
            .map(|n| layout.pointer(n))
            .try_for_each(|pointer| check(layout.lead_len + pointer, pointer))
    }
}

/// Removes the Markers among the first `wanted` bytes of the FPDU (ULPDU_Length and ULPDU), with
/// one move for each Marker.
fn remove_markers(fpdu: &mut [u8], layout: &MarkerLayout, wanted: usize) {
    for n in 0..layout.inner_count() {
        let to = layout.fpdu_offset(n);
        if to >= wanted {
            break;
        }
        let from = layout.lead_len + layout.pointer(n) + MARKER_LEN;
        let len = FPDU_STRIDE.min(wanted - to);
        fpdu.copy_within(from..from + len, layout.lead_len + to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FpduTx;
    use alloc::vec::Vec;

    /// Long after the TCP sequence numbers have wrapped, Markers still stand 512 bytes apart.
    // [test:RFC5044-4.3-04]
    #[test]
    fn positions_past_2_to_32() {
        let position = (1 << 32) - 256;
        let mut tx = FpduTx::with_position(position);
        let mut rx = FpduRx { position, ..FpduRx::new(true, true) };
        for len in [500, 0, 1200, 17] {
            let mut buf: Vec<u8> = (0..len + 2).map(|n| n as u8).collect();
            let expected = buf[2..].to_vec();
            tx.seal(&mut buf, 0);
            let Ok(Step::Fpdu(fpdu)) = rx.next(&mut buf) else { panic!("{len} bytes") };
            assert_eq!(*fpdu.ulpdu, expected);
        }
        assert!(rx.position() > 1 << 32);
        assert_eq!(rx.position(), tx.position());
    }
}
