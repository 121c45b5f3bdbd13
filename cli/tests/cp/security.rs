//! Which clients reach what, and which servers are accepted.

use crate::program::{Scratch, Server, command, copied, fails, text};
use std::fs;
use std::process::Command;

#[test]
fn a_share_is_read_only_unless_it_says_otherwise() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), "text").unwrap();
    fs::write(scratch.directory("served").join("there"), "there").unwrap();
    let server = Server::start(scratch.path(), &["--share", "ro=served"]);
    fails(scratch.path(), &["file", &format!("{}:ro/", server.address)], 3, "share `ro` is read-only");
    fails(scratch.path(), &["file", &format!("{}:other/", server.address)], 3, "no share `other`");
    copied(scratch.path(), &[&format!("{}:ro/there", server.address), "here"]);
    assert_eq!(fs::read(scratch.join("here")).unwrap(), b"there");
    assert_eq!(fs::read_dir(scratch.join("served")).unwrap().count(), 1);
    drop(server);
    let output = command(scratch.path()).args(["serve", "--share", "x=missing"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// The public key of a private one.
fn key(scratch: &Scratch, file: &str) -> String {
    let output = command(scratch.path()).args(["key", "show", file]).output().unwrap();
    text(&output.stdout).trim().to_owned()
}

fn hang_up(server: &Server) {
    let status = Command::new("kill").args(["-HUP", &server.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn keys_are_made_pinned_and_limited() {
    let (server_home, home) = (Scratch::new(), Scratch::new());
    server_home.directory("a");
    server_home.directory("b");
    fs::write(home.join("file"), "text").unwrap();
    // Beyond this machine a share is encrypted without any option.
    let shares = ["--share", "a=a:rw", "--share", "b=b:rw"];
    let mut server = Server::listening("0.0.0.0:0", server_home.path(), &shares);
    let address = server.address.replace("0.0.0.0", "127.0.0.1");
    let at = |share: &str| format!("{address}:{share}/");
    // In the clear it gives no answer.
    fails(home.path(), &["file", &at("a")], 3, "closed before its MPA Reply");
    // Its key is accepted at first use, but it does not accept ours yet.
    fails(home.path(), &["--accept-new", "file", &at("a")], 3, "does not accept the key");
    let pinned = fs::read_to_string(home.join("config/uiw/known-servers")).unwrap();
    assert_eq!(pinned, format!("{} {address}\n", key(&server_home, "config/uiw/key.pem")));
    let clients = server_home.join("config/uiw/authorized-clients");
    let own = key(&home, "config/uiw/key.pem");
    let accept = |options: &str| {
        fs::write(&clients, format!("{options} {own} client\n")).unwrap();
        hang_up(&server);
    };
    accept("shares=a:rw,b");
    let push = || command(home.path()).args(["cp", "--accept-new", "file", &at("a")]).output().unwrap();
    // The files are read again a moment later.
    while !push().status.success() {}
    assert_eq!(fs::read(server_home.join("a/file")).unwrap(), b"text");
    fails(home.path(), &["--accept-new", "file", &at("b")], 3, "share `b` is read-only for you");
    copied(home.path(), &["--accept-new", &format!("{address}:b/"), "b"]);
    accept("shares=b");
    while push().status.success() {}
    fails(home.path(), &["--accept-new", "file", &at("a")], 3, "no share `a` for you");
    // A server that has the key of another one is refused.
    let swapped = format!("{} other\n{own} {address}\n", key(&server_home, "config/uiw/key.pem"));
    fs::write(home.join("config/uiw/known-servers"), swapped).unwrap();
    fails(home.path(), &["--accept-new", &at("b"), "c"], 3, "it has the key of `other`");
    fs::write(home.join("config/uiw/known-servers"), &pinned).unwrap();
    // Another server in its place is refused.
    fs::remove_file(server_home.join("config/uiw/key.pem")).unwrap();
    assert!(server.is_up());
    let listen = server.kill();
    let _other = Server::listening(&listen, server_home.path(), &shares);
    fails(home.path(), &["--accept-new", "file", &at("a")], 3, "not the one that is pinned under its name");
    // As with any server that is not known, the command that pins it is named where nothing was accepted.
    fs::remove_file(home.join("config/uiw/known-servers")).unwrap();
    let conf = home.join("config/uiw/client.conf");
    fs::write(home.join("config/uiw/known-servers"), "").unwrap();
    let tls = conf.to_str().unwrap();
    fails(home.path(), &["--tls", tls, "file", &at("a")], 3, "is not pinned; `uiw key pin` adds the line");
}
