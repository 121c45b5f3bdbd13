//! Send queue: requests from the call that posts them until their completion.
//!
//! Requests before position `next` were passed to the stream; the others wait. A request is removed
//! from the front when it is done, so completions are in posting order, whatever the order of the
//! responses was.

use crate::cq::Cqe;
use crate::error::Error;
use crate::qp::ring::Ring;
use crate::wc::{Wc, WcOpcode, WcStatus, WireReason};
use crate::wr::{SendFlags, SendOp, SendWr, Sge, Sges, store};
use uiw_ddp::STag;

/// Treatment of posted requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqMode {
    /// Posting is an error (RESET, INIT, RTR).
    Closed,
    /// RTS, before the connection is established: requests wait for it.
    Waiting,
    /// RTS or SQD. In SQD, requests from `stop` on wait.
    Running,
    /// ERR: requests are accepted and flushed at once.
    Flushing,
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WqeState {
    Posted,
    /// All bytes of the message were added to the stream's transmit queue. For a Read or an atomic,
    /// these are the bytes of the request message.
    Built,
    Done,
}

/// Entry of the ring. It keeps the allocations of its vectors when it is reused, so that the data
/// path does not allocate.
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) sges: Sges,
    pub(crate) inline: Vec<u8>,
    /// Length of the message in bytes.
    pub(crate) len: u32,
    /// MSN of the request's untagged message, once the stream has begun the message.
    msn: u32,
    pub(crate) state: WqeState,
    pub(crate) status: WcStatus,
}

impl Default for Wqe {
    fn default() -> Self {
        Self {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::empty(),
            sges: Sges::new(),
            inline: Vec::new(),
            len: 0,
            msn: 0,
            state: WqeState::Posted,
            status: WcStatus::Success,
        }
    }
}

impl Wqe {
    pub(crate) fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::Write,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Send
            | SendOp::SendInvalidate { .. }
            | SendOp::SendImm { .. }
            | SendOp::Datagram { .. } => WcOpcode::Send,
            SendOp::Read { .. } => WcOpcode::Read,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::CmpSwap { .. } => WcOpcode::CmpSwap,
            SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
            SendOp::Bind(_) => WcOpcode::Bind,
            SendOp::FastRegister(_) => WcOpcode::FastRegister,
        }
    }

    /// Returns the completion for queue pair `qp_num`. `reason` is used only if the request has
    /// failed.
    fn completion(&self, qp_num: u32, reason: Option<WireReason>) -> Cqe {
        Cqe {
            wc: Wc {
                wr_id: self.wr_id,
                status: self.status,
                opcode: self.opcode(),
                byte_len: self.len,
                imm: None,
                invalidated: None,
                qp_num,
                datagram_from: None,
                reason: if self.status == WcStatus::Success { None } else { reason },
                timestamp_ns: 0,
            },
            solicited: false,
        }
    }
}

/// Limits of a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqLimits {
    pub(crate) depth: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) signal_all: bool,
}

impl SqLimits {
    /// Returns whether a successful request produces a completion.
    #[inline]
    pub(crate) fn reports(&self, wqe: &Wqe) -> bool {
        self.signal_all || wqe.flags.contains(SendFlags::SIGNALED)
    }
}

pub(crate) struct SendQueue {
    ring: Ring<Wqe>,
    limits: SqLimits,
    /// Sequence number of the first request in the ring.
    front: u32,
    /// Index of the first request that was not passed to the stream.
    next: usize,
    pub(crate) mode: SqMode,
    /// Maximum number of Reads and atomics that wait for responses. With 0 they are refused.
    pub(crate) ord: u16,
    /// Sequence number of the first request that must not be passed to the stream (SQD).
    stop: Option<u32>,
    qp_num: u32,
    /// One more than the number that this queue's last completion has in its completion queue. The
    /// application has polled this completion once that many completions have left the completion
    /// queue.
    reported: u64,
    /// True if the doorbell was rung, and the stream has not read the queue since.
    pub(crate) rung: bool,
    /// Approximate number of bytes posted since the stream last read the queue, or since a post was
    /// last served at once.
    pub(crate) unread_bytes: u64,
    /// True if the last post was served at once.
    served_at_once: bool,
    /// Number of posts in a row that were served at once, and the value of `reported` meanwhile.
    burst: u32,
    burst_reported: u64,
}

