//! Whole trees in both directions.

use crate::program::{Scratch, Server, bytes, command, copied, fails, summary, text};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What a copy has to have in common with its source.
#[derive(Debug, PartialEq, Eq)]
struct SeenEntry {
    mode: u32,
    mtime: (i64, i64),
    content: Vec<u8>,
}

/// Everything below a directory.
fn tree(root: &Path) -> BTreeMap<Vec<u8>, SeenEntry> {
    let mut seen = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let data = fs::symlink_metadata(&path).unwrap();
            let content = if data.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_vec()
            } else if data.is_dir() {
                directories.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().to_owned().into_vec();
            seen.insert(
                name,
                SeenEntry { mode: data.mode(), mtime: (data.mtime(), data.mtime_nsec()), content },
            );
        }
    }
    seen
}

/// A tree of everything that is copied.
fn plant(root: &Path) {
    let deep = root.join("a/deeper/down");
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(root.join("empty directory")).unwrap();
    for number in 0..600u64 {
        fs::write(deep.join(format!("small {number}")), bytes(number as usize * 9, number))
            .unwrap();
    }
    fs::write(root.join("large"), bytes(9_000_001, 1)).unwrap();
    fs::write(root.join("exact"), bytes(2 << 20, 2)).unwrap();
    fs::write(root.join("a/middle"), bytes(300_000, 3)).unwrap();
    fs::write(root.join(std::ffi::OsString::from_vec(b"not \xff UTF-8\n".to_vec())), "odd")
        .unwrap();
    fs::write(root.join("n".repeat(255)), bytes(400_000, 4)).unwrap();
    symlink("../large", root.join("a/link")).unwrap();
    symlink("/nowhere at all", root.join("dangling")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 21_000_000).unwrap();
    fs::File::create(root.join("hole")).unwrap().set_len(7 << 20).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(981_173_106, 789_012_345);
    fs::File::open(root.join("large")).unwrap().set_modified(long_ago).unwrap();
    for (name, mode) in [("exact", 0o604), ("a/middle", 0o4750), ("a/deeper", 0o500), ("a", 0o2755)]
    {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::File::open(root.join("a/deeper/down")).unwrap().set_modified(long_ago).unwrap();
}

/// What is expected of a copy: no setuid and setgid bits.
fn expected(root: &Path) -> BTreeMap<Vec<u8>, SeenEntry> {
    let mut tree = tree(root);
    tree.values_mut().for_each(|seen| seen.mode &= !0o7000);
    tree
}

#[test]
fn trees_are_equal_in_both_directions() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    plant(&source);
    scratch.directory("served");
    let server =
        Server::start(scratch.path(), &["--share", "in=served:rw", "--share", "out=source"]);
    let to = format!("{}:in/", server.address);
    let pushed = copied(scratch.path(), &["source", &to]);
    assert_eq!((&pushed["copied"], &pushed["failed"]), (&609.into(), &0.into()), "{pushed}");
    assert!(tree(&scratch.join("served/source")) == expected(&source));
    assert_eq!(fs::read_dir(scratch.join("served")).unwrap().count(), 1);
    let pulled = copied(scratch.path(), &[&format!("{}:out/", server.address), "pulled"]);
    assert_eq!(pulled["copied"], 609, "{pulled}");
    assert!(tree(&scratch.join("pulled")) == expected(&source));
    for copy in ["served/source", "pulled"] {
        for (name, most) in [("sparse", 1 << 20), ("hole", 4096)] {
            let allocated = fs::metadata(scratch.join(copy).join(name)).unwrap().blocks() * 512;
            assert!(allocated <= most, "{copy}/{name}: {allocated}");
        }
    }
    // What is there is not copied again, and what has changed is.
    fs::write(source.join("a/middle"), "changed").unwrap();
    let again = copied(scratch.path(), &["source", &to]);
    // Without its setuid bit the copy differed from its source anyway.
    assert_eq!((&again["copied"], &again["unchanged"]), (&1.into(), &608.into()), "{again}");
    assert_eq!(fs::read(scratch.join("served/source/a/middle")).unwrap(), b"changed");
}

