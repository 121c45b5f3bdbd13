//! Writes the version script: the nodes that `src/exports.rs` names, all empty. The names in them come with `.symver`.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/exports.rs");
    let table = fs::read_to_string("src/exports.rs")?;
    let nodes: BTreeSet<&str> =
        table.split('"').filter(|word| word.starts_with("IBVERBS_") || word.starts_with("RDMACM_")).collect();
    let script: String = nodes.iter().map(|node| format!("{node} {{ }};\n")).collect();
    let path = Path::new(&env::var("OUT_DIR")?).join("nodes.map");
    fs::write(&path, script)?;
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    Ok(())
}
