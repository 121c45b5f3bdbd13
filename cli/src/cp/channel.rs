//! A connection of the copy protocol, with messages in both directions and a slot of memory for
//! each request.

use crate::shared::fail::{Failure, Result};
use crate::shared::memory::{Buffer, remote_at};
use crate::shared::msg_conn::{ConnEvent, MsgConn};
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitLimits, WaitMode, post};
use crate::shared::stop::StopFlag;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Access, ConnConfig, Device, Pd, QpState, RemoteMr, SendFlags, SendOp};
use uiw_copy::protocol::{MESSAGE, Reply, SLOT};

/// Set in the number of a Write from a slot.
const DATA: u64 = 1 << 32;
/// Number of messages that may be under way in addition to those of the slots.
const SPARE: u32 = 4;
/// Number of heartbeats that can arrive at a client before it takes them. There are two per second,
/// and the client may be writing files in the meantime.
const HEARTBEATS: u32 = 64;

/// Memory of one end, which is allocated before its connection.
pub(crate) struct SlotMemory {
    pub(crate) pd: Pd,
    slots: u16,
    /// Slots that the peer writes.
    landing: Option<Buffer>,
    /// Sources of Writes to the peer.
    source: Buffer,
    /// Messages to be sent.
    outbox: Buffer,
}

/// Time of the server's last sign of life on any connection of a transfer.
#[derive(Debug)]
pub(crate) struct LastHeard(Mutex<Instant>);

impl Default for LastHeard {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl LastHeard {
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
    /// Time of the last message or bytes on this connection.
    heard: Instant,
    /// Bytes received until the last check, `None` after a message.
    received: Option<u64>,
    all: Arc<LastHeard>,
}

impl SilenceLimit {
    fn heard(&mut self) {
        self.heard = Instant::now();
        self.all.set();
    }
}

/// Interval at which a waiting client checks whether bytes have arrived. Bytes count as a sign of
/// life.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A connection with messages and slots.
pub(crate) struct Channel {
    pub(crate) conn: MsgConn,
    memory: SlotMemory,
    /// Slots of the peer, `None` if it receives no bytes.
    remote: Option<RemoteMr>,
    free: Vec<u32>,
    /// Flags of the slots: true while a Write from the slot is in progress.
    busy: Vec<bool>,
    arrived: VecDeque<Vec<u8>>,
    /// True for the client, which receives heartbeats. They are not replies.
    is_client: bool,
    silence: Option<SilenceLimit>,
}

impl SlotMemory {
    /// Returns the bytes of memory that one end uses for `slots` slots.
    pub(crate) fn bytes(slots: u16) -> u64 {
        let messages = u64::from(slots) + u64::from(SPARE);
        u64::from(slots) * u64::from(SLOT) * 2 + messages * 2 * u64::from(MESSAGE)
    }

    /// Allocates the slots. With `lands`, the peer may write into them. The memory has its own
    /// protection domain, so that other connections cannot access it.
    pub(crate) fn new(device: &Device, slots: u16, lands: bool) -> Result<Self> {
        let pd = device.alloc_pd()?;
        let len = usize::from(slots) * SLOT as usize;
        let landing = lands.then(|| Buffer::shared(&pd, len, Access::REMOTE_WRITE)).transpose()?;
        let source = Buffer::untouched(&pd, len)?;
        let outbox =
            Buffer::untouched(&pd, (u32::from(slots) + SPARE) as usize * MESSAGE as usize)?;
        Ok(Self { pd, slots, landing, source, outbox })
    }

    /// Returns the slots that the peer writes.
    pub(crate) fn remote(&self) -> Option<RemoteMr> {
        self.landing.as_ref().map(Buffer::remote)
    }

    /// Returns the number of requests or replies that may be under way.
    fn messages(&self) -> u32 {
        u32::from(self.slots) + SPARE
    }
}

impl Channel {
    /// Connects. The caller then sets the peer's slots, which the private data of the peer
    /// describes.
    pub(crate) fn connect(
        device: &Device,
        memory: SlotMemory,
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let receives = memory.messages() + HEARTBEATS;
        let depths = QueueDepths::new(memory.messages() + u32::from(memory.slots), receives);
        let pending = PendingQp::new(device, &memory.pd, &depths)?;
        let conn =
            MsgConn::connect(pending, (receives, MESSAGE), peer, options, private_data, until)?;
        Ok(Self::new(conn, memory, None))
    }

