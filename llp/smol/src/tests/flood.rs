//! Floods of SYNs without further segments, on a virtual clock.

use super::{LISTENER, address};
use crate::link::{Frame, Link};
use crate::pipe::{PipeLink, pipe};
use crate::segment::{segment_of, sequence};
use crate::{SmolConfig, SmolStack};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, IpRepr,
    TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use uiw_llp::{Clock, ListenConfig, Token, TransportConfig, TransportListener, TransportStack};

/// Maximum number of connections that are being set up at a listener with a short backlog.
const MOST: usize = *crate::interface::WAITING.start();
const TICK: Duration = Duration::from_millis(1);

/// Source addresses of the SYNs.
#[derive(Clone, Copy, Debug)]
enum SourceAddresses {
    /// No network of ours contains them, and there is no gateway.
    Far,
    /// Hosts of our network that do not exist.
    Absent,
    /// Address of the host that sends the SYNs without opening a connection.
    Own,
}

/// A server, and a client whose frames pass through the test.
struct FloodedNet {
    clock: Clock,
    server: SmolStack<PipeLink>,
    client: SmolStack<PipeLink>,
    /// Other ends of their links.
    ends: [PipeLink; 2],
    v6: bool,
    listener: Box<dyn TransportListener>,
    sent: u32,
    /// Sequence numbers of the SYNs that passed: those of the client, then those of the server.
    numbers: [Vec<u32>; 2],
}

impl FloodedNet {
    fn new(v6: bool) -> Self {
        let clock = Clock::virtual_time();
        let stack = |host| {
            let (own, end) = pipe(1500).unwrap();
            let config = SmolConfig::new(address(host, v6), if v6 { 64 } else { 24 });
            (SmolStack::with_clock(own, &config, clock.clone()).unwrap(), end)
        };
        let ((client, client_end), (mut server, server_end)) = (stack(1), stack(2));
        let options = ListenConfig { backlog: 8, ..ListenConfig::default() };
        let listener =
            server.listen(SocketAddr::new(address(2, v6), 7174), &options, LISTENER).unwrap();
        Self {
            clock,
            server,
            client,
            ends: [client_end, server_end],
            v6,
            listener,
            sent: 0,
            numbers: [Vec::new(), Vec::new()],
        }
    }

    fn step(&mut self) {
        self.clock.advance(TICK);
        let mut events = Vec::new();
        self.client.poll(&mut events).unwrap();
        self.server.poll(&mut events).unwrap();
        let [client, server] = &mut self.ends;
        pass(client, server, &mut self.numbers[0]);
        pass(server, client, &mut self.numbers[1]);
    }

    fn flood(&mut self, source: SourceAddresses) {
        self.sent += 1;
        let [.., a, b] = self.sent.to_be_bytes();
        let from: IpAddr = match (source, self.v6) {
            (SourceAddresses::Far, false) => [198, 18, a, b].into(),
            (SourceAddresses::Far, true) => format!("2001:db8::{:x}", self.sent).parse().unwrap(),
            (SourceAddresses::Absent, false) => [10, 9, 0, 3 + b % 250].into(),
            (SourceAddresses::Absent, true) => format!("fd00::3:{:x}", self.sent).parse().unwrap(),
            (SourceAddresses::Own, v6) => address(1, v6),
        };
        let port = 1024 + (self.sent % 60_000) as u16;
        let to = SocketAddr::new(address(2, self.v6), 7174);
        let frame = segment(SocketAddr::new(from, port), to, (self.sent, None));
        send(&mut self.ends[1], &frame);
    }

    fn held(&self) -> usize {
        self.server.interface.lock().count()
    }
}

/// Forwards frames to another link, and records the sequence numbers of SYNs.
fn pass(from: &mut PipeLink, to: &mut PipeLink, numbers: &mut Vec<u32>) {
    while let Some(mut frame) = from.receive() {
        if let Some((at, _)) = segment_of(frame.bytes()) {
            let segment = TcpPacket::new_unchecked(&frame.bytes()[at..]);
            numbers.extend(segment.syn().then(|| sequence(segment.seq_number())));
        }
        send(to, frame.bytes());
        from.recycle(frame);
    }
}

fn send(link: &mut PipeLink, frame: &[u8]) {
    link.transmit(frame.len(), &mut |bytes| {
        bytes.copy_from_slice(frame);
        None
    });
    link.flush();
}

