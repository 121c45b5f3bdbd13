//! Shared receive queues.

use crate::error::{Error, PostError, Result};
use crate::event::AsyncEvent;
use crate::faults::{Call, Faults};
use crate::notify::Wakes;
use crate::pd::Pd;
use crate::qp::{RecvQueue, RecvWqe};
use crate::wr::RecvWr;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of posted receives.
    pub max_wr: u32,
    /// Maximum number of scatter elements of one receive.
    pub max_sge: u32,
    /// Number of posted receives below which [`AsyncEvent::SrqLimitReached`] is raised, once. 0
    /// disables the event.
    pub limit: u32,
}

/// Receive queue that several queue pairs share.
pub struct Srq {
    num: u32,
    pd: Pd,
    max_sge: u32,
    queue: Mutex<RecvQueue>,
    limit: AtomicU32,
    /// Number of queue pairs that share the queue.
    users: AtomicU32,
    faults: Option<Arc<Faults>>,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("num", &self.num).finish_non_exhaustive()
    }
}

impl Srq {
    pub(crate) fn new(pd: Pd, num: u32, attr: SrqAttr) -> Self {
        Self {
            num,
            faults: pd.driver().shared.faults.clone(),
            pd,
            max_sge: attr.max_sge,
            queue: Mutex::new(RecvQueue::new(attr.max_wr, attr.max_sge)),
            limit: AtomicU32::new(attr.limit),
            users: AtomicU32::new(0),
        }
    }

    /// Returns the number of this queue, which is unique on its device.
    pub fn num(&self) -> u32 {
        self.num
    }

    /// Returns the protection domain of the queue.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the number of queue pairs that share the queue.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Posts receives in order.
    ///
    /// # Safety
    /// The rule of [`crate::Qp::post_recv`] applies: until the completion of a receive has been
    /// polled, or the queue and its queue pairs have been dropped, nothing else may access the
    /// memory of that receive.
    ///
    /// # Errors
    /// [`PostError`] has the index of the first receive that was refused. All receives before it
    /// are posted.
    pub unsafe fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        if let Some(faults) = &self.faults {
            faults.call(Call::PostSrqRecv).map_err(|error| PostError { index: 0, error })?;
        }
        let mut queue = self.queue.lock();
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(error) = queue.post(&wr) {
                result = Err(PostError { index, error });
                break;
            }
        }
        let waiting = queue.take_waiting();
        drop(queue);
        if !waiting.is_empty() {
            self.pd.driver().ring_all(&waiting);
        }
        result
    }

    /// Changes the depth, the limit, or both. `None` leaves a value as it is.
    ///
    /// # Errors
    /// [`Error::Zero`] if the new depth is 0. [`Error::Limit`] if more receives are posted than the
    /// new depth allows, if the depth exceeds the limit of the device, or if the limit exceeds the
    /// depth. Nothing has changed then.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let mut queue = self.queue.lock();
        let depth = max_wr.unwrap_or(queue.depth());
        // The present limit may be too large for a smaller depth.
        let limit_then = limit.unwrap_or_else(|| self.limit.load(Ordering::Acquire));
        if limit_then > depth {
            return Err(Error::Limit {
                what: "shared receive queue limit",
                asked: limit_then.into(),
                limit: depth.into(),
            });
        }
        if let Some(max_wr) = max_wr {
            let limits = self.pd.driver().limits();
            limits.check("shared receive queue depth", max_wr.into(), limits.max_srq_wr.into())?;
            queue.set_depth(max_wr)?;
        }
        if let Some(limit) = limit {
            self.limit.store(limit, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the current attributes. After [`AsyncEvent::SrqLimitReached`] was raised, the limit
    /// is 0.
    pub fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.queue.lock().depth(),
            max_sge: self.max_sge,
            limit: self.limit.load(Ordering::Acquire),
        }
    }

    /// Puts back a receive that was taken for a message that will not arrive, and notifies the
    /// connections that wait for a receive.
    pub(crate) fn put_back(&self, receive: &mut RecvWqe) {
        let mut queue = self.queue.lock();
        queue.put_back(receive);
        let waiting = queue.take_waiting();
        drop(queue);
        if !waiting.is_empty() {
            self.pd.driver().ring_all(&waiting);
        }
    }

    /// Takes the oldest receive. If there is none, returns `false` and registers the connection
    /// `waits`, if any: its doorbell rings at the next post.
    pub(crate) fn take(
        &self,
        into: &mut RecvWqe,
        waits: Option<uiw_llp::Token>,
        wakes: &mut Wakes,
    ) -> bool {
        let mut queue = self.queue.lock();
        if !queue.take(into) {
            if let Some(token) = waits {
                queue.wait(token);
            }
            return false;
        }
        let left = queue.len();
        drop(queue);
        self.check_limit(left, wakes);
        true
    }

    /// Raises [`AsyncEvent::SrqLimitReached`] if `left`, the number of posted receives, is below
    /// the limit. Then sets the limit to 0.
    fn check_limit(&self, left: usize, wakes: &mut Wakes) {
        let limit = self.limit.load(Ordering::Acquire) as usize;
        if left < limit
            && self
                .limit
                .compare_exchange(limit as u32, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        {
            self.pd.device().events().raise(AsyncEvent::SrqLimitReached { srq: self.num }, wakes);
        }
    }

    /// Removes connection `token` from those that wait for a receive.
    pub(crate) fn stop_waiting(&self, token: uiw_llp::Token) {
        self.queue.lock().stop_waiting(token);
    }
}

