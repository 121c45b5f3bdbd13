//! The need for `libibverbs.so.1`, which has the sockets, in the folder above that of this library.
//!
//! The linker must read the needed library to get its SONAME. So a library without anything but that name is made here first: the real
//! one need not be built before, and its names are bound by the loader.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let source = out.join("named.rs");
    fs::write(&source, "")?;
    let named = out.join("libibverbs-named.so");
    let status = Command::new(env::var_os("RUSTC").ok_or("cargo sets RUSTC")?)
        .args(["--crate-type", "cdylib", "--crate-name", "named"])
        .args(["-C", "link-arg=-Wl,-soname,libibverbs.so.1"])
        .args(["--target", &env::var("TARGET")?, "-o"])
        .args([&named, &source])
        .status()?;
    if !status.success() {
        return Err(format!("rustc: {status}").into());
    }
    for argument in [
        "-Wl,-soname,librspreload.so.1".to_owned(),
        "-Wl,-rpath,$ORIGIN/..:$ORIGIN".to_owned(),
        format!("-Wl,--no-as-needed,{}", named.display()),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
