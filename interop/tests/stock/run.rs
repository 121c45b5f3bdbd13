//! Tests how `uiw run` changes the environment of a program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, User, ordinary, uiw};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c").join(name)
}

fn cc(args: &[&str]) {
    let output = Command::new("cc").args(args).output().expect("cc");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the command that runs `program` under `uiw run` with `options` as `user`.
fn command(libraries: &Libraries, user: User, options: &[&str], program: &[&str]) -> Command {
    let mut command = libraries.command(user, uiw());
    command.arg("run").args(options).arg("--").args(program).env("UIW_LIB", libraries.folder());
    command.env_remove("LD_LIBRARY_PATH");
    command
}

#[test]
fn programs_with_bundled_libibverbs_use_ours() {
    let Some(_) = uiw_interop::require("cc") else { return };
    let libraries = Libraries::get();
    let at = |name: &str| libraries.folder().join(name).to_string_lossy().into_owned();
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let (bundled, module, program) = (at("libibverbs-1de1263b.so"), at("module.so"), at("bundled"));
    fs::write(at("versions"), "IBVERBS_1.1 { global: ibv_*; local: *; };")
        .expect("a version script");
    let script = format!("-Wl,--version-script={}", at("versions"));
    let shared = ["-shared", "-fPIC", "-o"];
    let soname = "-Wl,-soname,libibverbs-1de1263b.so";
    cc(&[&shared[..], &[&bundled, &text(source("bundled_verbs.c")), soname, &script]].concat());
    let origin = "-Wl,-rpath,$ORIGIN";
    cc(&[&shared[..], &[&module, &text(source("bundled_extension.c")), &bundled, origin]].concat());
    cc(&["-o", &program, &text(source("bundled.c")), "-ldl", "-lpthread"]);

    let places = ["process", "thread", "child", "program of the child"];
    let mut plain = libraries.command(User::Same, &program);
    plain.arg(&module);
    let plain = Running::start(plain).end();
    let preloaded =
        Running::start(command(&libraries, User::Same, &[], &[&program, &module])).end();
    for place in places {
        let says = |ended: &ProcessEnd, which| {
            ended.said.lines().any(|line| line == format!("{place}: {which}"))
        };
        assert!(says(plain.well(), "bundled"), "{plain:?}");
        assert!(says(preloaded.well(), "uiw"), "{preloaded:?}");
    }
}

/// Programs check that a node is a character device that can be read and written. The rest of
/// `/dev` does not change.
#[test]
fn device_nodes_exist_for_all_users() {
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    // With two loopback devices UCX would connect one to the other, so the loopback device has no
    // node if there is another device.
    let script = "for node in uiw_veth0 uverbs_uiw_veth0; do \
        test -c /dev/infiniband/$node && test -r /dev/infiniband/$node && test -w /dev/infiniband/$node || exit 1; done; \
        test ! -e /dev/infiniband/uiw_lo && test ! -e /dev/infiniband/uverbs_uiw_lo && \
        echo nothing > /dev/null && head -c 8 /dev/urandom > /dev/null && test -d /dev/shm && \
        test \"$(ls /dev | grep -v infiniband)\" = \"$DEV\" && cat /sys/class/infiniband/uiw_lo/ports/1/rate && \
        ls -d /sys/class/net/lo && grep uiw_lo /sys/class/infiniband_verbs/uverbs_uiw_lo/ibdev && echo all there";
    let mut names: Vec<String> = fs::read_dir("/dev")
        .expect("/dev")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name != "infiniband")
        .collect();
    names.sort();
    for user in [Some(User::Same), ordinary()].into_iter().flatten() {
        let dev = format!("export LC_ALL=C; DEV='{}'; {script}", names.join("\n"));
        let ended = Running::start(network.server(command(
            &libraries,
            user,
            &["--sysfs"],
            &["sh", "-c", &dev],
        )))
        .end();
        if ended.count("cannot make /sys/class/infiniband") > 0 {
            uiw_interop::skip("mount namespaces");
            continue;
        }
        assert_eq!(ended.well().count("all there"), 1, "{user:?}: {ended:?}");
        assert_eq!(ended.count("100 Gb/sec (4X EDR)"), 1, "{ended:?}");
    }
    // Nothing remains after the run.
    assert!(!Path::new("/sys/class/infiniband/uiw_lo").exists());
    assert!(!Path::new("/dev/infiniband/uiw_lo").exists());
}

/// A container without a network has only the loopback device.
#[test]
fn lone_loopback_device_has_node() {
    let Some(_) = uiw_interop::require("unshare") else { return };
    let libraries = Libraries::get();
    let script =
        format!("ip link set lo up && exec {} run --sysfs -- ls /dev/infiniband", uiw().display());
    let mut command = libraries.command(User::Same, "unshare");
    command.args(["-rmn", "sh", "-c", &script]).env("UIW_LIB", libraries.folder());
    let ended = Running::start(command).end();
    if ended.count("unshare:") > 0 {
        uiw_interop::skip("network namespaces");
        return;
    }
    assert_eq!(ended.well().said, "uiw_lo\nuverbs_uiw_lo\n");
}

/// Hosted machines have devices that are of no use here. By default `uiw run` hides them and says
/// so in one line.
#[test]
fn devices_of_machine_hidden_by_default() {
    let Some(_) = uiw_interop::require("unshare") else { return };
    let libraries = Libraries::get();
    let with_device = |options: &str, program: &str| {
        let script = format!(
            "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/mana_0/ports/1 /sys/class/net && \
             echo 1 > /sys/class/infiniband/mana_0/node_type || exit 77; exec {} run {options} -- {program}",
            uiw().display()
        );
        let mut command = libraries.command(User::Same, "unshare");
        command.args(["-rm", "sh", "-c", &script]).env("UIW_LIB", libraries.folder());
        Running::start(command).end()
    };
    let told = with_device("", "echo it runs");
    if told.code == 77 || told.count("unshare:") > 0 {
        uiw_interop::skip("mount namespaces");
        return;
    }
    assert_eq!(
        (told.well().count("it runs"), told.count("RDMA devices (mana_0)")),
        (1, 1),
        "{told:?}"
    );
    let quiet = with_device("--only-uiw", "echo it runs");
    assert_eq!((quiet.well().count("it runs"), quiet.count("mana_0")), (1, 0), "{quiet:?}");
    // Programs that scan sysfs themselves see only uiw's devices.
    for (options, shown) in [("--sysfs", 0), ("--sysfs --only-uiw", 0)] {
        let ended = with_device(options, "ls /sys/class/infiniband");
        let lines: Vec<_> = ended.well().said.lines().collect();
        assert_eq!(lines.iter().filter(|line| **line == "mana_0").count(), shown, "{ended:?}");
        assert!(lines.contains(&"uiw_lo"), "{ended:?}");
    }
    // The system's library then has no list of devices, which its programs report; uiw's devices
    // are listed.
    let Some(_) = uiw_interop::require("ibv_devices") else { return };
    for options in ["--with-system", "--sysfs --with-system"] {
        let ended = with_device(options, "ibv_devices");
        assert_eq!(ended.well().count("uiw_lo"), 1, "{ended:?}");
    }
    assert_eq!(
        with_device("--sysfs --with-system", "ls /sys/class/infiniband").well().count("mana_0"),
        1
    );
}
