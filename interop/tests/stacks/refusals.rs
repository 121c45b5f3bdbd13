//! What cannot be had is said in one line, and a link that goes away ends its connections.

use interop::stock::{Network, Running, uiw};
use std::process::Command;

fn fails(command: &mut Command, code: i32, says: &[&str]) {
    let output = command.output().expect("uiw starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(says.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn stacks_that_are_none() {
    let serve = |spec: &str| {
        let mut command = Command::new(uiw());
        command.args(["--llp", spec, "serve", "--listen", "127.0.0.1:0"]);
        command
    };
    fails(&mut serve("quic"), 2, &["quic", "tcp, packet:"]);
    fails(&mut serve("packet:veth0"), 2, &["ip=ADDR/PREFIX"]);
    fails(&mut serve("xdp:veth0,ip=10.0.0.1/8,mode=fast"), 2, &["mode=fast"]);
}

#[test]
fn an_interface_that_is_not_there() {
    let Some(network) = Network::veth() else { return };
    for kind in ["packet", "xdp"] {
        let mut command = Command::new(uiw());
        let spec = format!("{kind}:veth9,ip=10.77.0.11/24");
        command.args(["--llp", &spec, "serve", "--listen", "10.77.0.11:7174"]);
        fails(&mut network.server(command), 1, &["veth9", "ip link"]);
    }
}

#[test]
fn without_the_capabilities() {
    let Some(network) = Network::veth() else { return };
    let Some(setpriv) = interop::require("setpriv") else { return };
    for (kind, names) in [("packet", "CAP_NET_RAW"), ("xdp", "CAP_BPF")] {
        let mut command = Command::new(&setpriv);
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]);
        command.arg(uiw());
        let spec = format!("{kind}:veth0,ip=10.77.0.11/24");
        command.args(["--llp", &spec, "serve", "--listen", "10.77.0.11:7174"]);
        fails(&mut network.server(command), 1, &["veth0", names]);
    }
}

/// The cable is cut: both ends of every connection end, with a reason, and soon.
#[test]
fn an_interface_that_is_deleted_under_traffic() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let spec = |host| format!("{kind}:veth0,ip=10.77.0.{host}/24");
        let mut command = Command::new(uiw());
        command.args(["--llp", &spec(11), "serve", "--listen", "10.77.0.11:7174"]);
        let mut server = Running::start(network.server(command));
        server.wait_saying("listening on");
        let mut command = Command::new(uiw());
        command.args(["--llp", &spec(12), "perf", "10.77.0.11", "--size", "64K", "--seconds", "60"]);
        let client = Running::start(network.client(command));
        std::thread::sleep(std::time::Duration::from_millis(500));
        let mut command = Command::new("ip");
        command.args(["link", "delete", "veth0"]);
        assert!(network.client(command).status().expect("ip starts").success());
        let ended = client.end();
        assert_eq!(ended.code, 4, "{}", ended.said);
        server.wait_saying("uiw: ");
        let _ = server.stop();
    }
}
