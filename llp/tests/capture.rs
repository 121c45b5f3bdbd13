//! Captures of the kernel's TCP and of the simulated network.

use parking_lot::Mutex;
use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uiw_mem::{IoVec, IoVecMut};

use uiw_llp::capture::{CaptureStack, PcapConfig, PcapSink};
use uiw_llp::tcp::TcpStack;
use uiw_llp::{
    Event, ListenConfig, StackExtensions, Token, TransportConfig, TransportStack, TransportStream,
};
use uiw_testkit::sim::{Link, Network};

/// TCP flags.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

const IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

/// Sink whose bytes can be read by the test.
#[derive(Clone, Default)]
struct SharedSink(Arc<Mutex<Vec<u8>>>);

impl Write for SharedSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// TCP segment that was found in the file.
#[derive(Debug, PartialEq)]
struct TcpSegment {
    outgoing: bool,
    ports: (u16, u16),
    seq: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Parses a file that this crate has written, and checks the structure of its blocks. Returns the
/// segments of one interface with their times.
fn read(file: &[u8], interface: u32) -> Vec<(u64, TcpSegment)> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let len = u32_at(file, at + 4) as usize;
        assert!(len.is_multiple_of(4) && u32_at(file, at + len - 4) as usize == len);
        let block = &file[at..at + len];
        if u32_at(block, 0) == 6 && u32_at(block, 8) == interface {
            let captured = u32_at(block, 20) as usize;
            assert_eq!(u32_at(block, 24) as usize, captured);
            let flags_at = 28 + captured.next_multiple_of(4);
            let packet = &block[28..28 + captured];
            assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), captured);
            let tcp = &packet[20..];
            let segment = TcpSegment {
                outgoing: u32_at(block, flags_at + 4) == 2,
                ports: (u16::from_be_bytes([tcp[0], tcp[1]]), u16::from_be_bytes([tcp[2], tcp[3]])),
                seq: be32(tcp, 4),
                ack: be32(tcp, 8),
                flags: tcp[13],
                payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
            };
            segments
                .push((u64::from(u32_at(block, 12)) << 32 | u64::from(u32_at(block, 16)), segment));
        }
        at += len;
    }
    segments
}

/// Returns (outgoing, flags, seq, ack, payload length) of all segments.
fn brief(file: &SharedSink, interface: u32) -> Vec<(bool, u8, u32, u32, usize)> {
    let segments = read(&file.0.lock(), interface);
    segments.iter().map(|(_, s)| (s.outgoing, s.flags, s.seq, s.ack, s.payload.len())).collect()
}

struct CapturedPair {
    stack: CaptureStack,
    client: Box<dyn TransportStream>,
    server: Box<dyn TransportStream>,
}

fn pair(inner: impl TransportStack + 'static, sink: &Arc<PcapSink>) -> CapturedPair {
    let mut stack = CaptureStack::new(Box::new(inner), sink.clone(), "both ends");
    let mut listener = stack.listen((IP, 0).into(), &ListenConfig::default(), Token(1)).unwrap();
    let mut client =
        stack.connect(None, listener.local_addr(), &TransportConfig::default(), Token(2)).unwrap();
    while !client.connect_result().unwrap() {}
    let server = loop {
        match listener.accept(Token(3)) {
            Ok(server) => break server,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    };
    CapturedPair { stack, client, server }
}

fn send(stream: &mut dyn TransportStream, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        sent +=
            stream.send(&[IoVec::from(&bytes[sent..sent]), IoVec::from(&bytes[sent..])]).unwrap();
    }
}

