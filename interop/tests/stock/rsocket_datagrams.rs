//! Tests datagram rsockets with Debian's udpong, with a C program that compares every call with
//! UDP, and with a peer that violates the protocol.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw_datagram::{Header, Qpn};
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, compile, free_port, uiw};

/// Settings under which a device supports datagrams.
const DEVICES: [(&str, &str); 3] =
    [("UIW_PERSONA", "roce"), ("UIW_PERSONA", "ib"), ("UIW_UD", "on")];

/// Maximum number of attempts to run udpong.
///
/// With `-T e`, udpong asks again if an answer takes more than a millisecond, and then takes the
/// second answer for the answer to its next question. From then on it repeats that answer and waits
/// forever, on UDP (`-T s`) as well as on rsockets.
const TRIES: u32 = 10;
/// Time limit of one attempt.
const ECHO_TIME: Duration = Duration::from_secs(5);

/// Runs udpong with `args` and its server, each with the variable set, and returns the client after
/// it has ended.
#[track_caller]
fn udpong(network: &Network, address: &str, variable: (&str, &str), args: &[&str]) -> ProcessEnd {
    let libraries = Libraries::get();
    let port = free_port();
    let command = |options: &[&str]| {
        let mut command = libraries.command(User::Same, "udpong");
        command.args(["-p", &port.to_string()]).args(options).env(variable.0, variable.1);
        command
    };
    let mut server = Running::start(network.server(command(&["-b", address])));
    server.wait_bound(port);
    let client = || Running::start(network.client(command(&[&["-s", address], args].concat())));
    let client = if args.contains(&"e") {
        let end = |_| client().end_within(ECHO_TIME);
        (0..TRIES)
            .find_map(end)
            .unwrap_or_else(|| panic!("no attempt ends: {variable:?} {address} {args:?}"))
    } else {
        client().end()
    };
    client.well();
    drop(server.stop());
    client
}

/// Returns the number of messages that arrived according to the output of a test.
#[track_caller]
fn transfers(ended: &ProcessEnd) -> &str {
    let line = ended.said.lines().find(|line| line.starts_with("custom"));
    line.and_then(|line| line.split_whitespace().nth(2)).unwrap_or_else(|| panic!("{ended:?}"))
}

#[test]
fn udpong_in_all_modes() {
    let Some(_) = uiw_interop::require("udpong") else { return };
    let has_ipv6 = UdpSocket::bind("[::1]:0").is_ok();
    for variable in DEVICES {
        for address in ["127.0.0.1", "::1"] {
            if address == "::1" && !has_ipv6 {
                uiw_interop::skip("IPv6 on loopback");
                continue;
            }
            for mode in ["b", "n", "a"] {
                for size in ["16", "1536", "2000"] {
                    let args = ["-T", mode, "-S", size, "-C", "100"];
                    let echo = [&args[..], &["-T", "e"]].concat();
                    let ended = udpong(&Network::Loopback, address, variable, &echo);
                    assert_eq!(transfers(&ended), "200", "{variable:?} {address} {mode} {size}");
                    // Neither the arrival of all messages is guaranteed nor that they arrive before
                    // the message that asks for their number: the first messages between two
                    // sockets go over UDP, and a different thread receives them than those of queue
                    // pairs.
                    let arrive =
                        |_| transfers(&udpong(&Network::Loopback, address, variable, &args)) != "0";
                    assert!((0..TRIES).any(arrive), "{variable:?} {address} {mode} {size}");
                }
            }
        }
    }
}

/// With Ethernet's MTU, UD carries up to 1,016 bytes; longer messages go over UDP.
#[test]
fn udpong_between_hosts() {
    let (Some(_), Some(network)) = (uiw_interop::require("udpong"), Network::veth()) else {
        return;
    };
    let address = network.server_address().to_string();
    for size in ["64", "1016", "1017", "2000"] {
        let args = ["-T", "a", "-T", "e", "-S", size, "-C", "100"];
        let ended = udpong(&network, &address, ("UIW_PERSONA", "roce"), &args);
        assert_eq!(transfers(&ended), "200", "{size}");
    }
}

