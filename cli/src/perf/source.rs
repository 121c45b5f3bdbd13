//! What one end of a measurement posts on a connection, message by message: the client's, or the
//! server's in the opposite direction.

use super::pattern;
use crate::shared::fail::Result;
use crate::shared::memory::{Buffer, at};
use crate::shared::qp_setup::post_all;
use crate::shared::service::Op;
use uiw::raw::{Qp, RemoteMr, SendFlags, SendOp, SendWr, Sge};

/// Messages of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    pub(crate) op: Op,
    /// Bytes of one.
    pub(crate) size: u32,
    /// How many lie side by side in memory, here and there.
    pub(crate) slots: u32,
    /// Under way at a time.
    pub(crate) depth: u32,
    /// Posted with one call.
    pub(crate) chain: u32,
    pub(crate) signal_every: u32,
    pub(crate) validate: bool,
}

impl Messages {
    /// Bytes of memory for them at each end.
    pub(crate) fn memory(&self) -> usize {
        self.size as usize * self.slots as usize
    }
}

/// The end that posts.
pub(crate) struct Source {
    what: Messages,
    /// What the numbers of requests begin with.
    tag: u64,
    /// What is sent, or where Reads and old values go; one part a slot.
    pub(super) local: Buffer,
    pub(super) sges: Vec<Sge>,
    /// The peer's memory.
    pub(super) open: RemoteMr,
    /// Messages posted.
    pub(crate) posted: u64,
    /// Messages that are known to be done.
    pub(crate) done: u64,
    /// Messages that came back wrong.
    pub(crate) wrong: u64,
}

impl Source {
    /// Posts from `local`, which has [`Messages::memory`] bytes, to `open`. Message `n` is request
    /// `tag + n`.
    pub(crate) fn new(what: Messages, tag: u64, local: Buffer, open: RemoteMr) -> Self {
        let size = what.size as usize;
        let sges = (0..what.slots as usize).map(|slot| local.sge(slot * size..(slot + 1) * size)).collect();
        Self { what, tag, local, sges, open, posted: 0, done: 0, wrong: 0 }
    }

    /// Messages under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.posted - self.done
    }

    /// Returns whether messages are under way whose completion will be reported.
    pub(crate) fn awaits(&self) -> bool {
        self.in_flight() >= u64::from(self.what.signal_every)
    }

    /// Posts chains of messages while the depth has room for a whole one, up to the `limit`th
    /// message.
    pub(crate) fn fill_up(&mut self, qp: &Qp, limit: u64) -> Result<()> {
        let (depth, chain) = (u64::from(self.what.depth), u64::from(self.what.chain));
        while self.posted < limit {
            let count = chain.min(limit - self.posted);
            if self.in_flight() + count > depth {
                break;
            }
            self.post(qp, count)?;
        }
        Ok(())
    }

    fn post(&mut self, qp: &Qp, count: u64) -> Result<()> {
        if self.what.validate {
            self.fill(count)?;
        }
        let every = u64::from(self.what.signal_every);
        let wrs = (self.posted..self.posted + count).map(|seq| {
            let slot = (seq % self.sges.len() as u64) as usize;
            let signal = (seq + 1).is_multiple_of(every);
            SendWr {
                wr_id: self.tag + seq,
                op: self.op(seq, slot),
                sges: &self.sges[slot..=slot],
                flags: if signal { SendFlags::SIGNALED } else { SendFlags::empty() },
            }
        });
        // A slot of `local` is filled or looked at only when no message under way names it, since
        // no more than `depth` are; without validation nothing touches it at all.
        post_all(qp, wrs)?;
        self.posted += count;
        Ok(())
    }

    pub(super) fn op(&self, seq: u64, slot: usize) -> SendOp {
        let remote = at(self.open, slot as u64 * u64::from(self.what.size));
        match self.what.op {
            Op::Write => SendOp::Write { remote },
            Op::WriteImm => SendOp::WriteImm { remote, imm: seq as u32 },
            Op::Read => SendOp::Read { remote, invalidate: None },
            Op::Send => SendOp::Send,
            Op::FetchAdd => SendOp::FetchAdd { remote: at(self.open, 0), add: 1, mask: 0 },
            Op::CmpSwap => SendOp::CmpSwap {
                remote: at(self.open, 0),
                compare: seq,
                compare_mask: u64::MAX,
                swap: seq + 1,
                swap_mask: u64::MAX,
            },
        }
    }

    /// Puts the bytes of the next messages into their slots, and clears where answers go.
    fn fill(&mut self, count: u64) -> Result<()> {
        let size = self.what.size as usize;
        for seq in self.posted..self.posted + count {
            let start = (seq % self.sges.len() as u64) as usize * size;
            let bytes = match self.what.op {
                Op::Write | Op::WriteImm | Op::Send => pattern::message(seq, size),
                Op::Read => vec![0; size],
                Op::FetchAdd | Op::CmpSwap => vec![0xFF; size],
            };
            self.local.write(start, &bytes)?;
        }
        Ok(())
    }

    /// Messages up to `done` are done.
    pub(crate) fn finish(&mut self, done: u64) -> Result<()> {
        if self.what.validate && matches!(self.what.op, Op::Read | Op::FetchAdd | Op::CmpSwap) {
            for seq in self.done..done {
                self.look(seq)?;
            }
        }
        self.done = done;
        Ok(())
    }

    /// Checks what message `seq` brought.
    fn look(&mut self, seq: u64) -> Result<()> {
        let size = self.what.size as usize;
        let slot = (seq % self.sges.len() as u64) as usize;
        let expected = match self.what.op {
            Op::Read => pattern::message(slot as u64, size),
            // Each finds what the one before it left.
            _ => seq.to_ne_bytes().to_vec(),
        };
        self.wrong += u64::from(self.local.differs(slot * size, &expected)?.is_some());
        Ok(())
    }
}
