//! An FPDU whose payload is sent from where it lies: header, memory, and PAD with CRC are pieces of
//! their own.

use super::transmit_queue::{MemoryId, TransmitQueue};
use crate::host::{Payload, SourceGone};
use core::ops::Range;
use uiw_mpa::crc::Crc32c;
use uiw_mpa::tx::FpduTx;

/// An FPDU that is being queued. Not with Markers, which stand in the payload.
pub(super) struct GatheredFpdu<'a, M> {
    fpdu: &'a mut FpduTx,
    queue: &'a mut TransmitQueue<M>,
    ulpdu_len: u16,
    crc: Crc32c,
}

impl<'a, M> GatheredFpdu<'a, M> {
    /// Room for ULPDU_Length, and the DDP header, stand in staging from `start` to its end; `len`
    /// bytes of payload follow.
    pub(super) fn begin(
        fpdu: &'a mut FpduTx,
        queue: &'a mut TransmitQueue<M>,
        start: usize,
        len: u32,
    ) -> Self {
        // A segment is at most as long as MULPDU says, which fits ULPDU_Length.
        let ulpdu_len = (queue.staging.len() - start - 2 + len as usize) as u16;
        queue.staging[start..start + 2].copy_from_slice(&FpduTx::header(ulpdu_len));
        let mut gathered = Self { fpdu, queue, ulpdu_len, crc: Crc32c::new() };
        gathered.staged(start);
        gathered
    }

    /// The next bytes stand in staging from `start` to its end.
    fn staged(&mut self, start: usize) {
        if self.fpdu.crc_on() {
            self.crc = self.crc.update(&self.queue.staging[start..]);
        }
        self.queue.push_staged(start);
    }

    /// The next bytes of the payload are `range` of `payload`, whose memory was added to the queue
    /// last.
    ///
    /// # Errors
    /// The memory is gone: the FPDU cannot be finished.
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

    /// The next bytes of the payload are all of `payload`, copied unless they are stable.
    ///
    /// # Errors
    /// As [`GatheredFpdu::memory`].
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

    /// PAD and CRC.
    pub(super) fn end(self) {
        let trailer = self.fpdu.trailer(self.ulpdu_len, self.crc);
        let start = self.queue.staging.len();
        self.queue.staging.extend_from_slice(trailer.as_slice());
        self.queue.push_staged(start);
        self.queue.end_fpdu();
    }
}
