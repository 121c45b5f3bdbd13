//! Mooncake's wheel: `cargo xtask interop mooncake` installs it and runs this.

use crate::reported::{is_reliable, isolated, report};
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Hosts, Libraries, Network, Running, User, free_port};

/// Names a Python that has the wheel.
const PYTHON: &str = "UIW_MOONCAKE_PYTHON";

/// The Python that has the wheel, and the programs' script. Nothing where the wheel is missing; the test is noted as skipped then.
#[track_caller]
fn wheel() -> Option<(String, String)> {
    let Ok(python) = std::env::var(PYTHON) else {
        uiw_interop::skip("Mooncake's wheel: cargo xtask interop mooncake");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/mooncake_peer.py");
    Some((python, script.to_str().expect("a path of text").to_owned()))
}

/// Without a setting for uiw but the device nodes and the RoCE device that Mooncake looks for.
const OPTIONS: [&str; 5] = ["--require", "--json", "--sysfs", "--persona", "roce"];

/// Engines on two hosts: one writes to the other's memory and reads from it.
#[test]
fn a_transfer_engine_writes_and_reads() {
    let (Some((python, script)), Some(_), Some(network)) =
        (wheel(), uiw_interop::require("unshare"), Network::veth())
    else {
        return;
    };
    let libraries = Libraries::get();
    let (port, own, other) =
        (free_port().to_string(), network.server_address().to_string(), network.client_address().to_string());
    let target = isolated(&libraries, &OPTIONS, &[&python, &script, "target", &own, &port]);
    let target = Running::start(network.server(target));
    let initiator = isolated(&libraries, &OPTIONS, &[&python, &script, "initiator", &other, &own, &port]);
    let initiator = Running::start(network.client(initiator)).end();
    assert_eq!(
        initiator.well().count("8 writes and reads of 8388608 bytes are equal"),
        1,
        "{initiator:?}\n{:?}",
        target.said()
    );
    for end in [target.end(), initiator] {
        is_reliable(&report(end.well()), 2 * 8 * (8 << 20));
    }
}

/// A store of three programs on hosts of their own: each object is read by two of them. One is killed; what the others hold is still read,
/// and objects are stored.
#[test]
fn a_store_outlives_a_killed_program() {
    let (Some((python, script)), Some(_), Some(hosts)) =
        (wheel(), uiw_interop::require("unshare"), Hosts::new(3))
    else {
        return;
    };
    let libraries = Libraries::get();
    let port = free_port();
    let mut master = libraries.command(User::Same, PathBuf::from(&python).with_file_name("mooncake_master"));
    master.args([
        &format!("--rpc_port={port}"),
        &format!("--metrics_port={}", free_port()),
        // Soon after the end of a program its memory is given out no more.
        "--client_ttl=5",
    ]);
    let mut master = Running::start(hosts.at_switch(master));
    master.wait_listening(port);
    let master_address = format!("{}:{port}", hosts.switch_address());
    let places: Vec<_> = hosts.places().map(|(address, _)| address).collect();
    let number = free_port().to_string();
    let texts: Vec<_> = places.iter().map(ToString::to_string).collect();
    let start = |host: usize, role: &[&str]| {
        let words =
            [&[python.as_str(), &script, role[0], &texts[host], &master_address], &role[1..], &[&number]];
        Running::start(hosts.at(places[host], isolated(&libraries, &OPTIONS, &words.concat())))
    };
    let writer = start(0, &["writer"]);
    let readers = [1, 2].map(|host| start(host, &["reader", &texts[0]]));
    let writer = writer.end();
    let readers = readers.map(Running::end);
    assert_eq!(writer.well().count("1000 objects are equal"), 1, "{writer:?}\n{readers:?}");
    // About two of three objects of 33 KiB on average are in another program's memory.
    let payload = 16 << 20;
    is_reliable(&report(&writer), payload);
    let killed = readers.iter().filter(|reader| reader.code == 128 + 9).count();
    assert_eq!(killed, 1, "{readers:?}");
    for reader in readers {
        is_reliable(&report(&reader), payload);
    }
}
