//! `uiw cp --delete` and `--exclude`.

use crate::program::{Scratch, Server, command, copied, fails, text};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use uiw::blocking::Listener;
use uiw::{ConnectionConfig, Device};

/// Names below a directory, sorted.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `new` has what `old` has not, and the other way round.
fn trees(scratch: &Scratch) {
    let (new, old) = (scratch.directory("new/t"), scratch.directory("old/t"));
    for name in ["both", "only-new", "kept.tmp"] {
        fs::write(new.join(name), name).unwrap();
    }
    fs::create_dir(new.join("d")).unwrap();
    fs::create_dir_all(old.join("surplus/deep")).unwrap();
    fs::create_dir(old.join("d")).unwrap();
    fs::write(old.join("both"), "another").unwrap();
    for name in ["only-old", "surplus/deep/file", "d/file", "excluded.log", "d/excluded.log"] {
        fs::write(old.join(name), name).unwrap();
    }
    let outside = scratch.directory("outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink(&outside, old.join("surplus/out")).unwrap();
    symlink(&outside, old.join("out")).unwrap();
    fs::write(scratch.join("old/beside"), "beside").unwrap();
}

fn is_mirrored(scratch: &Scratch) {
    assert_eq!(names(&scratch.join("old")), ["beside", "t"]);
    assert_eq!(names(&scratch.join("old/t")), ["both", "d", "excluded.log", "only-new"]);
    assert_eq!(names(&scratch.join("old/t/d")), ["excluded.log"]);
    assert_eq!(names(&scratch.join("outside")), ["secret"]);
    let modified = |path: &str| fs::metadata(scratch.join(path)).unwrap().modified().unwrap();
    assert_eq!(modified("old/t"), modified("new/t"));
}

/// The paths that a dry run would delete, sorted.
fn would_delete(shown: &str) -> Vec<&str> {
    let mut paths: Vec<_> =
        shown.lines().filter_map(|line| line.strip_prefix("would delete ")).collect();
    paths.sort_unstable();
    paths
}

/// Starts a server. Returns it with the source and the target of a copy of `new/t` to `old`.
fn serve(scratch: &Scratch, push: bool) -> (Server, String, String) {
    let server = Server::start(scratch.path(), &["--share", "new=new", "--share", "old=old:rw"]);
    let there = |path: &str| format!("{}:{path}", server.address);
    let (from, to) = match push {
        true => ("new/t".to_owned(), there("old")),
        false => (there("new/t"), "old".to_owned()),
    };
    (server, from, to)
}

#[test]
fn surplus_entries_deleted_in_both_directions() {
    for push in [true, false] {
        let scratch = Scratch::new();
        trees(&scratch);
        let (server, from, to) = serve(&scratch, push);
        let options = ["--delete", "--exclude", "*.log", "--exclude", "/kept.tmp", &from, &to];
        let dry = command(scratch.path()).args(["cp", "--dry-run"]).args(options).output().unwrap();
        let shown = text(&dry.stdout);
        assert!(dry.status.success(), "{shown}{}", text(&dry.stderr));
        assert_eq!(
            would_delete(&shown),
            ["t/d/file", "t/only-old", "t/out", "t/surplus"],
            "{shown}"
        );
        assert!(shown.ends_with(", 4 would be deleted\n"), "{shown}");
        assert_eq!(names(&scratch.join("old/t")).len(), 6, "a dry run deletes nothing");
        let summary = copied(scratch.path(), &options);
        assert_eq!((&summary["deleted"], &summary["copied"]), (&4.into(), &2.into()), "{summary}");
        is_mirrored(&scratch);
        if push {
            server.wait_logged(&["transfer ", "removed=4", "result=\"complete\""]);
        }
        let again = copied(scratch.path(), &options);
        assert_eq!((&again["deleted"], &again["copied"]), (&0.into(), &0.into()), "{again}");
    }
}

/// Only an ordinary user needs the rights, so the test of root runs the program as another user.
#[test]
fn read_only_directories_mirrored() {
    const NOBODY: u32 = 65534;
    for push in [true, false] {
        let scratch = Scratch::new();
        for path in
            ["new/t/d/added", "new/t/added", "old/t/d/gone", "old/t/gone", "old/t/surplus/x/file"]
        {
            fs::create_dir_all(scratch.join(path).parent().unwrap()).unwrap();
            fs::write(scratch.join(path), path).unwrap();
        }
        // Divided into several tasks.
        (0..100)
            .for_each(|number| fs::write(scratch.join(&format!("old/t/{number}")), "").unwrap());
        let directories =
            ["new/t/d", "new/t", "old/t/surplus/x", "old/t/surplus", "old/t/d", "old/t"]
                .map(|at| scratch.join(at));
        for path in &directories {
            fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            let paths = [scratch.join("new"), scratch.join("old"), scratch.path().to_owned()];
            paths
                .iter()
                .chain(&directories)
                .for_each(|path| chown(path, Some(NOBODY), None).unwrap());
        }
        let (_server, from, to) = serve(&scratch, push);
        let summary = copied(scratch.path(), &["--delete", &from, &to]);
        assert_eq!(
            (&summary["deleted"], &summary["copied"]),
            (&103.into(), &2.into()),
            "{summary}"
        );
        assert_eq!(names(&scratch.join("old/t")), ["added", "d"]);
        for path in ["old/t", "old/t/d"] {
            let mode = scratch.join(path).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o555, "{path}");
        }
    }
}

