//! Runs stock programs with `UIW_TLS`.

use crate::sockets::{nothing_is_in_the_clear, offset_beyond_ports, with_sockets};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, free_port, uiw};
use uiw_interop::tshark::Tshark;

/// Raw public keys of two ends that accept each other, and the key of a third end that is not
/// accepted.
struct KeyPairs {
    folder: PathBuf,
}

impl KeyPairs {
    fn new(libraries: &Libraries) -> Self {
        let ends = Self { folder: libraries.folder().to_owned() };
        for name in ["one", "two", "unpinned"] {
            let key = ends.key(&["new", ends.path(&format!("{name}.pem")).to_str().unwrap()]);
            fs::write(ends.path(&format!("{name}.pub")), key).unwrap();
        }
        for (own, peer) in [("one", "two"), ("two", "one"), ("unpinned", "one")] {
            let pins = ends.path(&format!("{own}.pins"));
            let key = ends.path(&format!("{peer}.pub"));
            ends.key(&["pin", pins.to_str().unwrap(), key.to_str().unwrap(), peer]);
            let text = format!("mode raw\nkey {own}.pem\npinned {own}.pins\n");
            fs::write(ends.path(own), text).unwrap();
        }
        ends
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs `uiw key` and returns its output.
    fn key(&self, arguments: &[&str]) -> String {
        let done = Command::new(uiw()).arg("key").args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }
}

fn command(
    libraries: &Libraries,
    program: &str,
    arguments: &[&str],
    tls: Option<&Path>,
) -> Command {
    let mut command = libraries.command(User::Same, program);
    command.args(arguments).env("UIW_LOG", "info");
    if let Some(tls) = tls {
        command.env("UIW_TLS", tls);
    }
    command
}

/// Runs rping's server and client with the given TLS files.
fn rping(
    libraries: &Libraries,
    server: Option<&Path>,
    client: Option<&Path>,
    capture: Option<&Path>,
) -> [ProcessEnd; 2] {
    let port = free_port();
    let number = port.to_string();
    let mut serving = Running::start(command(
        libraries,
        "rping",
        &["-s", "-V", "-C", "20", "-p", &number],
        server,
    ));
    serving.wait_listening(port);
    let arguments = ["-c", "-v", "-V", "-C", "20", "-a", "127.0.0.1", "-p", &number];
    let mut connecting = command(libraries, "rping", &arguments, client);
    if let Some(capture) = capture {
        connecting.env("UIW_PCAP", capture).env("UIW_KEYLOG", capture.with_extension("keys"));
    }
    let client = Running::start(connecting).end();
    // A server to which no client could connect continues to wait.
    let server = if client.said.contains("TLS 1.3") && client.code == 0 {
        serving.end()
    } else {
        serving.stop()
    };
    [server, client]
}

#[test]
fn rping_and_its_plaintext() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let capture = ends.path("rping.pcapng");
    let [server, client] =
        rping(&libraries, Some(&ends.path("one")), Some(&ends.path("two")), Some(&capture));
    server.well();
    client.well();
    assert_eq!(client.count("ping data: rdma-ping-"), 20, "{client:?}");
    assert!(server.said.contains("identity=two (SHA256:"), "{server:?}");
    assert!(client.said.contains("identity=one (SHA256:"), "{client:?}");
    // None of the plaintext is on the wire, and all of it can be decrypted with the secrets.
    let wire = fs::read(&capture).unwrap();
    for clear in [&b"MPA ID"[..], b"rdma-ping-"] {
        assert!(
            !wire.windows(clear.len()).any(|bytes| bytes == clear),
            "{}",
            String::from_utf8_lossy(clear)
        );
    }
    let Some(tshark) = uiw_interop::require("tshark") else { return };
    let keys = format!("tls.keylog_file:{}", capture.with_extension("keys").display());
    let mut follow = Command::new(tshark);
    follow.arg("-r").arg(&capture).args(["-o", &keys, "-q", "-z", "follow,tls,raw,0"]);
    let followed = follow.env("XDG_CONFIG_HOME", ends.path("none")).output().unwrap();
    let text = String::from_utf8(followed.stdout).unwrap();
    let plaintext: Vec<u8> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .flat_map(|line| {
            (0..line.len() / 2).map(|at| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap())
        })
        .collect();
    let count = |what: &[u8]| plaintext.windows(what.len()).filter(|bytes| *bytes == what).count();
    assert_eq!((count(b"MPA ID Req Frame"), count(b"MPA ID Rep Frame")), (1, 1), "{text}");
    // The server reads the client's data, and the client gets it back by a Write.
    assert_eq!(count(b"rdma-ping-7: "), 2, "{text}");
    same_by_uiw(&text, &capture);
    // The C bit in the third byte of flags is set: CRC32C stays enabled (RFC 5044 section 7.1).
    let request = plaintext.windows(16).position(|bytes| bytes == b"MPA ID Req Frame").unwrap();
    assert_ne!(plaintext[request + 16] & 0x40, 0);
}

