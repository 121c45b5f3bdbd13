//! Memory that a program unmaps.

use super::*;

/// Bytes of a program, and a region of all of them.
fn foreign(table: &Table, bytes: &mut Vec<u8>) -> Arc<Region> {
    // SAFETY: the vector outlives the region in every test, and is accessed through it alone meanwhile.
    let memory = unsafe { Memory::foreign(bytes.as_mut_ptr(), bytes.len()) };
    table.register(PD, memory, BASE, ALL).unwrap()
}

fn addresses(region: &Region, range: Range<usize>) -> Range<usize> {
    let start = region.as_ptr().addr();
    start + range.start..start + range.end
}

/// Whether a peer can write there.
fn takes(table: &Table, stag: STag, offset: u64, len: u32) -> bool {
    write(table, stag, BASE + offset, len).is_ok_and(|span| span.pin().is_ok())
}

#[test]
fn discarded_bytes_are_refused_and_the_rest_stays() {
    let table = table();
    let mut memory = vec![0; 100];
    let region = foreign(&table, &mut memory);
    let stag = region.stag();
    let window = table.alloc_window(PD, WindowType::One).unwrap();
    let bound = table.bind(&window, &region, None, BASE, 100, Access::REMOTE, None).unwrap();
    let kept = write(&table, stag, BASE + 45, 10).unwrap();
    table.discard(addresses(&region, 40..50));
    for stag in [stag, bound] {
        assert!(takes(&table, stag, 0, 40) && takes(&table, stag, 50, 50), "{stag}");
        for (offset, len) in [(0, 100), (39, 2), (49, 2), (40, 10), (45, 1)] {
            assert!(!takes(&table, stag, offset, len), "{stag}: {offset} + {len}");
        }
    }
    assert_eq!(kept.pin().map(drop), Err(Gone { stag }), "what was looked up before");
    let mut cache = MrCache::default();
    let hold = |cache: &mut MrCache, to| {
        table.hold_remote(cache, stag, (STREAM, PD), (to, 4), Right::Write).map(drop)
    };
    assert_eq!(hold(&mut cache, BASE), Ok(()));
    assert_eq!(hold(&mut cache, BASE + 44), Err(RemoteError::InvalidStag { stag }));
    assert_eq!(hold(&mut cache, BASE + 60), Ok(()), "the pin of the batch is still there");
    drop(cache);
    table.discard(addresses(&region, 0..40));
    table.discard(addresses(&region, 50..100));
    assert!(!takes(&table, stag, 0, 1) && !takes(&table, stag, 99, 1));
    assert!(table.dealloc(&window));
    table.deregister(stag).unwrap();
}

#[test]
fn guaranteed_and_on_demand_memory_is_not_discarded() {
    let table = table();
    let own = plain(&table);
    table.discard(addresses(&own, 0..100));
    assert!(takes(&table, own.stag(), 0, 100));
    let mut bytes = vec![0; 100];
    // SAFETY: the vector outlives the table.
    let memory = unsafe { Memory::foreign(bytes.as_mut_ptr(), 100) }.on_demand();
    let region = table.register(PD, memory, BASE, ALL).unwrap();
    table.discard(addresses(&region, 0..100));
    assert!(takes(&table, region.stag(), 0, 100));
    table.deregister(region.stag()).unwrap();
}

#[test]
fn discarding_waits_for_pins_and_ends_a_region_that_is_never_free() {
    let table = table();
    let mut memory = vec![0; 100];
    let region = foreign(&table, &mut memory);
    let span = write(&table, region.stag(), BASE, 100).unwrap();
    let pin = span.pin().unwrap();
    std::thread::scope(|scope| {
        let discarding = scope.spawn(|| table.discard(addresses(&region, 0..10)));
        // The pin is held for longer than the wait for a moment without one: the whole region is revoked.
        while region.is_live() {
            std::thread::yield_now();
        }
        assert!(!discarding.is_finished(), "a pin is held");
        drop(pin);
        discarding.join().unwrap();
    });
    assert!(!takes(&table, region.stag(), 50, 1));
    table.deregister(region.stag()).unwrap();
}
