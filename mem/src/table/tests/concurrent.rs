//! Races: revocation against access.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, AtomicUsize},
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::WindowType;

const ROUNDS: usize = if cfg!(miri) { 3 } else { 40 };

/// Writers look up, pin and write as fast as they can; after `revoke` has returned no byte changes
/// any more.
fn nothing_after(
    revoke: impl Fn(&Table, &Arc<Region>, STag),
    prepare: impl Fn(&Table, &Arc<Region>) -> STag,
) {
    let table = table();
    let stag = AtomicU64::new(u64::MAX);
    let writes = AtomicUsize::new(0);
    let memory: Vec<AtomicU8> = (0..512).map(|_| AtomicU8::new(0)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let Ok(stag) = u32::try_from(stag.load(Relaxed)) else {
                        thread::yield_now();
                        continue;
                    };
                    let Ok(span) = write(&table, STag(stag), BASE, 512) else { continue };
                    if let Ok(pinned) = span.pin() {
                        pinned.copy_from(0, &[0xFF; 512]).unwrap();
                        writes.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            let before = writes.load(Relaxed);
            // SAFETY: `memory` outlives the region, and all accesses are atomic.
            let bytes = unsafe { Memory::borrowed(memory.as_ptr().cast_mut().cast(), 512) };
            let region = table.register(PD, bytes, BASE, ALL).unwrap();
            let target = prepare(&table, &region);
            stag.store(u64::from(target.0), Relaxed);
            while writes.load(Relaxed) < before + 3 {
                thread::yield_now();
            }
            revoke(&table, &region, target);
            memory.iter().for_each(|byte| byte.store(0, Relaxed));
            for _ in 0..20 {
                thread::yield_now();
                assert!(
                    memory.iter().all(|byte| byte.load(Relaxed) == 0),
                    "written after revocation"
                );
            }
            stag.store(u64::MAX, Relaxed);
            if region.is_live() {
                table.deregister(region.stag()).unwrap();
            }
        }
        done.store(true, Relaxed);
    });
}

// [test:RFC5040-8.1.1-07] [test:RFC5041-8.3.1-07]
#[test]
fn nothing_is_written_after_deregistration() {
    nothing_after(
        |table, region, _| table.deregister(region.stag()).unwrap(),
        |_, region| region.stag(),
    );
}

#[test]
fn nothing_is_written_after_invalidation() {
    nothing_after(
        |table, _, stag| table.invalidate_local(stag, STREAM, PD).unwrap(),
        |table, region| {
            let window = table.alloc_window(PD, WindowType::Two).unwrap();
            table
                .bind(&window, region, Some(STREAM), BASE, 512, Access::REMOTE_WRITE, Some(1))
                .unwrap()
        },
    );
}

#[test]
fn nothing_written_after_stream_ended() {
    nothing_after(
        |table, _, _| table.unbind_stream(STREAM),
        |table, region| {
            let window = table.alloc_window(PD, WindowType::Two).unwrap();
            table
                .bind(&window, region, Some(STREAM), BASE, 512, Access::REMOTE_WRITE, Some(1))
                .unwrap()
        },
    );
}

#[test]
fn nothing_is_written_after_reregistration() {
    nothing_after(
        |table, region, _| {
            let change = Rereg { memory: Some((vec![0; 8].into(), 0)), ..Rereg::default() };
            let new = table.rereg(region.stag(), change).unwrap();
            table.deregister(new.stag()).unwrap();
        },
        |_, region| region.stag(),
    );
}

/// `revoke` does not return before the pin is given back, while new look-ups and pins fail at once.
fn waits_for_a_pin(stag: STag, to: u64, table: &Table, revoke: impl FnOnce() + Send) {
    let span = write(table, stag, to, 10).unwrap();
    let pinned = span.pin().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(revoke);
        // However late the other thread begins: it has begun when look-ups and pins fail.
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut refused = false;
        while !refused && Instant::now() < deadline {
            refused = write(table, stag, to, 1).is_err() && span.pin().is_err();
            thread::yield_now();
        }
        // Time to return too early.
        thread::sleep(Duration::from_millis(20));
        let early = waiter.is_finished();
        pinned.copy_from(0, b"still here").unwrap();
        drop(pinned);
        waiter.join().unwrap();
        assert!(!early && refused);
    });
}

