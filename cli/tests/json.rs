//! The objects of `--json` have exactly the keys that docs/json.md describes.

mod common;

use common::{Server, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A name of a path of keys.
#[derive(Clone, Debug, PartialEq)]
struct PathStep {
    /// `*` is any name, and `[]` an element of a list.
    name: String,
    /// It is not in every object.
    is_optional: bool,
}

type Keys = Vec<Vec<PathStep>>;

/// The described keys by command and type; the type is empty where there is one alone.
fn described() -> BTreeMap<(String, String), Keys> {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md")).unwrap();
    let mut all = BTreeMap::<_, Keys>::new();
    let (mut command, mut kind) = (String::new(), String::new());
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## `uiw ") {
            (command, kind) = (name.trim_end_matches('`').to_owned(), String::new());
        } else if let Some(name) = line.strip_prefix("### `") {
            name.trim_end_matches('`').clone_into(&mut kind);
            all.entry((command.clone(), kind.clone())).or_default();
        } else if let Some(row) = line.strip_prefix("* `") {
            let keys = row.split("`: ").next().unwrap();
            let keys = keys.split('`').step_by(2).flat_map(expand);
            all.entry((command.clone(), kind.clone()))
                .or_default()
                .extend(keys.map(|key| steps(&key)));
        }
    }
    // Keys above the first heading of `decode` are in every object but `summary`.
    let shared = all.remove(&("decode".to_owned(), String::new())).unwrap();
    let objects =
        all.iter_mut().filter(|((command, kind), _)| command == "decode" && kind != "summary");
    objects.for_each(|(_, keys)| keys.extend(shared.iter().cloned()));
    all
}

/// Returns every key that a pattern with braces stands for.
fn expand(key: &str) -> Vec<String> {
    let Some((before, rest)) = key.split_once('{') else { return vec![key.to_owned()] };
    let (names, after) = rest.split_once('}').unwrap();
    names.split(',').flat_map(|name| expand(&format!("{before}{name}{after}"))).collect()
}

fn steps(key: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    for part in key.split('.') {
        let (part, is_list) = part.strip_suffix("[]").map_or((part, false), |part| (part, true));
        let (name, is_optional) = part.strip_suffix('?').map_or((part, false), |name| (name, true));
        steps.push(PathStep { name: name.to_owned(), is_optional });
        if is_list {
            steps.push(PathStep { name: "[]".to_owned(), is_optional: false });
        }
    }
    steps
}

/// The undescribed keys of a value.
fn undescribed(value: &Value, keys: &[&[PathStep]], path: &str, found: &mut Vec<String>) {
    let below = |name: &str| -> Vec<&[PathStep]> {
        let is_it = |keys: &&&[PathStep]| {
            keys.first().is_some_and(|step| step.name == name || step.name == "*")
        };
        keys.iter().filter(is_it).map(|keys| &keys[1..]).collect()
    };
    match value {
        // Details of a check, and headers of findings, are described as a whole.
        _ if keys.iter().any(|keys| keys.is_empty()) && path.ends_with(".*") => {}
        Value::Object(object) => {
            for (name, value) in object {
                let next = below(name);
                let path = format!("{path}.{name}");
                if next.is_empty() {
                    found.push(path);
                } else {
                    let is_any =
                        keys.iter().any(|keys| keys.first().is_some_and(|step| step.name == "*"));
                    undescribed(value, &next, if is_any { ".*" } else { &path }, found);
                }
            }
        }
        Value::Array(list) => {
            let next = below("[]");
            if next.is_empty() && !list.is_empty() {
                found.push(format!("{path}[]"));
            }
            list.iter().for_each(|value| undescribed(value, &next, &format!("{path}[]"), found));
        }
        // A value, or `null` in place of an object or a list.
        _ if value.is_null() || keys.iter().any(|keys| keys.is_empty()) => {}
        _ => found.push(path.to_owned()),
    }
}

/// Whether a value has a key, or `null` or nothing in place of what is around it.
fn has(value: &Value, key: &[PathStep]) -> bool {
    let Some((step, rest)) = key.split_first() else { return true };
    match (value, step.name.as_str()) {
        (Value::Null, _) => true,
        (Value::Array(list), "[]") => list.iter().all(|value| has(value, rest)),
        (Value::Object(object), "*") => object.values().all(|value| has(value, rest)),
        (Value::Object(object), name) => {
            object.get(name).map_or(step.is_optional, |value| has(value, rest))
        }
        _ => false,
    }
}

/// A directory and a server, removed and ended when dropped.
struct JsonFixture {
    directory: PathBuf,
    server: Server,
    described: BTreeMap<(String, String), Keys>,
    seen: BTreeSet<(String, String)>,
}

