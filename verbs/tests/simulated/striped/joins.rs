//! Stripes that must not join, and stripes that join while the old one still has something: one end is a scripted peer.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::{join, join_all};
use uiw_llp::sim::Link;
use uiw_verbs::striping::wire::{Header, Join, JoinError, Kind, Reason, Reply, Request};
use uiw_verbs::striping::{End, Violation};
use uiw_verbs::{
    Access, ConnOptions, ConnSettings, Connection, Error, Listener, Pd, Striped, StripedListener,
    StripedMessage, StripedSettings,
};

use super::model::settings;
use crate::link::{CLIENT, SERVER, Simulation};

const TOKEN: [u8; 16] = *b"a random secret.";

const fn request(index: u8, generation: u32) -> Request {
    Request { stripes: 2, index, generation, token: TOKEN, delivered: 0 }
}

fn with_private_data(private_data: &[u8]) -> ConnSettings {
    let options = ConnOptions::default().acknowledged(true).no_receive_timeout(Duration::MAX);
    ConnSettings::default().options(options).private_data(private_data)
}

/// A scripted initiator connects a stripe.
async fn connect(pd: &Pd, to: SocketAddr, request: Request) -> uiw_verbs::Result<Connection> {
    Connection::connect(pd, to, &with_private_data(&Join::Request(request).emit(b""))).await
}

fn reply_of(connection: &Connection) -> Reply {
    match Join::parse(&connection.info().private_data) {
        Ok((Join::Reply(reply), _)) => reply,
        other => panic!("{other:?}"),
    }
}

fn reason(result: uiw_verbs::Result<Connection>) -> Reason {
    match result.unwrap_err() {
        Error::Rejected { private_data, .. } => match Join::parse(&private_data) {
            Ok((Join::Rejection(reason), _)) => reason,
            other => panic!("{other:?}"),
        },
        other => panic!("{other}"),
    }
}

async fn send(connection: &Connection, pd: &Pd, number: u64, text: &str) {
    let mut message = Header { kind: Kind::Send, number }.emit();
    message.extend_from_slice(text.as_bytes());
    connection.send(pd.register(message).unwrap()).await.unwrap();
}

async fn text(connection: &Striped) -> String {
    let message: StripedMessage = connection.recv().await.unwrap().unwrap();
    String::from_utf8(message.to_vec()).unwrap()
}

/// A simulation, the initiator's domain, and a listener with its domain.
struct Scene {
    simulation: Simulation,
    pd: Pd,
    listener: StripedListener,
    acceptor_pd: Pd,
}

impl Scene {
    fn new(settings: &StripedSettings) -> Self {
        let simulation = Simulation::new(1, Link { latency: Duration::from_millis(1), ..Link::default() });
        let (pd, acceptor_pd) =
            (simulation.client.alloc_pd().unwrap(), simulation.server.alloc_pd().unwrap());
        let listener = StripedListener::bind(&acceptor_pd, SocketAddr::new(SERVER, 4791), settings).unwrap();
        Self { simulation, pd, listener, acceptor_pd }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.simulation.run(future, async {}).0
    }

    fn connect(&self, request: Request) -> uiw_verbs::Result<Connection> {
        self.run(connect(&self.pd, self.listener.local_addr(), request))
    }

    /// A striped connection to the scripted initiator, whose stripes are returned too.
    fn established(&self) -> (Vec<Connection>, Striped) {
        let to = self.listener.local_addr();
        let stripes = join_all((0..2).map(|index| connect(&self.pd, to, request(index, 0))));
        let (stripes, accepted) = self.run(join(stripes, self.listener.accept()));
        (stripes.into_iter().map(Result::unwrap).collect(), accepted.unwrap())
    }

    fn pass(&self, time: Duration) {
        let until = self.simulation.now() + time;
        self.run(std::future::poll_fn(|_| match self.simulation.now() >= until {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }));
    }
}

