//! The demo's first process: it moves the file, and compares what it Reads.

use super::case::{Case, ELEMENTS, Way, blocks};
use super::talk::{GREETING, Go, TALK_LEN, Verdict};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::msg_conn::{Event, MsgConn};
use crate::shared::qp_setup::{Depths, Half, Until, Wait, post};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw::raw::{Device, Pd, Remote, STag, SendFlags, SendOp, Sge};

/// Requests under way at a time.
const DEPTH: usize = 32;
/// How long a line may stand still.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a line measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// One line being moved.
pub(super) struct Line<'a> {
    case: &'a Case,
    file: &'a [u8],
    conn: MsgConn,
    /// The file, or where Reads go.
    memory: Buffer,
    /// Where the old values of atomics go.
    old: Buffer,
    in_flight: usize,
}

impl<'a> Line<'a> {
    pub(super) fn connect(
        device: &Device,
        pd: &Pd,
        peer: SocketAddr,
        number: usize,
        case: &'a Case,
        file: &'a [u8],
    ) -> Result<Self> {
        let len = if case.way == Way::ReadElements { area(file.len()) * ELEMENTS } else { file.len() };
        let memory = Buffer::exclusive(pd, len)?;
        if !case.way.is_read() {
            memory.write(0, file)?;
        }
        let old = Buffer::exclusive(pd, 8)?;
        let depths = Depths { sges: ELEMENTS as u32, ..Depths::new(DEPTH as u32 + 4, 4) };
        let half = Half::new(device, pd, &depths)?;
        let greeting = [GREETING, number.to_string().as_bytes()].concat();
        let conn = MsgConn::connect(
            half,
            (4, TALK_LEN as u32),
            peer,
            &case.peer_options.options(),
            &greeting,
            Until::NEVER,
        )?;
        Ok(Self { case, file, conn, memory, old, in_flight: 0 })
    }

    /// Moves the file repeatedly for `time`, verifying it every time. The clock stands while bytes are compared.
    pub(super) fn run(&mut self, time: Duration) -> Result<Moved> {
        let mut moved = Moved::default();
        let begun = Instant::now();
        loop {
            let go: Go = self.expect_message()?;
            let start = Instant::now();
            self.pass(&go)?;
            self.end()?;
            moved.seconds += start.elapsed().as_secs_f64();
            moved.bytes += self.file.len() as u64;
            self.verify()?;
            if begun.elapsed() >= time {
                return Ok(moved);
            }
        }
    }

    pub(super) fn close(self) {
        self.conn.link.close();
    }

