//! `uiw conform` as a program: reports, cases of the user, errors and exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// `uiw serve` or `uiw siwtest`, ended when dropped.
struct ListenerProcess {
    child: Child,
    address: String,
}

impl ListenerProcess {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uiw"))
            .args(args)
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("listening on ") {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it does not listen");
        }
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        Self { child, address }
    }
}

impl Drop for ListenerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder of a test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uiw-conform-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn with(&self, name: &str, text: &str) -> String {
        fs::write(self.0.join(name), text).unwrap();
        self.file(name)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn conform(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uiw")).arg("conform").args(args).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn conforming_listener() {
    let listener = ListenerProcess::start(&["serve"]);
    let output = conform(&[&listener.address, "--jobs", "4", "--all"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), error(&output));
    let text = out(&output);
    assert!(text.lines().filter(|line| line.starts_with("kept ")).count() >= 130, "{text}");
    assert!(
        text.contains(
            "-       RFC5041-5.2-04: needs the partner program at the far end (--partner)"
        ),
        "{text}"
    );
    assert!(text.contains("-       RFC6581-5-01: binds the end that connects"), "{text}");
}

/// A case of the user that demands what no listener does: the report has the sentence and the
/// frames.
#[test]
fn violations_in_all_reports() {
    let listener = ListenerProcess::start(&["siwtest"]);
    let folder = TestFolder::new("reports");
    let case = folder.with(
        "mine.case",
        "case mine/wrong \"A <strange> \\\"demand\\\"\"\n".replace("\\\"", "'").as_str(),
    );
    let lines =
        "  start\n  > read-request sink-stag 7\n  < read-response stag 8 [RFC5040-4.4-02]\n";
    fs::write(&case, fs::read_to_string(&case).unwrap() + lines).unwrap();
    let [markdown, json, junit] = ["r.md", "r.json", "r.xml"].map(|name| folder.file(name));
    let reports = ["--report", &markdown, "--report", &json, "--report", &junit];
    let filters =
        ["--cases", &case, "--case", "mine/", "--requirement", "RFC5040-4.4", "--partner"];
    let output = conform(&[&[listener.address.as_str()], &filters[..], &reports[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{}{}", out(&output), error(&output));
    assert!(
        error(&output).contains("1 requirement of the RFCs is broken")
            && error(&output).contains("hint:")
    );
    let what = "stag of the read-response is 7, 8 is due";
    assert!(out(&output).contains(what), "{}", out(&output));
    assert!(
        out(&output).contains("uiw; driver uiw "),
        "the partner says what it is: {}",
        out(&output)
    );
    let read = |file: &str| fs::read_to_string(file).unwrap();
    let report = read(&markdown);
    assert!(report.contains("### RFC5040-4.4-02 (MUST)") && report.contains(what), "{report}");
    assert!(
        report.contains("< read-response stag 0x7 to 0x1 length 0: 000ec142"),
        "the frames: {report}"
    );
    let value: serde_json::Value = serde_json::from_str(&read(&json)).unwrap();
    let requirements = value["requirements"].as_array().unwrap();
    assert_eq!(requirements.len(), 4);
    let broken = requirements.iter().find(|one| one["id"] == "RFC5040-4.4-02").unwrap();
    assert_eq!(
        (&broken["verdict"], &broken["findings"][0]["what"]),
        (&"broken".into(), &what.into())
    );
    let xml = read(&junit);
    let mut reader = quick_xml::Reader::from_str(&xml);
    let (mut cases, mut failures) = (0, 0);
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Eof => break,
            quick_xml::events::Event::Start(tag) | quick_xml::events::Event::Empty(tag) => {
                cases += usize::from(tag.name().as_ref() == "testcase");
                failures += usize::from(tag.name().as_ref() == "failure");
            }
            _ => {}
        }
    }
    assert_eq!((cases, failures), (4, 1), "{xml}");
}

#[test]
fn wrong_case_names_position() {
    let folder = TestFolder::new("wrong");
    let file = folder.with("wrong.case", "case a \"b\"\n  start\n  > write sttag 1\n");
    let output = conform(&["127.0.0.1:1", "--cases", &file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error(&output).starts_with(&format!("error: {file}:3:11: no field `sttag` of write")),
        "{}",
        error(&output)
    );
    assert!(error(&output).contains("hint: see docs/case-files.md"), "{}", error(&output));
    let file = folder.with("id.case", "case a \"b\"\n  start\n  reads 1 [RFC9999-1]\n");
    let output = conform(&["--list", "--cases", &file]);
    assert_eq!(
        (output.status.code(), error(&output).contains("no requirement is called RFC9999-1")),
        (Some(2), true)
    );
    for args in [
        &["127.0.0.1:1", "--case", "no such case"][..],
        &["127.0.0.1:1", "--requirement", "RFC1"],
        &["127.0.0.1:1", "--report", "file.txt"],
        &["127.0.0.1:1", "--cases", "/no/such/folder"],
        &["127.0.0.1:1", "--pcap", "file"],
        &[],
    ] {
        assert_eq!(conform(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn variables_about_connections_are_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_uiw"))
        .args(["conform", "127.0.0.1:1"])
        .env("UIW_CRC", "off")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("UIW_CRC=off"), "{}", error(&output));
}

#[test]
fn no_listener_is_exit_code_3() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    // One that does not speak iWARP.
    let other = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = socket.accept().unwrap();
            stream.write_all(b"220 mail.example ready\r\n").unwrap();
        }
    });
    let output = conform(&[&address, "--stall", "1"]);
    assert_eq!(output.status.code(), Some(3), "{}", error(&output));
    assert!(
        error(&output).starts_with(&format!("error: cannot ask {address}: ")),
        "{}",
        error(&output)
    );
    other.join().unwrap();
    // Its port is closed now.
    let output = conform(&[&address]);
    assert_eq!(output.status.code(), Some(3), "{}", error(&output));
    assert!(
        error(&output).contains("no connection to") && error(&output).contains("hint:"),
        "{}",
        error(&output)
    );
}

#[test]
fn list_has_all_cases() {
    let text = out(&conform(&["--list"]));
    for name in ["start-up/revision-1 ", "crc/wrong ", "partner/reads ", "endings/terminate "] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
    let json = out(&conform(&["--list", "--json", "--case", "crc/wrong"]));
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["name"], &first["file"]), (&"crc/wrong".into(), &"crc.case".into()));
}

