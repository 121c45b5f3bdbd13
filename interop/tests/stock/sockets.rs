//! Runs programs of TCP sockets under `librspreload.so`: test programs, by `uiw run --sockets`, and
//! Debian's programs. The tests cover calls, forks, many sockets, peers without rsockets, and
//! sockets that stay on TCP. Servers and clients of Debian's packages are in `sockets_programs`.

use crate::reported::{number, parsed};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{
    Hosts, Libraries, Network, ProcessEnd, Running, User, compile, free_port, run_by, uiw,
};

/// Returns the command that runs a program under `uiw run --sockets`.
pub(crate) fn with_sockets(libraries: &Libraries, options: &[&str], program: &[&str]) -> Command {
    let mut command = libraries.command(User::Same, uiw());
    command.arg("run").arg("--sockets").args(options).arg("--").args(program);
    command
        .env("UIW_LIB", libraries.folder())
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("UIW_COUNTERS");
    command
}

/// Returns the command that runs a program with librspreload.so in LD_PRELOAD, but without `uiw
/// run`.
fn preloaded(libraries: &Libraries, program: &Path) -> Command {
    let mut command = libraries.command(User::Same, program);
    command.env("LD_PRELOAD", libraries.folder().join("rsocket/librspreload.so.1"));
    command.env("UIW_PORT_OFFSET", "10000").env_remove("LD_LIBRARY_PATH");
    command
}

/// Returns the number of connections in a report that were carried by `carrier` ("rsocket" or
/// "tcp") in `role` ("connected" or "accepted").
pub(crate) fn connections(report: &Value, carrier: &str, role: &str) -> u64 {
    let all = report["sockets"].as_array().unwrap_or_else(|| panic!("{report}"));
    let of = |line: &&Value| line["carrier"] == carrier && line["role"] == role;
    all.iter().filter(of).map(|line| number(line, "connections")).sum()
}

/// Compiles a C program of these tests with the flags that distributions use.
fn compiled(libraries: &Libraries, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c").join(name);
    compile(
        libraries,
        &source,
        &["-Wall", "-Wextra", "-Werror", "-O2", "-D_FORTIFY_SOURCE=2", "-pthread"],
    )
}

#[test]
fn calls_behave_as_on_tcp() {
    let libraries = Libraries::get();
    let Some(program) = compiled(&libraries, "preload.c") else { return };
    let program = program.to_str().unwrap();
    // On TCP, the program itself is correct.
    let plain = Running::start(libraries.command(User::Same, program)).end();
    assert_eq!(plain.well().count("sockets are as they should be"), 1);
    let ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    for (variable, argument) in [
        (None, None),
        (None, Some("ipv6")),
        (Some(("UIW_PERSONA", "roce")), None),
        (Some(("UIW_MARKERS", "on")), None),
        (Some(("UIW_SHARDS", "4")), None),
        (Some(("UIW_FAULT", "send-split=100,recv-split=77")), None),
    ] {
        if argument.is_some() && !ipv6 {
            uiw_interop::skip("IPv6 on loopback");
            continue;
        }
        let words: Vec<_> = [program].into_iter().chain(argument).collect();
        let mut command = with_sockets(&libraries, &["--json"], &words);
        command.envs(variable);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("sockets are as they should be"), 1, "{variable:?}");
        let report = parsed(&ended.said);
        // Children do not report before they end, so their connections are not counted here.
        let (one, other) = (
            connections(&report, "rsocket", "connected"),
            connections(&report, "rsocket", "accepted"),
        );
        assert!(one > 10 && other > 10, "{report}");
    }
}

/// Asserts that a program prints `said` on plain TCP, where it is correct, and under the library.
fn says_on_both(source: &str, said: &str) {
    let libraries = Libraries::get();
    let Some(program) = compiled(&libraries, source) else { return };
    for mut command in [libraries.command(User::Same, &program), preloaded(&libraries, &program)] {
        command.env("UIW_SOCKETS_TIMEOUT", "3s");
        assert_eq!(Running::start(command).end().well().count(said), 1);
    }
}

#[test]
fn threads_sharing_epoll_sets_lose_nothing() {
    says_on_both("preload_sets.c", "sets are as they should be");
}

/// A firewall silently drops packets to the port of the rsockets.
#[test]
fn plain_server_reached_despite_silent_port() {
    says_on_both("preload_dropped.c", "the server is reached");
}

#[test]
fn connections_that_no_peer_accepts_end() {
    says_on_both("preload_orphans.c", "nothing is left");
}

