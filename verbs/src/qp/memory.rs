//! Copies between the memory of requests and messages.

use crate::qp::{QpInner, Wqe};
use crate::wr::{SendFlags, Sge};
use std::ops::Range;
use uiw_mem::{MemoryGone, MrCache, PinnedSpan, Table};
use uiw_mpa::Crc32c;
use uiw_stream::LocalError;

/// Destination for the bytes of a request.
pub(crate) trait Gathered {
    fn append(&mut self, bytes: &[u8]);

    /// Adds the bytes of pinned memory.
    ///
    /// # Errors
    /// [`MemoryGone`] if a program has unmapped some of them.
    fn append_pinned(&mut self, pin: &PinnedSpan<'_>) -> Result<(), MemoryGone>;
}

impl Gathered for Vec<u8> {
    #[inline(always)]
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline(always)]
    fn append_pinned(&mut self, pin: &PinnedSpan<'_>) -> Result<(), MemoryGone> {
        pin.copy_to_vec(0..pin.len(), self)
    }
}

/// Appends bytes to a vector, and continues a CRC over them.
pub(crate) struct CrcAppender<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) crc: Crc32c,
}

impl Gathered for CrcAppender<'_> {
    fn append(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.crc = self.crc.update(bytes);
    }

    fn append_pinned(&mut self, pin: &PinnedSpan<'_>) -> Result<(), MemoryGone> {
        self.crc = pin.copy_to_vec_with_crc(0..pin.len(), self.out, self.crc)?;
        Ok(())
    }
}

/// The remaining part of a buffer that has the length of the request.
impl Gathered for &mut [u8] {
    #[inline(always)]
    fn append(&mut self, bytes: &[u8]) {
        if let Some(place) = self.split_off_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    #[inline(always)]
    fn append_pinned(&mut self, pin: &PinnedSpan<'_>) -> Result<(), MemoryGone> {
        self.split_off_mut(..pin.len()).map_or(Ok(()), |place| pin.copy_to(0, place))
    }
}

impl QpInner {
    /// Places `bytes` at `offset` of a message whose memory is `sges`. `cache` keeps the memory
    /// pinned.
    #[inline]
    pub(crate) fn scatter(
        &self,
        table: &Table,
        cache: &mut MrCache,
        sges: &[Sge],
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalError> {
        let mut skip = u64::from(offset);
        let mut rest = bytes;
        for sge in sges {
            if rest.is_empty() {
                break;
            }
            let room = u64::from(sge.length);
            if skip >= room {
                skip -= room;
                continue;
            }
            let take = (room - skip).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at(take);
            let range = (sge.addr.wrapping_add(skip), take as u32);
            table
                .pin_local(cache, sge.lkey, self.pd.id(), range, true)
                .map_err(|_| LocalError::Protection)?
                .copy_from(0, now)
                .map_err(|_| LocalError::Protection)?;
            rest = later;
            skip = 0;
        }
        Ok(())
    }

    /// Appends the bytes in `range` of a request to `out`. `cache` keeps the memory pinned.
    #[inline(always)]
    pub(crate) fn gather(
        &self,
        table: &Table,
        cache: &mut MrCache,
        wqe: &Wqe,
        range: Range<u32>,
        out: &mut impl Gathered,
    ) -> Result<(), LocalError> {
        if wqe.flags.contains(SendFlags::INLINE) {
            out.append(&wqe.inline[range.start as usize..range.end as usize]);
            return Ok(());
        }
        let (mut skip, mut left) = (range.start, range.end - range.start);
        for sge in &wqe.sges {
            if skip >= sge.length {
                skip -= sge.length;
                continue;
            }
            let take = left.min(sge.length - skip);
            let part = (sge.addr.wrapping_add(u64::from(skip)), take);
            let pin = table
                .pin_local(cache, sge.lkey, self.pd.id(), part, false)
                .map_err(|_| LocalError::Protection)?;
            out.append_pinned(&pin).map_err(|_| LocalError::Protection)?;
            left -= take;
            skip = 0;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}