impl JsonFixture {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", &self.directory).env_remove("UIW_COUNTERS");
        command
    }

    /// Compares every object that the command prints. `name` is its heading.
    fn check(&mut self, name: &str, arguments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        let printed = text(&output.stdout);
        assert!(!printed.is_empty(), "{arguments:?}: {}", text(&output.stderr));
        for line in printed.lines() {
            let object: Value =
                serde_json::from_str(line).unwrap_or_else(|_| panic!("{arguments:?}: {line}"));
            let kind = object["type"].as_str().unwrap_or_default().to_owned();
            let key = (name.to_owned(), kind);
            let keys = self.described.get(&key).unwrap_or_else(|| panic!("no section for {key:?}"));
            let mut without_type = object.clone();
            without_type.as_object_mut().unwrap().remove("type");
            let mut found = Vec::new();
            let all: Vec<_> = keys.iter().map(Vec::as_slice).collect();
            undescribed(&without_type, &all, "", &mut found);
            assert!(found.is_empty(), "{key:?} has keys that are not described: {found:?}");
            for described in keys {
                assert!(has(&object, described), "{key:?} lacks {described:?}: {object}");
            }
            self.seen.insert(key);
        }
    }
}

impl Drop for JsonFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn printed_keys_are_described() {
    let directory = std::env::temp_dir().join(format!("uiw-json-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    for name in ["served", "tree"] {
        fs::create_dir(directory.join(name)).unwrap();
    }
    fs::write(directory.join("served/old"), "old").unwrap();
    fs::write(directory.join("tree/file"), "content").unwrap();
    std::os::unix::fs::symlink("file", directory.join("tree/link")).unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_uiw"));
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--share", "s=served:rw"])
        .current_dir(&directory);
    serve.env("XDG_RUNTIME_DIR", &directory).env_remove("UIW_COUNTERS");
    let server = Server::spawn(&mut serve);
    let address = server.address.clone();
    let to = address.as_str();
    let mut fixture =
        JsonFixture { directory, server, described: described(), seen: BTreeSet::new() };
    fixture.check("ping", &["ping", to, "--count", "2", "--json"]);
    for more in [
        &["--latency"][..],
        &["--bidirectional"],
        &["--interval", "0.2", "--seconds", "0.5"],
        &["--interval", "0.2", "--seconds", "0.5", "--latency"],
    ] {
        let arguments = [&["perf", to, "--json", "--size", "4096"][..], more].concat();
        let arguments =
            [&arguments[..], if more.len() < 4 { &["--iterations", "50"] } else { &[] }].concat();
        fixture.check("perf", &arguments);
    }
    for mode in [&[][..], &["--latency"]] {
        let compare =
            ["perf", to, "--compare", "--slices", "3", "--slice-seconds", "0.1", "--json"];
        fixture.check("perf", &[&compare[..], mode].concat());
    }
    let share = format!("{to}:s");
    fixture.check("cp", &["cp", "--json", "--delete", "--dry-run", "tree/", &share]);
    fixture.check("cp", &["cp", "--json", "--delete", "tree/", &share]);
    fs::write(fixture.directory.join("tree/sub"), "a file").unwrap();
    fs::create_dir(fixture.directory.join("served/sub")).unwrap();
    fixture.check("cp", &["cp", "--json", "tree/", &share]);
    fixture.check("ls", &["ls", "--json", &share]);
    // With a connection.
    let mut client = fixture.command(&["perf", to, "--seconds", "30"]);
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let id = fixture.server.id().to_string();
    loop {
        let stat = fixture.command(&["stat", "--json", "--interval", "0", &id]).output().unwrap();
        let object: Value = serde_json::from_slice(&stat.stdout).unwrap();
        if object["connections"].as_array().is_some_and(|connections| !connections.is_empty()) {
            break;
        }
    }
    fixture.check("stat", &["stat", "--json", "--interval", "0.1", &id]);
    client.kill().unwrap();
    client.wait().unwrap();
    fixture.check("devices", &["devices", "--json"]);
    fixture.check("env", &["env", "--json"]);
    assert!(fixture.command(&["key", "new", "key"]).output().unwrap().status.success());
    fixture.check("key show", &["key", "show", "key", "--json"]);
    fixture.check("doctor", &["doctor", "--json"]);
    fixture.check("conform --list", &["conform", "--list", "--json"]);
    fixture.check("conform", &["conform", to, "--jobs", "4", "--case", "start-up", "--json"]);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/data");
    for file in ["siw/rping-crc-on.pcap", "vectors/vectors.pcap"] {
        fixture.check("decode", &["decode", "--json", data.join(file).to_str().unwrap()]);
    }
    fixture.check("demo", &["demo", "--json", "tree/file"]);
    let mut partner = fixture.command(&["siwtest", "--listen", "127.0.0.1:0"]);
    let mut partner = partner.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(partner.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("listening on ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it does not listen");
    }
    std::thread::spawn(move || said.lines().count());
    let to = line.trim().trim_start_matches("listening on ");
    fixture.check("siwtest", &["siwtest", to, "me.send:64", "--json"]);
    partner.kill().unwrap();
    partner.wait().unwrap();
    // Captures with these, network namespaces and the libraries are needed for the others.
    let others: Vec<_> =
        fixture.described.keys().filter(|key| !fixture.seen.contains(*key)).collect();
    let of_decode = ["closed", "datagram", "lost", "missing", "not_followed", "raw_tcp", "resumed"];
    for (command, kind) in others {
        let is_known = matches!(command.as_str(), "run" | "wan")
            || command == "decode" && of_decode.contains(&kind.as_str())
            || command == "siwtest" && !matches!(kind.as_str(), "established" | "order" | "over");
        assert!(is_known, "{command} {kind} is described and was not printed");
    }
}
