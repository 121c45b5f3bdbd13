//! Captures an interface and determines which TCP connections and UDP datagrams belong to uiw from
//! their first bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use uiw_decode::pcap::Reader;
use uiw_interop::stock::{Hosts, Libraries, Network, Running};

/// Bytes kept of each frame if the payload is of no interest: the headers and the first bytes after
/// them.
const KEPT: &str = "256";

/// Running capture by Wireshark's dumpcap.
pub(crate) struct Capture {
    dumpcap: Running,
    file: PathBuf,
}

/// Time without new frames after which a capture is complete. The kernel delivers frames to dumpcap
/// within a quarter of this time, and dumpcap writes them at once.
const QUIET: Duration = Duration::from_secs(1);

impl Capture {
    /// Starts a capture between the two ends of `network`. Without dumpcap, returns `None` and
    /// counts the test as skipped.
    #[track_caller]
    pub(crate) fn of_ends(libraries: &Libraries, network: &Network) -> Option<Self> {
        Self::start(libraries, &["veth0"], &["-s", KEPT], |dumpcap| network.client(dumpcap))
    }

    /// Like [`Capture::of_ends`], but keeps the complete frames, for dissectors.
    #[track_caller]
    pub(crate) fn whole_of_ends(libraries: &Libraries, network: &Network) -> Option<Self> {
        Self::start(libraries, &["veth0"], &[], |dumpcap| network.client(dumpcap))
    }

    /// Like [`Capture::of_ends`], but captures the traffic between `hosts` and between each host
    /// and the switch. A frame between two hosts is captured twice, because it passes the
    /// interfaces of both.
    #[track_caller]
    pub(crate) fn of_hosts(libraries: &Libraries, hosts: &Hosts) -> Option<Self> {
        let ports: Vec<_> = hosts.ports().collect();
        let ports: Vec<_> = ports.iter().map(String::as_str).collect();
        Self::start(libraries, &ports, &["-s", KEPT], |dumpcap| hosts.at_switch(dumpcap))
    }

    #[track_caller]
    fn start(
        libraries: &Libraries,
        interfaces: &[&str],
        kept: &[&str],
        at: impl FnOnce(Command) -> Command,
    ) -> Option<Self> {
        let mut command = Command::new(uiw_interop::require("dumpcap")?);
        let file = libraries.folder().join("wire.pcap");
        // The buffers hold the frames that arrive while dumpcap is not scheduled: in the kernel
        // (MiB) and in dumpcap (frames and bytes).
        command.args(kept).args(["-B", "64", "-N", "1000000", "-C", "200000000", "-w"]).arg(&file);
        for interface in interfaces {
            command.args(["-i", interface]);
        }
        let mut dumpcap = Running::start(at(command));
        // dumpcap prints this line after it has opened the interfaces.
        dumpcap.wait_saying("File: ");
        Some(Self { dumpcap, file })
    }

    /// Ends the capture and returns the traffic.
    pub(crate) fn end(self) -> Passed {
        Passed::read(&self.end_file())
    }

    /// Ends the capture and returns its file. Panics if the kernel or dumpcap dropped frames.
    /// dumpcap counts as `flushed` the frames that it discards because it was asked to end. They
    /// arrived after the test's traffic, because [`Capture::wait_complete`] has waited; ARP and
    /// neighbour discovery still send some then.
    pub(crate) fn end_file(self) -> PathBuf {
        self.wait_complete();
        let ended = self.dumpcap.interrupt();
        let counts =
            ended.well().said.lines().filter(|line| line.contains("received/dropped on interface"));
        for line in counts {
            assert!(line.contains("(pcap:0/dumpcap:0/"), "{line}");
        }
        self.file
    }
}

/// Payload of one protocol between two ports in both directions.
#[derive(Default)]
struct PortFlow {
    bytes: u64,
    is_uiws: bool,
}

impl Capture {
    /// Waits until all frames that have passed are in the file, because dumpcap discards frames
    /// that it has not read when it is asked to end.
    fn wait_complete(&self) {
        let len = || fs::metadata(&self.file).map_or(0, |file| file.len());
        let (mut last, mut since) = (len(), Instant::now());
        while since.elapsed() < QUIET {
            thread::sleep(QUIET / 20);
            let now = len();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }
}

/// Traffic of an interface.
#[derive(Default)]
pub(crate) struct Passed {
    tcp: BTreeMap<[SocketAddr; 2], PortFlow>,
    uiws_datagrams: u64,
    /// Hop limits of uiw's datagrams.
    hop_limits: BTreeSet<u8>,
    /// Number of datagrams that are not uiw's, by destination.
    others_datagrams: BTreeMap<SocketAddr, u64>,
}

impl Passed {
    /// Reads the traffic from a capture file.
    pub(crate) fn read(file: &Path) -> Self {
        let mut reader =
            Reader::new(BufReader::new(File::open(file).expect("the capture"))).unwrap();
        let mut passed = Self::default();
        while let Some(packet) = reader.next_packet().unwrap() {
            passed.frame(&packet.bytes);
        }
        passed
    }

