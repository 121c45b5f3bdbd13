//! A queue whose places are used again where they lie: what a request allocated serves a later one,
//! and nothing is moved.

/// A queue whose users limit its length. It grows by doubling, never shrinks, and keeps what was in
/// a place that is free until a push overwrites it.
pub(crate) struct Ring<T> {
    /// A power of two of them, or none.
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

    /// The entries from `at` on, as far as they are contiguous in memory.
    pub(crate) fn run(&mut self, at: usize) -> &mut [T] {
        let count = self.len.saturating_sub(at);
        if count == 0 {
            return &mut [];
        }
        let place = self.place(at);
        let end = self.slots.len().min(place + count);
        &mut self.slots[place..end]
    }

    /// The last entry alone, or none.
    pub(crate) fn last_run(&mut self) -> &mut [T] {
        let last = self.len.saturating_sub(1);
        self.run(last)
    }

    /// A new last entry, with what its place held before.
    #[inline]
    pub(crate) fn push(&mut self) -> &mut T {
        if self.len == self.slots.len() {
            self.grow();
        }
        let place = self.place(self.len);
        self.len += 1;
        &mut self.slots[place]
    }

    /// A new first entry, with what its place held before.
    pub(crate) fn push_front(&mut self) -> &mut T {
        if self.len == self.slots.len() {
            self.grow();
        }
        self.front = self.place(self.slots.len() - 1);
        self.len += 1;
        &mut self.slots[self.front]
    }

    /// Frees the place of the first entry, which can still be looked at.
    pub(crate) fn pop(&mut self) -> Option<&mut T> {
        if self.len == 0 {
            return None;
        }
        let place = self.front;
        self.len -= 1;
        // An empty queue begins anew with the first place: of a queue that empties repeatedly the
        // same few places are used, which are in the cache.
        self.front = if self.len > 0 { (place + 1) & (self.slots.len() - 1) } else { 0 };
        self.slots.get_mut(place)
    }

    /// Frees the places of the first entries, `count` or all; returns how many.
    pub(crate) fn pop_many(&mut self, count: usize) -> usize {
        let count = count.min(self.len);
        self.front = if count < self.len { self.place(count) } else { 0 };
        self.len -= count;
        count
    }

    /// Like [`Ring::pop`], of the last entry.
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
        // The entries begin at place 0 again, so that the new places lie behind the last.
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
    fn keeps_what_its_places_allocated() {
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
