//! Requests that a program builds field by field, between `ibv_wr_start` and `ibv_wr_complete`.

use crate::boundary::Result;
use crate::errno::Errno;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use uiw_verbs::{STag, SendFlags, SendOp, Sge};

/// Locked from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
pub(crate) struct Builder {
    lock: RawMutex,
    batch: UnsafeCell<Batch>,
}

// SAFETY: the batch is touched between `wr_start` and `wr_complete` or `wr_abort` alone, by the thread that holds the lock.
unsafe impl Sync for Builder {}

impl Default for Builder {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, batch: UnsafeCell::default() }
    }
}

impl Builder {
    /// Begins a batch; waits while another thread builds one.
    pub(super) fn start(&self) {
        self.lock.lock();
        // SAFETY: locked by this thread.
        unsafe { (*self.batch.get()).clear() };
    }

    /// Whether a batch is being built.
    pub(super) fn is_started(&self) -> bool {
        self.lock.is_locked()
    }

    /// The batch that is being built.
    ///
    /// # Safety
    /// This thread called [`Builder::start`], and neither ends the batch nor calls this during `'a`.
    pub(super) unsafe fn batch<'a>(&self) -> &'a mut Batch {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.batch.get() }
    }

    /// Ends the batch, if there is one.
    ///
    /// # Safety
    /// No other thread called [`Builder::start`] last.
    pub(super) unsafe fn end(&self) {
        if self.lock.is_locked() {
            // SAFETY: locked, by the caller's promise on this thread.
            unsafe { self.lock.unlock() };
        }
    }
}

/// Requests that are posted as one chain.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) wrs: Vec<Wr>,
    /// Elements of all requests, one behind the other.
    pub(super) sges: Vec<Sge>,
    /// Inline data of all requests: C's buffers are free when the call that names them returns.
    pub(super) inline: Vec<u8>,
    /// The first error in the batch: nothing of it is posted.
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
        self.wrs.last_mut().ok_or_else(|| Errno::INVAL.because("data without a request"))?.data = data;
        Ok(())
    }

    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.failed = None;
    }

    /// The element of a request with inline data, at the copy.
    pub(super) fn inline_sge(&self, wr: &Wr) -> Result<Sge> {
        let Data::Inline { first, len } = wr.data else { return Ok(Sge::default()) };
        let length = u32::try_from(len).map_err(|_| Errno::INVAL.out_of_range())?;
        Ok(Sge { addr: self.inline[first..].as_ptr().addr() as u64, length, lkey: STag(0) })
    }
}
