//! Checks of the network stacks, limits and interfaces of this machine.

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

/// Name of the check of the kernel's TCP.
pub(super) const TCP: &str = "kernel TCP";
/// Name of the check of the kernel's Multipath TCP.
pub(super) const MPTCP: &str = "kernel MPTCP";
/// Name of the check of AF_PACKET.
pub(super) const PACKET: &str = "AF_PACKET";
/// Name of the check of AF_XDP.
pub(super) const XDP: &str = "AF_XDP";

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckState {
    Ok,
    Limited,
    No,
}

impl CheckState {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::No => "no",
        }
    }
}

/// A completed check.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// Interface or peer that was checked, if the check is about one.
    pub(super) subject: Option<String>,
    pub(super) state: CheckState,
    pub(super) says: String,
    pub(super) fix: Option<String>,
    /// The result for programs, in JSON.
    pub(super) details: Value,
}

impl Check {
    pub(super) fn ok(name: &'static str, says: impl Into<String>) -> Self {
        Self {
            name,
            subject: None,
            state: CheckState::Ok,
            says: says.into(),
            fix: None,
            details: Value::Null,
        }
    }

    pub(super) fn with_details(self, details: Value) -> Self {
        Self { details, ..self }
    }

    pub(super) fn with_subject(self, subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..self }
    }

    pub(super) fn with_problem(self, state: CheckState, fix: impl Into<String>) -> Self {
        Self { state, fix: Some(fix.into()), ..self }
    }
}

/// Runs all checks, for paths with `bdp` bytes in flight. `is_bpf_fatal` means that the kernel
/// would kill this process for calling bpf(2).
pub(super) fn run_checks(bdp: u64, is_bpf_fatal: bool) -> Vec<Check> {
    let mut found = vec![
        check_kernel_tcp(),
        check_multipath(),
        check_capabilities(),
        check_packet(),
        check_xdp(is_bpf_fatal),
    ];
    let interfaces = Interface::all().unwrap_or_default();
    found.extend([
        check_locked_memory(&interfaces),
        check_buffer("receive buffers", "tcp_rmem", bdp),
        check_buffer("send buffers", "tcp_wmem", bdp),
        check_congestion(),
        check_mtu_probing(),
    ]);
    for interface in &interfaces {
        found.push(check_interface(interface));
        found.push(check_xdp_modes(interface));
    }
    found
}

fn check_kernel_tcp() -> Check {
    let connected = || -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        TcpStream::connect(listener.local_addr()?).map(drop)
    };
    match connected() {
        Ok(()) => Check::ok(TCP, "this machine can connect to itself"),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable
            ) =>
        {
            Check::ok(TCP, format!("this machine cannot connect to itself: {error}"))
                .with_problem(CheckState::Limited, "ip link set lo up")
        }
        Err(error) => Check::ok(TCP, error.to_string())
            .with_problem(CheckState::No, "look at the limit of open files and at firewalls"),
    }
}

/// Checks the kernel's Multipath TCP. A single path is not a defect, because only the administrator
/// can add another one.
fn check_multipath() -> Check {
    match uiw_llp::tcp::TcpStack::multipath() {
        Ok(_) => {
            Check::ok(MPTCP, "Multipath TCP: --llp mptcp, on the paths of `ip mptcp endpoint`")
        }
        Err(error) => Check::ok(MPTCP, error.to_string()).with_problem(
            CheckState::No,
            "sysctl -w net.mptcp.enabled=1, or use a kernel with CONFIG_MPTCP",
        ),
    }
}

fn check_capabilities() -> Check {
    let all = [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf, Capability::IpcLock];
    let held: Vec<_> = all.iter().filter(|one| one.is_held()).map(ToString::to_string).collect();
    let says = if held.is_empty() { "none".to_owned() } else { held.join(" ") };
    // A process in a user namespace has capabilities that do not count for the network of the
    // system.
    let of_namespace = held.len() == all.len()
        && PacketLink::permitted().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let says = if of_namespace { format!("{says}, of a user namespace only") } else { says };
    let check = Check::ok("capabilities", says).with_details(json!({ "held": held }));
    if of_namespace {
        return check.with_problem(CheckState::Limited, refusal(&Capability::PACKET).1);
    }
    match Capability::missing(&Capability::XDP) {
        None => check,
        Some(missing) => check.with_problem(
            CheckState::Limited,
            format!("for smoltcp run as root, or grant {missing}"),
        ),
    }
}

