//! Debian packages, fetched by apt-get and unpacked beside the system, never into it.

use crate::cache::Cache;
use crate::shell::{must, need, run};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The longest that a download may take: about 240 MB.
const DOWNLOAD: Duration = Duration::from_secs(1200);
const UNPACK: Duration = Duration::from_secs(300);

/// Programs of the guest and the libraries they need. Libraries whose names another release has changed are taken from this
/// machine, which is of the same release.
const USERLAND: &[&str] = &[
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
    "libc6",
    "libgcc-s1",
    "libibverbs1",
    "librdmacm1",
    "libibverbs-dev",
    "librdmacm-dev",
    "libibumad3",
    "libpci3",
    "libudev1",
    "libmnl0",
    "libbpf1",
    "libelf1",
    "libcap2",
    "libcap-ng0",
    "zlib1g",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpcap0.8",
    "libpcap0.8t64",
    "libdbus-1-3",
    "libsystemd0",
    "libssl3",
    "libssl3t64",
    "libgcrypt20",
    "libgpg-error0",
    "liblzma5",
    "liblz4-1",
    "libzstd1",
    "libtirpc3",
    "libgssapi-krb5-2",
    "libkrb5-3",
    "libk5crypto3",
    "libkrb5support0",
    "libcom-err2",
    "libkeyutils1",
    "libdb5.3",
    "libselinux1",
    "libpcre2-8-0",
    "libxtables12",
    "nvme-cli",
    "libnvme1",
    "libjson-c5",
    "libuuid1",
    "libatomic1",
    "libnuma1",
    "open-iscsi",
    "libopeniscsiusr",
    "libisns0",
    "libkmod2",
    "libmount1",
    "libblkid1",
    "e2fsprogs",
    "libext2fs2",
    "libss2",
];

/// The kernel's packages.
pub struct KernelPackages {
    /// The ABI: `6.1.0-56-amd64`.
    pub abi: String,
    /// The version that names source and build tools: `6.1`.
    pub version: String,
    image: String,
    headers: String,
    common: String,
    kbuild: String,
    /// The source package's name: `linux-source-6.1`.
    pub source: String,
}

impl KernelPackages {
    fn of(abi: &str) -> Result<Self> {
        let mut numbers = abi.split('.');
        let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
            return Err(Error::Failed(format!("\"{abi}\" is no kernel version")));
        };
        let minor = minor.split(|c: char| !c.is_ascii_digit()).next().unwrap_or(minor);
        let version = format!("{major}.{minor}");
        let plain = abi.strip_suffix("-amd64").unwrap_or(abi);
        Ok(Self {
            abi: abi.to_owned(),
            image: format!("linux-image-{abi}"),
            headers: format!("linux-headers-{abi}"),
            common: format!("linux-headers-{plain}-common"),
            // Named after the ABI since Debian's kernels have the release in it.
            kbuild: format!("linux-kbuild-{}", if plain.contains('+') { plain } else { &version }),
            source: format!("linux-source-{version}"),
            version,
        })
    }

    fn all(&self) -> [&str; 5] {
        [&self.image, &self.headers, &self.common, &self.kbuild, &self.source]
    }
}

/// Fetches and unpacks everything that is not there yet.
///
/// # Errors
/// [`Error::Missing`] where apt-get is absent or does not have the packages.
pub fn provide(cache: &Cache) -> Result<KernelPackages> {
    let kernel = KernelPackages::of(&abi(cache)?)?;
    let wanted = kernel.all().into_iter().chain(USERLAND.iter().copied());
    let mut missing: Vec<&str> = wanted.filter(|package| deb(cache, package).is_none()).collect();
    // What was asked for once is not asked for again, though this release may lack some of it.
    let asked = wanted_list(&kernel);
    let is_asked = fs::read_to_string(cache.made("fetched")).is_ok_and(|before| before == asked);
    if !missing.is_empty() && !is_asked {
        need(&[("apt-get", "apt"), ("dpkg-deb", "dpkg")])?;
        // What this release does not have by that name is not asked for: apt-get would give up on all.
        let known = known(&missing)?;
        missing.retain(|package| known.contains(*package));
        if !missing.is_empty() {
            download(cache, &missing)?;
        }
    }
    for package in kernel.all() {
        if deb(cache, package).is_none() {
            return Err(Error::Missing(format!(
                "the Debian package {package} (apt-get did not have it; see `apt-get update`)"
            )));
        }
    }
    fs::write(cache.made("fetched"), asked).map_err(Error::io("the cache"))?;
    unpack(cache, "kernel", &[&kernel.image])?;
    unpack(cache, "headers", &[&kernel.headers, &kernel.common, &kernel.kbuild])?;
    unpack(cache, "user", USERLAND)?;
    Ok(kernel)
}

