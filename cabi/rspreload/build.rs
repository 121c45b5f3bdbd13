//! The need for `libibverbs.so.1`, which has the sockets, in the folder above that of this library.

use std::env;
use std::error::Error;
use std::path::Path;

// A link: packages have files of their own folder only.
mod named;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=named.rs");
    let named = named::libibverbs(Path::new(&env::var("OUT_DIR")?))?;
    for argument in [
        "-Wl,-soname,librspreload.so.1".to_owned(),
        "-Wl,-rpath,$ORIGIN/..:$ORIGIN".to_owned(),
        "-Wl,--no-as-needed".to_owned(),
        named.display().to_string(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
