//! Which clients reach what, and which servers are accepted.

use crate::program::{Scratch, Server, command, copied, fails, text};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

#[test]
fn share_read_only_by_default() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), "text").unwrap();
    fs::write(scratch.directory("served").join("there"), "there").unwrap();
    let server = Server::start(scratch.path(), &["--share", "ro=served"]);
    fails(
        scratch.path(),
        &["file", &format!("{}:ro/", server.address)],
        3,
        "share `ro` is read-only",
    );
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

/// The fingerprint of a private key.
fn fingerprint(scratch: &Scratch, file: &str) -> String {
    let output = command(scratch.path()).args(["key", "show", file]).output().unwrap();
    text(&output.stderr).trim().to_owned()
}

#[test]
fn changed_server_key_warning_has_keys() {
    let (server_home, home) = (Scratch::new(), Scratch::new());
    server_home.directory("a");
    fs::write(home.join("file"), "text").unwrap();
    let shares = ["--share", "a=a:rw"];
    let server = Server::listening("0.0.0.0:0", server_home.path(), &shares);
    let address = server.address.replace("0.0.0.0", "127.0.0.1");
    let at = format!("{address}:a/");
    fails(home.path(), &["--accept-new", "file", &at], 3, "does not accept the key");
    let known = home.join("config/uiw/known-servers");
    let pinned = format!("# servers\n\n{}", fs::read_to_string(&known).unwrap());
    fs::write(&known, &pinned).unwrap();
    let before = fingerprint(&server_home, "config/uiw/key.pem");
    fs::remove_file(server_home.join("config/uiw/key.pem")).unwrap();
    let listen = server.kill();
    let _other = Server::listening(&listen, server_home.path(), &shares);
    let now = fingerprint(&server_home, "config/uiw/key.pem");
    let place = format!("{}:3", known.display());
    let output = command(home.path()).args(["cp", "--accept-new", "file", &at]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains(&format!("WARNING: THE KEY OF THE SERVER {address} HAS CHANGED")),
        "{said}"
    );
    for part in [&before, &now, &place] {
        assert!(said.contains(part.as_str()), "no {part} in {said}");
    }
    assert!(!said.contains("key pin") && !said.contains("--accept-new"), "{said}");
    assert_eq!(fs::read_to_string(&known).unwrap(), pinned, "nothing was pinned");
}

