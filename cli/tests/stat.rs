//! `uiw stat` beside programs that move bytes, one of them killed.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A runtime directory of its own, removed when dropped.
struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("uiw-stat-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command
            .args(args)
            .env("XDG_RUNTIME_DIR", &self.0)
            .env_remove("UIW_COUNTERS")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// A program that says first where it listens, killed when dropped.
    fn listening(&self, args: &[&str]) -> ListeningProcess {
        let mut child = self.command(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("listening on ")
            .unwrap_or_else(|| panic!("{line:?}"))
            .trim()
            .to_owned();
        ListeningProcess { child, address }
    }

    /// The objects of `uiw stat --json --interval 0` with more arguments.
    fn stat(&self, more: &[&str]) -> Vec<Value> {
        let output = self.run(&[&["stat", "--all", "--json", "--interval", "0"], more].concat());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn files(&self) -> usize {
        fs::read_dir(self.0.join("uiw")).unwrap().count()
    }
}

impl Drop for RuntimeDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct ListeningProcess {
    child: Child,
    address: String,
}

impl ListeningProcess {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ListeningProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `messages` and `bytes` of one operation and direction of all shards.
fn count(process: &Value, operation: &str, direction: &str) -> (u64, u64) {
    let count = &process["total"]["traffic"][operation][direction];
    (count["messages"].as_u64().unwrap(), count["bytes"].as_u64().unwrap())
}

#[test]
fn counts_survive_sigkill() {
    let runtime = RuntimeDirectory::new();
    let mut server = runtime.listening(&["serve", "--listen", "127.0.0.1:0"]);
    let perf = |op: &str, seconds: &str| {
        let args =
            ["perf", &server.address, "--op", op, "--size", "5000", "--seconds", seconds, "--json"];
        runtime.command(&args)
    };
    let mut written = 0;
    for (op, operation, by_client) in
        [("write", "write", "sent"), ("read", "read", "received"), ("send", "send", "sent")]
    {
        let output = perf(op, "0.2").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let processes = runtime.stat(&[]);
        let [serving, client] = &processes[..] else { panic!("{processes:?}") };
        assert_eq!((&serving["running"], &client["running"]), (&true.into(), &false.into()));
        assert_eq!(serving["pid"], server.child.id());
        // Messages to begin and to end the run are Sends, too.
        let (messages, bytes) = count(client, operation, by_client);
        let (expected_messages, expected) =
            (said["messages"].as_u64().unwrap(), said["bytes"].as_u64().unwrap());
        if op == "send" {
            assert!(messages >= expected_messages && bytes >= expected, "{client} {said}");
        } else {
            assert_eq!((messages, bytes), (expected_messages, expected), "{op}");
        }
        let by_server = if by_client == "sent" { "received" } else { "sent" };
        if op == "write" {
            written = bytes;
        }
        if op == "read" {
            assert_eq!(count(serving, operation, by_server), (messages, bytes));
        }
        assert_eq!(count(serving, "write", "received").1, written);
        assert_eq!(serving["with_others"], serving["total"]["traffic"]);
        // The one that has ended is reported once.
        assert_eq!(runtime.files(), 1);
    }

    // In the middle of a run: the server is killed.
    let mut client =
        perf("write", "60").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let serving = loop {
        let mut processes = runtime.stat(&[&server.child.id().to_string()]);
        let process = processes.remove(0);
        if count(&process, "write", "received").1 > written + 50_000_000 {
            break process;
        }
    };
    let [connection] = &serving["connections"].as_array().unwrap()[..] else { panic!("{serving}") };
    assert_eq!(connection["local"], server.address);
    assert!(connection["tcp"]["rtt_us"].as_u64().unwrap() > 0, "{connection}");
    assert!(connection["tcp"]["retransmits"].is_u64() && connection["initiator"] == false);
    assert_eq!(connection["same_device"], false);
    let pair = &serving["queue_pairs"][0];
    assert_eq!((&pair["queue_pair"], &pair["connections"]), (&connection["queue_pair"], &1.into()));
    server.kill();
    let _ = client.wait();
    let processes = runtime.stat(&[]);
    let [killed, client] = &processes[..] else { panic!("{processes:?}") };
    assert_eq!((&killed["running"], &client["running"]), (&false.into(), &false.into()));
    let (messages, bytes) = count(killed, "write", "received");
    assert!(bytes >= count(&serving, "write", "received").1);
    // Of the message that it was killed in, a part.
    assert!(messages * 5000 <= bytes && bytes < (messages + 1) * 5000, "{messages} {bytes}");
    assert!(bytes - written <= count(client, "write", "sent").1);
    assert_eq!(runtime.files(), 0);
    assert!(runtime.stat(&[]).is_empty());
}

#[test]
fn text_names_process_and_connections() {
    let runtime = RuntimeDirectory::new();
    let server = runtime.listening(&["serve", "--listen", "127.0.0.1:0"]);
    let ping = runtime.run(&["ping", &server.address, "-c", "20", "-s", "3000"]);
    assert!(ping.status.success(), "{ping:?}");
    let output = runtime.run(&["stat", &server.child.id().to_string(), "--interval", "0.05"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with(&format!("{} uiw: 1 device, 1 queue pair, ", server.child.id())),
        "{text}"
    );
    assert!(text.contains(" kB/s)"), "{text}");
    // By name, and none of another name.
    assert_eq!(runtime.stat(&["uiw"]).len(), 2);
    let none = runtime.run(&["stat", "--interval", "0", "nosuchprogram"]);
    let error = String::from_utf8(none.stderr).unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(
        error.starts_with("error: no counters of nosuchprogram") && error.contains("\nhint: "),
        "{error}"
    );
}

#[test]
fn invalid_files_named_others_shown() {
    let runtime = RuntimeDirectory::new();
    let server = runtime.listening(&["serve", "--listen", "127.0.0.1:0"]);
    let folder = runtime.0.join("uiw");
    fs::write(folder.join("garbage.counters"), vec![7; 100_000]).unwrap();
    fs::write(folder.join("empty.counters"), []).unwrap();
    symlink("/dev/zero", folder.join("link.counters")).unwrap();
    fs::write(folder.join("notes.txt"), "no counters").unwrap();
    let output = runtime.run(&["stat", "--interval", "0", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().filter(|line| line.starts_with("warning: ")).count(), 3, "{errors}");
    assert!(errors.contains("garbage.counters: it is not a file of counters"), "{errors}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["pid"], server.child.id());
    // What is not ours stays.
    assert_eq!(runtime.files(), 5);
}

#[test]
fn hostile_file_names_shown_escaped() {
    let runtime = RuntimeDirectory::new();
    let named = runtime.0.join("named");
    fs::create_dir(&named).unwrap();
    for number in 0..40 {
        fs::write(named.join(format!("{number}\x1b[2J\n\u{202e}.counters")), "").unwrap();
    }
    let mut stat = runtime.command(&["stat", "--interval", "0"]);
    let output = stat.env("UIW_COUNTERS", &named).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!errors.contains(['\x1b', '\u{202e}']), "{errors:?}");
    assert_eq!(errors.lines().filter(|line| line.starts_with("warning: ")).count(), 17, "{errors}");
    assert!(errors.contains("warning: 24 other files cannot be read either\n"), "{errors}");
}

/// A service publishes in a directory of its own, where no user's `uiw stat` looks by itself.
#[test]
fn named_directory_shown() {
    let (service, user) = (RuntimeDirectory::new(), RuntimeDirectory::new());
    let directory = service.0.to_str().unwrap();
    let mut serve = user.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut child = serve.env("UIW_COUNTERS", directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let mut serving = ListeningProcess { child, address: line };
    let stat = |directory: &str| {
        let mut stat = user.command(&["stat", "--all", "--json", "--interval", "0"]);
        stat.env("UIW_COUNTERS", directory).output().unwrap()
    };
    let shown = || -> Value { serde_json::from_slice(&stat(directory).stdout).unwrap() };
    assert_eq!(user.stat(&[]), Vec::<Value>::new());
    assert_eq!((&shown()["pid"], &shown()["running"]), (&serving.child.id().into(), &true.into()));
    serving.kill();
    // Another reader may be interested: it stays.
    assert_eq!((&shown()["running"], &shown()["running"]), (&false.into(), &false.into()));
    let absent = stat("/nowhere");
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    assert!(
        String::from_utf8_lossy(&absent.stderr)
            .starts_with("error: cannot read the directory /nowhere: ")
    );
}

#[test]
fn off_publishes_nothing() {
    let runtime = RuntimeDirectory::new();
    let mut command = runtime.command(&["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends"]);
    let output = command.env("UIW_COUNTERS", "off").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!runtime.0.join("uiw").exists());
    let mut command = runtime.command(&["serve"]);
    let output = command.env("UIW_COUNTERS", "relative").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Sends `request` and reads the answer to its end.
fn http(address: &str, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // The other end may reset a connection whose request it did not read to its end.
    let _ = client.read_to_string(&mut answer);
    answer
}

#[test]
fn prometheus_served_despite_hostile_clients() {
    let runtime = RuntimeDirectory::new();
    let server = runtime.listening(&["serve", "--listen", "127.0.0.1:0"]);
    let ping = runtime.run(&["ping", &server.address, "-c", "20", "-s", "3000"]);
    assert!(ping.status.success(), "{ping:?}");
    let metrics = runtime.listening(&["stat", "--prometheus", "127.0.0.1:0"]);
    // More than are served at a time: each has a few seconds for its request.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(&metrics.address).unwrap()).collect();
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert!(!http(&metrics.address, &long).contains("200 OK"));
    assert!(http(&metrics.address, "GET /metrics\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let threads = fs::read_dir(format!("/proc/{}/task", metrics.child.id())).unwrap().count();
    assert!(threads <= 4, "{threads} threads for 40 clients");
    assert!(
        http(&metrics.address, "DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 ")
    );
    let answer = http(&metrics.address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    // Every line is a comment or a sample of a metric that was declared.
    let mut declared = Vec::new();
    for line in body.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => declared.push(rest.split(' ').next().unwrap()),
            None if line.starts_with("# HELP ") => {}
            None => {
                let (name, value) =
                    (line.split('{').next().unwrap(), line.rsplit(' ').next().unwrap());
                assert_eq!(declared.last(), Some(&name), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }
    // Queue pair numbers look as in log lines.
    let numbers = body.lines().filter_map(|line| line.split("queue_pair=\"").nth(1));
    assert!(numbers.clone().all(|number| number.starts_with("0x")), "{body}");
    let sum = |name: &str, labels: [&str; 3]| -> f64 {
        let lines = body.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let found = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        found.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let pid = format!("pid=\"{}\"", server.child.id());
    let received = sum("uiw_bytes_total", [&pid, "operation=\"send\"", "direction=\"received\""]);
    let (_, bytes) = count(&runtime.stat(&[&server.child.id().to_string()])[0], "send", "received");
    assert!(received >= 60_000.0 && received == bytes as f64, "{received} {bytes}");
    drop(silent);
}

#[test]
fn transfers_counted_by_direction_and_result() {
    let runtime = RuntimeDirectory::new();
    let shared = runtime.0.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(runtime.0.join("file"), "content").unwrap();
    let share = format!("s={}:rw", shared.display());
    let server = runtime.listening(&["serve", "--listen", "127.0.0.1:0", "--share", &share]);
    let at = |path: &str| format!("{}:s{path}", server.address);
    let (file, copy) = (runtime.0.join("file"), runtime.0.join("copy"));
    let (file, copy) = (file.to_str().unwrap(), copy.to_str().unwrap());
    assert!(runtime.run(&["cp", file, &at("")]).status.success());
    assert!(runtime.run(&["cp", &at("/file"), copy]).status.success());
    assert!(!runtime.run(&["cp", &at("/absent"), copy]).status.success());
    let id = server.child.id().to_string();
    let expected = serde_json::json!({
        "upload": {"complete": 1, "failed": 0, "interrupted": 0, "files": 1, "bytes": 7},
        "download": {"complete": 1, "failed": 1, "interrupted": 0, "files": 1, "bytes": 7},
    });
    // The server may still be at work on the end of the last one.
    while runtime.stat(&[&id])[0]["transfers"] != expected {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let metrics = runtime.listening(&["stat", "--prometheus", "127.0.0.1:0"]);
    let answer = http(&metrics.address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let failed =
        |line: &&str| line.starts_with("uiw_transfers_total{") && line.contains("\"failed\"");
    let failed: Vec<_> = answer.lines().filter(failed).collect();
    assert_eq!(failed.len(), 2, "{answer}");
    assert!(
        failed.iter().any(|line| line.contains("\"download\"") && line.ends_with(" 1")),
        "{failed:?}"
    );
    let text = runtime.run(&["stat", "--interval", "0", &id]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("  downloads: 1 complete, 1 failed; 1 file, 7 bytes\n"), "{text}");
}

#[test]
fn ended_programs_shown_on_request() {
    let runtime = RuntimeDirectory::new();
    let server = runtime.listening(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(runtime.run(&["ping", &server.address, "-c", "1"]).status.success());
    let shown = |more: &[&str]| {
        let output = runtime.run(&[&["stat", "--interval", "0"], more].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    for _ in 0..2 {
        let text = shown(&[]);
        assert!(
            text.contains(" serve --listen 127.0.0.1:0\n") && !text.contains("(ended)"),
            "{text}"
        );
    }
    let text = shown(&["--all"]);
    assert!(
        text.contains("(ended)") && text.contains(&format!(" ping {} -c 1\n", server.address)),
        "{text}"
    );
    assert!(!shown(&["--all"]).contains("(ended)"), "shown once");
}

#[test]
fn files_of_ended_programs_bounded() {
    let (service, runtime) = (RuntimeDirectory::new(), RuntimeDirectory::new());
    let server = runtime.listening(&["serve", "--listen", "127.0.0.1:0"]);
    let ping = || {
        let mut ping = runtime.command(&["ping", &server.address, "-c", "1"]);
        ping.env("UIW_COUNTERS", &service.0).output().unwrap()
    };
    assert!(ping().status.success());
    let file = fs::read_dir(&service.0).unwrap().next().unwrap().unwrap().path();
    for number in 0..200 {
        fs::copy(&file, service.0.join(format!("{number:016x}.counters"))).unwrap();
    }
    assert!(ping().status.success());
    let left = fs::read_dir(&service.0).unwrap().count();
    assert!(left <= 128, "{left}");
}