/// Number of posts in a row that are served at once. Further ones are coalesced, because each would
/// cost a system call.
const MAX_BURST: u32 = 2;
/// Time in nanoseconds between two posts after which the second one does not continue a burst.
const BURST_GAP: u64 = 2_000;

impl SendQueue {
    pub(crate) fn new(limits: SqLimits, qp_num: u32, ord: u16) -> Self {
        Self {
            ring: Ring::new(),
            limits,
            front: 0,
            next: 0,
            mode: SqMode::Closed,
            ord,
            stop: None,
            qp_num,
            reported: 0,
            rung: false,
            unread_bytes: 0,
            served_at_once: false,
            burst: 0,
            burst_reported: 0,
        }
    }

    /// Returns whether all requests are done and the application has polled their completions.
    /// `taken` is the number of completions that have left the completion queue.
    fn all_seen(&self, taken: u64) -> bool {
        self.ring.len() == 0 && taken >= self.reported
    }

    /// Returns whether a post is served at once, not together with later ones. This is so if all
    /// earlier requests are done, because then the application may wait for this one. But of posts in
    /// a row that report no completions, only the first [`MAX_BURST`] are served at once.
    ///
    /// `taken` is the number of completions that have left the completion queue, and `idle` returns
    /// the nanoseconds since the last post that ended a burst was served.
    #[inline(always)]
    pub(crate) fn is_served_at_once(&mut self, taken: u64, idle: impl FnOnce() -> u64) -> bool {
        self.served_at_once = false;
        if !self.all_seen(taken) {
            return false;
        }
        if self.burst_reported != self.reported {
            self.burst_reported = self.reported;
            self.burst = 0;
        } else if self.ends_burst() {
            if idle() < BURST_GAP {
                return false;
            }
            self.burst = 0;
        }
        self.burst += 1;
        self.served_at_once = true;
        true
    }

    /// Returns whether the queue has only one request, and it was posted when all earlier ones were
    /// done, so that the program may wait for it.
    pub(crate) fn has_only_awaited(&self) -> bool {
        self.served_at_once && self.ring.len() == 1
    }

    /// Returns whether [`MAX_BURST`] posts in a row were served at once.
    pub(crate) fn ends_burst(&self) -> bool {
        self.burst == MAX_BURST
    }

    pub(crate) fn len(&self) -> u32 {
        // The depth, which limits the length, is a `u32`.
        u32::try_from(self.ring.len()).unwrap_or(u32::MAX)
    }

