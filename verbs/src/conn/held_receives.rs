//! Receive completions that wait until TCP has taken the acknowledgement of their messages: a
//! program that exits as soon as it has polled a completion must not take the acknowledgement with
//! it.

use super::Conn;
use crate::cq::Cqe;
use crate::driver::Services;
use crate::notify::Wakes;
use crate::qp::QpInner;
use std::collections::VecDeque;
use std::time::Duration;
use uiw_stream::{LocalError, Time};

/// Maximum time for which completions are held back while TCP does not accept the acknowledgement
/// because the peer does not read.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Capacity that an empty queue keeps.
const KEPT: usize = 256;

impl Conn {
    /// Reports the receives whose acknowledgement TCP has accepted.
    #[inline]
    pub(super) fn report_acknowledged_receives(&mut self, services: &mut Services) {
        if !self.state.held.is_empty() {
            self.report_held_acknowledged(services);
        }
    }

    fn report_held_acknowledged(&mut self, services: &mut Services) {
        // A stalled stream does not read until the program posts a receive, for which it may need
        // these completions. If the peer is in the same state, neither end reads, and neither
        // acknowledgement leaves. After a time-out, receives are reported at once until the
        // acknowledgement was sent. So a peer that does not read delays only the receives of one
        // time-out, which may be those of a shared receive queue.
        self.ack_overdue &= self.stream.owes_acknowledgement();
        if self.stream.is_stalled() || self.lost_sending.is_some() || self.ack_overdue {
            return self.report_all_receives(services);
        }
        let count = self.stream.take_acknowledged() as usize;
        self.report_held(count, services);
        self.held_until = match self.state.held.is_empty() {
            true => Time::NEVER,
            // The peer reads.
            false if count > 0 => services.now.after(LONGEST_WAIT),
            false => self.held_until.min(services.now.after(LONGEST_WAIT)),
        };
    }

    /// Handles the time-out: TCP has not accepted the acknowledgement in time.
    pub(super) fn on_overdue_ack(&mut self, services: &mut Services) {
        self.ack_overdue = true;
        self.report_all_receives(services);
    }

    /// Reports all receives, acknowledged or not.
    pub(super) fn report_all_receives(&mut self, services: &mut Services) {
        self.stream.forget_unacknowledged();
        self.held_until = Time::NEVER;
        self.report_held(self.state.held.len(), services);
    }

    fn report_held(&mut self, count: usize, services: &mut Services) {
        let Some(qp) = &self.qp else { return self.state.held.clear() };
        if !push(&mut self.state.held, count, qp, &mut services.wakes) {
            self.fail(LocalError::CqOverflow, services);
        }
        if self.state.held.is_empty() && self.state.held.capacity() > KEPT {
            // A burst of one peer does not keep memory.
            self.state.held = VecDeque::new();
        }
    }
}

/// Adds the first `count` completions to the receive completion queue. Returns false if it
/// overflows. Not inlined, because most connections do not need it.
#[inline(never)]
pub(super) fn push(
    held: &mut VecDeque<Cqe>,
    count: usize,
    qp: &QpInner,
    wakes: &mut Wakes,
) -> bool {
    let count = count.min(held.len());
    qp.recv_cq.push_all(held.drain(..count), wakes) == count
}
