//! Tests captures that stock programs write.

use std::fs;
use std::thread;
use std::time::Duration;
use uiw::blocking::Connection;
use uiw::{ConnectionConfig, Device};
use uiw_interop::stock::{Libraries, Running, User, WaitLimit, free_port};
use uiw_interop::tshark::Tshark;

/// File size in bytes above which a capture contains a connection, not only the headers of the
/// file.
const SOME: u64 = 600;

#[test]
fn capture_of_killed_program() {
    let (Some(_), Some(tshark)) = (uiw_interop::require("rping"), Tshark::require()) else {
        return;
    };
    let libraries = Libraries::get();
    let file = libraries.folder().join("killed.pcapng");
    let port = free_port();
    let mut command = libraries.command(User::Same, "rping");
    command.args(["-s", "-p", &port.to_string()]).env("UIW_PCAP", &file);
    let mut server = Running::start(command);
    server.wait_listening(port);
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let connection =
        Connection::connect(&pd, ([127, 0, 0, 1], port).into(), &ConnectionConfig::default())
            .unwrap();
    // The connection is idle now, but its capture must be written nevertheless.
    let mut limit = WaitLimit::new(Duration::from_secs(60));
    while fs::metadata(&file).map_or(0, |file| file.len()) < SOME {
        assert!(!limit.is_over(), "nothing was written while the program lived");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stop().code, 128 + 9);
    let found = tshark.dissect(&file).unwrap();
    assert_eq!((found.requests, found.replies, found.malformed), (1, 1, 0), "{found:?}");
    assert!(!found.fpdus.is_empty(), "the peer's first FPDU is there");
    drop(connection);
}