#[test]
fn stripes_that_do_not_belong_to_the_connection_are_rejected() {
    let scene = Scene::new(&settings(2));
    let (stripes, server) = scene.established();
    let wrong_token = Request { token: *b"another secret..", ..request(0, 1) };
    assert_eq!(reason(scene.connect(wrong_token)), Reason::Unknown);
    assert_eq!(reason(scene.connect(request(0, 0))), Reason::Stale);
    assert_eq!(reason(scene.connect(Request { stripes: 3, ..request(0, 1) })), Reason::Mismatch);
    assert_eq!(reason(scene.connect(Request { stripes: 3, ..request(2, 1) })), Reason::Mismatch);
    // No stripe was disturbed.
    scene.run(send(&stripes[0], &scene.pd, 1, "one"));
    assert_eq!(scene.run(text(&server)), "one");
    assert_eq!(server.counts().deaths, 0);

    let replaced = scene.connect(request(0, 5)).unwrap();
    assert_eq!(reply_of(&replaced), Reply { stripes: 2, index: 0, generation: 5, delivered: 1 });
    // One that was sent before, and is delayed.
    assert_eq!(reason(scene.connect(request(0, 4))), Reason::Stale);
    scene.run(send(&replaced, &scene.pd, 2, "two"));
    assert_eq!(scene.run(text(&server)), "two");
    assert_eq!((server.counts().deaths, server.counts().replacements), (1, 1));
}

/// Whatever the old queue pair has received is in the count of the Reply, and nothing that comes later counts.
#[test]
fn a_reply_comes_when_the_old_queue_pair_is_drained() {
    let scene = Scene::new(&settings(2));
    let memory = scene.acceptor_pd.share(64, Access::REMOTE_WRITE).unwrap();
    let (stripes, server) = scene.established();
    scene.run(async {
        for number in 1..=3 {
            send(&stripes[0], &scene.pd, number, "early").await;
        }
    });
    // These are on their way for a second, and the acceptor does not notice that the initiator's end is gone.
    let late = scene.pd.register(vec![0xAA; 64]).unwrap();
    let (local, peer) = (stripes[0].info().local, stripes[0].info().peer);
    let written = stripes[0].write(late, memory.remote(0..64).unwrap());
    let mut fourth = Header { kind: Kind::Send, number: 4 }.emit();
    fourth.extend_from_slice(b"late");
    let sent = stripes[0].send(scene.pd.register(fourth).unwrap());
    scene.simulation.network().delay(peer, local, Duration::from_secs(1));
    scene.simulation.network().reset_end(local, peer);
    assert!(scene.run(written).is_err() && scene.run(sent).is_err());
    assert_eq!(server.counts().deaths, 0, "the acceptor has not noticed");

    let replaced = scene.connect(request(0, 1)).unwrap();
    assert_eq!(reply_of(&replaced).delivered, 3);
    scene.run(async {
        let again = scene.pd.register(vec![0xBB; 64]).unwrap();
        replaced.write(again, memory.remote(0..64).unwrap()).await.unwrap();
        send(&replaced, &scene.pd, 4, "again").await;
    });
    scene.pass(Duration::from_secs(2));
    for expected in ["early", "early", "early", "again"] {
        assert_eq!(scene.run(text(&server)), expected);
    }
    assert_eq!(memory.to_vec(0..64).unwrap(), [0xBB; 64], "the old stream has written");
    assert_eq!(server.counts().replacements, 1);
}

/// Messages that wait for a receive were not delivered.
#[test]
fn messages_that_no_receive_took_are_not_counted() {
    let scene = Scene::new(&settings(2));
    let (stripes, server) = scene.established();
    let messages = (1..=6u64).map(|number| Header { kind: Kind::Send, number }.emit());
    let sent: Vec<_> = messages.map(|message| stripes[0].send(scene.pd.register(message).unwrap())).collect();
    scene.pass(Duration::from_secs(1));
    let replaced = scene.connect(request(0, 1)).unwrap();
    assert_eq!(reply_of(&replaced).delivered, 4, "as many as there are receives");
    drop(sent);
    scene.run(join(send(&replaced, &scene.pd, 5, "fifth"), async {
        for _ in 0..4 {
            assert_eq!(text(&server).await, "");
        }
        assert_eq!(text(&server).await, "fifth");
    }));
}

