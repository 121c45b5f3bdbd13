//! Descriptors of the process: how many connections they are enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

use super::shares::Shares;

/// Of a connection: its socket, and what its thread sleeps on.
const EACH: usize = 2;
/// Of a connection that reads files, at most: eight sources.
const EACH_READER: usize = EACH + 8;
/// Of a connection that writes files, at most: three for each of 16 incomplete files.
const EACH_WRITER: usize = EACH + 3 * 16;
/// Left for connections in set-up and those that are rejected.
const RESERVED: usize = 8;

/// Raises the limit as far as the process may.
pub(super) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// How many connections those that are free are enough for, whatever their peers open; at least one.
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
        assert_eq!(enough_for(1024, 20, EACH_WRITER), 19);
        assert_eq!(enough_for(8, 12, EACH), 1, "the first connection may fail, and is not refused");
    }
}