    fn frame(&mut self, frame: &[u8]) {
        let Some((header, mut ip)) = frame.split_at_checked(14) else { return };
        let (source, destination, protocol, len, hop_limit): (IpAddr, IpAddr, _, _, u8);
        // IPv6 has no fragment flag in its header; a fragment has an extension header instead.
        let mut is_whole = true;
        match header[12..] {
            [0x08, 0x00] if ip.len() >= 20 => {
                let header_len = usize::from(ip[0] & 15) * 4;
                let of = |at: usize| Ipv4Addr::from_bits(word(ip, at)).into();
                (source, destination, protocol, hop_limit) = (of(12), of(16), ip[9], ip[8]);
                // DF is set, no more fragments follow, and the fragment offset is 0.
                is_whole = short(ip, 6) == 0x4000;
                len = usize::from(short(ip, 2)).checked_sub(header_len).expect("a length of IPv4");
                ip = &ip[header_len.min(ip.len())..];
            }
            [0x86, 0xdd] if ip.len() >= 40 => {
                let of = |at: usize| {
                    Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).expect("16 bytes")).into()
                };
                (source, destination, protocol, len) =
                    (of(8), of(24), ip[6], usize::from(short(ip, 4)));
                hop_limit = ip[7];
                ip = &ip[40..];
            }
            _ => return,
        }
        let ports = |segment: &[u8]| {
            [
                SocketAddr::new(source, short(segment, 0)),
                SocketAddr::new(destination, short(segment, 2)),
            ]
        };
        match protocol {
            6 if ip.len() >= 20 => {
                let header_len = usize::from(ip[12] >> 4) * 4;
                let mut ends = ports(ip);
                ends.sort_unstable();
                self.segment(ends, ip.get(header_len..).unwrap_or_default(), len - header_len);
            }
            17 if ip.len() >= 8 => self.datagram(ports(ip), &ip[8..], (is_whole, hop_limit)),
            _ => {}
        }
    }

    /// Adds a TCP segment. A connection belongs to uiw if its first payload is the MPA Request
    /// Frame (RFC 5044 section 7.1.1).
    fn segment(&mut self, ends: [SocketAddr; 2], payload: &[u8], len: usize) {
        let begins = payload.starts_with(b"MPA ID Req Frame");
        if len > 0 {
            let flow = self.tcp.entry(ends).or_insert(PortFlow { bytes: 0, is_uiws: begins });
            flow.bytes += len as u64;
        }
    }

    /// Adds a datagram. It belongs to uiw if it has the format of `docs/datagrams.md`: version 1,
    /// with the source port as the port of the source QPN in a message, or a SIDR message of 256
    /// bytes. uiw's datagrams are never fragmented.
    fn datagram(
        &mut self,
        [source, destination]: [SocketAddr; 2],
        payload: &[u8],
        (is_whole, hop_limit): (bool, u8),
    ) {
        let is_uiws = is_whole
            && match payload {
                [1, 1, rest @ ..] if rest.len() >= 40 => {
                    word(payload, 12) >> 8 == u32::from(source.port())
                }
                [1, 2 | 3, ..] => true,
                _ => false,
            };
        if is_uiws {
            self.uiws_datagrams += 1;
            self.hop_limits.insert(hop_limit);
        } else {
            *self.others_datagrams.entry(destination).or_default() += 1;
        }
    }

    /// Returns the payload of uiw's TCP connections in bytes.
    pub(crate) fn uiws_tcp(&self) -> u64 {
        self.tcp.values().filter(|flow| flow.is_uiws).map(|flow| flow.bytes).sum()
    }

    /// Returns the number of uiw's datagrams. Messages that the kernel sends as one are counted
    /// once.
    pub(crate) fn uiws_datagrams(&self) -> u64 {
        self.uiws_datagrams
    }

    /// Returns the distinct hop limits of uiw's datagrams.
    pub(crate) fn hop_limits(&self) -> Vec<u8> {
        self.hop_limits.iter().copied().collect()
    }

    /// Asserts that only uiw's bytes passed, and at most `limit` bytes on connections with an end
    /// for which `is_control` is true, which carry the program's own control traffic.
    ///
    /// # Errors
    /// A description of the other traffic.
    pub(crate) fn is_uiws_but_for(
        &self,
        is_control: impl Fn(SocketAddr) -> bool,
        limit: u64,
    ) -> Result<(), String> {
        let others = self.tcp.iter().filter(|(_, flow)| !flow.is_uiws);
        let (control, foreign): (Vec<_>, Vec<_>) =
            others.partition(|(ends, _)| ends.iter().any(|end| is_control(*end)));
        let mut said = String::new();
        for ([one, other], flow) in &foreign {
            let _ = writeln!(said, "{} bytes between {one} and {other}", flow.bytes);
        }
        for (to, count) in &self.others_datagrams {
            let _ = writeln!(said, "{count} datagrams to {to}");
        }
        let bytes = control.iter().map(|(_, flow)| flow.bytes).sum::<u64>();
        if bytes > limit {
            let _ =
                writeln!(said, "{bytes} bytes on the program's own connections, more than {limit}");
        }
        if said.is_empty() { Ok(()) } else { Err(said) }
    }
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(short(bytes, at)) << 16 | u32::from(short(bytes, at + 2))
}