/// A Request waits while its predecessor is in set-up; the newest one counts.
#[test]
fn the_newest_request_for_a_stripe_is_accepted() {
    let scene = Scene::new(&settings(2));
    let (_stripes, server) = scene.established();
    let to = scene.listener.local_addr();
    let attempts = join_all((1..=4).map(|generation| connect(&scene.pd, to, request(1, generation))));
    let joined: Vec<_> = scene.run(attempts);
    let last = joined.last().unwrap().as_ref().unwrap();
    assert_eq!(reply_of(last).generation, 4);
    scene.pass(Duration::from_secs(1));
    let live: Vec<_> =
        joined.iter().flatten().filter(|stripe| stripe.qp().state() == uiw_verbs::QpState::Rts).collect();
    assert_eq!(live.len(), 1, "one connection is left of the stripe");
    assert_eq!(reply_of(live[0]).generation, 4);
    assert_eq!(server.counts().deaths, 1);
}

#[test]
fn a_message_out_of_order_ends_the_connection() {
    for (header, stripe, expected) in [
        (Header { kind: Kind::Send, number: 2 }, 0, Violation::Number { given: 2, expected: 1 }),
        (Header { kind: Kind::Send, number: 1 }, 1, Violation::Stripe { number: 1, index: 1 }),
        (Header { kind: Kind::Closed, number: 0 }, 1, Violation::Closed),
    ] {
        let scene = Scene::new(&settings(2));
        let (stripes, server) = scene.established();
        let message = scene.pd.register(header.emit()).unwrap();
        let _ = scene.run(stripes[stripe].send(message));
        assert_eq!(scene.run(server.ended()), End::Violation(expected));
        assert!(scene.run(server.recv()).is_err());
    }
}

#[test]
fn a_connection_that_is_never_complete_is_given_up() {
    let scene = Scene::new(&settings(2));
    let stripe = scene.connect(request(1, 0)).unwrap();
    assert_eq!(reason(scene.connect(request(1, 0))), Reason::Stale, "it is there already");
    assert_eq!(reason(scene.connect(Request { stripes: 4, ..request(0, 0) })), Reason::Mismatch);
    let start = scene.simulation.now();
    scene.run(stripe.ended());
    let took = scene.simulation.now() - start;
    assert!((9..12).contains(&took.as_secs()), "{took:?}");
    assert_eq!(scene.listener.failures(), 1);
}

#[test]
fn the_number_of_stripes_and_of_set_ups_is_limited() {
    let scene = Scene::new(&settings(2).max_stripes(2));
    assert_eq!(reason(scene.connect(Request { stripes: 3, ..request(0, 0) })), Reason::Mismatch);
    let with_token = |number: u16| {
        let mut token = TOKEN;
        token[..2].copy_from_slice(&number.to_be_bytes());
        Request { token, ..request(0, 0) }
    };
    let to = scene.listener.local_addr();
    let stripes = scene.run(join_all((0..256).map(|number| connect(&scene.pd, to, with_token(number)))));
    assert!(stripes.iter().all(Result::is_ok));
    assert_eq!(reason(scene.connect(with_token(256))), Reason::Busy);
}

