//! Tests `uiw run --require` with stock programs that transfer data over uiw and with programs that
//! do not.

use crate::reported::{number, report, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{
    Libraries, ProcessEnd, Running, User, WaitLimit, compile, free_port, run_by, uiw,
};

/// Repeats a client until its server listens. The server is a child of `uiw run`, so its process
/// number, which would show whether it listens, is not known.
fn until(connected: impl Fn(&ProcessEnd) -> bool, client: impl Fn() -> Command) -> ProcessEnd {
    let mut limit = WaitLimit::new(Duration::from_secs(60));
    loop {
        let ended = Running::start(client()).end();
        if connected(&ended) || limit.is_over() {
            return ended;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs rping's server and a client started by `around`, with 1000 messages of 5000 bytes. Returns
/// the reports of both.
fn rpings(libraries: &Libraries, around: &[&str]) -> [ProcessEnd; 2] {
    let port = free_port();
    let number = port.to_string();
    let options = ["--require", "--json"];
    let common = ["-a", "127.0.0.1", "-p", &number, "-C", "1000", "-S", "5000", "-V"];
    let server =
        Running::start(run(libraries, &options, &[&["rping", "-s"][..], &common].concat()));
    let client = until(
        |client| client.count("error -111") == 0,
        || run(libraries, &options, &[around, &["rping", "-c"], &common].concat()),
    );
    [server.end(), client]
}

/// The server of rping moves the data with a Read and a Write, and each end announces them with a
/// Send of 16 bytes.
fn are_of_rping(reports: [&Value; 2]) {
    for (report, own, peers) in [(reports[0], "received", "sent"), (reports[1], "sent", "received")]
    {
        assert_eq!((number(report, "processes"), number(report, "exit_code")), (1, 0), "{report}");
        assert_eq!(
            (number(report, "queue_pairs_created"), number(report, "connections")),
            (1, 1),
            "{report}"
        );
        let moved = &report["with_others"];
        assert_eq!(moved["read"][own]["bytes"], 5_000_000, "{report}");
        assert_eq!(moved["write"][peers]["bytes"], 5_000_000, "{report}");
        let library = report["libraries"].as_object().unwrap().keys().next().unwrap();
        assert!(library.contains("libibverbs"), "{library}");
    }
    assert_eq!(reports[0]["bytes_sent"], reports[1]["bytes_received"]);
    assert_eq!(reports[0]["bytes_received"], reports[1]["bytes_sent"]);
}

#[test]
fn both_ends_report_what_rping_moved() {
    let Some(_) = uiw_interop::require("rping") else { return };
    let libraries = Libraries::get();
    let [server, client] = rpings(&libraries, &[]);
    are_of_rping([&report(server.well()), &report(client.well())]);
}

/// On UD queue pairs alone, the payload is shown separately and counts as transferred.
#[test]
fn both_ends_report_datagrams() {
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let libraries = Libraries::get();
    let port = free_port().to_string();
    let program =
        ["ibv_ud_pingpong", "-d", "uiw_lo", "-g", "0", "-s", "1000", "-n", "300", "-p", &port];
    let command = |more: &[&str]| {
        let mut command = run(&libraries, &["--require", "--json"], &[&program[..], more].concat());
        command.env("UIW_PERSONA", "roce");
        command
    };
    let server = Running::start(command(&[]));
    let client = until(|client| client.code == 0, || command(&["127.0.0.1"]));
    for ended in [server.end(), client] {
        let report = report(ended.well());
        assert_eq!(
            (&report["moved_payload"], number(&report, "connections")),
            (&true.into(), 0),
            "{report}"
        );
        assert_eq!(
            (number(&report, "bytes_sent"), number(&report, "bytes_received")),
            (0, 0),
            "{report}"
        );
        for direction in ["sent", "received"] {
            assert_eq!(report["datagrams"]["with_others"][direction]["bytes"], 300_000, "{report}");
        }
    }
}

/// A few datagrams do not count, because libraries use them to set up connections before they
/// choose another transport.
#[test]
fn few_datagrams_do_not_meet_require() {
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let libraries = Libraries::get();
    for (option, code) in [("--require", 125), ("--require=any", 0)] {
        let port = free_port().to_string();
        let program =
            ["ibv_ud_pingpong", "-d", "uiw_lo", "-g", "0", "-s", "100", "-n", "10", "-p", &port];
        let command = |more: &[&str]| {
            let mut command = run(&libraries, &[option], &[&program[..], more].concat());
            command.env("UIW_PERSONA", "roce");
            command
        };
        let server = Running::start(command(&[]));
        let client = until(|client| client.count("iters in") > 0, || command(&["127.0.0.1"]));
        for ended in [server.end(), client] {
            assert_eq!(
                (ended.code, ended.count("by datagrams 1,000 bytes sent")),
                (code, 1),
                "{ended:?}"
            );
            assert_eq!(
                ended.count("--require=any accepts that"),
                usize::from(code != 0),
                "{ended:?}"
            );
        }
    }
}

/// On a connected queue pair even 32 bytes count as payload.
#[test]
fn few_bytes_on_connection_meet_require() {
    let Some(_) = uiw_interop::require("ibv_rc_pingpong") else { return };
    let libraries = Libraries::get();
    let port = free_port().to_string();
    let program =
        ["ibv_rc_pingpong", "-d", "uiw_lo", "-g", "0", "-s", "16", "-n", "1", "-p", &port];
    let command = |more: &[&str]| run(&libraries, &["--require"], &[&program[..], more].concat());
    let server = Running::start(command(&[]));
    let client = until(|client| client.code == 0, || command(&["127.0.0.1"]));
    client.well();
    server.end().well();
}

/// `uiw stat` shows UD queue pairs of running programs and the datagrams of programs that have
/// exited.
#[test]
fn stat_shows_datagrams() {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    let Some(_) = uiw_interop::require("ibv_ud_pingpong") else { return };
    let libraries = Libraries::get();
    let directory = libraries.folder().join("runtime");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    let port = free_port();
    let command = || {
        let mut command = libraries.command(User::Same, "ibv_ud_pingpong");
        command.args([
            "-d",
            "uiw_lo",
            "-g",
            "0",
            "-s",
            "1000",
            "-n",
            "300",
            "-p",
            &port.to_string(),
        ]);
        command
            .env("UIW_PERSONA", "roce")
            .env_remove("UIW_COUNTERS")
            .env("XDG_RUNTIME_DIR", &directory);
        command
    };
    let stat = |args: &[&str]| {
        let mut command = Command::new(uiw());
        command.arg("stat").args(args).env("XDG_RUNTIME_DIR", &directory);
        command
    };
    let mut server = Running::start(command());
    server.wait_listening(port);
    let mut metrics = Running::start(stat(&["--prometheus", "127.0.0.1:0"]));
    metrics.wait_saying("listening on ");
    let said = metrics.said();
    let address = said.trim().rsplit(' ').next().unwrap();
    let mut scrape =
        std::net::TcpStream::connect(address).unwrap_or_else(|error| panic!("{said}: {error}"));
    scrape.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    scrape.read_to_string(&mut text).unwrap();
    let _ = metrics.stop();
    for name in [
        "uiw_datagram_queue_pair_bytes_total{",
        "uiw_datagram_bytes_total{",
        "reason=\"no_receive\"} 0",
    ] {
        assert!(text.contains(name), "{name} in {text}");
    }
    let mut client = command();
    client.arg("127.0.0.1");
    Running::start(client).end().well();
    server.end().well();
    // Exited programs are reported only once, in either form.
    let said = stat(&["--all", "--json", "--interval", "0"]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let processes: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(processes.len(), 2, "{said}");
    for process in processes {
        let datagrams = &process["total"]["datagrams"];
        assert_eq!(datagrams["traffic"]["sent"]["bytes"], 300_000, "{process}");
        assert_eq!(datagrams["with_others"]["received"]["messages"], 300, "{process}");
    }
}

/// Tests a program in a PID namespace of its own and one that has changed its user.
#[test]
fn namespaces_and_other_users_are_counted() {
    let Some(_) = uiw_interop::require("rping") else { return };
    if !rustix::process::geteuid().is_root() {
        return uiw_interop::skip("root, for namespaces and other users");
    }
    let libraries = Libraries::get();
    for (program, around) in [
        ("unshare", &["unshare", "--pid", "--fork"][..]),
        ("setpriv", &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]),
    ] {
        if uiw_interop::require(program).is_none() {
            continue;
        }
        let [server, client] = rpings(&libraries, around);
        are_of_rping([&report(server.well()), &report(client.well())]);
    }
}

/// Each child of a fork opens an engine of its own, and none writes to the file of another one. The
/// sum of sent bytes therefore equals the sum of received bytes.
#[test]
fn forked_processes_summed() {
    let libraries = Libraries::get();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/forks.c");
    let Some(program) = compile(&libraries, &source, &[]) else { return };
    let ended =
        Running::start(run(&libraries, &["--require", "--json"], &[program.to_str().unwrap()]))
            .end();
    let report = report(ended.well());
    assert!(number(&report, "processes") >= 2, "{report}");
    assert!(number(&report, "bytes_sent") > 0, "{report}");
    assert_eq!(report["bytes_sent"], report["bytes_received"]);
}

#[test]
fn killed_program_reported_with_exit_code() {
    let libraries = Libraries::get();
    let ended =
        Running::start(run(&libraries, &["--require", "--json"], &["sh", "-c", "kill -9 $$"]))
            .end();
    assert_eq!((ended.code, number(&report(&ended), "exit_code")), (137, 137));
    let ended = Running::start(run(&libraries, &["--require"], &["sh", "-c", "exit 3"])).end();
    assert_eq!((ended.code, ended.count("no process opened a device")), (3, 1), "{ended:?}");
    let ended = Running::start(run(&libraries, &["--require"], &["/nonexistent/program"])).end();
    assert_eq!(ended.code, 127);
}

/// These programs succeed, but transfer nothing over uiw.
#[test]
fn other_transports_end_with_125() {
    let libraries = Libraries::get();
    let is_refused = |program: &[&str]| {
        let ended = Running::start(run(&libraries, &["--require"], program)).end();
        assert_eq!(ended.code, 125, "{ended:?}");
        assert_eq!(ended.count("hint: "), 1, "{ended:?}");
    };
    is_refused(&["true"]);
    // The program opens a device, but transfers nothing.
    if uiw_interop::require("ibv_devinfo").is_some() {
        is_refused(&["ibv_devinfo"]);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c");
    if let Some(program) =
        compile(&libraries, &folder.join("deepbind.c"), &["-Wall", "-Werror", "-ldl"])
    {
        let system = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
        if Path::new(system).exists() {
            is_refused(&[program.to_str().unwrap(), system]);
        } else {
            uiw_interop::skip("libibverbs1");
        }
    }
    // A static binary ignores LD_LIBRARY_PATH.
    if let Some(cc) = uiw_interop::require("cc") {
        let (source, program) =
            (libraries.folder().join("static.c"), libraries.folder().join("static"));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let status =
            Command::new(cc).arg("-static").arg("-o").arg(&program).arg(&source).status().unwrap();
        assert!(status.success());
        is_refused(&[program.to_str().unwrap()]);
    }
}

#[test]
fn ucx_on_tcp_ends_with_125() {
    let Some(_) = uiw_interop::require("ucx_perftest") else { return };
    let libraries = Libraries::get();
    let port = free_port().to_string();
    let command = |more: &[&str]| {
        let program = ["ucx_perftest", "-t", "tag_lat", "-n", "100", "-p", &port];
        let mut command = run(&libraries, &["--require"], &[&program[..], more].concat());
        command.env("UCX_TLS", "tcp,self");
        command
    };
    let server = Running::start(command(&[]));
    let client = until(|client| client.code == 125, || command(&["127.0.0.1"]));
    let server = server.end();
    assert_eq!((client.code, server.code), (125, 125), "{client:?} {server:?}");
}

/// The current directory is never among the folders in which the loader searches for libraries.
#[test]
fn current_directory_is_no_library_folder() {
    let libraries = Libraries::get();
    for before in [None, Some(""), Some(":/there:")] {
        let mut command = run(&libraries, &[], &["printenv", "LD_LIBRARY_PATH"]);
        if let Some(before) = before {
            command.env("LD_LIBRARY_PATH", before);
        }
        let said = Running::start(command).end().said;
        assert!(said.trim().split(':').all(|folder| folder.starts_with('/')), "{before:?}: {said}");
    }
}

/// nohup(1) starts programs with SIGHUP ignored, and some parents ignore SIGCHLD.
#[test]
fn ignored_signals_stay_ignored() {
    let libraries = Libraries::get();
    let command = run(&libraries, &["--json"], &["grep", "SigIgn", "/proc/self/status"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP CHLD; exec \"$@\"", "sh"]);
    let ended = Running::start(run_by(shell, &command)).end();
    let mask = ended.said.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    assert_eq!(u64::from_str_radix(mask.trim(), 16).unwrap() & 1, 1, "SIGHUP: {}", ended.said);
    assert_eq!(number(&report(&ended), "exit_code"), 0, "children can be waited for");
}
