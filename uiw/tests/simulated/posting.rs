//! Tests that operations are posted when their functions are called, not when their futures are
//! polled.

use uiw::{Access, ConnectionConfig, ErrorKind};
use uiw_testkit::sim::Link;

use crate::link::Simulation;

/// Length of a message that is too long to be posted inline.
const LONG: usize = 1000;

#[test]
fn operations_posted_in_call_order() {
    let simulation = Simulation::new(1, Link::default());
    let ((pd, client), (server_pd, server)) =
        simulation.connect(&ConnectionConfig::default().send_depth(2));
    let memory = server_pd.share(8, Access::REMOTE_ATOMIC).unwrap();
    let counter = memory.remote(0..8).unwrap();
    let copied = client.send_copy(&[1; LONG]);
    let sent = client.send(pd.register(vec![2]).unwrap());
    let added = client.fetch_add(counter, 5);
    let swapped = client.compare_swap(counter, 5, 9);
    let inline = client.send_copy(&[3]);
    let window =
        client.bind_window(&pd.share(8, Access::empty()).unwrap(), 0..8, Access::REMOTE_READ);
    let closing = client.disconnect();
    let late = client.send_copy(&[4]);
    simulation.run(
        async {
            // From the last one to the first.
            assert!(matches!(late.await.unwrap_err().kind(), ErrorKind::Closed { .. }));
            assert!(closing.await.unwrap().orderly);
            window.await.unwrap();
            inline.await.unwrap();
            assert_eq!((swapped.await.unwrap(), added.await.unwrap()), (5, 0));
            sent.await.unwrap();
            copied.await.unwrap();
        },
        async {
            for first in [1, 2, 3] {
                assert_eq!(server.recv().await.unwrap().expect("a message")[0], first);
            }
            assert!(server.recv().await.unwrap().is_none());
        },
    );
    assert_eq!(memory.load_u64(0).unwrap(), 9);
}

#[test]
fn dropped_operations_still_posted() {
    let simulation = Simulation::new(1, Link::default());
    let ((_, client), (server_pd, server)) = simulation.connect(&ConnectionConfig::default());
    let memory = server_pd.share(8, Access::REMOTE_ATOMIC).unwrap();
    let counter = memory.remote(0..8).unwrap();
    drop(client.send_copy(&[1; LONG]));
    drop(client.fetch_add(counter, 5));
    drop(client.compare_swap(counter, 5, 9));
    drop(client.send_copy(&[2]));
    drop(client.disconnect());
    simulation.run(async {}, async {
        for first in [1, 2] {
            assert_eq!(server.recv().await.unwrap().expect("a message")[0], first);
        }
        assert!(server.recv().await.unwrap().is_none());
    });
    assert_eq!(memory.load_u64(0).unwrap(), 9);
}

/// The message may be a temporary value. It is copied before the function returns, even if the send
/// queue has no room.
#[test]
fn message_copied_before_return() {
    let simulation = Simulation::new(1, Link::default());
    let ((_, client), (_, server)) = simulation.connect(&ConnectionConfig::default().send_depth(1));
    let sends = [1u32, 2, 3].map(|number| client.send_copy(&number.to_be_bytes()));
    simulation.run(
        async {
            for send in sends {
                send.await.unwrap();
            }
        },
        async {
            for number in [1u32, 2, 3] {
                assert_eq!(*server.recv().await.unwrap().unwrap(), number.to_be_bytes());
            }
        },
    );
}

#[test]
fn window_of_another_domain_refused() {
    let simulation = Simulation::new(1, Link::default());
    let ((pd, client), (server_pd, _server)) = simulation.connect(&ConnectionConfig::default());
    let (own, foreign) =
        (pd.share(8, Access::empty()).unwrap(), server_pd.share(8, Access::empty()).unwrap());
    let refused = client.bind_window(&foreign, 0..8, Access::REMOTE_READ);
    let window = client.bind_window(&own, 0..8, Access::REMOTE_READ);
    simulation.run(
        async {
            let error = refused.await.map(drop).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Foreign { what: "memory", .. }), "{error}");
            window.await.unwrap();
        },
        async {},
    );
}
