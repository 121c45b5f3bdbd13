//! Memory windows, fast-register STags, and which ends invalidate what.

use super::*;
use crate::{BindError, FastRegisterError, InvalidateError, WindowType};

const WRITE: Access = Access::REMOTE_WRITE;

fn window(table: &Table, kind: WindowType) -> Arc<Window> {
    table.alloc_window(PD, kind).unwrap()
}

/// A type 2 window on bytes 10..20 of a region, for `STREAM`, with key 7.
fn bound_two(table: &Table, region: &Arc<Region>) -> (Arc<Window>, STag) {
    let window = window(table, WindowType::Two);
    let stag = table.bind(&window, region, Some(STREAM), BASE + 10, 10, WRITE, Some(7)).unwrap();
    (window, stag)
}

fn fast(table: &Table, stream: Option<StreamId>) -> (Arc<Entry>, STag) {
    let entry = table.alloc_fast(PD, 100).unwrap();
    let region = table.fast_register(&entry, vec![0; 10].into(), BASE, ALL, stream, 9).unwrap();
    (entry, region.stag())
}

#[test]
fn type_1_window_changes_key() {
    let table = table();
    let region = plain(&table);
    let window = window(&table, WindowType::One);
    let unbound = window.stag();
    assert_eq!(
        write(&table, unbound, BASE, 1).map(drop),
        Err(RemoteError::InvalidStag { stag: unbound })
    );
    let first = table.bind(&window, &region, Some(STREAM), BASE + 10, 10, WRITE, Some(99)).unwrap();
    assert_eq!(first, STag::from_parts(unbound.index(), 1));
    assert_eq!(window.stag(), first);
    let span = write(&table, first, BASE + 10, 10).unwrap();
    assert!(span.is_shared());
    span.pin().unwrap().copy_from(0, b"0123456789").unwrap();
    assert_eq!(bytes(&region)[10..20], *b"0123456789");
    table.remote(first, OTHER_STREAM, PD, BASE + 10, 1, Right::Write).unwrap();
    for (to, len) in [(BASE + 9, 1), (BASE + 10, 11), (BASE + 20, 1)] {
        let stag = first;
        assert_eq!(
            write(&table, first, to, len).map(drop),
            Err(RemoteError::BaseOrBounds { stag, to, len })
        );
    }
    assert!(matches!(
        table.remote(first, STREAM, PD, BASE + 10, 1, Right::Read),
        Err(RemoteError::AccessRights { .. })
    ));
    assert!(matches!(
        table.remote(first, STREAM, OTHER_PD, BASE + 10, 1, Right::Write),
        Err(RemoteError::NotAssociated { .. })
    ));
    assert!(
        table.local(STag(first.0), PD, BASE + 10, 1, false).is_err(),
        "windows have no local key"
    );
    // Bound anew: the old one is gone.
    let second =
        table.bind(&window, &region, None, BASE + 50, 5, Access::REMOTE_READ, None).unwrap();
    assert_eq!(second.key(), 2);
    assert!(span.pin().is_err());
    assert!(write(&table, first, BASE + 10, 1).is_err());
    table.remote(second, STREAM, PD, BASE + 50, 5, Right::Read).unwrap();
    // Length zero revokes, and changes the key as well.
    let third = table.bind(&window, &region, None, 0, 0, Access::empty(), None).unwrap();
    assert_eq!(third.key(), 3);
    assert!(table.remote(second, STREAM, PD, BASE + 50, 5, Right::Read).is_err());
    table.deregister(region.stag()).unwrap();
    assert!(table.dealloc(&window) && !table.dealloc(&window));
}

#[test]
fn type_1_key_wraps() {
    let table = table();
    let region = plain(&table);
    let window = window(&table, WindowType::One);
    for turn in 1..=300u32 {
        let stag = table.bind(&window, &region, None, BASE, 1, WRITE, None).unwrap();
        assert_eq!(u32::from(stag.key()), turn % 256);
        write(&table, stag, BASE, 1).unwrap();
    }
    assert!(table.dealloc(&window));
    table.deregister(region.stag()).unwrap();
}

