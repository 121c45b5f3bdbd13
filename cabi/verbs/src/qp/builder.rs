//! Requests that a program builds field by field, between `ibv_wr_start` and `ibv_wr_complete`.

use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_verbs::{STag, SendFlags, SendOp, Sge};

/// Requests that are posted as one chain.
#[derive(Default)]
pub(crate) struct Batch {
    pub(super) wrs: Vec<Wr>,
    /// Elements of all requests, one after the other.
    pub(super) sges: Vec<Sge>,
    /// Inline data of all requests. It is copied, because the program may reuse its buffer when the
    /// call returns.
    pub(super) inline: Vec<u8>,
    /// First error in the batch. If there is one, nothing is posted.
    pub(super) failed: Option<Errno>,
}

pub(super) struct Wr {
    pub(super) wr_id: u64,
    pub(super) flags: SendFlags,
    pub(super) op: SendOp,
    pub(super) data: Data,
}

#[derive(Clone, Copy)]
pub(super) enum Data {
    None,
    Sges { first: usize, count: usize },
    Inline { first: usize, len: usize },
}

impl Batch {
    pub(super) fn set(&mut self, data: Data) -> Result<()> {
        self.wrs.last_mut().ok_or_else(|| Errno::INVAL.because("data without a request"))?.data =
            data;
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.failed = None;
    }

    /// Returns the element of a request with inline data, which refers to the copy.
    pub(super) fn inline_sge(&self, wr: &Wr) -> Result<Sge> {
        let Data::Inline { first, len } = wr.data else { return Ok(Sge::default()) };
        let length = u32::try_from(len).map_err(|_| Errno::INVAL.out_of_range())?;
        Ok(Sge { addr: self.inline[first..].as_ptr().addr() as u64, length, lkey: STag(0) })
    }
}
