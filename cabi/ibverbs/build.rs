//! Writes the lines of the exports from their tables, and the version script: every node that is named, empty. The names in the nodes
//! come with `.symver`.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Links: packages have files of their own folder only.
const PUBLIC: &str = "exports.tsv";
const PRIVATE: &str = "private.tsv";

/// The one function of a private node that is offered to programs, for objects of either library.
const OF_OBJECT: &str = "device::port::ibv_query_gid_type";

/// The node that a linker uses for new programs where a name is in several: rdma-core 34 to 56 have it.
const USUAL_TAG: &str = "34";

/// The lines of each macro of `export.rs`, and the nodes that they name.
#[derive(Default)]
struct Exports {
    lines: BTreeMap<&'static str, String>,
    nodes: BTreeSet<String>,
}

impl Exports {
    fn add(
        &mut self,
        name: &str,
        node: &str,
        kind: &str,
        route: &str,
        function: &str,
    ) -> Result<(), Box<dyn Error>> {
        let through = match route {
            "own" => "exports",
            "object" => "by_object",
            "system" => "forwarded",
            _ => return Err(format!("{name}: the route {route} is unknown").into()),
        };
        let lines = self.lines.entry(through).or_default();
        writeln!(lines, "    \"{name}\" \"{node}\" {kind} uiw_cabi::{function};")?;
        self.nodes.insert(node.to_owned());
        Ok(())
    }

    /// A table of names, each with its node, whether that is the default one, its route, and its function.
    fn add_public(&mut self, table: &str) -> Result<(), Box<dyn Error>> {
        for line in table.lines().skip(1) {
            let [name, node, kind, route, function] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(format!("{PUBLIC}: {line}").into());
            };
            self.add(name, node, kind, route, function)?;
        }
        Ok(())
    }

    /// A table of names, each with the tags that have it and its function. Returns the lines of those that are none.
    fn add_private(&mut self, table: &str) -> Result<String, Box<dyn Error>> {
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
                let route = if function == OF_OBJECT { "object" } else { "system" };
                if function == "-" {
                    self.nodes.insert(node.clone());
                    writeln!(flags, "crate::export::export_flag!(\"{node}\" {kind});")?;
                } else {
                    self.add(&name.replace("NN", tag), &node, kind, route, function)?;
                }
            }
        }
        Ok(flags)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PUBLIC}");
    println!("cargo:rerun-if-changed={PRIVATE}");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let mut exports = Exports::default();
    exports.add_public(&fs::read_to_string(PUBLIC)?)?;
    let flags = exports.add_private(&fs::read_to_string(PRIVATE)?)?;
    let macros = exports.lines.iter().map(|(through, lines)| format!("{through}! {{\n{lines}}}\n"));
    fs::write(out.join("exports.rs"), macros.collect::<String>() + &flags)?;
    let script: String = exports.nodes.iter().map(|node| format!("{node} {{ }};\n")).collect();
    let path = out.join("nodes.map");
    fs::write(&path, script)?;
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    Ok(())
}
