//! tshark's view of a capture, one record per FPDU.
//!
//! Known faults of tshark 4.0: it assumes Markers in both directions if either end has requested
//! them, it determines the length of the header quoted in a Terminate by the error type instead of
//! the T bit, and its payload heuristics report short Sends as malformed. The heuristics are
//! disabled here.

use std::ffi::OsStr;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io, thread};

use quick_xml::events::{BytesStart, Event};

/// Result of tshark's check of a CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crc {
    /// The CRC is correct.
    Good,
    /// The CRC is wrong.
    Bad,
    /// The CRC was not checked, because the start-up frames have disabled CRCs.
    Unchecked,
}

/// FPDU as tshark dissects it. Fields that tshark does not show are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// Number, from 1, of the packet that completes it.
    pub packet: u64,
    /// ULPDU_Length.
    pub ulpdu_length: Option<u16>,
    /// Result of the check of the CRC.
    pub crc: Crc,
    /// Bytes of the CRC field as a big-endian number, as tshark prints it.
    pub crc_field: Option<u32>,
    /// Number of Markers in it.
    pub markers: u32,
    /// T bit.
    pub tagged: Option<bool>,
    /// L bit.
    pub last: Option<bool>,
    /// RDMAP OpCode.
    pub opcode: Option<u8>,
    /// Tagged: STag.
    pub stag: Option<u32>,
    /// Tagged: TO.
    pub tagged_offset: Option<u64>,
    /// Untagged: QN.
    pub qn: Option<u32>,
    /// Untagged: MSN.
    pub msn: Option<u32>,
    /// Untagged: MO.
    pub mo: Option<u32>,
    /// True if tshark could not dissect all of it.
    pub malformed: bool,
}

/// FPDUs and other packets that tshark found in a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dissection {
    /// FPDUs, in the order of their last bytes.
    pub fpdus: Vec<Fpdu>,
    /// MPA Request Frames.
    pub requests: usize,
    /// MPA Reply Frames.
    pub replies: usize,
    /// Number of packets that contain a part that tshark reports as malformed.
    pub malformed: usize,
}

