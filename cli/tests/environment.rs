//! Environment variables: obeyed by commands that make connections, or refused.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// `uiw serve` on a free port, ended when dropped.
struct ServerProcess {
    child: Child,
    address: String,
}

impl ServerProcess {
    fn start(more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uiw"))
            .args(["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().next_back().unwrap().to_owned();
        Self { child, address }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// `uiw` with these variables, those of the caller's environment apart.
fn with_variables(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    command.args(args).env_remove("UIW_LOG").envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn unsupported_variables_refused() {
    for (args, variable) in [
        (&["ping", "127.0.0.1:1"][..], ("UIW_PERSONA", "roce")),
        (&["perf", "127.0.0.1:1"], ("UIW_PORT_OFFSET", "7")),
        (&["siwtest", "127.0.0.1:1"], ("UIW_UD", "on")),
        (&["serve", "--listen", "127.0.0.1:0"], ("UIW_QP_PORTS", "7000-7010")),
        (&["doctor", "127.0.0.1:1"], ("UIW_LID_MAP", "/nowhere")),
        (&["ping", "127.0.0.1:1"], ("UIW_CRC", "maybe")),
        (&["ping", "127.0.0.1:1"], ("UIW_FAULT", "gremlins=1")),
        (&["ping", "127.0.0.1:1"], ("UIW_RTR", "none")),
        (&["cp", "/etc/hostname", "127.0.0.1:/"], ("UIW_PERSONA", "roce")),
        (&["cp", "/etc/hostname", "127.0.0.1:/"], ("UIW_CRC", "maybe")),
        (&["conform", "127.0.0.1:1"], ("UIW_CRC", "off")),
        (&["demo", "/etc/hostname"], ("UIW_CRC", "off")),
        (&["demo", "/etc/hostname"], ("UIW_TLS", "file")),
    ] {
        let output = with_variables(args, &[variable]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?} {variable:?}: {error}");
        assert!(error.starts_with(&format!("error: {}={}: ", variable.0, variable.1)), "{error}");
    }
}

#[test]
fn variables_of_connections_are_obeyed() {
    let server = ServerProcess::start(&["--crc", "off"]);
    let of = |variables: &[(&str, &str)], more: &[&str]| {
        let output =
            with_variables(&[&["doctor", &server.address, "--json"], more].concat(), variables);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let checks = found["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["check"] == "start-up").unwrap()["details"].clone()
    };
    let usual = of(&[], &[]);
    assert_eq!(
        (&usual["crc"], &usual["revision"], &usual["rtr"]),
        (&true.into(), &2.into(), &"write".into())
    );
    let set = of(
        &[
            ("UIW_CRC", "off"),
            ("UIW_MARKERS", "on"),
            ("UIW_RTR", "read"),
            ("UIW_ORD", "3"),
            ("UIW_FPDU", "512"),
        ],
        &[],
    );
    assert_eq!(
        (&set["crc"], &set["markers_in"], &set["rtr"]),
        (&false.into(), &true.into(), &"read".into())
    );
    assert_eq!(set["ord"], 3);
    let old = of(&[("UIW_MPA_REVISION", "1")], &[]);
    assert_eq!((&old["revision"], &old["rtr"]), (&1.into(), &"read".into()));
    let plain = of(&[("UIW_PEER_TO_PEER", "off")], &[]);
    assert_eq!((&plain["peer_to_peer"], &plain["rtr"]), (&false.into(), &"none".into()));
    // The command line goes before the environment.
    let both = of(
        &[("UIW_RTR", "read"), ("UIW_PEER_TO_PEER", "off")],
        &["--rtr", "write", "--peer-to-peer", "on"],
    );
    assert_eq!(both["rtr"], "write");
}

/// The capture has the bytes that were on the wire: a byte that the fault layer changed is changed
/// in the file, and its CRC is wrong.
#[test]
fn faults_appear_in_capture() {
    let server = ServerProcess::start(&[]);
    let file = std::env::temp_dir().join(format!("uiw-fault-{}.pcapng", std::process::id()));
    // Behind the Request (24 bytes and its private data) and the first FPDU.
    let output = with_variables(
        &["ping", &server.address, "--count", "3", "--size", "600"],
        &[("UIW_FAULT", "flip-sent=700:1"), ("UIW_PCAP", file.to_str().unwrap())],
    );
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let decoded = with_variables(&["decode", file.to_str().unwrap()], &[]);
    std::fs::remove_file(&file).unwrap();
    let text = String::from_utf8_lossy(&decoded.stdout);
    assert_eq!(text.matches("CRC BAD").count(), 1, "{text}");
    assert!(text.contains("CRC (2/0/0x02)") || text.contains("CRC error"), "{text}");
}

/// Derived from driver source: irdma resets the connection on a Request of revision 2 without the
/// peer-to-peer model.
#[test]
fn failed_startup_names_suspect_and_option() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut request = [0; 20];
            std::io::Read::read_exact(&mut stream.unwrap(), &mut request).unwrap();
        }
    });
    let options = ["--peer-to-peer", "off", "--fallback", "off"];
    let output = with_variables(&[&["ping", &address][..], &options].concat(), &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains("irdma") && error.contains("try --peer-to-peer on --rtr write,read"),
        "{error}"
    );
    let log = with_variables(&[&["ping", &address][..], &options].concat(), &[("UIW_LOG", "warn")]);
    let log = String::from_utf8_lossy(&log.stderr).into_owned();
    assert!(log.contains("WARN") && log.contains("start-up failed: Intel's irdma"), "{log}");
    let output = with_variables(&[&["doctor", &address][..], &options].concat(), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().skip_while(|line| !line.starts_with("start-up")).nth(1).unwrap();
    assert!(line.contains("irdma") && line.contains("--peer-to-peer on"), "{text}");
}

#[test]
fn bad_values_printed_escaped() {
    let value = "a\x1b[2J\u{9b}\u{202e}\u{7f}";
    let long = format!("{value}{}", "x".repeat(100_000));
    for (args, name) in [
        (&["ping", "127.0.0.1:1"][..], "UIW_CRC"),
        (&["ping", "127.0.0.1:1"], "UIW_PERSONA"),
        (&["ping", "127.0.0.1:1"], "UIW_LOG"),
        (&["ping", "127.0.0.1:1"], "UIW_TLS"),
        (&["env"], "UIW_CRC"),
        (&["env", "--json"], "UIW_CRC"),
        (&["run", "--", "true"], "UIW_COUNTERS"),
        (&["stat"], "UIW_COUNTERS"),
    ] {
        for value in [value, &long] {
            let value = if args[0] == "stat" { format!("/{value}") } else { value.to_owned() };
            let output = with_variables(args, &[(name, &value)]);
            assert!(!output.status.success(), "{args:?} {name}");
            assert!(output.stderr.len() < 5000, "{args:?} {name}: {} bytes", output.stderr.len());
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(
                !text.contains(['\x1b', '\u{9b}', '\u{202e}', '\u{7f}']),
                "{args:?} {name}: {text:?}"
            );
        }
    }
}

#[test]
fn unknown_variables_named_once() {
    let output = with_variables(&["env"], &[("UIW_LOGG", "debug"), ("UIW_LIB", "/nowhere")]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success());
    assert_eq!(error, "warning: no variable of uiw: UIW_LOGG; `uiw env` lists them\n");
}