#[test]
fn target_names_follow_rules() {
    let scratch = Scratch::new();
    for (name, text) in [("one", "1"), ("two", "2")] {
        fs::write(scratch.join(name), text).unwrap();
    }
    fs::write(scratch.directory("tree/sub").join("file"), "3").unwrap();
    let served = scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let at = |path: &str| format!("{}:s/{path}", server.address);
    let read = |path: &str| text(&fs::read(served.join(path)).unwrap());
    copied(scratch.path(), &["one", &at("renamed")]);
    assert_eq!(read("renamed"), "1");
    copied(scratch.path(), &["one", "two", &at("both")]);
    assert_eq!((read("both/one"), read("both/two")), ("1".into(), "2".into()));
    // A directory that only the target names is made as any other one.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&served.join("both")), mode(&scratch.directory("usual")));
    copied(scratch.path(), &["two", &at("both")]);
    copied(scratch.path(), &["tree", &at("new")]);
    copied(scratch.path(), &["tree", &at("new")]);
    assert_eq!(read("new/tree/sub/file"), "3");
    assert!(!served.join("new/tree/tree").exists(), "the same command does the same");
    copied(scratch.path(), &["tree/", &at("contents")]);
    assert_eq!(read("contents/sub/file"), "3");
    copied(scratch.path(), &[&at("both/one"), &at("renamed"), "back/"]);
    assert_eq!(fs::read(scratch.join("back/renamed")).unwrap(), b"1");
    copied(scratch.path(), &[&at("both/two"), "two again"]);
    assert_eq!(fs::read(scratch.join("two again")).unwrap(), b"2");
    fails(scratch.path(), &["tree", &at("renamed/")], 1, "it is no directory");
    fails(scratch.path(), &["one", &at("not/there/at all")], 1, "No such file or directory");
    fails(scratch.path(), &[&at("missing"), "here"], 1, "the share has no such entry");
    fails(scratch.path(), &["one", "two"], 2, "no path has a host");
    fails(scratch.path(), &[&at("x"), &at("y")], 2, "both remote");
    fails(scratch.path(), &["one", &at("../out")], 2, "`.` or `..`");
}

#[test]
fn failed_files_named_rest_copied() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    fs::write(source.join("good"), "good").unwrap();
    fs::write(source.join("large"), bytes(500_000, 1)).unwrap();
    fs::write(source.join("in the way"), "file").unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(source.join("fifo")).status().unwrap();
    assert!(fifo.success());
    scratch.directory("served/source/in the way");
    let server =
        Server::start(scratch.path(), &["--share", "s=served:rw", "--share", "out=source"]);
    let to = format!("{}:s/", server.address);
    fails(scratch.path(), &["source", &to], 1, "not copied: source/fifo: a device, FIFO or socket");
    fails(scratch.path(), &["source", &to], 1, "not copied: source/in the way: Is a directory");
    assert_eq!(fs::read(scratch.join("served/source/good")).unwrap(), b"good");
    assert_eq!(fs::read(scratch.join("served/source/large")).unwrap(), bytes(500_000, 1));
    fails(scratch.path(), &[&format!("{}:out/", server.address), "back"], 1, "not copied: fifo");
    assert_eq!(fs::read(scratch.join("back/large")).unwrap(), bytes(500_000, 1));
}

#[test]
fn dry_run_changes_nothing() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    fs::write(source.join("file"), "text").unwrap();
    fs::write(scratch.directory("source/sub").join("other"), "more").unwrap();
    scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let to = format!("{}:s/new/", server.address);
    let output = command(scratch.path()).args(["cp", "--dry-run", "source", &to]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for line in
        ["would copy new/source/file (4 bytes)", "would copy new/source/sub/other (4 bytes)"]
    {
        assert!(said.lines().any(|said| said == line), "{said}");
    }
    assert!(said.ends_with("2 would be copied, 8 bytes\n"), "{said}");
    assert_eq!(fs::read_dir(scratch.join("served")).unwrap().count(), 0);
    let dry = copied(scratch.path(), &["--dry-run", &format!("{}:s/", server.address), "nowhere"]);
    assert_eq!(dry["would_copy"], 0, "{dry}");
    assert!(!scratch.join("nowhere").exists());
}

/// The variables are those of other commands: the start-up, the capture and faults are as they say.
#[test]
fn variables_of_connections_are_obeyed() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), bytes(300_000, 1)).unwrap();
    let served = scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let mut copy = command(scratch.path());
    copy.args(["cp", "--json", "file", &format!("{}:s/", server.address)]);
    let variables = [
        ("UIW_PCAP", "capture.pcapng"),
        ("UIW_MPA_REVISION", "1"),
        ("UIW_FAULT", "send-split=100,seed=3"),
    ];
    let copied = summary(&copy.envs(variables).output().unwrap());
    assert_eq!(copied["copied"], 1, "{copied}");
    assert_eq!(fs::read(served.join("file")).unwrap(), bytes(300_000, 1));
    let decoded =
        command(scratch.path()).args(["decode", "--json", "capture.pcapng"]).output().unwrap();
    let lines = text(&decoded.stdout);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<_> = lines.iter().filter(|line| line["type"] == "startup").collect();
    assert!(
        !requests.is_empty() && requests.iter().all(|frame| frame["revision"] == 1),
        "{requests:?}"
    );
    // Each packet of the capture is one write: split, they are many.
    assert!(lines.last().unwrap()["packets"].as_u64().unwrap() > 3_000, "{:?}", lines.last());
}

