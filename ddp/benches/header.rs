//! Benchmarks of encoding and decoding headers, and of the checks of an untagged queue.

use divan::{Bencher, black_box};
use uiw_ddp::{Header, STag, Tagged, UntaggedRx};

fn main() {
    divan::main();
}

fn tagged() -> Header {
    Header::Tagged(Tagged { last: true, rsvd_ulp: 0x40, stag: STag(0x1234_5678), to: 0x1000 })
}

#[divan::bench]
fn parse_tagged(bencher: Bencher<'_, '_>) {
    let mut bytes = [0; Tagged::LEN];
    tagged().emit(&mut bytes);
    bencher.bench_local(|| Header::parse(black_box(&bytes)));
}

#[divan::bench]
fn emit_tagged(bencher: Bencher<'_, '_>) {
    let header = tagged();
    let mut bytes = [0; Tagged::LEN];
    bencher.bench_local(|| black_box(&header).emit(black_box(&mut bytes)));
}

#[divan::bench]
fn check_and_place_untagged(bencher: Bencher<'_, '_>) {
    let mut queue = UntaggedRx::new(1);
    let mut header =
        uiw_ddp::Untagged { last: true, rsvd_ulp: 0x43, rsvd_ulp32: 0, qn: 0, msn: 1, mo: 0 };
    bencher.bench_local(|| {
        let place = queue.check(black_box(&header), 64, Some(64)).is_ok();
        assert!(place && queue.placed(&header, 64).is_some());
        header.msn = header.msn.wrapping_add(1);
    });
}
