//! Tests of the model with its own clock, so that no real time passes.

use super::{Direction, Profile, ProfileError};
use std::time::Duration;

const US: Duration = Duration::from_micros(1);

/// Passes numbered frames, one every `every`. Returns the frames that arrive, with their times.
fn pass(
    profile: &Profile,
    seed: u64,
    count: u32,
    every: Duration,
    len: usize,
) -> (Vec<(Duration, u32)>, Direction) {
    let mut direction = Direction::new(profile, seed).unwrap();
    let mut came = Vec::new();
    let drain = |direction: &mut Direction, until: Duration, came: &mut Vec<(Duration, u32)>| {
        while let Some(at) = direction.next().filter(|at| *at <= until) {
            let frame = direction.take(at).unwrap();
            came.push((at, u32::from_be_bytes(*frame.last_chunk().unwrap())));
        }
    };
    for n in 0..count {
        let now = every * n;
        drain(&mut direction, now, &mut came);
        let mut frame = vec![0; len];
        frame[len - 4..].copy_from_slice(&n.to_be_bytes());
        direction.offer(now, frame);
    }
    drain(&mut direction, Duration::MAX, &mut came);
    (came, direction)
}

fn numbers(came: &[(Duration, u32)]) -> Vec<u32> {
    came.iter().map(|(_, n)| *n).collect()
}

#[test]
fn delay_and_rate_as_configured() {
    let profile = Profile { delay: 5000 * US, rate: Some(1_000_000_000), ..Profile::default() };
    let (came, direction) = pass(&profile, 1, 1000, 10 * US, 1250);
    for (at, n) in &came {
        // 1250 bytes take 10 microseconds, so the line is fully used.
        assert_eq!(*at, 10 * US * (n + 1) + 5000 * US);
    }
    assert_eq!(came.len(), 1000);
    assert_eq!(direction.counts().most_queued, 1250);
    // Frames are offered twice as fast, but the rate of the line limits them.
    let (came, _) = pass(&profile, 1, 100, 5 * US, 1250);
    assert_eq!(came.last().unwrap().0, 1000 * US + 5000 * US);
}

#[test]
fn full_queue_drops_latest() {
    let profile = Profile { rate: Some(8_000_000), queue: Some(10_000), ..Profile::default() };
    let (came, direction) = pass(&profile, 1, 50, Duration::ZERO, 1000);
    assert_eq!(numbers(&came), (0..10).collect::<Vec<_>>());
    assert_eq!((direction.counts().queue_full, direction.counts().most_queued), (40, 10_000));
}

#[test]
fn loss_rate_as_configured() {
    for (loss, burst, run) in
        [(0.01, None, 1.0 / 0.99), (0.2, None, 1.25), (0.01, Some(5.0), 5.0), (0.1, Some(1.0), 1.0)]
    {
        let profile = Profile { loss, burst, ..Profile::default() };
        let (came, direction) = pass(&profile, 7, 400_000, US, 60);
        let counts = direction.counts();
        let share = counts.lost as f64 / counts.offered as f64;
        assert!((share / loss - 1.0).abs() < 0.1, "{loss} in runs of {burst:?}: {share}");
        let mean = counts.lost as f64 / counts.runs as f64;
        assert!((mean / run - 1.0).abs() < 0.1, "{loss} in runs of {burst:?}: {mean}");
        assert_eq!(came.len() as u64, counts.delivered);
    }
}

#[test]
fn impairment_rates_as_configured() {
    let profile = Profile {
        duplicate: 0.02,
        reorder: 0.05,
        damage: 0.03,
        delay: 100 * US,
        ..Profile::default()
    };
    let (came, direction) = pass(&profile, 3, 100_000, US, 200);
    let counts = direction.counts();
    let near = |count: u64, share: f64| (count as f64 / 100_000.0 / share - 1.0).abs() < 0.1;
    // A delayed frame is not duplicated.
    assert!(near(counts.duplicated, 0.019) && near(counts.damaged, 0.03), "{counts:?}");
    assert!(near(counts.reordered, 0.05), "{counts:?}");
    assert_eq!(came.len() as u64, 100_000 + counts.duplicated);
    let back = numbers(&came).windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(back > 3000, "{back} steps back");
}

