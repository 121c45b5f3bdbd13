//! Speed of the copies into and out of shared memory, beside `memcpy`: the ground for the threshold
//! in `src/copy.rs`. Then what it takes to place one segment, beside the copy.
//!
//! `cargo run --release -p uiw-mem --example copy_speed`

use std::{hint::black_box, time::Instant};

use uiw_mem::{Access, Limits, Memory, PdId, Right, StreamId, Table, bench};

/// Bytes copied for one figure.
const WORK: usize = 1 << 30;
/// The processor compares addresses within one.
const PAGE: usize = 4096;
/// Figures taken; the best counts, since others only were disturbed.
const ROUNDS: usize = 5;

type Copy = fn(&mut [u8], &[u8]);

fn main() {
    // Selects the instructions.
    let _table = Table::new(Limits::default());
    let copies: &[(&str, Copy)] = &[
        ("memcpy", |dst, src| dst.copy_from_slice(src)),
        ("exclusive", bench::plain),
        ("store", bench::shared),
        ("load", bench::shared_load),
        ("words", bench::words),
        #[cfg(target_arch = "x86_64")]
        ("rep movsb", string),
    ];
    // Where source and destination begin in a page.
    let places = [
        ("aligned", 0, 0),
        ("source off by 20 bytes", 20, 0),
        ("destination off by 8 bytes, as `rep movsb` is slow on Zen 3", 0, 8),
        ("destination off by 40 bytes", 0, 40),
    ];
    for (what, from, to) in places {
        println!("GB/s, {what}");
        print!("{:>10}", "bytes");
        copies.iter().for_each(|(name, _)| print!("{name:>12}"));
        println!();
        for len in [16, 64, 96, 128, 256, 512, 1024, 1400, 2048, 4096, 16_384, 65_536, 1 << 20] {
            let (mut dst, src) = (vec![0u8; len + 2 * PAGE], vec![1u8; len + 2 * PAGE]);
            let (to, from) =
                (dst.as_ptr().align_offset(PAGE) + to, src.as_ptr().align_offset(PAGE) + from);
            print!("{len:>10}");
            for (_, copy) in copies {
                let rate = (0..ROUNDS)
                    .map(|_| rate(*copy, &mut dst[to..to + len], &src[from..from + len]));
                print!("{:>12.1}", rate.fold(0.0, f64::max));
            }
            println!();
        }
    }
    println!();
    for entries in [1, 1000, 100_000] {
        println!(
            "{:>7} entries: {:.0} ns to look up, pin and place 64 bytes",
            entries,
            placing(entries)
        );
    }
}

/// Copies with `rep movsb` only.
#[cfg(target_arch = "x86_64")]
fn string(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len());
    // SAFETY: the instruction reads and writes exactly the bytes of the slices. The direction flag
    // is clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") src.len() => _,
            inout("rdi") dst.as_mut_ptr() => _,
            inout("rsi") src.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

fn placing(entries: usize) -> f64 {
    let table = Table::new(Limits::default());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let regions: Vec<_> = (0..entries)
        .map(|_| {
            table
                .register(PdId(1), Memory::from(vec![0; 64]), 0, access)
                .expect("within the bounds")
        })
        .collect();
    let times = 4_000_000;
    let began = Instant::now();
    for turn in 0..times {
        let stag = regions[turn % entries].stag();
        let span = table.remote(stag, StreamId(1), PdId(1), 0, 64, Right::Write).expect("legal");
        span.pin().expect("live").copy_from(0, black_box(&[7; 64])).unwrap();
    }
    began.elapsed().as_nanos() as f64 / times as f64
}

fn rate(copy: Copy, dst: &mut [u8], src: &[u8]) -> f64 {
    let work = if src.len() < 1024 { WORK / 8 } else { WORK / 2 };
    let times = work / src.len();
    let began = Instant::now();
    for _ in 0..times {
        copy(black_box(dst), black_box(src));
    }
    (times * src.len()) as f64 / began.elapsed().as_secs_f64() / 1e9
}
