//! One end of a connection, with its requests and receives.

use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, PendingQp, RECV, WaitLimits, WaitMode, completions, post, post_recv, post_recvs,
    send_copy,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{
    Access, Bind, ConnConfig, Pd, RawMw, Remote, STag, SendFlags, SendOp, Sge, Wc, WcOpcode,
    WcStatus, WindowType,
};
use uiw_conform::partner::{MessageKind, Op, Order, PartnerMessage};

/// Time after which a wait gives up if no request or receive completes and TCP neither delivers nor
/// receives a byte.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum duration of a wait, even with progress. The largest order is 256 MiB.
const BOUND: Duration = Duration::from_secs(600);
/// Number of receives for messages of the partner protocol ("talk").
const SLOTS: u64 = 4;
/// Size of the memory under the window that the peer may invalidate, in bytes.
const REVOCABLE: usize = 4096;

// The upper half of a request number is its kind, the lower half its index.
const TALK: u64 = 1 << 32;
const TEST: u64 = 2 << 32;
const BIND: u64 = 3 << 32;
const WHAT: u64 = !RECV & !0xFFFF_FFFF;

/// Hint if the far end is not a partner program.
const PARTNER: &str = "start `siwpeer serve` or `uiw siwtest --listen ADDR:PORT` there; `--raw` is for any other peer";

/// One end of a connection.
pub(super) struct ConnectionEnd {
    pub(super) link: Link,
    pub(super) pd: Pd,
    talk: Buffer,
    posted_slots: u64,
    received: VecDeque<PartnerMessage>,
    memory: Option<Memory>,
    /// Number of posted requests and of posted receives of the current order.
    posted: (u32, u32),
    /// Number of completed requests and of completed receives of the current order.
    done: (u32, u32),
    /// Number of all requests and receives posted so far, and number of those that are complete,
    /// flushed or failed.
    pub(super) totals: (u32, u32),
    bound: bool,
    broken: bool,
    /// First problem found.
    pub(super) wrong: Option<String>,
}

/// A wait that continues while there is progress, up to [`BOUND`].
struct ProgressWait {
    bound: Instant,
    /// Progress at the beginning of the current [`TIMEOUT`], and the end of this time.
    seen: (u32, u64),
    deadline: Instant,
}

impl ProgressWait {
    fn new(end: &ConnectionEnd) -> Self {
        let now = Instant::now();
        Self { bound: now + BOUND, seen: end.moved(), deadline: now + TIMEOUT }
    }

    /// Returns whether there was no progress for [`TIMEOUT`], or [`BOUND`] is over.
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
    /// Memory that the other end may access.
    pub(super) remote: Buffer,
    /// Sources and destinations of our own requests and receives.
    pub(super) local: Buffer,
    /// Window that the other end may invalidate, and the memory under it.
    _window: (RawMw, Buffer),
    /// STag of the window.
    stag: STag,
    /// True if the other end has invalidated the window.
    pub(super) invalidated: bool,
}

impl ConnectionEnd {
    /// Connects to a partner.
    pub(super) fn connect(
        pending: PendingQp,
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
    ) -> Result<Self> {
        let talk = talk_buffer(&pending)?;
        let pd = pending.pd.clone();
        let link = pending
            .connect(peer, options, private_data)
            .map_err(|failure| failure.with_start_hint(PARTNER))?;
        Ok(Self::new(link, pd, talk))
    }

