//! One end of a connection: receives and requests by number, and what became of them.

use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, PendingQp, RECV, Wait, WaitLimits, completions, post, post_recv, post_recvs, send_copy,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{
    Access, Bind, ConnConfig, Pd, RawMw, Remote, STag, SendFlags, SendOp, Sge, Wc, WcOpcode, WcStatus,
    WindowType,
};
use uiw_conform::partner::{Kind, Op, Order, PartnerMessage};

/// Time without movement after which a wait gives up: no request and no receive completes, and TCP
/// neither delivers nor receives a byte.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long one wait may take, whatever moves: the largest order is 256 MiB.
const BOUND: Duration = Duration::from_secs(600);
/// Receives for talk.
const SLOTS: u64 = 4;
/// Bytes of the memory that is there to be invalidated.
const REVOCABLE: usize = 4096;

// Numbers of requests: what they are, and which.
const TALK: u64 = 1 << 32;
const TEST: u64 = 2 << 32;
const BIND: u64 = 3 << 32;
const WHAT: u64 = !RECV & !0xFFFF_FFFF;

/// What the far end has to be.
const PARTNER: &str =
    "start `siwpeer serve` or `uiw siwtest --listen ADDR:PORT` there; `--raw` is for any other peer";

/// An end of a connection.
pub(super) struct ConnectionEnd {
    pub(super) link: Link,
    pub(super) pd: Pd,
    talk: Buffer,
    posted_slots: u64,
    received: VecDeque<PartnerMessage>,
    memory: Option<Memory>,
    /// Requests and receives of the order: posted and done.
    posted: (u32, u32),
    done: (u32, u32),
    /// All that was ever posted here, and what of it is done, flushed or failed.
    pub(super) all: (u32, u32),
    bound: bool,
    broken: bool,
    /// What is wrong.
    pub(super) wrong: Option<String>,
}

/// A wait that lasts as long as something moves, within [`BOUND`].
struct ProgressWait {
    bound: Instant,
    /// What had moved at the beginning of the present [`TIMEOUT`], and when that ends.
    seen: (u32, u64),
    deadline: Instant,
}

impl ProgressWait {
    fn new(end: &ConnectionEnd) -> Self {
        let now = Instant::now();
        Self { bound: now + BOUND, seen: end.moved(), deadline: now + TIMEOUT }
    }

    /// Returns whether the time is over in which something had to move.
    fn is_stalled(&mut self, end: &ConnectionEnd) -> bool {
        let now = Instant::now();
        if now < self.deadline {
            return false;
        }
        let moved = end.moved();
        let stalled = now >= self.bound || moved == self.seen;
        self.seen = moved;
        self.deadline = self.bound.min(now + TIMEOUT);
        stalled
    }
}

/// Memory of an order.
pub(super) struct Memory {
    /// What the other end may name.
    pub(super) remote: Buffer,
    /// Our own sources and places.
    pub(super) local: Buffer,
    /// A window that the other end may invalidate, and what is under it.
    _window: (RawMw, Buffer),
    /// The window's STag.
    stag: STag,
    /// Whether the other end has.
    pub(super) invalidated: bool,
}

impl ConnectionEnd {
    /// Connects.
    pub(super) fn connect(
        half: PendingQp,
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
    ) -> Result<Self> {
        let talk = talk_buffer(&half)?;
        let pd = half.pd.clone();
        let link =
            half.connect(peer, options, private_data).map_err(|failure| failure.with_start_hint(PARTNER))?;
        Ok(Self::new(link, pd, talk))
    }

    /// Accepts; the first order has its receive before the Reply leaves.
    pub(super) fn accept(
        half: PendingQp,
        request: ConnRequest,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let talk = talk_buffer(&half)?;
        let pd = half.pd.clone();
        post_recvs(&half.qp, [(TALK, Some(slot(&talk, 0)))])?;
        let mut end = Self::new(half.accept(request, options, private_data, until)?, pd, talk);
        (end.posted_slots, end.all.0) = (1, 1);
        Ok(end)
    }

    fn new(link: Link, pd: Pd, talk: Buffer) -> Self {
        Self {
            link,
            pd,
            talk,
            posted_slots: 0,
            received: VecDeque::new(),
            memory: None,
            posted: (0, 0),
            done: (0, 0),
            all: (0, 0),
            bound: false,
            broken: false,
            wrong: None,
        }
    }