/// The program repeats a question if no answer arrives, and compares the bytes.
#[test]
fn datagrams_on_lossy_path() {
    let libraries = Libraries::get();
    let (Some(program), Some(network)) = (program(&libraries), Network::path()) else { return };
    let mut wan = Command::new(uiw());
    wan.args([
        "wan",
        "server",
        "client",
        "--json",
        "--loss",
        "5%",
        "--duplicate",
        "2%",
        "--reorder",
        "2%",
    ]);
    let mut wan = Running::start(network.middle(wan));
    wan.wait_saying("carrying");
    let (address, port) = (network.server_address().to_string(), free_port());
    let command = |what: &str, count: &[&str]| {
        let mut command = libraries.command(User::Same, &program);
        command.args([what, &address, &port.to_string()]).args(count).env("UIW_PERSONA", "roce");
        command
    };
    let mut server = Running::start(network.server(command("answer", &[])));
    server.wait_bound(port);
    let client = Running::start(network.client(command("ask", &["300"]))).end();
    assert_eq!(client.well().count("datagrams are as they should be"), 1);
    drop(server.stop());
    wan.interrupt().well();
}

#[test]
fn missing_datagrams_name_setting() {
    let Some(_) = uiw_interop::require("udpong") else { return };
    let libraries = Libraries::get();
    let mut command = libraries.command(User::Same, "udpong");
    command.args(["-b", "127.0.0.1", "-p", &free_port().to_string()]).env("UIW_LOG", "warn");
    let ended = Running::start(command).end();
    assert!(ended.code != 0 && ended.count("Operation not supported") == 1, "{ended:?}");
    assert_eq!(ended.count("unless UIW_UD=on"), 1, "{ended:?}");
}

fn program(libraries: &Libraries) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/rsocket_datagrams.c");
    compile(libraries, &source, &["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", "-ldl"])
}

#[test]
fn calls_behave_as_on_udp() {
    let libraries = Libraries::get();
    let Some(program) = program(&libraries) else { return };
    let has_ipv6 = UdpSocket::bind("[::1]:0").is_ok();
    for variable in [DEVICES[0], DEVICES[1], DEVICES[2], ("UIW_PORT_OFFSET", "1000")] {
        for argument in [None, Some("ipv6")] {
            if argument.is_some() && !has_ipv6 {
                uiw_interop::skip("IPv6 on loopback");
                continue;
            }
            let mut command = libraries.command(User::Same, &program);
            command.args(argument).env("UIW_UD", "on").env(variable.0, variable.1);
            let ended = Running::start(command).end();
            assert_eq!(
                ended.well().count("datagrams are as they should be"),
                1,
                "{variable:?} {argument:?}"
            );
        }
    }
}

#[test]
fn nothing_to_complain_of_for_valgrind() {
    let (Some(_), libraries) = (uiw_interop::require("valgrind"), Libraries::get()) else { return };
    let Some(program) = program(&libraries) else { return };
    let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/valgrind.supp");
    let mut command = libraries.command(User::Same, "valgrind");
    command.args(["-q", "--error-exitcode=99", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command.arg(format!("--suppressions={}", suppressions.display()));
    command.arg(program).args(["alone", "few"]).env("UIW_PERSONA", "roce");
    assert_eq!(Running::start(command).end().well().count("datagrams are as they should be"), 1);
}

/// Runs the program of UDP sockets under a preload library, with `config` as the system's
/// preload_config.
fn preloaded(
    libraries: &Libraries,
    library: &Path,
    program: &Path,
    config: &str,
) -> Option<ProcessEnd> {
    uiw_interop::require("unshare")?;
    let etc = libraries.folder().join("etc");
    let folder = etc.join("rdma/rsocket");
    if !folder.exists() {
        let copied = Command::new("cp").args(["-a", "/etc"]).arg(&etc).status().expect("cp");
        assert!(copied.success());
        fs::create_dir_all(&folder).expect("a folder");
    }
    fs::write(folder.join("preload_config"), config).expect("a file");
    let mut command = libraries.command(User::Same, "unshare");
    let script = r#"mount --bind "$0" /etc && LD_PRELOAD="$1" exec "$2" udp"#;
    command.args(["-m", "sh", "-c", script]).args([&etc, library, program]);
    command.env("UIW_PERSONA", "roce");
    let ended = Running::start(command).end();
    if ended.count("Operation not permitted") > 0 {
        uiw_interop::skip("a mount namespace");
        return None;
    }
    Some(ended)
}

#[test]
fn configured_sockets_are_rsockets() {
    let libraries = Libraries::get();
    let Some(program) = program(&libraries) else { return };
    let library = libraries.folder().join("rsocket/librspreload.so.1");
    for (config, are_rsockets) in [
        ("", 0),
        ("* * STREAM *\n", 0),
        ("rsocket_datagrams INET DGRAM UDP\n", 1),
        ("rsocket * * *\n", 1),
    ] {
        let Some(ended) = preloaded(&libraries, &library, &program, config) else { return };
        let found = ended.well().count("sockets are rsockets");
        assert_eq!(
            (found, ended.count("datagrams are as they should be")),
            (are_rsockets, 1),
            "{config:?}"
        );
    }
}

/// Debian's library turns every UDP socket into an rsocket.
#[test]
fn sockets_under_rdma_core_library() {
    let library = Path::new("/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so");
    if !library.exists() {
        uiw_interop::skip("librspreload.so of rdma-core");
        return;
    }
    let libraries = Libraries::get();
    let Some(program) = program(&libraries) else { return };
    for (persona, are_rsockets) in [("roce", 1), ("iwarp", 0)] {
        let mut command = libraries.command(User::Same, &program);
        command.arg("udp").env("LD_PRELOAD", library).env("UIW_PERSONA", persona);
        let ended = Running::start(command).end();
        let found = ended.well().count("sockets are rsockets");
        assert_eq!(
            (found, ended.count("datagrams are as they should be")),
            (are_rsockets, 1),
            "{persona}"
        );
    }
}

/// Program that prints every message it receives and sends it back.
struct EchoProgram<'a> {
    running: Running,
    address: SocketAddr,
    _libraries: &'a Libraries,
}

impl<'a> EchoProgram<'a> {
    fn start(libraries: &'a Libraries) -> Option<Self> {
        let program = program(libraries)?;
        let mut command = libraries.command(User::Same, program);
        command.arg("say").env("UIW_PERSONA", "roce");
        let mut running = Running::start(command);
        running.wait_saying("port ");
        let port = running
            .said()
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        Some(Self { running, address: (Ipv4Addr::LOCALHOST, port).into(), _libraries: libraries })
    }
}

/// Peer that composes its messages itself. It consists of a socket and a second socket that takes
/// the place of a queue pair.
struct RawPeer {
    socket: UdpSocket,
    queue_pair: UdpSocket,
    msn: u32,
}

fn udp() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    socket
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("an address").port()
}