    /// Accepts a connection. The receive for the first order is posted before the Reply is sent.
    pub(super) fn accept(
        pending: PendingQp,
        request: ConnRequest,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let talk = talk_buffer(&pending)?;
        let pd = pending.pd.clone();
        post_recvs(&pending.qp, &[(TALK, Some(slot(&talk, 0)))])?;
        let mut end = Self::new(pending.accept(request, options, private_data, until)?, pd, talk);
        (end.posted_slots, end.totals.0) = (1, 1);
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
            totals: (0, 0),
            bound: false,
            broken: false,
            wrong: None,
        }
    }

    /// Records a problem, unless one was recorded before.
    pub(super) fn note(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    /// Returns the memory of the current order.
    pub(super) fn memory(&self) -> Result<&Memory> {
        self.memory.as_ref().ok_or_else(|| Failure::local("an order", "has no memory"))
    }

    /// Allocates memory for an order, and binds a window that the peer may invalidate.
    pub(super) fn provide(&mut self, order: &Order, remote: usize, local: usize) -> Result<()> {
        let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        match order.op {
            Op::ReadOnlyWrite => access.remove(Access::REMOTE_WRITE),
            Op::WriteOnlyRead => access.remove(Access::REMOTE_READ),
            _ => {}
        }
        // Free the memory of the previous order first, because it may be large.
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
        self.wait_until("the window is bound", |end| end.bound)
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<()> {
        post(&self.link.qp, wr_id, op, sges, flags | SendFlags::SIGNALED)?;
        self.totals.0 += 1;
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
            self.totals.0 += 1;
        }
        Ok(())
    }

    /// Posts a receive for a message of the partner.
    pub(super) fn expect_talk(&mut self) -> Result<()> {
        let number = self.posted_slots % SLOTS;
        post_recvs(&self.link.qp, &[(TALK | number, Some(slot(&self.talk, number)))])?;
        self.posted_slots += 1;
        self.totals.0 += 1;
        Ok(())
    }

    /// Sends a message to the partner.
    pub(super) fn send_message(&mut self, kind: MessageKind, order: Order) -> Result<()> {
        let memory = self.memory.as_ref();
        let talk = PartnerMessage {
            kind,
            order,
            memory: memory.map_or_else(Remote::default, |memory| memory.remote.remote().into()),
            revocable: memory.map_or(0, |memory| memory.stag.0),
            wrong: self.wrong.clone(),
        };
        send_copy(&self.link.qp, TALK, &talk.emit())?;
        self.totals.0 += 1;
        Ok(())
    }

    /// Waits for the next message, which must be of this kind.
    pub(super) fn expect_message(&mut self, kind: MessageKind) -> Result<PartnerMessage> {
        self.wait_until("talk", |end| !end.received.is_empty())?;
        match self.received.pop_front() {
            Some(talk) if talk.kind == kind => Ok(talk),
            _ => Err(self.lost("said something out of turn").with_fix(PARTNER)),
        }
    }

    /// Waits for the next order. Returns `None` if the peer has closed.
    pub(super) fn next_order(&mut self, until: WaitLimits<'_>) -> Result<Option<PartnerMessage>> {
        while self.received.is_empty() && !self.broken && !until.is_over() {
            self.step(until);
        }
        match self.received.pop_front() {
            Some(talk) if talk.kind == MessageKind::Order => Ok(Some(talk)),
            Some(_) => Err(self.lost("said something out of turn")),
            None => Ok(None),
        }
    }

    /// Waits until every request of the order is complete.
    pub(super) fn await_requests(&mut self) -> Result<()> {
        self.wait_until("its requests are done", |end| end.done.0 >= end.posted.0)
    }

    /// Waits until every receive of the order is complete, or a message of the partner arrives.
    pub(super) fn await_receives(&mut self) -> Result<()> {
        self.wait_until("messages", |end| end.done.1 >= end.posted.1 || !end.received.is_empty())
    }

    /// Returns whether every receive of the order is complete.
    pub(super) fn all_received(&self) -> bool {
        self.done.1 == self.posted.1
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<()> {
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

    /// Returns the number of completed requests and receives, and of bytes that TCP has delivered
    /// or received if it counts them.
    fn moved(&self) -> (u32, u64) {
        let stream = self.link.qp.path().map(|path| path.stream).unwrap_or_default();
        (self.totals.1, stream.bytes_acked.unwrap_or(0) + stream.bytes_received.unwrap_or(0))
    }

    fn lost(&self, why: impl std::fmt::Display) -> Failure {
        Failure::lost(self.link.peer(), why)
    }

    fn step(&mut self, until: WaitLimits<'_>) {
        let mut taken = Vec::new();
        let until = until.ended(&self.link);
        completions(&self.link.device, &self.link.cq, WaitMode::Sleep, until, 64, |wc| {
            taken.push(wc);
        });
        // If nothing is posted, no completion reports the end of the connection.
        if taken.is_empty() && self.link.wait_ending(Duration::ZERO).is_some() {
            self.note("closed");
            self.broken = true;
        }
        for wc in taken {
            self.on_completion(&wc);
        }
    }

    fn on_completion(&mut self, wc: &Wc) {
        self.totals.1 += 1;
        if wc.status != WcStatus::Success {
            // A later completion with a reason replaces "closed".
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
                self.note(format!("sent {} bytes that are not a siwtest message", wc.byte_len));
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
            self.note(format!("STag {stag} was invalidated instead of the expected one"));
        }
        if wc.invalidated.is_some()
            && let Some(memory) = &mut self.memory
        {
            memory.invalidated = true;
        }
    }

    /// Closes the connection and waits until everything posted is complete, flushed or failed.
    /// Records the reason for the end of the connection as the problem, unless there is another
    /// one.
    pub(super) fn drain(&mut self) -> Result<()> {
        let mut progress = ProgressWait::new(self);
        self.broken = true;
        if self.link.qp.state() == uiw::raw::QpState::Rts {
            // An error means that the connection has ended already.
            let _ = self.link.qp.disconnect();
        }
        while self.totals.1 < self.totals.0 {
            if progress.is_stalled(self) {
                let (posted, done) = self.totals;
                return Err(self.lost(format!(
                    "{done} of {posted} requests and receives done; nothing moved for {TIMEOUT:?}"
                )));
            }
            self.step(WaitLimits::deadline(progress.deadline));
        }
        if let Some(reason) =
            self.link.wait_ending(Duration::from_secs(10)).and_then(|ending| ending.reason)
            && self.wrong.as_deref().is_none_or(|wrong| wrong == "closed")
        {
            self.wrong = Some(reason.to_string());
        }
        Ok(())
    }
}

fn talk_buffer(pending: &PendingQp) -> Result<Buffer> {
    Buffer::exclusive(&pending.pd, SLOTS as usize * PartnerMessage::LEN)
}

fn slot(talk: &Buffer, number: u64) -> Sge {
    let start = number as usize * PartnerMessage::LEN;
    talk.sge(start..start + PartnerMessage::LEN)
}
