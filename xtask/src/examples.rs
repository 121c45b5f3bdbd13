//! `cargo xtask examples`: every public item of the facade has an example, which `cargo test --doc` runs.
//!
//! rustdoc lists the items as JSON, which is not stable: the compiler is asked for it by `RUSTC_BOOTSTRAP=1`, for rustdoc alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};
use serde_json::{Map, Value};

use crate::workspace::{cargo, target};

/// Options of `cargo xtask examples`.
#[derive(clap::Args)]
#[command(after_help = "\
Lists every struct, enum, union, trait, function, macro and type alias that a program can name through the crate `uiw` and whose own documentation has
no code block that is compiled and run. Methods, variants, fields and constants are not counted. Exit code 1 when there is one.")]
pub(crate) struct Options {}

/// Where the items begin.
const FACADE: &str = "uiw";

/// The facade, and the crates whose items it passes on.
const CRATES: [&str; 9] = [
    FACADE,
    "uiw-counters",
    "uiw-ddp",
    "uiw-llp",
    "uiw-mem",
    "uiw-mpa",
    "uiw-rdmap",
    "uiw-stream",
    "uiw-verbs",
];

/// Kinds of items that have an example.
const KINDS: [&str; 8] =
    ["struct", "enum", "union", "trait", "function", "macro", "proc_macro", "type_alias"];

pub(crate) fn run(_: &Options) -> ExitCode {
    let items = match document().and_then(|documents| Items::of(FACADE, &documents)) {
        Ok(items) => items,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    for name in &items.without {
        println!("{name} has no example");
    }
    println!("{} public items, {} without an example", items.count, items.without.len());
    if items.without.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What rustdoc writes of each crate, by the crate's name.
fn document() -> Result<BTreeMap<String, Value>, String> {
    let target = target()?;
    // Build scripts run again when the variable changes, so only rustdoc gets it.
    let rustdoc = target.join("rustdoc-json");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    let written = fs::create_dir_all(&target)
        .and_then(|()| fs::write(&rustdoc, script))
        .and_then(|()| fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)));
    written.map_err(|error| format!("{}: {error}", rustdoc.display()))?;
    let mut command = cargo();
    command.args(["doc", "--quiet", "--no-deps", "--all-features"]);
    command.args(CRATES.iter().flat_map(|name| ["--package", name]));
    command.env("RUSTDOC", &rustdoc).env("RUSTDOCFLAGS", "-Zunstable-options --output-format=json");
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo doc: {status}"));
    }
    let read = |name: &str| {
        let name = name.replace('-', "_");
        let path = target.join("doc").join(&name).with_extension("json");
        let document = read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((name, document))
    };
    CRATES.iter().map(|name| read(name)).collect()
}

fn read(path: &Path) -> Result<Value, Box<dyn std::error::Error>> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// The public items of a crate, also those that it passes on.
#[derive(Debug, Default)]
struct Items {
    count: usize,
    /// Paths of those that have no example.
    without: BTreeSet<String>,
    /// Items that were visited: crate and number.
    seen: BTreeSet<(String, String)>,
}

impl Items {
    fn of(name: &str, documents: &BTreeMap<String, Value>) -> Result<Self, String> {
        let mut items = Self::default();
        let root = documents.get(name).and_then(|document| id(&document["root"]));
        let root = root.ok_or_else(|| format!("rustdoc names no root of {name}"))?;
        items.visit(documents, name, &root, name)?;
        // A format that is not understood would have none.
        if items.count == 0 { Err(format!("{name} has no public item")) } else { Ok(items) }
    }

