//! Tests `uiw run --with-system`, which shows devices of the system's libibverbs next to those of
//! uiw. A provider written for these tests replaces the hardware.

use crate::reported::run;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, compile, free_port, uiw};

/// Path of Debian's library, which the provider is linked to.
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
/// Directory in which the system's library looks for the names of its providers.
const PROVIDERS: &str = "/etc/libibverbs.d";

/// Script that creates the device `stub0` in sysfs and its provider, in a mount namespace of its
/// own.
struct StubMachine {
    libraries: Libraries,
    script: String,
}

impl StubMachine {
    /// Returns `None`, and counts the test as skipped, if the machine cannot be set up.
    #[track_caller]
    fn new() -> Option<Self> {
        uiw_interop::require("unshare")?;
        if !Path::new(SYSTEM).exists() || !Path::new(PROVIDERS).is_dir() {
            uiw_interop::skip("libibverbs1");
            return None;
        }
        if kernel_lists_devices() {
            // If the kernel answers, the system's library asks it and ignores sysfs.
            uiw_interop::skip("a kernel without RDMA");
            return None;
        }
        let libraries = Libraries::get();
        let provider = libraries.folder().join("libstub-rdmav34.so");
        let output = Command::new(uiw_interop::require("cc")?)
            .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&provider)
            .args([source("stub_provider.c"), SYSTEM.into()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let script = format!(
            "cd /sys/class && mkdir infiniband/stub0 infiniband_verbs/uverbs0 && \
             echo '1: CA' > infiniband/stub0/node_type && echo 0123:4567:89ab:cdef > infiniband/stub0/node_guid && \
             echo stub0 > infiniband_verbs/uverbs0/ibdev && echo 1 > infiniband_verbs/uverbs0/abi_version && \
             echo 1:3 > infiniband_verbs/uverbs0/dev && \
             touch /dev/infiniband/uverbs0 && mount --bind /dev/null /dev/infiniband/uverbs0 && \
             mount -t tmpfs none {PROVIDERS} && echo driver {}/libstub > {PROVIDERS}/stub.driver || exit 77; ",
            libraries.folder().display()
        );
        Some(Self { libraries, script })
    }

    /// Runs the shell command `command` in the namespace, under `uiw run` with `options`. Returns
    /// `None` if mount namespaces are not available.
    fn run(&self, options: &str, command: &str) -> Option<ProcessEnd> {
        let outer = format!(
            "exec {} run --sysfs {options} -- sh -c '{}{command}'",
            uiw().display(),
            self.script.replace('\'', "'\\''")
        );
        let mut command = self.libraries.command(User::Same, "unshare");
        command.args(["-rm", "sh", "-c", &outer]).env("UIW_LIB", self.libraries.folder());
        command.env_remove("LD_LIBRARY_PATH").env("UIW_PERSONA", "roce");
        let ended = Running::start(command).end();
        if ended.code == 77 || ended.count("unshare:") > 0 {
            uiw_interop::skip("mount namespaces");
            return None;
        }
        Some(ended)
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c").join(name)
}

/// Returns whether the kernel answers on the RDMA netlink family.
fn kernel_lists_devices() -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::RDMA))
        .is_ok()
}

/// A C program opens both devices in one process: queries, regions, queues, posts and polls reach
/// the right library.
#[test]
fn objects_routed_to_their_library() {
    let Some(machine) = StubMachine::new() else { return };
    let Some(program) =
        compile(&machine.libraries, &source("beside.c"), &["-Wall", "-Wextra", "-Werror"])
    else {
        return;
    };
    let program = program.display();
    let Some(ended) = machine.run("--with-system", &format!("exec {program}")) else { return };
    assert_eq!(ended.well().count("both are there"), 1, "{ended:?}");
    let ended =
        machine.run(&format!("--with-system={SYSTEM}"), &format!("exec {program}")).unwrap();
    assert_eq!(ended.well().count("both are there"), 1, "{ended:?}");
    // Without `--with-system` the assertions of the program fail.
    let ended = machine.run("--only-uiw", &format!("exec {program}")).unwrap();
    assert_eq!((ended.code, ended.count("stub0")), (1, 1), "{ended:?}");
}

/// Debian's own programs list the system's device first, show the attributes of each device, and
/// transfer data on uiw's device.
#[test]
fn stock_programs_list_both_kinds() {
    let Some(machine) = StubMachine::new() else { return };
    let Some(_) = uiw_interop::require("ibv_devinfo") else { return };
    let Some(ended) = machine.run("--with-system", "ibv_devices && exec ibv_devinfo") else {
        return;
    };
    let lines: Vec<_> = ended.well().said.lines().map(str::trim).collect();
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start));
    assert!(
        at("stub0") < at("uiw_") && at("stub0").is_some() && at("uiw_lo").is_some(),
        "{ended:?}"
    );
    let of = |device: &str| {
        let lines =
            lines.iter().skip_while(|line| !line.starts_with("hca_id:") || !line.ends_with(device));
        lines
            .skip(1)
            .take_while(|line| !line.starts_with("hca_id:"))
            .copied()
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert!(of("stub0").contains("port_lid:\t\t774"), "{ended:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("stub0") && line.ends_with("0123456789abcdef")),
        "{ended:?}"
    );
    assert!(
        of("uiw_lo").contains("link_layer:\t\tEthernet") && !of("uiw_lo").contains("774"),
        "{ended:?}"
    );
    let program = format!("ibv_rc_pingpong -d uiw_lo -g 0 -n 50 -p {}", free_port());
    let pingpong = format!(
        "{program} > /dev/null & \
         until {program} 127.0.0.1; do kill -0 $! || exit 1; sleep 0.05; done; wait"
    );
    let ended = machine.run("--with-system --require", &pingpong).unwrap();
    assert_eq!(ended.well().count("50 iters"), 1, "{ended:?}");
}

/// If the requested library cannot be loaded, the program must not continue with only one of the
/// devices.
#[test]
fn foreign_system_library_refused() {
    let Some(_) = uiw_interop::require("ibv_devices") else { return };
    let libraries = Libraries::get();
    let own = libraries.folder().join("libibverbs.so.1");
    for file in [own.to_str().unwrap(), "/nonexistent/libibverbs.so.1"] {
        let option = format!("--with-system={file}");
        let ended = Running::start(run(&libraries, &[&option], &["ibv_devices"])).end();
        assert_eq!((ended.code, ended.count(file), ended.count("hint: ")), (2, 1, 1), "{ended:?}");
    }
    for file in ["/etc/passwd", "relative.so", "/lib/x86_64-linux-gnu/libc.so.6"] {
        let mut command = libraries.command(User::Same, "ibv_devices");
        command.env("UIW_SYSTEM_VERBS", file).env("LD_PRELOAD", &own);
        let ended = Running::start(command).end();
        assert_ne!(ended.code, 0, "{ended:?}");
        assert_eq!(ended.count(&format!("uiw: UIW_SYSTEM_VERBS={file}: ")), 1, "{ended:?}");
    }
    let both = Running::start(run(&libraries, &["--with-system", "--only-uiw"], &["true"])).end();
    assert_eq!(both.code, 2);
}
