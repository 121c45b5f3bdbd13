//! What a stream keeps of its last look-ups.

use super::*;

fn hold(
    table: &Table,
    cache: &mut MrCache,
    region: &Region,
    bytes: &[u8],
) -> Result<(), RemoteError> {
    let range = (BASE, u32::try_from(bytes.len()).unwrap());
    table
        .pin_remote(cache, region.stag(), (STREAM, PD), range, Right::Write)?
        .copy_from(0, bytes)
        .unwrap();
    Ok(())
}

#[test]
fn batch_takes_one_pin() {
    let table = table();
    let (one, two) = (plain(&table), plain(&table));
    let mut cache = MrCache::default();
    for bytes in [b"first", b"again"] {
        hold(&table, &mut cache, &one, bytes).unwrap();
        assert_eq!(one.pins(), 1);
    }
    assert_eq!(bytes(&one)[..5], *b"again");
    // Another region: the one before is let go.
    hold(&table, &mut cache, &two, b"other").unwrap();
    assert_eq!((one.pins(), two.pins()), (0, 1));
    let stag = two.stag();
    table
        .pin_local(&mut cache, STag(stag.0), PD, (BASE, 4), true)
        .unwrap()
        .copy_from(0, b"mine")
        .unwrap();
    assert_eq!(two.pins(), 2, "one for the peer's name, one for ours");
    cache.unpin();
    assert_eq!(two.pins(), 0);
    // What was found is still known, and pinned anew.
    hold(&table, &mut cache, &two, b"later").unwrap();
    assert_eq!(two.pins(), 1);
    drop(cache);
    assert_eq!(two.pins(), 0);
    table.deregister(one.stag()).unwrap();
    table.deregister(stag).unwrap();
}

#[test]
fn deregistration_waits_for_batch() {
    let table = table();
    let region = plain(&table);
    let mut cache = MrCache::default();
    hold(&table, &mut cache, &region, b"one").unwrap();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| table.deregister(region.stag()).unwrap());
        while region.is_live() {
            std::thread::yield_now();
        }
        // Its end has begun: nothing more goes there, and to find that out lets it end.
        let stag = region.stag();
        assert_eq!(
            hold(&table, &mut cache, &region, b"two"),
            Err(RemoteError::InvalidStag { stag })
        );
        ending.join().unwrap();
    });
    assert_eq!(region.pins(), 0);
}

#[test]
fn elements_of_held_region_checked() {
    let table = table();
    let region = plain(&table);
    let lkey = region.stag();
    let mut cache = MrCache::default();
    let pinned = table.pin_local_region(&mut cache, lkey, PD, true).unwrap();
    assert_eq!(region.pins(), 1);
    // Few words, a part of one, and more than the words that are copied without a call would be.
    for (offset, len) in [(0, 64), (3, 5), (16, 84), (99, 1), (100, 0), (7, 0)] {
        let there: Vec<u8> = (0..len).map(|at| at as u8 + 1).collect();
        pinned.copy_from(BASE + offset, &there).unwrap();
        assert_eq!(bytes(&region)[offset as usize..][..len], there);
        let mut out = vec![0; len];
        pinned.copy_to(BASE + offset, &mut out).unwrap();
        assert_eq!(out, there);
    }
    let before = bytes(&region);
    for (addr, len) in [(BASE - 1, 2), (BASE + 99, 2), (BASE + 100, 1), (0, 1), (u64::MAX - 1, 4)] {
        let outside = Err(LocalError::OutOfRange { lkey, addr, len: len as u64 });
        assert_eq!(pinned.copy_from(addr, &vec![9; len]), outside);
        assert_eq!(pinned.copy_to(addr, &mut vec![9; len]), outside);
    }
    assert_eq!(bytes(&region), before);
    let of_other = table.pin_local_region(&mut cache, lkey, OTHER_PD, true).map(drop);
    assert_eq!(of_other, Err(LocalError::ProtectionDomain { lkey, owner: PD, pd: OTHER_PD }));
    cache.unpin();
    assert_eq!(region.pins(), 0);
    table.deregister(lkey).unwrap();
    let gone = table.pin_local_region(&mut cache, lkey, PD, false).map(drop);
    assert_eq!(gone, Err(LocalError::InvalidLkey { lkey }));
}

#[test]
fn exclusive_or_read_only_held_regions() {
    let table = table();
    // SAFETY: only this thread uses it.
    let memory = unsafe { Memory::from(vec![7; 300]).exclusive() };
    let exclusive = table.register(PD, memory, BASE, Access::LOCAL_WRITE).unwrap();
    let mut cache = MrCache::default();
    let pinned = table.pin_local_region(&mut cache, exclusive.stag(), PD, true).unwrap();
    pinned.copy_from(BASE + 1, &[1; 299]).unwrap();
    let mut out = [0; 300];
    pinned.copy_to(BASE, &mut out).unwrap();
    assert_eq!((out[0], &out[1..]), (7, &[1; 299][..]));
    let fixed = region(&table, 10, Access::empty());
    let lkey = fixed.stag();
    let refused = table.pin_local_region(&mut cache, lkey, PD, true).map(drop);
    assert_eq!(refused, Err(LocalError::NotWritable { lkey }));
    let pinned = table.pin_local_region(&mut cache, lkey, PD, false).unwrap();
    pinned.copy_to(BASE, &mut out[..10]).unwrap();
    assert_eq!(out[..10], [0; 10]);
    assert_eq!((exclusive.pins(), fixed.pins()), (0, 1));
}
