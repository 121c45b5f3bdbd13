//! Defects that tests of the models switch on, to show that the models detect them. Outside of the
//! models they are compiled out.

/// True in a model. It shortens counts that only bound work.
pub(super) const MODEL: bool = cfg!(any(loom, shuttle));

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(loom, shuttle)), expect(unreachable_pub, reason = "the models' tests name it"))]
pub enum Mutant {
    /// A notification leaves a sleeper asleep.
    NotifyOmitsWake,
    /// The active poller leaves a parked background thread asleep.
    ParkedStaysAsleep,
    /// A post sets `pending` before it is in the list.
    PendingBeforePost,
    /// The holder of the core takes the lists before it clears `pending`.
    TakenBeforePending,
    /// A sleeper reads `notified` before it sets `asleep`.
    NotifiedBeforeAsleep,
    /// A thread reads `pending` and the deadline before it becomes the active poller.
    ReadBeforeClaim,
    /// A round that found work while a program is armed does not set `worked`.
    WorkIsNotNoted,
    /// The holder of the core does not read `pending` after unlocking.
    UnlockOmitsRead,
    /// A token that a post has withheld is not written.
    WithheldIsKept,
}

/// Returns whether `mutant` is switched on.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(super) const fn is_mutant(_: Mutant) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
pub(super) use crate::is_mutant;
