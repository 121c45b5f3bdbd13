//! NIXL's wheel, which has a UCX and a libibverbs of its own: `cargo xtask interop nixl` installs it and runs this.

use crate::reported::{is_reliable, isolated, report};
use std::path::Path;
use uiw_interop::stock::{Libraries, Network, Running, free_port};

/// Names a Python that has the wheel.
const PYTHON: &str = "UIW_NIXL_PYTHON";

/// Agents on two hosts, without a setting for UCX: one writes to the other's memory and reads from it.
#[test]
fn nixl_writes_and_reads() {
    let Ok(python) = std::env::var(PYTHON) else {
        return uiw_interop::skip("NIXL's wheel: cargo xtask interop nixl");
    };
    let (Some(_), Some(network)) = (uiw_interop::require("unshare"), Network::veth()) else { return };
    let libraries = Libraries::get();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/nixl_peer.py");
    let script = script.to_str().expect("a path of text");
    for persona in ["roce", "ib"] {
        let port = free_port();
        let number = port.to_string();
        let options = ["--require", "--json", "--sysfs", "--persona", persona];
        let target = isolated(&libraries, &options, &[&python, script, "target", &number]);
        let mut target = Running::start(network.server(target));
        target.wait_listening(port);
        let address = network.server_address().to_string();
        let initiator = isolated(&libraries, &options, &[&python, script, "initiator", &address, &number]);
        let initiator = Running::start(network.client(initiator)).end();
        assert_eq!(
            initiator.well().count("8 writes and reads of 8388608 bytes are equal"),
            1,
            "{initiator:?}"
        );
        for end in [target.end(), initiator] {
            is_reliable(&report(end.well()), 2 * 8 * (8 << 20));
        }
    }
}