// [test:RFC5040-8.1.1-03] [test:RFC5041-8.2-02] [test:RFC5041-8.2-04] [test:RFC5041-8.3.1-03]
// [test:RFC5040-7.2-10]
#[test]
fn type_2_serves_one_stream() {
    let table = table();
    let region = plain(&table);
    let (window, stag) = bound_two(&table, &region);
    assert_eq!((stag.key(), window.stag()), (7, stag));
    write(&table, stag, BASE + 10, 10).unwrap();
    assert_eq!(
        table.remote(stag, OTHER_STREAM, PD, BASE + 10, 1, Right::Write).map(drop),
        Err(RemoteError::NotAssociated { stag, stream: OTHER_STREAM, pd: PD })
    );
    // Nor does another stream read, with every right there is.
    let (entry, fast) = fast(&table, Some(STREAM));
    for right in [Right::Write, Right::Read, Right::Atomic] {
        table.remote(fast, STREAM, PD, BASE, 8, right).unwrap();
        assert_eq!(
            table.remote(fast, OTHER_STREAM, PD, BASE, 8, right).map(drop),
            Err(RemoteError::NotAssociated { stag: fast, stream: OTHER_STREAM, pd: PD })
        );
    }
    assert!(table.dealloc(&entry));
    // The region itself is as open as before.
    table.remote(region.stag(), OTHER_STREAM, PD, BASE, 1, Right::Write).unwrap();
    let again = table.bind(&window, &region, Some(STREAM), BASE, 1, WRITE, Some(8));
    assert_eq!(again, Err(BindError::AlreadyBound { stag }));
    table.invalidate_local(stag, STREAM, PD).unwrap();
    let next = table.bind(&window, &region, Some(OTHER_STREAM), BASE, 1, WRITE, None).unwrap();
    assert_eq!(next.key(), 8);
    table.remote(next, OTHER_STREAM, PD, BASE, 1, Right::Write).unwrap();
    assert!(table.dealloc(&window));
    assert!(table.remote(next, OTHER_STREAM, PD, BASE, 1, Right::Write).is_err());
    table.deregister(region.stag()).unwrap();
}

#[test]
fn window_may_be_zero_based() {
    let table = table();
    let region = plain(&table);
    let window = window(&table, WindowType::One);
    let access = WRITE | Access::ZERO_BASED;
    let stag = table.bind(&window, &region, None, BASE + 90, 10, access, None).unwrap();
    write(&table, stag, 0, 10).unwrap().pin().unwrap().copy_from(9, b"!").unwrap();
    assert!(write(&table, stag, 1, 10).is_err());
    assert_eq!(bytes(&region)[99], b'!');
    // On a zero-based region the range to bind counts from zero as well.
    let zero = self::region(&table, 10, ALL | Access::ZERO_BASED);
    let stag = table.bind(&window, &zero, None, 4, 6, WRITE, None).unwrap();
    write(&table, stag, 4, 6).unwrap();
    assert!(write(&table, stag, 3, 1).is_err());
}