/// Asserts that the bytes that tshark decrypted and dissected again as TCP equal those that `uiw
/// decode` finds with the same secrets.
fn same_by_uiw(followed: &str, capture: &Path) {
    let (Some(text2pcap), Some(tshark)) = (uiw_interop::require("text2pcap"), Tshark::require())
    else {
        return;
    };
    // tshark indents the lines of the server.
    let packets: String = followed
        .lines()
        .filter(|line| {
            !line.trim().is_empty() && line.trim().bytes().all(|byte| byte.is_ascii_hexdigit())
        })
        .map(|line| {
            let direction = if line.starts_with('\t') { 'I' } else { 'O' };
            let bytes: Vec<String> = line
                .trim()
                .as_bytes()
                .chunks(2)
                .map(|digits| String::from_utf8_lossy(digits).into_owned())
                .collect();
            format!("{direction}\n000000 {}\n", bytes.join(" "))
        })
        .collect();
    let (clear, wrapped) = (capture.with_extension("txt"), capture.with_extension("clear.pcap"));
    fs::write(&clear, packets).unwrap();
    let made = Command::new(text2pcap)
        .args(["-q", "-D", "-T", "40000,7174"])
        .args([&clear, &wrapped])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let dissected = tshark.dissect(&wrapped).unwrap();
    let mut command = Command::new(uiw());
    command
        .args(["decode", "--quiet", "--json", "--keylog"])
        .arg(capture.with_extension("keys"))
        .arg(capture);
    let decoded = command.output().unwrap();
    assert!(decoded.status.success(), "{decoded:?}");
    let said = String::from_utf8(decoded.stdout).unwrap();
    let summary: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(
        (summary["startup_frames"].as_u64(), summary["crc_bad"].as_u64()),
        (Some(2), Some(0)),
        "{summary}"
    );
    assert_eq!(summary["crc_good"].as_u64(), Some(dissected.fpdus.len() as u64), "{summary}");
    assert!(dissected.fpdus.len() > 60, "{summary}");
}

#[test]
fn peers_that_do_not_fit() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let (one, two, unpinned) = (ends.path("one"), ends.path("two"), ends.path("unpinned"));
    for (server, client, of_server, of_client) in [
        (Some(&one), None, "the peer does not use TLS", "or require TLS"),
        (
            None,
            Some(&two),
            "the start of TLS, which is not used here",
            "it may not use TLS on that port",
        ),
        (Some(&one), Some(&unpinned), "is not pinned", "alert CertificateUnknown"),
    ] {
        let (server, client) = (server.map(PathBuf::as_path), client.map(PathBuf::as_path));
        let [server, client] = rping(&libraries, server, client, None);
        assert!(server.said.contains(of_server), "{server:?}");
        assert!(client.said.contains(of_client), "{client:?}");
        assert_eq!(client.count("ping data"), 0, "{client:?}");
    }
}

