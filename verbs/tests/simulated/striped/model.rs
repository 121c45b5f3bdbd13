//! Streams that are cut at 1,000 random points, with what is on its way delayed: nothing shows above.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join;
use uiw_llp::sim::{Link, Network, Random, Split};
use uiw_verbs::striping::{Counts, End};
use uiw_verbs::{ConnSettings, Striped, StripedListener, StripedSettings, WcStatus};

use super::program::{Plan, Statuses, exchange, message_count};
use crate::link::{CLIENT, SERVER, Simulation};

const REQUESTS: usize = 60;

/// Cuts streams, and keeps those of which the initiator's end has not noticed yet.
struct Cutter<'a> {
    network: &'a Network,
    random: Random,
    /// When probes find that the other end is gone.
    unnoticed: Vec<(Instant, SocketAddr, SocketAddr)>,
}

impl Cutter<'_> {
    /// Cuts one stream: at both ends, or at one of them, with what it has sent still on its way for a while. False: there is none.
    fn cut(&mut self) -> bool {
        let (network, random) = (self.network, &mut self.random);
        let connections = network.connections(CLIENT, SERVER);
        if connections.is_empty() {
            return false;
        }
        let (client, server) = connections[random.below(connections.len())];
        let late = Duration::from_millis(random.below(500) as u64);
        match random.below(4) {
            0 => {
                network.reset_end(client, server);
                network.reset_end(server, client);
            }
            1 => {
                network.delay(client, server, late);
                network.reset_end(server, client);
                let noticed = network.now() + late + Duration::from_millis(random.below(200) as u64);
                self.unnoticed.push((noticed, client, server));
            }
            _ => {
                network.delay(server, client, late);
                network.reset_end(client, server);
            }
        }
        true
    }

    fn notice(&mut self) {
        let (network, now) = (self.network, self.network.now());
        self.unnoticed.retain(|(at, client, server)| {
            if *at <= now {
                network.reset_end(*client, *server);
            }
            *at > now
        });
    }
}

pub(super) struct Outcome {
    pub(super) ends: [End; 2],
    pub(super) statuses: [Statuses; 2],
    pub(super) messages: [usize; 2],
    pub(super) counts: [Counts; 2],
    pub(super) plans: [Plan; 2],
    cuts: usize,
    rounds: u64,
}

pub(super) fn settings(stripes: u8) -> StripedSettings {
    let conn = ConnSettings::default().send_depth(8).recv_depth(4).recv_size(2048);
    StripedSettings::default().stripes(stripes).conn(conn)
}

pub(super) async fn both(
    client: impl Future<Output = uiw_verbs::Result<Striped>>,
    listener: &StripedListener,
) -> (Striped, Striped) {
    let (client, server) = join(client, listener.accept()).await;
    (client.unwrap(), server.unwrap())
}

/// One exchange in both directions, with `cuts` cuts at random points of the time that it takes without.
fn run(seed: u64, cuts: usize, idempotent: bool) -> Outcome {
    let rounds = exchange_with(seed, &[], idempotent).rounds;
    let mut random = Random::new(seed ^ 0xC0FFEE);
    let mut at: Vec<_> = (0..cuts).map(|_| random.below(rounds as usize) as u64).collect();
    at.sort_unstable();
    exchange_with(seed, &at, idempotent)
}

