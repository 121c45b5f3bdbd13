//! `uiw serve`: where it listens, and what becomes of connections when descriptors run out.

mod common;

use common::{Server, text, uiw};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};
use uiw::blocking::Connection;
use uiw::{ConnectionConfig, Device, ErrorKind};

/// Processor time of a process, in ticks of a hundredth of a second.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A connection for a service of `uiw serve`.
fn order(pd: &uiw::Pd, server: &str, order: &str) -> uiw::Result<Connection> {
    let options = r#"{"crc":false,"markers":false,"fpdu":"auto","stable_tx":false}"#;
    let order = order.replacen('}', &format!(r#","options":{options},"wishes":{options}}}"#), 1);
    Connection::connect(
        pd,
        server.parse().unwrap(),
        &ConnectionConfig::default().private_data(order),
    )
}

/// Connections of one address that take all memory it can get; nothing of it is touched.
#[test]
fn greedy_address_leaves_others_served() {
    let directory = std::env::temp_dir().join(format!("uiw-greedy-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("file"), "content").unwrap();
    let share = format!("s={}", directory.display());
    let server = Server::with(&["--listen", "[::]:0", "--clear", "--share", &share]);
    let port = server.address.rsplit_once(':').unwrap().1;
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let greedy = r#"uiw-cp/1 {"share":"s","token":1,"push":false,"slots":32,"at":[0,0]}"#;
    let mut held = Vec::new();
    let refused = loop {
        match order(&pd, &format!("127.0.0.1:{port}"), greedy) {
            Ok(connection) => held.push(connection),
            Err(error) => match error.kind() {
                ErrorKind::Rejected { private_data, .. } => break text(private_data),
                error => panic!("{error}"),
            },
        }
        assert!(held.len() < 128, "one address has everything");
    };
    assert!(refused.contains("left for its address"), "{refused}");
    let (other, target) = (format!("[::1]:{port}"), directory.join("copy"));
    for command in [
        &["ping", &other, "--count", "1"][..],
        &["perf", &other, "--iterations", "10"],
        &["cp", "--clear", &format!("{other}:s/file"), target.to_str().unwrap()],
    ] {
        let output = uiw(command);
        assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    }
    drop(held);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn short_messages_cost_no_long_pattern() {
    let server = Server::start();
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let perf = r#"uiw-perf/1 {"op":"send","size":8388608,"slots":1,"depth":1,"latency":false,"wait":"sleep","validate":true}"#;
    let connection = order(&pd, &server.address, perf).unwrap();
    let before = ticks(server.id());
    for _ in 0..1000 {
        connection.send_copy(b"x").unwrap();
    }
    // Its answer comes behind all of them.
    connection.send_copy(b"").unwrap();
    let stats = text(&connection.recv().unwrap().unwrap());
    assert!(stats.contains(r#""messages":1000,"wrong":1000"#), "{stats}");
    let took = ticks(server.id()) - before;
    assert!(took < 100, "{took} hundredths of a second for 1,000 messages of one byte");
}

fn echoes(connection: &Connection) {
    connection.send_copy(b"still here").unwrap();
    assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"still here"[..]));
}

#[test]
fn connections_beyond_descriptors_rejected() {
    let script = "ulimit -n 40; exec \"$0\" serve --listen 127.0.0.1:0 --per-address 512";
    let mut command = Command::new("sh");
    let server = Server::spawn(command.args(["-c", script, env!("CARGO_BIN_EXE_uiw")]));
    let pd = Device::open().unwrap().alloc_pd().unwrap();
    let address = server.address.parse().unwrap();
    let mut open = Vec::new();
    while let Ok(connection) = Connection::connect(&pd, address, &ConnectionConfig::default()) {
        echoes(&connection);
        open.push(connection);
        assert!(open.len() < 40, "no connection was rejected");
    }
    assert!(open.len() > 2, "{}", open.len());
    let rejected = uiw(&["ping", &server.address]);
    assert_eq!(rejected.status.code(), Some(3));
    assert!(text(&rejected.stderr).contains("`ulimit -n`"), "{}", text(&rejected.stderr));
    open.iter().for_each(echoes);
    // Half of a processor at most, by its own time: a wait that spins takes as much as it gets.
    let before = ticks(server.id());
    std::thread::sleep(Duration::from_secs(1));
    assert!(ticks(server.id()) - before < 50, "idle connections take processor time");
    drop(open);
    let log = server.log();
    assert!(log.contains("limit of descriptors") && log.contains("connection rejected"), "{log}");
    assert!(!log.contains("no descriptor"), "{log}");
}

#[test]
fn server_listens_at_several_addresses() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    let listen = ["serve", "--listen", "127.0.0.2:0", "--listen", "localhost:0"];
    let mut child = command
        .args(listen)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let lines: Vec<_> = std::io::BufRead::lines(out).take(2).map(Result::unwrap).collect();
    let addresses: Vec<_> =
        lines.iter().filter_map(|line| line.strip_prefix("listening on ")).collect();
    for (address, begin) in addresses.iter().zip(["127.0.0.2:", "127.0.0.1:"]) {
        assert!(address.starts_with(begin), "{lines:?}");
        let ping = uiw(&["ping", address, "--count", "1"]);
        assert!(ping.status.success(), "{}", text(&ping.stderr));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(addresses.len(), 2, "{lines:?}");
}

#[test]
fn hints_name_wrong_option() {
    for command in [
        &["serve", "--listen", "127.0.0.1:0", "--congestion", "nonsuch"][..],
        &["ping", "127.0.0.1:1", "--congestion", "nonsuch"],
    ] {
        let error = text(&uiw(command).stderr);
        assert!(
            error.lines().any(|line| line.starts_with("hint: ") && line.contains("--congestion")),
            "{error}"
        );
    }
    let error = text(&uiw(&["serve", "--listen", "203.0.113.1:0"]).stderr);
    assert!(error.contains("an address of this machine"), "{error}");
    let error = text(&uiw(&["siwtest", "127.0.0.1:1"]).stderr);
    assert!(error.contains("siwpeer serve"), "{error}");
    let server = Server::start();
    let error = text(&uiw(&["siwtest", &server.address]).stderr);
    assert!(error.contains("--raw"), "{error}");
}

#[test]
fn resetting_peers_logged_with_own_address() {
    let mut server = Server::with(&["--listen", "[::]:0"]);
    let port: u16 = server.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let request = [b"MPA ID Req Frame".as_slice(), &[0x40, 1, 0, 0]].concat();
    let mut peers = Vec::new();
    for _ in 0..30 {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(&request).unwrap();
        peers.push(client.local_addr().unwrap());
        // Closing it resets the connection then.
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    }
    let ping = uiw(&["ping", &format!("127.0.0.1:{port}"), "--count", "1"]);
    assert!(ping.status.success(), "{}", text(&ping.stderr));
    server.wait_logged("service=\"ping\"");
    let log = server.log();
    let named = |line: &str| peers.iter().any(|peer| line.contains(&format!("peer={peer}")));
    let connections: Vec<_> = log.lines().filter(|line| line.contains("rping or echo")).collect();
    assert!(connections.iter().all(|line| named(line)), "{connections:?}");
    assert!(!log.contains(&format!("127.0.0.1:{port}")) && !log.contains("::ffff:"), "{log}");
    assert!(!log.contains("cannot connect"), "{log}");
}

/// Anonymous memory of a process, in KiB.
fn anonymous_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn memory_of_failed_connections_released() {
    let server = Server::with(&["--listen", "127.0.0.1:0", "--per-address", "600"]);
    let fail = |count: usize| {
        let peers: Vec<_> = (0..count)
            .map(|_| {
                let mut peer = TcpStream::connect(&server.address).unwrap();
                peer.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
                peer.read_exact(&mut [0; 20]).unwrap();
                // Not an FPDU.
                peer.write_all(&[0xff; 4096]).unwrap();
                peer
            })
            .collect();
        drop(peers);
    };
    fail(1);
    let before = anonymous_memory(server.id());
    fail(600);
    // Anything kept for each connection keeps a page of the heap, or more for each thread.
    let until = Instant::now() + Duration::from_secs(60);
    while anonymous_memory(server.id()) > before + 5 * 1024 {
        let now = anonymous_memory(server.id());
        assert!(Instant::now() < until, "{before} KiB before, {now} KiB after");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A service manager names its socket by a path or in the abstract namespace.
#[test]
fn service_manager_told_when_listening() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let path = std::env::temp_dir().join(format!("uiw-notify-{}", std::process::id()));
    let name = format!("uiw-notify-{}", std::process::id());
    for (address, variable) in [
        (SocketAddr::from_pathname(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (SocketAddr::from_abstract_name(&name).unwrap(), format!("@{name}")),
    ] {
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).env("NOTIFY_SOCKET", &variable);
        let server = Server::spawn(&mut command);
        let receive = || {
            let mut bytes = [0; 64];
            let len = manager.recv(&mut bytes).unwrap();
            text(&bytes[..len])
        };
        assert_eq!(receive(), "READY=1");
        assert!(uiw(&["ping", &server.address, "--count", "1"]).status.success());
        server.log();
        assert_eq!(receive(), "STOPPING=1");
    }
    std::fs::remove_file(path).unwrap();
}