#[test]
fn excluded_entries_of_surplus_directories_stay() {
    for push in [true, false] {
        let scratch = Scratch::new();
        scratch.directory("new/t");
        for directory in ["gone/a/b", "gone/empty", "gone/kept", "none/x"] {
            fs::create_dir_all(scratch.join("old/t").join(directory)).unwrap();
        }
        let old = scratch.join("old/t/gone");
        for name in ["file", "a/file", "a/b/file", "a/b/x.log", "kept/y.log"] {
            fs::write(old.join(name), name).unwrap();
        }
        fs::set_permissions(old.join("a/b"), fs::Permissions::from_mode(0o555)).unwrap();
        let (_server, from, to) = serve(&scratch, push);
        let options = ["--delete", "--exclude", "*.log", "--exclude", "/gone/empty", &from, &to];
        let dry = command(scratch.path()).args(["cp", "--dry-run"]).args(options).output().unwrap();
        let shown = text(&dry.stdout);
        let surplus = ["t/gone/a/b/file", "t/gone/a/file", "t/gone/file", "t/none"];
        assert_eq!(would_delete(&shown), surplus, "{shown}{}", text(&dry.stderr));
        assert_eq!(copied(scratch.path(), &options)["deleted"], surplus.len());
        assert_eq!(names(&scratch.join("old/t")), ["gone"]);
        assert_eq!(names(&old), ["a", "empty", "kept"]);
        assert_eq!(names(&old.join("a")), ["b"]);
        assert_eq!(
            (names(&old.join("a/b")), names(&old.join("kept"))),
            (vec!["x.log".into()], vec!["y.log".into()])
        );
        let mode = fs::metadata(old.join("a/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o555, "the directory that stays was made writable meanwhile");
        assert_eq!(copied(scratch.path(), &options)["deleted"], 0);
        // Without the patterns nothing is kept.
        copied(scratch.path(), &["--delete", &from, &to]);
        assert!(names(&scratch.join("old/t")).is_empty());
    }
}

#[test]
fn failed_entries_keep_surplus() {
    for push in [true, false] {
        let scratch = Scratch::new();
        trees(&scratch);
        let fifo = std::process::Command::new("mkfifo")
            .arg(scratch.join("new/t/d/fifo"))
            .status()
            .unwrap();
        assert!(fifo.success());
        let server = Server::start(scratch.path(), &["--share", "s=.:rw"]);
        let there = |path: &str| format!("{}:s/{path}", server.address);
        let (from, to) = match push {
            true => ("new/t/".to_owned(), there("old/t")),
            false => (there("new/t/"), "old/t".to_owned()),
        };
        fails(
            scratch.path(),
            &["--delete", &from, &to],
            1,
            "nothing was deleted, as entries were not copied",
        );
        assert!(scratch.join("old/t/only-old").exists() && scratch.join("old/t/only-new").exists());
        // Excluded, it is no error.
        copied(scratch.path(), &["--delete", "--exclude", "fifo", &from, &to]);
        assert!(!scratch.join("old/t/only-old").exists());
    }
}

#[test]
fn deletion_refused_where_not_permitted() {
    let scratch = Scratch::new();
    trees(&scratch);
    let server = Server::start(scratch.path(), &["--share", "s=old"]);
    let to = format!("{}:s/t", server.address);
    fails(scratch.path(), &["--delete", "new/t/", &to], 3, "read-only");
    fails(scratch.path(), &["--delete", "new/t/", "old", &to], 2, "--delete");
    assert!(scratch.join("old/t/only-old").exists());
    // A server without this request names no revision.
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let listener =
        Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &ConnectionConfig::default()).unwrap();
    let to = format!("{}:s/t", listener.local_addr());
    let client = command(scratch.path()).args(["cp", "--delete", "new/t/", &to]).spawn().unwrap();
    let incoming = listener.incoming_timeout(std::time::Duration::from_secs(60)).unwrap().unwrap();
    let settings = ConnectionConfig::default().private_data(br#"{"at":[0,1]}"#.to_vec());
    let connection = incoming.accept(&pd, &settings).unwrap();
    let output = client.wait_with_output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("its `uiw serve` has no --delete"), "{error}");
    drop(connection);
}

#[test]
fn failed_removals_named() {
    use std::process::Command;
    let scratch = Scratch::new();
    scratch.directory("new");
    fs::write(scratch.directory("old/mounted").join("file"), "file").unwrap();
    let server = Server::start(scratch.path(), &["--share", "s=new"]);
    // A mount point in a namespace of its own, as far as this user may make one.
    let script = "mount -t tmpfs none old/mounted 2> mount.log || exit 99; exec \"$@\"";
    let mut client = Command::new("unshare");
    client.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    client.arg(env!("CARGO_BIN_EXE_uiw")).args([
        "cp",
        "--delete",
        &format!("{}:s/", server.address),
        "old",
    ]);
    let output = client.current_dir(scratch.path()).output().unwrap();
    if matches!(output.status.code(), Some(99)) || text(&output.stderr).starts_with("unshare: ") {
        return;
    }
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("not deleted: mounted: another file system is mounted there"),
        "{error}"
    );
    assert!(scratch.join("old/mounted/file").exists());
}