impl Pd {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Zero`] if the depth is 0. [`Error::Limit`] if an attribute or the number of these
    /// queues exceeds the [`Limits`](crate::Limits) of the device.
    pub fn create_srq(&self, attr: SrqAttr) -> Result<Arc<Srq>> {
        let driver = self.driver();
        driver.shared.call(Call::CreateSrq)?;
        let limits = driver.limits();
        limits.check("shared receive queue depth", attr.max_wr.into(), limits.max_srq_wr.into())?;
        limits.check("receive elements", attr.max_sge.max(1).into(), limits.max_sge.into())?;
        driver.shared.counts.srq.take("number of shared receive queues", limits.max_srq)?;
        Ok(Arc::new(Srq::new(self.clone(), driver.shared.next_num(), attr)))
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.pd.driver().shared.counts.srq.release();
        let gone = AsyncEvent::SrqLimitReached { srq: self.num };
        self.pd.device().events().remove_if(|event| *event == gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_llp::Token;

    #[test]
    fn refused_modification_changes_nothing() {
        let device = crate::Device::open().unwrap();
        let srq = device
            .alloc_pd()
            .unwrap()
            .create_srq(SrqAttr { max_wr: 4, max_sge: 1, limit: 3 })
            .unwrap();
        for (max_wr, limit) in
            [(Some(2), Some(3)), (Some(2), None), (Some(0), Some(0)), (None, Some(5))]
        {
            assert!(srq.modify(max_wr, limit).is_err(), "{max_wr:?}, {limit:?}");
            assert_eq!((srq.query().max_wr, srq.query().limit), (4, 3));
        }
        srq.modify(Some(2), Some(2)).unwrap();
        assert_eq!((srq.query().max_wr, srq.query().limit), (2, 2));
    }

    #[test]
    fn receive_put_back_wakes_waiting_connections() {
        let device = crate::Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let srq = pd.create_srq(SrqAttr { max_wr: 4, max_sge: 1, limit: 0 }).unwrap();
        // SAFETY: the receive has no buffers.
        unsafe { srq.post_recv([RecvWr { wr_id: 1, sges: &[] }]) }.unwrap();
        let (mut taken, mut wakes) = (RecvWqe::default(), Wakes::default());
        assert!(srq.take(&mut taken, Some(Token(1)), &mut wakes));
        for token in [3, 2, 3].map(Token) {
            assert!(!srq.take(&mut RecvWqe::default(), Some(token), &mut wakes));
        }
        assert_eq!(srq.queue.lock().take_waiting(), [Token(3), Token(2)]);
        assert!(!srq.take(&mut RecvWqe::default(), Some(Token(2)), &mut wakes));
        srq.put_back(&mut taken);
        assert_eq!(srq.queue.lock().take_waiting(), [], "its doorbell was not rung");
        assert!(srq.take(&mut taken, Some(Token(2)), &mut wakes));
    }
}
