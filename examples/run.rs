//! Every example runs alone, and says what it should.

use std::path::PathBuf;
use std::process::Command;

/// Cargo builds examples beside the tests.
fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples").join(name)
}

fn runs(name: &str, says: &str) {
    let output = Command::new(example(name)).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(says), "{name} does not say {says:?}: {out}");
}

#[test]
fn send_recv() {
    runs("send_recv", "client got \"and good day to you\"");
}

#[test]
fn write() {
    runs("write", "the server saw them: true");
}

#[test]
fn read() {
    runs("read", "the counter was 0, now is 5");
}

#[test]
fn pingpong() {
    runs("pingpong", "10000 round trips");
}

#[test]
fn async_echo() {
    runs("async_echo", "three came back");
}

#[test]
fn rpc() {
    runs("rpc", "three became THREE");
}

#[test]
fn http() {
    runs("http", "GET /large: 200 OK, 1000000 bytes");
    runs("http", "POST /echo: 200 OK, \"good day\"");
    runs("http", "GET /elsewhere: 404 Not Found, 0 bytes");
}

#[test]
fn key_value() {
    runs("key_value", "planet: Some(\"Neptune\"), moons: Some(\"16\"), rings: None");
}

#[test]
fn file_transfer() {
    runs("file_transfer", "sent 5000000 bytes, received 5000000, the same: true");
}

#[test]
fn ninep_bridge() {
    runs("ninep_bridge", "19 bytes went through cat, the same: true");
}

const EMBEDDED: &str = "initiator: received [\"welcome\"], the peer terminated the stream: \
     DDP: tagged buffer: base or bounds violation (1/1/0x01)";

#[test]
fn embed_stream() {
    runs("embed_stream", EMBEDDED);
}

#[test]
fn embed_smoltcp() {
    runs("embed_smoltcp", EMBEDDED);
}

/// The README's first program is the example, word for word.
#[test]
fn readme_shows_send_recv() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("../README.md")).unwrap();
    let example = std::fs::read_to_string(root.join("send_recv.rs")).unwrap();
    let body = &example[example.find("use std::error::Error;").unwrap()..];
    assert!(readme.contains(body), "README.md and examples/send_recv.rs have parted");
}

/// The documentation in front of each public definition of `name`.
fn documentation(sources: &[String], name: &str) -> Vec<String> {
    let definition = |line: &str| {
        let mut words = line
            .trim_start()
            .strip_prefix("pub ")?
            .split([' ', '(', '<', ':', ';', ','])
            .filter(|word| !["unsafe", "async", "struct", "enum", "trait", "type", "fn"].contains(word));
        (words.next() == Some(name)).then_some(())
    };
    let mut found = Vec::new();
    for source in sources {
        let mut text = String::new();
        for line in source.lines() {
            if definition(line).is_some() {
                found.push(std::mem::take(&mut text));
            }
            match line.trim_start() {
                line if line.starts_with("///") => text.push_str(line),
                line if line.starts_with("#[") || line.starts_with(')') => {}
                _ => text.clear(),
            }
        }
    }
    found
}

fn sources(folder: &std::path::Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(std::fs::read_to_string(path).unwrap());
        }
    }
}

/// Cargo tests the examples; this test checks that each item has one.
#[test]
fn every_item_of_the_facade_has_an_example() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let facade = std::fs::read_to_string(root.join("uiw/src/lib.rs")).unwrap();
    let mut all = Vec::new();
    for package in ["verbs", "counters", "mem", "ddp", "mpa", "rdmap", "stream", "llp"] {
        if root.join(package).exists() {
            sources(&root.join(package).join("src"), &mut all);
        }
    }
    let lists = facade.split("pub use uiw_verbs::{").skip(1).map(|rest| rest.split_once('}').unwrap().0);
    let names: Vec<_> = lists.flat_map(|list| list.split(',')).map(str::trim).collect();
    let types: Vec<_> = names.into_iter().filter(|name| name.starts_with(char::is_uppercase)).collect();
    assert!(types.len() > 60, "{types:?}");
    let without = |name: &&str| {
        let found = documentation(&all, name);
        found.is_empty() || !found.iter().any(|text| text.contains("```"))
    };
    let missing: Vec<_> = types.into_iter().filter(without).collect();
    assert!(missing.is_empty(), "without an example: {missing:?}");
}
