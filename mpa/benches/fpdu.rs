//! Benchmarks of building and parsing FPDUs, with and without CRC and Markers, and of the CRC
//! alone.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use uiw_mpa::rx::{FpduRx, Step};
use uiw_mpa::tx::FpduTx;

fn main() {
    divan::main();
}

/// Lengths of ULPDUs in bytes: a small Write, the payload of an Ethernet frame, the maximum of MPA.
const SIZES: [usize; 3] = [78, 1418, 64_768];

/// Modes of FPDUs: the use of CRCs, and of Markers.
const MODES: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

fn built(tx: &mut FpduTx, buffer: &mut Vec<u8>, size: usize) {
    buffer.clear();
    buffer.resize(2 + size, 0x5A);
    tx.seal(buffer, 0);
}

#[divan::bench(args = SIZES)]
fn crc32c(bencher: Bencher<'_, '_>, size: usize) {
    let bytes = vec![0x5A; size];
    bencher.counter(BytesCount::new(size)).bench_local(|| uiw_mpa::crc32c(black_box(&bytes)));
}

#[divan::bench(args = SIZES, consts = [0, 1, 2])]
fn build<const MODE: usize>(bencher: Bencher<'_, '_>, size: usize) {
    let (crc, markers) = MODES[MODE];
    let mut tx = FpduTx::new(crc, markers);
    let mut buffer = Vec::with_capacity(2 * size);
    bencher
        .counter(BytesCount::new(size))
        .bench_local(|| built(&mut tx, black_box(&mut buffer), size));
}

#[divan::bench(args = SIZES, consts = [0, 1, 2])]
fn parse<const MODE: usize>(bencher: Bencher<'_, '_>, size: usize) {
    let (crc, markers) = MODES[MODE];
    let mut whole = Vec::new();
    built(&mut FpduTx::new(crc, markers), &mut whole, size);
    // The receiver removes Markers in place, so each round needs a copy of the original bytes, at
    // the start of a stream.
    bencher.counter(BytesCount::new(size)).with_inputs(|| whole.clone()).bench_local_refs(
        |bytes| {
            let step = FpduRx::new(crc, markers).next(black_box(bytes));
            assert!(matches!(step, Ok(Step::Fpdu(_))));
        },
    );
}
