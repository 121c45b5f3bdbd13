//! Terminates by code, in the block of a shard.

use crate::counts::TerminateCount;
use crate::layout::shard::{
    OTHER_TERMINATES_RECEIVED, OTHER_TERMINATES_SENT, TERMINATE_CODES, TERMINATES,
};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use uiw_mem::{BLOCK_WORDS, Block};

/// Set in the code of a used entry.
const USED: u64 = 1 << 16;

/// Returns the counter of Terminates with `code`. The bits of `code` are, from the top, 4 bits of
/// layer, 4 bits of error type and 8 bits of error code (RFC 5040 section 4.8). A new code gets an
/// entry if there is room.
pub(crate) fn counter_of_code(block: &Block, code: u16, sent: bool) -> &AtomicU64 {
    let key = USED | u64::from(code);
    for entry in block[TERMINATES..].chunks_exact(3).take(TERMINATE_CODES) {
        let is = entry[0].load(Relaxed);
        if is == 0 {
            entry[0].store(key, Relaxed);
        } else if is != key {
            continue;
        }
        return &entry[if sent { 1 } else { 2 }];
    }
    &block[if sent { OTHER_TERMINATES_SENT } else { OTHER_TERMINATES_RECEIVED }]
}

/// Parses the counts of a shard.
pub(crate) fn parse(block: &[u64; BLOCK_WORDS]) -> impl Iterator<Item = TerminateCount> {
    let entries = block[TERMINATES..].chunks_exact(3).take(TERMINATE_CODES);
    let known = entries.filter(|entry| entry[0] & USED != 0).map(|entry| TerminateCount {
        code: Some(((entry[0] >> 12) as u8 & 15, (entry[0] >> 8) as u8 & 15, entry[0] as u8)),
        sent: entry[1],
        received: entry[2],
    });
    let (sent, received) = (block[OTHER_TERMINATES_SENT], block[OTHER_TERMINATES_RECEIVED]);
    let other = TerminateCount { code: None, sent, received };
    known.chain((sent > 0 || received > 0).then_some(other))
}
