//! The server's log of transfers.

use crate::program::{Scratch, Server, bytes, command, copied, fails};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

#[test]
fn transfers_logged_with_totals() {
    let scratch = Scratch::new();
    scratch.directory("served");
    let tree = scratch.directory("tree");
    fs::write(tree.join("small"), bytes(1000, 1)).unwrap();
    fs::write(tree.join("large"), bytes(3 << 20, 2)).unwrap();
    let server =
        Server::listening("[::]:0", scratch.path(), &["--clear", "--share", "s=served:rw"]);
    let host = format!("127.0.0.1:{}", server.address.rsplit_once(':').unwrap().1);
    copied(scratch.path(), &["--stripes", "3", "tree", &format!("{host}:s")]);
    let line = server.wait_logged(&["transfer ", "direction=\"upload\""]);
    let total = 1000 + (3 << 20);
    for part in
        ["peer=127.0.0.1 ", "share=\"s\"", "path=\"tree\" ", "files=2 ", "result=\"complete\""]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(
        line.contains(&format!(" bytes={total} seconds=")) && !line.contains("errors="),
        "{line}"
    );
    copied(scratch.path(), &[&format!("{host}:s/tree/small"), "copy"]);
    let line = server.wait_logged(&["transfer ", "direction=\"download\""]);
    for part in ["path=\"tree/small\" ", "files=1 bytes=1000 ", "result=\"complete\""] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("::ffff:"), "{line}");
}

#[test]
fn made_directories_logged() {
    let scratch = Scratch::new();
    scratch.directory("served");
    scratch.directory("tree/empty");
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    copied(scratch.path(), &["tree", &format!("{}:s", server.address)]);
    server.wait_logged(&["transfer ", "path=\"tree\" ", "files=0 ", "result=\"complete\""]);
}

#[test]
fn errors_of_clients_logged() {
    let scratch = Scratch::new();
    symlink("/", scratch.directory("served").join("out")).unwrap();
    fs::create_dir(scratch.join("served/file")).unwrap();
    fs::write(scratch.join("file"), "content").unwrap();
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    fails(scratch.path(), &[&format!("{}:s/out/etc", server.address), "."], 1, "symbolic");
    server.wait_logged(&["entry not transferred", "share=\"s\"", "path=\"out/etc\"", "symbolic"]);
    server.wait_logged(&["transfer ", "errors=1", "result=\"failed\""]);
    // A file of a batch.
    fails(scratch.path(), &["file", &format!("{}:s", server.address)], 1, "directory");
    server.wait_logged(&["entry not transferred", "path=\"file\"", "Is a directory"]);
}

#[test]
fn killed_client_logged_as_interrupted() {
    let scratch = Scratch::new();
    scratch.directory("served");
    fs::write(scratch.join("large"), bytes(4 << 20, 1)).unwrap();
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let target = format!("{}:s", server.address);
    let mut client =
        command(scratch.path()).args(["cp", "--limit", "1M", "large", &target]).spawn().unwrap();
    while !scratch.join("served/large.uiw-journal").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    client.kill().unwrap();
    client.wait().unwrap();
    server.wait_logged(&["transfer ", "path=\"large\"", "result=\"interrupted\""]);
}
