//! A connection of this protocol: messages both ways, and a slot of memory for each request.

use crate::shared::fail::{Failure, Result};
use crate::shared::memory::{Buffer, at};
use crate::shared::msg_conn::{Event, MsgConn};
use crate::shared::qp_setup::{Depths, PendingQp, Wait, WaitLimits, post};
use crate::shared::stop::Stop;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Access, ConnConfig, Device, Pd, QpState, RemoteMr, SendFlags, SendOp};
use uiw_copy::protocol::{MESSAGE, Reply, SLOT};

/// Set in the number of a Write out of a slot.
const DATA: u64 = 1 << 32;
/// Messages that may be under way beside those of the slots.
const SPARE: u32 = 4;
/// Signs of life that a client may leave untaken: it writes files meanwhile, and there are two each
/// second.
const PULSES: u32 = 64;

/// Memory of one end, made before its connection.
pub(crate) struct Memory {
    pub(crate) pd: Pd,
    slots: u16,
    /// What the peer writes.
    landing: Option<Buffer>,
    /// What is written to the peer.
    source: Buffer,
    /// The messages that are sent.
    outbox: Buffer,
}

/// Time of a server's last sign of life, on any connection of a transfer.
#[derive(Debug)]
pub(crate) struct Heard(Mutex<Instant>);

impl Default for Heard {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Heard {
    pub(crate) fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Limit for the time without a sign of life of the server. A TCP acknowledgement is not a sign of
/// life: the kernel sends it for a stopped process as well.
struct SilenceLimit {
    time: Duration,
    /// The last sign on this connection: a message, or bytes that came.
    heard: Instant,
    /// Bytes that had come at the last look, if nothing else has happened since.
    received: Option<u64>,
    all: Arc<Heard>,
}

impl SilenceLimit {
    fn heard(&mut self) {
        self.heard = Instant::now();
        self.all.set();
    }
}

/// Interval at which a waiting client checks whether bytes have arrived.
const LOOK: Duration = Duration::from_millis(500);

/// A connection.
pub(crate) struct Channel {
    pub(crate) conn: MsgConn,
    memory: Memory,
    /// The peer's slots; none if it takes no bytes.
    remote: Option<RemoteMr>,
    free: Vec<u32>,
    /// Whether a Write out of the slot is under way.
    busy: Vec<bool>,
    arrived: VecDeque<Vec<u8>>,
    /// Takes signs of life, which are no replies.
    is_client: bool,
    patience: Option<SilenceLimit>,
}

impl Memory {
    /// Bytes that one end has for `slots` slots.
    pub(crate) fn bytes(slots: u16) -> u64 {
        let messages = u64::from(slots) + u64::from(SPARE);
        u64::from(slots) * u64::from(SLOT) * 2 + messages * 2 * u64::from(MESSAGE)
    }

    /// Makes the slots. With `lands`, the peer may write into the slots. A protection domain of its
    /// own: no other connection reaches them.
    pub(crate) fn new(device: &Device, slots: u16, lands: bool) -> Result<Self> {
        let pd = device.alloc_pd()?;
        let len = usize::from(slots) * SLOT as usize;
        let landing = lands.then(|| Buffer::shared(&pd, len, Access::REMOTE_WRITE)).transpose()?;
        let source = Buffer::untouched(&pd, len)?;
        let outbox = Buffer::untouched(&pd, (u32::from(slots) + SPARE) as usize * MESSAGE as usize)?;
        Ok(Self { pd, slots, landing, source, outbox })
    }

    /// Where the peer writes.
    pub(crate) fn remote(&self) -> Option<RemoteMr> {
        self.landing.as_ref().map(Buffer::remote)
    }

    /// Messages of requests or of replies that may be under way.
    fn messages(&self) -> u32 {
        u32::from(self.slots) + SPARE
    }
}

impl Channel {
    /// Connects; the caller says where the peer's slots are once it has read the peer's private
    /// data.
    pub(crate) fn connect(
        device: &Device,
        memory: Memory,
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let receives = memory.messages() + PULSES;
        let depths = Depths::new(memory.messages() + u32::from(memory.slots), receives);
        let half = PendingQp::new(device, &memory.pd, &depths)?;
        let conn = MsgConn::connect(half, (receives, MESSAGE), peer, options, private_data, until)?;
        Ok(Self::new(conn, memory, None))
    }

