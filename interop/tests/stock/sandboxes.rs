//! Runs stock programs in sandboxes: they exchange verified data, or end with a line that names the
//! refused operation and the necessary change. No program hangs.

mod doctor;
mod filters;
mod mounts;
mod programs;
mod unit;

use filters::{FAMILIES, Place, Sandboxes, system_service};
use rustix::io::Errno;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{
    Libraries, Network, ProcessEnd, Running, User, WaitLimit, compile, free_port, listens, uiw,
};

/// Stock program with the arguments of both ends; the client additionally gets the server's address
/// as its last argument.
struct SandboxedPair {
    program: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
    persona: &'static str,
    /// Texts in the client's output that indicate a failure, whatever its exit code is.
    complaints: &'static [&'static str],
}

/// Connects by rdma_cm; each of 200 messages takes a Read and a Write, and all are compared.
const RPING: SandboxedPair = SandboxedPair {
    program: "rping",
    server: &["-s", "-V", "-C", "200", "-S", "5000"],
    client: &["-c", "-V", "-C", "200", "-S", "5000", "-a"],
    persona: "iwarp",
    complaints: &["wait for", "failed", "mismatch"],
};

/// Connects out of band and uses a completion channel; the received bytes are compared.
const PINGPONG: SandboxedPair = SandboxedPair {
    program: "ibv_rc_pingpong",
    server: &["-d", "uiw_lo", "-g", "0", "-c", "-e", "-n", "300"],
    client: &["-d", "uiw_lo", "-g", "0", "-c", "-e", "-n", "300"],
    persona: "roce",
    complaints: &["invalid data"],
};

/// Uses datagrams.
const DATAGRAMS: SandboxedPair = SandboxedPair {
    program: "ibv_ud_pingpong",
    server: &["-d", "uiw_lo", "-g", "0", "-c", "-n", "300"],
    client: &["-d", "uiw_lo", "-g", "0", "-c", "-n", "300"],
    persona: "roce",
    complaints: &["invalid data"],
};

const EXCHANGES: [&SandboxedPair; 3] = [&RPING, &PINGPONG, &DATAGRAMS];

impl SandboxedPair {
    fn server(&self, port: u16, run: impl Fn(&[&str]) -> Command) -> Command {
        self.command(port, self.server, &[], run)
    }

    fn client(&self, port: u16, run: impl Fn(&[&str]) -> Command) -> Command {
        self.command(port, self.client, &["127.0.0.1"], run)
    }

    fn command(
        &self,
        port: u16,
        args: &[&str],
        to: &[&str],
        run: impl Fn(&[&str]) -> Command,
    ) -> Command {
        let port = port.to_string();
        let mut command = run(&[&[self.program, "-p", &port][..], args, to].concat());
        command.env("UIW_PERSONA", self.persona);
        command
    }

    /// Asserts that both ends, started by `run`, succeed with verified data.
    #[track_caller]
    fn succeeds(&self, what: &str, run: impl Fn(&[&str]) -> Command) {
        let port = free_port();
        let mut server = Running::start(self.server(port, &run));
        server.wait_listening(port);
        let client = Running::start(self.client(port, &run)).end();
        let server = server.end();
        for ended in [&client, &server] {
            assert_eq!(ended.code, 0, "{what}: {client:?}\n{server:?}");
        }
        let complaints: usize = self.complaints.iter().map(|text| client.count(text)).sum();
        // If uiw can work without a refused operation, it prints nothing.
        let lines = client.count("uiw:") + server.count("uiw:");
        assert_eq!((complaints, lines), (0, 0), "{what}: {client:?}\n{server:?}");
    }
}

