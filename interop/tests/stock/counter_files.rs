//! Counter files of ports under `uiw run --sysfs`, while programs move data.

use crate::reported::{number, parsed, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use uiw_interop::stock::{Ended, Libraries, Network, Running, User, free_port, ordinary, uiw};

/// `uiw run --sysfs` of a shell's script, in a runtime directory of its own: what other tests count is not there.
fn command(libraries: &Libraries, user: User, options: &[&str], script: &str) -> Command {
    let runtime = libraries.folder().join("runtime");
    if !runtime.exists() {
        fs::create_dir(&runtime).unwrap();
        // Every user has one of its own in it.
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o1777)).unwrap();
    }
    let own = runtime.join(if user == User::Same { "same" } else { "other" });
    let script = format!("export XDG_RUNTIME_DIR={}; {script}", own.display());
    let mut command = libraries.command(user, "sh");
    let mut words = vec!["run", "--sysfs"];
    words.extend(options);
    let words = words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>().join(" ");
    command.env_remove("LD_LIBRARY_PATH").env_remove("UIW_COUNTERS").env("UIW_LIB", libraries.folder());
    command.env("XDG_RUNTIME_DIR", &own).args([
        "-c",
        &format!("mkdir -pm 700 {}; exec {} {words} -- sh -c '{script}'", own.display(), uiw().display()),
    ]);
    command
}

/// Nothing where FUSE cannot be used; the test is noted as skipped then.
#[track_caller]
pub(crate) fn can_be_there(user: User) -> bool {
    let may =
        user == User::Same || fs::metadata("/dev/fuse").is_ok_and(|it| it.permissions().mode() & 6 == 6);
    let is_there = Path::new("/dev/fuse").exists() && may;
    if !is_there {
        uiw_interop::skip("/dev/fuse");
    }
    is_there
}

const SHOWN: &str = "/sys/class/infiniband/uiw_veth0/ports/1/counters";

/// Numbers behind a word.
fn numbers(ended: &Ended, word: &str) -> Vec<u64> {
    let lines = ended.said.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    lines.map(|line| line.parse().unwrap_or_else(|_| panic!("{line}: {ended:?}"))).collect()
}

/// perftest's numbers, read while it runs and afterwards, beside the report of the run; of the loopback device nothing.
#[test]
fn port_counters_grow_while_perftest_runs() {
    let Some(_) = uiw_interop::require("ib_write_bw") else { return };
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    if !can_be_there(User::Same) {
        return;
    }
    let port = free_port();
    let program = format!("ib_write_bw -R -D 2 -p {port}");
    let mut server =
        Running::start(network.server(run(&libraries, &[], &["sh", "-c", &format!("exec {program}")])));
    server.wait_listening(port);
    let script = format!(
        "cd {SHOWN} && echo before $(cat port_xmit_data) && {program} {} > /dev/null & \
         while kill -0 $! 2> /dev/null; do echo during $(cat {SHOWN}/port_xmit_data); sleep 0.1; done; \
         wait $! || exit 3; cd {SHOWN}; for name in port_xmit_data port_rcv_data port_xmit_packets; do \
         echo $name $(cat $name); done; echo loopback $(cat ../../../../uiw_lo/ports/1/counters/port_xmit_data); \
         echo writes $(cat ../hw_counters/writes_sent_bytes); ls /sys/class/infiniband; ls -l .",
        network.server_address()
    );
    let options = ["--require", "--json"];
    let client = Running::start(network.client(command(&libraries, User::Same, &options, &script))).end();
    let report = parsed(&client.well().said);
    server.end().well();
    let (sent, received) = (number(&report, "bytes_sent"), number(&report, "bytes_received"));
    assert_eq!(numbers(&client, "port_xmit_data"), [sent / 4], "{client:?}");
    assert_eq!(numbers(&client, "port_rcv_data"), [received / 4], "{client:?}");
    assert_eq!(numbers(&client, "before"), [0]);
    assert_eq!(numbers(&client, "loopback"), [0]);
    let writes = &report["with_others"]["write"]["sent"];
    assert_eq!(numbers(&client, "writes"), [number(writes, "bytes")], "{client:?}");
    assert!(numbers(&client, "port_xmit_packets")[0] >= number(writes, "messages"));
    // It was seen to grow, more than once, and never to go back.
    let during = numbers(&client, "during");
    assert!(during.is_sorted() && sent > 1 << 20, "{during:?}");
    let steps = during.windows(2).filter(|two| two[0] < two[1]).count();
    assert!(steps >= 3, "{during:?}");
    assert_eq!(client.count("uiw_"), 2, "nothing but the two devices: {client:?}");
}

/// Without FUSE there are no such folders; an ordinary user has them as well where the system lets it.
#[test]
fn folders_are_there_with_fuse_alone() {
    let Some(user) = ordinary() else { return };
    let libraries = Libraries::get();
    let script = "cat /sys/class/infiniband/uiw_lo/ports/1/counters/port_xmit_data; \
                  ls /sys/class/infiniband/uiw_lo/ports/1 /sys/class/infiniband";
    if can_be_there(user) {
        let ended = Running::start(command(&libraries, user, &[], script)).end();
        assert_eq!((ended.count("counters"), ended.well().said.lines().next()), (2, Some("0")), "{ended:?}");
    }
    let Some(_) = uiw_interop::require("unshare") else { return };
    let hidden = command(
        &libraries,
        User::Same,
        &[],
        "ls /sys/class/infiniband/uiw_lo/ports/1; ls -A /sys/class/infiniband",
    );
    let mut without = libraries.command(User::Same, "unshare");
    without.args(["-rm", "sh", "-c", "mount --bind /dev/null /dev/fuse && exec \"$@\"", "sh"]);
    without.arg(hidden.get_program()).args(hidden.get_args());
    for (name, value) in hidden.get_envs() {
        match value {
            Some(value) => without.env(name, value),
            None => without.env_remove(name),
        };
    }
    let ended = Running::start(without).end();
    if ended.count("unshare:") > 0 {
        return uiw_interop::skip("mount namespaces");
    }
    assert_eq!((ended.well().count("counters"), ended.count("gid_attrs")), (0, 1), "{ended:?}");
}