impl RawPeer {
    fn new() -> Self {
        Self { socket: udp(), queue_pair: udp(), msn: 0 }
    }

    fn qpn(&self) -> u32 {
        u32::from(port(&self.queue_pair)) << 8
    }

    /// Returns the UDP datagram with `message`; `operation` is 0 for data and 7 for control.
    fn over_udp(&self, operation: u8, qpn: u32, message: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x55, 0x55, 0x55, 0x55, 4, operation, 16, 0];
        packet.extend_from_slice(&qpn.to_be_bytes());
        packet.extend_from_slice(&Ipv4Addr::LOCALHOST.octets());
        packet.extend_from_slice(message);
        packet
    }

    /// Returns the header at the beginning of a UD message.
    fn front(&self) -> Vec<u8> {
        let mut front = vec![4, 8];
        front.extend_from_slice(&port(&self.socket).to_be_bytes());
        front.extend_from_slice(&Ipv4Addr::LOCALHOST.octets());
        front
    }

    /// Sends a UD message to a queue pair.
    fn by_ud(&mut self, qpn: u32, payload: &[u8]) {
        self.msn += 1;
        let destination = Qpn::from_raw(qpn);
        let header = Header {
            epoch: 9,
            destination,
            source: Qpn::from_raw(self.qpn()),
            qkey: 0x0123_4567,
            msn: self.msn,
            solicited: false,
            immediate: None,
        };
        let mut datagram = [&header.emit()[..], payload].concat();
        datagram.extend_from_slice(&uiw_datagram::crc(&datagram));
        self.queue_pair
            .send_to(&datagram, (Ipv4Addr::LOCALHOST, destination.port()))
            .expect("sent");
    }

    /// Sends a valid message over UDP and waits for its echo by UD. Returns the number of the queue
    /// pair that sent the echo.
    fn exchange(&self, victim: &EchoProgram<'_>, message: &[u8]) -> u32 {
        let packet = self.over_udp(0, self.qpn(), message);
        self.socket.send_to(&packet, victim.address).expect("sent");
        let mut answer = [0; 100];
        let (len, from) = self.socket.recv_from(&mut answer).expect("the number of the queue pair");
        assert_eq!((len, from), (16, victim.address));
        let [head @ .., q3, q2, q1, q0, _, _, _, _] = *answer.first_chunk::<16>().unwrap();
        assert_eq!(head, [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0]);
        let mut expected = vec![4, 8];
        expected.extend_from_slice(&victim.address.port().to_be_bytes());
        expected.extend_from_slice(&Ipv4Addr::LOCALHOST.octets());
        expected.extend_from_slice(message);
        let mut datagram = [0; 4096];
        let (len, _) = self.queue_pair.recv_from(&mut datagram).expect("the message");
        let (header, payload) = Header::parse(&datagram[..len]).expect("a message");
        assert_eq!(payload, expected);
        let qpn = u32::from_be_bytes([q3, q2, q1, q0]);
        assert_eq!((header.source.raw(), header.qkey), (qpn, 0x0123_4567));
        qpn
    }
}

