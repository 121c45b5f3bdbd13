//! Runs `uiw doctor` in network namespaces, as root and without capabilities, and compares its
//! report with the errors of the stacks themselves.

use serde_json::Value;
use std::process::Command;
use uiw_interop::stock::{Network, Running, uiw};

/// Runs `uiw doctor` and returns its report and exit code.
fn report(mut command: Command, network: &Network) -> (Value, i32) {
    command.args(["doctor", "--json", "--need", "xdp", "--bdp", "1M"]);
    let ended = Running::start(network.server(command)).end();
    let object = ended.said.lines().find(|line| line.starts_with('{')).expect("an object");
    (serde_json::from_str(object).expect("JSON"), ended.code)
}

fn check<'a>(report: &'a Value, name: &str, of: Option<&str>) -> &'a Value {
    let found = report["checks"].as_array().expect("checks").iter();
    let mut found = found.filter(|check| check["check"] == name && check["of"].as_str() == of);
    found.next().unwrap_or_else(|| panic!("no {name} of {of:?} in {report}"))
}

/// Returns a `uiw` command without the capabilities that `drop`, arguments of setpriv, removes.
fn without(drop: &[&str]) -> Option<Command> {
    let mut command = Command::new(uiw_interop::require("setpriv")?);
    command.args(drop).arg(uiw());
    Some(command)
}

const UNPRIVILEGED: [&str; 4] =
    ["--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"];

#[test]
fn doctor_reports_namespace() {
    let Some(network) = Network::veth() else { return };
    let (found, code) = report(Command::new(uiw()), &network);
    assert_eq!((code, found["bdp"].as_u64()), (0, Some(1 << 20)));
    for name in ["kernel TCP", "AF_PACKET", "AF_XDP", "capabilities"] {
        assert_eq!(check(&found, name, None)["state"], "ok", "{found}");
    }
    let veth = check(&found, "interface", Some("veth0"));
    assert_eq!((veth["details"]["mtu"].as_u64(), veth["state"].as_str()), (Some(1500), Some("ok")));
    // Kernels before 6.3 report only "generic".
    let modes = check(&found, "AF_XDP modes", Some("veth0"));
    assert!(modes["says"].as_str().is_some_and(|says| says.contains("generic")), "{modes}");
    let buffers = check(&found, "receive buffers", None);
    assert_eq!(buffers["details"]["wanted"].as_u64(), Some(2 << 20), "{buffers}");
}

/// On a path that drops long packets, the kernel's TCP recovers only if it probes the path MTU. The
/// report says whether it does, and what to change if it does not.
#[test]
fn probing_of_the_path_is_reported() {
    let Some(network) = Network::veth() else { return };
    for (value, state) in [("0", "limited"), ("1", "ok"), ("2", "ok")] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo {value} > /proc/sys/net/ipv4/tcp_mtu_probing")]);
        Running::start(network.server(command)).end().well();
        let (found, _) = report(Command::new(uiw()), &network);
        let probing = check(&found, "path MTU probing", None);
        assert_eq!(probing["details"]["tcp_mtu_probing"], value, "{probing}");
        assert_eq!(probing["state"], state, "{probing}");
        let has_fix = probing["fix"].as_str().is_some_and(|fix| fix.contains("tcp_mtu_probing=1"));
        assert_eq!(has_fix, state == "limited", "{probing}");
    }
}

#[test]
fn doctor_reports_missing_capabilities() {
    let Some(network) = Network::veth() else { return };
    let Some(command) = without(&UNPRIVILEGED) else { return };
    let (found, code) = report(command, &network);
    assert_eq!(code, 1, "AF_XDP was needed: {found}");
    assert_eq!(check(&found, "kernel TCP", None)["state"], "ok");
    for (name, missing) in
        [("AF_PACKET", "CAP_NET_RAW is missing"), ("AF_XDP", "CAP_BPF are missing")]
    {
        let check = check(&found, name, None);
        assert_eq!(check["state"], "no", "{check}");
        assert!(check["says"].as_str().is_some_and(|says| says.ends_with(missing)), "{check}");
        assert!(check["fix"].as_str().is_some_and(|fix| fix.contains("root")), "{check}");
    }
}

/// The stack's own error names the missing capability and no other.
#[test]
fn missing_capability_named() {
    let Some(network) = Network::veth() else { return };
    let Some(mut command) = without(&["--bounding-set=-net_admin,-sys_admin", "--inh-caps=-all"])
    else {
        return;
    };
    command.args(["--llp", "xdp:veth0,ip=10.77.0.11/24", "serve", "--listen", "10.77.0.11:0"]);
    let ended = Running::start(network.server(command)).end();
    assert_eq!(ended.code, 1, "{}", ended.said);
    assert_eq!(ended.said.lines().count(), 2, "{}", ended.said);
    assert!(ended.said.contains("CAP_NET_ADMIN is missing\nhint: run as root"), "{}", ended.said);
}

#[test]
fn locked_memory_limit_named() {
    let Some(network) = Network::veth() else { return };
    let Some(prlimit) = uiw_interop::require("prlimit") else { return };
    let limited = |mut command: Command| {
        let mut inside = Command::new(&prlimit);
        inside.arg("--memlock=65536").arg(command.get_program()).args(command.get_args());
        command = inside;
        command
    };
    let Some(command) = without(&["--bounding-set=-ipc_lock", "--inh-caps=-all"]) else { return };
    let (found, code) = report(limited(command), &network);
    assert_eq!(code, 0, "{found}");
    let memory = check(&found, "locked memory", None);
    assert_eq!(
        (memory["state"].as_str(), memory["details"]["limit"].as_u64()),
        (Some("limited"), Some(65_536))
    );
    assert!(memory["fix"].as_str().is_some_and(|fix| fix.contains("ulimit -l")), "{memory}");
    let Some(mut command) = without(&["--bounding-set=-ipc_lock", "--inh-caps=-all"]) else {
        return;
    };
    command.args(["--llp", "xdp:veth0,ip=10.77.0.11/24", "serve", "--listen", "10.77.0.11:0"]);
    let ended = Running::start(network.server(limited(command))).end();
    assert_eq!(ended.code, 1, "{}", ended.said);
    assert_eq!(ended.said.lines().count(), 2, "{}", ended.said);
    assert!(
        ended.said.contains("limit of locked memory") && ended.said.contains("ulimit -l"),
        "{}",
        ended.said
    );
}

#[test]
fn unavailable_checks_reported() {
    for (args, says) in [
        (&["--need", "quic"][..], "quic"),
        (&["--bdp", "x"], "bytes"),
        (&["--rtt", "5"], "5ms"),
        (&["--bdp", "1M", "--rtt", "5ms"], "--rtt"),
    ] {
        let output = Command::new(uiw()).arg("doctor").args(args).output().expect("uiw starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.lines().count() == 2 && said.contains(says), "{said}");
    }
}
