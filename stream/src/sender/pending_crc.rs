//! FPDUs whose CRCs are still to be computed.

use alloc::vec::Vec;
use core::ops::Range;
use uiw_mpa::tx::FpduTx;

/// FPDUs in staging whose CRC fields are still zero. Reading bytes right behind their stores is
/// slow (45 against 23 nanoseconds for 1,418), so the copies of some FPDUs go before the CRCs of
/// all.
#[derive(Debug, Default)]
pub(super) struct PendingCrc {
    fpdus: Vec<Range<usize>>,
}

impl PendingCrc {
    /// Bytes copied before their CRCs: they stay in the first-level cache.
    const MAX_BYTES: usize = 16 << 10;

    /// Makes an FPDU of `staging[start..]`. [`PendingCrc::finalize`] must follow before anything is
    /// sent.
    #[inline]
    pub(super) fn frame(&mut self, fpdu: &mut FpduTx, staging: &mut Vec<u8>, start: usize) {
        fpdu.frame(staging, start);
        self.fpdus.push(start..staging.len());
        if staging.len() - self.fpdus[0].start >= Self::MAX_BYTES {
            self.finalize(fpdu, staging);
        }
    }

    /// Computes every CRC that is due.
    pub(super) fn finalize(&mut self, fpdu: &FpduTx, staging: &mut [u8]) {
        for range in self.fpdus.drain(..) {
            fpdu.finalize_crc(&mut staging[range]);
        }
    }
}
