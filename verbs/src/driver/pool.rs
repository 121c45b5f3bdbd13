//! Octets held for streams between pumps: the started FPDU of a receiving stream, everything read from a stalled one, staging
//! that TCP has not taken. One bound for all streams of a device; a stream that would pass it is not read until others let go.

/// Buffers for octets that outlive a pump.
pub(crate) struct Pool {
    free: Vec<Vec<u8>>,
    held: usize,
    limit: usize,
}

/// Largest buffer kept for reuse.
const KEEP: usize = 256 << 10;

impl Pool {
    pub(crate) fn new(limit: usize) -> Self {
        Self { free: Vec::new(), held: 0, limit }
    }

    /// Whether another `octets` may be held.
    pub(crate) fn has_room(&self, octets: usize) -> bool {
        self.held + octets <= self.limit
    }

    /// An empty buffer, not counted until [`Pool::count`].
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// A stream's holding changed.
    pub(crate) fn count(&mut self, before: usize, after: usize) {
        self.held = self.held - before + after;
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= KEEP && self.free.len() < 16 {
            buffer.clear();
            self.free.push(buffer);
        }
    }

    /// So many streams are left, and want no more buffers than that.
    pub(crate) fn keep(&mut self, streams: usize) {
        self.free.truncate(streams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowds_buffers_go_with_it() {
        let mut pool = Pool::new(1 << 20);
        for streams in (0..40).rev() {
            pool.give(Vec::with_capacity(1000));
            pool.keep(streams);
            assert!(pool.free.len() <= streams.min(16));
        }
        assert_eq!(pool.take().capacity(), 0);
        pool.give(Vec::with_capacity(KEEP + 1));
        assert!(pool.free.is_empty(), "too large to be kept");
    }
}
