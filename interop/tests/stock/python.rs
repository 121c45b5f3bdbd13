//! The connection manager's part of rdma-core's own tests, as Debian ships them.

use interop::stock::{Libraries, Running, User};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the package rdma-core has them.
const PACKAGED: &str = "/usr/share/doc/rdma-core/tests";

/// A copy of the tests, unpacked, below the folder of the libraries.
fn unpacked(libraries: &Libraries) -> Option<PathBuf> {
    if !Path::new(PACKAGED).is_dir() || !Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir() {
        interop::skip("rdma-core's Python tests (rdma-core, python3-pyverbs)");
        return None;
    }
    let tests = libraries.folder().join("tests");
    fs::create_dir(&tests).expect("a folder");
    for file in fs::read_dir(PACKAGED).expect("the package's folder") {
        let file = file.expect("an entry").path();
        let name = file.file_name().expect("a name");
        fs::copy(&file, tests.join(name)).expect("a copy");
        if file.extension().is_some_and(|ending| ending == "gz") {
            let unpacked = Command::new("gzip").arg("-d").arg(tests.join(name)).status().expect("gzip");
            assert!(unpacked.success());
        }
    }
    Some(tests)
}

/// Runs `tests` of the module for rdma_cm with `persona`, as root in a mount namespace whose sysfs names the device's interface.
fn run(persona: &str, tests: &[&str]) {
    let libraries = Libraries::get();
    let (Some(_), Some(folder)) = (interop::require("unshare"), unpacked(&libraries)) else { return };
    let probe = Command::new("unshare").args(["-mn", "true"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        interop::skip("root, for a mount namespace");
        return;
    }
    // A network of its own: the tests use a fixed port.
    let script = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/uiw_test0/device/net/test0 \
                  && ip link set lo up && ip link add test0 type veth peer name test1 \
                  && ip addr add 10.78.0.1/24 dev test0 && ip link set test0 up && ip link set test1 up && exec /usr/bin/python3 \"$@\"";
    let mut command = libraries.command(User::Same, "unshare");
    command.args(["-mn", "sh", "-c", script, "sh"]).arg(folder.join("run_tests.py"));
    command.args(["-v", "--dev", "uiw_test0"]);
    command.args(tests.iter().map(|test| format!("test_rdmacm.CMTestCase.test_rdmacm_{test}")));
    command.env("UIW_PERSONA", persona).env("PYTHONDONTWRITEBYTECODE", "1");
    // They look at the target as soon as a Write has completed, which on iWARP says only that it was sent.
    command.env("UIW_ACK", "on");
    let ended = Running::start(command).end();
    ended.well();
    assert_eq!(ended.count("... ok"), tests.len(), "{ended:?}");
}

/// What an iWARP device can do of it.
const IWARP: &[&str] =
    &["async_read", "async_reject_traffic", "async_traffic", "async_write", "sync_traffic"];

#[test]
fn rdmacm_tests_pass_on_an_iwarp_device() {
    run("iwarp", IWARP);
}

#[test]
fn rdmacm_tests_pass_on_what_looks_like_roce() {
    // CONNECT_RESPONSE, which the last one waits for, is unknown on iWARP.
    run("roce", &[IWARP, &["async_traffic_external_qp"]].concat());
}
