//! Tests that unavailable stacks cause an error with a hint, and that connections end when their
//! link goes away.

use rustix::process::Signal;
use std::process::Command;
use std::thread;
use std::time::Duration;
use uiw_interop::stock::{Network, ProcessEnd, Running, uiw};

fn fails(command: &mut Command, code: i32, says: &[&str]) {
    let output = command.output().expect("uiw starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(
        said.lines().map(|line| line.split(": ").next()).collect::<Vec<_>>(),
        [Some("error"), Some("hint")],
        "{said}"
    );
    assert!(says.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn invalid_stack_specifications_are_refused() {
    let serve = |spec: &str| {
        let mut command = Command::new(uiw());
        command.args(["--llp", spec, "serve", "--listen", "127.0.0.1:0"]);
        command
    };
    fails(&mut serve("quic"), 2, &["quic", "tcp, packet:"]);
    fails(&mut serve("packet:veth0"), 2, &["ip=ADDR/PREFIX"]);
    fails(&mut serve("xdp:veth0,ip=10.0.0.1/8,mode=fast"), 2, &["mode=fast"]);
    fails(&mut serve("packet:veth0,ip=255.255.255.255/8"), 2, &["is not the address of a host"]);
    fails(&mut serve("packet:veth0,ip=10.0.0.1/8,gw=11.0.0.1"), 2, &["gw=11.0.0.1"]);
}

#[test]
fn missing_interface_refused() {
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
    let Some(setpriv) = uiw_interop::require("setpriv") else { return };
    for (kind, names) in [("packet", "CAP_NET_RAW"), ("xdp", "CAP_BPF")] {
        let mut command = Command::new(&setpriv);
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]);
        command.arg(uiw());
        let spec = format!("{kind}:veth0,ip=10.77.0.11/24");
        command.args(["--llp", &spec, "serve", "--listen", "10.77.0.11:7174"]);
        fails(&mut network.server(command), 1, &["veth0", names]);
    }
}

/// Counts the errors that name the deleted interface; the log may name it as well.
fn deletions(ended: &ProcessEnd) -> usize {
    let is_error = |line: &&str| line.starts_with("error: cannot listen on");
    ended
        .said
        .lines()
        .filter(is_error)
        .filter(|line| line.ends_with("interface `veth0` was deleted"))
        .count()
}

/// When the link is deleted, both ends of every connection end soon and report the reason.
#[test]
fn interface_deleted_under_traffic() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let (mut server, client) =
            connected(&network, kind, &["perf", "10.77.0.11", "--size", "64K", "--seconds", "60"]);
        thread::sleep(Duration::from_millis(500));
        let mut command = Command::new("ip");
        command.args(["link", "delete", "veth0"]);
        assert!(network.client(command).status().expect("ip starts").success());
        let ended = client.end();
        assert_eq!(ended.code, 4, "{}", ended.said);
        server.wait_saying("the stream ends");
        let ended = server.end();
        assert_eq!((ended.code, deletions(&ended)), (1, 1), "{kind}: {}", ended.said);
    }
}

fn link(network: &Network, args: &[&str]) {
    let mut command = Command::new("ip");
    command.arg("link").args(args);
    assert!(network.server(command).status().expect("ip starts").success());
}

/// A program that only listens, without connected peers, reports the deletion once and exits,
/// because the interface never comes back.
#[test]
fn interface_deleted_under_listener() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let server = listening(&network, kind);
        link(&network, &["delete", "veth0"]);
        let ended = server.end();
        assert_eq!(
            (ended.code, ended.count("error: cannot listen on")),
            (1, 1),
            "{kind}: {}",
            ended.said
        );
        assert_eq!(ended.count("interface `veth0` was deleted"), 1, "{kind}: {}", ended.said);
        assert_eq!(ended.count("is down"), 0, "{kind}: {}", ended.said);
    }
}

