//! `uiw ls`.

use crate::program::{Scratch, Server, command, text};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Output;

fn ls(scratch: &Scratch, arguments: &[&str]) -> Output {
    command(scratch.path()).arg("ls").args(arguments).output().unwrap()
}

#[test]
fn entries_of_share_listed() {
    let scratch = Scratch::new();
    let served = scratch.directory("served");
    fs::create_dir(served.join("d")).unwrap();
    fs::write(served.join("file\x1b"), [0; 1234]).unwrap();
    symlink("../elsewhere", served.join("link")).unwrap();
    let odd = scratch.directory("served/d").join("odd");
    symlink(OsStr::from_bytes(b"a\xff"), odd).unwrap();
    for name in ["d", "file\x1b"] {
        fs::set_permissions(served.join(name), fs::Permissions::from_mode(0o750)).unwrap();
    }
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let share = format!("{}:s", server.address);
    let output = ls(&scratch, &[&share]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[0].starts_with("drwxr-x---") && lines[0].ends_with(" d"), "{shown}");
    assert!(lines[1].starts_with("-rwxr-x---           1,234 20"), "{shown}");
    assert!(lines[1].ends_with(" file\\u{1b}"), "{shown}");
    assert!(lines[2].starts_with('l') && lines[2].ends_with(" link -> ../elsewhere"), "{shown}");
    let output = ls(&scratch, &["--json", &format!("{share}/file\x1b")]);
    let entry: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| entry[name].clone();
    assert_eq!(
        (of("kind"), of("bytes"), of("mode")),
        (json!("file"), json!(1234), json!(0o750)),
        "{entry}"
    );
    let output = ls(&scratch, &["--json", &format!("{share}/d")]);
    let entry: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&entry["target"], &entry["target_hex"]),
        (&json!("a\u{fffd}"), &json!("61ff")),
        "{entry}"
    );
}

#[test]
fn long_directories_listed_whole() {
    let scratch = Scratch::new();
    let served = scratch.directory("served");
    for number in 0..10_000 {
        fs::write(served.join(format!("{number:0100}")), "").unwrap();
    }
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let output = ls(&scratch, &["--json", &format!("{}:s/", server.address)]);
    let paths: Vec<_> = text(&output.stdout)
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["path"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(paths.len() == 10_000 && paths.is_sorted(), "{}", paths.len());
}

#[test]
fn absent_entries_not_listed() {
    let scratch = Scratch::new();
    scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    for (place, code) in [("s/absent", 1), ("other", 3)] {
        let output = ls(&scratch, &[&format!("{}:{place}", server.address)]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{place}: {error}");
        assert!(error.starts_with("error: ") && error.contains("\nhint: "), "{error}");
    }
    assert_eq!(ls(&scratch, &["served"]).status.code(), Some(2));
}