    /// Accepts a connection.
    pub(crate) fn accept(
        device: &Device,
        memory: SlotMemory,
        request: ConnRequest,
        options: &ConnConfig,
        reply: &[u8],
        remote: RemoteMr,
        until: WaitLimits<'_>,
    ) -> Result<Self> {
        let receives = memory.messages();
        let depths =
            QueueDepths::new(memory.messages() + u32::from(memory.slots) + HEARTBEATS, receives);
        let pending = PendingQp::new(device, &memory.pd, &depths)?;
        let conn = MsgConn::accept(pending, (receives, MESSAGE), request, options, reply, until)?;
        Ok(Self::new(conn, memory, Some(remote)))
    }

    fn new(conn: MsgConn, memory: SlotMemory, remote: Option<RemoteMr>) -> Self {
        let free = (0..u32::from(memory.slots) + SPARE).collect();
        let busy = vec![false; memory.slots.into()];
        Self {
            conn,
            memory,
            remote,
            free,
            busy,
            arrived: VecDeque::new(),
            is_client: false,
            silence: None,
        }
    }

    /// Limits the time without a sign of life of the server to `time`.
    pub(crate) fn set_silence_limit(&mut self, time: Duration, all: &Arc<LastHeard>) {
        let all = Arc::clone(all);
        self.is_client = true;
        self.silence = Some(SilenceLimit { time, heard: Instant::now(), received: None, all });
    }

    /// Starts the silence limit again. Called before a request is sent while no other one is under
    /// way.
    pub(crate) fn restart_silence(&mut self) -> Result<()> {
        let silence = self.silence.take();
        // Take the old heartbeats first.
        let now = WaitLimits::deadline(Instant::now());
        // Take at most as many as there are receives, in case the server keeps sending.
        for _ in 0..self.memory.messages() + HEARTBEATS {
            if !self.step(now)? {
                break;
            }
        }
        self.silence = silence.map(|silence| SilenceLimit {
            heard: Instant::now(),
            received: None,
            ..silence
        });
        Ok(())
    }

    /// Checks whether bytes have arrived, after some time without completions. Returns an error if
    /// the silence limit is exceeded.
    fn check_arrivals(&mut self) -> Result<()> {
        let Some(silence) = &mut self.silence else { return Ok(()) };
        let received = self.conn.link.qp.path().and_then(|path| path.stream.bytes_received);
        // The first check has nothing to compare with.
        let before = std::mem::replace(&mut silence.received, received);
        if before.is_some() && before != received {
            silence.heard();
        }
        if silence.heard.elapsed() < silence.time {
            return Ok(());
        }
        let why = format!("no answer for {} s", silence.time.as_secs());
        Err(Failure::lost(self.conn.link.peer(), why))
    }

    /// Returns the next event, or `None` if the peer has closed in order or `until` is reached
    /// first.
    fn next_event(&mut self, until: WaitLimits<'_>) -> Result<Option<ConnEvent>> {
        loop {
            let Some(silence) = &self.silence else {
                return self.conn.next(WaitMode::Sleep, until);
            };
            let next_check = (silence.heard + silence.time).min(Instant::now() + CHECK_INTERVAL);
            let deadline = until.deadline.map_or(next_check, |at| at.min(next_check));
            if let Some(event) =
                self.conn.next(WaitMode::Sleep, WaitLimits { deadline: Some(deadline), ..until })?
            {
                return Ok(Some(event));
            }
            if until.is_over() || self.conn.link.qp.state() != QpState::Rts {
                return Ok(None);
            }
            self.check_arrivals()?;
        }
    }

    /// Sets the peer's slots.
    pub(crate) fn set_remote(&mut self, remote: Option<RemoteMr>) {
        self.remote = remote;
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.conn.link.peer()
    }

