//! Runs C programs: those of `examples/c`, one that makes nonsensical requests, and, if they are
//! available, programs contributed by users.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw::blocking::Connection;
use uiw::{ConnectionConfig, Device};
use uiw_interop::stock::{Libraries, Network, Running, User, compile};

/// Variable that names a directory with a `server.c` and a `client.c` of another project.
const SEED_PROGRAMS: &str = "INTEROP_SEED_PROGRAMS";

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Setting for programs that get the loopback device by binding an id to 127.0.0.1 without a port.
const LOOPBACK: (&str, &str) = ("UIW_LOOPBACK", "own");

fn on_loopback(libraries: &Libraries, program: &Path) -> Command {
    let mut command = libraries.command(User::Same, program);
    command.env(LOOPBACK.0, LOOPBACK.1);
    command
}

fn port_after(said: &str, text: &str) -> String {
    let rest = said.split(text).nth(1).expect("the text it was waited for");
    rest.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn first_programs_exchange_messages() {
    let libraries = Libraries::get();
    let sources = folder("../examples/c");
    let strict = ["-Wall", "-Wextra", "-Werror"];
    let Some(server_file) = compile(&libraries, &sources.join("server.c"), &strict) else { return };
    let Some(client_file) = compile(&libraries, &sources.join("client.c"), &strict) else { return };
    let mut networks = vec![Network::Loopback];
    networks.extend(Network::veth());
    for network in &networks {
        let mut command = libraries.command(User::Same, &server_file);
        command.arg("3");
        let mut server = Running::start(network.server(command));
        server.wait_saying("port ");
        let port = port_after(&server.said(), "port ");
        for text in ["good day", "and another", ""] {
            let mut command = libraries.command(User::Same, &client_file);
            command.args([&network.server_address().to_string(), &port, text]);
            let client = Running::start(network.client(command)).end();
            assert_eq!(client.well().said, format!("client got: you said {} bytes\n", text.len()));
        }
        let server = server.end();
        assert_eq!(server.well().count("server got: good day"), 1);
    }
}

#[test]
fn nothing_to_complain_of_for_valgrind() {
    let (Some(_), libraries) = (uiw_interop::require("valgrind"), Libraries::get()) else { return };
    let sources = folder("../examples/c");
    let Some(server_file) = compile(&libraries, &sources.join("server.c"), &["-g"]) else { return };
    let Some(client_file) = compile(&libraries, &sources.join("client.c"), &["-g"]) else { return };
    let compile =
        |name: &str| compile(&libraries, &folder(&format!("tests/stock/c/{name}.c")), &["-g"]);
    let (Some(nonsense), Some(semantics)) = (compile("nonsense"), compile("semantics")) else {
        return;
    };
    let Some(stress) = compile("stress") else { return };
    let watched = |program: &Path| {
        let mut command = libraries.command(User::Same, "valgrind");
        command.args(["-q", "--error-exitcode=99", "--leak-check=full"]);
        command.arg(format!("--suppressions={}", folder("../packaging/valgrind.supp").display()));
        command.env(LOOPBACK.0, LOOPBACK.1);
        // glibc keeps the stacks of the threads that these programs start, so valgrind reports them
        // as possibly lost.
        if [&nonsense, &semantics, &stress].iter().any(|other| *other == program) {
            command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
        }
        command.arg(program);
        command
    };
    let mut command = watched(&server_file);
    command.arg("1");
    let mut server = Running::start(command);
    server.wait_saying("port ");
    let port = port_after(&server.said(), "port ");
    let mut command = watched(&client_file);
    command.args(["127.0.0.1", &port, "watched"]);
    Running::start(command).end().well();
    server.end().well();
    Running::start(watched(&nonsense)).end().well();
    Running::start(watched(&semantics)).end().well();
    let mut command = watched(&stress);
    command.arg("4");
    Running::start(command).end().well();
}

#[test]
fn self_managed_queue_pairs_connect() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/two_steps.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for persona in ["roce", "ib"] {
        let mut command = libraries.command(User::Same, &program);
        command.env("UIW_PERSONA", persona);
        assert_eq!(Running::start(command).end().well().said, "done\n");
    }
}