#[test]
fn invalid_binds_rejected() {
    let table = table();
    let region = plain(&table);
    let one = window(&table, WindowType::One);
    let two = window(&table, WindowType::Two);
    let s = region.stag();
    let bind = |w: &Window, r: &Arc<Region>, to, len, access| {
        table.bind(w, r, Some(STREAM), to, len, access, Some(1)).map(drop)
    };
    for window in [&one, &two] {
        let legal_key = window.stag();
        for (to, len) in [(BASE - 1, 5), (BASE, 101), (BASE + 100, 1), (u64::MAX, 2), (0, u64::MAX)]
        {
            let expected = Err(BindError::OutOfRange { stag: s, to, len });
            assert_eq!(bind(window, &region, to, len, WRITE), expected);
        }
        let access = WRITE | Access::LOCAL_WRITE;
        assert_eq!(bind(window, &region, BASE, 1, access), Err(BindError::Access { access }));
        let access = Access::MW_BIND;
        assert_eq!(bind(window, &region, BASE, 1, access), Err(BindError::Access { access }));
        let closed = self::region(&table, 1, Access::LOCAL_WRITE | Access::REMOTE);
        let stag = closed.stag();
        assert_eq!(bind(window, &closed, BASE, 1, WRITE), Err(BindError::NoBindRight { stag }));
        let read_only = self::region(&table, 1, Access::MW_BIND);
        let stag = read_only.stag();
        for access in [WRITE, Access::REMOTE_ATOMIC] {
            let expected = Err(BindError::RegionNotWritable { stag, access });
            assert_eq!(bind(window, &read_only, BASE, 1, access), expected);
        }
        let foreign = table.register(OTHER_PD, vec![0].into(), BASE, ALL).unwrap();
        let expected = Err(BindError::ProtectionDomain { window: PD, region: OTHER_PD });
        assert_eq!(bind(window, &foreign, BASE, 1, WRITE), expected);
        let elsewhere = self::table();
        let foreign = plain(&elsewhere);
        assert_eq!(
            bind(window, &foreign, BASE, 1, WRITE),
            Err(BindError::NotARegion { stag: foreign.stag() })
        );
        let dead = plain(&table);
        table.deregister(dead.stag()).unwrap();
        assert_eq!(
            bind(window, &dead, BASE, 1, WRITE),
            Err(BindError::NotARegion { stag: dead.stag() })
        );
        assert_eq!(window.stag(), legal_key, "a failed bind changes nothing");
        let reading = bind(window, &read_only, BASE, 1, Access::REMOTE_READ);
        assert_eq!(reading, Ok(()));
    }
    let stag = two.stag();
    let fresh = window(&table, WindowType::Two);
    let no_stream = table.bind(&fresh, &region, None, BASE, 1, WRITE, Some(1));
    assert_eq!(no_stream, Err(BindError::StreamMissing { stag: fresh.stag() }));
    assert_eq!(bind(&two, &region, BASE, 0, WRITE), Err(BindError::ZeroLength { stag }));
    let (entry, stag) = fast(&table, None);
    assert_eq!(bind(&entry, &region, BASE, 1, WRITE), Err(BindError::NotAWindow { stag }));
    let onto_fast =
        table.fast_register(&table.alloc_fast(PD, 10).unwrap(), vec![0].into(), BASE, ALL, None, 1);
    assert!(
        bind(&fresh, &onto_fast.unwrap(), BASE, 1, WRITE).is_err(),
        "windows are bound to plain regions"
    );
    table.dealloc(&fresh);
    let stag = fresh.stag();
    assert_eq!(bind(&fresh, &region, BASE, 1, WRITE), Err(BindError::NotAWindow { stag }));
    let gone = window(&table, WindowType::One);
    table.dealloc(&gone);
    assert_eq!(
        bind(&gone, &region, BASE, 0, WRITE),
        Err(BindError::NotAWindow { stag: gone.stag() })
    );
    table.deregister(region.stag()).unwrap();
}

// [test:RFC5040-8.1.1-07] [test:RFC5041-8.3.1-07]
#[test]
fn region_outlives_windows() {
    let table = table();
    let region = plain(&table);
    let stag = region.stag();
    let (window, bound) = bound_two(&table, &region);
    let other = self::window(&table, WindowType::One);
    table.bind(&other, &region, None, BASE, 1, WRITE, None).unwrap();
    assert_eq!(table.deregister(stag), Err(DeregisterError::WindowsBound { stag, windows: 2 }));
    let rereg = table.rereg(stag, Rereg::default()).map(drop);
    assert_eq!(rereg, Err(ReregError::WindowsBound { stag, windows: 2 }));
    assert!(region.is_live());
    let span = write(&table, bound, BASE + 10, 1).unwrap();
    table.invalidate_remote(bound, STREAM, PD).unwrap();
    assert!(span.pin().is_err());
    assert_eq!(table.deregister(stag), Err(DeregisterError::WindowsBound { stag, windows: 1 }));
    assert!(table.dealloc(&other));
    table.deregister(stag).unwrap();
    assert_eq!(
        table.deregister(window.stag()),
        Err(DeregisterError::InvalidStag { stag: window.stag() })
    );
}

// [test:RFC5040-5.3-15] [test:RFC5040-7.2-04] [test:RFC5040-7.2-05]
#[test]
fn peer_invalidates_own_window() {
    let table = table();
    let region = plain(&table);
    let (_, window) = bound_two(&table, &region);
    let (_, fast) = fast(&table, Some(STREAM));
    for stag in [window, fast] {
        let at = if stag == window { BASE + 10 } else { BASE };
        let span = write(&table, stag, at, 1).unwrap();
        assert_eq!(
            table.invalidate_remote(stag, OTHER_STREAM, PD),
            Err(InvalidateError::NotAssociated { stag, stream: OTHER_STREAM, pd: PD })
        );
        assert_eq!(
            table.invalidate_remote(stag, STREAM, OTHER_PD),
            Err(InvalidateError::NotAssociated { stag, stream: STREAM, pd: OTHER_PD })
        );
        let stale = STag(stag.0 ^ 1);
        let refused = Err(InvalidateError::InvalidStag { stag: stale });
        assert_eq!(table.invalidate_remote(stale, STREAM, PD), refused);
        drop(span.pin().unwrap());
        table.invalidate_remote(stag, STREAM, PD).unwrap();
        assert!(span.pin().is_err());
        assert_eq!(write(&table, stag, at, 1).map(drop), Err(RemoteError::InvalidStag { stag }));
        let again = table.invalidate_remote(stag, STREAM, PD);
        assert_eq!(again, Err(InvalidateError::InvalidStag { stag }));
    }
}