    /// Checks a request and appends it. `inline` copies inline data out of the caller's memory.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        wr: &SendWr<'_>,
        inline: impl FnOnce(&[Sge], &mut Vec<u8>),
    ) -> Result<(), Error> {
        if self.ring.len() >= self.limits.depth as usize {
            return Err(Error::QueueFull { queue: "send", depth: self.limits.depth });
        }
        let len = self.check(wr)?;
        let wqe = self.ring.push();
        wqe.wr_id = wr.wr_id;
        wqe.op = wr.op;
        wqe.flags = wr.flags;
        wqe.len = len;
        wqe.msn = 0;
        wqe.state = WqeState::Posted;
        wqe.status = WcStatus::Success;
        wqe.inline.clear();
        if wr.flags.contains(SendFlags::INLINE) {
            wqe.sges.clear();
            inline(wr.sges, &mut wqe.inline);
        } else {
            store(&mut wqe.sges, wr.sges);
        }
        self.unread_bytes += u64::from(len) + 32;
        Ok(())
    }

    /// Removes the last `count` requests, which were posted while the queue was locked by the
    /// caller.
    #[cold]
    pub(crate) fn unpost(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(wqe) = self.ring.pop_last() {
                self.unread_bytes -= u64::from(wqe.len) + 32;
            }
        }
    }

    #[inline(always)]
    fn check(&self, wr: &SendWr<'_>) -> Result<u32, Error> {
        if wr.sges.len() > self.limits.max_sge as usize {
            return Err(Error::TooManySges { given: wr.sges.len(), max: self.limits.max_sge });
        }
        let len: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        // The MO field, which counts the bytes of a message, has 32 bits (RFC 5041 section 4.3).
        let len32 = u32::try_from(len).map_err(|_| Error::MessageTooLong { given: len })?;
        if wr.flags.contains(SendFlags::INLINE) {
            if wr.op.writes_locally() || wr.op.is_local() {
                return Err(Error::BadFlags { what: "inline data goes with Write and Send only" });
            }
            if len > u64::from(self.limits.max_inline) {
                return Err(Error::InlineTooLong { given: len, max: self.limits.max_inline });
            }
        }
        if matches!(
            wr.op,
            SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } | SendOp::AtomicWrite { .. }
        ) && len != 8
        {
            return Err(Error::AtomicLength { given: len });
        }
        if let SendOp::AtomicWrite { remote } = wr.op
            && !remote.addr.is_multiple_of(8)
        {
            return Err(Error::Misaligned { addr: remote.addr });
        }
        Ok(len32)
    }

    /// Records that the stream reads the queue, so that the next post rings the doorbell.
    pub(crate) fn note_read(&mut self) {
        self.rung = false;
        self.unread_bytes = 0;
    }

    /// Returns the next request to pass to the stream, with its sequence number.
    pub(crate) fn next_wqe(&self) -> Option<(u32, &Wqe)> {
        let wqe = self.ring.get(self.next)?;
        let seq = self.seq_at(self.next);
        (self.stop != Some(seq)).then_some((seq, wqe))
    }

    /// Returns the sequence number of the request at this index of the ring.
    fn seq_at(&self, at: usize) -> u32 {
        self.front.wrapping_add(u32::try_from(at).unwrap_or(u32::MAX))
    }

    pub(crate) fn has_next(&self) -> bool {
        self.next_wqe().is_some()
    }

    /// Stops at the end of the queue: requests posted from now on wait. An orderly close sends
    /// those posted before.
    pub(crate) fn stop_at_end(&mut self) {
        let end = self.seq_at(self.ring.len());
        self.stop.get_or_insert(end);
    }

    /// Makes the next request and all later ones wait. If `begun` is true, the next request is
    /// partly sent and is still completed.
    pub(crate) fn stop_after(&mut self, begun: bool) {
        self.stop = Some(self.seq_at(self.next).wrapping_add(u32::from(begun)));
    }

    pub(crate) fn resume(&mut self) {
        self.stop = None;
    }

    /// Marks the next request as passed to the stream. `msn` is the MSN of its last message.
    #[inline]
    pub(crate) fn built(&mut self, msn: u32) {
        if let Some(wqe) = self.ring.get_mut(self.next) {
            wqe.state = WqeState::Built;
            wqe.msn = msn;
            self.next += 1;
        }
    }

    /// Returns the requests that are not built yet, as far as they are contiguous in memory, with
    /// the sequence number of the first one. [`SendQueue::advance`] marks them as passed to the
    /// stream.
    pub(crate) fn unbuilt(&mut self) -> (u32, &mut [Wqe]) {
        let first = self.seq_at(self.next);
        let wqes = self.ring.run(self.next);
        let most = self.stop.map_or(wqes.len(), |stop| stop.wrapping_sub(first) as usize);
        let len = wqes.len().min(most);
        (first, &mut wqes[..len])
    }

    /// Records that the next `count` requests, whose state is [`WqeState::Built`], were passed to
    /// the stream.
    pub(crate) fn advance(&mut self, count: usize) {
        self.next += count;
    }

    /// Reverts the last `count` requests that were built, so that they are built again.
    pub(crate) fn unbuild(&mut self, count: usize) {
        for _ in 0..count {
            self.next = self.next.saturating_sub(1);
            if let Some(wqe) = self.ring.get_mut(self.next) {
                wqe.state = WqeState::Posted;
            }
        }
    }

    /// Returns request `seq`, if it is still in the ring.
    pub(crate) fn get(&self, seq: u32) -> Option<&Wqe> {
        self.ring.get(seq.wrapping_sub(self.front) as usize)
    }

    /// Returns the elements that [`SendQueue::begun`] has taken, so that a later request reuses
    /// their allocation.
    pub(crate) fn return_sges(&mut self, seq: u32, sges: Sges) {
        if let Some(wqe) = self.get_mut(seq) {
            wqe.sges = sges;
        }
    }

    fn get_mut(&mut self, seq: u32) -> Option<&mut Wqe> {
        self.ring.get_mut(seq.wrapping_sub(self.front) as usize)
    }

    /// Sets the MSN of the untagged message of request `seq`. For a Read or an atomic, takes out
    /// the elements in which its response is placed.
    pub(crate) fn begun(&mut self, seq: u32, msn: u32) -> Option<Sges> {
        let wqe = self.get_mut(seq)?;
        wqe.msn = msn;
        wqe.op.needs_ord().then(|| std::mem::take(&mut wqe.sges))
    }

    /// Marks all Writes and Sends up to request `upto` as done, because the peer has placed them.
    pub(crate) fn acknowledge(&mut self, upto: u32) {
        let count = upto.wrapping_sub(self.front).wrapping_add(1) as usize;
        if count > self.ring.len() {
            // The request has left the ring already.
            return;
        }
        for at in 0..count {
            let Some(wqe) = self.ring.get_mut(at) else { return };
            if wqe.state == WqeState::Built && !wqe.op.needs_ord() {
                wqe.state = WqeState::Done;
            }
        }
    }

    /// Finds the open request whose message has this MSN on queue 0.
    pub(crate) fn find_send(&self, msn: u32) -> Option<u32> {
        self.find(|wqe| match wqe.op {
            SendOp::Send
            | SendOp::SendInvalidate { .. }
            | SendOp::SendImm { .. }
            | SendOp::WriteImm { .. } => wqe.msn == msn,
            _ => false,
        })
    }

    /// Finds the oldest open request that writes to address `to` of the peer's `stag`.
    pub(crate) fn find_write(&self, stag: STag, to: u64) -> Option<u32> {
        self.find(|wqe| match wqe.op {
            SendOp::Write { remote }
            | SendOp::AtomicWrite { remote }
            | SendOp::WriteImm { remote, .. } => {
                remote.rkey == stag && to.wrapping_sub(remote.addr) < u64::from(wqe.len.max(1))
            }
            _ => false,
        })
    }

    /// Finds the first open request among those passed to the stream and the one being built.
    fn find(&self, which: impl Fn(&Wqe) -> bool) -> Option<u32> {
        let begun = self.ring.iter().take(self.next + 1);
        let at = begun.enumerate().find(|(_, wqe)| wqe.state != WqeState::Done && which(wqe))?.0;
        Some(self.seq_at(at))
    }

    /// Marks request `seq` as done.
    pub(crate) fn done(&mut self, seq: u32, status: WcStatus) {
        if let Some(wqe) = self.get_mut(seq) {
            wqe.state = WqeState::Done;
            wqe.status = status;
        }
    }

    /// Injects a fault: the first successful request at the front for which `fault` returns a
    /// status gets this status, and the done requests after it are flushed. Returns whether there
    /// was one.
    #[cold]
    pub(crate) fn inject(&mut self, fault: impl Fn(WcOpcode) -> Option<WcStatus>) -> bool {
        let mut injected = false;
        for at in 0..self.ring.len() {
            let Some(wqe) = self.ring.get_mut(at).filter(|wqe| wqe.state == WqeState::Done) else {
                break;
            };
            if injected {
                wqe.status = WcStatus::Flushed;
            } else if wqe.status == WcStatus::Success
                && let Some(status) = fault(wqe.opcode())
            {
                wqe.status = status;
                injected = true;
            }
        }
        injected
    }

    /// Marks all requests that were built, or all requests if `all` is set, as done with success.
    pub(crate) fn complete_built(&mut self, all: bool) {
        if all {
            self.next = self.ring.len();
        }
        for at in 0..self.next {
            let Some(wqe) = self.ring.get_mut(at) else { break };
            // Requests that are done already keep their status; the others still have the initial
            // status, which is success.
            wqe.state = WqeState::Done;
        }
    }

    /// Removes done requests from the front. `complete` is called with their completions, in order,
    /// and returns the number of each one in the completion queue.
    pub(crate) fn retire(
        &mut self,
        reason: Option<WireReason>,
        mut complete: impl FnMut(Cqe) -> Option<u64>,
    ) {
        while self.ring.get(0).is_some_and(|wqe| wqe.state == WqeState::Done) {
            self.retire_front(reason, &mut complete);
        }
    }

    /// Removes `count` successful requests from the front, starting with request `first`.
    ///
    /// `reported` contains the sequence numbers of those that produce a completion
    /// ([`SqLimits::reports`]), in order; the other requests are not read again. `complete` is as
    /// for [`SendQueue::retire`]. Does nothing if `first` is not at the front, because the queue
    /// was flushed or reset in the meantime.
    pub(crate) fn retire_sent(
        &mut self,
        first: u32,
        count: usize,
        reported: &[u32],
        mut complete: impl FnMut(Cqe) -> Option<u64>,
    ) {
        if first != self.front {
            return;
        }
        for id in reported {
            let at = id.wrapping_sub(first) as usize;
            let Some(wqe) = self.ring.get(at).filter(|_| at < count) else { break };
            debug_assert_eq!(wqe.status, WcStatus::Success);
            let number = complete(wqe.completion(self.qp_num, None));
            self.reported = number.map_or(self.reported, |number| number + 1);
        }
        let count = self.ring.pop_many(count);
        self.front = self.front.wrapping_add(count as u32);
        self.next = self.next.saturating_sub(count);
    }

    pub(crate) fn limits(&self) -> SqLimits {
        self.limits
    }

    fn retire_front(
        &mut self,
        reason: Option<WireReason>,
        complete: &mut impl FnMut(Cqe) -> Option<u64>,
    ) {
        let Some(wqe) = self.ring.pop() else { return };
        self.front = self.front.wrapping_add(1);
        self.next = self.next.saturating_sub(1);
        if self.limits.reports(wqe) || wqe.status != WcStatus::Success {
            let number = complete(wqe.completion(self.qp_num, reason));
            self.reported = number.map_or(self.reported, |number| number + 1);
        }
    }

    /// Returns the sequence number of the oldest request that is not done.
    pub(crate) fn oldest_open(&self) -> Option<u32> {
        let at = self.ring.iter().position(|wqe| wqe.state != WqeState::Done)?;
        Some(self.seq_at(at))
    }

    /// Flushes all requests that are not done, and removes all requests. Requests posted later are
    /// flushed as well.
    pub(crate) fn flush(
        &mut self,
        reason: Option<WireReason>,
        mut complete: impl FnMut(Cqe) -> Option<u64>,
    ) {
        self.mode = SqMode::Flushing;
        let mut failed = false;
        for at in 0..self.ring.len() {
            let Some(wqe) = self.ring.get_mut(at) else { break };
            // A request after one that has failed must not succeed, for example a Write that was
            // sent after a Read that has failed. Its success was not reported yet, so it is
            // flushed. A request that has already failed, such as the one that a Terminate names,
            // keeps its status wherever it is in the queue.
            let open = wqe.state != WqeState::Done;
            if open || failed && wqe.status == WcStatus::Success {
                wqe.state = WqeState::Done;
                wqe.status = WcStatus::Flushed;
            }
            failed |= wqe.status != WcStatus::Success;
        }
        self.next = self.ring.len();
        self.retire(reason, &mut complete);
    }

    /// Removes all requests without completions, for the transition to RESET.
    pub(crate) fn reset(&mut self) {
        self.front = self.front.wrapping_add(self.len());
        self.ring.clear();
        self.next = 0;
        self.stop = None;
        self.mode = SqMode::Closed;
        self.reported = 0;
        self.rung = false;
        self.unread_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(depth: u32) -> SendQueue {
        let limits = SqLimits { depth, max_sge: 2, max_inline: 16, signal_all: false };
        SendQueue::new(limits, 7, 1)
    }

    fn send(wr_id: u64, flags: SendFlags) -> SendWr<'static> {
        SendWr { wr_id, op: SendOp::Send, sges: &[], flags }
    }

    fn completions(queue: &mut SendQueue) -> Vec<(u64, WcStatus)> {
        let mut out = Vec::new();
        queue.retire(None, |cqe| {
            out.push((cqe.wc.wr_id, cqe.wc.status));
            None
        });
        out
    }

    #[test]
    fn completions_in_posting_order() {
        let mut queue = queue(4);
        for id in 0..3 {
            queue.post(&send(id, SendFlags::SIGNALED), |_, _| ()).unwrap();
            queue.built(0);
        }
        queue.done(1, WcStatus::Success);
        queue.done(2, WcStatus::Success);
        assert!(completions(&mut queue).is_empty());
        queue.done(0, WcStatus::Success);
        assert_eq!(completions(&mut queue).iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn post_beyond_limits_refused() {
        let mut queue = queue(1);
        let sges = [Sge { addr: 0, length: 9, lkey: STag(1) }; 3];
        let wr = |n: usize, flags| SendWr { wr_id: 0, op: SendOp::Send, sges: &sges[..n], flags };
        assert!(matches!(
            queue.post(&wr(3, SendFlags::empty()), |_, _| ()),
            Err(Error::TooManySges { given: 3, max: 2 })
        ));
        assert!(matches!(
            queue.post(&wr(2, SendFlags::INLINE), |_, _| ()),
            Err(Error::InlineTooLong { given: 18, max: 16 })
        ));
        queue.post(&wr(1, SendFlags::INLINE), |_, out| out.extend_from_slice(&[1; 9])).unwrap();
        assert!(matches!(
            queue.post(&wr(0, SendFlags::empty()), |_, _| ()),
            Err(Error::QueueFull { depth: 1, .. })
        ));
    }

    #[test]
    fn unsignaled_requests_retire_silently() {
        let mut queue = queue(4);
        for id in 0..3 {
            queue.post(&send(id, SendFlags::empty()), |_, _| ()).unwrap();
            queue.built(0);
        }
        queue.done(0, WcStatus::Success);
        assert!(completions(&mut queue).is_empty());
        queue.done(1, WcStatus::RemoteAccess);
        let mut out = completions(&mut queue);
        queue.flush(None, |cqe| {
            out.push((cqe.wc.wr_id, cqe.wc.status));
            None
        });
        assert_eq!(out, [(1, WcStatus::RemoteAccess), (2, WcStatus::Flushed)]);
    }

    #[test]
    fn sent_requests_retire_from_named_one() {
        let mut queue = queue(8);
        for id in 0..4 {
            let flags = if id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
            queue.post(&send(id, flags), |_, _| ()).unwrap();
            queue.built(0);
        }
        let mut out = Vec::new();
        let mut complete = |cqe: Cqe| {
            out.push((cqe.wc.wr_id, cqe.wc.status));
            Some(cqe.wc.wr_id)
        };
        queue.retire_sent(1, 2, &[2], &mut complete);
        queue.retire_sent(0, 3, &[0, 2, 3], &mut complete);
        assert_eq!(out, [(0, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!((queue.len(), queue.seq_at(queue.next)), (1, 4));
    }

    #[test]
    fn contiguous_requests_taken_until_stop() {
        let mut queue = queue(8);
        queue.front = u32::MAX - 2;
        let post = |queue: &mut SendQueue, id| {
            queue.post(&send(id, SendFlags::SIGNALED), |_, _| ()).unwrap();
        };
        let unbuilt = |queue: &mut SendQueue| {
            let (first, wqes) = queue.unbuilt();
            (first, wqes.iter().map(|wqe| wqe.wr_id).collect::<Vec<_>>())
        };
        (0..6).for_each(|id| post(&mut queue, id));
        assert_eq!(unbuilt(&mut queue), (u32::MAX - 2, (0..6).collect()));
        queue.advance(5);
        queue.retire_sent(u32::MAX - 2, 5, &[u32::MAX - 2, u32::MAX, 1], |cqe| Some(cqe.wc.wr_id));
        assert_eq!((queue.len(), queue.reported), (1, 5));
        // The ring has eight entries, so the later requests wrap around.
        (6..12).for_each(|id| post(&mut queue, id));
        assert_eq!(unbuilt(&mut queue), (2, (5..8).collect()));
        queue.advance(3);
        assert_eq!(unbuilt(&mut queue), (5, (8..12).collect()));
        queue.stop_after(true);
        assert_eq!(unbuilt(&mut queue), (5, vec![8]), "SQD");
        queue.advance(1);
        assert_eq!(unbuilt(&mut queue), (6, vec![]));
        queue.unbuild(1);
        assert_eq!(unbuilt(&mut queue), (5, vec![8]));
        queue.resume();
        assert_eq!(unbuilt(&mut queue), (5, (8..12).collect()));
    }

    #[test]
    fn nothing_succeeds_behind_a_failure() {
        let mut queue = queue(4);
        for id in 0..4 {
            queue.post(&send(id, SendFlags::SIGNALED), |_, _| ()).unwrap();
            queue.built(0);
        }
        queue.done(0, WcStatus::Success);
        queue.done(1, WcStatus::RemoteAccess);
        queue.done(3, WcStatus::Success);
        let mut out = Vec::new();
        queue.flush(None, |cqe| {
            out.push(cqe.wc.status);
            None
        });
        let flushed = WcStatus::Flushed;
        assert_eq!(out, [WcStatus::Success, WcStatus::RemoteAccess, flushed, flushed]);
    }

    #[test]
    fn unseen_completions_tracked() {
        let mut queue = queue(4);
        assert!(queue.all_seen(0));
        queue.post(&send(1, SendFlags::SIGNALED), |_, _| ()).unwrap();
        queue.built(0);
        assert!(!queue.all_seen(9), "not over");
        queue.done(0, WcStatus::Success);
        // Eight completions of other queue pairs precede it.
        queue.retire(None, |_| Some(8));
        assert!(!queue.all_seen(8), "completed, but not taken by the application");
        assert!(queue.all_seen(9));
        queue.post(&send(2, SendFlags::empty()), |_, _| ()).unwrap();
        queue.built(0);
        queue.done(1, WcStatus::Success);
        queue.retire(None, |_| unreachable!("it is not signaled"));
        assert!(
            !queue.all_seen(8) && queue.all_seen(9),
            "an unsignaled request that retired after all were seen"
        );
    }

    #[test]
    fn posts_without_completions_coalesced() {
        let mut queue = queue(4);
        let mut reported = 0;
        let mut post = |flags, idle: Option<u64>| {
            let at_once =
                queue.is_served_at_once(u64::MAX, || idle.expect("not at the end of a burst"));
            queue.post(&send(1, flags), |_, _| ()).unwrap();
            queue.built(0);
            queue.done(queue.front, WcStatus::Success);
            queue.retire(None, |_| {
                reported += 1;
                Some(reported)
            });
            at_once
        };
        let unsignaled = SendFlags::empty();
        for _ in 0..MAX_BURST {
            assert!(post(unsignaled, None));
        }
        assert!(!post(unsignaled, Some(BURST_GAP - 1)));
        assert!(post(unsignaled, Some(BURST_GAP)), "a new burst");
        for _ in 0..3 * MAX_BURST {
            assert!(post(SendFlags::SIGNALED, None), "the application has polled each completion");
        }
    }
}
