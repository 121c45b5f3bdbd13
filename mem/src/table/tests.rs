//! The rules of the table, one test for each.

mod concurrent;
mod discard;
mod entries;
mod mr_cache;

use super::*;
use crate::{InvalidateError, MemoryGone, PinnedSpan, WindowType};
use core::ops::Range;
use uiw_crc32c::Crc32c;

pub(super) const PD: PdId = PdId(1);
pub(super) const OTHER_PD: PdId = PdId(2);
pub(super) const STREAM: StreamId = StreamId(10);
pub(super) const OTHER_STREAM: StreamId = StreamId(11);
pub(super) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::MW_BIND);
pub(super) const BASE: u64 = 0x10_0000;

pub(super) fn table() -> Arc<Table> {
    Table::new(Limits::default())
}

pub(super) fn region(table: &Table, len: usize, access: Access) -> Arc<Region> {
    table.register(PD, vec![0; len].into(), BASE, access).unwrap()
}

/// A region of 100 bytes from `BASE` that grants everything.
pub(super) fn plain(table: &Table) -> Arc<Region> {
    region(table, 100, ALL)
}

pub(super) fn write(table: &Table, stag: STag, to: u64, len: u32) -> Result<Span, RemoteError> {
    table.remote(stag, STREAM, PD, to, len, Right::Write)
}

/// The bytes of a region.
pub(super) fn bytes(region: &Arc<Region>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.span(0, region.len()).unwrap().pin().unwrap().copy_to(0, &mut bytes).unwrap();
    bytes
}

// [test:RFC5040-8.1.1-05] [test:RFC5041-8.3-01] [test:RFC5041-8.3-02] [test:RFC5041-8.3.1-05]
#[test]
fn registered_written_read_deregistered() {
    let table = table();
    let region = plain(&table);
    assert_eq!((table.len(), region.len(), region.base(), region.pd()), (1, 100, BASE, PD));
    assert!(region.is_shared() && region.is_live() && !region.is_empty());
    assert_eq!(region.stag().key(), 0);
    let span = write(&table, region.stag(), BASE + 7, 5).unwrap();
    assert_eq!((span.len(), span.stag()), (5, region.stag()));
    span.pin().unwrap().copy_from(0, b"hello").unwrap();
    let source = table.remote(region.stag(), STREAM, PD, BASE, 12, Right::Read).unwrap();
    let mut got = Vec::new();
    source.pin().unwrap().copy_to_vec(5..12, &mut got).unwrap();
    assert_eq!(got, b"\0\0hello");
    assert_eq!(bytes(&region)[7..12], *b"hello");
    table.deregister(region.stag()).unwrap();
    assert!(table.is_empty() && !region.is_live());
    let stag = region.stag();
    assert_eq!(write(&table, stag, BASE, 1).map(drop), Err(RemoteError::InvalidStag { stag }));
    assert_eq!(span.pin().map(drop), Err(MemoryGone { stag }));
    assert_eq!(table.deregister(stag), Err(DeregisterError::InvalidStag { stag }));
}

// [test:RFC5040-8.1.1-04] [test:RFC5041-7.1-14] [test:RFC5041-7.1-15] [test:RFC5041-7.1-16] [test:RFC5041-8.3.1-04]
// [test:RFC5040-7.2-11] [test:RFC5040-7.2-12] [test:RFC5040-7.2-13]
#[test]
fn ranges_are_exact() {
    let table = table();
    let top = u64::MAX;
    let bases = [0, 1, 4095, 1 << 32, (1 << 63) - 2, top - 100, top - 4, top - 3];
    // Miri takes a part.
    for base in bases.into_iter().step_by(if cfg!(miri) { 7 } else { 1 }) {
        for len in [0usize, 1, 2, 3] {
            let region = table.register(PD, vec![0; len].into(), base, ALL).unwrap();
            let (stag, end) = (region.stag(), u128::from(base) + len as u128);
            let around =
                |at: u64| (0..4u64).flat_map(move |d| [at.wrapping_sub(d), at.wrapping_add(d)]);
            for to in around(base).chain(around(end as u64)).chain([0, top, top - 1, 1 << 63]) {
                for n in [1u32, 2, 3, 4, u32::MAX] {
                    let last = u128::from(to) + u128::from(n);
                    let expected = if last > u128::from(top) {
                        Err(RemoteError::ToWrap { stag, to, len: n })
                    } else if to < base || last > end {
                        Err(RemoteError::BaseOrBounds { stag, to, len: n })
                    } else {
                        Ok((to - base) as usize)
                    };
                    let got = write(&table, stag, to, n).map(|span| {
                        let start = span.pin().unwrap().at_for_test() - region.as_ptr().addr();
                        assert!(span.len() == n as usize && start + span.len() <= region.len());
                        start
                    });
                    assert_eq!(got, expected, "base {base:#x} len {len} to {to:#x} n {n}");
                    let local = table.local(region.stag(), PD, to, n, true).map(|span| span.len());
                    assert_eq!(local.is_ok(), expected.is_ok());
                }
            }
            table.deregister(stag).unwrap();
        }
    }
}

