//! Tests of SIDR and multicast messages, in captures that a stack on a simulated network writes.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use uiw_datagram::sidr::{Reply, Request, Status};
use uiw_datagram::{Header, MULTICAST_PORT, Qpn};
use uiw_decode::{self as decode, Record};
use uiw_llp::capture::{CaptureStack, PcapSink};
use uiw_llp::{DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Outgoing, Token, TransportStack};
use uiw_testkit::sim::Network;

/// A file in memory.
#[derive(Clone, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl Write for MemoryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two hosts. The stack of the first one captures.
struct TwoHosts {
    network: Network,
    captured: CaptureStack,
    other: Box<dyn TransportStack>,
    sink: Arc<PcapSink>,
    file: MemoryFile,
    addresses: [IpAddr; 2],
}

impl TwoHosts {
    fn new(v6: bool) -> Self {
        let addresses = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let addresses = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let network = Network::new(1);
        let file = MemoryFile::default();
        let sink = PcapSink::new(Box::new(file.clone())).unwrap();
        let captured =
            CaptureStack::new(Box::new(network.stack(addresses[0])), Arc::clone(&sink), "sim");
        let other = Box::new(network.stack(addresses[1]));
        Self { network, captured, other, sink, file, addresses }
    }

    fn bind(&mut self, host: usize, port: u16) -> Box<dyn DatagramSocket> {
        let local = SocketAddr::new(self.addresses[host], port);
        self.stack(host).bind_datagrams(local, &DatagramConfig::default(), Token(0)).unwrap()
    }

    fn join(&mut self, host: usize, group: IpAddr) -> Box<dyn DatagramSocket> {
        let options = DatagramConfig { member: Some(self.addresses[host]), interface: 1 };
        let local = SocketAddr::new(group, MULTICAST_PORT);
        self.stack(host).bind_datagrams(local, &options, Token(0)).unwrap()
    }

    fn stack(&mut self, host: usize) -> &mut dyn TransportStack {
        if host == 0 { &mut self.captured } else { &mut *self.other }
    }

    /// Sends a datagram from `from` to `to`, receives it at `at`, and returns its decoded events.
    fn pass(
        &self,
        from: &mut dyn DatagramSocket,
        to: SocketAddr,
        at: &mut dyn DatagramSocket,
        bytes: &[u8],
    ) {
        assert_eq!(from.send(bytes, &[Outgoing::new(to, bytes.len())]).unwrap(), 1);
        while self.network.step() {}
        let mut incoming = Vec::new();
        at.recv(&mut vec![0; DATAGRAM_BUFFER], &mut incoming).unwrap();
        assert_eq!(incoming.len(), 1);
    }

    /// Decodes the capture. Returns the events, the text output and the number of departures.
    fn decoded(self) -> (Vec<Found>, String, u64) {
        self.sink.flush().unwrap();
        let bytes = self.file.0.lock().unwrap().clone();
        let (mut found, mut text) = (Vec::new(), Vec::new());
        let summary = decode::decode(&bytes[..], &mut |record: &Record| {
            let event = serde_json::to_value(&record.event).unwrap();
            found.push((record.packet, [record.from, record.to], event));
        });
        let summary = summary.unwrap();
        assert!(summary.followed(), "{summary}");
        let unique = format!(
            "uiw-datagrams-{}-{:?}.pcapng",
            std::process::id(),
            std::thread::current().id()
        );
        let path = std::env::temp_dir().join(unique);
        std::fs::write(&path, bytes).unwrap();
        let args =
            decode::DecodeConfig { files: vec![path.clone()], ..decode::DecodeConfig::default() };
        let printed = decode::decode_to(&args, &mut text);
        std::fs::remove_file(path).unwrap();
        assert_eq!(printed.unwrap(), summary);
        (found, String::from_utf8(text).unwrap(), summary.departures)
    }
}

/// An event: packet number, addresses of both ends, and content.
type Found = (u64, [SocketAddr; 2], Value);

/// Recomputes the CRC of changed bytes.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - uiw_datagram::CRC_LEN;
    let crc = uiw_datagram::crc(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc);
    bytes
}

const TRANSACTION: u64 = 0x0102_0304_0506_0708;

fn request(private_data: &[u8]) -> Vec<u8> {
    Request { transaction: TRANSACTION, private_data }.emit().unwrap().to_vec()
}

