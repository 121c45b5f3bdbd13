//! Tests `uiw cdi`: stock programs run in containers of podman, with Debian's crun and runc, as
//! root and as an ordinary user.
//!
//! All files of podman are in a directory of the test and in its own namespaces, so nothing remains
//! afterwards. The network is loopback or a veth pair in these namespaces. The root file system
//! consists of the programs and the files they need, including Debian's rdma-core; nothing is
//! downloaded.

use crate::reported::{number, parsed};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, uiw};

/// Programs in the image.
const PROGRAMS: [&str; 9] =
    ["sh", "ls", "cat", "stat", "test", "ibv_devices", "ib_write_bw", "rping", "true"];

/// User id of the ordinary user.
const ORDINARY: u32 = 65534;

/// Shell commands that prepare the namespaces. Podman gets its own `/run` and `/dev/shm`, and sees
/// only cgroups version 1, because Debian's crun does not support both versions at the same time.
const ENTER: &str = r#"
    set -e
    umount /sys/fs/cgroup/unified 2>/dev/null || true
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    mkdir -p /run/cdi /run/lock /run/netns
    ip link set lo up
    "$UIW" cdi --persona roce > /run/cdi/uiw.json
"#;

/// `run NETWORK PROGRAM..` runs a program in a container as root.
const AS_ROOT: &str = r#"
    run() {
        network=$1; shift
        podman --root "$HERE/store" --runroot /run/store --storage-driver=vfs --cgroup-manager=cgroupfs --runtime="$RUNTIME" \
            run --rm --network="$network" --ulimit=nofile=1024:1024 --ulimit=nproc=1000:1000 $MORE --rootfs "$HERE/image" "$@"
    }
"#;

/// Like [`AS_ROOT`], but runs as an ordinary user without cgroups, which require privileges.
const AS_USER: &str = r#"
    run() {
        network=$1; shift
        setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$HERE/home" XDG_RUNTIME_DIR="$HERE/home/run" \
            podman --root "$HERE/home/store" --runroot "$HERE/home/rr" --storage-driver=vfs --cgroup-manager=cgroupfs --runtime="$RUNTIME" \
            run --rm --network="$network" --cgroups=disabled --ulimit=nofile=1024:1024 --ulimit=nproc=1000:1000 $MORE \
            --rootfs "$HERE/image" "$@"
    }
"#;

/// `again COMMAND..` repeats a command until it succeeds, because its peer may not listen yet.
const AGAIN: &str = r#"
    again() {
        tries=0
        until "$@"; do tries=$((tries + 1)); test $tries -lt 50; sleep 0.2; done
    }
"#;

/// Creates the namespaces a and b with a veth pair between them.
const TWO_NETWORKS: &str = "
    ip netns add a; ip netns add b
    ip link add eth0 netns a type veth peer name eth0 netns b
    ip -n a addr add 10.3.0.1/24 dev eth0; ip -n b addr add 10.3.0.2/24 dev eth0
    for n in a b; do ip -n $n link set lo up; ip -n $n link set eth0 up; done
";

/// Directory with the image and all files of podman; removed when dropped.
struct PodmanFolder {
    folder: PathBuf,
    libraries: Libraries,
}

