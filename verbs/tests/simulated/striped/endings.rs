//! How striped connections end, and what keeps them from it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join, join_all};
use uiw_llp::sim::Link;
use uiw_verbs::striping::End;
use uiw_verbs::striping::wire::Reason;
use uiw_verbs::{
    Access, ConnSettings, Error, Pd, RemoteMr, STag, SharedMr, Striped, StripedListener, StripedSettings,
    WcError, WcStatus,
};

use super::model::both;
use crate::link::{CLIENT, SERVER, Simulation};

const LATENCY: Duration = Duration::from_millis(20);

struct Scene {
    simulation: Simulation,
    client_pd: Pd,
    client: Striped,
    server: Striped,
    listener: StripedListener,
    memory: SharedMr,
}

const LEN: usize = 100_000;

impl Scene {
    fn new(settings: &StripedSettings) -> Self {
        let simulation = Simulation::new(1, Link { latency: LATENCY, ..Link::default() });
        let (client_pd, pd) = (simulation.client.alloc_pd().unwrap(), simulation.server.alloc_pd().unwrap());
        let listener = StripedListener::bind(&pd, SocketAddr::new(SERVER, 4791), settings).unwrap();
        let connecting = Striped::connect(&client_pd, listener.local_addr(), settings);
        let ((client, server), ()) = simulation.run(both(connecting, &listener), async {});
        let memory = pd.share(16 * LEN, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        Self { simulation, client_pd, client, server, listener, memory }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.simulation.run(future, async {}).0
    }

    fn remote(&self, at: usize) -> RemoteMr {
        self.memory.remote((at * LEN) as u64..((at + 1) * LEN) as u64).unwrap()
    }

    /// Goes on until `is_so`.
    fn until(&self, is_so: impl Fn() -> bool) {
        until(&self.simulation, is_so);
    }

    /// Everything between the two stops, or goes on.
    fn stall(&self, on: bool) {
        self.simulation.network().stall(CLIENT, SERVER, on);
        self.simulation.network().stall(SERVER, CLIENT, on);
    }

    fn cut_all(&self) {
        self.simulation.network().cut(CLIENT, SERVER);
    }

    async fn statuses(&self, count: usize, idempotent: bool) -> Vec<WcStatus> {
        let writes = (0..count).map(|at| {
            let buffer = self.client_pd.register(vec![at as u8 + 1; LEN]).unwrap();
            let to = self.remote(at);
            if idempotent { self.client.write_idempotent(buffer, to) } else { self.client.write(buffer, to) }
        });
        let results = join_all(writes.collect::<Vec<_>>()).await;
        results.into_iter().map(|result| status(result.map(|_| ()).map_err(WcError::from))).collect()
    }
}

fn until(simulation: &Simulation, is_so: impl Fn() -> bool) {
    let waiting = std::future::poll_fn(|_| if is_so() { Poll::Ready(()) } else { Poll::Pending });
    simulation.run(waiting, async {});
}

fn status(result: Result<(), WcError>) -> WcStatus {
    match result {
        Ok(()) => WcStatus::Success,
        Err(WcError::Completed { status, .. }) => status,
        Err(other) => panic!("{other}"),
    }
}

fn settings(stripes: u8) -> StripedSettings {
    let conn = ConnSettings::default().dead_after(Duration::from_secs(5));
    StripedSettings::default().stripes(stripes).conn(conn).recovery_timeout(Duration::from_secs(20))
}

#[test]
fn a_peer_that_is_gone_for_good_completes_every_request() {
    for idempotent in [true, false] {
        let scene = Scene::new(&settings(3));
        scene.stall(true);
        let start = scene.simulation.now();
        let (statuses, sent) =
            scene.run(join(scene.statuses(16, idempotent), scene.server.send_copy(b"no receiver")));
        assert_eq!(statuses[0], WcStatus::RetryExceeded);
        assert_eq!(statuses[1..], [WcStatus::Flushed; 15]);
        assert_eq!(status(sent.map(|_| ())), WcStatus::RetryExceeded);
        for end in [&scene.client, &scene.server] {
            assert_eq!(scene.run(end.ended()), End::TimedOut);
            let refused = scene.run(end.send_copy(b"late")).unwrap_err();
            assert!(matches!(refused, WcError::Refused(error) if matches!(*error, Error::NotConnected)));
            let ended = scene.run(end.recv()).unwrap_err();
            assert!(
                ended.to_string().contains("a stripe was lost and could not be replaced in time"),
                "{ended}"
            );
        }
        let took = scene.simulation.now() - start;
        assert!((25..40).contains(&took.as_secs()), "dead_after, then recovery_timeout: {took:?}");
    }
}

#[test]
fn an_outage_that_is_shorter_than_the_timeouts_ends_nothing() {
    let scene = Scene::new(&settings(3));
    scene.stall(true);
    let mut is_restored = false;
    let start = scene.simulation.now();
    let (statuses, ()) = scene.simulation.run_with(scene.statuses(16, true), async {}, |_| {
        // The stripes are dead since long.
        if !is_restored && scene.simulation.now() - start > Duration::from_secs(18) {
            is_restored = true;
            scene.stall(false);
        }
    });
    assert_eq!(statuses, [WcStatus::Success; 16]);
    assert_eq!(scene.client.counts().replacements, 3);
    assert!(scene.memory.to_vec(7 * LEN as u64..8 * LEN as u64).unwrap() == [8; LEN]);
}

#[test]
fn all_stripes_at_once_are_replaced() {
    let scene = Scene::new(&settings(4));
    let mut is_cut = false;
    let start = scene.simulation.now();
    let (statuses, ()) = scene.simulation.run_with(scene.statuses(16, true), async {}, |_| {
        if scene.simulation.now() - start > LATENCY / 2 && !is_cut {
            is_cut = true;
            scene.cut_all();
        }
    });
    assert_eq!(statuses, [WcStatus::Success; 16]);
    assert_eq!((scene.client.counts().deaths, scene.client.counts().replacements), (4, 4));
    for at in 0..16 {
        let written = scene.memory.to_vec((at * LEN) as u64..((at + 1) * LEN) as u64).unwrap();
        assert!(written == [at as u8 + 1; LEN], "slot {at}");
    }
}

/// Each new connection of a stripe lets start-up through and is then cut, or brings nothing back: before the first acknowledgement either way.
#[test]
fn a_path_that_is_cut_before_each_first_acknowledgement_ends_the_connection() {
    for is_silent in [false, true] {
        // Silent stripes are up for longer than one that is of use.
        let conn = ConnSettings::default().dead_after(Duration::from_secs(15));
        let limit = Duration::from_secs(40);
        let scene = Scene::new(&StripedSettings::default().stripes(3).conn(conn).recovery_timeout(limit));
        let (simulation, start) = (&scene.simulation, scene.simulation.now());
        let network = simulation.network();
        let (mut seen, mut stalled_with) = (BTreeMap::new(), None);
        let (statuses, ()) = simulation.run_with(scene.statuses(16, true), async {}, |_| {
            let now = simulation.now();
            let deaths = scene.client.counts().deaths;
            if stalled_with.is_some_and(|before| deaths >= before + 3) {
                // The next ones are set up.
                stalled_with = None;
                scene.stall(false);
            }
            for (client, server) in network.connections(CLIENT, SERVER) {
                // A connection is seen after a round trip; start-up takes another one, and the first acknowledgement a third.
                let since = *seen.entry(client).or_insert(now);
                let is_first = since == start;
                if now - since < 2 * LATENCY + LATENCY / 2 && !is_first {
                    continue;
                }
                if is_silent && stalled_with.is_none() {
                    stalled_with = Some(deaths);
                    scene.stall(true);
                } else if !is_silent {
                    network.reset_end(server, client);
                    network.reset_end(client, server);
                }
            }
        });
        assert_eq!(statuses[0], WcStatus::RetryExceeded);
        assert_eq!(statuses[1..], [WcStatus::Flushed; 15]);
        let took = simulation.now() - start;
        assert!((limit..limit + Duration::from_secs(35)).contains(&took), "{took:?}");
        assert!(matches!(scene.run(scene.client.ended()), End::Stalled { attempts: 2.. }));
        let ended = scene.run(scene.client.recv()).unwrap_err().to_string();
        assert!(ended.contains("nothing was placed after a stripe had died, on "), "{ended}");
        let cause = if is_silent { "nothing acknowledged for 15s" } else { "connection lost" };
        assert!(ended.ends_with(&format!("; the last stripe ended with: {cause}")), "{ended}");
    }
}

/// The initiator has nothing on the stripe, so only the acceptor's report makes it replace it.
#[test]
fn a_death_that_only_the_acceptor_notices_is_reported() {
    let scene = Scene::new(&settings(2));
    let memory = scene.client_pd.share(2 * LEN, Access::REMOTE_WRITE).unwrap();
    let pd = scene.server.pd();
    let start = scene.simulation.now();
    let writes: Vec<_> = (0..2)
        .map(|at| {
            let to = memory.remote(at * LEN as u64..(at + 1) * LEN as u64).unwrap();
            scene.server.write_idempotent(pd.register(vec![1; LEN]).unwrap(), to)
        })
        .collect();
    let (client, server) = scene.simulation.network().connections(CLIENT, SERVER)[1];
    // What the initiator sends there would be answered by a reset.
    scene.simulation.network().delay(server, client, Duration::from_secs(3600));
    scene.simulation.network().reset_end(server, client);
    for result in scene.run(join_all(writes)) {
        result.unwrap();
    }
    let took = scene.simulation.now() - start;
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(scene.server.counts().replacements, 1);
    assert!(memory.to_vec(0..2 * LEN as u64).unwrap() == [1; 2 * LEN]);
}

#[test]
fn a_request_that_fails_completes_as_on_one_connection() {
    let scene = Scene::new(&settings(3));
    let nowhere = RemoteMr { addr: 0, len: LEN as u64, rkey: STag(0x1234_5678) };
    let buffer = || scene.client_pd.register(vec![1; LEN]).unwrap();
    let ops = vec![
        scene.client.write_idempotent(buffer(), scene.remote(0)),
        scene.client.write_idempotent(buffer(), scene.remote(1)),
        scene.client.write_idempotent(buffer(), nowhere),
        scene.client.write_idempotent(buffer(), scene.remote(2)),
        scene.client.send(buffer()),
        scene.client.read(buffer(), scene.remote(3)),
    ];
    let results = scene.run(join_all(ops));
    let statuses: Vec<_> =
        results.into_iter().map(|result| status(result.map(|_| ()).map_err(WcError::from))).collect();
    assert_eq!(statuses[..3], [WcStatus::Success, WcStatus::Success, WcStatus::RemoteAccess]);
    assert_eq!(statuses[3..], [WcStatus::Flushed; 3]);
    assert_eq!(scene.run(scene.client.ended()), End::Request);
    let start = scene.simulation.now();
    assert!(scene.run(scene.server.recv()).is_err(), "the Send behind it is not delivered");
    assert_eq!(scene.run(scene.server.ended()), End::Aborted);
    assert!(scene.simulation.now() - start < Duration::from_secs(1));
}

#[test]
fn a_write_with_immediate_that_fails_has_one_completion() {
    let scene = Scene::new(&settings(2));
    let nowhere = RemoteMr { addr: 0, len: LEN as u64, rkey: STag(0x1234_5678) };
    let failed =
        scene.run(scene.client.write_imm(scene.client_pd.register(vec![1; 10]).unwrap(), nowhere, 7));
    let failed = failed.unwrap_err();
    assert_eq!(status(Err(failed.error)), WcStatus::RemoteAccess);
    assert_eq!(failed.buffer.into_inner(), [1; 10]);
}

#[test]
fn a_connection_that_is_dropped_ends_the_peer() {
    let scene = Scene::new(&settings(3));
    let Scene { simulation, client, server, listener, .. } = scene;
    let start = simulation.now();
    drop(client);
    let (end, received) = simulation.run(server.ended(), server.recv());
    assert_eq!(end, End::Aborted);
    assert!(matches!(received, Err(WcError::Refused(_))));
    assert!(simulation.now() - start < Duration::from_secs(1));
    drop((server, listener));
    until(&simulation, || simulation.network().connections(CLIENT, SERVER).is_empty());
}

#[test]
fn operations_that_are_dropped_are_executed() {
    let scene = Scene::new(&settings(2));
    for at in 0..16 {
        drop(
            scene.client.write_idempotent(scene.client_pd.register(vec![7; LEN]).unwrap(), scene.remote(at)),
        );
    }
    scene.cut_all();
    let (sent, received) = scene.run(join(scene.client.send_copy(b"behind"), scene.server.recv()));
    sent.unwrap();
    assert_eq!(received.unwrap().as_deref(), Some(&b"behind"[..]));
    assert!(scene.memory.to_vec(0..(16 * LEN) as u64).unwrap() == vec![7; 16 * LEN]);
}

#[test]
fn either_end_closes_or_both_do() {
    for (client_closes, server_closes) in [(true, false), (false, true), (true, true)] {
        let scene = Scene::new(&settings(3));
        let close = async |end: &Striped, closes: bool| {
            let sent = end.send(end.pd().register("last").unwrap());
            if closes {
                assert_eq!(end.disconnect().await.unwrap(), End::Closed);
            }
            let message = end.recv().await;
            let after = end.recv().await;
            assert_eq!(message.unwrap().as_deref(), Some(&b"last"[..]));
            assert!(after.unwrap().is_none());
            assert_eq!(end.ended().await, End::Closed);
            assert_eq!(status(sent.await.map(|_| ()).map_err(WcError::from)), WcStatus::Success);
            assert!(matches!(end.disconnect().await, Err(Error::NotConnected)));
        };
        scene.simulation.run(close(&scene.client, client_closes), close(&scene.server, server_closes));
        scene.until(|| scene.simulation.network().connections(CLIENT, SERVER).is_empty());
    }
}

#[test]
fn stripes_are_replaced_when_the_listener_is_dropped_and_new_peers_are_rejected() {
    let scene = Scene::new(&settings(2));
    let Scene { simulation, client_pd, client, server, listener, .. } = scene;
    let address = listener.local_addr();
    drop(listener);
    simulation.network().cut(CLIENT, SERVER);
    let (sent, received) = simulation.run(client.send_copy(b"after"), server.recv());
    sent.unwrap();
    assert_eq!(received.unwrap().as_deref(), Some(&b"after"[..]));
    until(&simulation, || client.counts().replacements == 2 && server.counts().replacements == 2);
    let (refused, ()) = simulation.run(Striped::connect(&client_pd, address, &settings(2)), async {});
    assert!(matches!(refused, Err(Error::StripeRejected { reason: Reason::Unknown, .. })));
    drop((client, server));
    until(&simulation, || simulation.network().connections(CLIENT, SERVER).is_empty());
    let (refused, ()) = simulation.run(Striped::connect(&client_pd, address, &settings(2)), async {});
    assert!(matches!(refused, Err(Error::Refused { .. })), "the port is closed with the last connection");
}

#[test]
fn what_cannot_be_repeated_is_refused() {
    let scene = Scene::new(&settings(2));
    let at = scene.remote(0);
    let refusals = [
        scene.client.fetch_add(at, 1).map(|_| ()),
        scene.client.compare_swap(at, 1, 2).map(|_| ()),
        scene.client.send_invalidate(scene.client_pd.register("text").unwrap(), at.rkey).map(|_| ()),
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("striped connections refuse it"), "{error}");
    }
    // The connection is as it was.
    let (sent, received) = scene.run(join(scene.client.send_copy(b"text"), scene.server.recv()));
    sent.unwrap();
    assert_eq!(received.unwrap().as_deref(), Some(&b"text"[..]));
}

