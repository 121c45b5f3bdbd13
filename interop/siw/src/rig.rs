//! Everything together: packages, modules, initramfs, network, guest.

use crate::cache::Cache;
use crate::guest::{Folder, Guest};
use crate::kernel::Modules;
use crate::net::Net;
use crate::{Error, Result, image, kernel, packages};
use std::fs;
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
    /// Where the initramfs is, if it is of this process alone.
    folder: Option<Folder>,
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
    Ok(Parts { modules, initramfs, library, folder: None })
}

/// Removes what this process has, and what processes that are gone had: namespaces and folders.
pub fn sweep() {
    crate::net::sweep();
    crate::guest::sweep();
}

/// Whether what is named by a process id and a number belongs to this process, or to one that is gone.
pub(crate) fn is_left_over(name: &str) -> bool {
    let owner = name.split('-').next().unwrap_or_default();
    owner == std::process::id().to_string() || !Path::new("/proc").join(owner).exists()
}

impl Rig {
    /// Provides the parts, then boots a guest.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] where something of this machine is absent.
    pub fn boot() -> Result<Self> {
        let parts = provide()?;
        sweep();
        Self::boot_parts(parts)
    }

    /// As [`Rig::boot`], with a program of this machine in the guest, too.
    ///
    /// # Errors
    /// As [`Rig::boot`].
    pub fn boot_with(program: &Path) -> Result<Self> {
        let mut parts = provide()?;
        sweep();
        let octets = image::with_program(&Cache::open()?, &parts.initramfs, program)?;
        let folder = Folder::create("program")?;
        parts.initramfs = folder.path().join("initramfs");
        fs::write(&parts.initramfs, octets).map_err(Error::io(parts.initramfs.display()))?;
        parts.folder = Some(folder);
        Self::boot_parts(parts)
    }

    fn boot_parts(parts: Parts) -> Result<Self> {
        let net = Net::open(&[RPING, PARTNER, SPARE])?;
        let guest = Guest::boot(&parts.modules.image, &parts.initramfs, &net)?;
        Ok(Self { guest, net, parts })
    }
}
