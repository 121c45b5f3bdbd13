//! Sets of blocks.

use std::collections::BTreeMap;
use std::ops::Range;

/// Set of block numbers, stored as ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Merge ranges that overlap or touch the new one.
        while let Some((&low, &high)) = self.0.range(..=end).next_back() {
            if high < start {
                break;
            }
            self.0.remove(&low);
            start = start.min(low);
            end = end.max(high);
        }
        self.0.insert(start, end);
    }

    /// Returns whether the set contains the whole range.
    pub(super) fn contains(&self, range: &Range<u64>) -> bool {
        self.0.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// Returns the number of ranges.
    pub(super) fn ranges(&self) -> usize {
        self.0.len()
    }

    /// Returns the missing ranges of the first `count` blocks.
    pub(super) fn missing(&self, count: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        let ends = self.0.iter().map(|(&start, &end)| (start, end)).chain([(count, count)]);
        ends.filter_map(move |(start, end)| {
            let gap = at..start.min(count);
            at = at.max(end);
            (gap.start < gap.end).then_some(gap)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_equal_added_set(added in prop::collection::vec((0u64..60, 0u64..9), 0..20)) {
            let mut set = RangeSet::default();
            let mut model = [false; 70];
            for (start, len) in added {
                set.add(start..start + len);
                (start..start + len).for_each(|block| model[block as usize] = true);
            }
            let missing: Vec<u64> = set.missing(64).flatten().collect();
            let expected: Vec<u64> = (0..64).filter(|block| !model[*block as usize]).collect();
            for start in 0..63 {
                for end in start + 1..64 {
                    let all = (start..end).all(|block| model[block as usize]);
                    prop_assert_eq!(set.contains(&(start..end)), all);
                }
            }
            prop_assert_eq!(missing, expected);
            let runs = model.windows(2).filter(|pair| !pair[0] && pair[1]).count() + usize::from(model[0]);
            prop_assert_eq!(set.ranges(), runs);
        }
    }
}