/// An interface that is down may come back: the program reports it and continues to listen
/// afterwards. If the interface is deleted while it is down, the program exits.
#[test]
fn interface_down_under_listener() {
    let Some(network) = Network::veth() else { return };
    let mut server = listening(&network, "packet");
    link(&network, &["set", "veth0", "down"]);
    server.wait_saying("listening: interface `veth0` is down: listening again when");
    link(&network, &["set", "veth0", "up"]);
    let mut command = Command::new(uiw());
    command.args(["ping", "10.77.0.11", "-c", "3"]);
    let ended = Running::start(network.client(command)).end();
    assert_eq!(ended.code, 0, "{}{}", ended.said, server.said());
    link(&network, &["set", "veth0", "down"]);
    link(&network, &["delete", "veth0"]);
    let ended = server.end();
    assert_eq!((ended.code, deletions(&ended)), (1, 1), "{}", ended.said);
}

/// The server's interface is down for a moment. Existing connections end, or continue if TCP did
/// not notice; the server continues.
#[test]
fn interface_comes_back() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let server = listening(&network, kind);
        let client = |args: &[&str]| {
            let mut command = Command::new(uiw());
            command.args(args);
            Running::start(network.client(command))
        };
        let measured = client(&["perf", "10.77.0.11", "--size", "64K", "--seconds", "5"]);
        thread::sleep(Duration::from_millis(500));
        for state in ["down", "up"] {
            let mut command = Command::new("ip");
            command.args(["link", "set", "veth0", state]);
            assert!(network.server(command).status().expect("ip starts").success());
            thread::sleep(Duration::from_millis(500));
        }
        let ended = measured.end();
        // An AF_PACKET socket gets an error at once, an AF_XDP socket only when it sends.
        assert!(ended.code == 4 || kind == "xdp" && ended.code == 0, "{kind}: {}", ended.said);
        let ended = client(&["ping", "10.77.0.11", "-c", "3"]).end();
        assert_eq!(ended.code, 0, "{kind}: {}{}", ended.said, server.said());
        let _ = server.stop();
    }
}

/// Interfaces, IP addresses and MAC addresses that a user-space TCP cannot use are refused with a
/// hint.
#[test]
fn addresses_and_interfaces_in_use_refused() {
    let Some(network) = Network::veth() else { return };
    let serve = |spec: &str| {
        let mut command = Command::new(uiw());
        command.args(["--llp", spec, "serve", "--listen", "10.77.0.11:0"]);
        network.server(command)
    };
    let ip = |args: &[&str]| {
        let mut command = Command::new("ip");
        command.args(args);
        assert!(network.server(command).status().expect("ip starts").success());
    };
    ip(&["link", "add", "sweep0", "type", "veth", "peer", "name", "sweep1"]);
    ip(&["tuntap", "add", "tun0", "mode", "tun"]);
    ip(&["link", "set", "tun0", "up"]);
    for kind in ["packet", "xdp"] {
        let of = |rest: &str| format!("{kind}:{rest}");
        fails(
            &mut serve(&of("veth0,ip=10.77.0.1/24")),
            1,
            &["ip=10.77.0.1 is the kernel's", "choose one"],
        );
        fails(&mut serve(&of("tun0,ip=10.77.0.11/24")), 1, &["`tun0` carries no Ethernet"]);
        fails(&mut serve(&of("sweep0,ip=10.77.0.11/24")), 1, &["`sweep0` is down", "ip link set"]);
        let mut server = Running::start(serve(&of("veth0,ip=10.77.0.11/24")));
        server.wait_saying("listening on");
        let taken = format!("ip=10.77.0.11 is that of process {}", server.id());
        fails(&mut serve("packet:veth0,ip=10.77.0.11/24"), 1, &[&taken]);
        if kind == "xdp" {
            fails(
                &mut serve("xdp:veth0,ip=10.77.0.12/24"),
                1,
                &["another XDP program", "one process"],
            );
        }
        let _ = server.stop();
    }
}

/// The peer is in none of our networks, and no gateway is configured.
#[test]
fn peer_without_gateway_refused() {
    let Some(network) = Network::veth() else { return };
    let mut command = Command::new(uiw());
    command.args(["--llp", "packet:veth0,ip=10.77.0.12/24", "ping", "10.78.0.1"]);
    fails(&mut network.client(command), 3, &["no network of ours has 10.78.0.1", "gw="]);
}

/// Starts a server over `kind`.
fn listening(network: &Network, kind: &str) -> Running {
    let mut command = Command::new(uiw());
    let spec = format!("{kind}:veth0,ip=10.77.0.11/24");
    command.args(["--llp", &spec, "serve", "--listen", "10.77.0.11:7174"]);
    let mut server = Running::start(network.server(command));
    server.wait_saying("listening on");
    server
}

