//! One connection: a socket of smoltcp's in a set of its own.

use super::super::SmolConfig;
use super::super::addr::endpoint;
use super::super::flow::Flow;
use super::super::link::{Segmentation, Sender};
use super::super::path_mtu::PathMtu;
use super::super::probe::{Duplicates, Probe};
use super::super::stretch::{Parts, Stretch};
use super::CLOCK;
use smoltcp::iface::{Context, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant as Tick;
use smoltcp::wire::IpListenEndpoint;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uiw_llp::{Clock, Event, Interest, OptionError, Token, TransportConfig};
use uiw_mem::{IoVec, IoVecMut, Memory};

/// Names of congestion controls.
const CUBIC: &str = "cubic";
const RENO: &str = "reno";

/// Duration of TIME-WAIT in smoltcp, on its clock.
const TIME_WAIT: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);

/// A neighbour that has not answered for so long is not there: as Linux has it.
const GATEWAY: Duration = Duration::from_secs(3);

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A listener: the connection is in set-up, or (`ready`) waiting to be accepted.
    TransportListener {
        port: usize,
        ready: bool,
    },
    TransportStream,
    /// Dropped; it lives until its peer has got all.
    Nobody,
}

pub(super) struct Conn {
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) stretch: Stretch,
    path: PathMtu,
    probe: Probe,
    /// EMSS that the stream reports, also while the interface is locked.
    emss: Arc<AtomicUsize>,
    /// Known from the peer's SYN on.
    pub(super) segmentation: Option<Segmentation>,
    pub(super) flow: Flow,
    /// The hash of the flow: its frames leave by one queue of the link.
    pub(super) queue: u64,
    pub(super) token: Option<Token>,
    pub(super) interest: Interest,
    pub(super) owner: Owner,
    /// It is on the list of those to be looked at.
    pub(super) hot: bool,
    /// Entry among the timers.
    pub(super) timer: Option<i64>,
    pub(super) began: Instant,
    timeout: Option<Duration>,
    /// Reason why it ended, if smoltcp has no reason.
    ended: Option<ErrorKind>,
    /// The gateway for its segments, from which nothing was received yet.
    pub(super) gateway: Option<IpAddr>,
    /// True if FIN was requested.
    finished: bool,
    /// Received bytes that are of no use without more.
    useless: usize,
    /// Time when the connection was first seen in TIME-WAIT.
    time_wait: Option<Tick>,
    /// Memory of the socket's buffers. The buffers refer to it, so it is dropped after `sockets`.
    _buffers: Memory,
}

/// Returns whether the options can be had here.
pub(super) fn check(options: &TransportConfig) -> io::Result<CongestionControl> {
    congestion_control(options.congestion.as_deref())
}

/// Returns the congestion control with this name, or the default.
fn congestion_control(name: Option<&str>) -> io::Result<CongestionControl> {
    match name {
        None | Some(CUBIC | TransportConfig::AUTO) => Ok(CongestionControl::Cubic),
        Some(RENO) => Ok(CongestionControl::Reno),
        Some(name) => {
            let available = format!("{CUBIC} {RENO}");
            Err(OptionError::Congestion { name: name.to_owned(), available }.into())
        }
    }
}

/// Since the beginning of the stack.
fn micros(now: Tick) -> i64 {
    now.total_micros() / i64::from(CLOCK)
}

