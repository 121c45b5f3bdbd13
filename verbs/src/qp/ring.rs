//! Ring buffer whose entries are reused in place, so that their allocations are kept and nothing is
//! moved.

/// Ring buffer whose length is limited by its users.
///
/// It grows by doubling and never shrinks. A free entry keeps its contents until a push reuses it.
pub(crate) struct Ring<T> {
    /// Empty, or a power of two of slots.
    slots: Vec<T>,
    front: usize,
    len: usize,
}

impl<T: Default> Ring<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), front: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, at: usize) -> usize {
        (self.front + at) & (self.slots.len() - 1)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        if at < self.len { self.slots.get(self.place(at)) } else { None }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        if at >= self.len {
            return None;
        }
        let place = self.place(at);
        self.slots.get_mut(place)
    }

    /// Returns the entries from index `at` on, as far as they are contiguous in memory.
    pub(crate) fn run(&mut self, at: usize) -> &mut [T] {
        let count = self.len.saturating_sub(at);
        if count == 0 {
            return &mut [];
        }
        let place = self.place(at);
        let end = self.slots.len().min(place + count);
        &mut self.slots[place..end]
    }

    /// Returns a slice of the last entry, or an empty slice.
    pub(crate) fn last_run(&mut self) -> &mut [T] {
        let last = self.len.saturating_sub(1);
        self.run(last)
    }

    /// Adds an entry at the end. It has the contents that its slot had before.
    #[inline]
    pub(crate) fn push(&mut self) -> &mut T {
        if self.len == self.slots.len() {
            self.grow();
        }
        let place = self.place(self.len);
        self.len += 1;
        &mut self.slots[place]
    }

    /// Adds an entry at the front. It has the contents that its slot had before.
    pub(crate) fn push_front(&mut self) -> &mut T {
        if self.len == self.slots.len() {
            self.grow();
        }
        self.front = self.place(self.slots.len() - 1);
        self.len += 1;
        &mut self.slots[self.front]
    }

    /// Removes the first entry and returns its slot.
    pub(crate) fn pop(&mut self) -> Option<&mut T> {
        if self.len == 0 {
            return None;
        }
        let place = self.front;
        self.len -= 1;
        // An empty ring restarts at the first slot, so that a ring that is often empty keeps using
        // the same few slots, which are in the cache.
        self.front = if self.len > 0 { (place + 1) & (self.slots.len() - 1) } else { 0 };
        self.slots.get_mut(place)
    }

    /// Removes up to `count` entries from the front and returns their number.
    pub(crate) fn pop_many(&mut self, count: usize) -> usize {
        let count = count.min(self.len);
        self.front = if count < self.len { self.place(count) } else { 0 };
        self.len -= count;
        count
    }

    /// Removes the last entry and returns its slot.
    pub(crate) fn pop_last(&mut self) -> Option<&mut T> {
        self.len = self.len.checked_sub(1)?;
        let place = self.place(self.len);
        self.slots.get_mut(place)
    }

    pub(crate) fn clear(&mut self) {
        (self.front, self.len) = (0, 0);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|at| self.get(at))
    }

    #[cold]
    fn grow(&mut self) {
        // Moves the first entry to slot 0, so that the new slots follow the last entry.
        self.slots.rotate_left(self.front);
        self.front = 0;
        let len = (self.slots.len() * 2).max(8);
        self.slots.resize_with(len, T::default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn queue_order_across_wrap_and_growth() {
        let mut ring = Ring::<u32>::new();
        let mut model = VecDeque::new();
        for step in 0..if cfg!(miri) { 200 } else { 2000 } {
            if step % 7 < 4 || step < 40 {
                *ring.push() = step;
                model.push_back(step);
            } else {
                assert_eq!(ring.pop().copied(), model.pop_front());
            }
            if step % 17 == 0 {
                let count = model.len().min(2);
                assert_eq!(ring.pop_many(2), count);
                model.drain(..count);
            }
            if step % 13 == 0 {
                *ring.push_front() = step;
                model.push_front(step);
            }
            if step % 11 == 0 {
                assert_eq!(ring.pop_last().copied(), model.pop_back());
            }
            assert_eq!(ring.len(), model.len());
            assert!(ring.iter().eq(model.iter()));
            assert_eq!(ring.get(3), model.get(3));
            let run = ring.run(2).to_vec();
            assert!(run.iter().eq(model.iter().skip(2).take(run.len())));
            let left = model.len().saturating_sub(2);
            assert!(run.len() == left || ring.place(2) + run.len() == ring.slots.len());
            assert_eq!(ring.get(ring.len()), None);
        }
        ring.clear();
        assert_eq!((ring.len(), ring.pop()), (0, None));
        assert_eq!(ring.pop_last(), None);
    }

    #[test]
    fn ring_keeps_allocations() {
        let mut ring = Ring::<Vec<u8>>::new();
        ring.push().extend_from_slice(&[1; 100]);
        let before = ring.pop().unwrap().as_ptr();
        for _ in 0..7 {
            ring.push();
            ring.pop();
        }
        let again = ring.push();
        assert_eq!((again.as_ptr(), again.len()), (before, 100));
    }

    #[test]
    fn empty_ring_reuses_places() {
        let mut ring = Ring::<u32>::new();
        for _ in 0..3 {
            *ring.push() = 1;
            *ring.push() = 2;
            assert_eq!(ring.pop().copied(), Some(1));
            assert_eq!(ring.pop().copied(), Some(2));
        }
        assert_eq!((*ring.push(), *ring.push()), (1, 2));
    }
}
