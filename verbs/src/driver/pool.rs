//! Buffers for bytes that outlive a round: the beginning of an FPDU, and staged bytes that the
//! socket has not accepted.

/// Buffers that the connections of a shard use in turn.
#[derive(Default)]
pub(crate) struct Pool {
    free: Vec<Vec<u8>>,
}

/// Capacity, in bytes, up to which buffers are kept for reuse.
const KEEP: usize = uiw_stream::MAX_BUFFER;

impl Pool {
    /// Returns an empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= KEEP && self.free.len() < 16 {
            buffer.clear();
            self.free.push(buffer);
        }
    }

    /// Frees buffers beyond one for each of the remaining `connections`.
    pub(crate) fn keep(&mut self, connections: usize) {
        self.free.truncate(connections);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_bulk_disconnect_freed() {
        let mut pool = Pool::default();
        for connections in (0..40).rev() {
            pool.give(Vec::with_capacity(1000));
            pool.keep(connections);
            assert!(pool.free.len() <= connections.min(16));
        }
        assert_eq!(pool.take().capacity(), 0);
        pool.give(Vec::with_capacity(KEEP + 1));
        assert!(pool.free.is_empty(), "too large to be kept");
    }
}
