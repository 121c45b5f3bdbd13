//! Writes the lines of the private nodes from their table, and the version script: every node that is named, empty. The names in the nodes
//! come with `.symver`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

const PUBLIC: &str = "src/exports.rs";
/// A link: packages have files of their own folder only.
const PRIVATE: &str = "private.tsv";

/// The one function of a private node that is offered to programs, for objects of either library.
const OF_OBJECT: &str = "device::port::ibv_query_gid_type";

/// The node that a linker uses for new programs where a name is in several: rdma-core 34 to 56 have it.
const USUAL_TAG: &str = "34";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PUBLIC}");
    println!("cargo:rerun-if-changed={PRIVATE}");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let lines = private(&fs::read_to_string(PRIVATE)?)?;
    fs::write(out.join("private.rs"), &lines)?;
    let table = fs::read_to_string(PUBLIC)? + &lines;
    let nodes: BTreeSet<&str> = table
        .split('"')
        .filter(|word| ["IBVERBS_", "RDMACM_", "UIW_"].iter().any(|start| word.starts_with(start)))
        .collect();
    let script: String = nodes.iter().map(|node| format!("{node} {{ }};\n")).collect();
    let path = out.join("nodes.map");
    fs::write(&path, script)?;
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    Ok(())
}

/// The lines of the private nodes, from a table of names, each with the tags that have it and its function.
fn private(table: &str) -> Result<String, Box<dyn Error>> {
    let mut forwarded = String::new();
    let mut by_object = String::new();
    let mut flags = String::new();
    for line in table.lines().skip(1) {
        let [name, tags, function] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("{PRIVATE}: {line}").into());
        };
        let tags: Vec<&str> = tags.split(',').collect();
        let default = if tags.contains(&USUAL_TAG) { USUAL_TAG } else { tags[0] };
        for tag in tags {
            let node = format!("IBVERBS_PRIVATE_{tag}");
            // The names with NN are of one node each.
            let kind = if tag == default || name.ends_with("NN") { "default" } else { "compat" };
            let name = name.replace("NN", tag);
            if function == "-" {
                writeln!(flags, "crate::export::export_flag!(\"{node}\" {kind});")?;
            } else {
                let of = match function == OF_OBJECT {
                    true => &mut by_object,
                    false => &mut forwarded,
                };
                writeln!(of, "    \"{name}\" \"{node}\" {kind} uiw_cabi::{function};")?;
            }
        }
    }
    Ok(format!("forwarded! {{\n{forwarded}}}\nby_object! {{\n{by_object}}}\n{flags}"))
}