    /// Notes the first thing that is wrong.
    pub(super) fn note(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    /// The order's memory.
    pub(super) fn memory(&self) -> Result<&Memory> {
        self.memory.as_ref().ok_or_else(|| Failure::local("an order", "has no memory"))
    }

    /// Memory for an order, with a window for the peer to invalidate.
    pub(super) fn provide(&mut self, order: &Order, remote: usize, local: usize) -> Result<()> {
        let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        match order.op {
            Op::ReadOnlyWrite => access.remove(Access::REMOTE_WRITE),
            Op::WriteOnlyRead => access.remove(Access::REMOTE_READ),
            _ => {}
        }
        // What an earlier order left is given back first: it may be large.
        self.memory = None;
        let revocable = Buffer::shared(&self.pd, REVOCABLE, Access::MW_BIND)?;
        let window = self.pd.alloc_window(WindowType::Two)?;
        let old = window.stag();
        let stag = STag::from_parts(old.index(), old.key().wrapping_add(1));
        let bind = Bind {
            window: old,
            new_stag: stag,
            region: revocable.stag(),
            addr: revocable.remote().addr,
            length: REVOCABLE as u64,
            access: Access::REMOTE_WRITE,
        };
        let memory = Memory {
            remote: Buffer::shared(&self.pd, remote.max(1), access)?,
            local: Buffer::exclusive(&self.pd, local.max(1))?,
            _window: (window, revocable),
            stag,
            invalidated: false,
        };
        self.memory = Some(memory);
        (self.posted, self.done, self.bound) = ((0, 0), (0, 0), false);
        self.post(BIND, SendOp::Bind(bind), &[], SendFlags::empty())?;
        self.until("the window is bound", |end| end.bound)
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<()> {
        post(&self.link.qp, wr_id, op, sges, flags | SendFlags::SIGNALED)?;
        self.all.0 += 1;
        Ok(())
    }

    /// Posts a request of the order.
    pub(super) fn request(&mut self, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<()> {
        self.post(TEST, op, sges, flags)?;
        self.posted.0 += 1;
        Ok(())
    }

    /// Posts receives of the order.
    pub(super) fn expect_test(&mut self, messages: impl Iterator<Item = Vec<Sge>>) -> Result<()> {
        for sges in messages {
            post_recv(&self.link.qp, TEST, &sges)?;
            self.posted.1 += 1;
            self.all.0 += 1;
        }
        Ok(())
    }

    /// Posts a receive for a message of talk.
    pub(super) fn expect_talk(&mut self) -> Result<()> {
        let number = self.posted_slots % SLOTS;
        post_recvs(&self.link.qp, [(TALK | number, Some(slot(&self.talk, number)))])?;
        self.posted_slots += 1;
        self.all.0 += 1;
        Ok(())
    }

    /// Says something.
    pub(super) fn say(&mut self, kind: Kind, order: Order) -> Result<()> {
        let memory = self.memory.as_ref();
        let talk = PartnerMessage {
            kind,
            order,
            memory: memory.map_or_else(Remote::default, |memory| memory.remote.remote().into()),
            revocable: memory.map_or(0, |memory| memory.stag.0),
            wrong: self.wrong.clone(),
        };
        send_copy(&self.link.qp, TALK, &talk.emit())?;
        self.all.0 += 1;
        Ok(())
    }

    /// The next message, which must be of this kind.
    pub(super) fn expect(&mut self, kind: Kind) -> Result<PartnerMessage> {
        self.until("talk", |end| !end.received.is_empty())?;
        match self.received.pop_front() {
            Some(talk) if talk.kind == kind => Ok(talk),
            _ => Err(self.lost("said something out of turn").with_fix(PARTNER)),
        }
    }

    /// The next order; `None` when the peer has closed.
    pub(super) fn next_order(&mut self, until: WaitLimits<'_>) -> Result<Option<PartnerMessage>> {
        while self.received.is_empty() && !self.broken && !until.is_over() {
            self.step(until);
        }
        match self.received.pop_front() {
            Some(talk) if talk.kind == Kind::Order => Ok(Some(talk)),
            Some(_) => Err(self.lost("said something out of turn")),
            None => Ok(None),
        }
    }

    /// Waits until every request of the order is done.
    pub(super) fn await_requests(&mut self) -> Result<()> {
        self.until("its requests are done", |end| end.done.0 >= end.posted.0)
    }

    /// Waits until every receive of the order is done, or the other end says that it is.
    pub(super) fn await_receives(&mut self) -> Result<()> {
        self.until("messages", |end| end.done.1 >= end.posted.1 || !end.received.is_empty())
    }

    /// Returns whether every receive of the order is done.
    pub(super) fn all_received(&self) -> bool {
        self.done.1 == self.posted.1
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
        let mut progress = ProgressWait::new(self);
        while !is_so(self) {
            if self.broken {
                let why = self.wrong.clone().unwrap_or_default();
                return Err(self.lost(why));
            }
            if progress.is_stalled(self) {
                self.note(format!("nothing moved for {TIMEOUT:?}, waiting until {what}"));
                self.broken = true;
                continue;
            }
            self.step(WaitLimits::deadline(progress.deadline));
        }
        Ok(())
    }

    /// Requests and receives done, and bytes that TCP has delivered or received, where it counts
    /// them.
    fn moved(&self) -> (u32, u64) {
        let stream = self.link.qp.path().map(|path| path.stream).unwrap_or_default();
        (self.all.1, stream.bytes_acked.unwrap_or(0) + stream.bytes_received.unwrap_or(0))
    }

    fn lost(&self, why: impl std::fmt::Display) -> Failure {
        Failure::lost(self.link.peer(), why)
    }

    fn step(&mut self, until: WaitLimits<'_>) {
        let mut taken = Vec::new();
        let until = until.ended(&self.link);
        completions(&self.link.device, &self.link.cq, Wait::Sleep, until, 64, |wc| taken.push(wc));
        // If nothing is posted, no completion reports the end.
        if taken.is_empty() && self.link.wait_ending(Duration::ZERO).is_some() {
            self.note("closed");
            self.broken = true;
        }
        for wc in taken {
            self.on_completion(&wc);
        }
    }

    fn on_completion(&mut self, wc: &Wc) {
        self.all.1 += 1;
        if wc.status != WcStatus::Success {
            // A reason says more than "flushed".
            if !self.broken || wc.reason.is_some() && self.wrong.as_deref() == Some("closed") {
                let closed = wc.status == WcStatus::Flushed && wc.reason.is_none();
                let why = match (wc.status, wc.reason) {
                    (status, None) => status.to_string(),
                    (WcStatus::Flushed, Some(reason)) => reason.to_string(),
                    (status, Some(reason)) => format!("{status}: {reason}"),
                };
                self.wrong = self.wrong.take().filter(|wrong| wrong != "closed");
                self.note(if closed { "closed".to_owned() } else { why });
            }
            self.broken = true;
            return;
        }
        match (wc.wr_id & RECV != 0, wc.wr_id & WHAT) {
            (true, TALK) => self.on_talk(wc),
            (true, _) => self.on_test(wc),
            (false, TEST) => self.done.0 += 1,
            (false, BIND) => self.bound = true,
            (false, _) => {}
        }
    }

    fn on_talk(&mut self, wc: &Wc) {
        let mut bytes = vec![0; (wc.byte_len as usize).min(PartnerMessage::LEN)];
        let at = (wc.wr_id & 0xFFFF_FFFF) as usize * PartnerMessage::LEN;
        let read = self.talk.read(at, &mut bytes);
        match PartnerMessage::parse(&bytes).filter(|_| read.is_ok()) {
            Some(talk) => self.received.push_back(talk),
            None => {
                self.note(format!("said something else than a siwtest does ({} bytes)", wc.byte_len));
                self.broken = true;
            }
        }
    }

    fn on_test(&mut self, wc: &Wc) {
        self.done.1 += 1;
        if wc.opcode != WcOpcode::Recv {
            self.note(format!("a receive completed as {:?}", wc.opcode));
        }
        if let Some(stag) = wc.invalidated
            && self.memory.as_ref().is_none_or(|memory| memory.stag != stag)
        {
            self.note(format!("STag {stag} was invalidated, which is not the one"));
        }
        if wc.invalidated.is_some()
            && let Some(memory) = &mut self.memory
        {
            memory.invalidated = true;
        }
    }

    /// Waits until all that was posted is done, flushed or failed; gives what became of the
    /// connection.
    pub(super) fn drain(&mut self) -> Result<()> {
        let mut progress = ProgressWait::new(self);
        self.broken = true;
        if self.link.qp.state() == uiw::raw::QpState::Rts {
            // A connection that has ended needs no closing.
            let _ = self.link.qp.disconnect();
        }
        while self.all.1 < self.all.0 {
            if progress.is_stalled(self) {
                let (posted, done) = self.all;
                return Err(self.lost(format!(
                    "{done} of {posted} requests and receives done; nothing moved for {TIMEOUT:?}"
                )));
            }
            self.step(WaitLimits::deadline(progress.deadline));
        }
        if let Some(reason) = self.link.wait_ending(Duration::from_secs(10)).and_then(|ending| ending.reason)
            && self.wrong.as_deref().is_none_or(|wrong| wrong == "closed")
        {
            self.wrong = Some(reason.to_string());
        }
        Ok(())
    }
}

fn talk_buffer(half: &PendingQp) -> Result<Buffer> {
    Buffer::exclusive(&half.pd, SLOTS as usize * PartnerMessage::LEN)
}

fn slot(talk: &Buffer, number: u64) -> Sge {
    let start = number as usize * PartnerMessage::LEN;
    talk.sge(start..start + PartnerMessage::LEN)
}
