//! The nodes that programs ask of librdmacm, and the need for libibverbs.

use std::error::Error;
use std::path::Path;
use std::{env, fs};
use uiw_cabi_exports::libibverbs_stub;

const NODES: [&str; 6] =
    ["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3", "RDMACM_1.4", "RDMACM_1.5"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let script: String = NODES.iter().map(|node| format!("{node} {{ }};\n")).collect();
    let map = out.join("nodes.map");
    fs::write(&map, script)?;
    let stub = libibverbs_stub(out)?;
    for argument in [
        format!("-Wl,--version-script={}", map.display()),
        "-Wl,-soname,librdmacm.so.1".to_owned(),
        // The one beside it, when it is loaded by its path.
        "-Wl,-rpath,$ORIGIN".to_owned(),
        "-Wl,--no-as-needed".to_owned(),
        stub.display().to_string(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
