//! Tests of time-outs with a virtual clock.

use std::net::SocketAddr;
use std::time::Duration;

use uiw::raw::{SendFlags, SendOp, SendWr, Sge};
use uiw::{
    CapabilityExchange, Connection, ConnectionConfig, ErrorKind, Listener, Revision, STag, WcStatus,
};
use uiw_mem::IoVecMut;
use uiw_testkit::sim::Link;

use crate::link::{SERVER, Simulation};
use crate::raw::{poll, reader, settings};

#[test]
fn send_waits_for_late_receive() {
    let simulation = Simulation::new(1, Link::default());
    let mut settings = ConnectionConfig::default().recv_depth(1);
    settings.options.no_receive_timeout = Duration::from_secs(30);
    let ((_, client), (_, server)) = simulation.connect(&settings);
    simulation.run(
        async {
            for byte in 0..5u8 {
                client.send_copy(&[byte]).await.unwrap();
            }
        },
        async {
            // Each message keeps the only receive until it is dropped.
            for byte in 0..5u8 {
                assert_eq!(*server.recv().await.unwrap().unwrap(), [byte]);
            }
        },
    );
}

#[test]
fn missing_receive_terminates_stream() {
    let simulation = Simulation::new(1, Link::default());
    let mut settings = ConnectionConfig::default().recv_depth(1);
    settings.options.no_receive_timeout = Duration::from_secs(3);
    let ((_, client), (_, server)) = simulation.connect(&settings);
    let start = simulation.now();
    let (ending, _) = simulation.run(
        async {
            client.send_copy(b"one").await.unwrap();
            client.send_copy(b"two").await.unwrap();
            client.ended().await
        },
        async {
            let kept = server.recv().await.unwrap().unwrap();
            server.ended().await;
            drop(kept);
        },
    );
    let reason = ending.reason.unwrap();
    assert_eq!(
        (reason.from_peer, reason.layer, reason.etype, reason.code),
        (true, 1, 2, 2),
        "no buffer"
    );
    assert!(simulation.now() - start >= Duration::from_secs(3));
}

/// Runs rounds of both devices for some milliseconds of virtual time.
fn rounds(simulation: &Simulation, millis: u64) {
    for _ in 0..millis {
        simulation.round();
        simulation.network().advance(Duration::from_millis(1));
    }
}

/// A doorbell is served between rounds, and the last round may have been long ago. The time-out of
/// the close must begin with the close.
#[test]
fn failed_request_after_pause_closes_orderly() {
    let simulation = Simulation::new(1, Link::default());
    let (_pd, connection, mut peer) = reader(&simulation, &settings());
    rounds(&simulation, 5);
    simulation.network().advance(Duration::from_secs(3600));
    let nowhere = Sge { addr: 0, length: 8, lkey: STag(0xBAD) };
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sges: &[nowhere], flags: SendFlags::SIGNALED };
    // SAFETY: the element refers to no registered memory, so the request fails before any byte is
    // read.
    unsafe { connection.qp().post_send([wr]).unwrap() };
    rounds(&simulation, 20);
    peer.read();
    assert_eq!(peer.ulpdus.len(), 1, "the Terminate");
    let end = peer.stream.recv(&mut [IoVecMut::from(&mut [0; 8][..])]);
    assert!(matches!(end, Ok(0)), "a FIN, and no reset: {end:?}");
}

/// Like the test above, for the time-out of a Send that waits for a receive: it must begin when the
/// Send is parked.
#[test]
fn parked_send_gets_full_timeout() {
    let simulation = Simulation::new(1, Link::default());
    let mut settings = ConnectionConfig::default().recv_depth(1);
    settings.options.no_receive_timeout = Duration::from_secs(3);
    let ((client_pd, client), (server_pd, server)) = simulation.connect(&settings);
    let ops: Vec<_> =
        (0..3).map(|n| client.send(client_pd.register(vec![n; 8]).unwrap())).collect();
    let (kept, ()) = simulation.run(async { server.recv().await.unwrap().unwrap() }, async {});
    // The second message is parked.
    rounds(&simulation, 100);
    simulation.network().advance(Duration::from_millis(2700));
    drop(kept);
    // The post serves the receive as well; the third message is parked.
    let posted = server.send(server_pd.register(vec![9; 8]).unwrap());
    rounds(&simulation, 1000);
    let mut ended = Box::pin(server.ended());
    assert!(poll(&mut ended).is_pending(), "three seconds are not over");
    drop((ops, posted));
}

/// The round trip takes longer than one second, the time-out for a peer on a short path.
#[test]
fn extension_used_over_slow_round_trip() {
    let simulation =
        Simulation::new(1, Link { latency: Duration::from_millis(1500), ..Link::default() });
    let settings = ConnectionConfig::default().startup_timeout(Duration::from_secs(30));
    let ((pd, client), (_, server)) = simulation.connect(&settings);
    let op = client.send_imm(pd.register(b"early".to_vec()).unwrap(), 7);
    simulation.run(async { op.await.map(drop).unwrap() }, async {
        assert_eq!(*server.recv().await.unwrap().unwrap(), *b"early");
    });
}

/// With a peer that does not support the capability exchange, only operations that need an
/// extension fail.
#[test]
fn silent_peer_fails_extension_request_only() {
    let simulation =
        Simulation::new(1, Link { latency: Duration::from_millis(20), ..Link::default() });
    let settings = ConnectionConfig::default().capabilities(CapabilityExchange::Off);
    let (pd, server_pd) =
        (simulation.client.alloc_pd().unwrap(), simulation.server.alloc_pd().unwrap());
    let listener = Listener::bind(&server_pd, SocketAddr::new(SERVER, 4791), &settings).unwrap();
    let (client, server) = simulation.run(
        async {
            Connection::connect(&pd, listener.local_addr(), &ConnectionConfig::default())
                .await
                .unwrap()
        },
        async { listener.accept().await.unwrap() },
    );
    let refused = client.send_imm(pd.register(b"refused".to_vec()).unwrap(), 7);
    let behind = client.send(pd.register(b"behind".to_vec()).unwrap());
    simulation.run(
        async {
            let failed = refused.await.map(drop).unwrap_err().error;
            let ErrorKind::Completed { status: WcStatus::LocalQpOperation, .. } = failed.kind()
            else {
                panic!("{failed}")
            };
            behind.await.map(drop).unwrap();
            client.send_copy(b"later").await.unwrap();
        },
        async {
            assert_eq!(*server.recv().await.unwrap().unwrap(), *b"behind");
            assert_eq!(*server.recv().await.unwrap().unwrap(), *b"later");
        },
    );
}

#[test]
fn read_depth_is_common_limit() {
    let simulation = Simulation::new(1, Link::default());
    let depths = |settings: &ConnectionConfig| {
        let ((_, client), (_, server)) = simulation.connect(settings);
        [&client, &server].map(|end| (end.info().negotiated.ord, end.info().negotiated.ird))
    };
    assert_eq!(depths(&ConnectionConfig::default()), [(1024, 1024); 2]);
    assert_eq!(depths(&ConnectionConfig::default().ird(7)), [(7, 7); 2]);
    // Revision 1 announces no IRD.
    let first = ConnectionConfig::default().revision(Revision::One).peer_to_peer(false);
    assert_eq!(depths(&first).map(|(ord, _)| ord), [128; 2]);
}
