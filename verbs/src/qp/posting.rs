//! Posts requests and receives, and has the shard serve them.

use crate::driver::Shard;
use crate::error::{Error, PostError, Result};
use crate::faults::Call;
use crate::notify::Wakes;
use crate::qp::send_queue::{SendQueue, SqMode};
use crate::qp::{QpInner, RecvSource};
use crate::wr::{RecvWr, SendOp, SendWr, Sge};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uiw_llp::Token;

/// Number of posted bytes that are worth a system call of their own.
const BATCH: u64 = 512 << 10;

/// Second step of a post, after the requests were added to the queue. It may run wakers, so no lock
/// may be held.
#[must_use = "without it the requests are not served"]
#[derive(Debug)]
pub struct Doorbell {
    wakes: Wakes,
    token: Option<Token>,
    /// True if the posted requests are served now, without waiting for later ones.
    is_immediate: bool,
    /// True if the post ends a burst, so that the time when it was served is recorded.
    ends_burst: bool,
}

impl Doorbell {
    #[inline]
    pub(crate) fn ring(self, qp: &QpInner) {
        if self.token.is_some() || self.is_immediate || !self.wakes.is_empty() {
            self.serve(qp);
        }
    }

    #[inline(never)]
    fn serve(self, qp: &QpInner) {
        self.wakes.give();
        match self.token {
            Some(token) if self.is_immediate => qp.driver.shard(token).serve(token),
            Some(token) => {
                let shard = qp.driver.shard(token);
                shard.ring(token);
                shard.coalesce_timer();
            }
            None if self.is_immediate => drop(qp.shard().map(Shard::try_flush)),
            None => {}
        }
        if self.ends_burst {
            qp.burst_end.store(uiw_llp::monotonic_ns(), Ordering::Relaxed);
        }
    }
}

impl QpInner {
    /// Returns the shard of the connection.
    pub(crate) fn shard(&self) -> Option<&Arc<Shard>> {
        self.conn().map(|token| self.driver.shard(token))
    }

    /// Adds requests to the queue. If one is refused, those before it stay posted, unless the
    /// caller wants `all` or none.
    #[inline(always)]
    pub(crate) fn queue_send<'a>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'a>>,
        all: bool,
    ) -> (std::result::Result<(), PostError>, Doorbell) {
        let mut wakes = Wakes::default();
        if let Some(faults) = &self.faults
            && let Err(error) = faults.call(Call::PostSend)
        {
            return (
                Err(PostError { index: 0, error }),
                Doorbell { wakes, token: None, is_immediate: false, ends_burst: false },
            );
        }
        let mut sq = self.sq.lock();
        let at_once = sq.is_served_at_once(self.send_cq.taken(), || {
            uiw_llp::monotonic_ns().saturating_sub(self.burst_end.load(Ordering::Relaxed))
        });
        let mut posted = 0usize;
        // Not a loop over `next`, which would copy every request through an `Option`.
        let result = wrs.into_iter().try_for_each(|wr| {
            self.post_one(&mut sq, &wr).map_err(|error| PostError { index: posted, error })?;
            posted += 1;
            Ok(())
        });
        if all && result.is_err() {
            sq.unpost(posted);
            posted = 0;
        }
        if sq.mode == SqMode::Flushing {
            self.flush_sends(&mut sq, None, &mut wakes);
        }
        let mode = sq.mode;
        // One doorbell is enough until the stream reads the queue, because it reads all requests
        // then.
        let ring = posted > 0 && mode == SqMode::Running && !std::mem::replace(&mut sq.rung, true);
        // A chain is coalesced like a single request, so that chains do not cost one system call
        // each.
        let is_immediate =
            mode == SqMode::Running && posted > 0 && (at_once || sq.unread_bytes >= BATCH);
        if is_immediate {
            sq.unread_bytes = 0;
        }
        let ends_burst = at_once && sq.ends_burst();
        drop(sq);
        let token = if ring { self.conn() } else { None };
        (result, Doorbell { wakes, token, is_immediate, ends_burst })
    }

    #[inline(always)]
    fn post_one(&self, sq: &mut SendQueue, wr: &SendWr<'_>) -> Result<()> {
        if sq.mode == SqMode::Closed {
            return Err(Error::State { what: "posting a send", state: self.state() });
        }
        if wr.op.needs_ord() && sq.ord == 0 {
            return Err(Error::Unsupported { what: "Reads or atomics: ORD was negotiated to 0" });
        }
        if self.unreliable && !wr.op.may_be_unreliable() {
            return Err(Error::Unsupported {
                what: "Reads, atomics or Sends with Invalidate on an unreliable connection",
            });
        }
        if matches!(wr.op, SendOp::Datagram { .. }) != self.ud.is_some() {
            return Err(Error::Unsupported {
                what: "datagrams on a queue pair that is not UD, or anything else on one that is",
            });
        }
        sq.post(wr, copy_inline)
    }

    pub(crate) fn post_recv<'a>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'a>>,
    ) -> std::result::Result<(), PostError> {
        let RecvSource::Own(rq) = &self.rq else {
            let error = Error::Misuse(
                "this queue pair takes its receives from a shared receive queue: post there",
            );
            return Err(PostError { index: 0, error });
        };
        if let Some(faults) = &self.faults {
            faults.call(Call::PostRecv).map_err(|error| PostError { index: 0, error })?;
        }
        let mut wakes = Wakes::default();
        let mut rq = rq.lock();
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            let posted = if rq.closed {
                Err(Error::State { what: "posting a receive", state: self.state() })
            } else {
                rq.post(&wr)
            };
            if let Err(error) = posted {
                result = Err(PostError { index, error });
                break;
            }
        }
        if rq.flushing {
            self.flush_receives(&mut rq, None, &mut wakes);
        }
        let waiting = rq.take_waiting();
        drop(rq);
        wakes.give();
        if !waiting.is_empty() {
            self.driver.ring_all(&waiting);
        }
        result
    }
}

/// Copies inline data out of the caller's memory.
fn copy_inline(sges: &[Sge], out: &mut Vec<u8>) {
    for sge in sges {
        // SAFETY: the caller of `post_send` guarantees that the addresses of inline elements are
        // readable during the call.
        let bytes = unsafe { uiw_mem::IoVec::from_raw(sge.addr as *const u8, sge.length as usize) };
        bytes.append_to(out);
    }
}