/// A flipped bit in an answer would give a neighbour a wrong MAC address, which nothing corrects
/// before the entry expires.
#[test]
fn arp_is_not_damaged_but_lost() {
    let mut direction = Direction::new(&Profile { damage: 1.0, ..Profile::default() }, 3).unwrap();
    let of = |ethertype: [u8; 2]| [&[0; 12][..], &ethertype, &[0; 28]].concat();
    direction.offer(Duration::ZERO, of([8, 6]));
    direction.offer(Duration::ZERO, of([8, 0]));
    let came = direction.take(Duration::MAX).unwrap();
    assert!(came != of([8, 0]) && came[..14] == of([8, 0])[..14], "{came:?}");
    assert!(direction.take(Duration::MAX).is_none());
    assert_eq!(direction.counts().damaged, 2);
}

#[test]
fn late_last_frame_arrives() {
    let profile = Profile { reorder: 1.0, ..Profile::default() };
    let (came, direction) = pass(&profile, 3, 1, US, 200);
    assert_eq!((came.len(), direction.counts().reordered), (1, 0));
}

#[test]
fn jitter_keeps_order_and_its_bounds() {
    let profile = Profile { delay: 1000 * US, jitter: 3000 * US, ..Profile::default() };
    let (came, _) = pass(&profile, 9, 100_000, 10 * US, 100);
    assert!(numbers(&came).is_sorted());
    let ways: Vec<_> = came.iter().map(|(at, n)| *at - 10 * US * *n).collect();
    let (least, most) = (ways.iter().min().unwrap(), ways.iter().max().unwrap());
    assert!(*least >= 1000 * US && *least < 1300 * US, "{least:?}");
    assert!(*most <= 4000 * US && *most > 3700 * US, "{most:?}");
    let mean = ways.iter().sum::<Duration>() / ways.len() as u32;
    assert!((2200 * US..2800 * US).contains(&mean), "{mean:?}");
}

#[test]
fn same_seed_same_run() {
    let profile = Profile {
        loss: 0.1,
        reorder: 0.1,
        duplicate: 0.1,
        jitter: 500 * US,
        rate: Some(100_000_000),
        ..Profile::default()
    };
    let run = |seed| pass(&profile, seed, 5000, 20 * US, 300).0;
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    // The other impairments do not affect which frames are lost.
    let lost = |profile: &Profile| {
        let mut arrived = numbers(&pass(profile, 1, 5000, 20 * US, 300).0);
        arrived.sort_unstable();
        arrived.dedup();
        arrived
    };
    assert_eq!(lost(&profile), lost(&Profile { loss: 0.1, ..Profile::default() }));
}

#[test]
fn paths_that_cannot_be() {
    let wrong = |profile: Profile| Direction::new(&profile, 1).map(drop).unwrap_err();
    assert_eq!(
        wrong(Profile { loss: 1.5, ..Profile::default() }),
        ProfileError::Share { what: "loss", value: 1.5 }
    );
    assert!(matches!(
        wrong(Profile { reorder: f64::NAN, ..Profile::default() }),
        ProfileError::Share { what: "reorder", .. }
    ));
    assert_eq!(
        wrong(Profile { burst: Some(0.5), ..Profile::default() }),
        ProfileError::Burst { value: 0.5 }
    );
    assert!(matches!(
        wrong(Profile { loss: 0.9, burst: Some(2.0), ..Profile::default() }),
        ProfileError::LossInBursts { .. }
    ));
    assert_eq!(
        wrong(Profile { rate: Some(10), ..Profile::default() }),
        ProfileError::Rate { value: 10 }
    );
    assert_eq!(
        wrong(Profile { queue: Some(10), ..Profile::default() }),
        ProfileError::Queue { value: 10 }
    );
    assert!(matches!(
        wrong(Profile { delay: 70_000_000 * US, ..Profile::default() }),
        ProfileError::Time { what: "a delay", .. }
    ));
}
