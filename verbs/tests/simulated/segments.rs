//! What a change of the path does to segments under way and to come, and when a message counts as sent.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ddp::Header;
use llp::sim::Link;
use llp::{ListenOptions, Listener, Stack, Stream, Token};
use mem::{IoVec, IoVecMut};
use mpa::rx::{FpduRx, Step};
use mpa::startup::{Config, Responder, Revision};
use verbs::{
    ConnOptions, ConnSettings, Connection, FpduSize, Recognition, RemoteMr, Revision as VerbsRevision,
};

use crate::link::{CLIENT, Simulation};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

/// A responder that only reads: what it gets are ULPDUs.
struct Reader {
    stream: Box<dyn Stream>,
    rx: FpduRx,
    octets: Vec<u8>,
    ulpdus: Vec<Vec<u8>>,
    /// Octets of FPDUs.
    read: usize,
}

impl Reader {
    fn read(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(got) = self.stream.recv(&mut [IoVecMut::from(&mut buffer[..])]) {
            if got == 0 {
                break;
            }
            self.octets.extend_from_slice(&buffer[..got]);
            self.read += got;
        }
        while let Step::Fpdu(fpdu) = self.rx.next(&mut self.octets).unwrap() {
            self.ulpdus.push(self.octets[fpdu.ulpdu].to_vec());
            self.octets.drain(..fpdu.consumed);
        }
    }
}

/// Our client, connected to a [`Reader`].
fn reader(simulation: &Simulation, settings: &ConnSettings) -> (verbs::Pd, Connection, Reader) {
    let mut stack = simulation.network().stack(PEER);
    let mut listener: Box<dyn Listener> =
        stack.listen((PEER, 4791).into(), &ListenOptions::default(), Token(0)).unwrap();
    let pd = simulation.client.alloc_pd().unwrap();
    let address = listener.local_addr();
    let (connection, reader) = simulation.run(
        async { Connection::connect(&simulation.client, &pd, address, settings).await.unwrap() },
        std::future::poll_fn({
            let mut accepted: Option<(Box<dyn Stream>, Vec<u8>)> = None;
            move |_| {
                if accepted.is_none() {
                    accepted = listener.accept(Token(1)).ok().map(|stream| (stream, Vec::new()));
                }
                let Some((mut stream, mut octets)) = accepted.take() else { return Poll::Pending };
                let mut buffer = [0; 600];
                if let Ok(got) = stream.recv(&mut [IoVecMut::from(&mut buffer[..])]) {
                    octets.extend_from_slice(&buffer[..got]);
                }
                let config = Config { revision: Revision::One, crc: true, ..Config::default() };
                let mut responder = Responder::new(config.clone());
                let Some((_, request)) = responder.request(&octets).unwrap() else {
                    accepted = Some((stream, octets));
                    return Poll::Pending;
                };
                let (reply, negotiated) = responder.accept(&request, &config, b"").unwrap();
                assert_eq!(stream.send(&[IoVec::from(&reply[..])]).unwrap(), reply.len());
                let rx = FpduRx::new(negotiated.crc, negotiated.markers_rx);
                Poll::Ready(Reader { stream, rx, octets: Vec::new(), ulpdus: Vec::new(), read: 0 })
            }
        }),
    );
    (pd, connection, reader)
}

fn settings() -> ConnSettings {
    let options = ConnOptions {
        revision: VerbsRevision::One,
        recognition: Recognition::Off,
        fpdu: FpduSize::Segment,
        ..ConnOptions::default()
    };
    ConnSettings { options, ..ConnSettings::default() }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The path's segments become smaller and larger again while a message is under way: what was queued for TCP stays as it was
/// cut, what is built afterwards fits, and the message is whole.
// [test:RFC5041-3-02] [test:RFC5041-3-03]
#[test]
fn segments_follow_the_path() {
    const CAPACITY: usize = 20_000;
    let simulation = Simulation::new(1, Link { capacity: CAPACITY, ..Link::default() });
    let (pd, connection, mut reader) = reader(&simulation, &settings());
    let octets: Vec<u8> = (0..900_000u32).map(|n| (n / 3) as u8).collect();
    let remote = RemoteMr { addr: 0, rkey: 1, len: octets.len() as u64 };
    let mut write = connection.write(pd.register(octets.clone()).unwrap(), remote);
    for _ in 0..20 {
        assert!(poll(&mut write).is_pending());
        simulation.client.pump();
    }
    let emss = |emss| simulation.network().change_link(CLIENT, PEER, |link| link.emss = emss);
    emss(500);
    let mut rounds = 0;
    while poll(&mut write).is_pending() {
        reader.read();
        if reader.read > octets.len() / 2 {
            emss(1000);
        }
        simulation.client.pump();
        simulation.network().step();
        rounds += 1;
        assert!(rounds < 10_000, "the Write does not end: the reader has {} octets", reader.read);
    }
    reader.read();
    let lens: Vec<usize> = reader.ulpdus.iter().map(Vec::len).collect();
    let [large, small, middle] = [1448, 500, 1000].map(|emss| mpa::mulpdu(emss, false));
    let runs: Vec<(usize, usize)> =
        lens.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect();
    let [(first, before), (second, smaller), (third, larger), rest @ ..] = &runs[..] else {
        panic!("{runs:?}")
    };
    assert_eq!(([*first, *second, *third], rest.len()), ([large, small, middle], 1), "{runs:?}");
    assert!(*smaller > 10 && *larger > 10, "{runs:?}");
    // Far more than TCP had room for was cut before the change, and left so.
    assert!(before * large > 5 * CAPACITY, "{runs:?}");
    let mut got = Vec::new();
    for ulpdu in &reader.ulpdus {
        let (header, len) = Header::parse(ulpdu).unwrap();
        assert!(matches!(header, Header::Tagged(tagged) if tagged.to == got.len() as u64));
        got.extend_from_slice(&ulpdu[len..]);
    }
    assert!(got == octets);
}

/// A Write or Send is complete when TCP has taken its last octet, and not before: here TCP has room for a sixth of it.
// [test:RFC5040-5.5-10]
#[test]
fn nothing_is_complete_before_tcp_has_it() {
    for send in [false, true] {
        let simulation = Simulation::new(1, Link { capacity: 5_000, ..Link::default() });
        let (pd, connection, mut reader) = reader(&simulation, &settings());
        let remote = RemoteMr { addr: 0, rkey: 1, len: 30_000 };
        let buffer = pd.register(vec![7; 30_000]).unwrap();
        let mut op = if send { connection.send(buffer) } else { connection.write(buffer, remote) };
        loop {
            for _ in 0..20 {
                simulation.client.pump();
                simulation.network().step();
            }
            if poll(&mut op).is_ready() {
                break;
            }
            reader.read();
        }
        assert!(reader.read > 25_000, "complete, and the reader has {} octets", reader.read);
    }
}