// [test:RFC5040-8.1.1-08]
#[test]
fn peer_invalidate_of_shared_stag_rejected() {
    let table = table();
    let region = plain(&table);
    let one = window(&table, WindowType::One);
    let one = table.bind(&one, &region, None, BASE, 1, WRITE, None).unwrap();
    let (_, wide) = fast(&table, None);
    for stag in [region.stag(), one, wide] {
        assert!(matches!(
            table.invalidate_remote(stag, STREAM, PD),
            Err(InvalidateError::CannotInvalidate { stag: s, .. }) if s == stag
        ));
        write(&table, stag, BASE, 1).unwrap();
    }
}

#[test]
fn lenient_as_siw() {
    let table = table();
    table.set_lenient_invalidate(true);
    let region = plain(&table);
    let stag = region.stag();
    assert_eq!(
        table.invalidate_remote(stag, STREAM, OTHER_PD),
        Err(InvalidateError::NotAssociated { stag, stream: STREAM, pd: OTHER_PD })
    );
    let one = window(&table, WindowType::One);
    let bound = table.bind(&one, &region, None, BASE, 1, WRITE, None).unwrap();
    for stag in [bound, stag] {
        assert!(matches!(
            table.invalidate_remote(stag, STREAM, PD),
            Err(InvalidateError::CannotInvalidate { .. })
        ));
    }
    table.dealloc(&one);
    let span = write(&table, stag, BASE, 1).unwrap();
    table.invalidate_remote(stag, STREAM, PD).unwrap();
    assert!(span.pin().is_err() && write(&table, stag, BASE, 1).is_err());
    assert!(table.local(STag(stag.0), PD, BASE, 1, false).is_err());
    assert_eq!(
        table.invalidate_remote(stag, STREAM, PD),
        Err(InvalidateError::InvalidStag { stag })
    );
    // Registered anew it works again; and what was invalidated can be deregistered.
    let region = table.rereg(stag, Rereg::default()).unwrap();
    write(&table, region.stag(), BASE, 1).unwrap();
    table.invalidate_remote(region.stag(), STREAM, PD).unwrap();
    table.deregister(region.stag()).unwrap();
    let (_, wide) = fast(&table, None);
    table.invalidate_remote(wide, STREAM, PD).unwrap();
    assert!(write(&table, wide, BASE, 1).is_err());
}

#[test]
fn local_invalidate_of_revocable_stags() {
    let table = table();
    let region = plain(&table);
    let (_, window) = bound_two(&table, &region);
    let (_, wide) = fast(&table, None);
    let (_, narrow) = fast(&table, Some(STREAM));
    for stag in [window, narrow] {
        assert_eq!(
            table.invalidate_local(stag, OTHER_STREAM, PD),
            Err(InvalidateError::NotAssociated { stag, stream: OTHER_STREAM, pd: PD })
        );
    }
    for (stag, stream) in [(window, STREAM), (narrow, STREAM), (wide, OTHER_STREAM)] {
        let at = if stag == window { BASE + 10 } else { BASE };
        assert!(table.invalidate_local(stag, stream, OTHER_PD).is_err());
        write(&table, stag, at, 1).unwrap();
        table.invalidate_local(stag, stream, PD).unwrap();
        assert!(write(&table, stag, at, 1).is_err());
        table.invalidate_local(stag, stream, PD).unwrap();
        let stale = STag(stag.0 ^ 1);
        let refused = Err(InvalidateError::InvalidStag { stag: stale });
        assert_eq!(table.invalidate_local(stale, stream, PD), refused);
    }
    let one = self::window(&table, WindowType::One);
    let one = table.bind(&one, &region, None, BASE, 1, WRITE, None).unwrap();
    for stag in [region.stag(), one] {
        assert!(matches!(
            table.invalidate_local(stag, STREAM, PD),
            Err(InvalidateError::CannotInvalidate { .. })
        ));
        write(&table, stag, BASE, 1).unwrap();
    }
}