/// Without Reads no completion would be the proof that a request is placed.
#[test]
fn a_peer_without_ird_is_refused() {
    let scene = Scene::new(&settings(1));
    let request = Join::Request(Request { stripes: 1, ..request(0, 0) }).emit(b"");
    let mut without = with_private_data(&request);
    without.options.ird = 0;
    let to = scene.listener.local_addr();
    let stripe = scene.run(Connection::connect(&scene.pd, to, &without)).unwrap();
    scene.run(stripe.ended());
    assert_eq!(scene.listener.failures(), 1);

    let port = SocketAddr::new(SERVER, 4792);
    let listener = Listener::bind(&scene.acceptor_pd, port, &ConnSettings::default()).unwrap();
    let settings = settings(1);
    let accept = async {
        let incoming = listener.incoming().await.unwrap();
        let reply = Join::Reply(Reply { stripes: 1, index: 0, generation: 0, delivered: 0 });
        let mut without = with_private_data(&reply.emit(b""));
        without.options.ird = 0;
        incoming.accept(&scene.acceptor_pd, &without).await
    };
    let connecting = async { Striped::connect(&scene.pd, port, &settings).await.map(|_| ()) };
    let (refused, _) = scene.run(join(connecting, accept));
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

#[test]
fn ordinary_and_striped_connections_do_not_mix() {
    let scene = Scene::new(&settings(2));
    let to = scene.listener.local_addr();
    for private_data in [&b""[..], b"text", &[0; 64]] {
        let ordinary = scene.run(Connection::connect(&scene.pd, to, &with_private_data(private_data)));
        assert!(matches!(ordinary, Err(Error::Rejected { private_data, .. }) if private_data.is_empty()));
    }
    let mut other_version = Join::Request(request(0, 0)).emit(b"");
    other_version[4] = 2;
    let rejected = scene.run(Connection::connect(&scene.pd, to, &with_private_data(&other_version)));
    assert_eq!(reason(rejected), Reason::Version);

    let ordinary = SocketAddr::new(SERVER, 4792);
    let ordinary = Listener::bind(&scene.acceptor_pd, ordinary, &ConnSettings::default()).unwrap();
    let (striped, _) = scene.run(join(
        async { Striped::connect(&scene.pd, ordinary.local_addr(), &settings(1)).await.map(|_| ()) },
        ordinary.accept(),
    ));
    assert!(matches!(striped, Err(Error::PeerStripe { source: JoinError::Foreign, .. })), "{striped:?}");
}

/// A scripted acceptor answers one stripe after the other.
async fn accept(listener: &Listener, pd: &Pd, delivered: u64) -> Connection {
    let incoming = listener.incoming().await.unwrap();
    let Ok((Join::Request(request), _)) = Join::parse(incoming.private_data()) else { panic!("no Request") };
    let Request { stripes, index, generation, .. } = request;
    let reply = Join::Reply(Reply { stripes, index, generation, delivered });
    incoming.accept(pd, &with_private_data(&reply.emit(b""))).await.unwrap()
}

#[test]
fn an_acceptor_with_an_impossible_count_ends_the_connection() {
    let scene = Scene::new(&settings(1));
    let port = SocketAddr::new(SERVER, 4792);
    let listener = Listener::bind(&scene.acceptor_pd, port, &ConnSettings::default()).unwrap();
    let settings = settings(1).recovery_timeout(Duration::MAX);
    let connecting = Striped::connect(&scene.pd, listener.local_addr(), &settings);
    let (client, stripe) = scene.run(join(connecting, accept(&listener, &scene.acceptor_pd, 0)));
    let client = client.unwrap();
    scene.run(client.send_copy(b"one")).unwrap();
    let (local, peer) = (client.info().local, client.info().peer);
    scene.simulation.network().reset_end(local, peer);
    let replaced = scene.run(accept(&listener, &scene.acceptor_pd, 7));
    let expected = Violation::Delivered { delivered: 7, proven: 1, sent: 1 };
    assert_eq!(scene.run(client.ended()), End::Violation(expected));
    drop((stripe, replaced));
    let connections = || scene.simulation.network().connections(CLIENT, SERVER);
    scene.run(std::future::poll_fn(|_| match connections().is_empty() {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    }));
}

#[test]
fn a_rejection_ends_the_initiator() {
    let scene = Scene::new(&settings(1));
    let port = SocketAddr::new(SERVER, 4792);
    let listener = Listener::bind(&scene.acceptor_pd, port, &ConnSettings::default()).unwrap();
    let settings = settings(1);
    let connecting = Striped::connect(&scene.pd, listener.local_addr(), &settings);
    let (client, _stripe) = scene.run(join(connecting, accept(&listener, &scene.acceptor_pd, 0)));
    let client = client.unwrap();
    scene.simulation.network().reset_end(client.info().local, client.info().peer);
    let incoming = scene.run(listener.incoming()).unwrap();
    incoming.reject(&Join::Rejection(Reason::Unknown).emit(b"")).unwrap();
    assert_eq!(scene.run(client.ended()), End::Rejected(Reason::Unknown));
}
