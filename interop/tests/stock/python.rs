//! Runs the tests of rdma-core as shipped by Debian: those of the connection manager in two
//! personas, and all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User};

/// Directory in which the package rdma-core installs its tests.
const PACKAGED: &str = "/usr/share/doc/rdma-core/tests";

/// Unpacks a copy of the tests below the directory of the libraries.
fn unpacked(libraries: &Libraries) -> Option<PathBuf> {
    if !Path::new(PACKAGED).is_dir()
        || !Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir()
    {
        uiw_interop::skip("rdma-core's Python tests (rdma-core, python3-pyverbs)");
        return None;
    }
    let tests = libraries.folder().join("tests");
    fs::create_dir(&tests).expect("a folder");
    for file in fs::read_dir(PACKAGED).expect("the package's folder") {
        let file = file.expect("an entry").path();
        let name = file.file_name().expect("a name");
        fs::copy(&file, tests.join(name)).expect("a copy");
        if file.extension().is_some_and(|ending| ending == "gz") {
            let unpacked =
                Command::new("gzip").arg("-d").arg(tests.join(name)).status().expect("gzip");
            assert!(unpacked.success());
        }
    }
    Some(tests)
}

/// Runs a script of `folder` with `persona`, as root in a mount namespace whose sysfs names the
/// device's interface. Without root, returns `None` and counts the test as skipped.
#[track_caller]
fn python(
    libraries: &Libraries,
    script_file: &Path,
    persona: &str,
    args: &[String],
) -> Option<ProcessEnd> {
    uiw_interop::require("unshare")?;
    let probe = Command::new("unshare").args(["-mn", "true"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        uiw_interop::skip("root, for a mount namespace");
        return None;
    }
    // The tests use a fixed port, so they get a network namespace of their own.
    let script = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/uiw_test0/device/net/test0 \
                  && ip link set lo up && ip link add test0 type veth peer name test1 \
                  && ip addr add 10.78.0.1/24 dev test0 && ip link set test0 up && ip link set test1 up && exec /usr/bin/python3 \"$@\"";
    let mut command = libraries.command(User::Same, "unshare");
    command.args(["-mn", "sh", "-c", script, "sh"]).arg(script_file);
    command.args(["-v", "--dev", "uiw_test0"]).args(args);
    command.env("UIW_PERSONA", persona).env("PYTHONDONTWRITEBYTECODE", "1");
    // The tests examine the target as soon as a Write has completed, but on iWARP the completion
    // only says that the data was sent.
    command.env("UIW_ACK", "on");
    Some(Running::start(command).end())
}

/// Runs the test cases `tests` of the rdma_cm module.
fn run(persona: &str, tests: &[&str]) {
    let libraries = Libraries::get();
    let Some(folder) = unpacked(&libraries) else { return };
    let names: Vec<_> =
        tests.iter().map(|test| format!("test_rdmacm.CMTestCase.test_rdmacm_{test}")).collect();
    let Some(ended) = python(&libraries, &folder.join("run_tests.py"), persona, &names) else {
        return;
    };
    ended.well();
    assert_eq!(ended.count("... ok"), tests.len(), "{ended:?}");
}

/// Tests of the suite that an iWARP device supports.
const IWARP: &[&str] =
    &["async_read", "async_reject_traffic", "async_traffic", "async_write", "sync_traffic"];

#[test]
fn rdmacm_tests_pass_on_iwarp() {
    run("iwarp", IWARP);
}

#[test]
fn rdmacm_tests_pass_on_roce() {
    // The last test waits for CONNECT_RESPONSE, which does not exist on iWARP.
    run("roce", &[IWARP, &["async_traffic_external_qp"]].concat());
}

/// Python program that runs all tests and prints why tests are skipped.
const ALL: &str = r#"
import sys, unittest
from importlib.machinery import SourceFileLoader
from args_parser import parser
import os
here = os.path.dirname(os.path.abspath(__file__))
tests = SourceFileLoader("tests", os.path.join(here, "__init__.py")).load_module()
sys.argv = [sys.argv[0]] + [word for word in sys.argv[1:] if word != "-v"]
parser.parse_args()
chosen = unittest.defaultTestLoader.loadTestsFromModule(tests)
result = unittest.TextTestRunner(verbosity=2).run(chosen)
for test, why in result.skipped:
    print("skipped:", why)
sys.exit(0 if result.wasSuccessful() else 1)
"#;

/// Permitted reasons for skipping a test: other kinds of queue pairs, device memory, on-demand
/// paging of datagrams, and features of other vendors' adapters.
const MAY_SKIP: &[&str] = &[
    "Raw Packet QP",
    "RAW QP",
    "Create QP type",
    "XRCD",
    "Extended QP is not supported",
    "Extended CQ is not supported",
    "ODP",
    "huge pages",
    "Device memory",
    "dmabuf",
    "cuda",
    "MLX5",
    "mlx5",
    "EFA",
    "timestamp to nanoseconds",
    "Importing a device",
    "root on Ethernet",
    "All gid indices populated",
    "No supported port is up",
    "PCI device",
    "dri",
    "Link layer",
];

#[test]
fn tests_pass_or_name_missing_features() {
    let libraries = Libraries::get();
    let Some(folder) = unpacked(&libraries) else { return };
    let script = folder.join("all.py");
    fs::write(&script, ALL).expect("a script");
    let Some(ended) = python(&libraries, &script, "roce", &[]) else { return };
    ended.well();
    assert!(ended.count("... ok") >= 110, "{ended:?}");
    for (part, least) in [
        ("test_mr_rereg", 4),
        ("_mw_type", 5),
        ("test_atomic_", 7),
        ("test_qp_ex_rc_", 9),
        ("traffic_cq_ex", 1),
        ("srq_excq_rc_traffic", 1),
        ("_uc_qp", 5),
        ("_ud_", 9),
        ("async_udp_traffic", 1),
        ("multicast_traffic", 3),
        ("AHTest", 3),
    ] {
        assert!(ok(&ended, part) >= least, "{part}: {ended:?}");
    }
    for line in ended.said.lines().filter_map(|line| line.strip_prefix("skipped: ")) {
        assert!(
            MAY_SKIP.iter().any(|why| line.contains(why)),
            "skipped for another reason: {line}"
        );
    }
}

/// Returns the number of passed tests with `part` in their name. The verdict is on the line of the
/// name or, after a description, on the next line.
fn ok(ended: &ProcessEnd, part: &str) -> usize {
    let lines: Vec<&str> = ended.said.lines().collect();
    let named = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with("test_") && line.contains(part));
    named
        .filter(|(at, line)| {
            line.ends_with("ok")
                || !line.contains("...")
                    && lines.get(at + 1).is_some_and(|next| next.ends_with("ok"))
        })
        .count()
}
