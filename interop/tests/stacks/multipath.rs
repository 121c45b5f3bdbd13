//! Tests the kernel's Multipath TCP on two links between two namespaces, with an emulator on each
//! link.

use serde_json::Value;
use std::process::Command;
use std::thread;
use std::time::Duration;
use uiw_interop::stock::{Network, ProcessEnd, Running, free_port, uiw};
use uiw_llp::tcp::TcpStack;

/// Links 10.77.0.0/24 and 10.78.0.0/24 between server and client.
struct TwoLinks {
    network: Network,
    emulators: [Running; 2],
}

fn is_offered() -> bool {
    let offered = TcpStack::multipath();
    if let Err(error) = &offered {
        uiw_interop::skip(&format!("MPTCP: {error}"));
    }
    offered.is_ok() && uiw_interop::require("ip").is_some()
}

fn ip(words: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace());
    command
}

fn emulator(network: &Network, interfaces: [&str; 2]) -> Running {
    let mut command = Command::new(uiw());
    command.arg("wan").args(interfaces).args(["--delay", "2ms", "--rate", "50Mbit", "--json"]);
    let mut emulator = Running::start(network.middle(command));
    emulator.wait_saying("carrying");
    emulator
}

impl TwoLinks {
    fn new() -> Option<Self> {
        let network = Network::path()?;
        let names: Vec<_> = network.places().map(|(_, name)| name.to_owned()).collect();
        for (name, there, address) in
            [(&names[0], "server1", "10.78.0.1/24"), (&names[1], "client1", "10.78.0.2/24")]
        {
            let cable = format!("link add {there} type veth peer name veth1 netns {name}");
            Running::start(network.middle(ip(&cable))).end().well();
            Running::start(network.middle(ip(&format!("link set {there} up")))).end().well();
            for words in [
                format!("-n {name} address add {address} dev veth1"),
                format!("-n {name} link set veth1 up"),
                format!("-n {name} mptcp limits set subflow 2 add_addr_accepted 2"),
            ] {
                Running::start(ip(&words)).end().well();
            }
        }
        let signal = format!("-n {} mptcp endpoint add 10.78.0.1 dev veth1 signal", names[0]);
        Running::start(ip(&signal)).end().well();
        let emulators =
            [["server", "client"], ["server1", "client1"]].map(|link| emulator(&network, link));
        Some(Self { network, emulators })
    }

    fn serve(&self, llp: &str, port: u16) -> Running {
        let mut command = Command::new(uiw());
        command.args(["--llp", llp, "serve", "--listen", &format!("0.0.0.0:{port}")]);
        let mut serve = Running::start(self.network.server(command));
        serve.wait_saying("listening on");
        serve
    }

    fn perf(&self, port: u16, options: &[&str]) -> Running {
        let mut command = Command::new(uiw());
        command.args([
            "--llp",
            "mptcp",
            "perf",
            &format!("{}:{port}", self.network.server_address()),
        ]);
        command.args(["--op", "write", "--size", "1M", "--validate", "--json"]).args(options);
        Running::start(self.network.client(command))
    }
}

fn result(ended: &ProcessEnd) -> Value {
    ended.well();
    serde_json::from_str(ended.said.lines().last().expect("a result")).expect("JSON")
}

/// Stops the emulator and returns the number of bytes that it carried in its busier direction,
/// which is the one to the server.
fn carried(emulator: Running) -> u64 {
    let ended = emulator.interrupt();
    let statistics = result(&ended);
    statistics["ways"]
        .as_array()
        .expect("two ways")
        .iter()
        .map(|way| way["bytes"].as_u64().unwrap())
        .max()
        .unwrap()
}

#[test]
fn connection_survives_loss_of_link() {
    if !is_offered() {
        return;
    }
    let Some(links) = TwoLinks::new() else { return };
    let port = free_port();
    let serve = links.serve("mptcp", port);
    let whole = result(&links.perf(port, &["--seconds", "60", "--iterations", "16"]).end());
    assert_eq!(whole["subflows"], 2, "{whole}");

    let client = links.perf(port, &["--seconds", "120", "--iterations", "60"]);
    thread::sleep(Duration::from_secs(2));
    let [first, second] = links.emulators;
    let first = carried(first);
    let cut = result(&client.end());
    assert_eq!(cut["messages"], 60, "{cut}");
    let second = carried(second);
    // Each link carried a part of the first transfer, and the second link carried most of the data
    // sent after the first one was cut.
    assert!(first > 4 << 20 && second > 24 << 20, "{first} {second}");
    let _ = serve.stop();
}

#[test]
fn peer_without_multipath_reached_over_tcp() {
    if !is_offered() {
        return;
    }
    let Some(links) = TwoLinks::new() else { return };
    let port = free_port();
    let serve = links.serve("tcp", port);
    let fallen = result(&links.perf(port, &["--seconds", "60", "--iterations", "4"]).end());
    assert_eq!(fallen["subflows"], 0, "{fallen}");
    let _ = serve.stop();
}

/// Both links go silent, so no subflow receives acknowledgements and the connection ends after its
/// own dead time.
#[test]
fn dead_peer_detected() {
    if !is_offered() {
        return;
    }
    let Some(links) = TwoLinks::new() else { return };
    let port = free_port();
    let serve = links.serve("mptcp", port);
    let client = links.perf(port, &["--seconds", "120", "--dead-after", "3s"]);
    thread::sleep(Duration::from_secs(2));
    for emulator in links.emulators {
        emulator.interrupt().well();
    }
    let ended = client.end();
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.said.contains("nothing acknowledged for 3s"), "{ended:?}");
    let _ = serve.stop();
}
