//! Answers to our Reads and atomics: matched with the request that is outstanding longest, placed, and completed.

use crate::driver::Env;
use crate::qp::read_queue::{Asker, OutstandingKind, QuotedSegment};
use crate::qp::rx::scatter;
use crate::qp::{Conn, Down};
use crate::wc::WcStatus;
use ddp::{Tagged, TaggedError};
use rdmap::{AtomicResponse, Operation};

impl Conn {
    /// A segment of the answer to our oldest Read.
    pub(super) fn read_response(
        &mut self,
        header: &Tagged,
        payload: &[u8],
        quoted: &dyn Fn() -> QuotedSegment,
        env: &mut Env<'_>,
    ) -> Result<(), Down> {
        let len = payload.len() as u32;
        let (stag, to) = (header.stag, header.to);
        let sink = self.reads.sink;
        let (asker, done) = {
            let Some(front) = self.reads.outstanding.front_mut() else {
                return Err(self.fault(TaggedError::InvalidStag { stag: header.stag }.into(), Some(quoted())));
            };
            let OutstandingKind::Read { sink_to, len: wanted, received } = &mut front.kind else {
                return Err(self.fault(TaggedError::InvalidStag { stag: header.stag }.into(), Some(quoted())));
            };
            let expected_to = *sink_to + u64::from(*received);
            // RFC 5040 section 5.2.1: an empty answer's STag and TO are not checked.
            let checked = *wanted > 0 || len > 0;
            let fault = if checked && header.stag != sink {
                Some(TaggedError::InvalidStag { stag })
            } else if checked && (to != expected_to || len > *wanted - *received)
                || header.last != (*received + len == *wanted)
            {
                Some(TaggedError::BaseOrBounds { stag, to, len })
            } else {
                None
            };
            if let Some(fault) = fault {
                return Err(self.fault(fault.into(), Some(quoted())));
            }
            let offset = *received;
            *received += len;
            if len > 0 {
                let Some(qp) = &self.qp else { return Err(Down::Asked) };
                let memory = (&qp.pd, &*env.driver.table, &mut self.recent);
                if scatter(memory, &front.sges, offset, payload).is_err() {
                    let seq = front.asker.request();
                    return Err(Down::Local { seq, status: WcStatus::LocalProtection });
                }
            }
            (front.asker, header.last)
        };
        if done {
            self.answered(asker, env)?;
        }
        Ok(())
    }

    pub(super) fn atomic_response(
        &mut self,
        response: &AtomicResponse,
        quoted: &dyn Fn() -> QuotedSegment,
        env: &mut Env<'_>,
    ) -> Result<(), Down> {
        let matches = self
            .reads
            .outstanding
            .front()
            .is_some_and(|o| o.kind == OutstandingKind::Atomic { request_id: response.request_id });
        let (true, Some(front), Some(qp)) = (matches, self.reads.outstanding.front(), &self.qp) else {
            return Err(self.fault(Operation::Unspecified.into(), Some(quoted())));
        };
        let asker = front.asker;
        // The value is a number of this machine's, as `ibv_post_send` documents it.
        let value = response.original.to_ne_bytes();
        if scatter((&qp.pd, &env.driver.table, &mut self.recent), &front.sges, 0, &value).is_err() {
            return Err(Down::Local { seq: asker.request(), status: WcStatus::LocalProtection });
        }
        self.answered(asker, env)
    }

    /// The oldest Read or atomic has its answer.
    fn answered(&mut self, asker: Asker, env: &mut Env<'_>) -> Result<(), Down> {
        let front = self.reads.outstanding.pop_front();
        let (Some(front), Some(qp)) = (front, &self.qp) else {
            // What the peer asked for before its answer to the farewell is still answered.
            self.fin.wanted |= asker == Asker::Farewell;
            return Ok(());
        };
        let seq = match asker {
            Asker::Request(seq) => seq,
            Asker::Rtr => {
                self.tx.rtr_was_answered();
                return Ok(());
            }
            // Said for queue pairs that are gone: handled above.
            Asker::Farewell => return Ok(()),
            Asker::Ack(upto) => {
                self.tx.ack_came();
                qp.sq.lock().acknowledge(upto);
                return self.retire(env);
            }
        };
        let mut status = WcStatus::Success;
        if front.invalidate.is_some() {
            self.recent.let_go();
        }
        if let Some(stag) = front.invalidate
            && env.driver.table.invalidate_local(stag, qp.stream(), qp.pd.id()).is_err()
        {
            status = WcStatus::LocalProtection;
        }
        let mut sq = qp.sq.lock();
        sq.return_sges(seq, front.sges);
        sq.done(seq, status);
        drop(sq);
        if status == WcStatus::Success {
            self.retire(env)
        } else {
            Err(Down::Local { seq: Some(seq), status })
        }
    }
}
