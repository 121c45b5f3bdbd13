//! The checks.

use crate::shared::text::grouped;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use uiw_llp::Interface;
use uiw_smol::capability::{Capability, refusal};
use uiw_smol::packet::PacketLink;
use uiw_smol::xdp::{XdpFeatures, XdpLink};

/// The check of the kernel's TCP.
pub(super) const TCP: &str = "kernel TCP";
/// The check of the kernel's Multipath TCP.
pub(super) const MPTCP: &str = "kernel MPTCP";
/// The check of AF_PACKET.
pub(super) const PACKET: &str = "AF_PACKET";
/// The check of AF_XDP.
pub(super) const XDP: &str = "AF_XDP";

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    Limited,
    No,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::No => "no",
        }
    }
}

/// One thing that was looked at.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// The interface or the peer, where it is one's.
    pub(super) of: Option<String>,
    pub(super) state: State,
    pub(super) says: String,
    pub(super) fix: Option<String>,
    /// The same for programs.
    pub(super) details: Value,
}

impl Check {
    pub(super) fn ok(name: &'static str, says: impl Into<String>) -> Self {
        Self { name, of: None, state: State::Ok, says: says.into(), fix: None, details: Value::Null }
    }

    pub(super) fn with(self, details: Value) -> Self {
        Self { details, ..self }
    }

    pub(super) fn of(self, interface: &str) -> Self {
        Self { of: Some(interface.to_owned()), ..self }
    }

    pub(super) fn not(self, state: State, fix: impl Into<String>) -> Self {
        Self { state, fix: Some(fix.into()), ..self }
    }
}

/// Everything, for paths that hold `bdp` bytes. `is_bpf_fatal`: this process would be ended for
/// asking.
pub(super) fn all(bdp: u64, is_bpf_fatal: bool) -> Vec<Check> {
    let mut found = vec![kernel(), multipath(), capabilities(), packet(), xdp(is_bpf_fatal)];
    let interfaces = Interface::all().unwrap_or_default();
    found.extend(locked(&interfaces));
    found.extend([buffer("receive buffers", "tcp_rmem", bdp), buffer("send buffers", "tcp_wmem", bdp)]);
    found.extend([congestion(), probing()]);
    for interface in &interfaces {
        found.push(link(interface));
        found.push(modes(interface));
    }
    found
}

fn kernel() -> Check {
    let connected = || -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        TcpStream::connect(listener.local_addr()?).map(drop)
    };
    match connected() {
        Ok(()) => Check::ok(TCP, "a connection of this machine with itself stands"),
        Err(error) if matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable) => {
            Check::ok(TCP, format!("not with this machine itself: {error}"))
                .not(State::Limited, "ip link set lo up")
        }
        Err(error) => Check::ok(TCP, error.to_string())
            .not(State::No, "look at the limit of open files and at firewalls"),
    }
}

/// Multipath TCP of the kernel. Another path is the administrator's to add, so one alone is no
/// defect.
fn multipath() -> Check {
    match uiw_llp::tcp::TcpStack::multipath() {
        Ok(_) => Check::ok(MPTCP, "Multipath TCP: --llp mptcp, on the paths of `ip mptcp endpoint`"),
        Err(error) => Check::ok(MPTCP, error.to_string())
            .not(State::No, "sysctl -w net.mptcp.enabled=1, or use a kernel with CONFIG_MPTCP"),
    }
}

fn capabilities() -> Check {
    let all = [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf, Capability::IpcLock];
    let held: Vec<_> = all.iter().filter(|one| one.is_held()).map(ToString::to_string).collect();
    let says = if held.is_empty() { "none".to_owned() } else { held.join(" ") };
    // In a user namespace a process has capabilities that the system's own network does not accept.
    let of_namespace = held.len() == all.len()
        && PacketLink::permitted().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let says = if of_namespace { format!("{says}, of a user namespace only") } else { says };
    let check = Check::ok("capabilities", says).with(json!({ "held": held }));
    if of_namespace {
        return check.not(State::Limited, refusal(&Capability::PACKET).1);
    }
    match Capability::missing(&Capability::XDP) {
        None => check,
        Some(missing) => check.not(State::Limited, format!("for smoltcp run as root, or grant {missing}")),
    }
}

fn packet() -> Check {
    match PacketLink::permitted() {
        Ok(()) => Check::ok(PACKET, "smoltcp on any interface that is up: --llp packet:IFACE,ip=ADDR/PREFIX"),
        Err(error) => refused(PACKET, &error, &Capability::PACKET),
    }
}

fn xdp(is_bpf_fatal: bool) -> Check {
    if is_bpf_fatal {
        return Check::ok(XDP, "a seccomp filter ends a process that calls bpf")
            .not(State::No, "permit it (SystemCallFilter=@system-service bpf, with CAP_BPF)");
    }
    match XdpLink::permitted() {
        Ok(()) => Check::ok(XDP, "programs and sockets are allowed: --llp xdp:IFACE,ip=ADDR/PREFIX"),
        Err(error) => refused(XDP, &error, &Capability::XDP),
    }
}

fn refused(name: &'static str, error: &io::Error, needed: &[Capability]) -> Check {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            let (why, fix) = refusal(needed);
            Check::ok(name, why).not(State::No, fix)
        }
        _ => Check::ok(name, error.to_string()).not(State::No, format!("use a kernel with {name}")),
    }
}