/// One exchange in both directions, with cuts in these rounds.
fn exchange_with(seed: u64, at: &[u64], idempotent: bool) -> Outcome {
    let mut random = Random::new(seed);
    let link = Link {
        latency: Duration::from_micros(random.below(3000) as u64),
        capacity: 1 << (12 + random.below(5)),
        recv_split: Split::Random(3000),
        send_split: Split::Random(9000),
        ..Link::default()
    };
    let simulation = Simulation::new(seed, link);
    let settings = settings(1 + random.below(4) as u8);
    let plans = [Plan::new(seed, REQUESTS), Plan::new(!seed, REQUESTS)];
    let pds = [simulation.client.alloc_pd().unwrap(), simulation.server.alloc_pd().unwrap()];
    let listener = StripedListener::bind(&pds[1], SocketAddr::new(SERVER, 4791), &settings).unwrap();
    let connecting = Striped::connect(&pds[0], listener.local_addr(), &settings);
    let ((client, server), ()) = simulation.run(both(connecting, &listener), async {});
    let (mut next, mut cuts, mut rounds) = (0, 0, 0);
    let mut cutter = Cutter { network: simulation.network(), random, unnoticed: Vec::new() };
    let (of_client, of_server) = simulation.run_with(
        async {
            let outcome = exchange(&client, &pds[0], &plans[0], &plans[1], idempotent).await;
            // When it has ended meanwhile, that is how it ended.
            let _ = client.disconnect().await;
            (outcome, client.ended().await)
        },
        async {
            let outcome = exchange(&server, &pds[1], &plans[1], &plans[0], idempotent).await;
            (outcome, server.ended().await)
        },
        |round| {
            rounds = round;
            while at.get(next).is_some_and(|at| *at <= round) {
                next += 1;
                cuts += usize::from(cutter.cut());
            }
            cutter.notice();
        },
    );
    let (((client_statuses, client_messages), client_end), ((server_statuses, server_messages), server_end)) =
        (of_client, of_server);
    Outcome {
        ends: [client_end, server_end],
        statuses: [client_statuses, server_statuses],
        messages: [client_messages, server_messages],
        counts: [client.counts(), server.counts()],
        plans,
        cuts,
        rounds,
    }
}

/// As on one connection that nothing happens to.
fn is_whole(outcome: &Outcome, seed: u64) {
    assert_eq!(outcome.ends, [End::Closed; 2], "seed {seed}");
    for end in 0..2 {
        assert_eq!(outcome.statuses[end], vec![WcStatus::Success; REQUESTS + 1], "seed {seed}");
        assert_eq!(outcome.messages[end], message_count(&outcome.plans[1 - end]), "seed {seed}");
    }
}

#[test]
fn without_cuts_nothing_is_repeated() {
    for seed in 0..20 {
        let outcome = run(seed, 0, true);
        is_whole(&outcome, seed);
        assert_eq!(outcome.counts, [Counts::default(); 2]);
    }
}

fn cuts_do_not_show(seeds: std::ops::Range<u64>) {
    let (mut cuts, mut replaced, mut repeated) = (0, 0, 0);
    for seed in seeds.clone() {
        let outcome = run(seed, 1 + seed as usize % 4, true);
        is_whole(&outcome, seed);
        cuts += outcome.cuts;
        replaced += outcome.counts[0].replacements;
        repeated += outcome.counts[0].repeated + outcome.counts[1].repeated;
    }
    let runs = (seeds.end - seeds.start) as usize;
    println!("{runs} runs, {cuts} cuts, {replaced} stripes replaced, {repeated} requests repeated");
    assert!(
        cuts >= runs && replaced as usize > runs && repeated as usize > 4 * runs,
        "the cuts are of consequence"
    );
}

#[test]
fn cuts_at_random_points_do_not_show_1() {
    cuts_do_not_show(0..500);
}

#[test]
fn cuts_at_random_points_do_not_show_2() {
    cuts_do_not_show(500..1000);
}

/// Without idempotent Writes the outcome is that of one connection that may be lost: successes, one request in doubt, flushed ones.
#[test]
fn writes_in_doubt_are_reported() {
    let (mut whole, mut lost) = (0, 0);
    for seed in 0..200 {
        let outcome = run(seed, 1, false);
        for end in 0..2 {
            let statuses = &outcome.statuses[end];
            let Some(first) = statuses.iter().position(|status| *status != WcStatus::Success) else {
                whole += 1;
                continue;
            };
            lost += 1;
            assert!(matches!(statuses[first], WcStatus::RetryExceeded | WcStatus::Flushed), "seed {seed}");
            assert!(statuses[first + 1..].iter().all(|status| *status == WcStatus::Flushed), "seed {seed}");
            assert_ne!(outcome.ends[end], End::Closed, "seed {seed}");
        }
    }
    assert!(whole > 20 && lost > 20, "{whole} whole, {lost} lost");
}