/// The TLS files change while a program runs: an added key is accepted, a file with errors changes
/// nothing, and removing a key ends the connections of this key only.
#[test]
fn files_that_change_are_read_again() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let pins = ends.path("one.pins");
    let port = free_port();
    let number = port.to_string();
    let serve = ["-s", "-P", "-V", "-a", "127.0.0.1", "-p", &number];
    let mut server = command(&libraries, "rping", &serve, Some(Path::new("one")));
    // A relative path refers to the directory in which the program was started.
    server.current_dir(&ends.folder);
    let mut server = Running::start(server);
    server.wait_listening(port);
    let client = |name: &str, count: &[&str]| {
        let arguments = [&["-c", "-V", "-a", "127.0.0.1", "-p", &number], count].concat();
        Running::start(command(&libraries, "rping", &arguments, Some(&ends.path(name))))
    };
    let mut lasting = client("two", &[]);
    lasting.wait_saying("identity=one");
    let refused = client("unpinned", &["-C", "5"]).end();
    assert!(refused.code != 0 && refused.said.contains("alert CertificateUnknown"), "{refused:?}");

    let key = ends.path("unpinned.pub");
    ends.key(&["pin", pins.to_str().unwrap(), key.to_str().unwrap(), "added"]);
    server.wait_saying("the files of TLS were read again");
    client("unpinned", &["-C", "5"]).end().well();
    let both = fs::read_to_string(&pins).unwrap();
    fs::write(&pins, "no key\n").unwrap();
    server.wait_saying("the configuration of TLS before holds on");
    client("unpinned", &["-C", "5"]).end().well();
    assert!(!server.said().contains("is not accepted any more"), "{}", server.said());

    let mut added = client("unpinned", &[]);
    added.wait_saying("identity=one");
    let rest: String =
        both.lines().filter(|line| !line.ends_with(" two")).flat_map(|line| [line, "\n"]).collect();
    fs::write(ends.path("new"), rest).unwrap();
    fs::rename(ends.path("new"), &pins).unwrap();
    let ended = lasting.end();
    // rping exits with success when its peer disconnects.
    assert!(ended.said.contains("DISCONNECT EVENT"), "{ended:?}");
    server.wait_saying("is not accepted any more");
    client("unpinned", &["-C", "5"]).end().well();
    let _ = added.stop();
    assert_eq!(server.stop().count("is not accepted any more"), 1);
}

/// The queue pairs are connected out of band: the initiator of the TCP connection is the TLS
/// client, and a queue pair number is trusted only after the handshake.
#[test]
fn perftest_out_of_band() {
    let Some(_) = uiw_interop::require("ib_write_bw") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let run = |own: &str, peer: &str| {
        let port = free_port();
        let number = port.to_string();
        let arguments = ["-d", "uiw_lo", "-n", "200", "-F", "-p", &number];
        let mut server =
            Running::start(command(&libraries, "ib_write_bw", &arguments, Some(&ends.path(own))));
        server.wait_listening(port);
        let arguments = [&arguments[..], &["127.0.0.1"]].concat();
        let client =
            Running::start(command(&libraries, "ib_write_bw", &arguments, Some(&ends.path(peer))))
                .end();
        [server.end(), client]
    };
    let [server, client] = run("one", "two");
    server.well();
    client.well();
    assert!(server.said.contains("TLS 1.3") && client.said.contains("TLS 1.3"), "{client:?}");
}

#[test]
fn wrong_file_named() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    fs::write(ends.path("wrong"), "mode raw\nkeys one.pem\n").unwrap();
    let arguments = ["-c", "-C", "1", "-a", "127.0.0.1", "-p", "9"];
    let client =
        Running::start(command(&libraries, "rping", &arguments, Some(&ends.path("wrong")))).end();
    // The message quotes nothing from the file, because the user may not be permitted to read it.
    assert!(client.said.contains("wrong:2: expected mode, key"), "{client:?}");
}

