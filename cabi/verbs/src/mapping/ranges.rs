//! Registered address ranges, which may overlap, and a search for those that overlap a given range.
//!
//! The ranges are in a treap ordered by start address, in one vector. Each node contains the
//! highest end in its subtree. A change neither allocates nor frees memory: the caller provides the
//! memory.

use std::sync::Arc;
use uiw_mem::PageState;

/// Start of a range, and a number that no other range has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) start: usize,
    pub(super) id: u64,
}

/// Registered range.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) key: Key,
    pub(super) end: usize,
    pub(super) page_state: Arc<PageState>,
}

/// Index in the vector, or [`NONE`].
type Place = usize;
const NONE: Place = usize::MAX;

struct RangeNode {
    /// `None` if the node is free. In that case `left` is the next free node.
    range: Option<Range>,
    key: Key,
    end: usize,
    /// Highest end in the subtree of this node.
    highest: usize,
    left: Place,
    right: Place,
}

impl RangeNode {
    /// Returns the priority of the node in the treap, a hash of its number. No node is above one
    /// with a higher priority, so subtrees are shallow for all sequences of registrations.
    fn priority(&self) -> u64 {
        let mixed = (self.key.id ^ (self.key.id >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }
}

pub(super) struct Ranges {
    nodes: Vec<RangeNode>,
    root: Place,
    free: Place,
}

impl Ranges {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), root: NONE, free: NONE }
    }

    /// Returns the capacity for [`Ranges::grow`] if [`Ranges::insert`] finds no free node.
    pub(super) fn next_capacity(&self) -> usize {
        (self.nodes.capacity() * 2).max(64)
    }

    /// Moves the nodes to `room` if that is larger, and leaves the old vector there.
    pub(super) fn grow(&mut self, room: &mut NodeReserve) {
        if room.0.capacity() > self.nodes.capacity() {
            room.0.append(&mut self.nodes);
            std::mem::swap(&mut room.0, &mut self.nodes);
        }
    }

    /// Adds a range.
    ///
    /// # Errors
    /// Returns the range if there is no free node.
    pub(super) fn insert(&mut self, range: Range) -> Result<(), Range> {
        let (key, end) = (range.key, range.end);
        let node =
            RangeNode { range: Some(range), key, end, highest: end, left: NONE, right: NONE };
        let place = if self.free != NONE {
            let place = self.free;
            self.free = self.nodes[place].left;
            self.nodes[place] = node;
            place
        } else if self.nodes.len() < self.nodes.capacity() {
            self.nodes.push(node);
            self.nodes.len() - 1
        } else {
            return node.range.map_or(Ok(()), Err);
        };
        let (before, behind) = self.split(self.root, key);
        let before = self.join(before, place);
        self.root = self.join(before, behind);
        Ok(())
    }

    /// Removes a range, and returns it so that the caller can drop it.
    pub(super) fn remove(&mut self, key: Key) -> Option<Range> {
        let (before, rest) = self.split(self.root, key);
        let (found, behind) = self.split(rest, Key { id: key.id + 1, ..key });
        self.root = self.join(before, behind);
        if found == NONE {
            return None;
        }
        self.nodes[found].left = self.free;
        self.free = found;
        self.nodes[found].range.take()
    }

    /// Calls `f` with every range that overlaps `wanted`.
    pub(super) fn each_overlap(&self, wanted: &std::ops::Range<usize>, f: &mut impl FnMut(&Range)) {
        self.each_below(self.root, wanted, f);
    }

    fn each_below(&self, at: Place, wanted: &std::ops::Range<usize>, f: &mut impl FnMut(&Range)) {
        let Some(node) = self.nodes.get(at).filter(|node| node.highest > wanted.start) else {
            return;
        };
        self.each_below(node.left, wanted, f);
        if node.key.start >= wanted.end {
            return;
        }
        if let Some(range) = node.range.as_ref().filter(|range| range.end > wanted.start) {
            f(range);
        }
        self.each_below(node.right, wanted, f);
    }

    fn highest(&self, at: Place) -> usize {
        self.nodes.get(at).map_or(0, |node| node.highest)
    }

    fn update(&mut self, at: Place) {
        let node = &self.nodes[at];
        let highest = node.end.max(self.highest(node.left)).max(self.highest(node.right));
        self.nodes[at].highest = highest;
    }

    /// Splits a subtree into the ranges before `key`, and the others.
    fn split(&mut self, at: Place, key: Key) -> (Place, Place) {
        let Some(node) = self.nodes.get(at) else { return (NONE, NONE) };
        if node.key < key {
            let (before, behind) = self.split(node.right, key);
            self.nodes[at].right = before;
            self.update(at);
            (at, behind)
        } else {
            let (before, behind) = self.split(node.left, key);
            self.nodes[at].left = behind;
            self.update(at);
            (before, at)
        }
    }

    /// Joins two subtrees. All ranges of `before` come before those of `behind`.
    fn join(&mut self, before: Place, behind: Place) -> Place {
        let (Some(first), Some(second)) = (self.nodes.get(before), self.nodes.get(behind)) else {
            return if before == NONE { behind } else { before };
        };
        if first.priority() > second.priority() {
            let right = self.join(first.right, behind);
            self.nodes[before].right = right;
            self.update(before);
            before
        } else {
            let left = self.join(before, second.left);
            self.nodes[behind].left = left;
            self.update(behind);
            behind
        }
    }
}

