//! CRC32C over message sizes: this crate beside `crc-fast`.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

const SIZES: [usize; 8] = [20, 64, 128, 256, 512, 1424, 4096, 65_536];

#[divan::bench(args = SIZES)]
fn uiw(bencher: Bencher<'_, '_>, size: usize) {
    let bytes = vec![0x5A; size];
    bencher.counter(BytesCount::new(size)).bench_local(|| uiw_crc32c::crc32c(black_box(&bytes)));
}

#[divan::bench(args = SIZES)]
fn crc_fast(bencher: Bencher<'_, '_>, size: usize) {
    let bytes = vec![0x5A; size];
    bencher.counter(BytesCount::new(size)).bench_local(|| crc_fast::crc32_iscsi(black_box(&bytes)));
}
