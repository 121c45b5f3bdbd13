//! Programs that tests are given in a folder, run on two hosts, and the proof that their payload is uiw's.

use crate::counter_files::can_be_there;
use crate::reported::{isolated, number, report};
use crate::wire::{Capture, Passed};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use uiw_interop::stock::{Ended, Libraries, Network, Running, User};
use uiw_interop::tshark::{Dissection, Tshark};

/// A folder with programs.
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// The folder that the variable names. Nothing without it; the test is noted as skipped then, for want of `what`.
    #[track_caller]
    pub(crate) fn given(variable: &str, what: &str) -> Option<Self> {
        let folder = std::env::var_os(variable);
        if folder.is_none() {
            uiw_interop::skip(what);
        }
        folder.map(|folder| Self(folder.into()))
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// A program of it.
    pub(crate) fn path(&self, name: &str) -> String {
        let file = self.0.join(name);
        assert!(file.is_file(), "{} is not there", file.display());
        file.to_str().expect("a path of text").to_owned()
    }
}

/// `programs` with two hosts, whose programs have mounts of their own, and the libraries. Nothing where these cannot be had; the test is noted as
/// skipped then.
#[track_caller]
pub(crate) fn on_two_hosts(programs: Programs) -> Option<(Programs, Network, Libraries)> {
    uiw_interop::require("unshare")?;
    Some((programs, Network::veth()?, Libraries::get()))
}

/// The options of `uiw run` for a persona.
fn options(persona: &str) -> [&str; 4] {
    ["--require", "--json", "--persona", persona]
}

/// A server and a client on two hosts, in namespaces of their own, when both have ended.
pub(crate) fn exchange(
    libraries: &Libraries,
    network: &Network,
    persona: &str,
    port: u16,
    programs: [&[&str]; 2],
) -> [Ended; 2] {
    let [server, client] = programs.map(|program| isolated(libraries, &options(persona), program));
    let mut server = Running::start(network.server(server));
    server.wait_listening(port);
    let client = Running::start(network.client(client)).end();
    [server.end(), client]
}

/// What proves that a client's payload is on queue pairs of uiw: the report of `uiw run`, the counter files of its port, and a capture that
/// tshark dissects.
pub(crate) struct Proof<'a> {
    libraries: &'a Libraries,
    network: &'a Network,
    capture: Capture,
    tshark: Tshark,
}

impl<'a> Proof<'a> {
    /// Begins to capture. Nothing where one of the three cannot be had; the test is noted as skipped then.
    #[track_caller]
    pub(crate) fn begin(libraries: &'a Libraries, network: &'a Network) -> Option<Self> {
        let tshark = Tshark::require()?;
        if !can_be_there(User::Same) {
            return None;
        }
        let capture = Capture::whole_of_ends(libraries, network)?;
        Some(Self { libraries, network, capture, tshark })
    }

    /// The client, with its port's counters behind what it says.
    pub(crate) fn client(&self, persona: &str, program: &[&str]) -> Command {
        let script = "\"$@\"; code=$?; cd /sys/class/infiniband/uiw_veth0/ports/1/counters; \
                      echo counted $(cat port_xmit_data) $(cat port_rcv_data); exit $code";
        let words = [&["sh", "-c", script, "sh"], program].concat();
        let mut client = isolated(self.libraries, &[&options(persona)[..], &["--sysfs"]].concat(), &words);
        // What other tests count on such an address is not there.
        let runtime = self.libraries.folder().join("runtime");
        if !runtime.exists() {
            fs::create_dir(&runtime).expect("a runtime directory");
            fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("its rights");
        }
        client.env("XDG_RUNTIME_DIR", runtime);
        self.network.client(client)
    }

    /// The three agree within 1 % that the client has moved `payload` bytes or more, and nothing else passed but at most `limit` bytes at
    /// the program's own port.
    #[track_caller]
    pub(crate) fn holds(self, client: &Ended, payload: u64, control: Option<u16>, limit: u64) {
        let report = report(client.well());
        let reported = number(&report, "bytes_sent") + number(&report, "bytes_received");
        assert!(reported >= payload, "{reported} of {payload}: {report}");
        let counted = client.said.lines().find_map(|line| line.strip_prefix("counted "));
        let counted = counted.unwrap_or_else(|| panic!("{client:?}")).split(' ');
        let counted = 4 * counted.map(|words| words.parse::<u64>().expect("a number")).sum::<u64>();
        let file = self.capture.end_file();
        let found = self.tshark.dissect(&file).expect("tshark");
        assert_eq!(found.malformed, 0, "what tshark calls malformed");
        let captured = payload_of(&found);
        for other in [counted, captured] {
            assert!(
                reported.abs_diff(other) <= reported / 100,
                "{reported} reported, {counted} counted, {captured} captured"
            );
        }
        let alone = Passed::read(&file).is_uiws_but_for(|end| Some(end.port()) == control, limit);
        assert_eq!(alone, Ok(()));
    }
}

/// Payload of Writes, Read Responses and Sends. ULPDU_Length has the headers of DDP and RDMAP in it: 14 bytes of a tagged message, 18 of
/// an untagged one (RFC 5041 section 4, RFC 5040 section 4.1).
fn payload_of(dissection: &Dissection) -> u64 {
    let payloads = dissection.fpdus.iter().filter_map(|fpdu| {
        let headers = if fpdu.tagged? { 14 } else { 18 };
        matches!(fpdu.opcode?, 0 | 2..=6).then(|| u64::from(fpdu.ulpdu_length.unwrap_or(headers) - headers))
    });
    payloads.sum()
}