/// An entry that is no file is named on standard error; where that cannot be written the copy ends
/// all the same.
#[test]
fn copy_ends_without_standard_error() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    fs::write(source.join("file"), b"bytes").unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(source.join("fifo")).status().unwrap();
    assert!(fifo.success());
    let share = format!("s={}", source.display());
    let server = Server::start(scratch.path(), &["--share", &share]);
    let from = format!("{}:s/", server.address);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status =
        command(scratch.path()).args(["cp", &from, "copied/"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(fs::read(scratch.join("copied/file")).unwrap(), b"bytes");
}

#[test]
fn sources_of_same_name_refused() {
    let scratch = Scratch::new();
    for directory in ["a/t", "b/t"] {
        fs::write(scratch.directory(directory).join("file"), directory).unwrap();
    }
    let share = format!("s={}:rw", scratch.path().display());
    let server = Server::start(scratch.path(), &["--share", &share]);
    let there = |path: &str| format!("{}:s/{path}", server.address);
    fails(scratch.path(), &["a/t", "b/t", &there("c/")], 2, "two sources have this name");
    fails(scratch.path(), &[&there("a/t"), &there("b/t"), "c/"], 2, "two sources have this name");
    // Their contents have no name of their own.
    copied(scratch.path(), &["a/t/", "b/t", &there("c/")]);
    assert_eq!(fs::read(scratch.join("c/file")).unwrap(), b"a/t");
    assert_eq!(fs::read(scratch.join("c/t/file")).unwrap(), b"b/t");
}

#[test]
fn whole_share_copied_under_its_name() {
    let scratch = Scratch::new();
    fs::write(scratch.directory("served").join("file"), "content").unwrap();
    let into = scratch.directory("into");
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    for target in [".", "new"] {
        let mut copy = command(&into);
        assert!(
            copy.args(["cp", &format!("{}:s", server.address), target]).status().unwrap().success()
        );
        assert_eq!(fs::read(into.join(target).join("s/file")).unwrap(), b"content");
    }
    assert_eq!(fs::read_dir(&into).unwrap().count(), 2);
    copied(&into, &[&format!("{}:s/", server.address), "."]);
    assert_eq!(fs::read(into.join("file")).unwrap(), b"content");
}

/// The directory in which the target would be made has the same files.
#[test]
fn dry_run_counts_missing_target() {
    let scratch = Scratch::new();
    let directory = scratch.directory("served/d");
    fs::write(directory.join("file"), "content").unwrap();
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let into = scratch.directory("into");
    for from in ["s/d", "s/d/"] {
        let from = format!("{}:{from}", server.address);
        copied(&into, &[&from, "."]);
        let summary = copied(&into, &["--dry-run", &from, "new"]);
        assert_eq!(summary["would_copy"], 1, "{from}: {summary}");
        assert!(!into.join("new").exists());
    }
}

#[test]
fn missing_source_reported_as_json() {
    let scratch = Scratch::new();
    scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let share = format!("{}:s/", server.address);
    fs::write(scratch.join("there"), "content").unwrap();
    for (arguments, path) in [
        (&["there", "missing", &share][..], "missing"),
        (&["missing/", &share], "missing/"),
        (&[&format!("{share}absent"), "."], "absent"),
    ] {
        let output =
            command(scratch.path()).args(["cp", "--json"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let objects: Vec<serde_json::Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [failed, summary] = &objects[..] else { panic!("{arguments:?}: {objects:?}") };
        assert_eq!(
            (&failed["type"], &failed["path"]),
            (&"failed".into(), &path.into()),
            "{failed}"
        );
        assert!(failed["why"].as_str().is_some_and(|why| why.contains("o such")), "{failed}");
        let of = |name: &str| &summary[name];
        assert_eq!((of("type"), of("failed")), (&"summary".into(), &1.into()), "{summary}");
        assert_eq!((of("copied"), of("verified")), (&0.into(), &false.into()), "{summary}");
        assert!(text(&output.stderr).starts_with("error: "), "{output:?}");
    }
}

/// A directory that exists keeps what belongs to this end: its mode if it is the target, and its
/// special bits.
#[test]
fn existing_directories_keep_special_bits() {
    let scratch = Scratch::new();
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let served = scratch.directory("served");
    fs::write(scratch.directory("served/sub").join("file"), "1").unwrap();
    set(&served, 0o777);
    set(&served.join("sub"), 0o755);
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let target = scratch.directory("target");
    set(&scratch.directory("target/sub"), 0o2775);
    set(&target, 0o1750);
    copied(scratch.path(), &[&format!("{}:s/", server.address), "target"]);
    assert_eq!((mode(&target), mode(&target.join("sub"))), (0o1750, 0o2755));
    copied(scratch.path(), &[&format!("{}:s/", server.address), "new"]);
    assert_eq!(mode(&scratch.path().join("new")), 0o777);
}