fn reply(status: Status, private_data: &[u8]) -> Vec<u8> {
    let qpn = if status == Status::Valid { Qpn::new(4791, 7) } else { Qpn::from_raw(0) };
    let reply = Reply { transaction: TRANSACTION, status, qpn, qkey: 0x0123_4567, private_data };
    reply.emit().unwrap().to_vec()
}

#[test]
fn requests_and_replies_of_sidr() {
    for v6 in [false, true] {
        let mut hosts = TwoHosts::new(v6);
        let (mut here, mut there) = (hosts.bind(0, 7471), hosts.bind(1, 40_000));
        let ends = [there.local_addr(), here.local_addr()];
        for _ in 0..2 {
            hosts.pass(&mut *there, ends[1], &mut *here, &request(&[9; 180]));
        }
        for (status, data) in
            [(Status::Valid, &[8; 136][..]), (Status::Rejected, b"no"), (Status::NoQp, b"")]
        {
            hosts.pass(&mut *here, ends[0], &mut *there, &reply(status, data));
        }
        let (found, text, departures) = hosts.decoded();
        let asked = |packet| {
            let event = json!({ "type": "datagram", "name": "SIDR request", "length": 0,
                "transaction": "0x102030405060708", "private_data_length": 180,
                "private_data": "09".repeat(180) });
            (packet, ends, event)
        };
        let answered = |packet, name: &str, data: &[u8]| {
            let digits: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            let event = json!({ "type": "datagram", "name": name, "length": 0,
                "transaction": "0x102030405060708", "private_data_length": data.len(), "private_data": digits });
            (packet, [ends[1], ends[0]], event)
        };
        let mut valid = answered(3, "SIDR reply", &[8; 136]);
        valid.2["destination_qpn"] = json!(4791 << 8 | 7);
        valid.2["qkey"] = json!(0x0123_4567);
        let rejected = answered(4, "SIDR reply, rejected", b"no");
        let no_qp = answered(5, "SIDR reply, no queue pair", b"");
        assert_eq!(found, [asked(1), asked(2), valid, rejected, no_qp]);
        assert_eq!(departures, 0);
        for line in [
            "SIDR request, transaction 0x0102030405060708, 180 bytes of private data",
            "SIDR reply, QPN 0x12b707, Q_Key 0x01234567, transaction 0x0102030405060708, 136 bytes of private data",
            "transaction 0x0102030405060708, 2 bytes of private data \"no\"",
            "SIDR reply, no queue pair, transaction 0x0102030405060708, 0 bytes of private data",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}

/// SIDR messages that break a rule are departures. Datagrams with another length or CRC belong to
/// another protocol.
#[test]
fn sidr_messages_that_break_a_rule() {
    let mut hosts = TwoHosts::new(false);
    let (mut here, mut there) = (hosts.bind(0, 7471), hosts.bind(1, 40_000));
    let to = here.local_addr();
    let changed = |mut bytes: Vec<u8>, at: usize, byte| {
        bytes[at] = byte;
        sealed(bytes)
    };
    let cases = [
        (changed(request(b""), 2, 1), Some("SIDR status 1")),
        (
            changed(request(b""), 3, 181),
            Some("SIDR message with 181 bytes of private data, 180 are the most"),
        ),
        (changed(reply(Status::Valid, b""), 2, 3), Some("SIDR status 3")),
        (
            changed(reply(Status::Valid, b""), 3, 137),
            Some("SIDR message with 137 bytes of private data, 136 are the most"),
        ),
        (
            changed(changed(reply(Status::Valid, b""), 13, 0), 14, 0),
            Some("destination QPN 0x000007 has no port"),
        ),
        (sealed(request(b"")[..200].to_vec()), None),
        ([&request(b"")[..], b"more"].concat(), None),
        ([&request(b"")[..255], &[0x5A]].concat(), None),
    ];
    for (bytes, _) in &cases {
        hosts.pass(&mut *there, to, &mut *here, bytes);
    }
    hosts.pass(&mut *there, to, &mut *here, &request(b"and one that is well"));
    let (mut found, _, departures) = hosts.decoded();
    assert_eq!(found.pop().map(|(_, _, event)| event["name"].clone()), Some(json!("SIDR request")));
    let expected: Vec<_> = (1..)
        .zip(&cases)
        .filter_map(|(packet, (_, what))| Some((packet, what.as_deref()?)))
        .collect();
    let said: Vec<_> =
        found.iter().map(|(packet, _, event)| (*packet, event["what"].as_str().unwrap())).collect();
    assert_eq!((said, departures), (expected, 5));
}

#[test]
fn messages_to_groups() {
    for (v6, group) in [(false, "239.77.0.9"), (true, "ff15::77:9")] {
        let mut hosts = TwoHosts::new(v6);
        let group: IpAddr = group.parse().unwrap();
        let to = SocketAddr::new(group, MULTICAST_PORT);
        let (mut here, mut there) = (hosts.join(0, group), hosts.join(1, group));
        let (mut own, mut peer) = (hosts.bind(0, 4000), hosts.bind(1, 4001));
        let message = |source, msn, payload: &[u8]| {
            let header = Header {
                epoch: 77,
                destination: Qpn::MULTICAST,
                source,
                qkey: 0x0123_4567,
                msn,
                solicited: msn == 2,
                immediate: (msn == 3).then_some(41),
            };
            let mut bytes = [&header.emit()[..], payload].concat();
            bytes.extend_from_slice(&uiw_datagram::crc(&bytes));
            bytes
        };
        let sender = Qpn::new(4001, 2);
        for (msn, payload) in [(1, &b"to all"[..]), (2, b""), (4, &[5; 1024])] {
            hosts.pass(&mut *peer, to, &mut *here, &message(sender, msn, payload));
        }
        hosts.pass(&mut *peer, to, &mut *here, &message(sender, 3, b"late"));
        // The capturing stack sends and receives a copy, so the file has the message twice.
        hosts.pass(&mut *own, to, &mut *here, &message(Qpn::new(4000, 9), 1, b"own"));
        // A message with a wrong source port, and a group message to the port of a queue pair.
        hosts.pass(&mut *peer, to, &mut *here, &message(Qpn::new(4002, 1), 1, b""));
        let own_address = own.local_addr();
        hosts.pass(&mut *peer, own_address, &mut *own, &message(sender, 5, b""));
        let mut incoming = Vec::new();
        there.recv(&mut vec![0; 16 * DATAGRAM_BUFFER], &mut incoming).unwrap();
        assert_eq!(incoming.len(), 6, "the other host's member has all of it");
        let (found, text, departures) = hosts.decoded();
        let from = SocketAddr::new(if v6 { "fd00::2" } else { "10.0.0.2" }.parse().unwrap(), 4001);
        let event = |name: &str, source: u32, msn: u32, length: usize| {
            json!({ "type": "datagram", "name": name, "length": length, "epoch": 77, "destination_qpn": 0x00FF_FFFF,
                "source_qpn": source, "qkey": 0x0123_4567, "msn": msn })
        };
        let with = |mut event: Value, field: &str, value: Value| {
            event[field] = value;
            event
        };
        let departure =
            |what: &str| json!({ "type": "departure", "rule": "docs/datagrams.md", "what": what });
        let (theirs, ours) = (4001 << 8 | 2, 4000 << 8 | 9);
        let copy = with(event("Send", ours, 1, 3), "order", json!("repeated"));
        let late = with(event("Send with Immediate", theirs, 3, 4), "immediate", json!(41));
        let expected = [
            (1, [from, to], event("Send", theirs, 1, 6)),
            (2, [from, to], event("Send with SE", theirs, 2, 0)),
            (
                3,
                [from, to],
                with(event("Send", theirs, 4, 1024), "order", json!("1 before it not captured")),
            ),
            (4, [from, to], with(late, "order", json!("late"))),
            (5, [own_address, to], event("Send", ours, 1, 3)),
            (6, [own_address, to], copy),
            (7, [from, to], event("Send", 4002 << 8 | 1, 1, 0)),
            (7, [from, to], departure("UDP source port 4001 with source QPN 0x0fa201")),
            (8, [from, own_address], event("Send", theirs, 5, 0)),
            (8, [from, own_address], departure("destination QPN 0xffffff at UDP port 4000")),
        ];
        assert_eq!(found, expected);
        assert_eq!(departures, 2);
        let line = "datagram Send with Immediate to QPN 0xffffff Q_Key 0x01234567 from QPN 0x0fa102 epoch 0x0000004d MSN 3, 4 \
                    bytes, immediate 0x00000029 (late)";
        assert!(text.contains(line), "{text}");
    }
}