/// Receives until `len` bytes have arrived, or until the end of the stream.
fn recv(stream: &mut dyn TransportStream, len: usize) -> Vec<u8> {
    let mut all = vec![0; len];
    let mut at = 0;
    while at < len {
        match stream.recv(&mut [IoVecMut::from(&mut all[at..])]) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    all.truncate(at);
    all
}

/// The two ends are on different sides of a simulated network, so each interface contains one view.
#[test]
fn conversation_from_both_sides() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let network = Network::new(1);
    let mut a = CaptureStack::new(Box::new(network.stack(IP)), sink.clone(), "a");
    let mut b = CaptureStack::new(Box::new(network.stack(IP)), sink.clone(), "b");
    let mut listener = b.listen((IP, 4791).into(), &ListenConfig::default(), Token(1)).unwrap();
    let mut client =
        a.connect(None, (IP, 4791).into(), &TransportConfig::default(), Token(2)).unwrap();
    assert!(client.connect_result().unwrap());
    assert!(client.connect_result().unwrap(), "asked twice, written once");
    let mut server = listener.accept(Token(3)).unwrap();
    send(&mut *client, b"hello");
    assert_eq!(recv(&mut *server, 5), b"hello");
    send(&mut *server, b"hi");
    assert_eq!(recv(&mut *client, 2), b"hi");
    client.shutdown().unwrap();
    assert_eq!(recv(&mut *server, 1), b"");
    assert_eq!(recv(&mut *server, 1), b"");
    drop(server);
    assert_eq!(recv(&mut *client, 1), b"");
    sink.flush().unwrap();
    let of_a = [
        (true, SYN, 0, 0, 0),
        (false, SYN | ACK, 0, 1, 0),
        (true, ACK, 1, 1, 0),
        (true, PSH | ACK, 1, 1, 5),
        (false, PSH | ACK, 1, 6, 2),
        (true, FIN | ACK, 6, 3, 0),
        (false, FIN | ACK, 3, 7, 0),
        (true, ACK, 7, 4, 0),
    ];
    assert_eq!(brief(&file, 0), of_a);
    let of_b: Vec<_> =
        of_a.iter().map(|&(out, flags, seq, ack, len)| (!out, flags, seq, ack, len)).collect();
    assert_eq!(brief(&file, 1), of_b);
    let segments = read(&file.0.lock(), 0);
    assert_eq!(segments[3].1.payload, b"hello");
    assert_eq!(segments[4].1.ports, (4791, client.local_addr().port()));
}

#[test]
fn long_transfers_are_cut_into_segments() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let network = Network::new(1);
    let CapturedPair { mut client, server: _server, .. } = pair(network.stack(IP), &sink);
    let bytes: Vec<u8> = (0..150_000u32).map(|i| i as u8).collect();
    assert_eq!(
        client.send(&[IoVec::from(&bytes[..100]), IoVec::from(&bytes[100..])]).unwrap(),
        150_000
    );
    sink.flush().unwrap();
    let data: Vec<_> =
        read(&file.0.lock(), 0).into_iter().filter(|(_, s)| !s.payload.is_empty()).collect();
    assert_eq!(
        data.iter().map(|(_, s)| (s.seq, s.payload.len())).collect::<Vec<_>>(),
        [(1, 65_000), (65_001, 65_000), (130_001, 20_000)]
    );
    assert_eq!(data.iter().flat_map(|(_, s)| s.payload.clone()).collect::<Vec<_>>(), bytes);
}

#[test]
fn resets_and_refusals() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let network = Network::new(1);
    let CapturedPair { mut stack, mut client, mut server } = pair(network.stack(IP), &sink);
    client.abort();
    client.abort();
    let mut byte = [0];
    assert!(server.recv(&mut [IoVecMut::from(&mut byte[..])]).is_err());
    drop((client, server));
    let resets: Vec<_> = brief(&file, 0).into_iter().filter(|s| s.1 & RST != 0).collect();
    assert_eq!(resets, [(true, RST | ACK, 1, 1, 0), (false, RST | ACK, 1, 1, 0)]);
    let written = brief(&file, 0).len();
    let mut refused =
        stack.connect(None, (IP, 9).into(), &TransportConfig::default(), Token(9)).unwrap();
    assert!(refused.connect_result().is_err() && refused.connect_result().is_err());
    drop(refused);
    assert_eq!(brief(&file, 0)[written..], [(true, SYN, 0, 0, 0), (false, RST | ACK, 0, 1, 0)]);
}

#[test]
fn times_are_those_of_the_stack() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let network = Network::new(1);
    network.set_default_link(Link::default());
    let CapturedPair { mut stack, mut client, server: _server } = pair(network.stack(IP), &sink);
    for _ in 0..2 {
        network.advance(Duration::from_secs(100));
        stack.poll(&mut Vec::new()).unwrap();
        send(&mut *client, b"x");
    }
    sink.flush().unwrap();
    let times: Vec<u64> = read(&file.0.lock(), 0)
        .iter()
        .filter(|(_, s)| s.payload == b"x")
        .map(|(t, _)| *t)
        .collect();
    assert_eq!(times[1] - times[0], 100_000_000_000);
}

