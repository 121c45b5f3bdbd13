//! The guest's initramfs: programs with the libraries they need, kernel modules in the order they load, our own small programs.

use crate::cache::{Cache, is_fresh};
use crate::cpio::Archive;
use crate::kernel::Modules;
use crate::shell::{must, name, need};
use crate::workspace::folder;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Programs, by their place in the packages.
const PROGRAMS: &[&str] = &[
    "bin/busybox",
    "bin/dash",
    "bin/ip",
    "bin/ss",
    "sbin/tc",
    "sbin/ethtool",
    "usr/bin/rdma",
    "bin/rdma",
    "sbin/rdma",
    "usr/bin/tcpdump",
    "usr/bin/rping",
    "usr/bin/ucmatose",
    "usr/bin/rstream",
    "usr/bin/riostream",
    "usr/bin/rcopy",
    "usr/bin/ibv_devinfo",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_read_bw",
    "usr/bin/ib_send_bw",
    "usr/bin/ib_read_lat",
    "usr/bin/rdma_client",
    "usr/bin/rdma_server",
    "usr/bin/rdma_xclient",
    "usr/bin/rdma_xserver",
    "usr/sbin/nvme",
    "sbin/iscsid",
    "sbin/iscsiadm",
    "sbin/mke2fs",
    "sbin/e2fsck",
];

/// Groups of kernel modules; `load NAME` inserts one.
const MODULES: &[(&str, &[&str])] = &[
    (
        "base",
        &[
            "virtio_pci",
            "virtio_net",
            "virtio_rng",
            "virtio_console",
            "crc32c_generic",
            "crc32c_intel",
            "libcrc32c",
            "ib_core",
            "ib_uverbs",
            "iw_cm",
            "rdma_cm",
            "rdma_ucm",
        ],
    ),
    ("netem", &["sch_netem"]),
    ("nvme", &["null_blk", "nvmet", "nvmet_rdma", "nvme_fabrics", "nvme_rdma"]),
    ("nfs", &["rpcrdma", "nfsd", "nfs"]),
    ("iser", &["crc32c_generic", "sd_mod", "ext4", "ib_iser"]),
    ("ninep", &["9pnet_rdma", "9p"]),
    ("vgem", &["vgem"]),
];

/// Where the linker of every program looks.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";
const PROVIDERS: &str = "usr/lib/x86_64-linux-gnu/libibverbs";

/// Makes the initramfs if it is not there, or older than what is in it.
///
/// # Errors
/// [`Error::Missing`] without a C compiler; [`Error::Failed`] when a part is absent.
pub fn build(cache: &Cache, modules: &Modules) -> Result<PathBuf> {
    let image = cache.made("initramfs");
    let guest = folder().join("guest");
    let mut from: Vec<PathBuf> = files(&guest)?;
    from.push(folder().join("src/image.rs"));
    from.push(modules.stock.clone());
    from.extend(modules.tunable.clone());
    if is_fresh(&image, &from) {
        return Ok(image);
    }
    eprintln!("siw: making the guest");
    let mut archive = Archive::default();
    for folder in [
        "proc", "sys", "dev", "tmp", "run", "root", "mnt", "etc", "var/run", "bin", "sbin", "usr/bin",
        "usr/sbin", "modules",
    ] {
        archive.folder(folder);
    }
    userland(cache, &mut archive)?;
    kernel_modules(modules, &mut archive)?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0::/root:/bin/sh\ntcpdump:x:1:1::/:/bin/sh\n".to_vec());
    archive.file("etc/group", 0o644, b"root:x:0:\n".to_vec());
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost guest\n".to_vec());
    archive.file("etc/libibverbs.d/siw.driver", 0o644, b"driver siw\n".to_vec());
    let partial = cache.made("initramfs.partial");
    fs::write(&partial, archive.emit()).map_err(Error::io(partial.display()))?;
    fs::rename(&partial, &image).map_err(Error::io(image.display()))?;
    Ok(image)
}

/// The initramfs with one more program of this machine in `bin`, and its libraries: the kernel unpacks archives that stand one
/// behind the other.
///
/// # Errors
/// [`Error::Missing`] when a library is absent; [`Error::Failed`] when a file cannot be read.
pub fn with_program(cache: &Cache, image: &Path, program: &Path) -> Result<Vec<u8>> {
    need(&[("readelf", "binutils")])?;
    let mut archive = Archive::default();
    let mut libraries = Libraries::new(&cache.stage("user"));
    libraries.want(program)?;
    archive.file(&format!("bin/{}", name(program)), 0o755, read(program)?);
    for (soname, from) in &libraries.found {
        archive.file(&format!("{LIBRARIES}/{soname}"), 0o755, read(from)?);
    }
    let mut bytes = read(image)?;
    bytes.extend(archive.emit());
    Ok(bytes)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(Error::io(folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(path.display()))
}

/// A module: newer kernels' packages have them compressed.
fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return read(path);
    }
    need(&[("xz", "xz-utils")])?;
    let output = Command::new("xz").arg("-dc").arg(path).output().map_err(Error::io("xz"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(Error::Failed(format!("xz: {}", path.display())))
    }
}