    fn pass(&mut self, go: &Go) -> Result<()> {
        let blocks = blocks(self.file.len(), self.case.way.block());
        let last = blocks.len() - 1;
        for (index, (offset, len)) in blocks.enumerate() {
            let remote = Remote { addr: go.file.0 + offset as u64, rkey: STag(go.file.1) };
            let whole = offset..offset + len;
            let send = SendFlags::empty();
            match self.case.way {
                Way::Send | Way::SendShared => self.post(SendOp::Send, whole, send)?,
                Way::SendSolicited => {
                    // The peer sleeps meanwhile, and posts no receives.
                    let wakes = index % 64 == 63 || index == last;
                    self.post(SendOp::Send, whole, if wakes { SendFlags::SOLICITED } else { send })?;
                }
                Way::SendInvalidate if index == last => {
                    self.post(SendOp::SendInvalidate { stag: STag(go.window) }, whole, send)?;
                }
                Way::SendInvalidate => self.post(SendOp::Send, whole, send)?,
                Way::SendImmediate => self.post(SendOp::SendImm { imm: index as u32 }, whole, send)?,
                Way::SendInline => {
                    let sge = self.memory.address(whole);
                    self.post_sges(SendOp::Send, &[sge], SendFlags::INLINE)?;
                }
                Way::Write | Way::WriteWindow => self.post(SendOp::Write { remote }, whole, send)?,
                Way::WriteImmediate => {
                    self.post(SendOp::WriteImm { remote, imm: index as u32 }, whole, send)?;
                }
                Way::Read => self.post(SendOp::Read { remote, invalidate: None }, whole, send)?,
                Way::ReadElements => {
                    let sges = elements(&self.memory, self.file.len(), offset, len);
                    self.post_sges(SendOp::Read { remote, invalidate: None }, &sges, send)?;
                }
                Way::FetchAdd => {
                    self.count(go, index)?;
                    self.post(SendOp::Write { remote }, whole, send)?;
                }
                Way::CmpSwap => {
                    self.swap(go, 0, 1)?;
                    self.post(SendOp::Write { remote }, whole, send)?;
                    self.swap(go, 1, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Takes the next block's number from the counter at the peer.
    fn count(&mut self, go: &Go, index: usize) -> Result<()> {
        let remote = Remote { addr: go.cell.0, rkey: STag(go.cell.1) };
        let got = self.atomic(SendOp::FetchAdd { remote, add: 1, mask: 0 })?;
        self.expect("FetchAdd", got, index as u64)
    }

    /// Takes or releases the lock at the peer.
    fn swap(&mut self, go: &Go, compare: u64, swap: u64) -> Result<()> {
        let remote = Remote { addr: go.cell.0, rkey: STag(go.cell.1) };
        let all = u64::MAX;
        let op = SendOp::CmpSwap { remote, compare, compare_mask: all, swap, swap_mask: all };
        let got = self.atomic(op)?;
        self.expect("CmpSwap", got, compare)
    }

    fn atomic(&mut self, op: SendOp) -> Result<u64> {
        let sge = self.old.sge(0..8);
        self.post_sges(op, &[sge], SendFlags::empty())?;
        self.drain(0)?;
        let mut bytes = [0; 8];
        self.old.read(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn expect(&self, what: &str, got: u64, want: u64) -> Result<()> {
        if got == want {
            return Ok(());
        }
        Err(Failure::differs(self.case.way.name(), format!("{what} found {got}, not {want}")))
    }

    fn post(&mut self, op: SendOp, range: std::ops::Range<usize>, flags: SendFlags) -> Result<()> {
        let sge = self.memory.sge(range);
        self.post_sges(op, &[sge], flags)
    }

    fn post_sges(&mut self, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<()> {
        // Half at a time: requests that are posted in a row share a system call.
        if self.in_flight == DEPTH {
            self.drain(DEPTH / 2)?;
        }
        post(&self.conn.link.qp, 0, op, sges, SendFlags::SIGNALED | flags)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Waits until at most `left` requests are under way.
    fn drain(&mut self, left: usize) -> Result<()> {
        while self.in_flight > left {
            match self.event()? {
                Event::Sent(_) => self.in_flight -= 1,
                Event::Message { .. } => return Err(self.out_of_turn()),
            }
        }
        Ok(())
    }

    /// Says that the file is out, and waits until the peer has it.
    fn end(&mut self) -> Result<()> {
        // Behind every Read: a Send alone would overtake them.
        self.post_sges(SendOp::Send, &[], SendFlags::SOLICITED | SendFlags::FENCE)?;
        match self.message()? {
            bytes if bytes.is_empty() => self.drain(0),
            _ => Err(self.out_of_turn()),
        }
    }

    fn expect_message<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let bytes = self.message()?;
        serde_json::from_slice(&bytes).map_err(|_| self.out_of_turn())
    }

    /// The peer's next message. Requests may complete before it.
    fn message(&mut self) -> Result<Vec<u8>> {
        loop {
            match self.event()? {
                Event::Sent(_) => self.in_flight -= 1,
                Event::Message { slot, len } => {
                    let bytes = self.conn.bytes(slot, len)?;
                    self.conn.repost(slot)?;
                    return Ok(bytes);
                }
            }
        }
    }

    fn event(&self) -> Result<Event> {
        let until = Until::deadline(Instant::now() + TIMEOUT);
        let event = self.conn.next(Wait::Sleep, until)?;
        event.ok_or_else(|| {
            Failure::lost(self.case.way.name(), format!("closed, or nothing happened for {TIMEOUT:?}"))
        })
    }

    fn out_of_turn(&self) -> Failure {
        Failure::lost(self.case.way.name(), "the peer sent a message out of turn")
    }

    fn verify(&mut self) -> Result<()> {
        let verdict: Verdict = self.expect_message()?;
        if let Some(wrong) = verdict.wrong {
            return Err(Failure::differs(self.case.way.name(), wrong));
        }
        if !self.case.way.is_read() {
            return Ok(());
        }
        for (offset, len) in blocks(self.file.len(), self.case.way.block()) {
            let parts = if self.case.way == Way::Read {
                vec![(offset, offset, len)]
            } else {
                places(self.file.len(), offset, len).to_vec()
            };
            for (place, offset, len) in parts {
                if let Some(at) = self.memory.differs(place, &self.file[offset..offset + len])? {
                    let why = format!("byte {} differs", offset + at);
                    return Err(Failure::differs(self.case.way.name(), why));
                }
            }
        }
        // Nothing of this pass is left for the next.
        self.memory.clear()
    }
}

/// Bytes of the area where one element of every block goes.
fn area(len: usize) -> usize {
    let block = Way::ReadElements.block();
    len.div_ceil(block) * (block / ELEMENTS)
}

/// Where the elements of the block at `offset` go: place in memory, offset in the file, length.
fn places(file: usize, offset: usize, len: usize) -> [(usize, usize, usize); ELEMENTS] {
    let part = Way::ReadElements.block() / ELEMENTS;
    std::array::from_fn(|element| {
        let start = (element * part).min(len);
        let end = if element + 1 == ELEMENTS { len } else { (start + part).min(len) };
        (element * area(file) + offset / ELEMENTS, offset + start, end - start)
    })
}

fn elements(memory: &Buffer, file: usize, offset: usize, len: usize) -> [Sge; ELEMENTS] {
    places(file, offset, len).map(|(place, _, len)| memory.sge(place..place + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_cover_a_block_and_never_meet() {
        let file = (256 << 10) * 2 + 1000;
        let mut taken = vec![false; area(file) * ELEMENTS];
        let mut bytes = 0;
        for (offset, len) in blocks(file, Way::ReadElements.block()) {
            let mut next = offset;
            for (place, from, len) in places(file, offset, len) {
                assert_eq!(from, next);
                next += len;
                for taken in &mut taken[place..place + len] {
                    assert!(!std::mem::replace(taken, true));
                }
                bytes += len;
            }
        }
        assert_eq!(bytes, file);
    }
}
