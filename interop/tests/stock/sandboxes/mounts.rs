//! File systems like those made by `ProtectSystem=strict`, `PrivateDevices=yes` and
//! `TemporaryFileSystem=`, in a mount namespace.

use super::{RPING, free};
use std::process::Command;
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, free_port, run_by, uiw};

/// Script that makes every file system read-only except for the directory of the test. If `TMP` is
/// set, `/tmp` is a writable file system. `/dev` keeps only the usual devices, without `/dev/shm`,
/// `/dev/fuse` and `/dev/infiniband`.
const SCRIPT: &str = r#"
set -e
mount --make-rprivate /
mkdir -p "$HERE/dev"
mount -t tmpfs -o mode=755 none "$HERE/dev"
for name in null zero full random urandom tty; do
    : > "$HERE/dev/$name"
    mount --bind "/dev/$name" "$HERE/dev/$name"
done
mount -o remount,bind,ro "$HERE/dev"
mount --rbind "$HERE/dev" /dev
mount -o remount,bind,ro / 
for place in /run /var/tmp /tmp; do
    [ -d "$place" ] || continue
    mount --bind "$place" "$place"
    mount -o remount,bind,ro "$place"
done
if [ -n "$PRIVATE_TMP" ]; then
    mount --bind "$HERE" /mnt
    mount -t tmpfs none /tmp
    mkdir -p "$HERE"
    mount --move /mnt "$HERE"
fi
cd /
if : > /tmp/written 2>/dev/null; then rm /tmp/written; echo /tmp is writable; fi
if : > /written 2>/dev/null; then echo / is writable; fi
[ ! -e /dev/shm ] && [ ! -e /dev/fuse ] && [ ! -e /dev/infiniband ] && echo no devices
set +e
"$@"
echo "ended with $?"
"#;

/// Returns the command that runs with these file systems. It prints a line of `unshare` or `mount`
/// if they cannot be set up.
fn strict(libraries: &Libraries, private_tmp: bool, command: &Command) -> Command {
    let mut outside = libraries.command(User::Same, "unshare");
    outside.args(["-rm", "sh", "-c", SCRIPT, "sh"]);
    let mut outside = run_by(outside, command);
    outside.env("HERE", libraries.folder()).env("PRIVATE_TMP", if private_tmp { "1" } else { "" });
    outside
}

/// Returns whether the file systems could not be set up, and then counts the test as skipped.
#[track_caller]
fn was_refused(ended: &ProcessEnd) -> bool {
    let refused = ended.count("unshare:") + ended.count("mount:") > 0;
    if refused {
        uiw_interop::skip("mounts in a user namespace");
    }
    refused
}

fn uiw_run(libraries: &Libraries, options: &[&str], program: &[&str]) -> Command {
    let uiw = uiw().to_str().expect("a path of text");
    let mut command = libraries.command(User::Same, uiw);
    command.arg("run").args(options).arg("--").args(program);
    command
        .env("UIW_LIB", libraries.folder())
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("UIW_COUNTERS");
    command
}

/// Runs a client with these file systems and a server without them.
fn client(libraries: &Libraries, private_tmp: bool, options: &[&str]) -> ProcessEnd {
    let port = free_port();
    let mut server = Running::start(RPING.server(port, |program| free(libraries, program)));
    server.wait_listening(port);
    let client = RPING.client(port, |program| uiw_run(libraries, options, program));
    let ended = Running::start(strict(libraries, private_tmp, &client)).end();
    drop(server);
    ended
}

/// The counters cannot be published. This is not a failure of a program that was not asked for
/// them.
#[test]
fn data_exchanged_on_read_only_root() {
    let (Some(_), Some(_)) = (uiw_interop::require("unshare"), uiw_interop::require("rping"))
    else {
        return;
    };
    let libraries = Libraries::get();
    let ended = client(&libraries, false, &[]);
    if was_refused(&ended) {
        return;
    }
    assert_eq!((ended.count("no devices"), ended.count("writable")), (1, 0), "{ended:?}");
    assert_eq!((ended.count("ended with 0"), ended.count("uiw:")), (1, 0), "{ended:?}");
}

/// The report requires a writable `/tmp`; a private one is sufficient.
#[test]
fn reports_name_read_only_tmp() {
    let (Some(_), Some(_)) = (uiw_interop::require("unshare"), uiw_interop::require("rping"))
    else {
        return;
    };
    let libraries = Libraries::get();
    let ended = client(&libraries, false, &["--require"]);
    if was_refused(&ended) {
        return;
    }
    assert_eq!(
        (ended.count("ended with 1"), ended.count("error:"), ended.count("hint:")),
        (1, 1, 1),
        "{ended:?}"
    );
    assert!(
        ended.said.contains("Read-only file system") && ended.said.contains("PrivateTmp=yes"),
        "{ended:?}"
    );
    let ended = client(&libraries, true, &["--require"]);
    assert_eq!((ended.count("/tmp is writable"), ended.count("ended with 0")), (1, 1), "{ended:?}");
    assert_eq!(ended.count("uiw: 1 process with 1 device"), 1, "{ended:?}");
}

/// If the counters of a program cannot be read, the report must not claim that the program has not
/// used uiw.
#[test]
fn unreachable_counters_reported() {
    let (Some(_), Some(_)) = (uiw_interop::require("unshare"), uiw_interop::require("rping"))
    else {
        return;
    };
    let libraries = Libraries::get();
    let port = free_port();
    let mut server = Running::start(RPING.server(port, |program| free(&libraries, program)));
    server.wait_listening(port);
    let client = RPING.client(port, |program| {
        let inner = strict(&libraries, false, &free(&libraries, program));
        let words: Vec<_> = std::iter::once(inner.get_program())
            .chain(inner.get_args())
            .map(|word| word.to_str().expect("text"))
            .collect();
        let mut command = uiw_run(&libraries, &["--require"], &words);
        command.env("HERE", libraries.folder()).env("PRIVATE_TMP", "");
        command
    });
    let ended = Running::start(client).end();
    drop(server);
    if was_refused(&ended) {
        return;
    }
    assert_eq!((ended.code, ended.count("ended with 0")), (125, 1), "{ended:?}");
    assert_eq!(ended.count("uiw: counters cannot be published"), 1, "{ended:?}");
}

/// Runs `uiw doctor` with these file systems and returns its report about counters, reports and
/// preloading.
pub(super) fn doctor(libraries: &Libraries) -> Option<ProcessEnd> {
    let mut command = libraries.command(User::Same, uiw());
    command.args(["doctor", "--json"]).env("UIW_LIB", libraries.folder());
    let ended = Running::start(strict(libraries, false, &command)).end();
    (!was_refused(&ended)).then_some(ended)
}
