//! Protection domains.

use crate::device::Device;
use crate::driver::Driver;
use crate::error::Result;
use crate::faults::Call;
use std::sync::Arc;

/// A protection domain: memory and queue pairs of the same domain may work together, others not
/// (RFC 5040 section 2.1).
///
/// Clones name the same domain; it lives as long as anything in it.
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
    pub(crate) fn new(device: Device) -> Self {
        let id = uiw_mem::PdId(device.driver().shared.next_num());
        Self(Arc::new(PdInner { id, device }))
    }

    pub(crate) fn id(&self) -> uiw_mem::PdId {
        self.0.id
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        self.0.device.driver()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the number on the device.
    #[must_use]
    pub fn num(&self) -> u32 {
        self.0.id.0
    }

    /// Objects that keep it alive, this handle not counted.
    #[must_use]
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl Device {
    /// A new protection domain.
    ///
    /// # Errors
    /// [`crate::Error::Limit`].
    pub fn alloc_pd(&self) -> Result<Pd> {
        self.driver().shared.call(Call::AllocPd)?;
        self.driver().shared.counts.take_pd(self.driver().limits())?;
        Ok(Pd::new(self.for_object()))
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
        self.device.driver().shared.counts.release_pd();
    }
}
