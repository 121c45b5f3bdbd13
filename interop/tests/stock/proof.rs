//! Proves that the payload of a program is transferred by queue pairs of uiw.

use crate::reported::{isolated, number, report};
use crate::wire::{Capture, Passed};
use std::process::Command;
use uiw_interop::stock::{Libraries, Network, ProcessEnd};
use uiw_interop::tshark::{Dissection, Tshark};

/// Returns the options of `uiw run` for a persona.
pub(crate) fn options(persona: &str) -> [&str; 4] {
    ["--require", "--json", "--persona", persona]
}

/// Proof that a client's payload is transferred by queue pairs of uiw, consisting of the report of
/// `uiw run` and a capture dissected by tshark.
pub(crate) struct Proof<'a> {
    libraries: &'a Libraries,
    network: &'a Network,
    capture: Capture,
    tshark: Tshark,
}

impl<'a> Proof<'a> {
    /// Starts the capture. If dumpcap or tshark is missing, returns `None` and counts the test as
    /// skipped.
    #[track_caller]
    pub(crate) fn begin(libraries: &'a Libraries, network: &'a Network) -> Option<Self> {
        let tshark = Tshark::require()?;
        let capture = Capture::whole_of_ends(libraries, network)?;
        Some(Self { libraries, network, capture, tshark })
    }

    /// Returns the command that runs the client under `uiw run` with `options` and `--sysfs`.
    pub(crate) fn client(&self, options: &[&str], program: &[&str]) -> Command {
        self.network.client(isolated(self.libraries, &[options, &["--sysfs"]].concat(), program))
    }

    /// Asserts that the report and the capture agree within 1 % that the client has transferred at
    /// least `payload` bytes, and that nothing else passed except at most `limit` bytes at the
    /// program's own port.
    #[track_caller]
    pub(crate) fn holds(self, client: &ProcessEnd, payload: u64, control: Option<u16>, limit: u64) {
        let report = report(client.well());
        let reported = number(&report, "bytes_sent") + number(&report, "bytes_received");
        assert!(reported >= payload, "{reported} of {payload}: {report}");
        let file = self.capture.end_file();
        let found = self.tshark.dissect(&file).expect("tshark");
        assert_eq!(found.malformed, 0, "what tshark calls malformed");
        let captured = payload_of(&found);
        assert!(
            reported.abs_diff(captured) <= reported / 100,
            "{reported} reported, {captured} captured"
        );
        let alone = Passed::read(&file).is_uiws_but_for(|end| Some(end.port()) == control, limit);
        assert_eq!(alone, Ok(()));
    }
}

/// Returns the payload of Writes, Read Responses and Sends, and the values in Atomic Responses.
/// ULPDU_Length includes the headers of DDP and RDMAP: 14 bytes for a tagged message, 18 for an
/// untagged one (RFC 5041 section 4, RFC 5040 section 4.1, RFC 7306 section 5.2).
fn payload_of(dissection: &Dissection) -> u64 {
    let payloads = dissection.fpdus.iter().filter_map(|fpdu| {
        let headers = if fpdu.tagged? { 14 } else { 18 };
        match fpdu.opcode? {
            0 | 2..=6 => Some(u64::from(fpdu.ulpdu_length.unwrap_or(headers) - headers)),
            0xb => Some(8),
            _ => None,
        }
    });
    payloads.sum()
}
