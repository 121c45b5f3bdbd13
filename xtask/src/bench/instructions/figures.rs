//! The committed figures, and the gates.

/// One line a case: its name, the commit's own figures, those of 02b5a5a.
const COMMITTED: &str = include_str!("figures.tsv");
/// The first line of the file.
pub(super) const HEAD: &str =
    "case\tinstructions\tlocked\tsystem calls\t02b5a5a: instructions\tlocked\tsystem calls";

/// Instructions are more when they are so many times the committed ones.
const MORE: f64 = 1.01;
/// Instructions are more when they are so many times those of 02b5a5a: the budget of all later changes together.
const MORE_THAN_BASE: f64 = 1.03;
/// Locked instructions and system calls a round beyond a committed figure from which on there is one more; a round is a round trip, 128
/// requests, or a large message. Below is rounding, and the kernel's TCP, whose buffers grow by the clock and cut large messages.
const ONE_MORE: f64 = 0.5;
/// Tolerance, as a part of the committed figure, in cases that go through the C libraries: their background thread takes the device's lock
/// at times, and the counted thread tries again. Measured: up to 3 of 1,370 locked instructions; none in ping-pongs.
const BACKGROUND: f64 = 0.003;

/// What a round costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    pub(super) instructions: f64,
    pub(super) locked: f64,
    pub(super) system_calls: f64,
}

impl Cost {
    /// The middle one of each figure.
    pub(super) fn median(mut of: [Self; 3]) -> Self {
        let mut middle = |figure: fn(&Self) -> f64| {
            of.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
            figure(&of[1])
        };
        Self {
            instructions: middle(|cost| cost.instructions),
            locked: middle(|cost| cost.locked),
            system_calls: middle(|cost| cost.system_calls),
        }
    }

    /// The lower of each.
    pub(super) fn least(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.min(other.instructions),
            locked: self.locked.min(other.locked),
            system_calls: self.system_calls.min(other.system_calls),
        }
    }

    /// Three columns.
    fn columns(&self) -> String {
        format!("{:.0}\t{:.1}\t{:.1}", self.instructions, self.locked, self.system_calls)
    }
}

/// The committed figures of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Committed {
    /// This commit's.
    pub(super) own: Cost,
    /// Those of 02b5a5a, which stay.
    pub(super) base: Cost,
}

impl Committed {
    pub(super) fn of(case: &str) -> Option<Self> {
        COMMITTED.lines().find_map(|line| Self::read(line.strip_prefix(case)?.strip_prefix('\t')?))
    }

    fn read(columns: &str) -> Option<Self> {
        let numbers: Vec<f64> = columns.split('\t').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [instructions, locked, system_calls, base @ ..] = numbers.as_slice() else { return None };
        let own = Cost { instructions: *instructions, locked: *locked, system_calls: *system_calls };
        let [instructions, locked, system_calls] = *base else { return None };
        Some(Self { own, base: Cost { instructions, locked, system_calls } })
    }

    /// Describes each gate that `now` exceeds. `with_background`: another thread ran beside the counted one.
    pub(super) fn exceeded(&self, now: &Cost, with_background: bool) -> Vec<String> {
        let passed = |before: f64| ONE_MORE + if with_background { before * BACKGROUND } else { 0.0 };
        let is_one_more = |now: f64, before: f64| now - before > passed(before);
        let mut all = Vec::new();
        let mut check = |is_more: bool, what: &str| {
            if is_more {
                all.push(what.to_owned());
            }
        };
        check(now.instructions > self.own.instructions * MORE, "1 % more instructions than committed");
        check(
            now.instructions > self.base.instructions * MORE_THAN_BASE,
            "3 % more instructions than 02b5a5a",
        );
        for (before, whose) in [(&self.own, "committed"), (&self.base, "02b5a5a")] {
            check(is_one_more(now.locked, before.locked), &format!("more locked instructions than {whose}"));
            check(
                is_one_more(now.system_calls, before.system_calls),
                &format!("more system calls than {whose}"),
            );
        }
        all
    }
}

/// The line of the file for a case.
pub(super) fn line(case: &str, now: &Cost) -> String {
    // The figures of 02b5a5a stay; a new case begins with its own.
    let base = Committed::of(case).map_or(*now, |committed| committed.base);
    format!("{case}\t{}\t{}", now.columns(), base.columns())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Cost = Cost { instructions: 1000.0, locked: 70.0, system_calls: 6.0 };

    fn exceeded(now: Cost) -> usize {
        Committed { own: COST, base: COST }.exceeded(&now, false).len()
    }

    #[test]
    fn each_gate_is_kept() {
        assert_eq!(exceeded(COST), 0);
        assert_eq!(exceeded(Cost { instructions: 1010.0, locked: 70.4, system_calls: 6.4 }), 0);
        assert_eq!(exceeded(Cost { instructions: 1011.0, ..COST }), 1);
        assert_eq!(exceeded(Cost { instructions: 1031.0, ..COST }), 2);
        assert_eq!(exceeded(Cost { locked: 71.0, ..COST }), 2);
        assert_eq!(exceeded(Cost { system_calls: 7.0, ..COST }), 2);
        // Steps below each commit's gate add up to more than the gate of 02b5a5a.
        let crept = Committed { own: Cost { instructions: 1031.0, locked: 71.0, ..COST }, base: COST };
        assert_eq!(crept.exceeded(&crept.own, false).len(), 2);
    }

    #[test]
    fn a_background_thread_adds_a_tolerance() {
        let many = Cost { locked: 1000.0, ..COST };
        let committed = Committed { own: many, base: many };
        let now = Cost { locked: 1003.0, ..many };
        assert!(committed.exceeded(&now, true).is_empty());
        assert!(!committed.exceeded(&now, false).is_empty());
        assert!(!committed.exceeded(&Cost { locked: 1004.0, ..many }, true).is_empty());
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        assert_eq!(line("no such case", &COST), "no such case\t1000\t70.0\t6.0\t1000\t70.0\t6.0");
        assert_eq!(
            Committed::read("1000\t70.0\t6.0\t1000\t70.0\t6.0"),
            Some(Committed { own: COST, base: COST })
        );
        assert_eq!(Committed::read("1000\t70.0\t6.0"), None);
    }

    #[test]
    fn the_middle_of_each_figure_counts() {
        let cost = |instructions, locked| Cost { instructions, locked, ..COST };
        let middle = Cost::median([cost(3.0, 1.0), cost(1.0, 3.0), cost(2.0, 2.0)]);
        assert_eq!(middle, cost(2.0, 2.0));
    }

    #[test]
    fn every_case_has_committed_figures() {
        for case in super::super::CASES {
            assert!(Committed::of(case.name).is_some(), "{}", case.name);
        }
    }
}