    /// `id` of the crate `name`, whose path in the facade is `path`.
    fn visit(
        &mut self,
        documents: &BTreeMap<String, Value>,
        name: &str,
        id: &str,
        path: &str,
    ) -> Result<(), String> {
        if !self.seen.insert((name.to_owned(), id.to_owned())) {
            return Ok(());
        }
        let item = documents.get(name).map(|document| &document["index"][id]);
        let Some((kind, inner)) = item.and_then(|item| item["inner"].as_object()).and_then(first) else {
            return Err(format!("rustdoc does not describe {path}"));
        };
        match kind {
            "module" => {
                for child in inner["items"].as_array().into_iter().flatten().filter_map(self::id) {
                    let document = &documents[name];
                    let child_item = &document["index"][&child];
                    let uses = &child_item["inner"]["use"];
                    let own = child_item["name"].as_str().or_else(|| uses["name"].as_str());
                    let is_glob = uses["is_glob"].as_bool() == Some(true);
                    let child_path = own
                        .filter(|_| !is_glob)
                        .map_or_else(|| path.to_owned(), |own| format!("{path}::{own}"));
                    self.visit(documents, name, &child, &child_path)?;
                }
            }
            "use" => {
                let Some(to) = self::id(&inner["id"]) else { return Ok(()) };
                if let Some((name, to)) = definition(documents, name, &to) {
                    self.visit(documents, &name, &to, path)?;
                }
            }
            kind if KINDS.contains(&kind) => {
                self.count += 1;
                let docs = item.and_then(|item| item["docs"].as_str()).unwrap_or_default();
                if !has_example(docs) {
                    self.without.insert(path.to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Where an item that `name` has as `id` is described. `None`: in a crate that is not ours.
fn definition(documents: &BTreeMap<String, Value>, name: &str, id: &str) -> Option<(String, String)> {
    let document = &documents[name];
    if document["index"].get(id).is_some() {
        return Some((name.to_owned(), id.to_owned()));
    }
    let path = &document["paths"][id]["path"];
    let owner = path[0].as_str()?;
    let other = documents.get(owner)?;
    if path.as_array()?.len() == 1 {
        return Some((owner.to_owned(), self::id(&other["root"])?));
    }
    let kind = &document["paths"][id]["kind"];
    let described = |(id, entry): (&String, &Value)| {
        (entry["path"] == *path && entry["kind"] == *kind && other["index"].get(id).is_some())
            .then(|| id.clone())
    };
    let id = other["paths"].as_object()?.iter().find_map(described)?;
    Some((owner.to_owned(), id))
}

/// A number, as the keys of the index have it.
fn id(value: &Value) -> Option<String> {
    value.as_u64().map(|number| number.to_string())
}

fn first(object: &Map<String, Value>) -> Option<(&str, &Value)> {
    object.iter().next().map(|(key, value)| (key.as_str(), value))
}

/// Whether a block of the documentation is run by `cargo test --doc`.
fn has_example(docs: &str) -> bool {
    Parser::new(docs).any(|event| match event {
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => info
            .split([',', ' '])
            .all(|word| matches!(word, "" | "rust" | "should_panic" | "standalone_crate")),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const EXAMPLE: &str = "What it is.\n\n```\nassert!(true);\n```\n";

    #[test]
    fn only_blocks_that_run_are_examples() {
        assert!(has_example(EXAMPLE));
        assert!(has_example("```rust,should_panic\npanic!()\n```"));
        for info in ["text", "ignore", "no_run", "compile_fail,E0308", "sh"] {
            assert!(!has_example(&format!("```{info}\nx\n```")), "{info}");
        }
        assert!(!has_example("No block, but `code`."));
    }

    /// `a` passes on a type of `b`, whose module is private there, and a crate as a module.
    fn documents(own: &str, foreign: &str) -> BTreeMap<String, Value> {
        let a = json!({
            "root": 0,
            "index": {
                "0": { "name": "a", "docs": "", "inner": { "module": { "items": [1, 2, 3, 4] } } },
                "1": { "name": "Own", "docs": own, "inner": { "struct": {} } },
                "2": { "name": null, "docs": null, "inner": { "use": { "name": "Foreign", "id": 7, "is_glob": false } } },
                "3": { "name": null, "docs": null, "inner": { "use": { "name": "b", "id": 8, "is_glob": false } } },
                "4": { "name": "LIMIT", "docs": null, "inner": { "constant": {} } },
            },
            "paths": {
                "7": { "path": ["b", "hidden", "Foreign"], "kind": "enum" },
                "8": { "path": ["b"], "kind": "module" },
            },
        });
        let b = json!({
            "root": 0,
            "index": {
                "0": { "name": "b", "docs": "", "inner": { "module": { "items": [5, 6] } } },
                "5": { "name": "function", "docs": EXAMPLE, "inner": { "function": {} } },
                "6": { "name": null, "docs": null, "inner": { "use": { "name": "Foreign", "id": 9, "is_glob": false } } },
                "9": { "name": "Foreign", "docs": foreign, "inner": { "enum": {} } },
            },
            "paths": { "9": { "path": ["b", "hidden", "Foreign"], "kind": "enum" } },
        });
        BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)])
    }

    #[test]
    fn items_of_other_crates_are_found_once() {
        let all = Items::of("a", &documents(EXAMPLE, EXAMPLE)).unwrap();
        assert_eq!((all.count, all.without.len()), (3, 0));
        let none = Items::of("a", &documents("", "None.")).unwrap();
        assert_eq!(none.count, 3);
        assert_eq!(none.without.into_iter().collect::<Vec<_>>(), ["a::Foreign", "a::Own"]);
    }

    #[test]
    fn a_format_that_is_not_understood_is_an_error() {
        let mut documents = documents(EXAMPLE, EXAMPLE);
        documents
            .insert("a".to_owned(), json!({ "root": 0, "index": { "0": { "inner": { "module": {} } } } }));
        assert!(Items::of("a", &documents).unwrap_err().contains("no public item"));
        documents.insert("a".to_owned(), json!({ "root": 0, "index": {} }));
        assert!(Items::of("a", &documents).is_err());
    }
}
