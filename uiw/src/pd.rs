//! Protection domains.

use crate::device::Device;
use crate::error::Result;
use uiw_verbs::integration;

/// Protection domain: memory and connections of the same domain may work together, others not (RFC 5040 section 2.1).
///
/// Clones name the same domain; it lives as long as anything in it. [`Pd::as_raw`] is the same domain for the [raw layer](crate::raw).
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
    /// Returns the domain for the [raw layer](crate::raw): queue pairs, shared receive queues, regions and windows.
    #[must_use]
    pub fn as_raw(&self) -> &uiw_verbs::Pd {
        &self.0
    }

    /// Returns its number on the device.
    #[must_use]
    pub fn num(&self) -> u32 {
        self.0.num()
    }

    /// Returns the number of objects that keep it alive, this handle not counted.
    #[must_use]
    pub fn users(&self) -> usize {
        self.0.users()
    }

    /// Returns a handle of its device.
    pub(crate) fn device(&self) -> Device {
        integration::device_of(&self.0).into()
    }
}

impl Device {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit).
    pub fn alloc_pd(&self) -> Result<Pd> {
        Ok(self.as_raw().alloc_pd()?.into())
    }
}

/// A domain that was allocated by the raw layer.
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