#[test]
fn offsets_out_of_range_rejected() {
    let table = table();
    for (base, len, legal) in [
        (u64::MAX, 0, true),
        (u64::MAX, 1, false),
        (u64::MAX - 1, 1, true),
        (u64::MAX - 1, 2, false),
        (u64::MAX - 50, 100, false),
    ] {
        let outcome = table.register(PD, vec![0; len].into(), base, ALL).map(drop);
        let refused = Err(RegisterError::TooHigh { base, len: len as u64 });
        assert_eq!(outcome, if legal { Ok(()) } else { refused });
    }
    // Zero-based: the base has no effect.
    table.register(PD, vec![0; 100].into(), u64::MAX, ALL | Access::ZERO_BASED).unwrap();
}

#[test]
fn zero_based_region_starts_at_zero() {
    let table = table();
    let region = region(&table, 10, ALL | Access::ZERO_BASED);
    assert_eq!(region.base(), 0);
    write(&table, region.stag(), 0, 10).unwrap();
    assert!(
        write(&table, region.stag(), BASE, 1).is_err()
            && write(&table, region.stag(), 1, 10).is_err()
    );
    table.local(region.stag(), PD, 9, 1, true).unwrap();
}

#[test]
fn empty_region_grants_nothing() {
    let table = table();
    let region = region(&table, 0, ALL);
    let stag = region.stag();
    assert!(region.is_empty());
    for to in [BASE - 1, BASE, BASE + 1] {
        assert_eq!(
            write(&table, stag, to, 1).map(drop),
            Err(RemoteError::BaseOrBounds { stag, to, len: 1 })
        );
    }
    table.deregister(stag).unwrap();
}

// [test:RFC5040-8.1.1-02] [test:RFC5041-8.2-01] [test:RFC5041-8.3.1-02] [test:RFC5041-8.3-03]
#[test]
fn another_protection_domain_gets_nothing() {
    let table = table();
    let region = plain(&table);
    let stag = region.stag();
    let refused = RemoteError::NotAssociated { stag, stream: STREAM, pd: OTHER_PD };
    for right in [Right::Write, Right::Read, Right::Atomic] {
        assert_eq!(table.remote(stag, STREAM, OTHER_PD, BASE, 1, right).map(drop), Err(refused));
        // Whatever else is wrong: association is looked at first, so the error does not reveal the
        // range.
        assert_eq!(table.remote(stag, STREAM, OTHER_PD, 0, 1, right).map(drop), Err(refused));
        table.remote(stag, OTHER_STREAM, PD, BASE, 1, right).unwrap();
    }
    assert_eq!(
        table.local(STag(stag.0), OTHER_PD, BASE, 1, false).map(drop),
        Err(LocalError::ProtectionDomain { lkey: stag, owner: PD, pd: OTHER_PD })
    );
}

// [test:RFC5041-7.1-12] [test:RFC5041-8.3-04] [test:RFC5040-7.2-09]
#[test]
fn other_keys_and_indices_invalid() {
    let table = table();
    let region = plain(&table);
    let stag = region.stag();
    for key in (1..=255).step_by(if cfg!(miri) { 127 } else { 1 }) {
        let stag = STag::from_parts(stag.index(), key);
        assert_eq!(write(&table, stag, BASE, 1).map(drop), Err(RemoteError::InvalidStag { stag }));
        assert!(table.local(STag(stag.0), PD, BASE, 1, false).is_err());
        assert_eq!(table.deregister(stag), Err(DeregisterError::InvalidStag { stag }));
    }
    for bit in 8..32 {
        let stag = STag(stag.0 ^ 1 << bit);
        assert_eq!(write(&table, stag, BASE, 1).map(drop), Err(RemoteError::InvalidStag { stag }));
    }
    for stag in [STag(0), STag(u32::MAX)] {
        assert_eq!(write(&table, stag, BASE, 1).map(drop), Err(RemoteError::InvalidStag { stag }));
    }
}

