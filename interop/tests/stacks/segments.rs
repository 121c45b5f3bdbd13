//! Uses tshark to check the work that AF_PACKET leaves to the interface: cutting packets into
//! segments and completing their checksums.

use crate::pairings::{Stack, at};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Network, Running, uiw};
use uiw_interop::tshark::Tshark;

/// Capture file that is removed when dropped.
struct CaptureFile(PathBuf);

impl CaptureFile {
    /// Waits until the file stops growing, because packets that tshark has not yet written are lost
    /// when it is interrupted.
    fn wait_idle(&self) {
        let len = || std::fs::metadata(&self.0).map(|file| file.len()).ok();
        let mut before = None;
        while before != len() {
            before = len();
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Fields of a TCP segment as reported by tshark.
struct TcpSegment {
    frame_len: usize,
    payload: usize,
    checksum: String,
    is_right: bool,
    mss: Option<u16>,
}

fn segment(line: &str) -> TcpSegment {
    let fields: Vec<_> = line.split('\t').collect();
    let [frame_len, payload, checksum, status, is_ffff, mss] = fields[..] else {
        panic!("six fields: {line}")
    };
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("a number: {line}"));
    // The status is a number in some versions of tshark and a word in others. Where the kernel
    // completes a checksum of zero, it writes it as ones (`CSUM_MANGLED_0`, once in 65,536
    // segments). Receivers treat both as equal (RFC 1624), but tshark reports the checksum as bad
    // and gives this reason.
    let is_right = ["1", "Good"].contains(&status) || !is_ffff.is_empty();
    let checksum = checksum.to_owned();
    TcpSegment {
        frame_len: number(frame_len),
        payload: number(payload),
        checksum,
        is_right,
        mss: mss.parse().ok(),
    }
}

/// Captures a measurement between two AF_PACKET ends at the server, and returns the segments of
/// both directions and tshark's messages about packets it missed.
fn capture(network: &Network, version: usize, name: &str) -> (Vec<TcpSegment>, String) {
    let file = CaptureFile(
        std::env::temp_dir().join(format!("uiw-segments-{}-{name}.pcap", std::process::id())),
    );
    let port = uiw_interop::stock::free_port();
    let mut command = Command::new("tshark");
    // The buffer (in MiB) has room for the whole transfer in case tshark is not scheduled for a
    // while.
    command.args(["-i", "veth0", "-f", "tcp", "-B", "64", "-w"]).arg(&file.0);
    let mut tshark = Running::start(network.server(command));
    tshark.wait_saying("Capture started");
    let mut command = Command::new(uiw());
    command.args(["--llp", &Stack::Packet.spec(11), "serve", "--listen", &format!("[::]:{port}")]);
    let mut server = Running::start(network.server(command));
    server.wait_saying("listening on");
    let to = match Stack::Packet.addresses()[version] {
        address if address.contains(':') => format!("[{address}]:{port}"),
        address => format!("{address}:{port}"),
    };
    let mut command = Command::new(uiw());
    command.args(["--llp", &Stack::Packet.spec(12), "perf", &to, "--validate", "--bidirectional"]);
    command.args(["--size", "200000", "--iterations", "20", "--seconds", "20"]);
    let ended = Running::start(network.client(command)).end();
    assert_eq!(ended.code, 0, "{}{}", ended.said, server.said());
    let _ = server.stop();
    file.wait_idle();
    let captured = tshark.interrupt();
    captured.well();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&file.0).args(["-o", "tcp.check_checksum:TRUE", "-T", "fields"]);
    for field in [
        "frame.len",
        "tcp.len",
        "tcp.checksum",
        "tcp.checksum.status",
        "tcp.checksum.ffff",
        "tcp.options.mss_val",
    ] {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8_lossy(&output.stdout).lines().map(segment).collect(), captured.said)
}

#[test]
fn zero_checksum_written_as_ones() {
    assert!(segment("78\t24\t0x1234\t1\t\t").is_right);
    assert!(segment("78\t24\t0xffff\t0\t1\t").is_right);
    assert!(!segment("78\t24\t0x0001\t0\t\t").is_right);
}

/// Minimum number of bytes: 20 messages of 200,000 bytes in each direction.
const BYTES: usize = 2 * 20 * 200_000;

#[test]
fn segmented_packets_valid_on_wire() {
    let (Some(_), Some(_)) = (Tshark::require(), uiw_interop::require("ethtool")) else { return };
    for (version, mss) in [(0, 1460), (1, 1440)] {
        let Some(network) = Network::veth() else { return };
        let (whole, _) = capture(&network, version, &format!("whole-{mss}"));
        // Packets stay unsegmented between the ends of a veth.
        assert!(
            whole.iter().any(|segment| segment.payload > 20_000),
            "packets of many segments: MSS {mss}"
        );
        for server in [true, false] {
            let off = ["-K", "veth0", "tx", "off", "gso", "off", "tso", "off", "gro", "off"];
            at(&network, server, "ethtool", &off);
        }
        let (segments, said) = capture(&network, version, &format!("cut-{mss}"));
        let bytes = segments.iter().map(|segment| segment.payload).sum::<usize>();
        assert!(bytes >= BYTES, "{bytes} bytes of at least {BYTES}: {said}");
        for TcpSegment { frame_len, payload, checksum, is_right, mss: said } in &segments {
            assert!(*is_right, "the checksum {checksum} of {payload} bytes, MSS {mss}");
            assert!(
                *frame_len <= 1514 && *payload <= mss,
                "a frame of {frame_len} bytes, MSS {mss}"
            );
            assert!(
                said.is_none_or(|said| usize::from(said) == mss),
                "an MSS of {said:?}, not {mss}"
            );
        }
        let full = segments.iter().filter(|segment| segment.payload == mss).count();
        assert!(full * 4 > segments.len(), "{full} of {} segments are full", segments.len());
        assert_eq!(
            segments.iter().filter(|segment| segment.mss.is_some()).count(),
            4,
            "two connections' SYNs"
        );
    }
}
