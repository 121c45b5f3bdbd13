//! What a stream keeps of its last look-ups.

use super::*;

fn hold(table: &Table, cache: &mut MrCache, region: &Region, bytes: &[u8]) -> Result<(), RemoteError> {
    let range = (BASE, u32::try_from(bytes.len()).unwrap());
    table.hold_remote(cache, region.stag(), (STREAM, PD), range, Right::Write)?.copy_from(0, bytes).unwrap();
    Ok(())
}

#[test]
fn a_batch_takes_one_pin_and_gives_it_back() {
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
    table.hold_local(&mut cache, STag(stag.0), PD, (BASE, 4), true).unwrap().copy_from(0, b"mine").unwrap();
    assert_eq!(two.pins(), 2, "one for the peer's name, one for ours");
    cache.let_go();
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
fn the_end_of_a_region_waits_for_a_batch_and_the_next_one_is_refused() {
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
        assert_eq!(hold(&table, &mut cache, &region, b"two"), Err(RemoteError::InvalidStag { stag }));
        ending.join().unwrap();
    });
    assert_eq!(region.pins(), 0);
}