/// Returns a segment with a sequence number and an acknowledgement number, or a SYN.
fn segment(from: SocketAddr, to: SocketAddr, (seq, ack): (u32, Option<u32>)) -> Vec<u8> {
    let (source, destination): (IpAddress, IpAddress) = (from.ip().into(), to.ip().into());
    let tcp = TcpRepr {
        src_port: from.port(),
        dst_port: to.port(),
        control: if ack.is_none() { TcpControl::Syn } else { TcpControl::None },
        seq_number: TcpSeqNumber(seq.cast_signed()),
        ack_number: ack.map(|ack| TcpSeqNumber(ack.cast_signed())),
        window_len: 1000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let ip = IpRepr::new(source, destination, IpProtocol::Tcp, tcp.buffer_len(), 64);
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress(SmolConfig::new(address(1, to.is_ipv6()), 24).mac),
        dst_addr: EthernetAddress(SmolConfig::new(to.ip(), 24).mac),
        ethertype: if to.is_ipv6() { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 },
    };
    let mut frame = vec![0; ethernet.buffer_len() + ip.buffer_len()];
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut frame[ethernet.buffer_len()..], &checksums);
    let at = ethernet.buffer_len() + ip.header_len();
    tcp.emit(&mut TcpPacket::new_unchecked(&mut frame[at..]), &source, &destination, &checksums);
    frame
}

/// The flood of 2,000 SYNs per second continues. The limit is three seconds.
#[test]
fn client_connects_during_flood_of_syns() {
    for v6 in [false, true] {
        for source in [SourceAddresses::Far, SourceAddresses::Absent, SourceAddresses::Own] {
            let mut net = FloodedNet::new(v6);
            let flood = |net: &mut FloodedNet, time: Duration| {
                for _ in 0..time.as_millis() {
                    net.flood(source);
                    net.flood(source);
                    net.step();
                    assert!(net.held() <= MOST + 1, "{source:?} {v6}: {} connections", net.held());
                }
            };
            flood(&mut net, Duration::from_secs(2));
            let to = SocketAddr::new(address(2, v6), 7174);
            let mut client =
                net.client.connect(None, to, &TransportConfig::default(), Token(1)).unwrap();
            flood(&mut net, Duration::from_secs(3));
            assert!(client.connect_result().unwrap(), "{source:?}, IPv6 {v6}: not connected");
            let accepted = net.listener.accept(Token(2)).unwrap();
            assert_eq!(accepted.local_addr(), to);
        }
    }
}

#[test]
fn unfinished_setups_time_out() {
    for source in [SourceAddresses::Far, SourceAddresses::Absent] {
        let mut net = FloodedNet::new(false);
        for _ in 0..100 {
            net.flood(source);
            net.step();
        }
        assert_eq!(net.held(), 100, "{source:?}");
        for _ in 0..9_800 {
            net.step();
        }
        assert_eq!(net.held(), 100, "{source:?}: after less than ten seconds");
        for _ in 0..200 {
            net.step();
        }
        assert_eq!(net.held(), 0, "{source:?}");
        assert_eq!(
            net.listener.accept(Token(2)).err().map(|error| error.kind()),
            Some(ErrorKind::WouldBlock)
        );
    }
}

/// The attacker knows everything except the server's sequence number.
#[test]
fn forged_segment_changes_no_state() {
    let mut net = FloodedNet::new(false);
    let to = SocketAddr::new(address(2, false), 7174);
    let mut client = net.client.connect(None, to, &TransportConfig::default(), Token(1)).unwrap();
    while !client.connect_result().unwrap() {
        net.step();
    }
    let [ours, theirs] = net.numbers.each_ref().map(|numbers| numbers[0]);
    let state = |net: &FloodedNet| net.client.interface.lock().stretches();
    let before = state(&net);
    for (distance, is_changed) in [(1 << 31, false), (1, true)] {
        let numbers = (theirs.wrapping_add(distance), Some(ours.wrapping_add(1)));
        send(&mut net.ends[0], &segment(to, client.local_addr(), numbers));
        net.client.poll(&mut Vec::new()).unwrap();
        assert_eq!(state(&net) != before, is_changed, "{distance}");
    }
}

/// Two pairs of stacks whose generators have the same state choose different numbers.
#[test]
fn initial_sequence_numbers_unpredictable() {
    for v6 in [false, true] {
        let numbers = || {
            let mut net = FloodedNet::new(v6);
            for stack in [&net.client, &net.server] {
                stack.interface.lock().reseed(7);
            }
            let to = SocketAddr::new(address(2, v6), 7174);
            let mut client =
                net.client.connect(None, to, &TransportConfig::default(), Token(1)).unwrap();
            while !client.connect_result().unwrap() {
                net.step();
            }
            net.numbers.map(|numbers| numbers[0])
        };
        let (first, second) = (numbers(), numbers());
        for end in 0..2 {
            assert_ne!(first[end], second[end], "end {end}, IPv6 {v6}");
        }
    }
}
