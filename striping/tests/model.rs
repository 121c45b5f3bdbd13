//! Two ends on streams that die at random, against what one connection does: order of delivery and placement, exactly once, completions in
//! order.

mod common;

use common::{Random, World};
use uiw_striping::{End, Op, Outcome};

const WRITE: Op = Op::Write { idempotent: true };

/// One run: both ends post at random while stripes die at random, then both close.
fn run(seed: u64) -> World {
    let mut random = Random(seed);
    let stripes = 1 + random.below(5) as u8;
    let mut world = World::new(seed, stripes);
    let deaths = random.below(12);
    let posts = 20 + random.below(60);
    let (mut died, mut posted) = (0, 0);
    while posted < posts {
        match random.below(12) {
            0 if died < deaths => {
                died += 1;
                world.kill(random.below(2), random.below(stripes.into()) as u8);
            }
            1..=3 => {
                posted += 1;
                let op = [Op::Message, WRITE, WRITE, Op::Read][random.below(4)];
                world.post(random.below(2), op, random.below(200_000) as u64);
            }
            _ => world.step(),
        }
    }
    world.close(0);
    if seed.is_multiple_of(2) {
        world.close(1);
    }
    while died < deaths {
        world.step();
        if random.below(8) == 0 {
            died += 1;
            world.kill(random.below(2), random.below(stripes.into()) as u8);
        }
    }
    world.run_to_the_end();
    world
}

#[test]
fn two_ends_behave_as_on_one_connection() {
    let (mut replaced, mut repeated, mut doubtful) = (0, 0, 0);
    for seed in 0..if cfg!(miri) { 20 } else { 4_000 } {
        let world = run(seed);
        for (at, end) in world.ends.iter().enumerate() {
            assert_eq!(end.completed.len(), end.posted(), "seed {seed}, end {at}");
            replaced += end.endpoint.counts().replacements;
            repeated += end.endpoint.counts().repeated;
            // The stripe that was to bring the acceptor the proof died with it, and the initiator is over.
            if at == 1 && matches!(end.endpoint.ended(), Some(End::TimedOut | End::Stalled { .. })) {
                doubtful += 1;
                continue;
            }
            assert_eq!(end.endpoint.ended(), Some(End::Closed), "seed {seed}, end {at}");
            assert!(end.completed.iter().all(|outcome| *outcome == Outcome::Placed), "seed {seed}, end {at}");
        }
    }
    assert!(doubtful < 40, "{doubtful} runs without the proof of the end");
    assert!(
        cfg!(miri) || (replaced > 10_000 && repeated > 10_000),
        "{replaced} stripes, {repeated} requests"
    );
}

/// A Write that is not idempotent may be in doubt: it is then lost, and all behind it is flushed. It is never placed twice.
#[test]
fn writes_that_are_not_idempotent_are_placed_once_at_most() {
    let (mut whole, mut lost) = (0, 0);
    for seed in 0..if cfg!(miri) { 20 } else { 2_000 } {
        let mut random = Random(seed);
        let mut world = World::new(seed, 3);
        for at in 0..40 {
            let op = [Op::Message, Op::Write { idempotent: false }][random.below(2)];
            world.post(0, op, 100_000);
            for _ in 0..random.below(6) {
                world.step();
            }
            if at == 20 {
                world.kill(random.below(2), random.below(3) as u8);
            }
        }
        world.close(0);
        world.run_to_the_end();
        let completed = &world.ends[0].completed;
        let first = completed.iter().position(|outcome| *outcome != Outcome::Placed);
        match first {
            None => whole += 1,
            Some(first) => {
                lost += 1;
                assert_eq!(completed[first], Outcome::Lost, "seed {seed}");
                assert!(
                    completed[first + 1..].iter().all(|outcome| *outcome == Outcome::Flushed),
                    "seed {seed}"
                );
                assert_eq!(world.ends[0].endpoint.ended(), Some(End::Request));
            }
        }
    }
    assert!(cfg!(miri) || (whole > 100 && lost > 100), "{whole} without a Write in doubt, {lost} with one");
}

/// The peer is gone for good: every request completes.
#[test]
fn a_peer_that_is_gone_leaves_no_request_open() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut world = World::new(seed, 1 + (seed % 4) as u8);
        for _ in 0..30 {
            let op = [Op::Message, WRITE, Op::Read][random.below(3)];
            world.post(random.below(2), op, 1000);
            for _ in 0..random.below(4) {
                world.step();
            }
        }
        world.separate();
        world.run_to_the_end();
        for end in &world.ends {
            assert_eq!(end.endpoint.ended(), Some(End::TimedOut), "seed {seed}");
            assert_eq!(end.completed.len(), end.posted(), "seed {seed}");
            let first = end.completed.iter().position(|outcome| *outcome != Outcome::Placed);
            if let Some(first) = first {
                assert_eq!(end.completed[first], Outcome::Lost, "seed {seed}");
                assert!(end.completed[first + 1..].iter().all(|outcome| *outcome == Outcome::Flushed));
            }
        }
    }
}
