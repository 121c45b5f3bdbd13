//! Messages that one end of a measurement posts on a connection. This end is the client, or the
//! server in the opposite direction.

use super::pattern;
use crate::shared::fail::Result;
use crate::shared::memory::{Buffer, remote_at};
use crate::shared::qp_setup::post_all;
use crate::shared::service::PerfOp;
use uiw::raw::{Qp, RemoteMr, SendFlags, SendOp, SendWr, Sge};

/// Properties of the messages of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageStream {
    pub(crate) op: PerfOp,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Number of messages that lie side by side in memory, at each end.
    pub(crate) slots: u32,
    /// Maximum number of messages under way.
    pub(crate) depth: u32,
    /// Number of messages posted with one call.
    pub(crate) chain: u32,
    pub(crate) signal_every: u32,
    pub(crate) validate: bool,
}

impl MessageStream {
    /// Returns the bytes of memory for the messages at each end.
    pub(crate) fn memory(&self) -> usize {
        self.size as usize * self.slots as usize
    }
}

/// The end of a connection that posts messages.
pub(crate) struct MessageSource {
    stream: MessageStream,
    /// Number that is added to the number of a message to get the number of its request.
    tag: u64,
    /// Memory of sent messages, of Reads and of old values of atomics; each slot is one part of it.
    pub(super) local: Buffer,
    pub(super) sges: Vec<Sge>,
    /// The peer's memory.
    pub(super) peer_memory: RemoteMr,
    /// Messages posted.
    pub(crate) posted: u64,
    /// Messages known to be complete.
    pub(crate) done: u64,
    /// Messages whose answer was wrong.
    pub(crate) wrong: u64,
}

impl MessageSource {
    /// Creates a source that posts from `local`, which has [`MessageStream::memory`] bytes, to
    /// `peer_memory`. Message `n` is request `tag + n`.
    pub(crate) fn new(
        stream: MessageStream,
        tag: u64,
        local: Buffer,
        peer_memory: RemoteMr,
    ) -> Self {
        let size = stream.size as usize;
        let sges = (0..stream.slots as usize)
            .map(|slot| local.sge(slot * size..(slot + 1) * size))
            .collect();
        Self { stream, tag, local, sges, peer_memory, posted: 0, done: 0, wrong: 0 }
    }

    /// Returns the number of messages under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.posted - self.done
    }

    /// Returns whether a message under way will report its completion.
    pub(crate) fn awaits_completion(&self) -> bool {
        self.in_flight() >= u64::from(self.stream.signal_every)
    }

    /// Posts chains of messages, up to message number `limit`, while a whole chain fits into the
    /// depth.
    pub(crate) fn fill_up(&mut self, qp: &Qp, limit: u64) -> Result<()> {
        let (depth, chain) = (u64::from(self.stream.depth), u64::from(self.stream.chain));
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
        if self.stream.validate {
            self.fill(count)?;
        }
        let every = u64::from(self.stream.signal_every);
        let end = self.posted + count;
        // Up to `every - 1` messages behind the last signaled one have no completion of their own.
        // Where they would leave no room for a chain, the end of each chain is signaled as well.
        let signals_chain_end = every - 1 + u64::from(self.stream.chain) > self.stream.depth.into();
        let wrs = (self.posted..end).map(|seq| {
            let slot = (seq % self.sges.len() as u64) as usize;
            let signal = (seq + 1).is_multiple_of(every) || signals_chain_end && seq + 1 == end;
            SendWr {
                wr_id: self.tag + seq,
                op: self.operation(seq, slot),
                sges: &self.sges[slot..=slot],
                flags: if signal { SendFlags::SIGNALED } else { SendFlags::empty() },
            }
        });
        // At most `depth` messages are under way, so a slot of `local` is filled or checked only
        // when no message under way names it. Without validation the slots are not accessed at all.
        post_all(qp, wrs)?;
        self.posted = end;
        Ok(())
    }

    pub(super) fn operation(&self, seq: u64, slot: usize) -> SendOp {
        let remote = remote_at(self.peer_memory, slot as u64 * u64::from(self.stream.size));
        match self.stream.op {
            PerfOp::Write => SendOp::Write { remote },
            PerfOp::WriteImm => SendOp::WriteImm { remote, imm: seq as u32 },
            PerfOp::Read => SendOp::Read { remote, invalidate: None },
            PerfOp::Send => SendOp::Send,
            PerfOp::FetchAdd => {
                SendOp::FetchAdd { remote: remote_at(self.peer_memory, 0), add: 1, mask: 0 }
            }
            PerfOp::CmpSwap => SendOp::CmpSwap {
                remote: remote_at(self.peer_memory, 0),
                compare: seq,
                compare_mask: u64::MAX,
                swap: seq + 1,
                swap_mask: u64::MAX,
            },
        }
    }

    /// Fills the slots of the next messages with their bytes, or clears them for answers.
    pub(super) fn fill(&mut self, count: u64) -> Result<()> {
        let size = self.stream.size as usize;
        for seq in self.posted..self.posted + count {
            let start = (seq % self.sges.len() as u64) as usize * size;
            let bytes = match self.stream.op {
                PerfOp::Write | PerfOp::WriteImm | PerfOp::Send => pattern::message(seq, size),
                PerfOp::Read => vec![0; size],
                PerfOp::FetchAdd | PerfOp::CmpSwap => vec![0xFF; size],
            };
            self.local.write(start, &bytes)?;
        }
        Ok(())
    }

    /// Marks the messages before number `done` as complete, and verifies their answers.
    pub(crate) fn complete_until(&mut self, done: u64) -> Result<()> {
        if self.stream.validate
            && matches!(self.stream.op, PerfOp::Read | PerfOp::FetchAdd | PerfOp::CmpSwap)
        {
            for seq in self.done..done {
                self.verify(seq)?;
            }
        }
        self.done = done;
        Ok(())
    }

    /// Checks the bytes that message `seq` has read.
    fn verify(&mut self, seq: u64) -> Result<()> {
        let size = self.stream.size as usize;
        let slot = (seq % self.sges.len() as u64) as usize;
        let expected = match self.stream.op {
            PerfOp::Read => pattern::message(slot as u64, size),
            // Each atomic finds the value left by the one before it.
            _ => seq.to_ne_bytes().to_vec(),
        };
        self.wrong += u64::from(self.local.first_difference(slot * size, &expected)?.is_some());
        Ok(())
    }
}