/// Invalid settings do not disable TLS: the program cannot open TCP sockets.
#[test]
fn wrong_settings_leave_no_tcp_sockets() {
    let libraries = Libraries::get();
    let Some(program) = compiled(&libraries, "preload_clear.c") else { return };
    for (name, value) in [("UIW_SHARDS", &b"abc"[..]), ("UIW_PERSONA", b"\xff")] {
        let mut command = preloaded(&libraries, &program);
        command.arg("no-socket").env("UIW_TLS", "/nonexistent").env(name, OsStr::from_bytes(value));
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("nothing is in the clear"), 1, "{ended:?}");
        assert_eq!(ended.count(&format!("uiw: {name}=")), 1, "{ended:?}");
    }
}

/// Asserts that nothing is sent unencrypted by a program under the library in one of the modes of
/// `preload_clear.c`.
pub(crate) fn nothing_is_in_the_clear(libraries: &Libraries, mode: &str, tls: Option<&Path>) {
    let Some(program) = compiled(libraries, "preload_clear.c") else { return };
    let mut command = preloaded(libraries, &program);
    command.arg(mode).env("UIW_SOCKETS_TCP", free_port().to_string());
    if let Some(tls) = tls {
        command.env("UIW_TLS", tls);
    }
    assert_eq!(Running::start(command).end().well().count("nothing is in the clear"), 1);
}

/// A connection that cannot become an rsocket must not fall back to TCP.
#[test]
fn connection_without_descriptor_fails() {
    nothing_is_in_the_clear(&Libraries::get(), "no-descriptor", None);
}

#[test]
fn connecting_message_not_sent_by_tcp() {
    nothing_is_in_the_clear(&Libraries::get(), "fast-open", None);
}

#[test]
fn fork_with_busy_threads_keeps_rsockets() {
    let libraries = Libraries::get();
    let Some(program) = compiled(&libraries, "preload_fork.c") else { return };
    // The first fork of a process occurs while its threads start, when state that is created once
    // per process may be incomplete. A single process has few such moments, so the test starts
    // several.
    for forks in ["30", "1", "1", "1", "1", "1", "1", "1", "1"] {
        let command = with_sockets(&libraries, &["--require"], &[program.to_str().unwrap(), forks]);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("forks are as they should be"), 1);
        assert!(ended.count("over rsockets") > 0 && ended.count("over TCP") == 0, "{ended:?}");
    }
}

/// Runs `scripts/thousand.py` with `count` sockets and returns the ended process.
fn thousand(libraries: &Libraries, count: u32, mode: &str) -> Option<ProcessEnd> {
    uiw_interop::require("python3")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/scripts/thousand.py");
    let words = ["/usr/bin/python3", script.to_str().unwrap(), &count.to_string(), mode];
    let ended = Running::start(with_sockets(libraries, &["--json"], &words)).end();
    ended.well();
    let report = parsed(&ended.said);
    assert_eq!(connections(&report, "rsocket", "connected"), u64::from(count), "{report}");
    assert_eq!(connections(&report, "tcp", "connected"), 0, "{report}");
    Some(ended)
}

/// Returns the line with the prefix `beginning`, without the prefix.
fn line<'a>(ended: &'a ProcessEnd, beginning: &str) -> &'a str {
    let found = ended.said.lines().find_map(|line| line.strip_prefix(beginning));
    found.unwrap_or_else(|| panic!("no `{beginning}`: {ended:?}"))
}

#[test]
fn thousand_sockets_leave_nothing() {
    let libraries = Libraries::get();
    let Some(few) = thousand(&libraries, 10, "all") else { return };
    let Some(many) = thousand(&libraries, 1000, "all") else { return };
    for ended in [&few, &many] {
        assert_eq!(
            (line(ended, "client ended with "), line(ended, "server ended with ")),
            ("0", "0")
        );
    }
    for (process, beginning) in [("client: ", "none lost, "), ("server: ", "0 left, ")] {
        let descriptors = |ended| {
            let rest =
                line(ended, process).strip_prefix(beginning).unwrap_or_else(|| panic!("{ended:?}"));
            rest.split(' ').next().and_then(|count| count.parse::<u32>().ok()).unwrap()
        };
        // The last connections may still be closing.
        let (few, many) = (descriptors(&few), descriptors(&many));
        assert!(many < few + 10, "{process}{few} descriptors after 10 sockets, {many} after 1,000");
    }
}