/// Events of iWARP have iWARP's reject reasons and the peer's lengths of private data; those of the
/// other personas follow InfiniBand.
#[test]
fn connection_events_follow_persona() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/cm_messages.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for (persona, lengths, reasons, expected) in [
        ("roce", "", "infiniband", "padded"),
        ("ib", "", "infiniband", "padded"),
        ("roce", "exact", "infiniband", "exact"),
        ("iwarp", "", "iwarp", "exact"),
        ("iwarp", "padded", "iwarp", "padded"),
    ] {
        let mut command = on_loopback(&libraries, &program);
        command.args([reasons, expected]);
        command.env("UIW_PERSONA", persona).env("UIW_PRIVATE_DATA", lengths).env("UIW_UD", "on");
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("events as expected"), 1, "{persona} {lengths}: {ended:?}");
    }
}

#[test]
fn timewait_exit_follows_disconnect() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/timewait.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for (persona, expected) in [("roce", "once"), ("ib", "once"), ("iwarp", "never")] {
        let mut command = on_loopback(&libraries, &program);
        command.arg(expected).env("UIW_PERSONA", persona);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("events as expected"), 1, "{persona}: {ended:?}");
    }
}

#[test]
fn device_events_follow_interface() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/device_events.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for persona in ["iwarp", "roce", "ib"] {
        // The program deletes the interface, so each run needs a new network.
        let Some(network) = Network::veth() else { return };
        let mut command = libraries.command(User::Same, &program);
        command.env("UIW_PERSONA", persona);
        let ended = Running::start(network.server(command)).end();
        assert_eq!(ended.well().count("events as expected"), 1, "{persona}: {ended:?}");
    }
}

#[test]
fn bind_conflicts_reported_as_by_kernel() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/binding.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for (persona, ud, kind) in [
        ("roce", "", "infiniband"),
        ("ib", "", "infiniband"),
        ("iwarp", "on", "iwarp"),
        ("iwarp", "", "no-datagrams"),
    ] {
        let mut command = on_loopback(&libraries, &program);
        command.arg(kind).env("UIW_PERSONA", persona).env("UIW_UD", ud);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("errors as expected"), 1, "{persona} {ud}: {ended:?}");
    }
}

/// Connections end with a reset during and after their set-up. The log writes the queue pair number
/// in the same form as `uiw stat`.
#[test]
fn log_lines_name_connection() {
    let libraries = Libraries::get();
    let Some(program) = compile(&libraries, &folder("../examples/c/server.c"), &[]) else { return };
    for persona in ["iwarp", "roce"] {
        let mut command = libraries.command(User::Same, &program);
        command.arg("2").env("UIW_LOG", "warn").env("UIW_PERSONA", persona);
        let mut server = Running::start(command);
        server.wait_saying("port ");
        let port = port_after(&server.said(), "port ").parse::<u16>().unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        let reset = |stream: TcpStream| {
            let peer = stream.local_addr().unwrap();
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            format!("peer={peer} ")
        };

        let peer = reset(connect());
        server.wait_saying("start-up failed");
        let said = server.said();
        let line = said.lines().find(|line| line.contains("start-up failed")).unwrap();
        assert!(line.contains(&peer), "{persona}: {line}");
        assert!(!line.contains(&format!(":{port}")), "{persona}: {line}");

        let mut connected = connect();
        connected.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
        connected.read_exact(&mut [0; 20]).unwrap();
        let peer = reset(connected);
        // The server treats the flushed receives as an error.
        let ended = server.end();
        let line = ended.said.lines().find(|line| line.contains("the stream ends")).unwrap();
        let number = line.split("qp=0x").nth(1).unwrap_or_default();
        let digits = number.chars().take_while(char::is_ascii_hexdigit).count();
        assert!(line.contains(&peer) && digits >= 6, "{persona}: {line}");
    }
}

#[test]
fn nonsense_is_answered_with_an_error() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/nonsense.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    Running::start(on_loopback(&libraries, &program)).end().well();
}

#[test]
fn promises_of_the_manual_are_kept() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/semantics.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    let mut settings = vec![on_loopback(&libraries, &program)];
    // The result must not depend on the format of the messages.
    for (name, value) in
        [("UIW_MARKERS", "on"), ("UIW_MPA_REVISION", "1"), ("UIW_ACK", "on"), ("UIW_CRC", "off")]
    {
        let mut command = on_loopback(&libraries, &program);
        command.env(name, value);
        settings.push(command);
    }
    for command in settings {
        Running::start(command).end().well();
    }
    // The log gives the reason of a refused call.
    let mut command = on_loopback(&libraries, &program);
    command.env("UIW_LOG", "uiw_cabi=debug");
    let logged = Running::start(command).end();
    assert!(
        logged.well().count("call refused with EINVAL: rdma_connect to port 0") > 0,
        "{logged:?}"
    );
}