/// Datagrams are refused unless unencrypted datagrams are permitted.
#[test]
fn datagrams() {
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let port = free_port();
    let number = port.to_string();
    let end = |own: &str, clear: bool, peer: &[&str]| {
        let arguments = [&["-d", "uiw_lo", "-g", "0", "-n", "100", "-p", &number], peer].concat();
        let mut command = command(&libraries, "ibv_ud_pingpong", &arguments, Some(&ends.path(own)));
        command.env("UIW_UD", "on").env("UIW_LOG", "debug");
        if clear {
            command.env("UIW_TLS_UD", "clear");
        }
        Running::start(command)
    };
    let refused = end("one", false, &[]).end();
    assert_ne!(refused.code, 0);
    assert!(
        refused.said.contains("call refused with EOPNOTSUPP: TLS does not protect datagrams"),
        "{refused:?}"
    );
    // Datagram rsockets are refused like UD.
    let mut udpong = command(&libraries, "udpong", &["-b", "127.0.0.1"], Some(&ends.path("one")));
    udpong.env("UIW_UD", "on").env("UIW_LOG", "warn");
    let refused = Running::start(udpong).end();
    assert!(
        refused.count("no rsocket for datagrams: TLS does not protect datagrams") > 0,
        "{refused:?}"
    );
    let mut server = end("one", true, &[]);
    server.wait_listening(port);
    end("two", true, &["127.0.0.1"]).end().well();
    server.end().well();
}

/// In a program of TCP sockets, the rsockets are encrypted. The program does not connect to a peer
/// without rsockets, because TCP would not be encrypted.
#[test]
fn sockets_of_programs_are_encrypted() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let port = free_port();
    let number = port.to_string();
    let run = |tls: &str, program: &[&str]| {
        let mut command = with_sockets(&libraries, &["--require", "--port-offset", "0"], program);
        command.env("UIW_TLS", ends.path(tls)).env("UIW_LOG", "info");
        command
    };
    let server = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number];
    let mut server = Running::start(run("one", &server));
    server.wait_listening(port);
    let client = ["iperf3", "-c", "127.0.0.1", "-n", "20M", "-p", &number];
    let client = Running::start(run("two", &client)).end();
    for ended in [&client, &server.end()] {
        ended.well();
        assert!(
            ended.count("TLS 1.3") >= 2 && ended.count("over rsockets: 2 connections") == 1,
            "{ended:?}"
        );
    }
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    let url = format!("http://{address}/");
    let mut command = with_sockets(&libraries, &[], &["curl", "-s", "-m", "5", &url]);
    command.env("UIW_TLS", ends.path("two"));
    if uiw_interop::require("curl").is_some() {
        // curl's exit code 7 means that it could not connect.
        assert_eq!(Running::start(command).end().code, 7);
        plain.set_nonblocking(true).unwrap();
        assert_eq!(plain.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
fn sockets_that_cannot_be_encrypted_fail() {
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    nothing_is_in_the_clear(&libraries, "no-identity", Some(&ends.path("none")));
    nothing_is_in_the_clear(&libraries, "no-descriptor", Some(&ends.path("one")));
    nothing_is_in_the_clear(&libraries, "another-port", Some(&ends.path("one")));
}

/// If port + offset is no valid port, the socket would stay on TCP, which is not encrypted.
#[test]
fn sockets_beyond_port_offset_refused() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    let ends = KeyPairs::new(&libraries);
    let plain = std::net::TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let taken = plain.local_addr().unwrap().port();
    for (port, role) in [(free_port(), &["-s", "-1"]), (taken, &["-c", "127.0.0.1"])] {
        let number = port.to_string();
        let words = [&["iperf3"], &role[..], &["-p", &number]].concat();
        let mut command =
            with_sockets(&libraries, &["--port-offset", &offset_beyond_ports(port)], &words);
        command.env("UIW_TLS", ends.path("one"));
        let ended = Running::start(command).end();
        assert!(ended.code != 0 && ended.count("Cannot assign requested address") > 0, "{ended:?}");
    }
    plain.set_nonblocking(true).unwrap();
    assert_eq!(plain.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