// [test:RFC5040-8.1.1-06] [test:RFC5041-8.3.1-06] [test:RFC5041-7.1-13]
#[test]
fn every_right_by_itself() {
    let table = table();
    let rights = [Right::Write, Right::Read, Right::Atomic];
    for bits in 0..8 {
        let remote: Access = rights
            .iter()
            .enumerate()
            .filter(|(i, _)| bits >> i & 1 == 1)
            .map(|(_, r)| r.flag())
            .collect();
        let region = region(&table, 8, remote | Access::LOCAL_WRITE);
        let stag = region.stag();
        for right in rights {
            let got = table.remote(stag, STREAM, PD, BASE, 8, right).map(drop);
            let refused = Err(RemoteError::AccessRights { stag, right, access: region.access() });
            assert_eq!(got, if remote.contains(right.flag()) { Ok(()) } else { refused });
        }
    }
}

#[test]
fn remote_change_needs_local_write() {
    let table = table();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
        assert_eq!(
            table.register(PD, vec![0].into(), 0, access).map(drop),
            Err(RegisterError::RemoteWriteNeedsLocalWrite { access })
        );
        table.register(PD, vec![0].into(), 0, access | Access::LOCAL_WRITE).unwrap();
    }
    let read_only = table.register(PD, vec![0].into(), 0, Access::REMOTE_READ).unwrap();
    let lkey = read_only.stag();
    table.local(lkey, PD, 0, 1, false).unwrap();
    assert_eq!(table.local(lkey, PD, 0, 1, true).map(drop), Err(LocalError::NotWritable { lkey }));
}

#[test]
fn empty_element_has_no_address() {
    let table = table();
    let region = plain(&table);
    assert_eq!(table.local(region.stag(), PD, 12345, 0, true).unwrap().len(), 0);
    assert!(table.local(STag(region.stag().0 ^ 1), PD, BASE, 0, true).is_err());
    assert!(table.local(region.stag(), OTHER_PD, BASE, 0, true).is_err());
}

#[test]
fn shared_regions_reported() {
    let table = table();
    let shared = |memory: Memory, access| {
        let region = table.register(PD, memory, 0, access).unwrap();
        let span = region.span(0, 1).unwrap();
        assert_eq!(span.is_shared(), region.is_shared());
        span.is_shared()
    };
    // SAFETY: nothing is in flight in this test.
    let exclusive = || unsafe { Memory::from(vec![0; 8]).exclusive() };
    assert!(!shared(exclusive(), Access::LOCAL_WRITE));
    assert!(!shared(exclusive(), Access::LOCAL_WRITE | Access::ZERO_BASED));
    for access in
        [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::MW_BIND]
    {
        assert!(shared(exclusive(), access | Access::LOCAL_WRITE), "{access}");
    }
    assert!(shared(vec![0; 8].into(), Access::LOCAL_WRITE), "exclusive use was not promised");
    assert!(
        shared(Memory::owned(8).unwrap(), Access::LOCAL_WRITE),
        "exclusive use was not promised"
    );
    assert!(shared(exclusive().shared(), Access::LOCAL_WRITE), "taken back");
}

#[test]
fn exclusive_memory_copied() {
    let table = table();
    for exclusive in [false, true] {
        let memory = Memory::from(vec![0; 10_000]);
        // SAFETY: only this thread uses it.
        let memory = if exclusive { unsafe { memory.exclusive() } } else { memory };
        let region = table.register(PD, memory, 0, Access::LOCAL_WRITE).unwrap();
        assert_eq!(region.is_shared(), !exclusive);
        let span = region.span(1, 9_001).unwrap().sub(2..9_001);
        let pinned = span.pin().unwrap();
        assert_eq!((pinned.len(), region.pins()), (8_999, 1));
        let source: Vec<u8> = (0..8_990u32).map(|i| (i % 251) as u8).collect();
        pinned.copy_from(9, &source).unwrap();
        let mut out = vec![0xEE];
        pinned.copy_to_vec(9..8_999, &mut out).unwrap();
        assert_eq!(out[1..], source);
        let mut some = [0; 100];
        pinned.copy_to(1_009, &mut some).unwrap();
        assert_eq!(some, source[1_000..1_100]);
        let crc = Crc32c::new().update(&source);
        assert_eq!(pinned.update_crc(9..8_999, Crc32c::new()), Ok(crc));
        assert_eq!(pinned.update_crc(5..5, crc), Ok(crc));
        let mut appended = vec![0xEE];
        assert_eq!(pinned.copy_to_vec_with_crc(9..8_999, &mut appended, Crc32c::new()), Ok(crc));
        assert_eq!(appended, out);
        let mut seen = vec![0; 20];
        pinned.io_vec(9..29).copy_to(&mut seen);
        assert_eq!(seen, source[..20]);
        pinned.copy_from(0, b"ab").unwrap();
        drop(pinned);
        assert_eq!((bytes(&region)[3..5].to_vec(), region.pins()), (b"ab".to_vec(), 0));
    }
}

