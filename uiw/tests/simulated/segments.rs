//! Tests of the effect of path changes on queued and future segments, and of the time at which a
//! message counts as sent.

use uiw::RemoteMr;
use uiw::STag;
use uiw_ddp::Header;
use uiw_testkit::sim::Link;

use crate::link::{CLIENT, Simulation};
use crate::raw::{PEER, poll, reader, settings};

/// The segments of the path become smaller and larger again while a message is in progress. FPDUs
/// that were queued for TCP are not changed, later ones fit the new size, and the message arrives
/// completely.
// [test:RFC5041-3-02] [test:RFC5041-3-03]
#[test]
fn segments_follow_the_path() {
    const CAPACITY: usize = 20_000;
    let simulation = Simulation::new(1, Link { capacity: CAPACITY, ..Link::default() });
    let (pd, connection, mut reader) = reader(&simulation, &settings());
    let bytes: Vec<u8> = (0..900_000u32).map(|n| (n / 3) as u8).collect();
    let remote = RemoteMr { addr: 0, rkey: STag(1), len: bytes.len() };
    let mut write = connection.write(pd.register(bytes.clone()).unwrap(), remote);
    for _ in 0..20 {
        assert!(poll(&mut write).is_pending());
        simulation.client.pump();
    }
    let emss = |emss| simulation.network().change_link(CLIENT, PEER, |link| link.emss = emss);
    emss(500);
    let mut rounds = 0;
    while poll(&mut write).is_pending() {
        reader.read();
        if reader.read > bytes.len() / 2 {
            emss(1000);
        }
        simulation.client.pump();
        simulation.network().step();
        rounds += 1;
        assert!(rounds < 10_000, "the Write does not end: the reader has {} bytes", reader.read);
    }
    reader.read();
    let lens: Vec<usize> = reader.ulpdus.iter().map(Vec::len).collect();
    let [large, small, middle] = [1448, 500, 1000].map(|emss| uiw_mpa::mulpdu(emss, false));
    let runs: Vec<(usize, usize)> =
        lens.chunk_by(|one, next| one == next).map(|run| (run[0], run.len())).collect();
    let [(first, before), (second, smaller), (third, larger), rest @ ..] = &runs[..] else {
        panic!("{runs:?}")
    };
    assert_eq!(([*first, *second, *third], rest.len()), ([large, small, middle], 1), "{runs:?}");
    assert!(*smaller > 10 && *larger > 10, "{runs:?}");
    // Much more than TCP had room for was built before the change, and was not changed.
    assert!(before * large > 5 * CAPACITY, "{runs:?}");
    let mut got = Vec::new();
    for ulpdu in &reader.ulpdus {
        let (header, len) = Header::parse(ulpdu).unwrap();
        assert!(matches!(header, Header::Tagged(tagged) if tagged.to == got.len() as u64));
        got.extend_from_slice(&ulpdu[len..]);
    }
    assert!(got == bytes);
}

/// A Write or Send completes when TCP has accepted its last byte, but not earlier. Here TCP has
/// room for a sixth of it.
// [test:RFC5040-5.5-10]
#[test]
fn completion_follows_tcp() {
    for send in [false, true] {
        let simulation = Simulation::new(1, Link { capacity: 5_000, ..Link::default() });
        let (pd, connection, mut reader) = reader(&simulation, &settings());
        let remote = RemoteMr { addr: 0, rkey: STag(1), len: 30_000 };
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
        assert!(reader.read > 25_000, "complete, and the reader has {} bytes", reader.read);
    }
}
