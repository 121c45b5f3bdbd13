//! Compilers for other processors.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use crate::workspace::target;
use uiw_siw::debian;

/// Script that runs the unpacked compiler of Debian with its own libraries and standard library.
const WRAPPER: &str = "#!/bin/sh
root=$(dirname \"$(readlink -f \"$0\")\")
LD_LIBRARY_PATH=$root/lib exec \"$root/usr/bin/rustc\" --sysroot \"$root/usr\" \"$@\"
";

/// Returns the compiler for a processor, or `None` if Cargo's own compiler can be used because its
/// standard library for the processor is installed. Otherwise returns Debian's compiler, which the
/// first call unpacks below the target folder.
pub(super) fn compiler(arch: Arch) -> Result<Option<PathBuf>, String> {
    let mut print = Command::new("rustc");
    print.args(["--print", "target-libdir", "--target", &arch.target()]);
    let output = print.output().map_err(|error| format!("rustc: {error}"))?;
    if output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    {
        return Ok(None);
    }
    let folder = target()?.join(format!("rust-{}-{}", debian::SUITE, arch.name()));
    let compiler = folder.join("rustc");
    if !compiler.exists() {
        unpack(&folder, arch).map_err(|error| {
            format!(
                "no standard library of Rust for {}: `rustup target add {}`, or Debian's, of which: {error}",
                arch.name(),
                arch.target()
            )
        })?;
    }
    Ok(Some(compiler))
}

/// Unpacks Debian's compiler for this machine, with the standard libraries for both processors. It
/// gets its final name only when it is complete.
fn unpack(folder: &Path, arch: Arch) -> Result<(), String> {
    let partial = folder.with_extension(format!("partial-{}", std::process::id()));
    eprintln!("xtask: unpacking Debian's Rust for {} in {}", arch.name(), folder.display());
    let all = partial.join("all");
    let made = fs::create_dir_all(&partial)
        .map_err(|error| error.to_string())
        .and_then(|()| packages(&all, arch))
        .and_then(|()| {
            let kept = partial.join("kept");
            keep(&all, &kept)
                .and_then(|()| fs::rename(kept, folder))
                .map_err(|error| error.to_string())
        });
    let _ = fs::remove_dir_all(&partial);
    // Another process may have unpacked the same one meanwhile.
    if folder.exists() { Ok(()) } else { made }
}

/// Unpacks the packages.
fn packages(folder: &Path, arch: Arch) -> Result<(), String> {
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=extract"]);
    make.arg(format!("--architectures={},{}", Arch::here().debian(), arch.debian()));
    make.arg(format!("--include=rustc-web,libstd-rust-web-dev:{}", arch.debian()));
    make.arg(debian::SUITE).arg(folder).args(debian::sources());
    let output =
        make.output().map_err(|error| format!("mmdebstrap: {error}: install mmdebstrap"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "mmdebstrap: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// Libraries of glibc, which are not moved together with the compiler. The compiler uses those of
/// this system instead, because they must have the same version as the loader.
const GLIBC: [&str; 7] =
    ["ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so"];

/// Moves the compiler, its libraries and the standard libraries to the folder `to`.
fn keep(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to.join("usr/bin"))?;
    fs::create_dir_all(to.join("usr/lib"))?;
    fs::create_dir_all(to.join("lib"))?;
    for path in ["usr/bin/rustc", "usr/lib/rustlib"] {
        fs::rename(from.join(path), to.join(path))?;
    }
    for entry in fs::read_dir(from.join(format!("usr/lib/{}-linux-gnu", Arch::here().name())))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains(".so") && !GLIBC.iter().any(|begin| name.starts_with(begin)) {
            fs::rename(entry.path(), to.join("lib").join(name))?;
        }
    }
    fs::write(to.join("rustc"), WRAPPER)?;
    fs::set_permissions(to.join("rustc"), fs::Permissions::from_mode(0o755))
}
