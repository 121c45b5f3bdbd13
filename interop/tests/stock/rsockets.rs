//! Tests sockets over RDMA with Debian's rstream, riostream and rcopy, and with a C program that
//! checks every call.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use uiw_interop::stock::{
    Libraries, Network, ProcessEnd, Running, User, compile, free_port, noise, uiw,
};

/// Runs both ends of a program of rdmacm-utils with the same arguments, and returns both after they
/// have ended.
#[track_caller]
fn pair(
    libraries: &Libraries,
    program: &str,
    server: &str,
    variables: &[(&str, &str)],
    args: &[&str],
) -> [ProcessEnd; 2] {
    let port = free_port();
    let number = port.to_string();
    let command = || {
        let mut command = libraries.command(User::Same, program);
        command.args(["-p", &number]).args(args).envs(variables.iter().copied());
        command
    };
    let mut running = command();
    if server.contains(':') {
        running.args(["-b", "::"]);
    }
    let mut running = Running::start(running);
    running.wait_listening(port);
    let mut client = command();
    client.args(["-s", server]);
    let client = Running::start(client).end();
    let server = running.end();
    client.well();
    server.well();
    [server, client]
}

#[test]
fn rstream_in_all_its_modes() {
    let Some(_) = uiw_interop::require("rstream") else { return };
    let libraries = Libraries::get();
    for mode in [
        &[][..],
        &["-T", "b"],
        &["-T", "a"],
        &["-T", "n"],
        &["-T", "r"],
        &["-T", "b", "-T", "v"],
        &["-T", "a", "-T", "v"],
        &["-T", "n", "-T", "v"],
        &["-T", "b", "-T", "r", "-T", "v"],
        // These are plain TCP sockets, which a program uses next to rsockets.
        &["-T", "s"],
        &["-T", "f"],
        &["-k", "1"],
        &["-B", "4096", "-i", "0"],
    ] {
        let is_slow = mode.contains(&"-B") || mode.contains(&"s") || mode.contains(&"f");
        for size in if is_slow { &["1", "5000"][..] } else { &["1", "64", "5000", "1000000"] } {
            let args = [mode, &["-S", size, "-C", "10", "-I", "20"]].concat();
            let [_, client] = pair(&libraries, "rstream", "127.0.0.1", &[], &args);
            assert_eq!(client.count("custom"), 1, "{client:?}");
        }
    }
}

/// The peer receives all data that a process has sent, although the process has exited long before
/// the data crosses the path, which takes seconds.
#[test]
fn last_bytes_arrive_over_slow_path() {
    let Some(_) = uiw_interop::require("rstream") else { return };
    let Some(network) = Network::path() else { return };
    let libraries = Libraries::get();
    let mut wan = Command::new(uiw());
    wan.args(["wan", "server", "client", "--rate", "4Mbit"]);
    let mut wan = Running::start(network.middle(wan));
    wan.wait_saying("carrying");
    let port = free_port();
    let command = || {
        let mut command = libraries.command(User::Same, "rstream");
        command.args([
            "-p",
            &port.to_string(),
            "-T",
            "b",
            "-T",
            "v",
            "-S",
            "2000000",
            "-C",
            "1",
            "-I",
            "1",
        ]);
        command
    };
    let mut server = Running::start(network.server(command()));
    server.wait_listening(port);
    let mut client = command();
    client.args(["-s", &network.server_address().to_string()]);
    // The client receives last, so it ends last.
    let client = Running::start(network.client(client)).end();
    server.end().well();
    client.well();
}

#[test]
fn rstream_of_ipv6() {
    let Some(_) = uiw_interop::require("rstream") else { return };
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        uiw_interop::skip("IPv6 on loopback");
        return;
    }
    let libraries = Libraries::get();
    let args = ["-f", "ipv6", "-T", "b", "-T", "v", "-S", "70000", "-C", "10", "-I", "20"];
    let _ = pair(&libraries, "rstream", "::1", &[], &args);
}

/// Sends messages as immediates of Writes, and changes other settings of the wire format.
#[test]
fn rstream_on_all_devices_and_variants() {
    let Some(_) = uiw_interop::require("rstream") else { return };
    let libraries = Libraries::get();
    for variables in [
        [("UIW_PERSONA", "roce")],
        [("UIW_PERSONA", "ib")],
        [("UIW_ACK", "on")],
        [("UIW_MARKERS", "on")],
        [("UIW_MPA_REVISION", "1")],
        [("UIW_FAULT", "send-split=100,recv-split=77")],
    ] {
        let args = ["-T", "b", "-T", "v", "-S", "100000", "-C", "10", "-I", "10"];
        let _ = pair(&libraries, "rstream", "127.0.0.1", &variables, &args);
    }
}