    /// Accepts.
    pub(crate) fn accept(
        device: &Device,
        memory: Memory,
        request: ConnRequest,
        options: &ConnConfig,
        reply: &[u8],
        remote: RemoteMr,
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let receives = memory.messages();
        let depths = Depths::new(memory.messages() + u32::from(memory.slots) + PULSES, receives);
        let half = PendingQp::new(device, &memory.pd, &depths)?;
        let conn = MsgConn::accept(half, (receives, MESSAGE), request, options, reply, until)?;
        Ok(Self::new(conn, memory, Some(remote)))
    }

    fn new(conn: MsgConn, memory: Memory, remote: Option<RemoteMr>) -> Self {
        let free = (0..u32::from(memory.slots) + SPARE).collect();
        let busy = vec![false; memory.slots.into()];
        Self { conn, memory, remote, free, busy, arrived: VecDeque::new(), is_client: false, patience: None }
    }

    /// Ends waiting for a server that gives no sign of life for `time`.
    pub(crate) fn set_patience(&mut self, time: Duration, all: &Arc<Heard>) {
        let all = Arc::clone(all);
        self.is_client = true;
        self.patience = Some(SilenceLimit { time, heard: Instant::now(), received: None, all });
    }

    /// A request is about to be sent, and no other one is under way: the time begins now.
    pub(crate) fn wait_anew(&mut self) -> Result<()> {
        let patience = self.patience.take();
        // Signs of life that have not been taken are old.
        let now = WaitLimits::deadline(Instant::now());
        // No more than there are receives: a server that sends more at the same time is not
        // followed.
        for _ in 0..self.memory.messages() + PULSES {
            if !self.step(now)? {
                break;
            }
        }
        self.patience =
            patience.map(|patience| SilenceLimit { heard: Instant::now(), received: None, ..patience });
        Ok(())
    }

    /// Checks for arrived bytes after a moment without completions.
    fn look(&mut self) -> Result<()> {
        let Some(patience) = &mut self.patience else { return Ok(()) };
        let received = self.conn.link.qp.path().and_then(|path| path.stream.bytes_received);
        // The first look has nothing to compare with.
        let before = std::mem::replace(&mut patience.received, received);
        if before.is_some() && before != received {
            patience.heard();
        }
        if patience.heard.elapsed() < patience.time {
            return Ok(());
        }
        let why = format!("no answer for {} s", patience.time.as_secs());
        Err(Failure::lost(self.conn.link.peer(), why))
    }

    /// The next event; `None` when the peer has closed in order, or `until` came first.
    fn event(&mut self, until: WaitLimits<'_>) -> Result<Option<Event>> {
        loop {
            let Some(patience) = &self.patience else { return self.conn.next(Wait::Sleep, until) };
            let look = (patience.heard + patience.time).min(Instant::now() + LOOK);
            let deadline = until.deadline.map_or(look, |at| at.min(look));
            if let Some(event) =
                self.conn.next(Wait::Sleep, WaitLimits { deadline: Some(deadline), ..until })?
            {
                return Ok(Some(event));
            }
            if until.is_over() || self.conn.link.qp.state() != QpState::Rts {
                return Ok(None);
            }
            self.look()?;
        }
    }

    /// Where the peer's slots are.
    pub(crate) fn set_remote(&mut self, remote: Option<RemoteMr>) {
        self.remote = remote;
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.conn.link.peer()
    }

    /// The next message; `None` when the peer has closed in order, or `until` came first.
    pub(crate) fn next(&mut self, until: WaitLimits<'_>) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.arrived.pop_front() {
                return Ok(Some(message));
            }
            if !self.step(until)? {
                return Ok(None);
            }
        }
    }