/// Memory for the frames of AF_XDP counts against a limit, unless the process may lock what it
/// likes.
fn locked(interfaces: &[Interface]) -> Vec<Check> {
    const NAME: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    let need = |i: &Interface| XdpLink::frame_memory(&i.name).ok().map(|bytes| bytes as u64);
    let most = interfaces.iter().filter_map(need).max().unwrap_or(0);
    let details = json!({ "limit": limit, "frames": most });
    let frames = format!("frames of AF_XDP take up to {} bytes an interface", grouped(most));
    let check = match limit {
        _ if Capability::IpcLock.is_held() => Check::ok(NAME, format!("no limit by CAP_IPC_LOCK; {frames}")),
        None => Check::ok(NAME, format!("no limit; {frames}")),
        Some(limit) if limit >= most => Check::ok(NAME, format!("{} bytes; {frames}", grouped(limit))),
        Some(limit) => Check::ok(NAME, format!("{} bytes; {frames}", grouped(limit)))
            .not(State::Limited, format!("ulimit -l {} (limits.conf: memlock)", most.div_ceil(1024))),
    };
    vec![check.with(details)]
}

/// The largest buffer that the kernel's TCP grows to. About half of it is window
/// (`tcp_adv_win_scale`).
fn buffer(name: &'static str, knob: &str, bdp: u64) -> Check {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{knob}")).unwrap_or_default();
    let values: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [least, usual, most] = values[..] else {
        return Check::ok(name, format!("the kernel does not report {knob} here"))
            .not(State::Limited, "run it in the first network namespace, or where /proc is mounted");
    };
    let wanted = 2 * bdp;
    let says = format!(
        "up to {} bytes; a path with {} in flight needs {}",
        grouped(most),
        grouped(bdp),
        grouped(wanted)
    );
    let details = json!({ "most": most, "bdp": bdp, "wanted": wanted });
    let check = Check::ok(name, says).with(details);
    if most >= wanted {
        return check;
    }
    check.not(
        State::Limited,
        format!("sysctl -w net.ipv4.{knob}=\"{least} {usual} {wanted}\"; with smoltcp buffer={bdp}"),
    )
}

fn congestion() -> Check {
    const NAME: &str = "congestion control";
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let is_free = Capability::NetAdmin.is_held();
    let available =
        read(if is_free { "tcp_available_congestion_control" } else { "tcp_allowed_congestion_control" });
    let available: Vec<_> = available.split_whitespace().collect();
    let now = read("tcp_congestion_control");
    let now = now.trim();
    let check = Check::ok(NAME, format!("{now} of {}; smoltcp has cubic and reno", available.join(" ")))
        .with(json!({ "now": now, "available": available, "smoltcp": ["cubic", "reno"] }));
    if available.contains(&"bbr") {
        check
    } else if !is_free
        && read("tcp_available_congestion_control").split_whitespace().any(|name| name == "bbr")
    {
        let fix = format!(
            "as root: sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{} bbr\"",
            available.join(" ")
        );
        check.not(State::Limited, fix)
    } else {
        check.not(State::Limited, "for lossy paths modprobe tcp_bbr, then --congestion bbr")
    }
}

/// Returns whether the kernel's TCP finds the size of packets that pass where no message says that
/// longer ones are lost (RFC 4821).
fn probing() -> Check {
    const NAME: &str = "path MTU probing";
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_mtu_probing").unwrap_or_default();
    let check = |says: &str| Check::ok(NAME, says).with(json!({ "tcp_mtu_probing": text.trim() }));
    match text.trim() {
        "0" => {
            let fix = "sysctl -w net.ipv4.tcp_mtu_probing=1; or --mss 1220 on such a path";
            check("off: on a path that loses long packets and does not report it, connections stop")
                .not(State::Limited, fix)
        }
        "1" => check("on, when packets are lost, as smoltcp has it"),
        "2" => check("on, from the beginning"),
        _ => check("the kernel does not report tcp_mtu_probing here")
            .not(State::Limited, "run it where /proc is mounted"),
    }
}

fn link(interface: &Interface) -> Check {
    let Interface { name, mtu, is_up, .. } = interface;
    let check = Check::ok("interface", format!("MTU {mtu}, {}", if *is_up { "up" } else { "down" }))
        .of(name)
        .with(json!({ "mtu": mtu, "up": is_up }));
    match (is_up, mtu) {
        // Nobody may want it: whoever does sees that it is down.
        (false, _) => check,
        (true, ..1280) => check.not(State::Limited, format!("ip link set {name} mtu 1500: IPv6 needs 1280")),
        (true, _) => check,
    }
}

/// How AF_XDP would run on an interface.
fn modes(interface: &Interface) -> Check {
    const NAME: &str = "AF_XDP modes";
    let of = |check: Check| check.of(&interface.name);
    match XdpFeatures::of(interface.index) {
        Ok(features) => {
            let mut modes = vec!["generic"];
            modes.splice(0..0, features.native.then_some("native"));
            modes.splice(0..0, features.zero_copy.then_some("zerocopy"));
            let says = modes.join(", ");
            let details = json!({ "modes": modes, "several_pieces": features.several_pieces });
            // What the driver takes in one piece is its own; 3506 is what a page leaves.
            if features.native && !features.several_pieces && interface.mtu > 3506 {
                return of(Check::ok(NAME, format!("{says}; native only up to an MTU of some 3,500"))
                    .with(details)
                    .not(
                        State::Limited,
                        format!("ip link set {} mtu 3498, or mode=generic", interface.name),
                    ));
            }
            of(Check::ok(NAME, says).with(details))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let check = Check::ok(NAME, "generic; the kernel (before 6.3) does not report others");
            of(check.not(State::Limited, "try mode=native"))
        }
        Err(error) => of(Check::ok(NAME, format!("generic; the kernel does not report others: {error}"))
            .not(State::Limited, "try mode=native")),
    }
}