/// Asserts that every exchange succeeds in a sandbox of `rules`, with `uiw run` inside the sandbox
/// and outside of it.
#[track_caller]
fn everything_succeeds(rules: impl FnOnce(&Sandboxes<'_>) -> Vec<String>) {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let rules = rules(&sandboxes);
    for exchange in EXCHANGES {
        if uiw_interop::require(exchange.program).is_none() {
            return;
        }
        for place in [Place::Inside, Place::Outside] {
            let what = format!("{} {place:?}", exchange.program);
            exchange.succeeds(&what, |program| sandboxes.run(place, &rules, program));
        }
    }
}

#[test]
fn system_service_calls_suffice() {
    everything_succeeds(|sandboxes| vec![sandboxes.system_service()]);
}

#[test]
fn netlink_is_not_needed() {
    everything_succeeds(|_| vec![FAMILIES.to_owned()]);
}

/// Without netlink, port events are not available; one log line of level `info` says so.
#[test]
fn missing_netlink_logged_once() {
    let (Some(_), libraries) = (uiw_interop::require("rping"), Libraries::get()) else { return };
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let run = |program: &[&str]| {
        let mut command = sandboxes.command(&[FAMILIES.to_owned()], program);
        command.env("UIW_LOG", "info");
        command
    };
    let port = free_port();
    let mut server = Running::start(RPING.server(port, run));
    server.wait_listening(port);
    let client = Running::start(RPING.client(port, run)).end();
    for ended in [&client, &server.end()] {
        assert_eq!(ended.well().count("network interfaces cannot be watched"), 1, "{ended:?}");
    }
}

#[test]
fn namespaces_and_writable_code_not_needed() {
    everything_succeeds(|_| vec!["namespaces".to_owned(), "write-exec".to_owned()]);
}

#[test]
fn container_calls_suffice() {
    everything_succeeds(|sandboxes| [sandboxes.docker()].concat());
}

#[test]
fn newer_calls_are_not_needed() {
    everything_succeeds(|sandboxes| vec![sandboxes.old_kernel()]);
}

#[test]
fn hardened_service_exchanges_data() {
    everything_succeeds(|sandboxes| [sandboxes.hardened()].concat());
}

/// Addresses, GIDs and MTU are the same whether they are read by ioctl or by netlink.
#[test]
fn devices_are_the_same_without_netlink() {
    let (Some(_), Some(network)) = (uiw_interop::require("ibv_devinfo"), Network::veth()) else {
        return;
    };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    for address in ["10.77.9.1/30", "fd77::1/64"] {
        let mut command = Command::new("ip");
        command.args(["address", "add", address, "dev", "veth0", "nodad"]);
        Running::start(network.server(command)).end().well();
    }
    let devices = |rules: &[String]| {
        let ended =
            Running::start(network.server(sandboxes.command(rules, &["ibv_devinfo", "-v"]))).end();
        ended.well().said.clone()
    };
    let said = devices(&[FAMILIES.to_owned()]);
    assert!(
        said.contains("uiw_veth0") && said.contains("uiw_lo") && said.contains("fd77"),
        "{said}"
    );
    assert_eq!(said, devices(&[]));
}

/// In the sandbox too, the registration of unmapped memory fails with an error: the system call
/// that checks the memory does not end the process.
#[test]
fn memory_is_checked_by_permitted_calls() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = here.join("../xtask/src/bench/programs");
    let ends = shared.join("ends.c");
    let flags = ["-I", &shared.to_string_lossy(), &ends.to_string_lossy()];
    let Some(program) = compile(&libraries, &here.join("tests/stock/c/memory.c"), &flags) else {
        return;
    };
    let mut command = sandboxes
        .command(&[sandboxes.system_service()], &[program.to_str().expect("a path of text")]);
    command.env("UIW_ACK", "on");
    assert_eq!(Running::start(command).end().well().count("memory is as it should be"), 1);
}

/// Tests a child of a fork, and the program that it executes, in a sandbox that the parent has set
/// up.
#[test]
fn forks_inherit_sandbox() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    for name in ["forks.c", "fork_exec.c"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c").join(name);
        let Some(program) = compile(&libraries, &source, &[]) else { return };
        let command =
            sandboxes.command(&sandboxes.hardened(), &[program.to_str().expect("a path of text")]);
        Running::start(command).end().well();
    }
}

/// Asserts that uiw reports a refusal in exactly one line, which contains `what` and the hint
/// `fix`.
#[track_caller]
fn says(ended: &ProcessEnd, what: &str, fix: &str) {
    let lines: Vec<_> = ended.said.lines().filter(|line| line.starts_with("uiw: ")).collect();
    let [line] = lines[..] else { panic!("{} lines of uiw: {ended:?}", lines.len()) };
    assert!(line.contains(what) && line.contains(fix), "{line}");
}

/// Time within which a program must notice that it cannot run.
const REFUSED: Duration = Duration::from_secs(60);

/// Runs the client in a sandbox and the server outside. Returns `None` if verified data was
/// exchanged.
fn refused_client(
    exchange: &SandboxedPair,
    run: impl Fn(&[&str]) -> Command,
    libraries: &Libraries,
) -> Option<ProcessEnd> {
    let port = free_port();
    let free = |program: &[&str]| free(libraries, program);
    let mut server = Running::start(exchange.server(port, free));
    server.wait_listening(port);
    let client = Running::start(exchange.client(port, run));
    let client = client.end_within(REFUSED).unwrap_or_else(|| panic!("{} hangs", exchange.program));
    if client.code != 0 || exchange.complaints.iter().any(|text| client.count(text) > 0) {
        return Some(client);
    }
    server.end().well();
    None
}

