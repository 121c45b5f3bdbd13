//! `uiw cp --dead-after`: what counts are answers of the server's program.

use crate::program::{Scratch, Server, bytes, command, summary, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Output};
use std::time::{Duration, Instant};
use uiw::blocking::Listener;
use uiw::{ConnectionConfig, Device};
use uiw_copy::journal::{Journal, Record};
use uiw_copy::meta::Meta;
use uiw_copy::names::RelPath;
use uiw_copy::protocol::{BLOCK, FileHead};
use uiw_copy::root::Root;

/// `--dead-after` of these tests, and how much longer a transfer may take to end.
const DEAD_AFTER: Duration = Duration::from_secs(4);
const SLACK: Duration = Duration::from_secs(2);

fn begin(scratch: &Scratch, arguments: &[&str]) -> Child {
    command(scratch.path()).args(["cp", "--dead-after", "4s"]).args(arguments).spawn().unwrap()
}

/// The output of a transfer whose server is silent since `silent`.
fn ends(client: Child, silent: Instant) -> Output {
    let output = client.wait_with_output().unwrap();
    let (took, error) = (silent.elapsed(), text(&output.stderr));
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(took <= DEAD_AFTER + SLACK, "{took:?}: {error}");
    let seconds = DEAD_AFTER.as_secs();
    assert!(
        (seconds..=seconds + SLACK.as_secs())
            .any(|time| error.contains(&format!("no answer for {time} s"))),
        "{error}"
    );
    assert!(error.contains("hint: run the command again to continue"), "{error}");
    output
}

fn stop(server: &Server) {
    let process = Pid::from_raw(server.id().cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
}

/// Waits until the incomplete file has some blocks.
fn wait_for_blocks(path: &std::path::Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::metadata(path).map_or(0, |data| data.len()) < 40 + 3 * 56 {
        assert!(Instant::now() < deadline, "no progress");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn stopped_server_ends_a_download() {
    let scratch = Scratch::new();
    fs::write(scratch.directory("served").join("large"), bytes(24 << 20, 1)).unwrap();
    let server = Server::start(scratch.path(), &["--share", "s=served"]);
    let client = begin(&scratch, &["--limit", "2M", &format!("{}:s/large", server.address), "got"]);
    wait_for_blocks(&scratch.join("got.uiw-journal"));
    stop(&server);
    ends(client, Instant::now());
}

#[test]
fn stopped_server_ends_an_upload() {
    let scratch = Scratch::new();
    scratch.directory("served");
    fs::write(scratch.join("large"), bytes(24 << 20, 2)).unwrap();
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let client = begin(&scratch, &["--limit", "2M", "large", &format!("{}:s/", server.address)]);
    wait_for_blocks(&scratch.join("served/large.uiw-journal"));
    stop(&server);
    ends(client, Instant::now());
}

/// The exit code tells a signal from a server that is silent.
#[test]
fn signal_ends_connection_to_silent_server() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), "content").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("{}:s/", listener.local_addr().unwrap());
    for arguments in [&["cp", "file", &server][..], &["ls", &server]] {
        let client = command(scratch.path()).args(arguments).spawn().unwrap();
        let _accepted = listener.accept().unwrap();
        let process = Pid::from_raw(client.id().cast_signed()).unwrap();
        kill_process(process, Signal::INT).unwrap();
        let output = client.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("interrupted"), "{arguments:?}: {error}");
    }
}

/// Server that accepts every connection, reads, and never answers.
#[test]
fn silent_server_ends_transfer() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let listener =
        Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &ConnectionConfig::default()).unwrap();
    let scratch = Scratch::new();
    let (begun, from) = (Instant::now(), format!("{}:s/x", listener.local_addr()));
    let mut client = begin(&scratch, &[&from, "got"]);
    let mut accepted = Vec::new();
    while client.try_wait().unwrap().is_none() {
        if let Ok(Some(incoming)) = listener.incoming_timeout(Duration::from_millis(50)) {
            let settings = ConnectionConfig::default().private_data(*b"{}");
            accepted.extend(incoming.accept(&pd, &settings).ok());
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the transfer goes on");
    }
    ends(client, begun);
    assert!(!accepted.is_empty());
}

/// The server reads and hashes 16 GiB of an incomplete file, without other traffic. Its bytes are
/// holes, so that they take no room.
#[test]
fn long_server_request_keeps_transfer() {
    const SIZE: u64 = 16 << 30;
    let scratch = Scratch::new();
    let served = scratch.directory("served");
    let source = fs::File::create(scratch.join("large")).unwrap();
    source.set_len(SIZE).unwrap();
    let root = Root::open(scratch.path()).unwrap();
    let path = RelPath::new(b"large").unwrap();
    let head = FileHead { meta: root.meta(&path).unwrap(), path };
    fs::File::create(served.join("large.uiw-part")).unwrap().set_len(SIZE).unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(served.join("large.uiw-journal"));
    let mut journal = Journal::new(file.unwrap());
    journal.restart(&head.meta).unwrap();
    let hash = *blake3::hash(&vec![0; BLOCK as usize]).as_bytes();
    for block in 0..head.blocks() {
        journal.append(&Record::Block(block, hash)).unwrap();
    }
    drop(journal);
    let server = Server::start(scratch.path(), &["--share", "s=served:rw"]);
    let mut command = command(scratch.path());
    command.args([
        "cp",
        "--json",
        "--dead-after",
        "2s",
        "large",
        &format!("{}:s/", server.address),
    ]);
    let done = summary(&command.output().unwrap());
    assert_eq!(
        (&done["copied"], &done["bytes_moved"], &done["connections_lost"]),
        (&1.into(), &0.into(), &0.into()),
        "{done}"
    );
    let copy = fs::metadata(served.join("large")).unwrap();
    assert_eq!(copy.len(), SIZE);
    assert!(
        copy.blocks() < 2048
            && Meta::from_stat(&rustix::fs::stat(served.join("large")).unwrap()).sparse
    );
}
