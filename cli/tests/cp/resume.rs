//! Transfers that are interrupted go on where they were.

use crate::program::{Scratch, Server, bytes, command, copied, summary};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
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
fn tls_push_survives_server_restart() {
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
fn pull_survives_server_restart() {
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
fn killed_client_resumes() {
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

/// A path to the server that cuts its first connections at some byte, of either direction. Returns
/// its address and the number of cuts.
fn cutting_path(server: &str, seed: u64) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, server) = (listener.local_addr().unwrap().to_string(), server.to_owned());
    let cuts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&cuts);
    std::thread::spawn(move || {
        let mut number = bytes(8 * CUTS, seed)
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect::<Vec<_>>();
        while let Ok((near, _)) = listener.accept() {
            let left = number.pop().map_or(i64::MAX, |random| (random % (5 << 20)) as i64);
            let Ok(far) = TcpStream::connect(&server) else { continue };
            let left = Arc::new(AtomicI64::new(left));
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (left, cuts) = (Arc::clone(&left), Arc::clone(&counted));
                std::thread::spawn(move || forward(from, to, &left, &cuts));
            }
        }
    });
    (address, cuts)
}

/// Connections that are cut.
const CUTS: usize = 12;

fn forward(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64, cuts: &AtomicUsize) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let before = left.fetch_sub(len as i64, Ordering::SeqCst);
        let passes = usize::try_from(before.max(0)).unwrap().min(len);
        if to.write_all(&buffer[..passes]).is_err() {
            break;
        }
        if passes < len {
            cuts.fetch_add(1, Ordering::SeqCst);
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn cut_connections_lose_nothing() {
    let scratch = Scratch::new();
    keys(&scratch);
    let source = scratch.directory("source");
    for (name, len, seed) in [("one", 9_000_000, 7), ("two", 6 << 20, 8), ("three", 400_000, 9)] {
        fs::write(source.join(name), bytes(len, seed)).unwrap();
    }
    for number in 0..80u64 {
        fs::write(source.join(format!("small {number}")), bytes(10_000, number)).unwrap();
    }
    scratch.directory("served");
    let arguments = ["--share", "in=served:rw", "--share", "out=source", "--tls", "server.conf"];
    let server = Server::start(scratch.path(), &arguments);
    for (seed, is_push) in [(1, true), (2, false)] {
        let (address, cuts) = cutting_path(&server.address, seed);
        let (from, to, target) = if is_push {
            ("source/".to_owned(), format!("{address}:in/"), "served")
        } else {
            (format!("{address}:out/"), "target".to_owned(), "target")
        };
        // The first connection of all must stand: it says whether the server is there.
        let run = || {
            command(scratch.path())
                .args(["cp", "--json", "--tls", "client.conf", &from, &to])
                .output()
                .unwrap()
        };
        let mut output = run();
        while output.status.code() == Some(3) {
            output = run();
        }
        let done = summary(&output);
        assert_eq!(done["failed"], 0, "{done}");
        assert!(cuts.load(Ordering::SeqCst) > 1, "{done}");
        let target = scratch.join(target);
        assert_eq!(names(&target), names(&source), "and nothing else");
        for name in names(&source) {
            assert!(
                fs::read(target.join(&name)).unwrap() == fs::read(source.join(&name)).unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn changed_source_restarts() {
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
    let content = bytes(SIZE + 1000, 6);
    fs::write(scratch.join("new"), &content).unwrap();
    fs::rename(scratch.join("new"), scratch.join("large")).unwrap();
    let done = summary(&client.wait_with_output().unwrap());
    assert_eq!(done["failed"], 0, "{done}");
    let arrived = fs::read(served.join("large")).unwrap();
    assert_eq!(done["bytes"], arrived.len(), "{done}");
    assert!(
        arrived == content || arrived == bytes(SIZE, 5),
        "one state of the source, not parts of two"
    );
    copied(scratch.path(), &["large", &there]);
    assert!(fs::read(served.join("large")).unwrap() == content);
}
