//! Tests with bytes that arrive one by one, in lumps, or through a slow link.

use std::time::Duration;

use uiw::{Access, Connection, ConnectionConfig, FpduSize, Mr, Pd, RemoteMr, SharedMr};
use uiw_testkit::sim::{Link, Split};

use crate::link::Simulation;

/// Offset of the counter, after the bytes of the largest Write.
const COUNTER: usize = 256 << 10;

fn buffer(pd: &Pd, len: usize, seed: u8) -> Mr<Vec<u8>> {
    pd.register((0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()).unwrap()
}

async fn client(pd: &Pd, connection: &Connection, largest: usize) {
    let remote = RemoteMr::from_bytes(&connection.recv().await.unwrap().unwrap()).unwrap();
    for len in [0, 1, 2, 3, 4, 5, 100, 1_500, largest] {
        let source = connection.write(buffer(pd, len, 1), remote).await.unwrap();
        let back = connection.read(pd.register(vec![0; len]).unwrap(), remote).await.unwrap();
        assert!(source.bytes() == back.bytes(), "{len} bytes written and read back");
        connection.send(buffer(pd, len.min(16_000), 2)).await.unwrap();
    }
    connection.write_imm(buffer(pd, 99, 3), remote, 4711).await.unwrap();
    assert_eq!(
        connection.fetch_add(remote.slice(COUNTER..COUNTER + 8).unwrap(), 5).await.unwrap(),
        0
    );
    // Several Reads are in progress at the same time, and their answers are interleaved with
    // messages of the server.
    let reads: Vec<_> =
        (0..20).map(|_| connection.read(pd.register(vec![0; 700]).unwrap(), remote)).collect();
    for read in reads {
        read.await.unwrap();
    }
    connection.disconnect().await.unwrap();
}

async fn server(memory: &SharedMr, connection: &Connection, largest: usize) {
    connection.send_copy(&memory.remote(0..memory.len()).unwrap().to_bytes()).await.unwrap();
    for len in [0, 1, 2, 3, 4, 5, 100, 1_500, largest] {
        let message = connection.recv().await.unwrap().unwrap();
        let wanted: Vec<u8> =
            (0..len.min(16_000)).map(|i| (i as u8).wrapping_mul(31).wrapping_add(2)).collect();
        assert!(*message == wanted, "message of {len} bytes");
    }
    let message = connection.recv().await.unwrap().unwrap();
    assert_eq!((message.imm(), message.write_len()), (Some(4711), Some(99)));
    connection.ended().await;
    assert_eq!(memory.load_u64(COUNTER).unwrap(), 5);
}

fn converse(seed: u64, link: Link, settings: &ConnectionConfig, largest: usize) {
    converse_over(&Simulation::new(seed, link), settings, largest);
}

/// Runs each operation, verified byte for byte.
pub(crate) fn converse_over(simulation: &Simulation, settings: &ConnectionConfig, largest: usize) {
    let ((client_pd, c), (server_pd, s)) = simulation.connect(settings);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = server_pd.share(COUNTER + 8, access).unwrap();
    simulation.run(client(&client_pd, &c, largest), server(&memory, &s, largest));
}

pub(crate) fn variants() -> Vec<(&'static str, ConnectionConfig)> {
    let mut out = vec![("default", ConnectionConfig::default())];
    let mut no_crc = ConnectionConfig::default();
    no_crc.options.crc = false;
    out.push(("no CRC", no_crc));
    let mut markers = ConnectionConfig::default();
    markers.options.markers = true;
    out.push(("Markers", markers));
    let mut segment = ConnectionConfig::default();
    segment.options.fpdu = FpduSize::Segment;
    segment.options.markers = true;
    segment.options.crc = false;
    out.push(("Markers, segment-sized, no CRC", segment));
    out
}

/// Runs all variants over one link.
fn all_variants(seed: u64, link: &Link, largest: usize) {
    for (name, settings) in variants() {
        println!("{name}");
        converse(seed, link.clone(), &settings, largest);
    }
}

// [test:RFC5044-4.1-02]
#[test]
fn one_byte_at_a_time() {
    let split = Split::Fixed(1);
    all_variants(1, &Link { recv_split: split, send_split: split, ..Link::default() }, 1_000);
}

#[test]
fn lumps_of_any_size() {
    for seed in 0..20 {
        let split = Split::Random(if seed % 2 == 0 { 13 } else { 3_000 });
        all_variants(
            seed,
            &Link { recv_split: split, send_split: split, ..Link::default() },
            70_000,
        );
    }
}

#[test]
fn many_fpdus_in_one_read() {
    let link = Link { latency: Duration::from_millis(20), ..Link::default() };
    all_variants(3, &link, 200_000);
}

#[test]
fn pipe_narrower_than_fpdu() {
    let link = Link { capacity: 300, latency: Duration::from_micros(10), ..Link::default() };
    all_variants(4, &link, 70_000);
}