/// Starts a server and a client over `kind`; `args` is the subcommand of `uiw` that the client
/// runs.
fn connected(network: &Network, kind: &str, args: &[&str]) -> (Running, Running) {
    let server = listening(network, kind);
    let mut command = Command::new(uiw());
    command.args(["--llp", &format!("{kind}:veth0,ip=10.77.0.12/24")]).args(args);
    (server, Running::start(network.client(command)))
}

/// On an idle connection neither end spins.
#[test]
fn idle_connection_uses_no_processor() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let (server, mut client) =
            connected(&network, kind, &["ping", "10.77.0.11", "-i", "30", "-c", "3"]);
        client.wait_saying("round 1");
        // Wait for the last acknowledgement and for anything else that is driven by a timeout.
        thread::sleep(Duration::from_millis(500));
        let before = [server.ticks(), client.ticks()];
        thread::sleep(Duration::from_secs(2));
        let used = [server.ticks() - before[0], client.ticks() - before[1]];
        // The limit is 10 of 200 ticks; a spinning end would use most of them even on a busy
        // machine.
        assert!(used.iter().all(|ticks| *ticks <= 10), "{kind}: {used:?} ticks");
        let _ = client.stop();
        let _ = server.stop();
    }
}

/// A listener to which no peer has connected sleeps.
#[test]
fn idle_listener_uses_no_processor() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let server = listening(&network, kind);
        thread::sleep(Duration::from_millis(500));
        let before = server.ticks();
        thread::sleep(Duration::from_secs(2));
        let used = server.ticks() - before;
        assert!(used <= 10, "{kind}: {used} ticks of 200");
        let _ = server.stop();
    }
}

/// While the receiver is stopped, rings and buffers fill and frames are lost. Afterwards all
/// connections continue.
#[test]
fn full_rings_cost_only_time() {
    for kind in ["packet", "xdp"] {
        let Some(network) = Network::veth() else { return };
        let args = [
            "perf",
            "10.77.0.11",
            "--size",
            "20000",
            "--validate",
            "--connections",
            "8",
            "--seconds",
            "4",
        ];
        let (server, client) = connected(&network, kind, &args);
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(500));
            server.signal(Signal::STOP);
            thread::sleep(Duration::from_millis(700));
            server.signal(Signal::CONT);
        }
        let ended = client.end();
        assert_eq!(ended.code, 0, "{kind}: {}{}", ended.said, server.said());
        let _ = server.stop();
    }
}

/// Python program that detaches the XDP program of process `argv[1]` through a copy of its file
/// descriptor, as an administrator would do with `bpftool link detach`.
const DETACH: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
folder = f'/proc/{pid}/fd'
links = [int(fd) for fd in os.listdir(folder) if os.readlink(f'{folder}/{fd}') == 'anon_inode:bpf_link']
assert len(links) == 1, links
copy = libc.syscall(438, os.pidfd_open(pid), links[0], 0)
assert copy >= 0, os.strerror(ctypes.get_errno())
attr = ctypes.create_string_buffer(struct.pack('I', copy), 128)
assert libc.syscall(321, 34, attr, 4) == 0, os.strerror(ctypes.get_errno())
";

/// After the detachment, frames go to the kernel and no event reports it, so the stack has to check
/// periodically.
#[test]
fn detached_xdp_program_ends_connections() {
    if !cfg!(target_arch = "x86_64") {
        return uiw_interop::skip("the number of the bpf system call");
    }
    let Some(python) = uiw_interop::require("python3") else { return };
    let Some(network) = Network::veth() else { return };
    let (server, mut client) =
        connected(&network, "xdp", &["ping", "10.77.0.11", "-i", "3", "-c", "60"]);
    client.wait_saying("round 1");
    let mut command = Command::new(python);
    command.args(["-c", DETACH, &client.id().to_string()]);
    Running::start(network.client(command)).end().well();
    let ended = client.end();
    assert_eq!((ended.code, ended.count("error: ")), (4, 1), "{}", ended.said);
    let _ = server.stop();
}
