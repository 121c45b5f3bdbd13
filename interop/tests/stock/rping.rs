//! Runs both roles of Debian's rping, with each other and with uiw's own ping and server.

use std::process::Command;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, free_port, ordinary, uiw};

/// Runs a server and a client on our libraries, and returns both after they have ended.
fn pair(
    libraries: &Libraries,
    network: &Network,
    user: User,
    server: &[&str],
    client: &[&str],
) -> [ProcessEnd; 2] {
    let port = free_port();
    let number = port.to_string();
    let mut command = libraries.command(user, "rping");
    command.args(["-s", "-p", &number]).args(server);
    let mut server = Running::start(network.server(command));
    server.wait_listening(port);
    let mut command = libraries.command(user, "rping");
    command.args(["-c", "-a", &network.server_address().to_string(), "-p", &number]).args(client);
    let client = Running::start(network.client(command)).end();
    [server.end(), client]
}

/// Asserts that the client's output contains no error, because rping's client exits with 0 in any
/// case.
fn sound(client: &ProcessEnd) {
    client.well();
    assert_eq!(
        client.count("wait for") + client.count("failed") + client.count("mismatch"),
        0,
        "{client:?}"
    );
}

fn thousand_of_60000(network: &Network, user: User) {
    let libraries = Libraries::get();
    let args = ["-V", "-C", "1000", "-S", "60000"];
    let [server, client] = pair(&libraries, network, user, &args, &args);
    server.well();
    sound(&client);
}

#[test]
fn thousand_verified_pings_on_loopback() {
    let Some(_) = uiw_interop::require("rping") else { return };
    thousand_of_60000(&Network::Loopback, User::Same);
}

#[test]
fn thousand_pings_on_loopback_as_user() {
    let (Some(_), Some(user)) = (uiw_interop::require("rping"), ordinary()) else { return };
    thousand_of_60000(&Network::Loopback, user);
}

#[test]
fn thousand_verified_pings_between_namespaces() {
    let (Some(_), Some(network)) = (uiw_interop::require("rping"), Network::veth()) else { return };
    thousand_of_60000(&network, User::Same);
}

#[test]
fn thousand_pings_between_namespaces_as_user() {
    let (Some(_), Some(user), Some(network)) =
        (uiw_interop::require("rping"), ordinary(), Network::veth())
    else {
        return;
    };
    thousand_of_60000(&network, user);
}

#[test]
fn ipv6_and_ipv4_at_one_server() {
    let Some(_) = uiw_interop::require("rping") else { return };
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        uiw_interop::skip("IPv6 on loopback");
        return;
    }
    let libraries = Libraries::get();
    for (at, to) in
        [("::0", "::1"), ("::0", "127.0.0.1"), ("::0", "::ffff:127.0.0.1"), ("::1", "::1")]
    {
        let port = free_port();
        let number = port.to_string();
        let mut command = libraries.command(User::Same, "rping");
        command.args(["-s", "-a", at, "-v", "-C", "4", "-p", &number]);
        let mut server = Running::start(command);
        server.wait_listening(port);
        let mut command = libraries.command(User::Same, "rping");
        command.args(["-c", "-a", to, "-v", "-C", "4", "-p", &number]);
        let client = Running::start(command).end();
        sound(&client);
        assert_eq!(client.count("ping data"), 4, "{at} {to}");
        server.end().well();
    }
}

#[test]
fn why_a_connection_came_to_nothing() {
    let (Some(_), Some(network)) = (uiw_interop::require("rping"), Network::veth()) else { return };
    let libraries = Libraries::get();
    let ping = |to: &str| {
        let mut command = libraries.command(User::Same, "rping");
        command.args(["-c", "-a", to, "-C", "1", "-p", "7471"]);
        Running::start(network.client(command)).end()
    };
    // The targets are a closed port, an address without a host, and an address without a route.
    let refused = ping(&network.server_address().to_string());
    assert_eq!(
        (refused.code, refused.count("RDMA_CM_EVENT_REJECTED, error -111")),
        (255, 1),
        "{refused:?}"
    );
    let no_host = ping("10.77.0.9");
    assert_eq!(
        (no_host.code, no_host.count("RDMA_CM_EVENT_UNREACHABLE, error -113")),
        (255, 1),
        "{no_host:?}"
    );
    let no_way = ping("10.99.0.1");
    assert_eq!(
        (no_way.code, no_way.count("rdma_resolve_addr: Network is unreachable")),
        (255, 1),
        "{no_way:?}"
    );
}

