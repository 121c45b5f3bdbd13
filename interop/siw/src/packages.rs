//! Debian packages of the guest, which mmdebstrap extracts to a folder, without installing them.

use crate::cache::Cache;
use crate::shell::{need, run};
use crate::{Error, Result, debian};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Time limit for downloading and extracting about 350 MB.
const PROVIDE: Duration = Duration::from_secs(1500);

/// Programs of the guest, and packages needed to compile our own programs for it. apt adds the
/// dependencies of these packages.
const USERLAND: [&str; 15] = [
    "busybox-static",
    "dash",
    "iproute2",
    "ethtool",
    "tcpdump",
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "libibverbs-dev",
    "librdmacm-dev",
    "nvme-cli",
    "open-iscsi",
    "e2fsprogs",
];

/// Extracts the kernel with its headers and source, and the programs of the guest, unless this was
/// already done with the same packages. Returns the folder.
///
/// The archive is extracted by tar, so that the files belong to this user. Documents and the
/// compiler of the packages are omitted.
///
/// # Errors
/// [`Error::Missing`] if this machine is not an x86-64 one or has no mmdebstrap, or if mmdebstrap
/// cannot download the packages.
pub fn provide(cache: &Cache) -> Result<PathBuf> {
    const SCRIPT: &str = "mmdebstrap --quiet --variant=extract --format=tar \"--include=$1\" \"$2\" - $3 \
        | tar -x -C \"$4\" --exclude=./dev --exclude=./usr/share --exclude=./usr/lib/gcc --exclude=./usr/libexec";
    let (root, record) = (cache.made("root"), cache.made("packages"));
    let version = cache.kernel().map_or(String::new(), |version| format!("-{version}"));
    let kernel = ["linux-image", "linux-headers"].map(|name| format!("{name}{version}-amd64"));
    let source = format!("linux-source{version}");
    let packages: Vec<_> =
        kernel.iter().chain([&source]).map(String::as_str).chain(USERLAND).collect();
    let packages = packages.join(",");
    // The record is written last, so it may be missing.
    if root.exists() && fs::read_to_string(&record).map_or(true, |made| made == packages) {
        return Ok(root);
    }
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::Missing(
            "an x86-64 machine (the guest's packages are built for it)".to_owned(),
        ));
    }
    need(&[("mmdebstrap", "mmdebstrap"), ("bash", "bash"), ("tar", "tar")])?;
    let partial = cache.made("root.partial");
    // The driver and the initramfs of earlier packages must not be used with the new ones.
    let _ = fs::remove_dir_all(cache.made(""));
    fs::create_dir_all(&partial).map_err(Error::io(partial.display()))?;
    eprintln!("siw: fetching Debian packages (about 350 MB, once)");
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", SCRIPT, "bash", &packages]);
    command.args([debian::SUITE, debian::sources().unwrap_or_default()]).arg(&partial);
    let output = run(&mut command, PROVIDE)?;
    if !output.is_ok() {
        return Err(Error::Missing(format!("Debian packages: mmdebstrap: {}", output.last_line())));
    }
    fs::rename(&partial, &root).map_err(Error::io(root.display()))?;
    fs::write(&record, packages).map_err(Error::io(record.display()))?;
    Ok(root)
}