#[test]
fn illegal_settings_and_buffers_are_refused() {
    let scene = Scene::new(&settings(2));
    let to = scene.listener.local_addr();
    let long = ConnSettings::default().private_data(vec![0; 473]);
    let (ord, ird) = (ConnSettings::default().ord(0), ConnSettings::default().ird(0));
    let with = |conn| settings(2).conn(conn);
    let all = [settings(0), settings(65), settings(2).max_stripes(0), with(long), with(ord), with(ird)];
    for wrong in all {
        let refused = scene.run(Striped::connect(&scene.client_pd, to, &wrong)).unwrap_err();
        assert!(matches!(refused, Error::Limit { .. } | Error::Zero { .. }), "{refused}");
    }
    let foreign = scene.simulation.client.alloc_pd().unwrap().register("text").unwrap();
    let refused = scene.run(scene.client.send(foreign)).unwrap_err();
    assert_eq!(refused.error.to_string(), "buffer belongs to another protection domain");
    let beyond = scene.client_pd.register(vec![0; 2 * LEN]).unwrap();
    assert!(scene.run(scene.client.read(beyond, scene.remote(0))).is_err());
    assert_eq!(scene.client.counts().deaths, 0);
}

#[test]
fn private_data_of_the_program_is_exchanged() {
    let simulation = Simulation::new(1, Link::default());
    let with = |data: &'static [u8]| settings(3).conn(ConnSettings::default().private_data(data));
    let pds = [simulation.client.alloc_pd().unwrap(), simulation.server.alloc_pd().unwrap()];
    let (ours, theirs) = (with(&[1; 472]), with(b"from the server"));
    let listener = StripedListener::bind(&pds[1], SocketAddr::new(SERVER, 4791), &theirs).unwrap();
    let connecting = Striped::connect(&pds[0], listener.local_addr(), &ours);
    let ((client, server), ()) = simulation.run(both(connecting, &listener), async {});
    assert_eq!(server.info().private_data, [1; 472]);
    assert_eq!(client.info().private_data, b"from the server");
}

/// As long as one stripe takes: one round trip for TCP, one for MPA.
#[test]
fn stripes_are_set_up_at_the_same_time() {
    let simulation = Simulation::new(1, Link { latency: LATENCY, ..Link::default() });
    let pds = [simulation.client.alloc_pd().unwrap(), simulation.server.alloc_pd().unwrap()];
    let settings = settings(32);
    let listener = StripedListener::bind(&pds[1], SocketAddr::new(SERVER, 4791), &settings).unwrap();
    let start = simulation.now();
    let connecting = Striped::connect(&pds[0], listener.local_addr(), &settings);
    let ((client, _server), ()) = simulation.run(both(connecting, &listener), async {});
    assert_eq!(client.stripes(), 32);
    assert!(simulation.now() - start <= 6 * LATENCY, "{:?}", simulation.now() - start);
}