#[test]
fn queue_pairs_connect_out_of_band() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/pairs.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    // The programs spend most of their time waiting, so they run in parallel.
    let mut running = vec![Running::start(libraries.command(User::Same, &program))];
    // If a completion means that the peer has placed the data, errors are more precise.
    for (persona, ack) in [("roce", ""), ("ib", ""), ("iwarp", "on")] {
        let mut command = libraries.command(User::Same, &program);
        command.arg("acknowledged").env("UIW_PERSONA", persona).env("UIW_ACK", ack);
        running.push(Running::start(command));
    }
    for program in running {
        program.end().well();
    }
}

/// Access rights are removed from a queue pair in RTS, also in the middle of a message.
#[test]
fn removed_rights_take_effect_at_once() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/rights.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for (persona, argument) in [("iwarp", ""), ("roce", "acknowledged"), ("ib", "acknowledged")] {
        let mut command = on_loopback(&libraries, &program);
        command.arg(argument).env("UIW_PERSONA", persona);
        assert_eq!(Running::start(command).end().well().said, "done\n");
    }
}

#[test]
fn unreliable_connections_lose_messages_silently() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/unreliable.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    // The programs spend most of their time waiting, so they run in parallel.
    let running = ["roce", "ib"].map(|persona| {
        let mut command = on_loopback(&libraries, &program);
        command.env("UIW_PERSONA", persona);
        Running::start(command)
    });
    for program in running {
        assert_eq!(program.end().well().said, "done\n");
    }
    let mut command = on_loopback(&libraries, &program);
    command.arg("refused").env("UIW_PERSONA", "iwarp").env("UIW_LOG", "uiw_cabi=debug");
    let refused = Running::start(command).end();
    assert_eq!(refused.well().count("persona iwarp has no UC queue pairs"), 1, "{refused:?}");
}

#[test]
fn state_table_enforced_except_on_iwarp() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/transitions.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for persona in ["iwarp", "roce", "ib"] {
        let mut command = libraries.command(User::Same, &program);
        command.arg(persona).env("UIW_PERSONA", persona);
        assert_eq!(Running::start(command).end().well().said, "done\n");
    }
}

#[test]
fn longer_private_data_cut() {
    let libraries = Libraries::get();
    let Some(program) = compile(&libraries, &folder("../examples/c/server.c"), &[]) else { return };
    for (persona, length) in [("iwarp", 255), ("roce", 56), ("ib", 56)] {
        private_data_is_cut(&libraries, &program, persona, length);
    }
}

fn private_data_is_cut(libraries: &Libraries, program: &Path, persona: &str, length: usize) {
    let mut command = libraries.command(User::Same, program);
    command.env("UIW_LOG", "warn").env("UIW_PERSONA", persona);
    let mut server = Running::start(command);
    server.wait_saying("port ");
    let port = port_after(&server.said(), "port ").parse::<u16>().unwrap();

    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let settings = ConnectionConfig::default().private_data(vec![0x5A; 508]);
    let connection = Connection::connect(&pd, ([127, 0, 0, 1], port).into(), &settings).unwrap();
    server.wait_saying(&format!("private data is cut to {length} bytes"));
    // The padding of private data in an event is not sent on the wire.
    assert!(connection.info().private_data.is_empty(), "{persona}");
    connection.send_copy(b"good day\0").unwrap();
    assert_eq!(
        connection.recv().unwrap().unwrap().split(|byte| *byte == 0).next().unwrap(),
        b"you said 8 bytes"
    );
    drop(server.stop());
}

#[test]
fn threads_share_channels_and_connections() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/stress.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    let mut command = libraries.command(User::Same, program);
    command.arg("50");
    Running::start(command).end().well();
}

#[test]
fn signals_restart_or_interrupt_waits() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/signals.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    Running::start(libraries.command(User::Same, program)).end().well();
}

#[test]
fn threads_cancelled_in_waits_only() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/cancel.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    Running::start(on_loopback(&libraries, &program)).end().well();
}

