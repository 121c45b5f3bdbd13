//! The guest's initramfs: the extracted packages, kernel modules in the order in which they load,
//! and our own small programs.

use crate::cache::{Cache, is_fresh};
use crate::kernel::Modules;
use crate::shell::{must, name, need};
use crate::workspace::folder;
use crate::{Error, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw_interop::find;

/// Time limit of one step.
const STEP: Duration = Duration::from_secs(300);

/// Groups of kernel modules, which `load NAME` inserts.
const MODULES: &[(&str, &str)] = &[
    (
        "base",
        "virtio_pci virtio_net virtio_rng virtio_console crc32c_generic crc32c_intel libcrc32c ib_core ib_uverbs iw_cm rdma_cm rdma_ucm",
    ),
    ("netem", "sch_netem"),
    ("nvme", "null_blk nvmet nvmet_rdma nvme_fabrics nvme_rdma"),
    ("nfs", "rpcrdma nfsd nfs"),
    ("iser", "crc32c_generic sd_mod ext4 ib_iser"),
    ("ninep", "9pnet_rdma 9p"),
    ("vgem", "vgem"),
];

/// Shell command that appends all files below folder `$1` to the archive `$2`.
const ALL: &str = "cd \"$1\" && find . | cpio --quiet -o -H newc -R 0:0 >> \"$2\"";
/// Like [`ALL`], but omits the files that the guest does not need.
const NEEDED: &str = "cd \"$1\" && find . \\( -path ./usr/src -o -path ./usr/include -o -path ./boot -o -path ./lib/modules \
    -o -name '*.a' \\) -prune -o -print | cpio --quiet -o -H newc -R 0:0 >> \"$2\"";

/// Makes the initramfs of the packages in `root`, unless it exists and is not older than our
/// programs, the driver and this source file.
///
/// # Errors
/// [`Error::Missing`] without a C compiler, cpio or kmod; [`Error::Failed`] if a part is missing.
pub fn build(cache: &Cache, root: &Path, modules: &Modules) -> Result<PathBuf> {
    let image = cache.made("initramfs");
    let guest = folder().join("guest");
    let mut from: Vec<PathBuf> = files(&guest)?;
    from.push(folder().join("src/image.rs"));
    from.push(modules.stock.clone());
    from.extend(modules.tunable.clone());
    if is_fresh(&image, &from) {
        return Ok(image);
    }
    need(&[("gcc", "gcc"), ("cpio", "cpio")])?;
    eprintln!("siw: making the guest");
    let tree = cache.made("guest");
    let _ = fs::remove_dir_all(&tree);
    for folder in
        ["proc", "sys", "dev", "tmp", "run", "root", "mnt", "etc", "var/run", "bin", "modules"]
    {
        fs::create_dir_all(tree.join(folder)).map_err(Error::io(tree.display()))?;
    }
    let write = |path: &str, text: &str| fs::write(tree.join(path), text).map_err(Error::io(path));
    write("etc/passwd", "root:x:0:0::/root:/bin/sh\ntcpdump:x:1:1::/:/bin/sh\n")?;
    write("etc/group", "root:x:0:\n")?;
    write("etc/hosts", "127.0.0.1 localhost guest\n")?;
    for source in files(&guest)? {
        let name = name(&source);
        match name.strip_suffix(".c") {
            Some(program) => compile(root, &source, &tree.join("bin").join(program))?,
            None if name == "init" => copy(&source, &tree.join("init"))?,
            None => copy(&source, &tree.join("bin").join(name))?,
        }
    }
    for (group, names) in MODULES {
        write(&format!("modules/{group}.list"), &kernel_modules(root, modules, names, &tree)?)?;
    }
    copy(&modules.stock, &tree.join("modules/siw-stock.ko"))?;
    if let Some(tunable) = &modules.tunable {
        copy(tunable, &tree.join("modules/siw-tunable.ko"))?;
    }
    let partial = cache.made("initramfs.partial");
    let _ = fs::remove_file(&partial);
    pack(NEEDED, root, &partial)?;
    pack(ALL, &tree, &partial)?;
    fs::rename(&partial, &image).map_err(Error::io(image.display()))?;
    Ok(image)
}

/// Writes the initramfs to `folder`, with another program of this machine in `bin`. The kernel
/// unpacks concatenated archives.
///
/// # Errors
/// [`Error::Failed`] if a file cannot be read or written.
pub fn with_program(image: &Path, program: &Path, folder: &Path) -> Result<PathBuf> {
    let (tree, to) = (folder.join("tree"), folder.join("initramfs"));
    fs::create_dir_all(tree.join("bin")).map_err(Error::io(tree.display()))?;
    copy(program, &tree.join("bin").join(name(program)))?;
    fs::copy(image, &to).map_err(Error::io(image.display()))?;
    pack(ALL, &tree, &to)?;
    Ok(to)
}

fn pack(script: &str, from: &Path, to: &Path) -> Result<()> {
    must(Command::new("sh").args(["-c", script, "sh"]).arg(from).arg(to), STEP).map(drop)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(Error::io(folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Copies an executable file.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(0o755)))
        .map_err(Error::io(from.display()))
}

/// Compiles one of our programs with the libraries of the guest.
fn compile(root: &Path, source: &Path, made: &Path) -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(made).arg(source);
    gcc.arg("-I").arg(root.join("usr/include"));
    gcc.arg("-L").arg(root.join("usr/lib/x86_64-linux-gnu"));
    gcc.args(["-Wl,--as-needed", "-Wl,--allow-shlib-undefined"]);
    gcc.args(["-lrdmacm", "-libverbs", "-lpthread"]);
    must(&mut gcc, STEP).map(drop)
}

/// Copies modules and their dependencies. Returns their paths in the guest, in the order in which
/// they load.
fn kernel_modules(root: &Path, modules: &Modules, names: &str, tree: &Path) -> Result<String> {
    let modprobe = find("modprobe")
        .ok_or_else(|| Error::Missing("modprobe (Debian package kmod)".to_owned()))?;
    let mut modprobe = Command::new(modprobe);
    modprobe.arg("--dirname").arg(root).args(["--set-version", &modules.abi]);
    modprobe.args(["--show-depends", "--all"]);
    // In newer kernels, some of the modules are built in.
    let shown = must(modprobe.args(names.split(' ')), STEP)?;
    let mut list = String::new();
    for from in shown.lines().filter_map(|line| line.strip_prefix("insmod ")) {
        let from = Path::new(from.trim());
        let path = format!("modules/{}", name(from).replace('-', "_"));
        if !list.contains(&format!("/{path}\n")) {
            copy(from, &tree.join(&path))?;
            list += &format!("/{path}\n");
        }
    }
    Ok(list)
}