impl PodmanFolder {
    /// Returns `None`, and counts the test as skipped, if containers cannot be run.
    #[track_caller]
    fn get() -> Option<Self> {
        let tools = ["podman", "unshare", "setpriv", "ip", "ldd"];
        for program in tools.iter().chain(&PROGRAMS) {
            uiw_interop::require(program)?;
        }
        if fs::metadata("/proc/self").is_ok_and(|me| me.uid() != 0) {
            uiw_interop::skip("root, for a private /run");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Podman allows at most 50 bytes in the paths of its directories.
        let folder = std::env::temp_dir().join(format!("uiw-ct-{}-{count}", std::process::id()));
        let place = Self { folder, libraries: Libraries::get() };
        for name in [
            "image/dev",
            "image/proc",
            "image/sys",
            "image/run",
            "image/tmp",
            "image/etc",
            "home/run",
        ] {
            fs::create_dir_all(place.folder.join(name)).expect("a folder");
        }
        for (name, mode) in
            [("", 0o755), ("image", 0o755), ("image/etc", 0o755), ("image/tmp", 0o1777)]
        {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(place.folder.join(name), mode).expect("the folder's permissions");
        }
        for name in ["home", "home/run"] {
            chown(place.folder.join(name), Some(ORDINARY), Some(ORDINARY)).expect("an owner");
        }
        place.fill_image();
        Some(place)
    }

    fn fill_image(&self) {
        let image = self.folder.join("image");
        for name in ["bin", "lib", "lib64"] {
            fs::create_dir_all(image.join("usr").join(name)).expect("a folder");
            symlink(Path::new("usr").join(name), image.join(name)).expect("a link");
        }
        for name in ["passwd", "hosts", "hostname", "resolv.conf"] {
            fs::write(image.join("etc").join(name), "").expect("a file");
        }
        let mut needed: BTreeSet<PathBuf> = needs(&self.libraries.folder().join("libibverbs.so.1"));
        for program in PROGRAMS {
            let file = uiw_interop::require(program).expect("looked for above");
            fs::copy(&file, image.join("usr/bin").join(program)).expect("a copy");
            needed.extend(needs(&file));
        }
        for library in needed {
            let name = library.file_name().expect("a name");
            let folder =
                library.parent().and_then(|folder| folder.canonicalize().ok()).expect("a folder");
            let folder = image.join(folder.strip_prefix("/").expect("an absolute path"));
            fs::create_dir_all(&folder).expect("a folder");
            fs::copy(&library, folder.join(name)).expect("a copy");
        }
    }

    /// Runs a script in namespaces of its own; `more` are additional options for the containers.
    fn run(&self, runtime: &str, more: &str, script: &[&str]) -> ProcessEnd {
        let mut command = self.libraries.command(User::Same, "unshare");
        command.args(["--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child"]);
        command.args([
            "--propagation=private",
            "--",
            "sh",
            "-c",
            &[&[ENTER, AGAIN], script].concat().concat(),
        ]);
        command.env("UIW", uiw()).env("UIW_LIB", self.libraries.folder()).env("HERE", &self.folder);
        command.env("RUNTIME", runtime).env("MORE", more).env_remove("LD_LIBRARY_PATH");
        Running::start(command).end()
    }
}

impl Drop for PodmanFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the libraries that the loader loads for a file.
fn needs(file: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("ldd").arg(file).output().expect("ldd");
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Returns the report of the client that succeeded, which is the last report in the output.
fn last_report(ended: &ProcessEnd) -> Value {
    parsed(ended.said.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default())
}

/// Returns the combinations in which containers are run: the runtime and the shell functions.
fn ways() -> Vec<(&'static str, &'static str)> {
    let mut ways = Vec::new();
    for runtime in ["crun", "runc"] {
        if uiw_interop::require(runtime).is_some() {
            ways.push((runtime, AS_ROOT));
        }
    }
    if ways.iter().any(|(runtime, _)| *runtime == "crun") {
        ways.push(("crun", AS_USER));
    }
    ways
}

/// The nodes are character devices that can be read and written, sysfs shows the container's
/// network, and existing files are not hidden.
#[test]
fn container_has_device_nodes_and_sysfs() {
    let Some(place) = PodmanFolder::get() else { return };
    let own = "-v /dev/zero:/dev/infiniband/uverbs0 --device uiw.dev/rdma=all";
    let seen = "for node in uiw_lo uverbs_uiw_lo; do \
            test -c /dev/infiniband/$node && test -r /dev/infiniband/$node && test -w /dev/infiniband/$node || exit 1; done; \
        stat -c 'own %t:%T' /dev/infiniband/uverbs0; stat -c 'null %t:%T' /dev/null; echo x > /dev/null; \
        test -d /dev/shm && test -d /dev/pts && test -d /sys/class/mem && ls /sys/class/net; \
        cat /sys/class/infiniband/uiw_lo/ports/1/gid_attrs/types/0; ibv_devices; echo all there";
    let script = format!("run none sh -c \"{}\"\n", seen.replace('$', "\\$"));
    for (runtime, functions) in ways() {
        let ended = place.run(runtime, own, &[functions, &script]);
        assert_eq!(ended.well().count("all there"), 1, "{runtime}: {ended:?}");
        assert_eq!(
            (ended.count("own 1:5"), ended.count("null 1:3")),
            (1, 1),
            "{runtime}: {ended:?}"
        );
        assert_eq!(
            (ended.count("RoCE v2"), ended.count("uiw_lo  ")),
            (1, 1),
            "{runtime}: {ended:?}"
        );
    }
    assert!(!Path::new("/dev/infiniband/uiw_lo").exists());
}

/// The device `libraries` adds only the libraries and no device nodes; without a device nothing is
/// added.
#[test]
fn container_matches_cdi_device() {
    let Some(place) = PodmanFolder::get() else { return };
    let script = "run none sh -c 'ibv_devices; test ! -e /dev/infiniband && echo no nodes'\n";
    let runtime = ways()[0].0;
    let libraries = place.run(runtime, "--device uiw.dev/rdma=libraries", &[AS_ROOT, script]);
    assert_eq!(
        (libraries.well().count("uiw_lo"), libraries.count("no nodes")),
        (1, 1),
        "{libraries:?}"
    );
    let nothing = place.run(runtime, "", &[AS_ROOT, script]);
    assert_eq!((nothing.well().count("uiw_lo"), nothing.count("no nodes")), (0, 1), "{nothing:?}");
}

/// `ib_write_bw` runs between two containers; the counters of the client show the bytes it wrote.
#[test]
fn containers_write_to_each_other() {
    let Some(place) = PodmanFolder::get() else { return };
    const BYTES: u64 = 1000 * 65_536;
    let client = "/opt/uiw/bin/uiw run --require --json -- ib_write_bw -R -n 1000 -d";
    for (runtime, functions) in ways() {
        let script = if functions == AS_ROOT {
            format!(
                "{TWO_NETWORKS}
                run ns:/run/netns/a ib_write_bw -R -n 1000 -d uiw_eth0 >/dev/null & server=$!
                again run ns:/run/netns/b {client} uiw_eth0 10.3.0.1
                wait $server"
            )
        } else {
            // Both containers use the network of the first one.
            format!(
                "network=none
                MORE=\"$MORE --name=server\" run none ib_write_bw -R -n 1000 -d uiw_lo >/dev/null & server=$!
                again run container:server {client} uiw_lo 127.0.0.1
                wait $server"
            )
        };
        let ended = place.run(runtime, "--device uiw.dev/rdma=all", &[functions, &script]);
        let report = last_report(ended.well());
        let written = &report["with_others"]["write"]["sent"]["bytes"];
        assert!(written.as_u64().is_some_and(|bytes| bytes >= BYTES), "{runtime}: {report}");
    }
}

/// rping runs between a container and a program on the host.
#[test]
fn container_and_host_exchange_messages() {
    let Some(place) = PodmanFolder::get() else { return };
    for (runtime, functions) in ways().into_iter().filter(|(_, functions)| *functions == AS_ROOT) {
        let script = format!(
            "{TWO_NETWORKS}
            run ns:/run/netns/a rping -s -a 10.3.0.1 -C 100 -S 5000 -V & server=$!
            again ip netns exec b \"$UIW\" run --require --json -- rping -c -a 10.3.0.1 -C 100 -S 5000 -V
            wait $server"
        );
        let ended = place.run(runtime, "--device uiw.dev/rdma=all", &[functions, &script]);
        let report = last_report(ended.well());
        assert_eq!(number(&report, "connections"), 1, "{runtime}: {report}");
        assert_eq!(report["with_others"]["read"]["sent"]["bytes"], 500_000, "{runtime}: {report}");
    }
}