#[test]
fn fast_registration() {
    let table = table();
    let entry = table.alloc_fast(PD, 10).unwrap();
    let invalid = entry.stag();
    assert_eq!(
        write(&table, invalid, BASE, 1).map(drop),
        Err(RemoteError::InvalidStag { stag: invalid })
    );
    assert!(table.local(STag(invalid.0), PD, BASE, 1, false).is_err());
    let long = table.fast_register(&entry, vec![0; 11].into(), BASE, ALL, None, 5).map(drop);
    assert_eq!(long, Err(FastRegisterError::TooLong { stag: invalid, len: 11, max: 10 }));
    let illegal = table.fast_register(&entry, vec![0; 1].into(), BASE, WRITE, None, 5).map(drop);
    assert!(matches!(illegal, Err(FastRegisterError::Register(_))));
    let region = table.fast_register(&entry, vec![0; 10].into(), BASE, ALL, None, 5).unwrap();
    let stag = region.stag();
    assert_eq!((stag, entry.stag()), (STag::from_parts(invalid.index(), 5), stag));
    assert!(!region.access().contains(Access::MW_BIND));
    table.remote(stag, OTHER_STREAM, PD, BASE, 10, Right::Write).unwrap();
    table.local(STag(stag.0), PD, BASE, 10, true).unwrap();
    let twice = table.fast_register(&entry, vec![0; 1].into(), BASE, ALL, None, 6).map(drop);
    assert_eq!(twice, Err(FastRegisterError::AlreadyValid { stag }));
    table.invalidate_local(stag, STREAM, PD).unwrap();
    let next = table.fast_register(&entry, vec![0; 1].into(), 0, ALL, Some(STREAM), 5).unwrap();
    write(&table, next.stag(), 0, 1).unwrap();
    assert!(table.remote(next.stag(), OTHER_STREAM, PD, 0, 1, Right::Write).is_err());
    let span = write(&table, next.stag(), 0, 1).unwrap();
    table.deregister(next.stag()).unwrap();
    assert!(span.pin().is_err() && table.is_empty());
    let late = table.fast_register(&entry, vec![0; 1].into(), 0, ALL, None, 1).map(drop);
    assert_eq!(late, Err(FastRegisterError::NotFastRegister { stag: entry.stag() }));
    let window = window(&table, WindowType::One);
    let wrong = table.fast_register(&window, vec![0; 1].into(), 0, ALL, None, 1).map(drop);
    assert_eq!(wrong, Err(FastRegisterError::NotFastRegister { stag: window.stag() }));
}

#[test]
fn bindings_end_with_stream() {
    let table = table();
    let region = plain(&table);
    let (_, mine) = bound_two(&table, &region);
    let (_, also_mine) = fast(&table, Some(STREAM));
    let (_, everybodys) = fast(&table, None);
    let other = window(&table, WindowType::Two);
    let others = table.bind(&other, &region, Some(OTHER_STREAM), BASE, 1, WRITE, None).unwrap();
    // Bound to the stream once, but not any more.
    let (moved, was) = bound_two(&table, &region);
    table.invalidate_local(was, STREAM, PD).unwrap();
    let moved = table.bind(&moved, &region, Some(OTHER_STREAM), BASE, 1, WRITE, None).unwrap();
    let span = write(&table, mine, BASE + 10, 1).unwrap();
    table.unbind_stream(STREAM);
    assert!(span.pin().is_err());
    assert!(
        write(&table, mine, BASE + 10, 1).is_err() && write(&table, also_mine, BASE, 1).is_err()
    );
    write(&table, everybodys, BASE, 1).unwrap();
    for stag in [others, moved] {
        table.remote(stag, OTHER_STREAM, PD, BASE, 1, Right::Write).unwrap();
    }
    let stag = region.stag();
    assert_eq!(table.deregister(stag), Err(DeregisterError::WindowsBound { stag, windows: 2 }));
    table.unbind_stream(OTHER_STREAM);
    table.unbind_stream(OTHER_STREAM);
    table.deregister(stag).unwrap();
    assert!(table.streams.lock().is_empty());
}

#[test]
fn nothing_is_remembered_of_invalidated_bindings() {
    let table = table();
    let region = plain(&table);
    for _ in 0..10 {
        let (window, stag) = bound_two(&table, &region);
        table.invalidate_remote(stag, STREAM, PD).unwrap();
        table.dealloc(&window);
        let (window, _) = bound_two(&table, &region);
        table.dealloc(&window);
    }
    assert!(table.streams.lock().is_empty());
}
