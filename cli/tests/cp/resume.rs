//! Transfers that are interrupted go on where they were.

use crate::program::{Scratch, Server, bytes, command, copied, summary};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const SIZE: usize = 24 << 20;

/// A transfer at a rate that leaves time to interrupt it.
fn begin(directory: &Path, arguments: &[&str]) -> Child {
    let mut command = command(directory);
    command.args(["cp", "--json", "--limit", "12M", "--dead-after", "60s"]).args(arguments);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until some blocks of the file are in the journal, a record of 56 bytes each.
fn wait_for_half(journal: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::metadata(journal).map_or(0, |data| data.len()) < 40 + 8 * 56 {
        assert!(Instant::now() < deadline, "no progress");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Two keys that accept each other, in files for `--tls`.
fn keys(scratch: &Scratch) {
    let uiw = |arguments: &[&str]| {
        let output = command(scratch.path()).arg("key").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for (own, other) in [("client", "server"), ("server", "client")] {
        let key = uiw(&["new", &format!("{own}.pem")]);
        uiw(&["pin", &format!("{other}.pins"), key.trim(), own]);
        let text = format!("mode raw\nkey {own}.pem\npinned {own}.pins\n");
        fs::write(scratch.join(&format!("{own}.conf")), text).unwrap();
    }
}

#[test]
fn a_push_over_tls_goes_on_when_its_server_is_killed_and_started_again() {
    let scratch = Scratch::new();
    keys(&scratch);
    let source = scratch.directory("source");
    let content = bytes(SIZE, 1);
    fs::write(source.join("large"), &content).unwrap();
    for number in 0..50u64 {
        fs::write(source.join(format!("small {number}")), bytes(2000, number)).unwrap();
    }
    let served = scratch.directory("served");
    let arguments = ["--share", "s=served:rw", "--tls", "server.conf"];
    let server = Server::start(scratch.path(), &arguments);
    let to = format!("{}:s/", server.address);
    let client = begin(scratch.path(), &["--tls", "client.conf", "source/", &to]);
    wait_for_half(&served.join("large.uiw-journal"));
    let address = server.kill();
    assert!(!served.join("large").exists(), "no name before the file is complete");
    let _server = Server::listening(&address, scratch.path(), &arguments);
    let done = summary(&client.wait_with_output().unwrap());
    assert_eq!((&done["copied"], &done["failed"]), (&51.into(), &0.into()), "{done}");
    assert!(done["connections_lost"].as_u64().unwrap() > 0, "{done}");
    assert!(fs::read(served.join("large")).unwrap() == content);
    for number in 0..50u64 {
        assert_eq!(fs::read(served.join(format!("small {number}"))).unwrap(), bytes(2000, number));
    }
    assert_eq!(names(&served).len(), 51, "nothing remains");
}

#[test]
fn a_pull_goes_on_when_its_server_is_killed_and_started_again() {
    let scratch = Scratch::new();
    let content = bytes(SIZE, 2);
    fs::write(scratch.directory("served").join("large"), &content).unwrap();
    let target = scratch.directory("target");
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let client = begin(scratch.path(), &[&format!("{}:s/large", server.address), "target"]);
    wait_for_half(&target.join("large.uiw-journal"));
    let address = server.kill();
    let _server = Server::listening(&address, scratch.path(), &["--share", "s=served"]);
    let done = summary(&client.wait_with_output().unwrap());
    assert!(done["connections_lost"].as_u64().unwrap() > 0, "{done}");
    assert!(fs::read(target.join("large")).unwrap() == content);
    assert_eq!(names(&target), ["large"]);
}

#[test]
fn a_client_that_was_killed_continues_at_its_next_run() {
    let scratch = Scratch::new();
    let content = bytes(SIZE, 3);
    fs::write(scratch.join("large"), &content).unwrap();
    let served = scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let there = format!("{}:s/large", server.address);
    let mut client = begin(scratch.path(), &["large", &there]);
    wait_for_half(&served.join("large.uiw-journal"));
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(names(&served), ["large.uiw-journal", "large.uiw-part"]);
    let done = copied(scratch.path(), &["large", &there]);
    let resumed = done["bytes_resumed"].as_u64().unwrap();
    assert!(resumed >= 8 << 20, "{done}");
    assert_eq!(done["bytes_moved"].as_u64().unwrap(), SIZE as u64 - resumed, "{done}");
    assert!(fs::read(served.join("large")).unwrap() == content);
    assert_eq!(names(&served), ["large"]);
    // The same from the server.
    let target = scratch.directory("target");
    let mut client = begin(scratch.path(), &[&there, "target"]);
    wait_for_half(&target.join("large.uiw-journal"));
    client.kill().unwrap();
    client.wait().unwrap();
    let done = copied(scratch.path(), &[&there, "target"]);
    assert!(done["bytes_resumed"].as_u64().unwrap() >= 8 << 20, "{done}");
    assert!(fs::read(target.join("large")).unwrap() == content);
    assert_eq!(names(&target), ["large"]);
}

#[test]
fn a_source_that_has_changed_begins_anew() {
    let scratch = Scratch::new();
    fs::write(scratch.join("large"), bytes(SIZE, 4)).unwrap();
    let served = scratch.directory("served");
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let there = format!("{}:s/", server.address);
    let mut client = begin(scratch.path(), &["large", &there]);
    wait_for_half(&served.join("large.uiw-journal"));
    client.kill().unwrap();
    client.wait().unwrap();
    // Between two runs, and while a run is at it.
    fs::write(scratch.join("large"), bytes(SIZE, 5)).unwrap();
    let client = begin(scratch.path(), &["large", &there]);
    wait_for_half(&served.join("large.uiw-journal"));
    let content = bytes(SIZE, 6);
    fs::write(scratch.join("new"), &content).unwrap();
    fs::rename(scratch.join("new"), scratch.join("large")).unwrap();
    let done = summary(&client.wait_with_output().unwrap());
    assert_eq!(done["failed"], 0, "{done}");
    let arrived = fs::read(served.join("large")).unwrap();
    assert!(arrived == content || arrived == bytes(SIZE, 5), "one state of the source, not parts of two");
    copied(scratch.path(), &["large", &there]);
    assert!(fs::read(served.join("large")).unwrap() == content);
}
