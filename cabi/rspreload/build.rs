//! The need for `libibverbs.so.1`, which has the sockets, in the folder above that of this library.

use std::env;
use std::error::Error;
use std::path::Path;
use uiw_cabi_exports::libibverbs_stub;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let stub = libibverbs_stub(Path::new(&env::var("OUT_DIR")?))?;
    for argument in [
        "-Wl,-soname,librspreload.so.1".to_owned(),
        "-Wl,-rpath,$ORIGIN/..:$ORIGIN".to_owned(),
        "-Wl,--no-as-needed".to_owned(),
        stub.display().to_string(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