    /// One completion.
    fn step(&mut self, until: WaitLimits<'_>) -> Result<bool> {
        match self.event(until)? {
            None => return Ok(false),
            Some(Event::Message { slot, len }) => {
                let message = self.conn.bytes(slot, len)?;
                self.conn.repost(slot)?;
                if let Some(patience) = &mut self.patience {
                    patience.heard();
                    patience.received = None;
                }
                if self.is_client && matches!(Reply::decode(&message), Ok((_, Reply::Working))) {
                    return Ok(true);
                }
                // A request for each slot, and no more: what waits here is bounded.
                if self.arrived.len() > usize::from(self.memory.slots) {
                    return Err(Failure::lost(self.peer(), "sends more messages than it has slots"));
                }
                self.arrived.push_back(message);
            }
            Some(Event::Sent(id)) if id & DATA == 0 => self.free.push(id as u32),
            Some(Event::Sent(id)) => {
                if let Some(busy) = self.busy.get_mut((id & !DATA) as usize) {
                    *busy = false;
                }
            }
        }
        Ok(true)
    }

    /// Waits until `at`, and takes what comes meanwhile. With `is_due`, a reply to a request may
    /// come.
    pub(crate) fn wait_until(&mut self, at: Instant, stop: &Stop, is_due: bool) -> Result<()> {
        while Instant::now() < at && !stop.is_set() {
            if !is_due {
                self.wait_anew()?;
            }
            let until =
                WaitLimits { deadline: Some(at.min(Instant::now() + LOOK)), ..WaitLimits::stop(stop) };
            if !self.step(until)? && self.conn.link.qp.state() != QpState::Rts {
                break;
            }
        }
        Ok(())
    }

    fn ended(&self) -> Failure {
        Failure::lost(self.peer(), "closed the connection")
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &[u8], until: WaitLimits<'_>) -> Result<()> {
        let outbox = loop {
            if let Some(outbox) = self.free.pop() {
                break outbox;
            }
            if !self.step(until)? {
                return Err(self.ended());
            }
        };
        let start = outbox as usize * MESSAGE as usize;
        self.memory.outbox.write(start, message)?;
        let sge = self.memory.outbox.sge(start..start + message.len());
        post(&self.conn.link.qp, outbox.into(), SendOp::Send, &[sge], SendFlags::SIGNALED)
    }

    /// Writes bytes into the peer's slot; the message that says how many follows.
    pub(crate) fn write(&mut self, slot: u16, bytes: &[u8], until: WaitLimits<'_>) -> Result<()> {
        let start = usize::from(slot) * SLOT as usize;
        let Some(remote) = self.remote.filter(|remote| {
            bytes.len() <= SLOT as usize && slot < self.memory.slots && start + bytes.len() <= remote.len
        }) else {
            return Err(Failure::lost(self.peer(), "has no memory for what it asks for"));
        };
        // The Write before it may still be in the queue, as the peer's next request can overtake
        // its completion.
        while self.busy[usize::from(slot)] {
            if !self.step(until)? {
                return Err(self.ended());
            }
        }
        self.memory.source.write(start, bytes)?;
        let sge = self.memory.source.sge(start..start + bytes.len());
        let op = SendOp::Write { remote: at(remote, start as u64) };
        post(&self.conn.link.qp, DATA | u64::from(slot), op, &[sge], SendFlags::SIGNALED)?;
        self.busy[usize::from(slot)] = true;
        Ok(())
    }

    /// A copy of the first bytes of a slot, which the peer cannot change any more.
    pub(crate) fn landed(&self, slot: u16, len: u32) -> Result<Vec<u8>> {
        let landing = self.memory.landing.as_ref().filter(|_| slot < self.memory.slots && len <= SLOT);
        let Some(landing) = landing else {
            return Err(Failure::lost(self.peer(), "names a slot that it does not have"));
        };
        let mut bytes = vec![0; len as usize];
        landing.read(usize::from(slot) * SLOT as usize, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_down(&self) -> bool {
        // A request that is refused may be the first sign of it.
        let link = &self.conn.link;
        link.qp.state() != QpState::Rts || link.wait_ending(Duration::from_secs(1)).is_some()
    }

    /// Closes in order.
    pub(crate) fn close(self) {
        self.conn.link.close();
    }
}
