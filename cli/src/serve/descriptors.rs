//! Number of connections that the limit of descriptors allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

use super::shares::Shares;

/// Descriptors of a connection without a share: its socket, and the one its thread sleeps on.
const EACH: usize = 2;
/// Maximum number of descriptors of a connection that reads files, which has eight of them open.
const EACH_READER: usize = EACH + 8;
/// Maximum number of descriptors of a connection that writes files: those of a reader, three for
/// each of 16 incomplete files, and those of a removal.
const EACH_WRITER: usize = EACH_READER + 3 * 16 + uiw_copy::remove::MAX_OPEN;
/// Descriptors reserved for connections that are being set up or rejected.
const RESERVED: usize = 8;

/// Raises the soft limit of descriptors to the hard limit.
pub(super) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// Returns the number of connections for which the free descriptors suffice even if every peer
/// opens as many files as it can. The result is at least one.
pub(super) fn connections(shares: &Shares) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return usize::MAX };
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let each = match shares.are_writable() {
        None => EACH,
        Some(false) => EACH_READER,
        Some(true) => EACH_WRITER,
    };
    enough_for(usize::try_from(limit).unwrap_or(usize::MAX), open, each)
}

fn enough_for(limit: usize, open: usize, each: usize) -> usize {
    (limit.saturating_sub(open + RESERVED) / each).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_kept() {
        assert_eq!(enough_for(40, 12, EACH), 10);
        assert_eq!(enough_for(1024, 20, EACH), 498);
        assert_eq!(enough_for(1024, 20, EACH_WRITER), 15);
        assert_eq!(enough_for(8, 12, EACH), 1, "the first connection may fail, and is not refused");
    }
}
