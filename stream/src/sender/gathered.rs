//! FPDUs whose payload is sent from the memory of the host: the header, the payload, and PAD with
//! CRC are separate pieces.

use super::transmit_queue::{MemoryId, TransmitQueue};
use crate::host::{Payload, SourceGone};
use core::ops::Range;
use uiw_mpa::crc::Crc32c;
use uiw_mpa::tx::FpduTx;

/// FPDU that is being queued. It has no Markers, because these would be inside the payload.
pub(super) struct GatheredFpdu<'a, M> {
    fpdu: &'a mut FpduTx,
    queue: &'a mut TransmitQueue<M>,
    ulpdu_len: u16,
    crc: Crc32c,
}

impl<'a, M> GatheredFpdu<'a, M> {
    /// Begins an FPDU whose ULPDU_Length field and DDP header are in staging, from `start` to its
    /// end. `len` bytes of payload follow.
    pub(super) fn begin(
        fpdu: &'a mut FpduTx,
        queue: &'a mut TransmitQueue<M>,
        start: usize,
        len: u32,
    ) -> Self {
        // The length of a segment is limited by MULPDU, which fits into ULPDU_Length.
        let ulpdu_len = (queue.staging.len() - start - 2 + len as usize) as u16;
        queue.staging[start..start + 2].copy_from_slice(&FpduTx::header(ulpdu_len));
        let mut gathered = Self { fpdu, queue, ulpdu_len, crc: Crc32c::new() };
        gathered.staged(start);
        gathered
    }

    /// Adds the bytes in staging from `start` to its end.
    fn staged(&mut self, start: usize) {
        if self.fpdu.crc_on() {
            self.crc = self.crc.update(&self.queue.staging[start..]);
        }
        self.queue.push_staged(start);
    }

    /// Adds `range` of `payload`, whose memory was added to the queue last.
    ///
    /// # Errors
    /// [`SourceGone`] if the memory is no longer valid, so that the FPDU cannot be finished.
    pub(super) fn memory<P: Payload<Memory = M>>(
        &mut self,
        memory: MemoryId,
        payload: &P,
        range: Range<usize>,
    ) -> Result<(), SourceGone> {
        if self.fpdu.crc_on() {
            self.crc = payload.update_crc(range.clone(), self.crc)?;
        }
        self.queue.push_memory(memory, range);
        Ok(())
    }

    /// Adds all of `payload`, which is copied unless it is stable.
    ///
    /// # Errors
    /// The errors of [`GatheredFpdu::memory`].
    pub(super) fn payload<P: Payload<Memory = M>>(&mut self, payload: &P) -> Result<(), SourceGone> {
        let range = 0..payload.len();
        if payload.is_stable() {
            let memory = self.queue.add_memory(payload.to_memory());
            return self.memory(memory, payload, range);
        }
        let start = self.queue.staging.len();
        payload.append_to(range, &mut self.queue.staging)?;
        self.staged(start);
        Ok(())
    }

    /// Adds PAD and CRC.
    pub(super) fn end(self) {
        let trailer = self.fpdu.trailer(self.ulpdu_len, self.crc);
        let start = self.queue.staging.len();
        self.queue.staging.extend_from_slice(trailer.as_slice());
        self.queue.push_staged(start);
        self.queue.end_fpdu();
    }
}
