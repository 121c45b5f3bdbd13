//! An FPDU whose payload is sent from where it lies: header, memory, and PAD with CRC are pieces of their own.

use crate::qp::out_queue::{MemoryId, OutQueue};
use mem::{Pinned, Span};
use mpa::crc::Crc32c;
use mpa::tx::FpduTx;
use std::ops::Range;

/// An FPDU that is being queued. Not with Markers, which stand in the payload.
pub(super) struct InPlace<'a> {
    fpdu: &'a mut FpduTx,
    out: &'a mut OutQueue,
    ulpdu_len: u16,
    crc: Crc32c,
}

impl<'a> InPlace<'a> {
    /// Room for ULPDU_Length, and the DDP header, stand in staging from `start` to its end; `len` octets of payload follow.
    pub(super) fn begin(fpdu: &'a mut FpduTx, out: &'a mut OutQueue, start: usize, len: u32) -> Self {
        // A segment is at most as long as MULPDU says, which fits ULPDU_Length.
        let ulpdu_len = (out.staging.len() - start - 2 + len as usize) as u16;
        out.staging[start..start + 2].copy_from_slice(&FpduTx::header(ulpdu_len));
        let mut crc = Crc32c::new();
        if fpdu.crc_on() {
            crc = crc.update(&out.staging[start..]);
        }
        out.push_staged(start);
        Self { fpdu, out, ulpdu_len, crc }
    }

    /// The next octets of the payload are `range` of `pin`, which is the memory that was added to the queue last.
    pub(super) fn memory(&mut self, memory: MemoryId, pin: &Pinned<'_>, range: Range<usize>) {
        if self.fpdu.crc_on() {
            self.crc = pin.fold(range.clone(), self.crc, Crc32c::update);
        }
        self.out.push_memory(memory, range.start, range.len());
    }

    /// The next octets of the payload are all of `span`.
    pub(super) fn span(&mut self, span: Span) {
        if self.fpdu.crc_on()
            && let Ok(pin) = span.pin()
        {
            // A region that goes away now is met again when the octets are sent.
            self.crc = pin.fold(0..span.len(), self.crc, Crc32c::update);
        }
        let len = span.len();
        let memory = self.out.add_memory(span);
        self.out.push_memory(memory, 0, len);
    }

    /// PAD and CRC.
    pub(super) fn end(self) {
        let trailer = self.fpdu.trailer(self.ulpdu_len, self.crc);
        let start = self.out.staging.len();
        self.out.staging.extend_from_slice(trailer.as_slice());
        self.out.push_staged(start);
    }
}