#[test]
fn failing_file_fails_no_stream() {
    struct FullSink;
    impl Write for FullSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > 1000 {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(bytes.len())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let sink = PcapSink::new(Box::new(FullSink)).unwrap();
    let network = Network::new(1);
    let CapturedPair { mut client, mut server, .. } = pair(network.stack(IP), &sink);
    for _ in 0..10 {
        send(&mut *client, &[1; 100_000]);
        assert_eq!(recv(&mut *server, 100_000).len(), 100_000);
    }
    assert_eq!(sink.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn failed_flush_ends_capture() {
    /// Fails once.
    struct FailingSink(bool);
    impl Write for FailingSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            if std::mem::replace(&mut self.0, false) {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(())
            }
        }
    }
    let sink = PcapSink::new(Box::new(FailingSink(true))).unwrap();
    for _ in 0..2 {
        assert_eq!(sink.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

/// Returns the packets of a pcapng file, with their captured and original lengths, and the number
/// of its sections.
fn packets_of(path: &std::path::Path) -> (Vec<(u32, u32)>, usize) {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut packets, mut sections) = (&bytes[..], Vec::new(), 0);
    let number =
        |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    while !rest.is_empty() {
        let (block, behind) = rest.split_at(number(rest, 4) as usize);
        match number(block, 0) {
            0x0A0D_0D0A => sections += 1,
            6 => packets.push((number(block, 20), number(block, 24))),
            1 => {}
            other => panic!("block {other:#x}"),
        }
        rest = behind;
    }
    (packets, sections)
}

/// Sends `count` messages of 10,000 bytes through a stack that is captured to `file`.
fn messages_to(file: PcapConfig, count: usize) {
    let sink = PcapSink::create(file).unwrap();
    let mut server_side = CaptureStack::new(Box::new(TcpStack::new().unwrap()), sink, "server");
    let mut client_side = TcpStack::new().unwrap();
    let mut listener =
        server_side.listen((IP, 0).into(), &ListenConfig::default(), Token(1)).unwrap();
    let options = TransportConfig::default();
    let mut client = client_side.connect(None, listener.local_addr(), &options, Token(2)).unwrap();
    while !client.connect_result().unwrap() {}
    let mut server = listener.accept(Token(3)).unwrap();
    for _ in 0..count {
        send(&mut *client, &[7; 10_000]);
        assert_eq!(recv(&mut *server, 10_000).len(), 10_000);
    }
}

#[test]
fn capture_size_bounded() {
    let folder = std::env::temp_dir().join(format!("llp-ring-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("ring.pcapng");
    messages_to(PcapConfig::new(&path).rotate(64 << 10, 3), 50);
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["ring.pcapng", "ring.pcapng.1", "ring.pcapng.2"]);
    for name in &names[1..] {
        let length = fs::metadata(folder.join(name)).unwrap().len();
        assert!((64 << 10..80 << 10).contains(&length), "{name}: {length}");
    }
    // Every file can be read without the others.
    assert!(names.iter().all(|name| packets_of(&folder.join(name)).1 == 1));

    let snapped = folder.join("snap.pcapng");
    messages_to(PcapConfig::new(&snapped).snap(96), 3);
    let (packets, _) = packets_of(&snapped);
    assert!(packets.iter().all(|(captured, length)| *captured == 96.min(*length)), "{packets:?}");
    assert!(packets.iter().any(|(_, length)| *length > 96), "{packets:?}");

    messages_to(PcapConfig::new(&snapped).append(true), 3);
    let (more, sections) = packets_of(&snapped);
    assert!(
        more.len() > packets.len() && more[..packets.len()] == packets[..] && sections == 2,
        "{more:?}"
    );
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn cut_packet_removed_before_append() {
    let path = std::env::temp_dir().join(format!("llp-cut-{}.pcapng", std::process::id()));
    messages_to(PcapConfig::new(&path), 3);
    let (packets, _) = packets_of(&path);
    let append = || PcapSink::create(PcapConfig::new(&path).append(true));
    for cut in [1, 5, 11] {
        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - cut).unwrap();
        drop(append().unwrap());
    }
    let (left, sections) = packets_of(&path);
    assert!(left == packets[..packets.len() - 1] && sections == 2, "{sections}: {left:?}");
    for other in [&b"text"[..], b"a longer text", &[0; 100]] {
        fs::write(&path, other).unwrap();
        assert_eq!(append().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read(&path).unwrap(), other);
    }
    fs::remove_file(&path).unwrap();
}

/// Reads a file with Wireshark, which shares no code with this crate. The test is skipped if it is
/// not installed.
#[test]
fn tshark_reads_it() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("tshark is not installed: skipped");
        return;
    }
    let path = std::env::temp_dir().join(format!("llp-capture-{}.pcapng", std::process::id()));
    let sink = PcapSink::create(&path).unwrap();
    // Only the server's end is captured, so no packet occurs twice.
    let mut server_side =
        CaptureStack::new(Box::new(TcpStack::new().unwrap()), sink.clone(), "server");
    let mut client_side = TcpStack::new().unwrap();
    let mut listener =
        server_side.listen((IP, 0).into(), &ListenConfig::default(), Token(1)).unwrap();
    let mut client = client_side
        .connect(None, listener.local_addr(), &TransportConfig::default(), Token(2))
        .unwrap();
    while !client.connect_result().unwrap() {}
    let mut server = listener.accept(Token(3)).unwrap();
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i >> 3) as u8).collect();
    send(&mut *client, &bytes[..70_000]);
    assert_eq!(recv(&mut *server, 70_000).len(), 70_000);
    send(&mut *server, b"answer");
    client.shutdown().unwrap();
    assert_eq!(recv(&mut *server, 1), b"");
    drop(server);
    drop((listener, server_side, sink));
    let out = Command::new("tshark")
        .args(["-r".as_ref(), path.as_os_str()])
        .args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"])
        .args([
            "-T",
            "fields",
            "-E",
            "separator=;",
            "-e",
            "frame.interface_name",
            "-e",
            "tcp.checksum.status",
        ])
        .args([
            "-e",
            "ip.checksum.status",
            "-e",
            "tcp.analysis.flags",
            "-e",
            "_ws.malformed",
            "-e",
            "tcp.len",
        ])
        .output()
        .unwrap();
    fs::remove_file(&path).unwrap();
    let lines = String::from_utf8(out.stdout).unwrap();
    let mut total = 0;
    for line in lines.lines() {
        let len = line.strip_prefix("server;1;1;;;").unwrap_or_else(|| panic!("{line}\n{lines}"));
        total += len.parse::<usize>().unwrap();
    }
    assert_eq!(total, 70_006, "{lines}");
}

