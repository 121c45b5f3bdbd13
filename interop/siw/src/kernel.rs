//! The siw module, built from the kernel's source, without changes (*stock*) and with its constants
//! as module parameters (*tunable*). No Debian kernel contains it.

use crate::cache::{Cache, is_fresh};
use crate::shell::{must, name, need, run};
use crate::workspace::folder;
use crate::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BUILD: Duration = Duration::from_secs(600);

/// Variant of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The source of the kernel, unchanged.
    Stock,
    /// Compile-time constants are module parameters (`tunable.patch`).
    Tunable,
}

impl Variant {
    /// Returns the name of the variant, as used in file names and by the guest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Tunable => "tunable",
        }
    }
}

/// Result of a build.
pub struct Modules {
    /// Kernel to boot.
    pub image: PathBuf,
    /// ABI of the kernel, such as `6.1.0-56-amd64`.
    pub abi: String,
    /// The stock `siw.ko`.
    pub stock: PathBuf,
    /// The tunable `siw.ko`; `None` if the patch does not fit the source of the kernel.
    pub tunable: Option<PathBuf>,
}

/// Builds both variants for the kernel in `root`, unless they exist.
///
/// # Errors
/// [`Error::Missing`] without a compiler and make.
pub fn build(cache: &Cache, root: &Path) -> Result<Modules> {
    let boot = root.join("boot");
    let entries = fs::read_dir(&boot).map_err(Error::io(boot.display()))?;
    let image =
        entries.flatten().map(|entry| entry.path()).find(|path| name(path).starts_with("vmlinuz-"));
    let image = image.ok_or_else(|| Error::Missing("a kernel among the packages".to_owned()))?;
    let abi = name(&image).trim_start_matches("vmlinuz-").to_owned();
    if !root.join(format!("lib/modules/{abi}/modules.dep.bin")).exists() {
        // The packages of newer kernels have compressed modules.
        let script = "find \"$1/lib/modules\" -name '*.ko.xz' -exec xz -d {} + && PATH=$PATH:/sbin depmod -b \"$1\" \"$2\"";
        need(&[("xz", "xz-utils"), ("depmod", "kmod")])?;
        must(Command::new("sh").args(["-c", script, "sh"]).arg(root).arg(&abi), BUILD)?;
    }
    let source = source(cache, root)?;
    let stock = variant(cache, root, &abi, &source, Variant::Stock)?;
    let tunable = match variant(cache, root, &abi, &source, Variant::Tunable) {
        Ok(tunable) => Some(tunable),
        Err(error) => {
            eprintln!("siw: no tunable variant of the driver: {error}");
            None
        }
    };
    Ok(Modules { image, abi, stock, tunable })
}

/// Extracts the source of the driver from that of the kernel.
fn source(cache: &Cache, root: &Path) -> Result<PathBuf> {
    const SCRIPT: &str = "tar -xJf \"$1\"/usr/src/linux-source-*.tar.xz -C \"$2\" --strip-components=5 \
        --wildcards '*/drivers/infiniband/sw/siw'";
    let source = cache.made("source");
    if source.join("siw_main.c").exists() {
        return Ok(source);
    }
    need(&[("tar", "tar"), ("xz", "xz-utils")])?;
    eprintln!("siw: taking the driver's source out of the kernel's");
    let partial = cache.made("source.partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(Error::io(partial.display()))?;
    must(Command::new("sh").args(["-c", SCRIPT, "sh"]).arg(root).arg(&partial), BUILD)?;
    fs::rename(&partial, &source).map_err(Error::io(source.display()))?;
    Ok(source)
}

fn variant(
    cache: &Cache,
    root: &Path,
    abi: &str,
    source: &Path,
    variant: Variant,
) -> Result<PathBuf> {
    let work = cache.made(variant.name());
    let module = work.join("siw.ko");
    let patch = folder().join("tunable.patch");
    let mut from = vec![source.join("siw_main.c")];
    if variant == Variant::Tunable {
        from.push(patch.clone());
    }
    if is_fresh(&module, &from) {
        return Ok(module);
    }
    let headers = root.join("usr/src");
    let ours = headers.join(format!("linux-headers-{abi}"));
    let compiler = compiler(&ours)?;
    need(&[("make", "make"), (&compiler, &compiler), ("patch", "patch")])?;
    eprintln!("siw: building siw.ko ({})", variant.name());
    let _ = fs::remove_dir_all(&work);
    must(Command::new("cp").arg("-r").arg(source).arg(&work), BUILD)?;
    if variant == Variant::Tunable {
        must(
            Command::new("patch").args(["-s", "-p1", "-d"]).arg(&work).arg("-i").arg(&patch),
            BUILD,
        )?;
    }
    // The Makefile of the package includes the common one by its absolute path.
    let plain = abi.strip_suffix("-amd64").unwrap_or(abi);
    let common = headers.join(format!("linux-headers-{plain}-common/Makefile"));
    fs::write(ours.join("Makefile"), format!("include {}\n", common.display()))
        .map_err(Error::io("the headers' Makefile"))?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(&ours).arg(format!("M={}", work.display()));
    // The module is built without type information for BPF, which would need pahole.
    make.args(["CONFIG_RDMA_SIW=m", "CONFIG_DEBUG_INFO_BTF_MODULES="]);
    make.arg(format!("CC={compiler}")).arg("modules");
    let made = run(&mut make, BUILD)?;
    if !made.is_ok() || !module.exists() {
        return Err(Error::Failed(format!(
            "siw.ko ({}) does not build: {}",
            variant.name(),
            made.last_line()
        )));
    }
    must(Command::new("strip").arg("--strip-debug").arg(&module), BUILD)?;
    Ok(module)
}

/// Returns the compiler that the kernel was built with, such as `gcc-12`.
fn compiler(headers: &Path) -> Result<String> {
    let config = fs::read_to_string(headers.join(".config"))
        .map_err(Error::io("the kernel's configuration"))?;
    let text = config.lines().find_map(|line| line.strip_prefix("CONFIG_CC_VERSION_TEXT=\""));
    let name = text.and_then(|text| text.split([' ', '"']).next()).unwrap_or("gcc");
    // Debian's kernels prefix its name with the architecture.
    Ok(name.strip_prefix("x86_64-linux-gnu-").unwrap_or(name).to_owned())
}