/// Compiles a program of `tests/stock/c` that uses `ends.c` of the benchmarks to create pairs of
/// queue pairs.
fn compile_with_ends(libraries: &Libraries, name: &str) -> Option<PathBuf> {
    let shared = folder("../xtask/src/bench/programs");
    let ends = shared.join("ends.c");
    let (shared, ends) = (shared.to_string_lossy(), ends.to_string_lossy());
    let flags = ["-Wall", "-Wextra", "-Werror", "-pthread", "-I", &shared, &ends];
    compile(libraries, &folder("tests/stock/c").join(name), &flags)
}

/// Tests a program that takes an event as a completion, as perftest does, and one that takes a
/// readable channel as an event.
#[test]
fn channels_deliver_expected_events() {
    let libraries = Libraries::get();
    let Some(program) = compile_with_ends(&libraries, "channels.c") else { return };
    Running::start(libraries.command(User::Same, program)).end().well();
}

/// Every child ends, although the exit handlers of the library run on the thread that the signal
/// interrupted inside the library.
#[test]
fn signal_handler_ends_polling_program() {
    let libraries = Libraries::get();
    let Some(program) = compile_with_ends(&libraries, "exit_in_handler.c") else { return };
    let ended = Running::start(libraries.command(User::Same, program)).end();
    assert_eq!(ended.well().count("20 children ended"), 1, "{ended:?}");
}

/// Tests a program that registers unmapped memory and one that unmaps registered memory.
#[test]
fn registered_memory_unmapped_anytime() {
    let libraries = Libraries::get();
    let Some(program) = compile_with_ends(&libraries, "memory.c") else { return };
    let command = || {
        let mut command = libraries.command(User::Same, &program);
        command.env("UIW_ACK", "on");
        command
    };
    assert_eq!(Running::start(command()).end().well().count("memory is as it should be"), 1);
    // 139 is SIGSEGV: the handler passes faults caused by the program itself on to the system.
    let mut crashing = command();
    crashing.arg("crash");
    let crashed = Running::start(crashing).end();
    assert_eq!((crashed.code, crashed.count("memory is as it should be")), (139, 1), "{crashed:?}");
}

/// Each round has 35 connections, and the receiver of each ends in a different way.
fn requests_succeed_though_receiver_ends(persona: &str) {
    let libraries = Libraries::get();
    let Some(program) = compile_with_ends(&libraries, "last_acks.c") else { return };
    let mut command = libraries.command(User::Same, program);
    command.arg("3").env("UIW_PERSONA", persona).env(LOOPBACK.0, LOOPBACK.1);
    assert_eq!(Running::start(command).end().well().count("all requests succeeded"), 1);
}

#[test]
fn requests_succeed_though_receiver_ends_roce() {
    requests_succeed_though_receiver_ends("roce");
}

#[test]
fn requests_succeed_though_receiver_ends_ib() {
    requests_succeed_though_receiver_ends("ib");
}

#[test]
fn requests_succeed_though_receiver_ends_iwarp() {
    requests_succeed_though_receiver_ends("iwarp");
}

#[test]
fn timestamps_read_under_valgrind() {
    let (Some(_), libraries) = (uiw_interop::require("valgrind"), Libraries::get()) else { return };
    let Some(program) = compile_with_ends(&libraries, "timestamps.c") else { return };
    let mut command = libraries.command(User::Same, "valgrind");
    command.args(["-q", "--error-exitcode=99"]);
    command.arg(format!("--suppressions={}", folder("../packaging/valgrind.supp").display()));
    command.arg(program).env(LOOPBACK.0, LOOPBACK.1);
    assert_eq!(Running::start(command).end().well().count("a timestamp was read"), 1);
}

/// Garbage collectors remove access rights from registered memory. Like an adapter, uiw continues
/// to use it.
#[test]
fn protected_memory_stays_registered() {
    let libraries = Libraries::get();
    let Some(program) = compile_with_ends(&libraries, "protection.c") else { return };
    // Without CRCs, long payloads are sent from their memory on all processors.
    for crc in ["on", "off"] {
        let mut command = libraries.command(User::Same, &program);
        command.env("UIW_ACK", "on").env("UIW_CRC", crc);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("protected memory is as it should be"), 1, "{crc}");
    }
}

#[test]
fn interposed_functions_found_through_librdmacm() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/order.c");
    let flags = ["-Wall", "-Wextra", "-Werror", "-Wl,--as-needed"];
    let Some(program) = compile(&libraries, &source, &flags) else { return };
    let ended = Running::start(libraries.command(User::Same, program)).end();
    assert_eq!(ended.well().count("functions are as they should be"), 1);
}

