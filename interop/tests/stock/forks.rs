//! Tests servers that fork: every child opens its own engine and does not touch the parent's.

use std::fs;
use std::path::Path;
use uiw_interop::stock::{Libraries, ProcessEnd, Running, User, compile, free_port};

#[test]
fn forked_descendants_connect_to_parent() {
    let libraries = Libraries::get();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/forks.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    Running::start(libraries.command(User::Same, program)).end().well();
}

#[test]
fn forks_around_first_use() {
    let libraries = Libraries::get();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/fork_exec.c");
    let Some(program) = compile(&libraries, &source, &["-Wall", "-Wextra", "-Werror"]) else {
        return;
    };
    Running::start(libraries.command(User::Same, program)).end().well();
}

#[test]
fn qperf_serves_a_child_a_client() {
    let Some(_) = uiw_interop::require("qperf") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let number = port.to_string();
    let mut command = libraries.command(User::Same, "qperf");
    command.args(["-lp", &number]);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let tests = [
        "rc_lat",
        "rc_bw",
        "rc_bi_bw",
        "rc_rdma_read_bw",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_fetch_add_mr",
        "rc_compare_swap_mr",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ];
    let mut command = libraries.command(User::Same, "qperf");
    command.args(["-lp", &number, "-t", "1", "-cm1", "127.0.0.1"]).args(tests);
    let client = Running::start(command).end();
    client.well();
    for test in tests {
        assert_eq!(
            client.said.lines().filter(|line| *line == format!("{test}:")).count(),
            1,
            "{client:?}"
        );
    }
    drop(server.stop());
}

/// Number of bytes that fio transfers.
const SIZE: u64 = 2 << 30;

/// Runs the job of one side; fio forks a process for it.
fn job(libraries: &Libraries, name: &str, lines: &[String]) -> Running {
    let file = libraries.folder().join(format!("{name}.fio"));
    let text =
        format!("[{name}]\nioengine=rdma\nbs=64k\nsize={SIZE}\niodepth=8\n{}\n", lines.join("\n"));
    fs::write(&file, text).expect("a job file");
    let mut command = libraries.command(User::Same, "fio");
    command.args(["--output-format=json"]).arg(file);
    Running::start(command)
}

/// Returns the number of bytes that a side counted under `direction`.
fn moved(ended: &ProcessEnd, direction: &str) -> u64 {
    let json = &ended.said[ended.said.find('{').expect("a report")..];
    let report: serde_json::Value = serde_json::Deserializer::from_str(json)
        .into_iter()
        .next()
        .expect("a report")
        .expect("a report in JSON");
    report["jobs"][0][direction]["io_bytes"].as_u64().expect("bytes")
}

fn fio(verb: &str) {
    let Some(_) = uiw_interop::require("fio") else { return };
    let libraries = Libraries::get();
    let port = free_port();
    let server_verb = if verb == "send" { "verb=recv" } else { "" };
    let mut server =
        job(&libraries, "server", &[format!("port={port}"), "rw=read".into(), server_verb.into()]);
    server.wait_listening(port);
    let lines = [
        format!("port={port}"),
        "rw=write".into(),
        "hostname=127.0.0.1".into(),
        format!("verb={verb}"),
    ];
    let client = job(&libraries, "client", &lines).end();
    let server = server.end();
    assert_eq!(moved(client.well(), "write"), SIZE);
    server.well();
    if verb == "send" {
        assert_eq!(moved(&server, "read"), SIZE);
    }
}

/// Three jobs run at once, each in a process whose receiver exits as soon as it has the last
/// message.
#[test]
fn fio_sends_of_three_jobs() {
    let Some(_) = uiw_interop::require("fio") else { return };
    let libraries = Libraries::get();
    let ports = [free_port(), free_port(), free_port()];
    let side = |name: &str, lines: &str| {
        let jobs: String =
            ports.iter().map(|port| format!("[job{port}]\nport={port}\n{lines}\n")).collect();
        let global = "[global]\nioengine=rdma\nbs=64k\nsize=16m\nverb=send\niodepth=16\n";
        let file = libraries.folder().join(format!("{name}.fio"));
        fs::write(&file, format!("{global}{jobs}")).expect("a job file");
        let mut command = libraries.command(User::Same, "fio");
        command.env("UIW_PERSONA", "roce").arg(file);
        Running::start(command)
    };
    let mut server = side("server", "rw=read");
    ports.iter().for_each(|port| server.wait_listening(*port));
    let client = side("client", "rw=write\nhostname=127.0.0.1").end();
    client.well();
    server.end().well();
}

#[test]
fn fio_writes() {
    fio("write");
}

#[test]
fn fio_reads() {
    fio("read");
}

#[test]
fn fio_sends() {
    fio("send");
}
