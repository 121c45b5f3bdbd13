//! FPDUs whose CRCs are not computed yet.

use alloc::vec::Vec;
use core::ops::Range;
use uiw_mpa::tx::FpduTx;

/// FPDUs in staging whose CRC fields are still zero. Reading bytes right after they were stored is
/// slow, so several FPDUs are copied before the CRCs of all of them are computed.
#[derive(Debug, Default)]
pub(super) struct PendingCrc {
    fpdus: Vec<Range<usize>>,
}

impl PendingCrc {
    /// Maximum number of bytes that are copied before their CRCs are computed, so that they stay in
    /// the first-level cache.
    const MAX_BYTES: usize = 16 << 10;

    /// Frames `staging[start..]` as an FPDU. Before anything is sent, [`PendingCrc::finalize`] must
    /// be called.
    #[inline]
    pub(super) fn frame(&mut self, fpdu: &mut FpduTx, staging: &mut Vec<u8>, start: usize) {
        fpdu.frame(staging, start);
        self.fpdus.push(start..staging.len());
        if staging.len() - self.fpdus[0].start >= Self::MAX_BYTES {
            self.finalize(fpdu, staging);
        }
    }

    /// Computes all pending CRCs.
    pub(super) fn finalize(&mut self, fpdu: &FpduTx, staging: &mut [u8]) {
        for range in self.fpdus.drain(..) {
            fpdu.finalize_crc(&mut staging[range]);
        }
    }
}