    /// Returns the next message, or `None` if the peer has closed in order or `until` is reached
    /// first.
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

    /// Handles one completion. Returns false if the peer has closed in order or `until` is reached
    /// first.
    fn step(&mut self, until: WaitLimits<'_>) -> Result<bool> {
        match self.next_event(until)? {
            None => return Ok(false),
            Some(ConnEvent::Message { slot, len }) => {
                let message = self.conn.bytes(slot, len)?;
                self.conn.repost(slot)?;
                if let Some(silence) = &mut self.silence {
                    silence.heard();
                    silence.received = None;
                }
                if self.is_client && matches!(Reply::decode(&message), Ok((_, Reply::Working))) {
                    return Ok(true);
                }
                // The peer may send one message for each slot, which bounds the number of waiting
                // messages.
                if self.arrived.len() > usize::from(self.memory.slots) {
                    return Err(Failure::lost(
                        self.peer(),
                        "sends more messages than it has slots",
                    ));
                }
                self.arrived.push_back(message);
            }
            Some(ConnEvent::Sent(id)) if id & DATA == 0 => self.free.push(id as u32),
            Some(ConnEvent::Sent(id)) => {
                if let Some(busy) = self.busy.get_mut((id & !DATA) as usize) {
                    *busy = false;
                }
            }
        }
        Ok(true)
    }

    /// Waits until `at` and handles completions. `is_due` means that the reply to a request is
    /// awaited.
    pub(crate) fn wait_until(&mut self, at: Instant, stop: &StopFlag, is_due: bool) -> Result<()> {
        while Instant::now() < at && !stop.is_set() {
            if !is_due {
                self.restart_silence()?;
            }
            let until = WaitLimits {
                deadline: Some(at.min(Instant::now() + CHECK_INTERVAL)),
                ..WaitLimits::stop(stop)
            };
            if !self.step(until)? && self.conn.link.qp.state() != QpState::Rts {
                break;
            }
        }
        Ok(())
    }

    /// Creates the error for a peer that has closed the connection.
    pub(crate) fn ended(&self) -> Failure {
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

    /// Writes bytes into a slot of the peer. The message that states their number must follow.
    pub(crate) fn write(&mut self, slot: u16, bytes: &[u8], until: WaitLimits<'_>) -> Result<()> {
        let start = usize::from(slot) * SLOT as usize;
        let Some(remote) = self.remote.filter(|remote| {
            bytes.len() <= SLOT as usize
                && slot < self.memory.slots
                && start + bytes.len() <= remote.len
        }) else {
            return Err(Failure::lost(self.peer(), "has no memory for what it asks for"));
        };
        // The previous Write from this slot may still be queued, because the peer's next request
        // can overtake its completion.
        while self.busy[usize::from(slot)] {
            if !self.step(until)? {
                return Err(self.ended());
            }
        }
        self.memory.source.write(start, bytes)?;
        let sge = self.memory.source.sge(start..start + bytes.len());
        let op = SendOp::Write { remote: remote_at(remote, start as u64) };
        post(&self.conn.link.qp, DATA | u64::from(slot), op, &[sge], SendFlags::SIGNALED)?;
        self.busy[usize::from(slot)] = true;
        Ok(())
    }

    /// Returns a copy of the first bytes of a slot, which the peer cannot change any more.
    pub(crate) fn read_slot(&self, slot: u16, len: u32) -> Result<Vec<u8>> {
        let landing =
            self.memory.landing.as_ref().filter(|_| slot < self.memory.slots && len <= SLOT);
        let Some(landing) = landing else {
            return Err(Failure::lost(self.peer(), "names a slot that it does not have"));
        };
        let mut bytes = vec![0; len as usize];
        landing.read(usize::from(slot) * SLOT as usize, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_down(&self) -> bool {
        // A failed post may be the first sign of the end.
        let link = &self.conn.link;
        link.qp.state() != QpState::Rts || link.wait_ending(Duration::from_secs(1)).is_some()
    }

    /// Closes in order.
    pub(crate) fn close(self) {
        self.conn.link.close();
    }
}