#[test]
fn debugging_output_and_the_data_shown() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let args = ["-d", "-v", "-C", "7"];
    let [server, client] = pair(&libraries, &Network::Loopback, User::Same, &args, &args);
    assert_eq!(server.well().count("server ping data: rdma-ping-"), 7);
    sound(&client);
    assert_eq!(client.count("ping data: rdma-ping-"), 7);
    let said = |ended: &ProcessEnd, event: &str| ended.count(&format!("RDMA_CM_EVENT_{event}"));
    for event in ["ADDR_RESOLVED", "ROUTE_RESOLVED", "ESTABLISHED"] {
        assert_eq!(said(&client, event), 1, "{client:?}");
    }
    for event in ["CONNECT_REQUEST", "ESTABLISHED"] {
        assert_eq!(said(&server, event), 1, "{server:?}");
    }
    // The main thread exits with the flush of the receives, so another thread may not have printed
    // this yet.
    assert!(
        said(&client, "DISCONNECTED") <= 1 && said(&server, "DISCONNECTED") <= 1,
        "{client:?} {server:?}"
    );
}

#[test]
fn queue_pairs_that_rping_moves_itself() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    for (server, client) in [(true, true), (true, false), (false, true)] {
        let args =
            |own: bool| if own { vec!["-q", "-v", "-C", "5"] } else { vec!["-v", "-C", "5"] };
        let [server, client] =
            pair(&libraries, &Network::Loopback, User::Same, &args(server), &args(client));
        assert_eq!(server.well().count("server ping data"), 5);
        sound(&client);
        assert_eq!(client.count("ping data"), 5);
    }
}

#[test]
fn many_clients_of_a_persistent_server() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let number = port.to_string();
    let mut command = libraries.command(User::Same, "rping");
    command.args(["-s", "-P", "-p", &number, "-S", "3000"]);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let start = || {
        let mut command = libraries.command(User::Same, "rping");
        command.args([
            "-c",
            "-a",
            "127.0.0.1",
            "-p",
            &number,
            "-S",
            "3000",
            "-C",
            "400",
            "-V",
            "-v",
        ]);
        let mut client = Running::start(command);
        // rping's server keeps only the newest request in a variable, so the next client must not
        // start before this one is served.
        client.wait_saying("ping data: rdma-ping-0");
        client
    };
    let clients: Vec<Running> = (0..16).map(|_| start()).collect();
    for client in clients {
        let client = client.end();
        sound(&client);
        assert_eq!(client.count("ping data"), 400);
    }
    drop(server.stop());
}

#[test]
fn against_our_own_ping() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let mut command = libraries.command(User::Same, "rping");
    command.args(["-s", "-V", "-v", "-C", "50", "-S", "4000", "-p", &port.to_string()]);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let mut command = Command::new(uiw());
    command.args(["ping", &format!("127.0.0.1:{port}"), "--rping", "-c", "50", "-s", "4000"]);
    let client = Running::start(command).end();
    client.well();
    assert_eq!(server.end().well().count("server ping data"), 50);
}

#[test]
fn against_our_own_server() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let mut command = Command::new(uiw());
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let mut command = libraries.command(User::Same, "rping");
    command.args([
        "-c",
        "-a",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-V",
        "-v",
        "-C",
        "50",
        "-S",
        "4000",
    ]);
    let client = Running::start(command).end();
    sound(&client);
    assert_eq!(client.count("ping data"), 50);
    drop(server.stop());
}

#[test]
fn port_offset_applied_below_program() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    // Another program uses the same port number over TCP, which is the reason for the offset.
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let number = taken.local_addr().unwrap().port();
    let offset = (i32::from(port) - i32::from(number)).to_string();
    let ping = |role: &[&str]| {
        let mut command = libraries.command(User::Same, "rping");
        command.args(role).args(["-a", "127.0.0.1", "-v", "-C", "5", "-p", &number.to_string()]);
        command.env("UIW_PORT_OFFSET", &offset);
        command
    };
    let mut server = Running::start(ping(&["-s"]));
    server.wait_listening(port);
    let client = Running::start(ping(&["-c"])).end();
    sound(&client);
    assert_eq!(client.count("ping data"), 5);
    server.end().well();
}

/// Standard error is a full device. Log lines of the libraries, which a peer can cause, must not
/// end a thread of the program.
#[test]
fn unwritable_log_ends_nothing() {
    let (Some(_), network, libraries) =
        (uiw_interop::require("rping"), Network::Loopback, Libraries::get())
    else {
        return;
    };
    let port = free_port();
    let number = port.to_string();
    let address = network.server_address().to_string();
    let command = |words: &[&str]| {
        let mut command = libraries.command(User::Same, "sh");
        command.args(["-c", "exec \"$@\" 2> /dev/full", "sh", "rping", "-p", &number]).args(words);
        command.env("UIW_LOG", "debug");
        command
    };
    let mut server = Running::start(network.server(command(&["-s", "-P", "-a", &address])));
    server.wait_listening(port);
    for _ in 0..2 {
        // This peer does not speak iWARP.
        let mut junk = std::net::TcpStream::connect((network.server_address(), port)).unwrap();
        std::io::Write::write_all(&mut junk, &[b'x'; 100]).unwrap();
        let _ = std::io::Read::read(&mut junk, &mut [0; 9]);
        let client = command(&["-c", "-v", "-C", "3", "-a", &address]);
        let client = Running::start(network.client(client)).end();
        assert_eq!((client.code, client.count("ping data")), (0, 3), "{client:?}");
    }
    drop(server.stop());
}