/// The listener and the connections are distributed over four shards.
#[test]
fn established_event_precedes_next_request() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/one_by_one.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for persona in ["iwarp", "roce"] {
        let mut command = on_loopback(&libraries, &program);
        command.env("UIW_SHARDS", "4").env("UIW_PERSONA", persona);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("each established before the next request"), 1, "{ended:?}");
    }
}

#[test]
fn posts_complete_after_receiver_destroyed() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/destroyed_at_once.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for persona in ["roce", "ib"] {
        let mut command = on_loopback(&libraries, &program);
        command.env("UIW_PERSONA", persona);
        let ended = Running::start(command).end();
        assert_eq!(
            ended.well().count("everything completes though the peer is gone"),
            1,
            "{ended:?}"
        );
    }
}

#[test]
fn send_waits_as_configured() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/late_receive.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    for persona in ["roce", "ib"] {
        let mut command = on_loopback(&libraries, &program);
        command.env("UIW_PERSONA", persona);
        let ended = Running::start(command).end();
        assert_eq!(ended.well().count("a late receive is in time"), 1, "{ended:?}");
    }
}

#[test]
fn poll_returns_completion_of_its_yield() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/poll_after_yield.c");
    let options = ["-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic"];
    let Some(program) = compile(&libraries, &source, &options) else { return };
    // On a busy machine the message may still be on its way when TCP has taken it.
    const TRIES: usize = 4;
    for persona in ["iwarp", "roce", "ib"] {
        let run = || {
            let mut command = on_loopback(&libraries, &program);
            command.env("UIW_PERSONA", persona);
            Running::start(command).end().count("came during the yield is returned") == 1
        };
        assert!((0..TRIES).any(|_| run()), "{persona}");
    }
}

/// The allocator of this program changes mappings while it holds its lock.
#[test]
fn allocator_returns_memory_during_calls() {
    let libraries = Libraries::get();
    let source = folder("tests/stock/c/allocator.c");
    let shared = folder("../xtask/src/bench/programs");
    let ends = shared.join("ends.c");
    let flags = [
        "-rdynamic",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        &shared.to_string_lossy(),
        &ends.to_string_lossy(),
    ];
    let Some(program) = compile(&libraries, &source, &flags) else { return };
    let mut command = libraries.command(User::Same, program);
    command.env("UIW_ACK", "on");
    assert_eq!(Running::start(command).end().well().count("the allocator went on"), 1);
}

#[test]
fn programs_that_users_gave() {
    let given = env::var_os(SEED_PROGRAMS).map(PathBuf::from);
    let places = [given, Some(folder("../../shared/seed-programs"))];
    let Some(sources) = places.into_iter().flatten().find(|place| place.join("server.c").exists())
    else {
        uiw_interop::skip("programs that users gave (INTEROP_SEED_PROGRAMS)");
        return;
    };
    let libraries = Libraries::get();
    // The programs are compiled as they are, so warnings are ignored.
    let Some(server_file) = compile(&libraries, &sources.join("server.c"), &["-w"]) else { return };
    let Some(client_file) = compile(&libraries, &sources.join("client.c"), &["-w"]) else { return };
    let Some(_) = uiw_interop::require("stdbuf") else { return };
    // The server does not flush its output line by line, and the test reads the port from the
    // output.
    let mut command = libraries.command(User::Same, "stdbuf");
    command.arg("-oL").arg(&server_file);
    let mut server = Running::start(command);
    server.wait_saying("listening on port ");
    let port = port_after(&server.said(), "listening on port ");
    let received = "received message: message from active/client side";
    // The server destroys its queue pair when the client disconnects. On a busy machine, it may do
    // so before its other thread has polled the message.
    const MAX_CLIENTS: usize = 10;
    for clients in 0..MAX_CLIENTS {
        if clients >= 2 && server.said().contains(received) {
            break;
        }
        let mut command = libraries.command(User::Same, &client_file);
        command.args(["127.0.0.1", &port]);
        let client = Running::start(command).end();
        assert_eq!(
            client.well().count("received message: message from passive/server side"),
            1,
            "{client:?}"
        );
        assert_eq!(client.count("disconnected."), 1);
    }
    server.wait_saying(received);
    // The server never exits by itself.
    drop(server.stop());
}