fn check_packet() -> Check {
    match PacketLink::permitted() {
        Ok(()) => Check::ok(
            PACKET,
            "smoltcp on any interface that is up: --llp packet:IFACE,ip=ADDR/PREFIX",
        ),
        Err(error) => permission_check(PACKET, &error, &Capability::PACKET),
    }
}

fn check_xdp(is_bpf_fatal: bool) -> Check {
    if is_bpf_fatal {
        return Check::ok(XDP, "a seccomp filter ends a process that calls bpf").with_problem(
            CheckState::No,
            "permit it (SystemCallFilter=@system-service bpf, with CAP_BPF)",
        );
    }
    match XdpLink::permitted() {
        Ok(()) => {
            Check::ok(XDP, "programs and sockets are allowed: --llp xdp:IFACE,ip=ADDR/PREFIX")
        }
        Err(error) => permission_check(XDP, &error, &Capability::XDP),
    }
}

fn permission_check(name: &'static str, error: &io::Error, needed: &[Capability]) -> Check {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            let (why, fix) = refusal(needed);
            Check::ok(name, why).with_problem(CheckState::No, fix)
        }
        _ => Check::ok(name, error.to_string())
            .with_problem(CheckState::No, format!("use a kernel with {name}")),
    }
}

/// Checks the limit of locked memory, against which the frames of AF_XDP count unless the process
/// has CAP_IPC_LOCK.
fn check_locked_memory(interfaces: &[Interface]) -> Check {
    const NAME: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    let need = |i: &Interface| XdpLink::frame_memory(&i.name).ok().map(|bytes| bytes as u64);
    let most = interfaces.iter().filter_map(need).max().unwrap_or(0);
    let details = json!({ "limit": limit, "frames": most });
    let frames = format!("frames of AF_XDP take up to {} bytes an interface", grouped(most));
    let check = match limit {
        _ if Capability::IpcLock.is_held() => {
            Check::ok(NAME, format!("no limit by CAP_IPC_LOCK; {frames}"))
        }
        None => Check::ok(NAME, format!("no limit; {frames}")),
        Some(limit) => {
            let check = Check::ok(NAME, format!("{} bytes; {frames}", grouped(limit)));
            let fix = format!("ulimit -l {} (limits.conf: memlock)", most.div_ceil(1024));
            if limit >= most { check } else { check.with_problem(CheckState::Limited, fix) }
        }
    };
    check.with_details(details)
}

/// Checks the largest buffer that the kernel's TCP may use. About half of a buffer can be used as
/// window (`tcp_adv_win_scale`).
fn check_buffer(name: &'static str, knob: &str, bdp: u64) -> Check {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{knob}")).unwrap_or_default();
    let values: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [least, usual, most] = values[..] else {
        return Check::ok(name, format!("the kernel does not report {knob} here")).with_problem(
            CheckState::Limited,
            "run it in the first network namespace, or where /proc is mounted",
        );
    };
    let wanted = 2 * bdp;
    let says = format!(
        "up to {} bytes; a path with {} in flight needs {}",
        grouped(most),
        grouped(bdp),
        grouped(wanted)
    );
    let details = json!({ "most": most, "bdp": bdp, "wanted": wanted });
    let check = Check::ok(name, says).with_details(details);
    if most >= wanted {
        return check;
    }
    check.with_problem(
        CheckState::Limited,
        format!(
            "sysctl -w net.ipv4.{knob}=\"{least} {usual} {wanted}\"; with smoltcp buffer={bdp}"
        ),
    )
}

