//! Tests with smoltcp at both ends of emulated paths: all operations, verified byte for byte.

use std::time::Duration;

use uiw_impair::wan::Profile;

use crate::link::Simulation;
use crate::splits::{converse_over, variants};

/// Runs all variants over one path.
fn all_variants(seed: u64, profile: &Profile, mtu: usize, buffer: usize) {
    for (name, settings) in variants() {
        println!("seed {seed}, {name}");
        converse_over(&Simulation::frames(seed, profile, mtu, buffer), &settings, 200_000);
    }
}

/// FPDUs are contiguous in the receive buffer, wrap around its end, or are longer than the buffer.
#[test]
fn buffers_of_any_size() {
    for buffer in [5_000, 70_001, 300_000, 1 << 20] {
        for mtu in [1500, 9000] {
            all_variants(1, &Profile::default(), mtu, buffer);
        }
    }
}

#[test]
fn long_and_narrow_path() {
    let profile =
        Profile { delay: Duration::from_millis(20), rate: Some(100_000_000), ..Profile::default() };
    all_variants(1, &profile, 1500, 1 << 20);
}

#[test]
fn rough_paths() {
    let profile = Profile {
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(1),
        loss: 0.02,
        burst: Some(2.0),
        reorder: 0.02,
        duplicate: 0.02,
        damage: 0.01,
        rate: Some(100_000_000),
        ..Profile::default()
    };
    for seed in 0..10 {
        all_variants(seed, &profile, 1500, 1 << 20);
    }
}