#[test]
fn nothing_beyond_a_span() {
    let table = table();
    let region = plain(&table);
    let span = region.span(90, 10).unwrap();
    assert!(
        region.span(90, 11).is_err()
            && region.span(101, 0).is_err()
            && region.span(1, usize::MAX).is_err()
    );
    assert!(region.span(100, 0).unwrap().is_empty());
    let panics = |touch: &dyn Fn(&PinnedSpan<'_>)| {
        let pinned = span.pin().unwrap();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| touch(&pinned))).is_err()
    };
    assert!(panics(&|p| _ = p.copy_from(1, &[0; 10])));
    assert!(panics(&|p| _ = p.copy_from(usize::MAX, &[0; 10])));
    assert!(panics(&|p| _ = p.copy_to(11, &mut [])));
    assert!(panics(&|p| _ = p.copy_to_vec(0..11, &mut Vec::new())));
    assert!(panics(&|p| assert!(!p.io_vec(10..11).is_empty())));
    assert!(panics(&|p| assert!(p.io_vec(11..11).is_empty())));
    assert!(panics(&|p| _ = p.update_crc(0..11, Crc32c::new())));
    assert!(panics(&|p| _ = p.copy_to_vec_with_crc(0..11, &mut Vec::new(), Crc32c::new())));
    assert!(panics(&|p| _ = p.atomic_u64(3, |n| n)));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| span.sub(0..11))).is_err());
    assert_eq!(region.pins(), 0, "a panic gives its pin back");
}

#[test]
fn atomics_and_their_alignment() {
    let table = table();
    let region = table.register(PD, Memory::owned(32).unwrap(), BASE, ALL).unwrap();
    let span = region.span(0, 32).unwrap();
    let pinned = span.pin().unwrap();
    pinned.copy_from(8, &41u64.to_ne_bytes()).unwrap();
    assert_eq!(pinned.atomic_u64(8, |n| n + 1), Ok(41));
    assert_eq!(pinned.atomic_u64(8, |n| n), Ok(42));
    assert_eq!(pinned.atomic_cell(8).unwrap().load(Relaxed), 42);
    let before = bytes(&region);
    for offset in (0..=24).filter(|offset| offset % 8 != 0) {
        let address = region.as_ptr().addr() + offset;
        assert_eq!(
            pinned.atomic_u64(offset, |_| u64::MAX),
            Err(crate::Unaligned { address }.into())
        );
    }
    assert_eq!(bytes(&region), before, "nothing was changed");
    // It is the address that counts, not the offset.
    let shifted = region.span(4, 28).unwrap();
    let pinned = shifted.pin().unwrap();
    assert!(pinned.atomic_u64(0, |n| n).is_err());
    assert_eq!(pinned.atomic_u64(4, |n| n * 2), Ok(42));
}

#[test]
fn reregistered_in_every_way() {
    let table = table();
    let first = plain(&table);
    let old = write(&table, first.stag(), BASE, 1).unwrap();
    first.span(0, 5).unwrap().pin().unwrap().copy_from(0, b"stays").unwrap();
    // Rights: bytes and STag stay, old spans are gone.
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    let second =
        table.rereg(first.stag(), Rereg { access: Some(access), ..Rereg::default() }).unwrap();
    assert_eq!(second.stag(), first.stag());
    assert_eq!((second.base(), second.access(), second.pd(), second.len()), (0, access, PD, 100));
    assert_eq!(bytes(&second)[..5], *b"stays");
    let stag = first.stag();
    assert_eq!(old.pin().map(drop), Err(MemoryGone { stag }));
    assert!(matches!(write(&table, stag, 0, 1), Err(RemoteError::AccessRights { .. })));
    // Protection domain, and the base that was given at first.
    let change = Rereg { pd: Some(OTHER_PD), access: Some(ALL), memory: None };
    let third = table.rereg(second.stag(), change).unwrap();
    assert_eq!((third.base(), third.pd()), (BASE, OTHER_PD));
    // Memory: the old STag is stale.
    let change = Rereg { memory: Some((vec![9; 7].into(), 70)), ..Rereg::default() };
    let fourth = table.rereg(third.stag(), change).unwrap();
    assert_eq!(fourth.stag(), STag::from_parts(first.stag().index(), 1));
    assert_eq!((fourth.base(), bytes(&fourth), fourth.access()), (70, vec![9; 7], ALL));
    // Errors leave everything as it was.
    assert_eq!(
        table.rereg(third.stag(), Rereg::default()).map(drop),
        Err(ReregError::InvalidStag { stag: third.stag() })
    );
    let illegal = Rereg { access: Some(Access::REMOTE_WRITE), ..Rereg::default() };
    assert!(matches!(table.rereg(fourth.stag(), illegal), Err(ReregError::Register(_))));
    assert!(fourth.is_live());
    assert_eq!(table.len(), 1);
    table.deregister(fourth.stag()).unwrap();
}