// [test:RFC5040-8.1.1-07] [test:RFC5041-8.3.1-07]
#[test]
fn every_revocation_waits_for_pins() {
    let table = table();
    let region = plain(&table);
    let one = table.alloc_window(PD, WindowType::One).unwrap();
    let two = table.alloc_window(PD, WindowType::Two).unwrap();
    let bind = |window, len, key| {
        table.bind(window, &region, Some(STREAM), BASE, len, Access::REMOTE_WRITE, key).unwrap()
    };
    let bound = bind(&one, 10, None);
    waits_for_a_pin(bound, BASE, &table, || _ = bind(&one, 20, None));
    waits_for_a_pin(one.stag(), BASE, &table, || _ = bind(&one, 0, None));
    let bound = bind(&one, 10, None);
    waits_for_a_pin(bound, BASE, &table, || assert!(table.dealloc(&one)));
    let bound = bind(&two, 10, Some(1));
    waits_for_a_pin(bound, BASE, &table, || table.invalidate_local(bound, STREAM, PD).unwrap());
    let bound = bind(&two, 10, Some(2));
    waits_for_a_pin(bound, BASE, &table, || table.invalidate_remote(bound, STREAM, PD).unwrap());
    let bound = bind(&two, 10, Some(3));
    waits_for_a_pin(bound, BASE, &table, || table.unbind_stream(STREAM));
    let mut new = None;
    waits_for_a_pin(region.stag(), BASE, &table, || {
        new = Some(table.rereg(region.stag(), Rereg::default()).unwrap().stag());
    });
    let stag = new.unwrap();
    waits_for_a_pin(stag, BASE, &table, || table.deregister(stag).unwrap());
    table.set_lenient_invalidate(true);
    let stag = plain(&table).stag();
    waits_for_a_pin(stag, BASE, &table, || table.invalidate_remote(stag, STREAM, PD).unwrap());
}

#[test]
fn one_of_two_deregistrations_wins() {
    for _ in 0..ROUNDS {
        let table = table();
        let stag = plain(&table).stag();
        let outcomes = thread::scope(|scope| {
            let both = [0; 2].map(|_| scope.spawn(|| table.deregister(stag)));
            both.map(|one| one.join().unwrap().is_ok())
        });
        assert_ne!(outcomes[0], outcomes[1]);
        assert!(table.is_empty());
    }
}

/// Pins of a stream that ends do not delay other streams.
#[test]
fn streams_bind_while_another_ends() {
    let table = table();
    let region = plain(&table);
    let windows = [(); 2].map(|()| table.alloc_window(PD, WindowType::Two).unwrap());
    let bind = |window, stream| {
        table.bind(window, &region, Some(stream), BASE, 9, Access::REMOTE_WRITE, None)
    };
    let span = write(&table, bind(&windows[0], STREAM).unwrap(), BASE, 9).unwrap();
    let pinned = span.pin().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| table.unbind_stream(STREAM));
        while span.pin().is_ok() {
            thread::yield_now();
        }
        let is_free = table.streams.try_lock().is_some();
        drop(pinned);
        assert!(is_free);
    });
}

/// A window is in the list of its stream as soon as a peer can find it, so that it ends with the
/// stream even if the bind has not returned.
#[test]
fn window_invalid_until_recorded() {
    let table = table();
    let region = plain(&table);
    let window = table.alloc_window(PD, WindowType::Two).unwrap();
    let stag = STag::from_parts(window.stag().index(), 1);
    thread::scope(|scope| {
        let streams = table.streams.lock();
        scope.spawn(|| {
            table.bind(&window, &region, Some(STREAM), BASE, 9, Access::REMOTE_WRITE, Some(1))
        });
        // Time to become valid too early.
        thread::sleep(Duration::from_millis(20));
        let early = write(&table, stag, BASE, 9).is_ok();
        drop(streams);
        assert!(!early);
    });
    assert!(write(&table, stag, BASE, 9).is_ok());
}

/// Either the window is bound and the region stays, or the region goes and the bind fails.
#[test]
fn bind_against_deregister() {
    for _ in 0..ROUNDS {
        let table = table();
        let region = plain(&table);
        let window = table.alloc_window(PD, WindowType::One).unwrap();
        let (bound, gone) = thread::scope(|scope| {
            let bind = scope
                .spawn(|| table.bind(&window, &region, None, BASE, 1, Access::REMOTE_WRITE, None));
            let gone = table.deregister(region.stag()).is_ok();
            (bind.join().unwrap().is_ok(), gone)
        });
        assert_ne!(bound, gone);
        assert!(table.dealloc(&window));
        if !gone {
            table.deregister(region.stag()).unwrap();
        }
    }
}

#[test]
fn atomics_of_many_threads_add_up() {
    let table = table();
    let region = table.register(PD, Memory::owned(8).unwrap(), 0, ALL).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let span = table.remote(region.stag(), STREAM, PD, 0, 8, Right::Atomic).unwrap();
                for _ in 0..ROUNDS {
                    span.pin().unwrap().atomic_u64(0, |n| n + 3).unwrap();
                }
            });
        }
    });
    let span = region.span(0, 8).unwrap();
    assert_eq!(span.pin().unwrap().atomic_u64(0, |n| n).unwrap(), 12 * ROUNDS as u64);
}
