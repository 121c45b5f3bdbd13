//! `uiw key` and `--tls`.

mod common;

use common::{Server, text};
use rustix::process::Signal;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use uiw_decode as decode;
use uiw_decode::pcap::Reader;

/// Files of one test: a configuration for each name.
struct TlsFiles(PathBuf);

impl TlsFiles {
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

    /// A server with a configuration of these.
    fn serve(&self, tls: &str) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--tls", tls, "-v"]).current_dir(&self.0);
        Server::spawn(&mut command)
    }

    /// `of` accepts the key of `peer`.
    fn pin(&self, of: &str, peer: &str) {
        let pinned = self.uiw(&["key", "pin", &format!("{of}.pins"), &format!("{peer}.pub"), peer]);
        assert!(pinned.status.success(), "{pinned:?}");
    }
}

impl Drop for TlsFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn hangup_ends_connections_of_removed_keys() {
    let files = TlsFiles::new(&["server", "stays", "gone"]);
    for client in ["stays", "gone"] {
        files.pin("server", client);
        files.pin(client, "server");
    }
    let mut server = files.serve("server");
    let ping = |tls: &str| files.uiw(&["ping", &server.address, "--count", "2", "--tls", tls]);
    assert!(ping("gone").status.success());
    // Connections that last.
    let begin = |tls: &str, seconds: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command.args(["perf", &server.address, "--size", "4K", "--seconds", seconds, "--tls", tls]);
        command
            .current_dir(&files.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (stays, gone) = (begin("stays", "3"), begin("gone", "60"));
    for _ in 0..2 {
        server.wait_logged("service=\"perf\"");
    }
    let pins = fs::read_to_string(files.0.join("server.pins")).unwrap();
    let kept: Vec<_> = pins.lines().filter(|line| !line.ends_with("gone")).collect();
    assert_eq!(kept.len(), 1, "{pins}");
    fs::write(files.0.join("server.pins"), kept.join("\n")).unwrap();
    server.signal(Signal::HUP);
    server.wait_logged("the files of TLS were read again");
    let ended = gone.wait_with_output().unwrap();
    assert!(!ended.status.success(), "{}", text(&ended.stdout));
    let ended = stays.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let refused = files.uiw(&["ping", &server.address, "--tls", "gone"]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    assert!(text(&refused.stderr).contains("alert CertificateUnknown"), "{refused:?}");
    assert!(text(&refused.stderr).contains("it must pin this end's key"), "{refused:?}");
    // A file that is wrong changes nothing.
    fs::write(files.0.join("server.pins"), "nonsense").unwrap();
    server.signal(Signal::HUP);
    server.wait_logged("the configuration of TLS before holds on");
    assert!(
        files.uiw(&["ping", &server.address, "--count", "2", "--tls", "stays"]).status.success()
    );
    let line = server.wait_logged("identity=stays");
    assert!(line.contains("SHA256:"), "{line}");
}

/// The server logs one line about each connection of a client that is killed, with the reason.
#[test]
fn killed_client_logged_once_per_connection() {
    let files = TlsFiles::new(&["server", "client"]);
    files.pin("server", "client");
    files.pin("client", "server");
    let mut server = files.serve("server");
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    command.args([
        "perf",
        &server.address,
        "--connections",
        "3",
        "--seconds",
        "60",
        "--tls",
        "client",
    ]);
    command.current_dir(&files.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = command.spawn().unwrap();
    for _ in 0..3 {
        server.wait_logged("service=\"perf\"");
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    client.kill().unwrap();
    client.wait().unwrap();
    for _ in 0..3 {
        server.wait_logged("without close_notify");
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    let log = server.log();
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains(" WARN ") && !line.contains("ulimit")).collect();
    assert_eq!(warnings.len(), 3, "{log}");
}

/// A host without a key cannot fill the disk with lines about its attempts.
#[test]
fn refused_peers_logged_in_part() {
    const PEERS: usize = 3000;
    let files = TlsFiles::new(&["server"]);
    files.pin("server", "server");
    let mut server = files.serve("server");
    let refused = || {
        let mut peer = std::net::TcpStream::connect(&server.address).unwrap();
        let _ = peer.write_all(b"not TLS");
        // Until it is refused.
        let _ = peer.read(&mut [0]);
    };
    (0..PEERS).for_each(|_| refused());
    // The number of omitted lines is reported with the next line, which is admitted by then.
    std::thread::sleep(std::time::Duration::from_millis(300));
    refused();
    server.wait_logged("too many lines like the next one");
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("TLS: the connection ends")).count();
    assert!((1000..2000).contains(&lines), "{lines} lines for {PEERS} peers");
}

#[test]
fn keys_created_shown_and_pinned() {
    let files = TlsFiles::new(&["one"]);
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
        (
            &["key", "show", "open.pem"],
            "others can read this secret (mode 0644)\nhint: chmod 600 it\n",
        ),
        (&["demo", "--tls", "one"], "leave it out"),
    ] {
        let failed = files.uiw(arguments);
        assert!(
            !failed.status.success() && text(&failed.stderr).contains(why),
            "{arguments:?}: {failed:?}"
        );
    }
}

/// A capture without its packet `left_out`, as pcap.
fn without(capture: &[u8], left_out: u64) -> Vec<u8> {
    let mut reader = Reader::new(capture).unwrap();
    let mut packets = Vec::new();
    let mut link = 0;
    for (number, packet) in (1..).zip(std::iter::from_fn(|| reader.next_packet().unwrap())) {
        link = packet.link.0;
        if number != left_out {
            let length = u32::try_from(packet.bytes.len()).unwrap();
            packets.extend([0, 0, length, length].into_iter().flat_map(u32::to_be_bytes));
            packets.extend(packet.bytes);
        }
    }
    let header = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 262_144, link];
    [header.into_iter().flat_map(u32::to_be_bytes).collect(), packets].concat()
}

#[test]
fn capture_decrypted_despite_missing_packets() {
    let files = TlsFiles::new(&["one", "two"]);
    files.pin("one", "two");
    files.pin("two", "one");
    let server = files.serve("one");
    let perf = [
        "--tls",
        "two",
        "--keylog",
        "keys",
        "--pcap",
        "whole",
        "perf",
        &server.address,
        "--op",
        "send",
    ];
    let done = files
        .uiw(&[&perf[..], &["--size", "900", "--iterations", "50", "--seconds", "20"]].concat());
    assert!(done.status.success(), "{done:?}");
    let decode = |file: &str, keylog: &str| {
        let args = decode::DecodeConfig {
            files: vec![files.0.join(file)],
            quiet: true,
            keylog: Some(files.0.join(keylog)),
            ..decode::DecodeConfig::default()
        };
        decode::decode_to(&args, &mut std::io::sink())
    };
    let whole = decode("whole", "keys").unwrap();
    assert!(whole.followed() && whole.locked == 0, "{whole:?}");
    assert!(whole.messages["Send"] > 50 && whole.crc_good == whole.fpdus, "{whole:?}");
    // The same by the command; without the secrets it names what it lacks.
    assert!(files.uiw(&["decode", "--quiet", "--keylog", "keys", "whole"]).status.success());
    let locked = files.uiw(&["decode", "--quiet", "whole"]);
    assert_eq!(locked.status.code(), Some(1), "{locked:?}");
    assert!(
        text(&locked.stdout).contains("1 connection of TLS: name the file of their secrets"),
        "{locked:?}"
    );
    // Other secrets; a file that has none.
    fs::write(files.0.join("others"), "# nothing\n").unwrap();
    assert_eq!(decode("whole", "others").unwrap().locked, 1);
    fs::write(files.0.join("wrong"), "CLIENT_TRAFFIC_SECRET_0 12 34\n").unwrap();
    let wrong = files.uiw(&["decode", "--keylog", "wrong", "whole"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(text(&wrong.stderr).starts_with("error: wrong: line 1: the random"), "{wrong:?}");

    let capture = fs::read(files.0.join("whole")).unwrap();
    // Secrets in the capture itself, in a block behind the section's header.
    let secrets = fs::read(files.0.join("keys")).unwrap();
    let mut body = [0x544c_534b, secrets.len() as u32].map(u32::to_le_bytes).concat();
    body.extend(&secrets);
    body.resize(body.len().next_multiple_of(4), 0);
    let total = (body.len() as u32 + 12).to_le_bytes();
    let block = [&10u32.to_le_bytes()[..], &total, &body, &total].concat();
    let header = u32::from_le_bytes(capture[4..8].try_into().unwrap()) as usize;
    let with_secrets = [&capture[..header], &block, &capture[header..]].concat();
    fs::write(files.0.join("with-secrets"), with_secrets).unwrap();
    let decrypted = files.uiw(&["decode", "--quiet", "with-secrets"]);
    assert!(decrypted.status.success(), "{decrypted:?}");
    let (mut resumed, mut good) = (0, 0);
    for number in 1..=whole.packets {
        fs::write(files.0.join("part"), without(&capture, number)).unwrap();
        let part = decode("part", "keys").unwrap();
        assert_eq!((part.departures, part.crc_bad), (0, 0), "without packet {number}: {part:?}");
        resumed += part.resumed;
        good += u64::from(part.fpdus * 10 >= whole.fpdus * 8);
    }
    // All but those of the handshake, and those that carry most of the messages at once.
    assert!(
        resumed > 0 && good * 2 > whole.packets,
        "{resumed} resumed, {good} of {} well",
        whole.packets
    );
}

/// Raw TCP would be a clear connection to a port that has none.
#[test]
fn raw_tcp_comparison_refused_with_tls() {
    let files = TlsFiles::new(&["server", "client"]);
    files.pin("server", "client");
    files.pin("client", "server");
    let server = files.serve("server");
    let compared =
        files.uiw(&["perf", &server.address, "--compare", "--slices", "1", "--tls", "client"]);
    let error = text(&compared.stderr);
    assert_eq!(compared.status.code(), Some(3), "{error}");
    assert!(error.contains("raw TCP needs the kernel's TCP, without TLS"), "{error}");
}

/// The limit ends the program in its first write, as a full file system or a crash would.
#[test]
fn interrupted_first_use_leaves_no_partial_key() {
    let files = TlsFiles::new(&[]);
    let copy = |limit: &str| {
        let script = "ulimit -f $0; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args([
            "-c",
            script,
            limit,
            env!("CARGO_BIN_EXE_uiw"),
            "cp",
            "--accept-new",
            "x",
            "127.0.0.1:1:x/",
        ]);
        command.env("XDG_CONFIG_HOME", &files.0).stdin(Stdio::null()).output().unwrap()
    };
    assert!(!copy("0").status.success());
    assert!(files.0.join("uiw").is_dir() && !files.0.join("uiw/key.pem").exists());
    copy("unlimited");
    let shown = files.uiw(&["key", "show", "uiw/key.pem"]);
    assert!(shown.status.success(), "{shown:?}");
    let names = fs::read_dir(files.0.join("uiw")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.filter(|name| !name.to_string_lossy().ends_with(".new")).count() == 3);
}

/// The list of a service belongs to the service's user.
#[test]
fn root_pins_for_other_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let files = TlsFiles::new(&["one", "two"]);
    let list = files.0.join("list");
    fs::write(&list, "# clients\n").unwrap();
    std::os::unix::fs::lchown(&list, Some(65534), Some(65534)).unwrap();
    let pin =
        |list: &str, peer: &str| files.uiw(&["key", "pin", list, &format!("{peer}.pub"), peer]);
    assert!(pin("list", "one").status.success());
    let read = fs::read_to_string(&list).unwrap();
    assert!(read.starts_with("# clients\n") && read.ends_with(" one\n"), "{read}");
    assert!(!pin("list", "one").status.success(), "pinned already");
    // A link in that user's directory would lead root to any file.
    fs::write(files.0.join("target"), "").unwrap();
    std::os::unix::fs::symlink("target", files.0.join("link")).unwrap();
    assert!(!pin("link", "two").status.success());
    assert_eq!(fs::read(files.0.join("target")).unwrap(), b"");
    // A FIFO without a writer would never end.
    assert!(Command::new("mkfifo").arg(files.0.join("fifo")).status().unwrap().success());
    assert!(!pin("fifo", "two").status.success());
}