/// A listener that ends connections whose Request (with its Private Data) is one that `ends` names,
/// and passes the others on to uiw's.
fn picky(to: &ListenerProcess, ends: fn(&[u8]) -> bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let to = to.address.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let to = to.clone();
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut request = vec![0; 20];
                client.read_exact(&mut request)?;
                let private = usize::from(u16::from_be_bytes([request[18], request[19]]));
                request.resize(20 + private, 0);
                client.read_exact(&mut request[20..])?;
                if ends(&request) {
                    return Ok(());
                }
                let mut server = TcpStream::connect(to)?;
                server.write_all(&request)?;
                let (mut from, mut back) = (server.try_clone()?, client.try_clone()?);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut back);
                    back.shutdown(std::net::Shutdown::Both)
                });
                let _ = std::io::copy(&mut client, &mut server);
                server.shutdown(std::net::Shutdown::Write)
            });
        }
    });
    address
}

/// A listener that ends the Requests that Intel's irdma ends, and one that ends those of revision
/// 2: the report names the suspected peer, and what to try.
#[test]
fn failed_startup_names_suspect() {
    let behind = ListenerProcess::start(&["serve"]);
    let client_server =
        |request: &[u8]| request[17] == 2 && request.get(20).is_some_and(|ird| ird & 0x80 == 0);
    let revision_2 = |request: &[u8]| request[17] == 2;
    let case = ["--case", "start-up/revision-1-no-crc"];
    let irdma = out(&conform(&[&[picky(&behind, client_server).as_str()], &case[..]].concat()));
    assert!(irdma.contains("suspected: Intel's irdma and i40iw end a connection"), "{irdma}");
    assert!(irdma.contains("try --peer-to-peer on --rtr write,read"), "{irdma}");
    let old = out(&conform(&[&[picky(&behind, revision_2).as_str()], &case[..]].concat()));
    assert!(
        old.contains("suspected: a peer of MPA revision 1") && old.contains("--fallback on"),
        "{old}"
    );
    let none = out(&conform(&[&[behind.address.as_str()], &case[..]].concat()));
    assert!(!none.contains("suspected"), "{none}");
}

#[test]
fn stopped_case_fails_if_strict() {
    let listener = ListenerProcess::start(&["siwtest"]);
    let folder = TestFolder::new("strict");
    let case = "case mine/stops \"Demands another STag\"\n  start\n  > read-request sink-stag 7\n  < read-response stag 8\n";
    let case = folder.with("mine.case", case);
    let args = [&listener.address, "--partner", "--cases", &case, "--case", "mine/"];
    let output = conform(&args);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), error(&output));
    assert!(out(&output).contains("stopped mine/stops"), "{}", out(&output));
    let output = conform(&[&args[..], &["--strict"]].concat());
    assert_eq!(output.status.code(), Some(4), "{}{}", out(&output), error(&output));
    assert!(
        error(&output).contains("1 case stopped before the end (--strict)"),
        "{}",
        error(&output)
    );
}

#[test]
fn echo_server_recognized() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut other = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut other);
            });
        }
    });
    let output = conform(&[&address]);
    assert_eq!(output.status.code(), Some(3), "{}{}", out(&output), error(&output));
    assert!(error(&output).contains("an echo server"), "{}", error(&output));
}
