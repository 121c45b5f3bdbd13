//! Protection domains.

use crate::device::Device;
use crate::driver::Driver;
use crate::error::Result;
use crate::faults::Call;
use std::sync::Arc;

/// Protection domain. Memory and queue pairs can be used together only if they belong to the same
/// domain (RFC 5040 section 2.1).
///
/// Clones refer to the same domain. It lives as long as any object in it.
#[derive(Clone)]
pub struct Pd(Arc<PdInner>);

struct PdInner {
    id: uiw_mem::PdId,
    device: Device,
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pd").field(&self.0.id).finish()
    }
}

impl Pd {
    pub(crate) fn id(&self) -> uiw_mem::PdId {
        self.0.id
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        self.0.device.driver()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the number of the domain, which is unique on the device.
    #[must_use]
    pub fn num(&self) -> u32 {
        self.0.id.0
    }

    /// Returns the number of other handles and objects that keep the domain alive.
    #[must_use]
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl Device {
    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`crate::Error::Limit`] if the device has its maximum number of protection domains.
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.driver().shared.call(Call::AllocPd)?;
        let limit = self.limits().max_pd;
        self.driver().shared.counts.pd.take("number of protection domains", limit)?;
        let id = uiw_mem::PdId(self.driver().shared.next_num());
        Ok(Pd(Arc::new(PdInner { id, device: self.for_object() })))
    }
}

impl PartialEq for Pd {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.device.driver().shared.counts.pd.release();
    }
}