fn userland(cache: &Cache, archive: &mut Archive) -> Result<()> {
    need(&[("readelf", "binutils"), ("gcc", "gcc")])?;
    let user = cache.stage("user");
    let mut libraries = Libraries::new(&user);
    for program in PROGRAMS {
        let from = user.join(program);
        if from.exists() {
            archive.file(&format!("bin/{}", name(&from)), 0o755, read(&from)?);
            libraries.want(&from)?;
        }
    }
    for library in files(&user.join(PROVIDERS))? {
        if name(&library).starts_with("libsiw") {
            archive.file(&format!("{PROVIDERS}/{}", name(&library)), 0o755, read(&library)?);
            libraries.want(&library)?;
        }
    }
    for source in files(&folder().join("guest"))? {
        let name = name(&source);
        match name.strip_suffix(".c") {
            Some(program) => {
                let made = compile(cache, &source, program)?;
                archive.file(&format!("bin/{program}"), 0o755, read(&made)?);
                libraries.want(&made)?;
            }
            None if name == "init" => archive.file("init", 0o755, read(&source)?),
            None => archive.file(&format!("bin/{name}"), 0o755, read(&source)?),
        }
    }
    // Loaded by name at run time: by pthread_exit, and for host names.
    for soname in ["libgcc_s.so.1", "libnss_files.so.2"] {
        let path = libraries.find(soname)?;
        libraries.found.insert(soname.to_owned(), path);
    }
    for (soname, from) in &libraries.found {
        archive.file(&format!("{LIBRARIES}/{soname}"), 0o755, read(from)?);
    }
    let loader = libraries.find("ld-linux-x86-64.so.2")?;
    archive.file("lib64/ld-linux-x86-64.so.2", 0o755, read(&loader)?);
    archive.link("bin/sh", "dash");
    for applet in ["mount", "mkdir", "insmod"] {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    Ok(())
}

/// Compiles one of our programs against the libraries that the guest has.
fn compile(cache: &Cache, source: &Path, program: &str) -> Result<PathBuf> {
    let user = cache.stage("user");
    let made = cache.made(program);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&made).arg(source);
    gcc.arg("-I").arg(user.join("usr/include")).arg("-L").arg(user.join("usr").join(LIBRARIES));
    gcc.args(["-Wl,--as-needed", "-Wl,--allow-shlib-undefined", "-lrdmacm", "-libverbs", "-lpthread"]);
    must(&mut gcc, Duration::from_secs(120))?;
    Ok(made)
}

/// The libraries that programs need, and those that these need.
struct Libraries {
    places: Vec<PathBuf>,
    found: BTreeMap<String, PathBuf>,
}

impl Libraries {
    /// What no package in the cache has comes from this machine, which is of the same release.
    fn new(user: &Path) -> Self {
        let folders = [LIBRARIES, "usr/lib/x86_64-linux-gnu", "lib", "usr/lib", "lib64"];
        let places =
            [user, Path::new("/")].into_iter().flat_map(|root| folders.map(|folder| root.join(folder)));
        Self { places: places.collect(), found: BTreeMap::new() }
    }

    fn find(&self, soname: &str) -> Result<PathBuf> {
        let mut places = self.places.iter().map(|place| place.join(soname));
        places
            .find(|path| path.exists())
            .ok_or_else(|| Error::Missing(format!("the library {soname} for the guest")))
    }

    fn want(&mut self, program: &Path) -> Result<()> {
        let dynamic = must(Command::new("readelf").arg("-d").arg(program), Duration::from_secs(60))?;
        let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
        for soname in needed.filter_map(|line| line.split_once('[')?.1.strip_suffix(']')) {
            if !self.found.contains_key(soname) {
                let path = self.find(soname)?;
                self.found.insert(soname.to_owned(), path.clone());
                self.want(&path)?;
            }
        }
        Ok(())
    }
}

/// The kernel package's modules, by name.
fn kernel_modules(modules: &Modules, archive: &mut Archive) -> Result<()> {
    let mut tree = BTreeMap::new();
    collect(&modules.tree, &mut tree)?;
    for (group, names) in MODULES {
        let mut order = Vec::new();
        for name in *names {
            // Newer kernels have some built in.
            if tree.contains_key(*name) {
                order_of(name, &tree, &mut order, &mut BTreeSet::new())?;
            }
        }
        let mut list = String::new();
        for name in &order {
            let path = format!("modules/{name}.ko");
            archive.file(&path, 0o644, read_module(&tree[name])?);
            list += &format!("/{path}\n");
        }
        archive.file(&format!("modules/{group}.list"), 0o644, list.into_bytes());
    }
    archive.file("modules/siw-stock.ko", 0o644, read(&modules.stock)?);
    if let Some(tunable) = &modules.tunable {
        archive.file("modules/siw-tunable.ko", 0o644, read(tunable)?);
    }
    Ok(())
}

fn collect(folder: &Path, tree: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for path in files(folder)? {
        if path.is_dir() {
            collect(&path, tree)?;
        } else {
            let name = name(&path);
            let name = name.strip_suffix(".xz").unwrap_or(&name);
            if let Some(name) = name.strip_suffix(".ko") {
                tree.insert(name.replace('-', "_"), path);
            }
        }
    }
    Ok(())
}

/// What a module depends on, then itself.
fn order_of(
    name: &str,
    tree: &BTreeMap<String, PathBuf>,
    order: &mut Vec<String>,
    seen: &mut BTreeSet<String>,
) -> Result<()> {
    if order.iter().any(|done| done == name) || !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let Some(path) = tree.get(name) else { return Ok(()) };
    for other in depends(&read_module(path)?) {
        order_of(&other, tree, order, seen)?;
    }
    order.push(name.to_owned());
    Ok(())
}

/// `depends=` in a module's `.modinfo`: its strings stand between NULs.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|bytes| bytes == key) else { return Vec::new() };
    let value = module[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(value);
    text.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_dependencies() {
        assert_eq!(
            depends(b"xx\0license=GPL\0depends=ib-core,libcrc32c\0name=siw\0"),
            ["ib_core", "libcrc32c"]
        );
        assert!(depends(b"\0depends=\0name=x\0").is_empty());
    }
}