/// Reason for the failure of a dissection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// tshark could not be started.
    #[error("tshark: {0}")]
    Io(#[from] io::Error),
    /// tshark has failed.
    #[error("tshark ended with {0}: {1}")]
    Status(std::process::ExitStatus, String),
    /// A script of the dissector has failed.
    #[error("tshark: {0}")]
    Script(String),
    /// The output is not valid XML.
    #[error("tshark's output: {0}")]
    Output(#[from] quick_xml::Error),
}

/// tshark of this machine.
#[derive(Clone, Debug)]
pub struct Tshark {
    program: PathBuf,
}

impl Tshark {
    /// Returns tshark. If it is not installed, returns `None`: the calling test is counted as
    /// skipped and must return.
    #[track_caller]
    pub fn require() -> Option<Self> {
        Some(Self { program: crate::require("tshark")? })
    }

    /// Dissects a capture file of any format that tshark reads.
    ///
    /// # Errors
    /// tshark fails, or its output cannot be parsed.
    pub fn dissect(&self, capture: &Path) -> Result<Dissection, Error> {
        let mut child = Command::new(&self.program)
            .args([OsStr::new("-r"), capture.as_os_str()])
            .args(["-n", "-T", "pdml", "-J", "frame iwarp_mpa iwarp_ddp_rdmap _ws.malformed"])
            .args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"])
            .args(["-o", "tcp.desegment_tcp_streams:TRUE"])
            .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
            // Settings of the user must not change the result.
            .env("XDG_CONFIG_HOME", env::temp_dir().join("uiw-no-such-folder"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // A thread reads the complaints, so that tshark never waits for room in one of the pipes.
        let complaint =
            child.stderr.take().map(|stderr| thread::spawn(|| io::read_to_string(stderr)));
        let output = child.stdout.take().map(|output| read(BufReader::new(output)));
        let status = child.wait()?;
        if !status.success() {
            let complaint =
                complaint.and_then(|reader| reader.join().ok()?.ok()).unwrap_or_default();
            return Err(Error::Status(status, complaint));
        }
        output.unwrap_or_else(|| Ok(Dissection::default()))
    }

    /// Returns the values of `fields` in the packets that match `filter`, one row per packet, with
    /// the dissector `script`. Multiple values of a field are separated by commas.
    ///
    /// # Errors
    /// tshark or the script fails.
    pub fn fields(
        &self,
        script: &Path,
        capture: &Path,
        filter: &str,
        fields: &[&str],
    ) -> Result<Vec<Vec<String>>, Error> {
        let mut command = Command::new(&self.program);
        command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(capture);
        command.args(["-n", "-Y", filter, "-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let output =
            command.env("XDG_CONFIG_HOME", env::temp_dir().join("uiw-no-such-folder")).output()?;
        // tshark continues after an error of a script.
        let complaint = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || complaint.contains("Lua") {
            return Err(Error::Script(complaint.into_owned()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }
}

/// Reads PDML: `<packet>`, in it `<proto name>`, in it nested `<field name showname show value>`.
fn read(pdml: impl io::BufRead) -> Result<Dissection, Error> {
    let mut reader = quick_xml::Reader::from_reader(pdml);
    let mut walk = FieldWalk::default();
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        match reader.read_event_into(&mut buffer)? {
            Event::Start(element) | Event::Empty(element) => walk.element(&element)?,
            Event::Eof => return Ok(walk.found),
            _ => {}
        }
    }
}

#[derive(Default)]
struct FieldWalk {
    found: Dissection,
    packet: u64,
    /// Number of FPDUs that were complete before this packet.
    before: usize,
    malformed: bool,
}

impl FieldWalk {
    fn element(&mut self, element: &BytesStart<'_>) -> Result<(), Error> {
        match element.name().as_ref() {
            "packet" => {
                self.packet += 1;
                self.before = self.found.fpdus.len();
                self.malformed = false;
            }
            "proto" | "field" => {
                let [mut name, mut showname, mut show] = [const { String::new() }; 3];
                for attribute in element.attributes() {
                    let attribute = attribute.map_err(quick_xml::Error::from)?;
                    let field = match attribute.key.as_ref() {
                        "name" => &mut name,
                        "showname" => &mut showname,
                        "show" => &mut show,
                        _ => continue,
                    };
                    *field = attribute.value.into_owned();
                }
                self.field(&name, &showname, &show);
            }
            _ => {}
        }
        Ok(())
    }

    fn field(&mut self, name: &str, showname: &str, show: &str) {
        match name {
            "iwarp_mpa.req" => self.found.requests += 1,
            "iwarp_mpa.rep" => self.found.replies += 1,
            "iwarp_mpa.fpdu" => self.found.fpdus.push(Fpdu::new(self.packet)),
            "_ws.malformed" => self.malformed(),
            _ => {
                if let Some(fpdu) =
                    self.found.fpdus.get_mut(self.before..).and_then(<[Fpdu]>::last_mut)
                {
                    fpdu.field(name, showname, show);
                }
            }
        }
    }

    fn malformed(&mut self) {
        if !std::mem::replace(&mut self.malformed, true) {
            self.found.malformed += 1;
        }
        if let Some(fpdu) = self.found.fpdus.get_mut(self.before..).and_then(<[Fpdu]>::last_mut) {
            fpdu.malformed = true;
        }
    }
}

impl Fpdu {
    fn new(packet: u64) -> Self {
        Self {
            packet,
            ulpdu_length: None,
            crc: Crc::Unchecked,
            crc_field: None,
            markers: 0,
            tagged: None,
            last: None,
            opcode: None,
            stag: None,
            tagged_offset: None,
            qn: None,
            msn: None,
            mo: None,
            malformed: false,
        }
    }

    fn field(&mut self, name: &str, showname: &str, show: &str) {
        let number = number(show);
        match name {
            "iwarp_mpa.ulpdulength" => self.ulpdu_length = number.and_then(|n| n.try_into().ok()),
            "iwarp_mpa.crc" => self.crc_field = number.and_then(|n| n.try_into().ok()),
            "iwarp_mpa.crc_check" => {
                self.crc_field = number.and_then(|n| n.try_into().ok());
                self.crc = if showname.contains("(Good CRC32)") { Crc::Good } else { Crc::Bad };
            }
            "iwarp_mpa.marker_fpduptr" => self.markers += 1,
            "iwarp_ddp.tagged_flag" => self.tagged = number.map(|n| n != 0),
            "iwarp_ddp.last_flag" => self.last = number.map(|n| n != 0),
            "iwarp_rdma.opcode" => self.opcode = number.and_then(|n| n.try_into().ok()),
            "iwarp_ddp.stag" => self.stag = number.and_then(|n| n.try_into().ok()),
            "iwarp_ddp.tagged_offset" => self.tagged_offset = number,
            "iwarp_ddp.qn" => self.qn = number.and_then(|n| n.try_into().ok()),
            "iwarp_ddp.msn" => self.msn = number.and_then(|n| n.try_into().ok()),
            "iwarp_ddp.mo" => self.mo = number.and_then(|n| n.try_into().ok()),
            _ => {}
        }
    }
}

/// Parses `18` or `0x12`. Flags are `0` and `1` or, in newer versions, words.
fn number(show: &str) -> Option<u64> {
    match show.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => match show {
            "True" => Some(1),
            "False" => Some(0),
            digits => digits.parse().ok(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_reason() {
        let Some(tshark) = Tshark::require() else { return };
        let error = tshark.dissect(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(error.contains("/no/such/file"), "{error}");
    }

    #[test]
    fn reads_two_fpdus_of_one_packet() {
        let pdml = r#"<?xml version="1.0"?><pdml><packet><proto name="frame"/></packet><packet>
            <proto name="iwarp_mpa"><field name="iwarp_mpa.fpdu" showname="FPDU" show="">
              <field name="iwarp_mpa.ulpdulength" show="18"/>
              <field name="iwarp_mpa.crc_check" showname="CRC check: 0x587be8c4 (Good CRC32)" show="0x587be8c4"/>
            </field></proto>
            <proto name="iwarp_ddp_rdmap"><field name="iwarp_ddp.tagged_flag" show="0"/>
              <field name="iwarp_ddp.msn" show="7"/><field name="iwarp_rdma.opcode" show="0x03"/></proto>
            <proto name="iwarp_mpa"><field name="iwarp_mpa.fpdu" show=""/></proto>
            <proto name="_ws.malformed"/></packet></pdml>"#;
        let found = read(pdml.as_bytes()).unwrap();
        let [first, second] = found.fpdus.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.packet, first.ulpdu_length, first.crc), (2, Some(18), Crc::Good));
        assert_eq!((first.tagged, first.msn, first.opcode), (Some(false), Some(7), Some(3)));
        assert_eq!((first.malformed, second.malformed, found.malformed), (false, true, 1));
        assert_eq!(second.crc, Crc::Unchecked);
    }
}