#[test]
fn foreign_datagrams_dropped() {
    let libraries = Libraries::get();
    let Some(mut victim) = EchoProgram::start(&libraries) else { return };
    let mut peer = RawPeer::new();
    let good = peer.over_udp(0, peer.qpn(), b"wrong over UDP");
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let mut ipv6 = changed(4, 6);
    ipv6[6] = 28;
    let long = peer.over_udp(0, peer.qpn(), &[b'w'; 2033]);
    for packet in [
        &changed(0, 0x54),
        &changed(4, 5),
        &changed(4, 6),
        &changed(6, 17),
        &changed(5, 1),
        &ipv6,
        &long,
        &peer.over_udp(0, 0, b"wrong: no port"),
        &peer.over_udp(0, 0xFF_FFFF, b"wrong: a group"),
        &peer.over_udp(7, peer.qpn(), b"wrong: control"),
        &peer.over_udp(7, 0x1234_5600, b"wrong: control"),
    ] {
        peer.socket.send_to(packet, victim.address).expect("sent");
    }
    for len in 0..16 {
        peer.socket.send_to(&good[..len], victim.address).expect("sent");
    }
    // The next answer belongs to the next valid message.
    let qpn = peer.exchange(&victim, b"right over UDP");
    let front = peer.front();
    let mut forged = front.clone();
    forged[4..8].copy_from_slice(&[10, 1, 2, 3]);
    let mut version = front.clone();
    version[0] = 6;
    let mut length = front.clone();
    length[1] = 24;
    for payload in
        [&front[..0], &front[..7], &forged, &version, &length, &[6, 24, 0, 1], &[0; 4096]]
    {
        peer.by_ud(qpn, &[payload, b" wrong by UD"].concat()[..(payload.len() + 12).min(4096)]);
        peer.by_ud(qpn, payload);
    }
    peer.by_ud(qpn, &[&front[..], b"right by UD"].concat());
    // The longest possible UD message, which is longer than any message of an rsocket, does not end
    // the program.
    peer.by_ud(qpn, &[&front[..], &[b'r'; 4088]].concat());
    peer.by_ud(qpn, &[&front[..], b"right at the end"].concat());
    victim.running.wait_saying("right at the end");
    let from = format!("from 127.0.0.1:{}", port(&peer.socket));
    let said = victim.running.said();
    assert!(!said.contains("wrong"), "{said}");
    let right: Vec<_> = said.lines().filter(|line| line.contains(&from)).collect();
    assert_eq!(right.len(), 4, "{said}");
    assert!(right[2].starts_with("4088 bytes"), "{said}");
    drop(victim.running.stop());
}

/// After the table of peers is full and a flood of invalid messages has arrived, valid messages are
/// still answered and the memory use is bounded.
#[test]
fn floods_leave_room_for_others() {
    let libraries = Libraries::get();
    let Some(victim) = EchoProgram::start(&libraries) else { return };
    let peer = RawPeer::new();
    let memory = |id: u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the process lives");
        let line =
            status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory").to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    };
    peer.exchange(&victim, b"the first");
    let before = memory(victim.running.id());
    for number in 0..6000u32 {
        let own = Ipv4Addr::from_bits(Ipv4Addr::new(127, 8, 0, 1).to_bits() + number);
        let Ok(socket) = UdpSocket::bind((own, 0)) else { continue };
        socket
            .send_to(&peer.over_udp(0, peer.qpn(), b"one of many"), victim.address)
            .expect("sent");
    }
    let mut state = 0x9E37_79B9u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    for _ in 0..20_000 {
        let mut packet = peer.over_udp(0, random(), b"");
        packet.resize(random() as usize % 2100, 0x55);
        for _ in 0..random() % 6 {
            let at = random() as usize % packet.len().max(1);
            if let Some(byte) = packet.get_mut(at) {
                *byte = random() as u8;
            }
        }
        peer.socket.send_to(&packet, victim.address).expect("sent");
    }
    // Messages that arrived earlier are answered first.
    let last = RawPeer::new();
    let answered = (0..100).any(|_| {
        let packet = last.over_udp(0, last.qpn(), b"the last");
        last.socket.send_to(&packet, victim.address).expect("sent");
        last.socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time-out");
        last.socket.recv_from(&mut [0; 100]).is_ok()
    });
    assert!(answered, "{}", victim.running.said().lines().last().unwrap_or_default());
    let grown = memory(victim.running.id()).saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB more");
    drop(victim.running.stop());
}
