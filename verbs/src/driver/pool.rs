//! Buffers for bytes that outlive a round: the beginning of an FPDU, and staged bytes that the
//! socket has not accepted.

/// Buffers that the connections of a shard use in turn.
#[derive(Default)]
pub(crate) struct Pool {
    free: Vec<Vec<u8>>,
}

/// Maximum number of buffers that are kept for reuse.
const KEPT: usize = 16;
/// Maximum number among them of buffers of more than [`uiw_stream::USUAL_BUFFER`] bytes.
const KEPT_LONG: usize = 2;

impl Pool {
    /// Returns an empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let is_long = |buffer: &Vec<u8>| buffer.capacity() > uiw_stream::USUAL_BUFFER;
        let is_kept = if is_long(&buffer) {
            buffer.capacity() <= uiw_stream::MAX_BUFFER
                && self.free.iter().filter(|free| is_long(free)).count() < KEPT_LONG
        } else {
            buffer.capacity() > 0
        };
        if is_kept && self.free.len() < KEPT {
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
        pool.give(Vec::with_capacity(uiw_stream::MAX_BUFFER + 1));
        assert!(pool.free.is_empty(), "too large to be kept");
        (0..4).for_each(|_| pool.give(Vec::with_capacity(1000)));
        (0..4).for_each(|_| pool.give(Vec::with_capacity(uiw_stream::MAX_BUFFER)));
        (0..4).for_each(|_| pool.give(Vec::new()));
        assert_eq!(pool.free.len(), 4 + KEPT_LONG);
    }
}