fn refused_server(
    exchange: &SandboxedPair,
    run: impl Fn(&[&str]) -> Command,
    libraries: &Libraries,
) -> Option<ProcessEnd> {
    let port = free_port();
    let mut server = Running::start(exchange.server(port, run));
    let mut limit = WaitLimit::new(REFUSED);
    while !listens(server.id(), port) {
        if let Some(ended) = server.ended() {
            return Some(ended);
        }
        assert!(
            !limit.is_over(),
            "{} neither listens nor ends: {}",
            exchange.program,
            server.said()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let client = Running::start(exchange.client(port, |program| free(libraries, program)));
    let client = client.end_within(REFUSED);
    let client = client.unwrap_or_else(|| panic!("the free end of {} hangs", exchange.program));
    // A server that could not accept a connection may wait for the next one.
    while server.said().lines().all(|line| !line.starts_with("uiw: ")) {
        if let Some(server) = server.ended() {
            return (server.code != 0).then_some(server);
        }
        assert!(!limit.is_over(), "{} hangs: {}\n{client:?}", exchange.program, server.said());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(
        client.code != 0 || server.ended().is_some_and(|server| server.code != 0),
        "{client:?}"
    );
    Some(server.end_or_stop())
}

fn free(libraries: &Libraries, program: &[&str]) -> Command {
    let mut command = libraries.command(User::Same, program[0]);
    command.args(&program[1..]);
    command
}

/// If no thread can be started, the program gets an error and uiw prints a line.
#[test]
fn task_limit_named() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c");
    let (Some(server), Some(client)) = (
        compile(&libraries, &sources.join("server.c"), &[]),
        compile(&libraries, &sources.join("client.c"), &[]),
    ) else {
        return;
    };
    let text = |path: &Path| path.to_str().expect("a path of text").to_owned();
    let rules = ["threads".to_owned()];
    let fix = "TasksMax=";
    let mut ways = vec![rules.to_vec()];
    if rustix::process::geteuid().is_root() {
        // The limit counts all processes of a user, so this user id has none.
        let user = format!("user={}", 100_000 + std::process::id());
        ways.push(vec!["limit=nproc:1".to_owned(), user]);
    }
    for rules in &ways {
        let ended =
            Running::start(sandboxes.command(rules, &[&text(&server), "1"])).end_within(REFUSED);
        let ended = ended.expect("the server ends");
        assert_ne!(ended.code, 0, "{ended:?}");
        says(&ended, "thread", fix);
    }
    let mut listening = Running::start(free(&libraries, &[&text(&server), "1"]));
    listening.wait_saying("port ");
    let port = listening.said();
    let port = port.split("port ").nth(1).expect("a port").trim().to_owned();
    let ended = Running::start(
        sandboxes.command(&rules, &[&text(&client), "127.0.0.1", &port, "good day"]),
    );
    says(&ended.end_within(REFUSED).expect("the client ends"), "thread", fix);
    drop(listening.stop());
    if uiw_interop::require(PINGPONG.program).is_some() {
        let run = |program: &[&str]| sandboxes.command(&rules, program);
        let ended = refused_client(&PINGPONG, run, &libraries).expect("no thread, no connection");
        says(&ended, "thread", fix);
    }
}

/// A run with a report needs a thread; if it cannot be started, nothing of the program remains.
#[test]
fn reported_run_without_threads_ends_program() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let uiw = uiw().to_str().expect("a path of text");
    // This unique number identifies the program among all processes.
    let long = format!("{}", 1_000_000 + std::process::id());
    let program = [uiw, "run", "--require", "--", "sleep", &long];
    let mut command = sandboxes.command(&["threads".to_owned()], &program);
    command.env("UIW_LIB", libraries.folder()).env_remove("UIW_COUNTERS");
    let ended = Running::start(command).end_within(REFUSED).expect("it ends");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.count("cannot wait for the program") > 0 && ended.said.contains("TasksMax="),
        "{ended:?}"
    );
    let runs = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == long.as_bytes())
    };
    let mut limit = WaitLimit::new(REFUSED);
    while std::fs::read_dir("/proc").expect("processes").flatten().any(runs) {
        assert!(!limit.is_over(), "the program was left");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// At every limit of file descriptors, each end either succeeds or reports the problem.
#[test]
fn descriptor_limit_named() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let mut refused = 0;
    for exchange in EXCHANGES {
        if uiw_interop::require(exchange.program).is_none() {
            return;
        }
        for limit in [6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 64] {
            let rules = [format!("limit=nofile:{limit}")];
            let run = |program: &[&str]| sandboxes.command(&rules, program);
            let ends = [
                refused_client(exchange, run, &libraries),
                refused_server(exchange, run, &libraries),
            ];
            for ended in ends.into_iter().flatten() {
                assert!(limit < 64, "{ended:?}");
                // The descriptor that could not be opened may be one of the program itself.
                if ended.count("uiw: ") > 0 {
                    says(&ended, "Too many open files", "LimitNOFILE=");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 0, "no limit was reached in uiw");
}

#[test]
fn refused_address_family_named() {
    let Some(_) = uiw_interop::require(RPING.program) else { return };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let rules = ["families=1".to_owned()];
    let run = |program: &[&str]| sandboxes.command(&rules, program);
    let ended = refused_client(&RPING, run, &libraries).expect("no addresses");
    says(&ended, "Address family not supported", "uiw doctor");
}

/// Only `--sysfs` needs namespaces, and it reports if they are refused.
#[test]
fn refused_namespaces_are_named() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let uiw = uiw().to_str().expect("a path of text");
    let no_mounts = sandboxes.refuse(Errno::PERM, "mount umount2");
    for (rule, named) in [("namespaces", "RestrictNamespaces="), (&no_mounts, "@mount")] {
        let mut command = sandboxes
            .command(&[rule.to_owned()], &[uiw, "run", "--sysfs", "--", "echo", "it runs"]);
        command.env("UIW_LIB", libraries.folder());
        let ended = Running::start(command).end();
        assert_eq!(
            (ended.code, ended.said.lines().count(), ended.count("it runs")),
            (1, 2, 0),
            "{ended:?}"
        );
        assert!(ended.said.contains(named), "{ended:?}");
    }
}

#[test]
fn sysfs_works_without_newer_calls() {
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let uiw = uiw().to_str().expect("a path of text");
    let script = "ls /sys/class/infiniband && echo it runs";
    let program = [uiw, "run", "--sysfs", "--", "sh", "-c", script];
    let mut command = sandboxes.command(&[sandboxes.old_kernel()], &program);
    command.env("UIW_LIB", libraries.folder());
    let ended = Running::start(command).end();
    if ended.count("cannot make /sys/class/infiniband") > 0 {
        return uiw_interop::skip("mount namespaces");
    }
    assert_eq!(ended.well().count("it runs"), 1, "{ended:?}");
}

/// The processes and signals of the report do not need the newer system calls.
#[test]
fn runs_are_reported_in_sandboxes() {
    let Some(_) = uiw_interop::require(RPING.program) else { return };
    let libraries = Libraries::get();
    let Some(sandboxes) = Sandboxes::get(&libraries) else { return };
    let uiw = uiw().to_str().expect("a path of text");
    for rules in [vec![sandboxes.old_kernel()], sandboxes.hardened()] {
        let reported = |program: &[&str]| {
            let mut command = sandboxes
                .command(&rules, &[&[uiw, "run", "--require", "--json", "--"], program].concat());
            command.env("UIW_LIB", libraries.folder()).env_remove("UIW_COUNTERS");
            command
        };
        let port = free_port();
        let mut server = Running::start(RPING.server(port, |program| free(&libraries, program)));
        server.wait_listening(port);
        let client = Running::start(RPING.client(port, reported)).end();
        let report = crate::reported::report(client.well());
        assert_eq!(report["with_others"]["read"]["sent"]["bytes"], 1_000_000, "{report}");
        server.end().well();
    }
}

/// `docs/containers.md` lists the system calls. A process limited to these calls exchanges data;
/// the calls that the program itself and the C library need to start and to exit are permitted as
/// well.
#[test]
fn documented_calls_suffice() {
    everything_succeeds(|sandboxes| {
        vec![sandboxes.permit("kill", &format!("{} {PROGRAMS}", documented()))]
    });
}

/// Every documented call is permitted to system services.
#[test]
fn documented_calls_match_system_services() {
    let permitted = system_service();
    let permitted: Vec<_> = permitted.split_whitespace().collect();
    let calls = documented();
    assert!(calls.split_whitespace().count() > 20, "{calls}");
    for call in calls.split_whitespace() {
        assert!(permitted.contains(&call), "{call} is not in @system-service");
    }
}

/// System calls that any program needs: those of the loader, the C library, the sandbox and `uiw
/// run` itself.
const PROGRAMS: &str = "execve brk access arch_prctl set_tid_address set_robust_list rseq prlimit64 getpid gettid getppid getuid geteuid getgid \
    getegid exit exit_group rt_sigreturn tgkill dup dup2 pipe2 accept getcwd uname clock_gettime gettimeofday sysinfo wait4 membarrier";

/// Returns the text of `docs/containers.md`.
fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/containers.md");
    std::fs::read_to_string(page).expect("the page")
}

/// Returns the block of system calls in the page.
fn documented() -> String {
    let text = page();
    let behind = text.split("```text calls\n").nth(1).expect("the calls");
    behind.split("```").next().expect("an end").to_owned()
}
