//! Runs two connected streams whose hosts call their methods in random order, over a wire that
//! splits bytes at any position, breaks, and changes bytes.
//!
//! The hosts of `common` check the requests of their streams. In addition, these tests check that
//! every deadline is consumed when it is handled, and that both streams come to an end.

mod common;

use common::{Decision, Pair, at, config_with, pattern};
use std::time::Duration;
use uiw_mpa::startup::{Revision, RtrKinds};
use uiw_stream::{
    CapabilityExchange, FpduSize, LocalError, Op, RdmapConfig, RdmapStream, StableTx, Time,
};

/// SplitMix64 generator.
struct RandomBytes(u64);

impl RandomBytes {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

fn random_config(random: &mut RandomBytes) -> RdmapConfig {
    config_with(|config| {
        let startup = &mut config.startup;
        startup.revision = if random.one_in(6) { Revision::One } else { Revision::Two };
        startup.crc = !random.one_in(4);
        startup.want_markers = random.one_in(3);
        startup.peer_to_peer = !random.one_in(3);
        startup.rtr = random.pick(&[
            RtrKinds { write: true, read: true, send: true },
            RtrKinds { write: true, read: false, send: false },
            RtrKinds { write: false, read: true, send: false },
            RtrKinds { write: false, read: false, send: true },
        ]);
        startup.ird = random.pick(&[16, 4, 1, 0]);
        // An RTR Read requires an ORD greater than zero.
        let reads_only = startup.rtr.read && !startup.rtr.write;
        startup.ord = random.pick(if reads_only { &[16, 1] } else { &[16, 4, 1, 0] });
        config.fpdu = random.pick(&[
            FpduSize::Auto,
            FpduSize::Segment,
            FpduSize::Large,
            FpduSize::Fixed(128),
        ]);
        config.capabilities = random.pick(&[
            CapabilityExchange::On,
            CapabilityExchange::Off,
            CapabilityExchange::Assume,
        ]);
        config.stable_tx =
            random.pick(&[StableTx::Off, StableTx::Off, StableTx::Writes, StableTx::On]);
        config.copy_with_crc = !random.one_in(3);
        config.divides_long_messages = random.one_in(3);
        config.acknowledged = random.one_in(3);
        config.no_receive_timeout = random.pick(&[
            Duration::from_secs(1),
            Duration::ZERO,
            Duration::from_millis(10),
            Duration::MAX,
        ]);
        config.close_timeout =
            random.pick(&[Duration::from_secs(5), Duration::ZERO, Duration::from_millis(1)]);
        config.startup_timeout =
            random.pick(&[Duration::from_secs(10), Duration::from_millis(100)]);
    })
}

fn random_op(random: &mut RandomBytes) -> (Op, Vec<u8>) {
    let remote = at(random.below(1000) as u64 * 8);
    let len = random.pick(&[0, 1, 8, 100, 1500, 9000, 70_000]);
    let op = match random.below(10) {
        0 | 1 => Op::Write { remote },
        2 => Op::WriteImm { remote, imm: 7 },
        3 | 4 => Op::Send,
        5 => Op::SendImm { imm: 9 },
        6 | 7 => Op::Read { remote, invalidate: None },
        8 => Op::FetchAdd { remote, add: 1, mask: 0 },
        _ => {
            Op::CmpSwap { remote, compare: 0, compare_mask: u64::MAX, swap: 1, swap_mask: u64::MAX }
        }
    };
    let len = if matches!(op, Op::FetchAdd { .. } | Op::CmpSwap { .. }) { 8 } else { len };
    (op, pattern(len, 3))
}

/// Handles the deadline of end `n` if it has passed, and checks that it is not due a second time.
fn serve_deadline(pair: &mut Pair, n: usize) {
    if pair.ends[n].stream.poll_timeout() <= pair.now {
        pair.call(n, RdmapStream::handle_timeout);
        let stream = &pair.ends[n].stream;
        assert!(
            stream.poll_timeout() > pair.now || stream.poll_timeout() == Time::NEVER,
            "a deadline that was served is due again"
        );
    }
}

fn post(pair: &mut Pair, n: usize, random: &mut RandomBytes) {
    let (op, payload) = random_op(random);
    let (fence, solicited) = (random.one_in(8), random.one_in(4));
    pair.ends[n].host.post_with(op, &payload, |request| {
        request.fence = fence;
        request.solicited = solicited;
    });
    pair.ends[n].stream.doorbell();
}

fn step(pair: &mut Pair, random: &mut RandomBytes, rude: bool) {
    let n = random.below(2);
    match random.below(if rude { 40 } else { 24 }) {
        0..=5 => {
            let (bytes, fin) =
                pair.ends[n].transmit(random.pick(&[0, 1, 7, 100, 1460, usize::MAX]), pair.now);
            let peer = &mut pair.ends[1 - n];
            peer.incoming.extend(bytes);
            peer.incoming_fin |= fin;
        }
        6..=11 => pair.receive(n, random.pick(&[1, 3, 50, 1460, usize::MAX])),
        12..=15 if !pair.ends[n].host.detached => post(pair, n, random),
        16 | 17 if !pair.ends[n].host.detached => pair.receives(n, 1, 70_000),
        18 => {
            let wait = random.pick(&[0, 1, 60, 300]);
            pair.now = pair.now.after(Duration::from_millis(wait));
        }
        19 => serve_deadline(pair, n),
        20 => pair.ends[n].stream.set_emss(random.pick(&[1460, 536, 0, 9000, 1 << 20])),
        21 => pair.ends[n].stream.pause(),
        22 | 23 => pair.ends[n].stream.resume(),
        24 => drop(pair.call(n, |stream, _, now| stream.close(now))),
        25 if random.one_in(3) => pair.call(n, RdmapStream::abort),
        26 if random.one_in(3) => {
            pair.call(n, |stream, host, now| stream.fail_locally(host, LocalError::GivenUp, now));
        }
        27 if random.one_in(3) && !pair.ends[n].host.detached => {
            pair.detach(n);
        }
        28 if random.one_in(3) => pair.call(n, RdmapStream::handle_lost),
        29 if random.one_in(3) => pair.call(n, |stream, _, _| stream.abandon_startup()),
        30 if random.one_in(3) => pair.ends[n].host.gone = true,
        31 if random.one_in(3) => pair.ends[n].host.no_local_memory = true,
        32 if random.one_in(3) => pair.ends[n].host.cq_full = true,
        33 if random.one_in(3) && !pair.ends[n].incoming.is_empty() => {
            let place = random.below(pair.ends[n].incoming.len());
            pair.ends[n].incoming[place] ^= 1 << random.below(8);
        }
        34 if random.one_in(3) => {
            // The wire breaks here.
            let keep = random.below(pair.ends[n].incoming.len() + 1);
            pair.ends[n].incoming.truncate(keep);
            pair.ends[n].incoming_fin = true;
        }
        35 => {
            let timeout = random.pick(&[Duration::ZERO, Duration::from_millis(1), Duration::MAX]);
            pair.call(n, |stream, _, now| stream.set_no_receive_timeout(timeout, now));
        }
        36 => {
            let timeout = random.pick(&[Duration::ZERO, Duration::from_secs(3), Duration::MAX]);
            pair.call(n, |stream, _, now| stream.limit_lifetime(timeout, now));
        }
        37 => pair.call(n, |stream, _, now| stream.handle_connected(now)),
        38 if random.one_in(3) => pair.ends[n].host.forbidden = 0..4000,
        39 => drop(pair.call(n, |stream, _, now| stream.reject(b"late", now))),
        _ => {}
    }
}

/// Runs both streams to their end within the configured times.
fn finish(pair: &mut Pair, seed: u64) {
    for _ in 0..40 {
        pair.run();
        for n in 0..2 {
            pair.call(n, |stream, _, now| stream.close(now));
            pair.call(n, |stream, _, now| stream.reject(b"", now)).expect("short");
            serve_deadline(pair, n);
        }
        pair.now = pair.now.after(Duration::from_millis(500));
    }
    for end in &pair.ends {
        assert!(
            end.stream.is_over(),
            "seed {seed}: {:?} {:?} {:?}",
            end.stream.poll_timeout(),
            end.ended,
            end.stream
        );
        end.host.assert_completed_at_most_once();
    }
}

fn run(seed: u64, rude: bool) {
    let mut random = RandomBytes(seed);
    let mut pair = Pair::new(random_config(&mut random), random_config(&mut random));
    for n in 0..2 {
        pair.ends[n].host.element = random.pick(&[usize::MAX, 1000, 64]);
        pair.ends[n].host.stable = !random.one_in(3);
        if rude && random.one_in(6) {
            pair.ends[n].decision = random.pick(&[Decision::Reject, Decision::Wait]);
        }
    }
    for _ in 0..random.pick(&[20, 100, 400]) {
        step(&mut pair, &mut random, rude);
    }
    finish(&mut pair, seed);
}

#[test]
fn random_streams_end() {
    for seed in 0..RUNS {
        run(seed, true);
    }
}

#[test]
fn streams_end_whatever_their_hosts_post() {
    for seed in 0..RUNS {
        run(seed, false);
    }
}

/// Number of runs; Miri executes only a few of them.
const RUNS: u64 = if cfg!(miri) { 2 } else { 2000 };
