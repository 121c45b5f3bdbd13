//! A stub of libibverbs for the linker.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a library below `out` that has nothing but the name `libibverbs.so.1`, for the build
/// script of a library that needs it.
///
/// The linker must read a needed library to get its SONAME. With this one the real one need not be
/// built before, and its names are bound by the loader.
///
/// # Errors
/// Outside of a build script, and when `rustc` fails.
pub fn libibverbs_stub(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let source = out.join("named.rs");
    fs::write(&source, "")?;
    let named = out.join("libibverbs-named.so");
    let mut rustc = Command::new(env::var_os("RUSTC").ok_or("cargo sets RUSTC")?);
    // The linker of another processor or C library.
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc
        .args(["--crate-type", "cdylib", "--crate-name", "named"])
        .args(["-C", "link-arg=-Wl,-soname,libibverbs.so.1"])
        .args(["--target", &env::var("TARGET")?, "-o"])
        .args([&named, &source])
        .status()?;
    if status.success() { Ok(named) } else { Err(format!("rustc: {status}").into()) }
}
