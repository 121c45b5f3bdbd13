//! The proof that a program's payload is on queue pairs of uiw.

use crate::reported::{isolated, number, report};
use crate::wire::{Capture, Passed};
use std::process::Command;
use uiw_interop::stock::{Libraries, Network, ProcessEnd};
use uiw_interop::tshark::{Dissection, Tshark};

/// The options of `uiw run` for a persona.
pub(crate) fn options(persona: &str) -> [&str; 4] {
    ["--require", "--json", "--persona", persona]
}

/// Proof that a client's payload is on queue pairs of uiw: the report of `uiw run`, and a
/// capture that tshark dissects.
pub(crate) struct Proof<'a> {
    libraries: &'a Libraries,
    network: &'a Network,
    capture: Capture,
    tshark: Tshark,
}

impl<'a> Proof<'a> {
    /// Begins to capture. Nothing where one of the two cannot be had; the test is noted as skipped
    /// then.
    #[track_caller]
    pub(crate) fn begin(libraries: &'a Libraries, network: &'a Network) -> Option<Self> {
        let tshark = Tshark::require()?;
        let capture = Capture::whole_of_ends(libraries, network)?;
        Some(Self { libraries, network, capture, tshark })
    }

    /// The client under `uiw run` with `options` and `--sysfs`.
    pub(crate) fn client(&self, options: &[&str], program: &[&str]) -> Command {
        self.network.client(isolated(self.libraries, &[options, &["--sysfs"]].concat(), program))
    }

    /// Both agree within 1 % that the client has moved `payload` bytes or more, and nothing else
    /// passed but at most `limit` bytes at the program's own port.
    #[track_caller]
    pub(crate) fn holds(self, client: &ProcessEnd, payload: u64, control: Option<u16>, limit: u64) {
        let report = report(client.well());
        let reported = number(&report, "bytes_sent") + number(&report, "bytes_received");
        assert!(reported >= payload, "{reported} of {payload}: {report}");
        let file = self.capture.end_file();
        let found = self.tshark.dissect(&file).expect("tshark");
        assert_eq!(found.malformed, 0, "what tshark calls malformed");
        let captured = payload_of(&found);
        assert!(reported.abs_diff(captured) <= reported / 100, "{reported} reported, {captured} captured");
        let alone = Passed::read(&file).is_uiws_but_for(|end| Some(end.port()) == control, limit);
        assert_eq!(alone, Ok(()));
    }
}

/// Payload of Writes, Read Responses and Sends, and the value in each Atomic Response. ULPDU_Length
/// has the headers of DDP and RDMAP in it: 14 bytes of a tagged message, 18 of an untagged one (RFC
/// 5041 section 4, RFC 5040 section 4.1, RFC 7306 section 5.2).
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
