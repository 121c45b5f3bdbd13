//! Tests which congestion control the kernel's TCP uses: the route's, the configured one, or one
//! chosen by the length of the path.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;
use std::time::Duration;
use uiw_interop::stock::{Network, Running, WaitLimit, uiw};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{ListenConfig, Token, TransportConfig, TransportStack, TransportStream};

fn options(congestion: &str) -> TransportConfig {
    TransportConfig { congestion: Some(congestion.into()), ..TransportConfig::default() }
}

fn congestion(stream: &dyn TransportStream) -> String {
    stream.info().congestion.expect("the kernel names it")
}

/// Makes reno the default in both network namespaces.
///
/// The default of the host may be the algorithm that a test expects for another reason.
fn default_is_reno(network: &Network) {
    let write = || {
        let mut command = Command::new("sh");
        command.args(["-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"]);
        command
    };
    Running::start(network.server(write())).end().well();
    Running::start(network.client(write())).end().well();
}

/// Connects from the client's namespace and returns the congestion control of the connection.
fn connected(network: &Network, asked: &str) -> String {
    let server =
        network.inside_server(|| TcpListener::bind((network.server_address(), 0)).unwrap());
    let to = server.local_addr().unwrap();
    network.inside_client(|| {
        let mut stack = TcpStack::new().unwrap();
        let mut stream = stack.connect(None, to, &options(asked), Token(1)).unwrap();
        let mut limit = WaitLimit::new(Duration::from_secs(20));
        while !stream.connect_result().unwrap() {
            assert!(!limit.is_over(), "no connection");
            thread::sleep(Duration::from_millis(1));
        }
        congestion(&*stream)
    })
}

/// Accepts a connection in the server's namespace and returns its congestion control.
fn accepted(network: &Network, asked: &str) -> String {
    let mut stack = network.inside_server(|| TcpStack::new().unwrap());
    let any = SocketAddr::new(network.server_address().into(), 0);
    let listen = ListenConfig { stream: options(asked), ..ListenConfig::default() };
    let mut listener = network.inside_server(|| stack.listen(any, &listen, Token(1)).unwrap());
    let to = listener.local_addr();
    let _client = network.inside_client(|| std::net::TcpStream::connect(to).unwrap());
    let mut limit = WaitLimit::new(Duration::from_secs(20));
    loop {
        match listener.accept(Token(2)) {
            Ok(stream) => return congestion(&*stream),
            Err(error) => assert!(!limit.is_over(), "{error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn available(name: &str) -> bool {
    let names =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    let found = names.split_whitespace().any(|known| known == name);
    if !found {
        uiw_interop::skip(&format!("congestion control {name}"));
    }
    found
}

#[test]
fn requested_control_replaces_route_setting() {
    if !available("cubic") || !available("bbr") {
        return;
    }
    let Some(network) = Network::veth() else { return };
    default_is_reno(&network);
    for (_, name) in network.places() {
        let mut ip = Command::new("ip");
        ip.args([
            "-n",
            name,
            "route",
            "change",
            "10.77.0.0/24",
            "dev",
            "veth0",
            "congctl",
            "cubic",
        ]);
        Running::start(ip).end().well();
    }
    for outcome in [connected, accepted] {
        assert_eq!(outcome(&network, "bbr"), "bbr");
        assert_eq!(
            outcome(&network, TransportConfig::AUTO),
            "cubic",
            "the route's, on a short path"
        );
    }
}

#[test]
fn long_path_has_bbr() {
    if !available("bbr") {
        return;
    }
    let Some(network) = Network::path() else { return };
    default_is_reno(&network);
    let mut command = Command::new(uiw());
    command.args(["wan", "server", "client", "--delay", "10ms"]);
    let mut wan = Running::start(network.middle(command));
    wan.wait_saying("carrying");
    for outcome in [connected, accepted] {
        assert_eq!(outcome(&network, TransportConfig::AUTO), "bbr");
        assert_eq!(outcome(&network, "reno"), "reno");
    }
}
