//! Time-outs on the virtual clock.

use std::time::Duration;

use llp::sim::Link;
use verbs::ConnSettings;

use crate::link::Simulation;

#[test]
fn a_send_that_meets_no_receive_waits_for_one() {
    let simulation = Simulation::new(1, Link::default());
    let mut settings = ConnSettings { recv_depth: 1, ..ConnSettings::default() };
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
                assert_eq!(*server.recv().await.unwrap(), [byte]);
            }
        },
    );
}

#[test]
fn without_a_receive_in_time_the_stream_is_terminated() {
    let simulation = Simulation::new(1, Link::default());
    let mut settings = ConnSettings { recv_depth: 1, ..ConnSettings::default() };
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
            let kept = server.recv().await.unwrap();
            server.ended().await;
            drop(kept);
        },
    );
    let reason = ending.reason.unwrap();
    assert_eq!((reason.from_peer, reason.layer, reason.etype, reason.code), (true, 1, 2, 2), "no buffer");
    assert!(simulation.now() - start >= Duration::from_secs(3));
}