#[test]
fn loopback_stream_written_once() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let mut stack = CaptureStack::new(Box::new(TcpStack::new().unwrap()), sink, "tcp");
    let mut stream =
        stack.connect_self((IP, 0).into(), &TransportConfig::default(), Token(1)).unwrap();
    while !stream.connect_result().unwrap() {}
    stream.send(&[IoVec::from(&b"to me"[..])]).unwrap();
    let mut block = [0; 16];
    while stream.recv(&mut [IoVecMut::from(&mut block[..])]).is_err() {}
    assert_eq!(&block[..5], b"to me");
    stream.shutdown().unwrap();
    while stream.recv(&mut [IoVecMut::from(&mut block[..])]).is_err() {}
    drop((stream, stack));
    let flags: Vec<_> =
        brief(&file, 0).into_iter().map(|(out, flags, _, _, len)| (out, flags, len)).collect();
    assert_eq!(flags, [(true, 2, 0), (true, 0x12, 0), (true, 0x18, 5), (true, 0x11, 0)]);
}

/// Neither does the stream end nor is the sink dropped. The frames of a process that is killed must
/// be in the file.
#[test]
fn packets_reach_file_by_deadline() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let mut stack = CaptureStack::new(Box::new(TcpStack::new().unwrap()), sink, "tcp");
    assert_eq!(stack.deadline(), None, "nothing is due in an empty file");
    let mut stream =
        stack.connect_self((IP, 0).into(), &TransportConfig::default(), Token(1)).unwrap();
    while !stream.connect_result().unwrap() {}
    stream.send(&[IoVec::from(&b"to me"[..])]).unwrap();
    let due = stack.deadline().expect("a time");
    let mut events = Vec::new();
    stack.poll(&mut events).unwrap();
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    stack.poll(&mut events).unwrap();
    assert!(read(&file.0.lock(), 0).iter().any(|(_, segment)| segment.payload == b"to me"));
    assert_eq!(stack.deadline(), None, "an idle stack has no deadline");
}

#[test]
fn moved_stream_keeps_interface() {
    let file = SharedSink::default();
    let sink = PcapSink::new(Box::new(file.clone())).unwrap();
    let CapturedPair { stack, mut client, mut server } = pair(TcpStack::new().unwrap(), &sink);
    let mut other = stack.shard().unwrap().unwrap();
    send(&mut *client, b"before");
    client.detach().unwrap();
    other.adopt(&mut client, Token(4)).unwrap();
    let mut events = Vec::new();
    client.set_interest(uiw_llp::Interest::WRITE).unwrap();
    other.poll(&mut events).unwrap();
    assert_eq!(events, [Event { token: Token(4), readable: false, writable: true }]);
    send(&mut *client, b"behind");
    assert_eq!(recv(&mut *server, 12), b"beforebehind");
    assert_eq!(other.adopt(&mut server, Token(5)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    sink.flush().unwrap();
    let port = client.local_addr().port();
    let sent = read(&file.0.lock(), 0).into_iter().filter(|(_, s)| s.ports.0 == port && s.outgoing);
    let sent: Vec<_> =
        sent.filter(|(_, s)| !s.payload.is_empty()).map(|(_, s)| (s.seq, s.payload)).collect();
    assert_eq!(sent, [(1, b"before".to_vec()), (7, b"behind".to_vec())]);
    assert_eq!(read(&file.0.lock(), 1), [], "the shard has no interface of its own");
    assert!(
        CaptureStack::new(Box::new(Network::new(1).stack(IP)), sink, "sim")
            .shard()
            .unwrap()
            .is_none()
    );
}
