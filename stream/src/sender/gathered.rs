//! FPDUs that consist of pieces, whose CRC is computed while they are added: the header, the payload,
//! and PAD with CRC. The payload is sent from the memory of the host, or is copied.

use super::transmit_queue::{MemoryId, TransmitQueue};
use crate::error::LocalError;
use crate::host::{Payload, SourceGone, StreamHost};
use core::ops::Range;
use uiw_mpa::Crc32c;
use uiw_mpa::tx::FpduTx;

/// FPDU that is being queued. It has no Markers, because these would be inside the payload.
pub(super) struct GatheredFpdu<'a, M> {
    fpdu: &'a mut FpduTx,
    queue: &'a mut TransmitQueue<M>,
    ulpdu_len: u16,
    crc: Crc32c,
    /// Index of the first byte in staging that is not queued yet.
    unqueued: usize,
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
        let crc = match fpdu.crc_on() {
            true => Crc32c::new().update(&queue.staging[start..]),
            false => Crc32c::new(),
        };
        Self { fpdu, queue, ulpdu_len, crc, unqueued: start }
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
        if self.unqueued < self.queue.staging.len() {
            self.queue.push_staged(self.unqueued);
        }
        self.queue.push_memory(memory, range);
        self.unqueued = self.queue.staging.len();
        Ok(())
    }

    /// Adds a copy of `range` of `payload`.
    ///
    /// # Errors
    /// The errors of [`GatheredFpdu::memory`].
    pub(super) fn copy<P: Payload<Memory = M>>(
        &mut self,
        payload: &P,
        range: Range<usize>,
    ) -> Result<(), SourceGone> {
        if self.fpdu.crc_on() {
            self.crc = payload.append_with_crc(range, &mut self.queue.staging, self.crc)?;
        } else {
            payload.append_to(range, &mut self.queue.staging)?;
        }
        Ok(())
    }

    /// Adds a copy of the bytes `range` of a request.
    pub(super) fn request<H: StreamHost<Memory = M>>(
        &mut self,
        host: &mut H,
        id: u32,
        range: Range<u32>,
    ) -> Result<(), LocalError> {
        self.crc = host.copy_request_with_crc(id, range, &mut self.queue.staging, self.crc)?;
        Ok(())
    }

    /// Adds all of `payload`, which is copied unless it is stable.
    ///
    /// # Errors
    /// The errors of [`GatheredFpdu::memory`].
    pub(super) fn payload<P: Payload<Memory = M>>(
        &mut self,
        payload: &P,
    ) -> Result<(), SourceGone> {
        let range = 0..payload.len();
        if payload.is_stable() {
            let memory = self.queue.add_memory(payload.to_memory());
            return self.memory(memory, payload, range);
        }
        self.copy(payload, range)
    }

    /// Adds PAD and CRC.
    pub(super) fn end(self) {
        let trailer = self.fpdu.trailer(self.ulpdu_len, self.crc);
        self.queue.staging.extend_from_slice(trailer.as_slice());
        self.queue.push_staged(self.unqueued);
        self.queue.end_fpdu();
    }
}
