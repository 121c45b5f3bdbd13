//! Protection domains.

use crate::device::Device;
use crate::error::Result;
use uiw_verbs::integration;

/// Protection domain: a connection can only use memory of its own domain (RFC 5040 section 2.1).
///
/// Clones are handles of the same domain, which lives as long as a handle or an object that belongs
/// to it.
///
/// ```
/// use uiw::raw::{CqConfig, QpInit};
///
/// let device = uiw::Device::open()?;
/// let pd = device.alloc_pd()?;
/// let cq = device.as_raw().create_cq(64, CqConfig::default())?;
/// let qp = pd.as_raw().create_qp(QpInit::new(&cq, &cq))?;
/// assert_eq!(qp.pd(), pd.as_raw());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Pd(uiw_verbs::Pd);

impl Pd {
    /// Returns the same domain as a type of the [raw layer](crate::raw), which allocates queue
    /// pairs, shared receive queues, regions and windows from it.
    #[must_use]
    pub fn as_raw(&self) -> &uiw_verbs::Pd {
        &self.0
    }

    /// Returns the number of this domain, which is unique on its device.
    #[must_use]
    pub fn num(&self) -> u32 {
        self.0.num()
    }

    /// Returns the number of objects that keep the domain alive, not counting this handle.
    #[must_use]
    pub fn users(&self) -> usize {
        self.0.users()
    }

    /// Returns a handle of the device to which the domain belongs.
    pub(crate) fn device(&self) -> Device {
        integration::device_of(&self.0).into()
    }
}

impl Device {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Limit`](crate::ErrorKind::Limit) if the device has no more domains.
    pub fn alloc_pd(&self) -> Result<Pd> {
        Ok(self.as_raw().alloc_pd()?.into())
    }
}

/// Converts a domain that was allocated through the raw layer.
impl From<uiw_verbs::Pd> for Pd {
    fn from(pd: uiw_verbs::Pd) -> Self {
        Self(pd)
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