/// The names of all packages, a line each.
fn wanted_list(kernel: &KernelPackages) -> String {
    let names = kernel.all().into_iter().chain(USERLAND.iter().copied());
    names.flat_map(|name| [name, "\n"]).collect()
}

/// The ABI of the kernel, the release's own or that of the cache's version; kept, so that the cache stays of one kernel.
fn abi(cache: &Cache) -> Result<String> {
    let kept = cache.made("abi");
    if let Ok(abi) = fs::read_to_string(&kept) {
        return Ok(abi.trim().to_owned());
    }
    need(&[("apt-cache", "apt")])?;
    if !std::env::consts::ARCH.eq("x86_64") {
        return Err(Error::Missing("an x86-64 machine (the guest's packages are built for it)".to_owned()));
    }
    let meta = match cache.kernel() {
        Some(version) => format!("linux-image-{version}-amd64"),
        None => "linux-image-amd64".to_owned(),
    };
    let mut apt = Command::new("apt-cache");
    let text = must(apt.args(["depends", &meta]), Duration::from_secs(60));
    let text = text.unwrap_or_default();
    let found = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let abi = found.ok_or_else(|| {
        Error::Missing(format!("apt's lists of packages ({meta} is unknown: run `apt-get update`)"))
    })?;
    fs::write(&kept, abi).map_err(Error::io(kept.display()))?;
    Ok(abi.to_owned())
}

/// Those of `packages` that can be had, by one call: each reads all of apt's lists.
fn known(packages: &[&str]) -> Result<BTreeSet<String>> {
    let mut apt = Command::new("apt-cache");
    // Its exit code is not 0 where it lacks one of them.
    let output = run(apt.args(["show", "-q"]).args(packages), Duration::from_secs(300))?;
    let (mut name, mut known) = ("", BTreeSet::new());
    for line in output.out.lines() {
        if let Some(package) = line.strip_prefix("Package: ") {
            name = package;
        } else if line.starts_with("Filename: ") {
            known.insert(name.to_owned());
        }
    }
    Ok(known)
}

fn download(cache: &Cache, packages: &[&str]) -> Result<()> {
    eprintln!("siw: fetching {} Debian packages (about 240 MB, once)", packages.len());
    let mut apt = Command::new("apt-get");
    apt.args(["-q", "download"]).args(packages).current_dir(cache.debs());
    match run(&mut apt, DOWNLOAD)? {
        output if output.is_ok() => Ok(()),
        output => Err(Error::Missing(format!("apt-get download: {}", output.last_line()))),
    }
}

/// The file of a package in the cache.
pub(crate) fn deb(cache: &Cache, package: &str) -> Option<PathBuf> {
    let prefix = format!("{package}_");
    let entries = fs::read_dir(cache.debs()).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| {
        let name = crate::shell::name(path);
        name.starts_with(&prefix) && name.ends_with(".deb")
    })
}

/// A package and its version, for reports.
pub(crate) fn version(cache: &Cache, package: &str) -> String {
    let file = deb(cache, package).map(|path| crate::shell::name(&path)).unwrap_or_default();
    let version = file.split('_').nth(1).unwrap_or("of unknown version");
    format!("{package} {version}")
}

fn unpack(cache: &Cache, part: &str, packages: &[&str]) -> Result<()> {
    let stage = cache.stage(part);
    fs::create_dir_all(&stage).map_err(Error::io(stage.display()))?;
    for package in packages {
        let done = cache.stage(&format!(".{part}-{package}"));
        let Some(deb) = deb(cache, package) else { continue };
        if done.exists() {
            continue;
        }
        must(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&stage), UNPACK)?;
        fs::write(&done, "").map_err(Error::io(done.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_abi() {
        let kernel = KernelPackages::of("6.12.9+deb13-amd64").unwrap();
        assert_eq!(kernel.version, "6.12");
        assert_eq!(kernel.common, "linux-headers-6.12.9+deb13-common");
        assert_eq!(kernel.kbuild, "linux-kbuild-6.12.9+deb13");
        assert_eq!(KernelPackages::of("6.1.0-56-amd64").unwrap().kbuild, "linux-kbuild-6.1");
        assert!(KernelPackages::of("six").is_err());
    }
}