#[test]
fn second_key_of_name_refused() {
    let scratch = Scratch::new();
    let uiw = |arguments: &[&str]| {
        let output = command(scratch.path()).arg("key").args(arguments).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let [first, second] = ["a.pem", "b.pem"].map(|file| uiw(&["new", file]).1.trim().to_owned());
    assert_eq!(uiw(&["pin", "pins", &first, "node"]).0, Some(0));
    let (code, _, error) = uiw(&["pin", "pins", &second, "node"]);
    assert_eq!(code, Some(1), "{error}");
    let pinned = fingerprint(&scratch, "a.pem");
    assert!(
        error.contains(&pinned) && error.contains("pins:1") && error.contains("--add"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(scratch.join("pins")).unwrap().lines().count(), 1);
    assert_eq!(uiw(&["pin", "--add", "pins", &second, "node"]).0, Some(0));
    assert_eq!(fs::read_to_string(scratch.join("pins")).unwrap().lines().count(), 2);
}

/// `uiw serve` with a log that can be waited for.
struct LoggedServer {
    child: std::process::Child,
    address: String,
    log: std::sync::mpsc::Receiver<String>,
}

impl LoggedServer {
    fn start(home: &Scratch, arguments: &[&str]) -> Self {
        let mut child = command(home.path())
            .args(["serve", "--listen", "0.0.0.0:0"])
            .args(arguments)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().replace("listening on 0.0.0.0", "127.0.0.1");
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, address, log }
    }

    /// The next line with `what`, after it was told to read its files again.
    fn reloads(&self, what: &str) -> String {
        let status =
            Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
        let found = self.log.iter().find(|line| line.contains(what));
        found.unwrap_or_else(|| panic!("the server ended before `{what}`"))
    }
}

impl Drop for LoggedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn wrong_key_options_reported_with_line() {
    let (server_home, home) = (Scratch::new(), Scratch::new());
    server_home.directory("a");
    fs::write(home.join("file"), "text").unwrap();
    let server = LoggedServer::start(&server_home, &["--share", "a=a:rw"]);
    let at = format!("{}:a/", server.address);
    fails(home.path(), &["--accept-new", "file", &at], 3, "does not accept the key");
    let clients = server_home.join("config/uiw/authorized-clients");
    let own = key(&home, "config/uiw/key.pem");
    fs::write(&clients, format!("# clients\nshares=a:rw {own} client\n")).unwrap();
    server.reloads("read again");
    copied(home.path(), &["--accept-new", "file", &at]);
    // A key with shares may do nothing else.
    let tls = home.join("config/uiw/client.conf");
    let ping = command(home.path())
        .args(["ping", "--tls", tls.to_str().unwrap(), &server.address])
        .output()
        .unwrap();
    assert_eq!(ping.status.code(), Some(3), "{}", text(&ping.stderr));
    assert!(text(&ping.stderr).contains("limited to shares"), "{}", text(&ping.stderr));
    for (options, why) in
        [("share=a", "unknown option `share`"), ("shares=a,b:rw", "no share `b` is served here")]
    {
        fs::write(&clients, format!("# clients\n{options} {own} client\n")).unwrap();
        let line = server.reloads("holds on");
        assert!(line.contains("authorized-clients:2") && line.contains(why), "{line}");
        fs::write(home.join("file"), options).unwrap();
        copied(home.path(), &["--accept-new", "file", &at]);
        assert_eq!(fs::read_to_string(server_home.join("a/file")).unwrap(), options);
        let start = command(server_home.path())
            .args(["serve", "--listen", "0.0.0.0:0", "--share", "a=a"])
            .output()
            .unwrap();
        let error = text(&start.stderr);
        assert_eq!(start.status.code(), Some(2), "{error}");
        assert!(error.contains("authorized-clients:2") && error.contains(why), "{error}");
    }
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
    let push =
        || command(home.path()).args(["cp", "--accept-new", "file", &at("a")]).output().unwrap();
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
    fails(home.path(), &["--accept-new", &at("b"), "c"], 3, "is not the one that is pinned in");
    let other = |name: &str| {
        let line = format!("{} {name}\n", key(&server_home, "config/uiw/key.pem"));
        fs::write(home.join("config/uiw/known-servers"), line).unwrap();
    };
    other("other");
    fails(home.path(), &["--accept-new", &at("b"), "c"], 3, "it has the key of another server");
    assert!(!home.join("c").exists());
    other(&format!("other,{address}"));
    copied(home.path(), &["--accept-new", &at("b"), "c"]);
    fs::write(home.join("config/uiw/known-servers"), &pinned).unwrap();
    // Another server in its place is refused.
    fs::remove_file(server_home.join("config/uiw/key.pem")).unwrap();
    assert!(server.is_up());
    let listen = server.kill();
    let _other = Server::listening(&listen, server_home.path(), &shares);
    fails(home.path(), &["--accept-new", "file", &at("a")], 3, "is not the one that is pinned in");
    // As with any server that is not known, the command that pins it is named where nothing was
    // accepted.
    fs::remove_file(home.join("config/uiw/known-servers")).unwrap();
    let conf = home.join("config/uiw/client.conf");
    fs::write(home.join("config/uiw/known-servers"), "").unwrap();
    let tls = conf.to_str().unwrap();
    fails(
        home.path(),
        &["--tls", tls, "file", &at("a")],
        3,
        "is not pinned; `uiw key pin` adds the line",
    );
}