/// Each end decides how messages are transferred. Two ends with different decisions report this and
/// exchange nothing.
#[test]
fn ends_of_different_variants_refused() {
    let Some(_) = uiw_interop::require("rstream") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let number = port.to_string();
    let mut command = libraries.command(User::Same, "rstream");
    command
        .args(["-p", &number, "-T", "b", "-S", "64", "-C", "1", "-I", "1"])
        .env("UIW_LOG", "warn");
    let mut server = Running::start(command);
    server.wait_listening(port);
    let mut command = libraries.command(User::Same, "rstream");
    command.args(["-p", &number, "-T", "b", "-S", "64", "-C", "1", "-I", "1", "-s", "127.0.0.1"]);
    command.env("UIW_LOG", "warn").env("UIW_PERSONA", "roce");
    let client = Running::start(command).end();
    assert!(client.code != 0 && client.count("Connection refused") == 1, "{client:?}");
    assert_eq!(client.count("UIW_PERSONA must be iwarp at both or at none"), 1, "{client:?}");
    server.wait_saying("UIW_PERSONA must be iwarp at both or at none");
    drop(server.stop());
}

#[test]
fn riostream_writes_to_mapped_buffers() {
    let Some(_) = uiw_interop::require("riostream") else { return };
    let libraries = Libraries::get();
    for (mode, size) in [
        (&[][..], "64"),
        (&["-T", "b"], "4096"),
        (&["-T", "v"], "65536"),
        (&["-T", "b"], "1000000"),
    ] {
        let args = [mode, &["-S", size, "-C", "10", "-I", "10"]].concat();
        let _ = pair(&libraries, "riostream", "127.0.0.1", &[], &args);
    }
}

#[test]
fn rcopy_copies_gibibyte_file() {
    let Some(_) = uiw_interop::require("rcopy") else { return };
    let libraries = Libraries::get();
    let (from, to) = (libraries.folder().join("from"), libraries.folder().join("to"));
    let mut file = fs::File::create(&from).expect("a file");
    let mut block = noise(1 << 20);
    // The file has 1 GiB, in which all blocks differ, and a few more bytes.
    for number in 0..1024_u32 {
        block[..4].copy_from_slice(&number.to_ne_bytes());
        file.write_all(&block).expect("room for a file of 1 GiB");
    }
    file.write_all(b"end").expect("room for the end");
    let port = free_port();
    let number = port.to_string();
    let mut command = libraries.command(User::Same, "rcopy");
    command.args(["-p", &number]);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let mut command = libraries.command(User::Same, "rcopy");
    command.arg(&from).arg(format!("127.0.0.1:{}", to.display())).args(["-p", &number]);
    Running::start(command).end().well();
    // The server never exits by itself.
    drop(server.stop());
    assert!(
        Command::new("cmp").arg(&from).arg(&to).status().expect("cmp").success(),
        "the copy differs"
    );
}

#[test]
fn calls_follow_manual() {
    let libraries = Libraries::get();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/rsocket.c");
    let flags = ["-Wall", "-Wextra", "-Werror", "-pthread", "-ldl"];
    let Some(program) = compile(&libraries, &source, &flags) else { return };
    for variables in
        [&[][..], &[("UIW_PERSONA", "roce")], &[("UIW_MARKERS", "on")], &[("UIW_SHARDS", "4")]]
    {
        let mut command = libraries.command(User::Same, &program);
        command.envs(variables.iter().copied());
        assert_eq!(Running::start(command).end().well().count("sockets are as they should be"), 1);
    }
}

#[test]
fn nothing_to_complain_of_for_valgrind() {
    let (Some(_), libraries) = (uiw_interop::require("valgrind"), Libraries::get()) else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock");
    let flags = ["-g", "-pthread", "-ldl"];
    let Some(program) = compile(&libraries, &folder.join("c/rsocket.c"), &flags) else { return };
    let mut command = libraries.command(User::Same, "valgrind");
    command.args(["-q", "--error-exitcode=99", "--leak-check=full"]);
    // glibc keeps the stacks of the program's own threads, so valgrind reports them as possibly
    // lost.
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command
        .arg(format!(
            "--suppressions={}",
            folder.join("../../../packaging/valgrind.supp").display()
        ))
        .arg(program);
    // A child leaves the parent's engine untouched, so valgrind would report everything in it as
    // leaked.
    command.arg("alone");
    assert_eq!(Running::start(command).end().well().count("sockets are as they should be"), 1);
}
