//! Generates two files from the tables of exports: `exports.rs` with the macro calls that export
//! the functions, and the version script `nodes.map`, which defines every version node without
//! symbols. The directive `.symver` assigns the symbols to the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::{env, fs};
use uiw_cabi_exports::{PRIVATE, PUBLIC};

/// Only function of a private node that is offered to programs. It works for objects of either
/// library.
const OF_OBJECT: &str = "verbs::device::port::ibv_query_gid_type";

/// Tag of the private node that a linker uses for new programs if several nodes have a name. This
/// node exists in rdma-core 34 to 56.
const USUAL_TAG: &str = "34";

/// Converts the rows of a private table to the format of the public one.
fn private_rows(table: &str) -> Vec<[String; 5]> {
    let mut rows = Vec::new();
    for line in table.lines().skip(1) {
        let [name, tags, function] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("private.tsv: {line}")
        };
        let tags: Vec<&str> = tags.split(',').collect();
        let default = if tags.contains(&USUAL_TAG) { USUAL_TAG } else { tags[0] };
        let route = match function {
            OF_OBJECT => "object",
            "-" => "flag",
            _ => "system",
        };
        rows.extend(tags.iter().map(|tag| {
            // The tag replaces NN, so each of these names is in one node only.
            let kind = if *tag == default || name.ends_with("NN") { "default" } else { "compat" };
            let (name, node) = (name.replace("NN", tag), format!("IBVERBS_PRIVATE_{tag}"));
            [name, node, kind.to_owned(), route.to_owned(), function.to_owned()]
        }));
    }
    rows
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let mut rows = private_rows(PRIVATE);
    for line in PUBLIC.lines().skip(1) {
        let row: Vec<String> = line.split('\t').map(str::to_owned).collect();
        rows.push(row.try_into().map_err(|row| format!("exports.tsv: {row:?}"))?);
    }
    let mut lines: BTreeMap<_, String> = BTreeMap::new();
    for [name, node, kind, route, function] in &rows {
        let function = if function == "-" { function } else { &format!("uiw_cabi_{function}") };
        *lines.entry(route).or_default() += &format!("\"{name}\" \"{node}\" {kind} {function};\n");
    }
    // A route is the name of a macro.
    let macros =
        lines.iter().map(|(route, lines)| format!("crate::export::{route}! {{\n{lines}}}\n"));
    fs::write(out.join("exports.rs"), macros.collect::<String>())?;
    let nodes: BTreeSet<_> = rows.iter().map(|[_, node, ..]| node).collect();
    let path = out.join("nodes.map");
    fs::write(&path, nodes.iter().map(|node| format!("{node} {{ }};\n")).collect::<String>())?;
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Threads and the handler of SIGSEGV need the code after dlclose(3) as well.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