#[test]
fn killed_peer_hangs_no_socket() {
    let libraries = Libraries::get();
    let Some(server) = thousand(&libraries, 1000, "kill-server") else { return };
    assert_eq!(
        (line(&server, "client ended with "), line(&server, "server ended with ")),
        ("0", "9")
    );
    let Some(client) = thousand(&libraries, 1000, "kill-client") else { return };
    assert_eq!(
        (line(&client, "client ended with "), line(&client, "server ended with ")),
        ("9", "0")
    );
    assert!(line(&client, "server: ").starts_with("0 left, "), "{client:?}");
}

#[test]
fn iperf3_moves_its_bytes_over_rsockets() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    for direction in [&[][..], &["-R"], &["-P", "3"], &["--bidir"]] {
        let port = free_port();
        let number_of = port.to_string();
        let server = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number_of];
        let options = ["--require", "--json", "--port-offset", "0"];
        let mut server = Running::start(with_sockets(&libraries, &options, &server));
        server.wait_listening(port);
        let client =
            [&["iperf3", "-c", "127.0.0.1", "-n", "100M", "-p", &number_of][..], direction]
                .concat();
        let client = Running::start(with_sockets(&libraries, &options, &client)).end();
        assert_eq!(client.well().count("iperf Done."), 1, "{client:?}");
        let (client, server) = (parsed(&client.said), parsed(&server.end().well().said));
        assert!(
            number(&client, "bytes_sent") + number(&client, "bytes_received") > 100 << 20,
            "{client}"
        );
        assert_eq!(number(&client, "bytes_sent"), number(&server, "bytes_received"));
        assert_eq!(
            connections(&client, "rsocket", "connected"),
            connections(&server, "rsocket", "accepted")
        );
        assert_eq!(connections(&client, "tcp", "connected"), 0, "{client}");
    }
}

/// Debian's preload library supports neither accept4 nor epoll. It creates rsockets by calling
/// their own API.
#[test]
fn iperf3_under_debians_preload_library() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let file = format!("/usr/lib/{}-linux-gnu/rsocket/librspreload.so", std::env::consts::ARCH);
    if !Path::new(&file).exists() {
        uiw_interop::skip("librspreload.so of librdmacm1");
        return;
    }
    let libraries = Libraries::get();
    for direction in [&[][..], &["-R"]] {
        let port = free_port();
        let number = port.to_string();
        let under = |args: &[&str]| {
            let mut command = libraries.command(User::Same, "iperf3");
            command.args(args).args(["-p", &number]).env("LD_PRELOAD", &file);
            command
        };
        let mut server = Running::start(under(&["-s", "-1", "-B", "127.0.0.1"]));
        server.wait_listening(port);
        let client =
            Running::start(under(&[&["-c", "127.0.0.1", "-n", "100M"], direction].concat())).end();
        assert_eq!(client.well().count("iperf Done."), 1, "{client:?}");
        server.end().well();
    }
}

/// The server is an iperf3 without rsockets; the client with rsockets reports that.
#[test]
fn plain_server_reached_over_tcp() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let number = port.to_string();
    let mut command = libraries.command(User::Same, "iperf3");
    command.args(["-s", "-1", "-B", "127.0.0.1", "-p", &number]);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let client = ["iperf3", "-c", "127.0.0.1", "-n", "10M", "-p", &number];
    let client = Running::start(with_sockets(&libraries, &["--require"], &client)).end();
    // The client itself succeeded, but the condition of `--require` was not met.
    assert_eq!((client.code, client.count("iperf Done.")), (125, 1), "{client:?}");
    assert_eq!(
        client.count(&format!("over TCP: 2 connections to 127.0.0.1:{port}")),
        1,
        "{client:?}"
    );
    server.end().well();
}

/// Like the previous test, but with non-blocking connects between hosts: the refusal arrives after
/// the call has returned.
#[test]
fn plain_server_reached_without_blocking() {
    let (Some(_), Some(_)) = (uiw_interop::require("curl"), uiw_interop::require("python3")) else {
        return;
    };
    let Some(hosts) = Hosts::new(2) else { return };
    let libraries = Libraries::get();
    let places: Vec<_> = hosts.places().collect();
    let (address, file) = (places[0].0.to_string(), libraries.folder().join("file"));
    std::fs::write(&file, vec![b'x'; 300_000]).unwrap();
    let on = |place: usize, command: &Command| {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &places[place].1]);
        let mut inside = run_by(inside, command);
        inside.current_dir(libraries.folder());
        inside
    };
    let port = free_port();
    let number = port.to_string();
    let mut server = libraries.command(User::Same, "/usr/bin/python3");
    server.args(["-u", "-m", "http.server", "-b", &address, &number]);
    let mut server = Running::start(on(0, &server));
    server.wait_listening(port);
    let url = format!("http://{address}:{port}/file");
    let client = ["curl", "-s", "-o", "copy", "-w", "%{http_code} %{size_download}\n", &url];
    let client = Running::start(on(1, &with_sockets(&libraries, &["--json"], &client))).end();
    assert_eq!(client.well().count("200 300000"), 1, "{client:?}");
    assert_eq!(connections(&parsed(&client.said), "tcp", "connected"), 1, "{client:?}");
    drop(server.stop());
}

