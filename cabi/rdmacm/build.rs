//! The nodes that programs ask of librdmacm, and the need for libibverbs.
//!
//! The linker must read the needed library to get its SONAME. So a library without anything but
//! that name is made here first: the real one need not be built before.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

const NODES: [&str; 6] = ["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3", "RDMACM_1.4", "RDMACM_1.5"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let script: String = NODES.iter().map(|node| format!("{node} {{ }};\n")).collect();
    let map = out.join("nodes.map");
    fs::write(&map, script)?;
    let source = out.join("named.rs");
    fs::write(&source, "")?;
    let named = out.join("libibverbs-named.so");
    let mut rustc = Command::new(env::var_os("RUSTC").ok_or("cargo sets RUSTC")?);
    // That of another processor or C library.
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc
        .args([
            "--crate-type",
            "cdylib",
            "--crate-name",
            "named",
            "-C",
            "link-arg=-Wl,-soname,libibverbs.so.1",
        ])
        .args(["--target", &env::var("TARGET")?, "-o"])
        .args([&named, &source])
        .status()?;
    if !status.success() {
        return Err(format!("rustc: {status}").into());
    }
    for argument in [
        format!("-Wl,--version-script={}", map.display()),
        "-Wl,-soname,librdmacm.so.1".to_owned(),
        // The one beside it, when it is loaded by its path.
        "-Wl,-rpath,$ORIGIN".to_owned(),
        "-Wl,--no-as-needed".to_owned(),
        named.display().to_string(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