fn check_congestion() -> Check {
    const NAME: &str = "congestion control";
    let read =
        |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let is_free = Capability::NetAdmin.is_held();
    let available = read(if is_free {
        "tcp_available_congestion_control"
    } else {
        "tcp_allowed_congestion_control"
    });
    let available: Vec<_> = available.split_whitespace().collect();
    let now = read("tcp_congestion_control");
    let now = now.trim();
    let check =
        Check::ok(NAME, format!("{now} of {}; smoltcp has cubic and reno", available.join(" ")))
            .with_details(
                json!({ "now": now, "available": available, "smoltcp": ["cubic", "reno"] }),
            );
    if available.contains(&"bbr") {
        check
    } else if !is_free
        && read("tcp_available_congestion_control").split_whitespace().any(|name| name == "bbr")
    {
        let fix = format!(
            "as root: sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{} bbr\"",
            available.join(" ")
        );
        check.with_problem(CheckState::Limited, fix)
    } else {
        check.with_problem(
            CheckState::Limited,
            "for lossy paths modprobe tcp_bbr, then --congestion bbr",
        )
    }
}

/// Checks whether the kernel's TCP probes for the path MTU. Without probing it cannot find the MTU
/// of a path that drops long packets without an ICMP message (RFC 4821).
fn check_mtu_probing() -> Check {
    const NAME: &str = "path MTU probing";
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_mtu_probing").unwrap_or_default();
    let check =
        |says: &str| Check::ok(NAME, says).with_details(json!({ "tcp_mtu_probing": text.trim() }));
    match text.trim() {
        "0" => {
            let fix = "sysctl -w net.ipv4.tcp_mtu_probing=1; or --mss 1220 on such a path";
            check("off: on a path that loses long packets and does not report it, connections stop")
                .with_problem(CheckState::Limited, fix)
        }
        "1" => check("on, when packets are lost, as smoltcp has it"),
        "2" => check("on, from the beginning"),
        _ => check("the kernel does not report tcp_mtu_probing here")
            .with_problem(CheckState::Limited, "run it where /proc is mounted"),
    }
}

fn check_interface(interface: &Interface) -> Check {
    let Interface { name, mtu, is_up, .. } = interface;
    let check =
        Check::ok("interface", format!("MTU {mtu}, {}", if *is_up { "up" } else { "down" }))
            .with_subject(name)
            .with_details(json!({ "mtu": mtu, "up": is_up }));
    // The interface may be down on purpose, so this is not a problem. The text says that it is
    // down.
    if !is_up || *mtu >= 1280 {
        return check;
    }
    let fix = format!("ip link set {name} mtu 1500: IPv6 needs 1280");
    check.with_problem(CheckState::Limited, fix)
}

/// Checks which modes of AF_XDP an interface supports.
fn check_xdp_modes(interface: &Interface) -> Check {
    const NAME: &str = "AF_XDP modes";
    let check = match XdpFeatures::of(interface.index) {
        Ok(features) => {
            let mut modes = vec!["generic"];
            modes.splice(0..0, features.native.then_some("native"));
            modes.splice(0..0, features.zero_copy.then_some("zerocopy"));
            let says = modes.join(", ");
            let details = json!({ "modes": modes, "several_pieces": features.several_pieces });
            // The largest frame in one piece depends on the driver. 3506 is the MTU for which a
            // frame fits into a page.
            if features.native && !features.several_pieces && interface.mtu > 3506 {
                let says = format!("{says}; native only up to an MTU of some 3,500");
                let fix = format!("ip link set {} mtu 3498, or mode=generic", interface.name);
                Check::ok(NAME, says).with_details(details).with_problem(CheckState::Limited, fix)
            } else {
                Check::ok(NAME, says).with_details(details)
            }
        }
        Err(error) => {
            let says = match error.kind() {
                ErrorKind::Unsupported => {
                    "generic; the kernel (before 6.3) does not report others".to_owned()
                }
                _ => format!("generic; the kernel does not report others: {error}"),
            };
            Check::ok(NAME, says).with_problem(CheckState::Limited, "try mode=native")
        }
    };
    check.with_subject(&interface.name)
}
