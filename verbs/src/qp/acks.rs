//! Acknowledged completion: zero-length Reads of the engine's own behind the application's Writes and Sends. As a peer executes
//! a stream in order, the answer says that all before it was placed.

/// Requests that one acknowledging Read covers at most while others wait behind it.
const ACK_EVERY: u32 = 16;
/// Acknowledging Reads under way.
const ACKS: u32 = 4;

/// Which requests of a stream wait for an acknowledgement.
#[derive(Default)]
pub(super) struct Acks {
    pub(super) on: bool,
    /// Requests built behind the last acknowledging Read, and the last of them.
    uncovered: u32,
    last: u32,
    /// Acknowledging Reads under way.
    outstanding: u32,
}

impl Acks {
    /// Request `seq` is built.
    pub(super) fn built(&mut self, seq: u32) {
        self.uncovered += 1;
        self.last = seq;
    }

    /// As many requests are built as one Read covers: it goes first.
    pub(super) fn is_due(&self) -> bool {
        self.uncovered >= ACK_EVERY
    }

    /// Whether an acknowledging Read is on its way for all that was built.
    pub(super) fn covers_all(&self) -> bool {
        self.uncovered == 0
    }

    /// Begins an acknowledging Read, if one is of use: the last request it covers.
    pub(super) fn begin(&mut self) -> Option<u32> {
        if self.uncovered == 0 || self.outstanding == ACKS {
            return None;
        }
        self.uncovered = 0;
        self.outstanding += 1;
        Some(self.last)
    }

    /// The answer to an acknowledging Read is here.
    pub(super) fn came(&mut self) {
        self.outstanding -= 1;
    }

    /// What was built is forgotten.
    pub(super) fn forget(&mut self) {
        *self = Self { on: self.on, ..Self::default() };
    }
}
