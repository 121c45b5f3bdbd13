//! Memory that a program unmaps.

use super::*;
use std::thread;

const PAGE: usize = 4096;
const PAGES: u32 = PAGE as u32;

/// Pages of a program.
fn pages(count: usize) -> Vec<u8> {
    vec![0; (count + 1) * PAGE]
}

/// A region of all whole pages of `bytes` but the last.
fn foreign(table: &Table, bytes: &mut [u8]) -> Arc<Region> {
    let start = bytes.as_ptr().align_offset(PAGE);
    // SAFETY: the vector outlives the region in every test, and is accessed through it alone
    // meanwhile.
    let memory = unsafe { Memory::foreign(bytes[start..].as_mut_ptr(), bytes.len() - PAGE) };
    table.register(PD, memory, BASE, ALL).unwrap()
}

/// Addresses of pages of the region.
fn addresses(region: &Region, pages: Range<usize>) -> Range<usize> {
    let start = region.as_ptr().addr();
    start + pages.start * PAGE..start + pages.end * PAGE
}

/// Returns whether a peer can write there.
fn takes(table: &Table, stag: STag, offset: u32, len: u32) -> bool {
    write(table, stag, BASE + u64::from(offset), len).is_ok_and(|span| span.pin().is_ok())
}

#[test]
fn discarded_pages_refused() {
    let table = table();
    let mut memory = pages(10);
    let region = foreign(&table, &mut memory);
    let stag = region.stag();
    let window = table.alloc_window(PD, WindowType::One).unwrap();
    let len = 10 * PAGE as u64;
    let bound = table.bind(&window, &region, None, BASE, len, Access::REMOTE, None).unwrap();
    let kept = write(&table, stag, BASE + 4 * PAGE as u64 - 8, 16).unwrap();
    table.discard(addresses(&region, 4..5));
    for stag in [stag, bound] {
        assert!(
            takes(&table, stag, 0, 4 * PAGES) && takes(&table, stag, 5 * PAGES, 5 * PAGES),
            "{stag}"
        );
        for (offset, len) in
            [(0, 10 * PAGES), (4 * PAGES - 1, 2), (5 * PAGES - 1, 2), (4 * PAGES, PAGES)]
        {
            assert!(!takes(&table, stag, offset, len), "{stag}: {offset} + {len}");
        }
    }
    assert_eq!(kept.pin().map(drop), Err(MemoryGone { stag }), "what was looked up before");
    let mut cache = MrCache::default();
    let hold = |cache: &mut MrCache, page: u64| {
        let to = BASE + page * PAGE as u64;
        table.pin_remote(cache, stag, (STREAM, PD), (to, 4), Right::Write).map(drop)
    };
    assert_eq!(hold(&mut cache, 0), Ok(()));
    assert_eq!(hold(&mut cache, 4), Err(RemoteError::InvalidStag { stag }));
    assert_eq!(hold(&mut cache, 6), Ok(()), "the pin of the batch is still there");
    drop(cache);
    table.discard(addresses(&region, 0..4));
    table.discard(addresses(&region, 5..10));
    assert!(!takes(&table, stag, 0, 1) && !takes(&table, stag, 10 * PAGES - 1, 1));
    assert!(table.dealloc(&window));
    table.deregister(stag).unwrap();
}

/// The memory is the same: what was mapped there since is not registered.
#[test]
fn discarded_pages_refused_after_rereg() {
    let table = table();
    let mut memory = pages(3);
    let region = foreign(&table, &mut memory);
    table.discard(addresses(&region, 1..2));
    let change =
        Rereg { access: Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE), ..Rereg::default() };
    let stag = table.rereg(region.stag(), change).unwrap().stag();
    assert!(takes(&table, stag, 0, 8) && takes(&table, stag, 2 * PAGES, 8));
    assert!(!takes(&table, stag, PAGES, 8));
    table.deregister(stag).unwrap();
}

#[test]
fn guaranteed_memory_not_discarded() {
    let table = table();
    let own = plain(&table);
    let start = own.as_ptr().addr();
    table.discard(start..start + 100);
    assert!(takes(&table, own.stag(), 0, 100));
    let mut bytes = vec![0; 100];
    // SAFETY: the vector outlives the table.
    let memory = unsafe { Memory::on_demand(bytes.as_mut_ptr(), 100) };
    let region = table.register(PD, memory, BASE, ALL).unwrap();
    table.discard(addresses(&region, 0..1));
    assert!(takes(&table, region.stag(), 0, 100));
    table.deregister(region.stag()).unwrap();
}

/// An allocator that unmaps may run under a pin, or under the lock of a shard.
#[test]
fn discard_under_pin_or_lock() {
    let table = table();
    let mut memory = pages(2);
    let region = foreign(&table, &mut memory);
    let span = write(&table, region.stag(), BASE, 100).unwrap();
    let pin = span.pin().unwrap();
    table.discard(addresses(&region, 0..1));
    assert!(!region.is_live(), "a region that is never free is ended");
    drop(pin);
    assert!(!takes(&table, region.stag(), PAGES, 1));
    table.deregister(region.stag()).unwrap();
    let region = foreign(&table, &mut memory);
    let slots = table.shard(region.stag()).0.write();
    table.discard(addresses(&region, 0..1));
    drop(slots);
    table.deregister(region.stag()).unwrap();
}

/// `discard` may run in an allocator, so another thread frees the region.
#[test]
fn region_deregistered_during_discard_freed_later() {
    let table = table();
    let mut memory = pages(1);
    let region = foreign(&table, &mut memory);
    let (stag, range, weak) = (region.stag(), addresses(&region, 0..1), Arc::downgrade(&region));
    let span = write(&table, stag, BASE, 100).unwrap();
    let pin = span.pin().unwrap();
    drop(region);
    thread::scope(|scope| {
        scope.spawn(|| table.discard(range));
        // The table, the span and `discard`.
        while weak.strong_count() < 3 {
            thread::yield_now();
        }
        scope.spawn(|| table.deregister(stag).unwrap());
        while !table.is_empty() {
            thread::yield_now();
        }
        drop(pin);
    });
    drop(span);
    assert_eq!(weak.strong_count(), 1);
    let region = foreign(&table, &mut memory);
    assert_eq!(weak.strong_count(), 0);
    table.deregister(region.stag()).unwrap();
}

/// `discard` revokes a window that stays pinned.
#[test]
fn region_of_revoked_window_deregistered() {
    let table = table();
    let region = plain(&table);
    let window = table.alloc_window(PD, WindowType::One).unwrap();
    let bound = table.bind(&window, &region, None, BASE, 100, Access::REMOTE, None).unwrap();
    if let Some(TableSlot::Entry(_, Some(binding))) =
        table.shard(bound).0.read().get(&bound.index())
    {
        binding.pin_count().revoke();
    }
    assert!(write(&table, bound, BASE, 8).is_err());
    assert!(table.dealloc(&window));
    table.deregister(region.stag()).unwrap();
}

#[test]
fn atomic_cell_of_foreign_memory_refused() {
    let table = table();
    let mut memory = pages(1);
    let region = foreign(&table, &mut memory);
    let span = region.span(0, 8).unwrap();
    let pin = span.pin().unwrap();
    assert_eq!(pin.atomic_cell(0).err(), Some(MemoryGone { stag: region.stag() }.into()));
    assert_eq!(pin.atomic_u64(0, |old| old + 1), Ok(0));
}