fn scaled(time: Duration) -> smoltcp::time::Duration {
    let micros = time.as_micros().saturating_mul(u128::from(CLOCK));
    smoltcp::time::Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

impl Conn {
    fn new(
        flow: Flow,
        owner: Owner,
        options: &TransportConfig,
        (buffer, time): (usize, &Clock),
    ) -> io::Result<Self> {
        let len = |size: Option<usize>| {
            let (least, most) = SmolConfig::BUFFERS.into_inner();
            size.unwrap_or(buffer).clamp(least, most)
        };
        let (receive, send) = (len(options.recv_buffer), len(options.send_buffer));
        // Pages of its own: the system provides each of them when bytes come into it, and takes
        // them back when the connection ends. So a connection in set-up has none.
        let buffers = Memory::owned(receive + send)?;
        // SAFETY: a mapping of `receive + send` bytes, zeroed, of which no other reference is made.
        // It is unmapped when `buffers` is dropped, the last field of `Conn`; the socket, which has
        // the slices, does not leave `sockets`, the first one.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffers.as_ptr(), receive + send) };
        let (receive, send) = bytes.split_at_mut(receive);
        let mut socket = Socket::new(SocketBuffer::new(receive), SocketBuffer::new(send));
        socket.set_congestion_control(check(options)?);
        socket.set_nagle_enabled(false);
        socket.set_timeout(options.dead_after.map(scaled));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Ok(Self {
            sockets,
            handle,
            stretch: Stretch::default(),
            path: PathMtu::default(),
            probe: Probe::new(options.dead_after),
            emss: Arc::default(),
            segmentation: None,
            queue: flow.hash(),
            flow,
            token: None,
            interest: Interest::NONE,
            owner,
            hot: false,
            timer: None,
            began: time.now(),
            timeout: options.dead_after,
            ended: None,
            gateway: None,
            finished: false,
            useless: 0,
            time_wait: None,
            _buffers: buffers,
        })
    }

    /// Creates the connection for a SYN that has arrived. Returns `None` if its socket cannot be
    /// created; the listener's options were already checked.
    pub(super) fn for_syn(
        flow: Flow,
        port: usize,
        options: &TransportConfig,
        buffer: usize,
        time: &Clock,
    ) -> Option<Self> {
        let owner = Owner::TransportListener { port, ready: false };
        let mut conn = Self::new(flow, owner, options, (buffer, time)).ok()?;
        let local = endpoint(flow.local);
        let at = IpListenEndpoint { addr: Some(local.addr), port: local.port };
        conn.socket_mut().listen(at).ok()?;
        Some(conn)
    }

    pub(super) fn connecting(
        flow: Flow,
        token: Token,
        options: &TransportConfig,
        ring: (usize, &Clock),
        context: &mut Context,
    ) -> io::Result<Self> {
        let mut conn = Self::new(flow, Owner::TransportStream, options, ring)?;
        conn.token = Some(token);
        conn.interest = Interest::WRITE;
        conn.socket_mut()
            .connect(context, endpoint(flow.peer), endpoint(flow.local))
            .map_err(|error| io::Error::new(ErrorKind::AddrNotAvailable, error.to_string()))?;
        Ok(conn)
    }

    fn socket(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Returns the state that segments of the connection need on the link, and its socket.
    pub(super) fn sender(&mut self, now: Tick) -> (Sender<'_>, &mut SocketSet<'static>) {
        let Self { stretch, path, probe, segmentation, sockets, .. } = self;
        (Sender { stretch, path, probe, segmentation: *segmentation, now: micros(now) }, sockets)
    }

    /// Handles a frame with a segment of the peer: see [`Stretch::note_received`].
    pub(super) fn note_received(&mut self, frame: &[u8], emss: usize, now: Tick) -> Option<Parts> {
        let before = self.stretch.acknowledged();
        let parts = self.stretch.note_received(frame, emss);
        let acknowledged = self.stretch.acknowledged();
        self.path.note_acknowledged(acknowledged, micros(now));
        self.probe.note_received(acknowledged != before, micros(now));
        parts
    }

    /// See [`Probe::duplicates`].
    pub(super) fn duplicates(&mut self, frame: &[u8]) -> Option<Duplicates> {
        self.probe.duplicates(frame)
    }

    /// Returns the time of the next probe.
    pub(super) fn next_probe(&self) -> Option<Tick> {
        if !self.is_established() || self.socket().state() == State::TimeWait {
            return None;
        }
        let micros = self.probe.next(self.unacknowledged() > 0)?;
        Some(Tick::from_micros(micros.saturating_mul(i64::from(CLOCK))))
    }

    /// The frame of a probe.
    pub(super) fn probe(&mut self, now: Tick) -> &[u8] {
        let in_flight = self.unacknowledged() > 0;
        self.probe.frame(self.stretch.acknowledged(), in_flight, micros(now))
    }

    /// Bytes of payload in a segment, where the interface carries `whole`, as the path is known
    /// now.
    pub(super) fn note_emss(&self, whole: usize) -> &Arc<AtomicUsize> {
        self.emss.store(self.path.segment(whole), Ordering::Relaxed);
        &self.emss
    }

    pub(super) fn is_opening(&self) -> bool {
        matches!(self.socket().state(), State::SynReceived | State::SynSent)
    }

    pub(super) fn is_established(&self) -> bool {
        !matches!(self.socket().state(), State::Closed | State::Listen | State::SynReceived | State::SynSent)
    }

    /// Returns whether nothing is left to be sent or received.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.socket().state(), State::Closed | State::Listen)
    }

    /// Let go or closed, with bytes or a FIN that the peer has not acknowledged.
    pub(super) fn is_unacknowledged(&self) -> bool {
        let acknowledged = [State::Closed, State::TimeWait, State::FinWait2];
        (self.owner == Owner::Nobody || self.finished) && !acknowledged.contains(&self.socket().state())
    }

    /// Returns whether smoltcp is to leave it alone until its stream is dropped: at the end of
    /// TIME-WAIT it throws away what was received and not read, the peer's FIN as well. Until half
    /// of that time is over it acknowledges, as it must (RFC 9293 section 3.6.1).
    pub(super) fn outlasts_time_wait(&mut self, now: Tick) -> bool {
        if self.owner != Owner::TransportStream || self.socket().state() != State::TimeWait {
            return false;
        }
        now >= *self.time_wait.get_or_insert(now) + TIME_WAIT / 2
    }

    /// Bytes that the peer has not acknowledged, sent or not.
    pub(super) fn unacknowledged(&self) -> usize {
        self.socket().send_queue()
    }

    pub(super) fn set_congestion(&mut self, name: &str) -> io::Result<()> {
        let control = congestion_control(Some(name))?;
        self.socket_mut().set_congestion_control(control);
        Ok(())
    }

    pub(super) fn congestion(&self) -> &'static str {
        match self.socket().congestion_control() {
            CongestionControl::Reno => RENO,
            CongestionControl::Cubic => CUBIC,
            CongestionControl::None => "none",
        }
    }

    /// Returns the event that a poll would report for the connection.
    pub(super) fn event(&self) -> Option<Event> {
        let token = self.token?;
        let socket = self.socket();
        if self.ended.is_some() || self.is_over() {
            return Some(Event { token, readable: true, writable: true });
        }
        if self.is_opening() {
            return None;
        }
        let readable = self.interest.read && (socket.recv_queue() > self.useless || self.is_all_here());
        // A little room is no news: bytes would leave in small segments.
        let room = socket.send_capacity() - socket.send_queue() >= socket.send_capacity() / 8;
        let writable = self.interest.write && (room || !socket.may_send());
        (readable || writable).then_some(Event { token, readable, writable })
    }

    /// Returns the reason why nothing can be sent or received any more.
    fn error(&self) -> io::Error {
        match (self.ended, self.gateway) {
            (Some(ErrorKind::HostUnreachable), Some(gateway)) => {
                io::Error::new(ErrorKind::HostUnreachable, format!("the gateway {gateway} does not answer"))
            }
            (ended, _) => ended.unwrap_or(ErrorKind::ConnectionReset).into(),
        }
    }

    /// Copies bytes into the send buffer.
    pub(super) fn fill(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        if self.ended.is_some() || self.is_over() {
            return Err(self.error());
        }
        if self.finished {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if self.is_opening() {
            return Ok(0);
        }
        let mut total = 0;
        for buf in bufs {
            let mut done = 0;
            while done < buf.len() {
                let part = buf.sub(done..buf.len());
                let taken = self.socket_mut().send(|room| {
                    let count = room.len().min(part.len());
                    part.sub(0..count).copy_to(&mut room[..count]);
                    (count, count)
                });
                match taken {
                    Ok(0) => return Ok(total),
                    Ok(count) => (done, total) = (done + count, total + count),
                    Err(_) if total > 0 => return Ok(total),
                    Err(_) => return Err(self.error()),
                }
            }
        }
        Ok(total)
    }

    /// Returns whether nothing can follow the received bytes.
    fn is_all_here(&self) -> bool {
        !matches!(self.socket().state(), State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Received bytes as far as they lie in one piece; none behind the peer's FIN.
    pub(super) fn received(&mut self) -> io::Result<&mut [u8]> {
        let (all_here, opening) = (self.is_all_here(), self.is_opening());
        if !all_here && self.socket().recv_queue() <= self.useless {
            return Err(ErrorKind::WouldBlock.into());
        }
        let ended = self.ended;
        match self.socket_mut().recv(|bytes| (0, bytes)) {
            Ok(bytes) => Ok(bytes),
            Err(RecvError::Finished) if ended.is_none() => Ok(&mut []),
            Err(_) if opening => Err(ErrorKind::WouldBlock.into()),
            Err(_) => Err(ended.unwrap_or(ErrorKind::ConnectionReset).into()),
        }
    }

    /// Returns whether bytes that come will stand behind the `len` of [`Conn::received`], with room
    /// for them once `used` are taken.
    pub(super) fn can_grow(&self, len: usize, used: usize) -> bool {
        let socket = self.socket();
        !self.is_all_here() && socket.recv_queue() == len && len - used < socket.recv_capacity() / 2
    }

    /// Takes bytes of [`Conn::received`]; the rest is of no use until more has come, if `wait` says
    /// so.
    pub(super) fn consume(&mut self, used: usize, wait: bool) {
        let _ = self.socket_mut().recv(|bytes| (used.min(bytes.len()), ()));
        self.useless = if wait { self.socket().recv_queue() } else { 0 };
    }

    /// Copies received bytes out.
    pub(super) fn drain(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.useless = 0;
        let mut total = 0;
        for buf in bufs {
            let mut done = 0;
            while done < buf.len() {
                let len = buf.len();
                let taken = self.socket_mut().recv(|bytes| {
                    let count = bytes.len().min(len - done);
                    buf.sub(done..done + count).copy_from(&bytes[..count]);
                    (count, count)
                });
                match taken {
                    Ok(0) if total > 0 => return Ok(total),
                    Ok(0) => return Err(ErrorKind::WouldBlock.into()),
                    Ok(count) => (done, total) = (done + count, total + count),
                    Err(_) if total > 0 => return Ok(total),
                    Err(RecvError::Finished) if self.ended.is_none() => return Ok(0),
                    Err(_) if self.is_opening() => return Err(ErrorKind::WouldBlock.into()),
                    Err(_) => return Err(self.error()),
                }
            }
        }
        Ok(total)
    }

    pub(super) fn connect_result(&mut self, now: Instant) -> io::Result<bool> {
        if self.ended.is_some() {
            return Err(self.error());
        }
        if self.is_opening() {
            return Ok(false);
        }
        if self.is_established() {
            return Ok(true);
        }
        let timed_out = self.timeout.is_some_and(|timeout| now - self.began >= timeout);
        Err(if timed_out { ErrorKind::TimedOut } else { ErrorKind::ConnectionRefused }.into())
    }

    pub(super) fn shutdown(&mut self) -> io::Result<()> {
        if self.is_over() || self.ended.is_some() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.finished = true;
        self.socket_mut().close();
        Ok(())
    }

    /// Returns whether it waits in vain for the gateway of its segments.
    pub(super) fn misses_gateway(&self, now: Instant) -> bool {
        self.gateway.is_some() && self.is_opening() && now.saturating_duration_since(self.began) >= GATEWAY
    }

    pub(super) fn set_dead_after(&mut self, after: Option<Duration>) {
        self.socket_mut().set_timeout(after.map(scaled));
        self.probe.set_dead_after(after);
    }

    /// Ends it at once; a RST is sent with the next egress.
    pub(super) fn end(&mut self, why: ErrorKind) {
        self.ended.get_or_insert(why);
        self.socket_mut().abort();
    }
}