#[test]
fn rereg_keeps_region_exclusive() {
    let table = table();
    // SAFETY: nothing is in flight.
    let memory = unsafe { Memory::from(vec![0; 8]).exclusive() };
    let region = table.register(PD, memory, 0, Access::LOCAL_WRITE).unwrap();
    let region =
        table.rereg(region.stag(), Rereg { access: Some(ALL), ..Rereg::default() }).unwrap();
    assert!(region.is_shared());
    let change = Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() };
    let region = table.rereg(region.stag(), change).unwrap();
    assert!(!region.is_shared());
}

#[test]
fn reserved_stags_never_resolve() {
    let table = table();
    let stag = table.reserve().unwrap();
    assert_eq!(write(&table, stag, 0, 1).map(drop), Err(RemoteError::InvalidStag { stag }));
    assert!(table.local(STag(stag.0), PD, 0, 1, false).is_err());
    assert_eq!(
        table.invalidate_remote(stag, STREAM, PD),
        Err(InvalidateError::InvalidStag { stag })
    );
    assert_eq!(
        table.invalidate_local(stag, STREAM, PD),
        Err(InvalidateError::InvalidStag { stag })
    );
    assert_eq!(table.deregister(stag), Err(DeregisterError::InvalidStag { stag }));
    assert!(table.release(stag) && !table.release(stag) && table.is_empty());
    assert!(!table.release(plain(&table).stag()));
}

#[test]
fn bounded_and_given_back() {
    let table = Table::new(Limits { max_entries: 3 });
    let region = plain(&table);
    let window = table.alloc_window(PD, WindowType::One).unwrap();
    let reserved = table.reserve().unwrap();
    let full = Err(RegisterError::TooManyEntries { max: 3 });
    assert_eq!(table.register(PD, vec![].into(), 0, ALL).map(drop), full);
    assert_eq!(table.alloc_fast(PD, 1).map(drop), full);
    assert_eq!(table.reserve().map(drop), full);
    table.deregister(region.stag()).unwrap();
    assert!(table.dealloc(&window) && table.release(reserved));
    for _ in 0..3 {
        table.reserve().unwrap();
    }
    assert_eq!(table.reserve().map(drop), full);
}

#[test]
fn stag_not_reused_soon() {
    let table = table();
    let first = table.reserve().unwrap();
    table.release(first);
    for _ in 0..if cfg!(miri) { 30 } else { 1000 } {
        let next = table.reserve().unwrap();
        assert_ne!(next.index(), first.index());
        table.release(next);
    }
}

#[test]
fn many_entries() {
    let table = table();
    const MANY: usize = if cfg!(miri) { 30 } else { 20_000 };
    let all: Vec<STag> = (0..MANY).map(|_| table.reserve().unwrap()).collect();
    let distinct: std::collections::HashSet<u32> = all.iter().map(|s| s.index()).collect();
    assert_eq!((distinct.len(), table.len()), (MANY, MANY));
    assert!(!distinct.contains(&0));
    assert!(all.into_iter().all(|stag| table.release(stag)));
    assert!(table.is_empty());
    let room = table.shards.iter().map(|shard| shard.0.read().capacity());
    assert!(room.max().unwrap() <= 2 * FEW, "the room of many goes with them");
}

#[test]
fn errors_name_rule_and_value() {
    let table = table();
    let region = plain(&table);
    let s = region.stag();
    let text = |e: RemoteError| e.to_string();
    assert_eq!(
        text(write(&table, s, 0x123, 5).unwrap_err()),
        format!("bytes 0x123 + 5 are outside of {s}")
    );
    let other = table.remote(s, STREAM, OTHER_PD, 0, 1, Right::Read).unwrap_err();
    assert_eq!(text(other), format!("{s} is not associated with stream 10 in PD 2"));
    let read_only = self::region(&table, 1, Access::REMOTE_READ);
    let s = read_only.stag();
    assert_eq!(
        text(write(&table, s, BASE, 1).unwrap_err()),
        format!("{s} grants REMOTE_READ, not remote write")
    );
    assert_eq!(Access::empty().to_string(), "(none)");
}
