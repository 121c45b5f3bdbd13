//! Tests QEMU's migration over RDMA: the memory of a running machine moves from one host to
//! another.

use crate::reported::{number, report, run};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Libraries, Network, Running, WaitLimit, free_port, noise};

const LONGEST: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Address of the pattern in the machine's memory, above the memory that the firmware uses.
const AT: &str = "0x2000000";
const LEN: usize = 32 << 20;

fn machine(libraries: &Libraries, monitor: &Path, more: &[&str]) -> Command {
    let monitor = format!("unix:{},server,nowait", monitor.display());
    let program = [
        "qemu-system-x86_64",
        "-accel",
        "tcg",
        "-nodefaults",
        "-display",
        "none",
        "-m",
        "128",
        "-monitor",
        &monitor,
    ];
    run(libraries, &["--require", "--json"], &[&program, more].concat())
}

/// Sends a line to a monitor and returns its output up to the next prompt.
fn say(monitor: &Path, line: &str) -> String {
    let mut limit = WaitLimit::new(LONGEST);
    let mut stream = loop {
        match UnixStream::connect(monitor) {
            Ok(stream) => break stream,
            Err(error) => assert!(!limit.is_over(), "{}: {error}", monitor.display()),
        }
        std::thread::sleep(LOOK_EVERY);
    };
    stream.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut said = String::new();
    let mut bytes = [0; 4096];
    // The monitor prints a prompt at the start and after its answer.
    while said.matches("(qemu)").count() < 2 {
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => said.push_str(&String::from_utf8_lossy(&bytes[..count])),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            // Linux does not restart a read with a timeout after a signal has interrupted it.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
                    && !limit.is_over() => {}
            Err(error) => panic!("{line}: {error}: {said}"),
        }
    }
    said
}

#[test]
fn memory_arrives_unchanged() {
    let (Some(_), Some(network)) = (uiw_interop::require("qemu-system-x86_64"), Network::veth())
    else {
        return;
    };
    let libraries = Libraries::get();
    let folder = libraries.folder();
    let (pattern, arrived) = (folder.join("pattern"), folder.join("arrived"));
    let bytes = noise(LEN);
    fs::write(&pattern, &bytes).unwrap();
    let port = free_port();
    let to = format!("rdma:{}:{port}", network.server_address());

    let (here, there) = (folder.join("here"), folder.join("there"));
    let destination =
        Running::start(network.server(machine(&libraries, &there, &["-incoming", &to])));
    let loader = format!("loader,file={},addr={AT},force-raw=on", pattern.display());
    let source = Running::start(network.client(machine(&libraries, &here, &["-device", &loader])));
    // The destination's monitor answers once it listens for the migration.
    say(&there, "info status");
    say(&here, &format!("migrate -d {to}"));
    let mut limit = WaitLimit::new(LONGEST);
    let status = loop {
        let status = say(&here, "info migrate");
        if !status.contains("Migration status: active")
            && !status.contains("Migration status: setup")
        {
            break status;
        }
        assert!(!limit.is_over(), "{status}");
        std::thread::sleep(LOOK_EVERY);
    };
    assert!(
        status.contains("Migration status: completed"),
        "{status}\n{}\n{}",
        source.said(),
        destination.said()
    );
    say(&there, &format!("pmemsave {AT} {LEN} \"{}\"", arrived.display()));
    assert!(fs::read(&arrived).unwrap() == bytes, "the memory differs");

    for (monitor, running, moved) in
        [(&here, source, "bytes_sent"), (&there, destination, "bytes_received")]
    {
        say(monitor, "quit");
        let ended = running.end();
        let report = report(ended.well());
        assert!(number(&report, moved) >= LEN as u64, "{report}");
    }
}
