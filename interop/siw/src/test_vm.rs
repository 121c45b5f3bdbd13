//! Virtual machine with the siw driver, from the packages to the running guest and its network.

use crate::cache::Cache;
use crate::guest::{Folder, Guest};
use crate::kernel::Modules;
use crate::net::Net;
use crate::{Error, Result, image, kernel, packages};
use std::fs;
use std::path::{Path, PathBuf};

/// Port of rping in the guest.
pub const RPING: u16 = 7174;
/// Port of the partner program.
pub const PARTNER: u16 = 7471;
/// Port in the guest for programs that tests start for a short time.
pub const SPARE: u16 = 7472;

/// Parts of a guest.
pub struct Parts {
    /// Kernel and driver.
    pub modules: Modules,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// Version of the kernel, if it is not the one of the release.
    pub kernel: Option<String>,
    /// File name of the guest's libibverbs, which contains its version.
    pub library: String,
    /// Folder that contains the initramfs, if only this process uses it.
    folder: Option<Folder>,
}

/// A guest and its network. The guest is dropped first.
pub struct TestVm {
    /// The guest.
    pub guest: Guest,
    /// The network between it and this machine.
    pub net: Net,
    /// Parts of the guest.
    pub parts: Parts,
}

/// Downloads and builds the parts of a guest that do not exist yet, with the release's own kernel
/// or another version of it.
///
/// # Errors
/// [`crate::Error::Missing`] if packages or tools are not available.
pub fn provide(kernel: Option<&str>) -> Result<Parts> {
    let cache = Cache::open(kernel)?;
    let root = packages::provide(&cache)?;
    let modules = kernel::build(&cache, &root)?;
    let initramfs = image::build(&cache, &root, &modules)?;
    let library = root.join("usr/lib/x86_64-linux-gnu/libibverbs.so.1");
    let library =
        fs::read_link(&library).map_err(Error::io(library.display()))?.display().to_string();
    Ok(Parts {
        modules,
        initramfs,
        kernel: cache.kernel().map(str::to_owned),
        library,
        folder: None,
    })
}

/// Removes the namespaces and folders of this process and of processes that have ended.
pub fn sweep() {
    crate::net::sweep();
    crate::guest::sweep();
    uiw_interop::stock::sweep();
}

impl TestVm {
    /// Provides the parts, then boots a guest with the release's kernel or this version.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if this machine lacks something.
    pub fn boot(kernel: Option<&str>) -> Result<Self> {
        let parts = provide(kernel)?;
        sweep();
        Self::boot_parts(parts)
    }

    /// Like [`TestVm::boot`], with another program of this machine in the guest.
    ///
    /// # Errors
    /// The errors of [`TestVm::boot`].
    pub fn boot_with(program: &Path) -> Result<Self> {
        let mut parts = provide(None)?;
        sweep();
        let folder = Folder::create("program")?;
        parts.initramfs = image::with_program(&parts.initramfs, program, &folder.path(""))?;
        parts.folder = Some(folder);
        Self::boot_parts(parts)
    }

    fn boot_parts(parts: Parts) -> Result<Self> {
        let net = Net::open(&[RPING, PARTNER, SPARE])?;
        let guest = Guest::boot(&parts.modules.image, &parts.initramfs, &net)?;
        Ok(Self { guest, net, parts })
    }
}
