//! `uiw key` and `--tls`.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// Files of one test: a configuration for each name.
struct Files(PathBuf);

impl Files {
    fn new(names: &[&str]) -> Self {
        let number = getrandom::u64().unwrap();
        let path = std::env::temp_dir().join(format!("uiw-tls-{}-{number:x}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let files = Self(path);
        for name in names {
            let made = files.uiw(&["key", "new", &format!("{name}.pem")]);
            assert!(made.status.success(), "{made:?}");
            fs::write(files.0.join(format!("{name}.pub")), made.stdout).unwrap();
            let text = format!("mode raw\nkey {name}.pem\npinned {name}.pins\n");
            fs::write(files.0.join(name), text).unwrap();
        }
        files
    }

    fn uiw(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null()).output().unwrap()
    }

    /// `of` accepts the key of `peer`.
    fn pin(&self, of: &str, peer: &str) {
        let pinned = self.uiw(&["key", "pin", &format!("{of}.pins"), &format!("{peer}.pub"), peer]);
        assert!(pinned.status.success(), "{pinned:?}");
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `uiw serve`, ended when dropped.
struct Server {
    child: Child,
    errors: BufReader<ChildStderr>,
    address: String,
}

impl Server {
    fn start(files: &Files, tls: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uiw"))
            .args(["serve", "--listen", "127.0.0.1:0", "--tls", tls, "-v"])
            .current_dir(&files.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").unwrap().trim().to_owned();
        let errors = BufReader::new(child.stderr.take().unwrap());
        Self { child, errors, address }
    }

    fn wait_saying(&mut self, what: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.errors.read_line(&mut line).unwrap(), 0, "the server ended before `{what}`");
            if line.contains(what) {
                return line;
            }
        }
    }

    fn hang_up(&self) {
        let id = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(id, Signal::HUP).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_hang_up_ends_connections_of_removed_keys_and_no_others() {
    let files = Files::new(&["server", "stays", "gone"]);
    for client in ["stays", "gone"] {
        files.pin("server", client);
        files.pin(client, "server");
    }
    let mut server = Server::start(&files, "server");
    let ping = |tls: &str| files.uiw(&["ping", &server.address, "--count", "2", "--tls", tls]);
    assert!(ping("gone").status.success());
    // Connections that last.
    let begin = |tls: &str, seconds: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command.args(["perf", &server.address, "--size", "4K", "--seconds", seconds, "--tls", tls]);
        command.current_dir(&files.0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (stays, gone) = (begin("stays", "3"), begin("gone", "600"));
    for _ in 0..2 {
        server.wait_saying("service=\"perf\"");
    }
    let pins = fs::read_to_string(files.0.join("server.pins")).unwrap();
    let kept: Vec<_> = pins.lines().filter(|line| !line.ends_with("gone")).collect();
    assert_eq!(kept.len(), 1, "{pins}");
    fs::write(files.0.join("server.pins"), kept.join("\n")).unwrap();
    server.hang_up();
    let ended = gone.wait_with_output().unwrap();
    assert!(!ended.status.success(), "{}", text(&ended.stdout));
    let ended = stays.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let refused = files.uiw(&["ping", &server.address, "--tls", "gone"]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(text(&refused.stderr).contains("alert CertificateUnknown"), "{refused:?}");
    // A file that is wrong changes nothing.
    fs::write(files.0.join("server.pins"), "nonsense").unwrap();
    server.hang_up();
    server.wait_saying("the configuration of TLS before holds on");
    assert!(files.uiw(&["ping", &server.address, "--count", "2", "--tls", "stays"]).status.success());
    let line = server.wait_saying("identity=stays");
    assert!(line.contains("SHA256:"), "{line}");
}

#[test]
fn keys_are_made_shown_and_pinned_once() {
    let files = Files::new(&["one"]);
    let key = fs::read_to_string(files.0.join("one.pub")).unwrap();
    let shown = files.uiw(&["key", "show", "one.pem"]);
    assert_eq!(text(&shown.stdout), key);
    let json: serde_json::Value =
        serde_json::from_slice(&files.uiw(&["key", "show", "--json", "one.pem"]).stdout).unwrap();
    assert_eq!(json["key"], key.trim());
    let pem = text(&files.uiw(&["key", "show", "--pem", "one.pem"]).stdout);
    fs::write(files.0.join("pem"), &pem).unwrap();
    assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----\n"), "{pem}");
    files.pin("two", "one");
    let again = files.uiw(&["key", "pin", "two.pins", "pem", "another name"]);
    assert!(text(&again.stderr).contains("it is pinned as `one`"), "{again:?}");
    fs::copy(files.0.join("one.pem"), files.0.join("open.pem")).unwrap();
    fs::set_permissions(files.0.join("open.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    for (arguments, why) in [
        (
            &["key", "new", "one.pem"][..],
            "File exists (os error 17)\nhint: choose another name: a key is never",
        ),
        (&["key", "pin", "pins", "AAAA", "x"], "no SubjectPublicKeyInfo"),
        (&["key", "pin", "pins", key.trim(), " "], "no name"),
        (
            &["ping", "127.0.0.1:9", "--tls", "nowhere"],
            "No such file or directory (os error 2)\nhint: `uiw key new` makes a",
        ),
        (&["key", "show", "open.pem"], "others can read this private key (mode 0644)\nhint: chmod 600 it\n"),
        (&["demo", "--tls", "one"], "leave it out"),
    ] {
        let failed = files.uiw(arguments);
        assert!(!failed.status.success() && text(&failed.stderr).contains(why), "{arguments:?}: {failed:?}");
    }
}
