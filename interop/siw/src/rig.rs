//! Everything together: packages, modules, initramfs, network, guest.

use crate::cache::Cache;
use crate::guest::Guest;
use crate::kernel::Modules;
use crate::net::Net;
use crate::{Result, image, kernel, packages};
use std::path::{Path, PathBuf};

/// rping's port in the guest.
pub const RPING: u16 = 7174;
/// The partner program's port.
pub const PARTNER: u16 = 7471;
/// A port of the guest's at which tests listen for a moment.
pub const SPARE: u16 = 7472;

/// What a guest is made of.
pub struct Parts {
    /// Kernel and driver.
    pub modules: Modules,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// The libraries' package and version in the guest.
    pub library: String,
}

/// A guest and the way to it. The guest goes first.
pub struct Rig {
    /// The guest.
    pub guest: Guest,
    /// The network between it and this machine.
    pub net: Net,
    /// What it is made of.
    pub parts: Parts,
}

/// The folder of this crate.
#[must_use]
pub fn folder() -> PathBuf {
    let here = std::env::var_os("UIW_SIW_FOLDER").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(here)
}

/// The workspace's folder.
#[must_use]
pub fn workspace() -> PathBuf {
    folder().parent().and_then(Path::parent).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Fetches and builds what a guest is made of, as far as it is not there yet.
///
/// # Errors
/// [`crate::Error::Missing`] where packages or tools cannot be had.
pub fn provide() -> Result<Parts> {
    let cache = Cache::open()?;
    let kernel = packages::provide(&cache)?;
    let modules = kernel::build(&cache, &kernel)?;
    let initramfs = image::build(&cache, &modules)?;
    let library = packages::version(&cache, "ibverbs-providers");
    Ok(Parts { modules, initramfs, library })
}

impl Rig {
    /// Provides the parts, then boots a guest.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] where something of this machine is absent.
    pub fn boot() -> Result<Self> {
        let parts = provide()?;
        let net = Net::open(&[RPING, PARTNER, SPARE])?;
        let guest = Guest::boot(&parts.modules.image, &parts.initramfs, &net)?;
        Ok(Self { guest, net, parts })
    }
}
