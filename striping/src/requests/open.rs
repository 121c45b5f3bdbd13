//! Requests that are not over, by where they are: what the gates of messages and Reads ask for.

use super::{Class, Op};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Unacknowledged bytes are compared in units of so many, so that small requests stay together on one stripe.
const LOAD_UNIT: u64 = 64 << 10;

/// What is under way on one stripe.
#[derive(Debug, Default)]
pub(super) struct OnStripe {
    /// Writes and messages in its stream, whose placement is not proven.
    writers: BTreeSet<u64>,
    /// Requests that its death left unknown.
    pub(super) unknown: BTreeSet<u64>,
    pub(super) count: u32,
    bytes: u64,
}

/// Requests that are not over.
#[derive(Debug)]
pub(super) struct Open {
    /// Not started, or to be repeated, by class.
    waiting: [BTreeSet<u64>; 3],
    /// Reads without their data, wherever they are.
    reads: BTreeSet<u64>,
    /// Writes and messages that a death left unknown.
    unknown_writers: BTreeSet<u64>,
    pub(super) stripes: Vec<OnStripe>,
}

/// The stripes that a gate lets a request onto.
pub(super) enum Way {
    /// None for now.
    Closed,
    Any,
    Only(u8),
}

fn is_before(set: &BTreeSet<u64>, number: u64) -> bool {
    set.first().is_some_and(|first| *first < number)
}

impl Open {
    pub(super) fn new(stripes: u8) -> Self {
        Self {
            waiting: Default::default(),
            reads: BTreeSet::new(),
            unknown_writers: BTreeSet::new(),
            stripes: (0..stripes).map(|_| OnStripe::default()).collect(),
        }
    }

    /// A request waits for its start.
    pub(super) fn wait(&mut self, number: u64, op: Op) {
        self.waiting[op.class() as usize].insert(number);
        if op == Op::Read {
            self.reads.insert(number);
        }
    }

    /// The request of this class that starts next.
    pub(super) fn next(&self, class: Class) -> Option<u64> {
        self.waiting[class as usize].first().copied()
    }

    /// Where request `number` may start (docs/striping.md, "Order").
    pub(super) fn way(&self, number: u64, class: Class) -> Way {
        let writer_waits = is_before(&self.waiting[Class::Write as usize], number)
            || is_before(&self.waiting[Class::Message as usize], number)
            || is_before(&self.unknown_writers, number);
        // The stripes with an earlier Write or message in their streams.
        let mut behind =
            self.stripes.iter().zip(0u8..).filter(|(stripe, _)| is_before(&stripe.writers, number));
        match class {
            Class::Write => Way::Any,
            Class::Message => {
                let on_others = behind.any(|(_, index)| index != 0);
                if writer_waits || on_others || is_before(&self.reads, number) {
                    Way::Closed
                } else {
                    Way::Only(0)
                }
            }
            Class::Read if writer_waits => Way::Closed,
            Class::Read => match (behind.next(), behind.next()) {
                (None, _) => Way::Any,
                (Some((_, index)), None) => Way::Only(index),
                (Some(_), Some(_)) => Way::Closed,
            },
        }
    }

    /// What decides between stripes: the smaller, the better.
    pub(super) fn load(&self, index: u8) -> u64 {
        self.stripes[usize::from(index)].bytes / LOAD_UNIT
    }

    /// A waiting request is put into the stream of a stripe.
    pub(super) fn start(&mut self, number: u64, op: Op, bytes: u64, index: u8) {
        self.waiting[op.class() as usize].remove(&number);
        let stripe = &mut self.stripes[usize::from(index)];
        stripe.count += 1;
        stripe.bytes += bytes;
        if op != Op::Read {
            stripe.writers.insert(number);
        }
    }

    /// A stripe has given a request back.
    pub(super) fn leave(&mut self, number: u64, bytes: u64, index: u8) {
        let stripe = &mut self.stripes[usize::from(index)];
        stripe.count -= 1;
        stripe.bytes -= bytes;
        stripe.writers.remove(&number);
    }

    /// A request that has left its stripe is unknown.
    pub(super) fn set_unknown(&mut self, number: u64, op: Op, index: u8) {
        self.stripes[usize::from(index)].unknown.insert(number);
        if op != Op::Read {
            self.unknown_writers.insert(number);
        }
    }

    /// The requests that the death of a stripe left unknown are decided.
    pub(super) fn take_unknown(&mut self, index: u8) -> BTreeSet<u64> {
        let unknown = core::mem::take(&mut self.stripes[usize::from(index)].unknown);
        for number in &unknown {
            self.unknown_writers.remove(number);
        }
        unknown
    }

    /// A request is over: nothing waits for it.
    pub(super) fn close(&mut self, number: u64, op: Op) {
        if op == Op::Read {
            self.reads.remove(&number);
        }
    }
}