#[test]
fn listed_programs_stay_on_tcp() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    for by_port in [false, true] {
        let port = free_port();
        let number = port.to_string();
        let listed = if by_port { &number } else { "iperf3" };
        let server = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number];
        let mut server = Running::start(with_sockets(&libraries, &["--tcp", listed], &server));
        server.wait_listening(port);
        // A client without rsockets can connect to it.
        let mut client = libraries.command(User::Same, "iperf3");
        client.args(["-c", "127.0.0.1", "-n", "1M", "-p", &number]);
        Running::start(client).end().well();
        server.end().well();
    }
}

/// Returns an offset with which `port` becomes 65543. Truncated to 16 bits, this would be port 7.
pub(crate) fn offset_beyond_ports(port: u16) -> String {
    (65_543 - i32::from(port)).to_string()
}

#[test]
fn ports_beyond_offset_stay_on_tcp() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let (number, offset) = (port.to_string(), offset_beyond_ports(port));
    let options = ["--json", "--port-offset", &offset];
    let server = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number];
    let mut server = Running::start(with_sockets(&libraries, &options, &server));
    server.wait_listening(port);
    let client = ["iperf3", "-c", "127.0.0.1", "-n", "1M", "-p", &number];
    let client = Running::start(with_sockets(&libraries, &options, &client)).end();
    assert_eq!(connections(&parsed(&client.well().said), "tcp", "connected"), 2, "{client:?}");
    server.end().well();
}

/// With this range of local ports, subtracting the port offset from most ports that the system
/// assigns leaves no valid port number, so other ports must be chosen.
#[test]
fn every_given_port_can_be_named() {
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    let Some(program) = compiled(&libraries, "preload.c") else { return };
    network
        .inside_server(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 12000"))
        .unwrap();
    let command = with_sockets(&libraries, &["--json"], &[program.to_str().unwrap()]);
    let ended = Running::start(network.server(command)).end();
    assert_eq!(ended.well().count("sockets are as they should be"), 1);
    assert!(connections(&parsed(&ended.said), "rsocket", "connected") > 10, "{ended:?}");
}

/// Each end decides how messages are transferred. Two ends with different decisions report this.
#[test]
fn different_personas_refuse_each_other() {
    let Some(_) = uiw_interop::require("iperf3") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let number = port.to_string();
    let server = ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &number];
    let options = ["--port-offset", "0"];
    let mut server = with_sockets(&libraries, &options, &server);
    server.env("UIW_LOG", "warn").env("UIW_PERSONA", "roce");
    let mut server = Running::start(server);
    server.wait_listening(port);
    let client = ["iperf3", "-c", "127.0.0.1", "-n", "1M", "-p", &number];
    let mut client = with_sockets(&libraries, &options, &client);
    client.env("UIW_LOG", "warn");
    let client = Running::start(client).end();
    assert!(client.code != 0, "{client:?}");
    assert!(client.count("UIW_PERSONA must be iwarp at both or at none") > 0, "{client:?}");
    server.wait_saying("UIW_PERSONA must be iwarp at both or at none");
    drop(server);
}

#[test]
fn executed_program_logs_ended_connections() {
    let libraries = Libraries::get();
    let Some(program) = compiled(&libraries, "preload_exec.c") else { return };
    let on_tcp = Running::start(libraries.command(User::Same, &program)).end();
    assert_eq!((on_tcp.well().count("reads 0"), on_tcp.count("before exec")), (1, 0));
    let mut command = preloaded(&libraries, &program);
    command.env("UIW_LOG", "warn");
    let ended = Running::start(command).end();
    assert_eq!(
        (ended.well().count("reads 0"), ended.count("an rsocket of the program before exec")),
        (1, 1),
        "{ended:?}"
    );
}
