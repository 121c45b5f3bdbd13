//! `cargo xtask symbols`: what a newer rdma-core exports, and the C libraries do not yet.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Prints a line for each name and version of the two libraries that `cabi/exports` lacks, and the tag of the private names. Exit code 1 when
there is one. The source is a checkout of https://github.com/linux-rdma/rdma-core.")]
pub(crate) struct Options {
    /// The folder of rdma-core's source
    source: PathBuf,
}

/// The tag of the private names is written as this in the map, and set in CMakeLists.txt.
const TAG: &str = "@IBVERBS_PABI_VERSION@";

pub(crate) fn run(options: &Options) -> ExitCode {
    match missing_of(&options.source) {
        Ok(missing) if missing.is_empty() => {
            println!("nothing is missing");
            ExitCode::SUCCESS
        }
        Ok(missing) => {
            missing.iter().for_each(|name| println!("missing: {name}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn missing_of(source: &Path) -> Result<Vec<String>, String> {
    let read = |file: &Path| fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()));
    let tag =
        tag(&read(&source.join("CMakeLists.txt"))?).ok_or("CMakeLists.txt sets no IBVERBS_PABI_VERSION")?;
    let mut theirs = names(&read(&source.join("libibverbs/libibverbs.map.in"))?.replace(TAG, &tag));
    theirs.extend(names(&read(&source.join("librdmacm/librdmacm.map"))?));
    let ours = tables(uiw_cabi_exports::PUBLIC, uiw_cabi_exports::PRIVATE);
    Ok(theirs.difference(&ours).cloned().collect())
}

/// The tag that CMakeLists.txt sets.
fn tag(cmake: &str) -> Option<String> {
    let line = cmake.lines().find(|line| line.contains("set(IBVERBS_PABI_VERSION"))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// `name node` of every name in a version script.
fn names(map: &str) -> BTreeSet<String> {
    let mut text = String::new();
    for part in map.split("/*") {
        text.push_str(part.split_once("*/").map_or(part, |(_, behind)| behind));
    }
    let mut found = BTreeSet::new();
    for part in text.split('}') {
        let Some((head, body)) = part.split_once('{') else { continue };
        let node = head.rsplit([';', '\n']).find(|word| !word.trim().is_empty()).unwrap_or_default().trim();
        let body = body.split("local:").next().unwrap_or_default().replace("global:", "");
        let names = body.split(';').map(str::trim).filter(|name| !name.is_empty());
        found.extend(names.map(|name| format!("{name} {node}")));
    }
    found
}

/// `name node` of the tables in `cabi/exports`.
fn tables(public: &str, private: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in public.lines().skip(1) {
        let mut words = line.split('\t');
        if let (Some(name), Some(node)) = (words.next(), words.next()) {
            found.insert(format!("{name} {node}"));
        }
    }
    for line in private.lines().skip(1) {
        let mut words = line.split('\t');
        if let (Some(name), Some(tags)) = (words.next(), words.next()) {
            found.extend(
                tags.split(',').map(|tag| format!("{} IBVERBS_PRIVATE_{tag}", name.replace("NN", tag))),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "/* Do not change { this } */\nIBVERBS_1.0 {\n\tglobal:\n\t\tibv_old;\n\tlocal: *;\n};\n\n\
        IBVERBS_1.99 {\n\tglobal:\n\t\t/* new */ ibv_new;\n} IBVERBS_1.0;\n\n\
        IBVERBS_PRIVATE_@IBVERBS_PABI_VERSION@ {\n\tglobal:\n\t\tverbs_register_driver_@IBVERBS_PABI_VERSION@;\n\tlocal: *;\n};\n";

    #[test]
    fn names_of_a_map_with_their_nodes() {
        let found = names(&MAP.replace(TAG, "70"));
        let expected =
            ["ibv_new IBVERBS_1.99", "ibv_old IBVERBS_1.0", "verbs_register_driver_70 IBVERBS_PRIVATE_70"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        assert_eq!(tag("x\nset(IBVERBS_PABI_VERSION \"70\")\n").as_deref(), Some("70"));
    }

    #[test]
    fn a_newer_name_and_a_newer_tag_are_missing() {
        let ours = tables(
            "symbol\tversion\tdefault\nibv_old\tIBVERBS_1.0\tdefault\n",
            "symbol\ttags\tfunction\nverbs_register_driver_NN\t34,65\tf\n",
        );
        let missing = |tag: &str| names(&MAP.replace(TAG, tag)).difference(&ours).count();
        assert_eq!((missing("70"), missing("65")), (2, 1));
    }
}
