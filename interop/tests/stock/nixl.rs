//! Tests the Python wheel of NIXL, which contains its own UCX and libibverbs: `cargo xtask interop
//! nixl` installs it and runs these tests.

use crate::reported::{is_reliable, isolated, number, reliable, report};
use crate::wire::{Capture, Passed};
use std::path::Path;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, free_port};

/// Variable that names a Python interpreter with the wheel.
const PYTHON: &str = "UIW_NIXL_PYTHON";

/// Number of bytes that the initiator writes and reads.
const PAYLOAD: u64 = 2 * 8 * (8 << 20);

/// Maximum number of bytes that the programs exchange over TCP: the agents' metadata, memory
/// addresses, and signals to continue.
const OWN_BYTES: u64 = 16 << 10;

/// Two agents after they have ended.
struct EndedAgents {
    /// Results of the target and of the initiator.
    ends: [ProcessEnd; 2],
    passed: Passed,
    /// Port used by the programs to meet.
    port: u16,
}

impl EndedAgents {
    /// Runs two agents on two hosts under `uiw run` with `options` and without a setting for UCX:
    /// one writes to the other's memory and reads from it, and both compare the data. If something
    /// is missing, returns `None` and counts the test as skipped.
    #[track_caller]
    fn run(options: &[&str]) -> Option<Self> {
        let Ok(python) = std::env::var(PYTHON) else {
            uiw_interop::skip("NIXL's wheel: cargo xtask interop nixl");
            return None;
        };
        uiw_interop::require("unshare")?;
        let network = Network::veth()?;
        let libraries = Libraries::get();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/nixl_peer.py");
        let script = script.to_str().expect("a path of text");
        let (port, address) = (free_port(), network.server_address().to_string());
        let number = port.to_string();
        let capture = Capture::of_ends(&libraries, &network)?;
        let target = isolated(&libraries, options, &[&python, script, "target", &number]);
        let mut target = Running::start(network.server(target));
        target.wait_listening(port);
        let initiator =
            isolated(&libraries, options, &[&python, script, "initiator", &address, &number]);
        let initiator = Running::start(network.client(initiator)).end();
        assert_eq!(
            initiator.count("8 writes and reads of 8388608 bytes are equal"),
            1,
            "{initiator:?}"
        );
        Some(Self { ends: [target.end(), initiator], passed: capture.end(), port })
    }

    /// Asserts that only uiw's traffic and the side channel of the programs were on the wire.
    fn is_uiws(&self) -> Result<(), String> {
        self.passed.is_uiws_but_for(|end| end.port() == self.port, OWN_BYTES)
    }
}

#[test]
fn nixl_writes_and_reads() {
    for persona in ["roce", "ib"] {
        let options = ["--require", "--json", "--sysfs", "--persona", persona];
        let Some(agents) = EndedAgents::run(&options) else { return };
        for end in &agents.ends {
            is_reliable(&report(end.well()), PAYLOAD);
        }
        assert_eq!(agents.is_uiws(), Ok(()));
        // The FPDUs have 64,000 bytes, so their headers and CRCs are far less than the permitted
        // difference of 1 % between the counters of the queue pairs and the capture.
        let (counted, moved) = (reliable(&report(&agents.ends[1])), agents.passed.uiws_tcp());
        assert!(agents.passed.uiws_datagrams() > 0);
        assert!(counted <= moved && moved - counted <= counted / 100, "{counted} in {moved} bytes");
    }
}

/// Without device nodes, the UCX of the wheel finds no device. It succeeds on TCP, and the reports
/// and the capture show this.
#[test]
fn hidden_devices_are_noticed() {
    let Some(agents) = EndedAgents::run(&["--require", "--json", "--persona", "roce"]) else {
        return;
    };
    let said = agents.is_uiws().expect_err("the capture shows TCP of UCX's own");
    assert!(said.contains(" bytes between "), "{said}");
    for end in &agents.ends {
        let report = report(end);
        assert_eq!(
            (end.code, number(&report, "exit_code"), reliable(&report)),
            (125, 0, 0),
            "{end:?}"
        );
    }
}
