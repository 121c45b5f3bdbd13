//! NIXL's wheel, which has a UCX and a libibverbs of its own: `cargo xtask interop nixl` installs
//! it and runs this.

use crate::reported::{is_reliable, isolated, number, reliable, report};
use crate::wire::{Capture, Passed};
use std::path::Path;
use uiw_interop::stock::{Libraries, Network, ProcessEnd, Running, free_port};

/// Names a Python that has the wheel.
const PYTHON: &str = "UIW_NIXL_PYTHON";

/// Written and read by the initiator.
const PAYLOAD: u64 = 2 * 8 * (8 << 20);

/// Maximum number of bytes that the programs exchange over TCP: the agents' metadata, addresses of
/// memory, and when to continue.
const OWN_BYTES: u64 = 16 << 10;

/// Two agents that have ended.
struct EndedAgents {
    /// The target's program, the initiator's.
    ends: [ProcessEnd; 2],
    passed: Passed,
    /// The port at which the programs meet.
    port: u16,
}

impl EndedAgents {
    /// Runs on two hosts, without a setting for UCX, under `uiw run` with `options`: one writes to
    /// the other's memory and reads from it, and both compare. Nothing where something is missing;
    /// the test is noted as skipped then.
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
        let initiator = isolated(&libraries, options, &[&python, script, "initiator", &address, &number]);
        let initiator = Running::start(network.client(initiator)).end();
        assert_eq!(initiator.count("8 writes and reads of 8388608 bytes are equal"), 1, "{initiator:?}");
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
        // FPDUs of 64,000 bytes: their headers and CRCs are far less than the 1 % by which the
        // queue pairs' count and the capture may differ.
        let (counted, moved) = (reliable(&report(&agents.ends[1])), agents.passed.uiws_tcp());
        assert!(agents.passed.uiws_datagrams() > 0);
        assert!(counted <= moved && moved - counted <= counted / 100, "{counted} in {moved} bytes");
    }
}

/// Without device nodes the wheel's UCX finds no device: it succeeds on TCP, and the reports and
/// the capture say so.
#[test]
fn hidden_devices_are_noticed() {
    let Some(agents) = EndedAgents::run(&["--require", "--json", "--persona", "roce"]) else { return };
    let said = agents.is_uiws().expect_err("the capture shows TCP of UCX's own");
    assert!(said.contains(" bytes between "), "{said}");
    for end in &agents.ends {
        let report = report(end);
        assert_eq!((end.code, number(&report, "exit_code"), reliable(&report)), (125, 0, 0), "{end:?}");
    }
}