/// Memory for nodes. It is allocated and freed by the caller, where allocation is permitted.
pub(super) struct NodeReserve(Vec<RangeNode>);

impl NodeReserve {
    pub(super) const NONE: Self = Self(Vec::new());

    pub(super) fn new(ranges: usize) -> Self {
        Self(Vec::with_capacity(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uiw_mem::Memory;

    fn page_state() -> Arc<PageState> {
        // SAFETY: the memory has no bytes, so nothing can access them, and the test never registers
        // it.
        let memory = unsafe { Memory::foreign(std::ptr::null_mut(), 0) };
        Arc::clone(memory.page_state().expect("of foreign memory"))
    }

    fn overlaps(ranges: &Ranges, wanted: &std::ops::Range<usize>) -> Vec<u64> {
        let mut found = Vec::new();
        ranges.each_overlap(wanted, &mut |range| found.push(range.key.id));
        found.sort_unstable();
        found
    }

    #[test]
    fn overlaps_are_those_of_a_list() {
        let (page_state, mut ranges) = (page_state(), Ranges::new());
        let mut list: Vec<(Key, usize)> = Vec::new();
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for id in 0..5000u64 {
            if list.len() > 100 && random(2) == 0 {
                let (key, _) = list.swap_remove(random(list.len()));
                assert_eq!(ranges.remove(key).map(|range| range.key), Some(key));
                assert!(ranges.remove(key).is_none());
            } else {
                let longest = if random(20) == 0 { 5000 } else { 50 };
                let key = Key { start: random(10_000), id };
                let end = key.start + 1 + random(longest);
                list.push((key, end));
                let mut range = Range { key, end, page_state: Arc::clone(&page_state) };
                while let Err(refused) = ranges.insert(range) {
                    range = refused;
                    let capacity = ranges.next_capacity();
                    ranges.grow(&mut NodeReserve::new(capacity));
                }
            }
            let start = random(11_000);
            let wanted = start..start + 1 + random(300);
            let mut expected: Vec<u64> = list
                .iter()
                .filter(|(key, end)| key.start < wanted.end && *end > wanted.start)
                .map(|(key, _)| key.id)
                .collect();
            expected.sort_unstable();
            assert_eq!(overlaps(&ranges, &wanted), expected, "{wanted:?}");
        }
        assert_eq!(overlaps(&ranges, &(0..usize::MAX)).len(), list.len());
    }
}
