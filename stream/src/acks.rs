//! Acknowledged completion by zero-length Reads that the stream sends after Writes and Sends of the
//! host. A peer executes a stream in order, so the response means that everything before it was
//! placed.
//!
//! A Write or Send normally completes when TCP has taken it, so an error at the peer can only be
//! reported on the oldest open request. With acknowledged completion it stays open until the peer
//! has placed it, so that the header quoted in a Terminate (STag and TO, or MSN) identifies the
//! request.
//!
//! * A uiw peer acknowledges placement in empty Writes (`placement.rs`). It sends the
//!   acknowledgement as its first message after it has read a batch, and before a Terminate or FIN.
//!   Its receive completions wait until TCP has taken the acknowledgement, so its process may exit,
//!   or be killed, as soon as it has polled a completion. At most one acknowledgement is queued, so
//!   an end that does not read cannot make the queue of its peer grow.
//! * Towards other peers, one zero-length Read covers up to 16 requests as long as more requests
//!   wait to be sent; otherwise the Read follows at once. At most four are outstanding. Requests
//!   sent before the capability exchange is decided wait for either kind of acknowledgement.
//! * A queue pair may be destroyed while answers to its peer's acknowledging Reads are outstanding;
//!   an RNIC answers even then. So the stream stays open for one zero-length Read of its own (the
//!   drain Read, at most one second). Acknowledging Reads are sent before answers, so the peer has
//!   none outstanding once the drain Read is answered. An orderly close sends a drain Read as well,
//!   unless the peer acknowledges placement. FIN follows at once if the peer's FIN has arrived, or
//!   if a Send waits for a receive.

/// Maximum number of requests that one acknowledging Read covers while others wait.
const ACK_EVERY: u32 = 16;
/// Maximum number of outstanding acknowledging Reads.
const ACKS: u32 = 4;

/// Requests of a stream that wait for an acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    pub(crate) on: bool,
    /// Number of requests that were built after the last acknowledging Read.
    uncovered: u32,
    /// Last request that was built.
    last: u32,
    /// Number of outstanding acknowledging Reads.
    outstanding: u32,
    /// Last request that the response to an acknowledging Read has completed.
    completed: Option<u32>,
}

impl Acks {
    /// Records that request `id` was built.
    pub(crate) fn built(&mut self, id: u32) {
        self.uncovered += 1;
        self.last = id;
    }

    /// Returns whether enough requests were built for an acknowledging Read, which is then sent
    /// first.
    pub(crate) fn is_due(&self) -> bool {
        self.uncovered >= ACK_EVERY
    }

    /// Returns whether acknowledging Reads were sent for all built requests.
    pub(crate) fn covers_all(&self) -> bool {
        self.uncovered == 0
    }

    /// Forgets the requests that no acknowledging Read has covered, because they need none.
    pub(crate) fn forget_uncovered(&mut self) {
        self.uncovered = 0;
    }

    /// Begins an acknowledging Read, if one is useful. Returns the last request that it covers.
    pub(crate) fn begin(&mut self) -> Option<u32> {
        if self.uncovered == 0 || self.outstanding == ACKS {
            return None;
        }
        self.uncovered = 0;
        self.outstanding += 1;
        Some(self.last)
    }

    /// Handles the response to the acknowledging Read that covers the requests up to `upto`.
    pub(crate) fn answered(&mut self, upto: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.completed = Some(upto);
    }

    /// Records that all open requests are newer than those that a response has completed.
    pub(crate) fn forget_completed(&mut self) {
        self.completed = None;
    }

    /// Returns whether the response to an acknowledging Read has completed request `id`.
    pub(crate) fn has_completed(&self, id: u32) -> bool {
        // Ids wrap around, and far fewer than half of them are open at a time.
        self.completed.is_some_and(|upto| upto.wrapping_sub(id) <= u32::MAX / 2)
    }

    /// Forgets all requests.
    pub(crate) fn clear(&mut self) {
        *self = Self { on: self.on, ..Self::default() };
    }
}
