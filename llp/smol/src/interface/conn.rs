//! One connection: a smoltcp socket in its own set.

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

/// Time after which a gateway that has not answered is considered absent, as in Linux.
const GATEWAY: Duration = Duration::from_secs(3);

/// Time after which the connection of a dropped stream is reset, counted from the drop or from the
/// last acknowledgement of data. A peer that sends no FIN, or does not acknowledge ours, would keep
/// it for ever.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A listener. The connection is being set up or, if `ready`, waits to be accepted.
    TransportListener {
        port: usize,
        ready: bool,
    },
    TransportStream,
    /// No owner: the stream was dropped, and the connection exists until its peer has received all
    /// data, or its time limit passes.
    Nobody,
}

pub(super) struct Conn {
    pub(super) sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) stretch: Stretch,
    path: PathMtu,
    probe: Probe,
    /// EMSS in bytes, shared with the stream, which can report it even while the interface is
    /// locked.
    emss: Arc<AtomicUsize>,
    /// Segmentation, which is known after the peer's SYN.
    pub(super) segmentation: Option<Segmentation>,
    pub(super) flow: Flow,
    /// Hash of the flow, which determines the queue of the link for its frames.
    pub(super) queue: u64,
    pub(super) token: Option<Token>,
    pub(super) interest: Interest,
    pub(super) owner: Owner,
    /// True if the connection is in the list of connections to check.
    pub(super) hot: bool,
    /// Time of the connection's entry in the timers of the interface, in microseconds of smoltcp's
    /// clock.
    pub(super) timer: Option<i64>,
    pub(super) began: Instant,
    timeout: Option<Duration>,
    /// Reason why the connection ended, if smoltcp does not provide it.
    ended: Option<ErrorKind>,
    /// Gateway for the connection's segments, if nothing was received from it yet.
    pub(super) gateway: Option<IpAddr>,
    /// True if FIN was requested.
    finished: bool,
    /// Number of received bytes that can be processed only together with later ones.
    useless: usize,
    /// Time limit of a connection whose stream was dropped.
    pub(super) closes_by: Option<Tick>,
    /// Time at which the connection was first seen in TIME-WAIT.
    time_wait: Option<Tick>,
    /// Memory of the socket's buffers. The buffers refer to it, so it must be dropped after
    /// `sockets`.
    _buffers: Memory,
}

/// Checks that the options are supported.
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

/// Returns the time since the start of the stack, in microseconds.
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
        // The buffers have their own pages. The system provides a page only when data is stored in
        // it, so a connection that is being set up uses none. The pages are released when the
        // connection ends.
        let buffers = Memory::owned(receive + send)?;
        // SAFETY: the mapping has `receive + send` zeroed bytes, and there is no other reference to
        // it. It is unmapped when `buffers` is dropped, which is the last field of `Conn`. The
        // socket that has the slices never leaves `sockets`, which is the first field.
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
            closes_by: None,
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

    /// Returns the state that the link needs for segments of the connection, and its socket.
    pub(super) fn sender(&mut self, now: Tick) -> (Sender<'_>, &mut SocketSet<'static>) {
        let Self { stretch, path, probe, segmentation, sockets, .. } = self;
        (Sender { stretch, path, probe, segmentation: *segmentation, now: micros(now) }, sockets)
    }

    /// Returns whether the segment in a frame can be from the peer: see [`Stretch::accepts`].
    pub(super) fn accepts(&self, frame: &[u8]) -> bool {
        self.stretch.accepts(frame, self.socket().recv_capacity())
    }

    /// Handles a frame with a segment of the peer: see [`Stretch::note_received`].
    pub(super) fn note_received(&mut self, frame: &[u8], emss: usize, now: Tick) -> Option<Parts> {
        let before = self.stretch.acknowledged();
        let parts = self.stretch.note_received(frame, emss);
        let acknowledged = self.stretch.acknowledged();
        self.path.note_acknowledged(acknowledged, micros(now));
        self.probe.note_received(acknowledged != before, micros(now));
        if acknowledged != before && self.closes_by.is_some() {
            self.extend_close(now);
        }
        parts
    }

    /// Restarts the time limit of a connection whose stream was dropped.
    pub(super) fn extend_close(&mut self, now: Tick) {
        self.closes_by = Some(now + scaled(CLOSE_TIMEOUT));
    }

    /// Like [`Probe::duplicates`], for the probe of this connection.
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

    /// Returns the frame of a probe.
    pub(super) fn probe(&mut self, now: Tick) -> &[u8] {
        let in_flight = self.unacknowledged() > 0;
        self.probe.frame(self.stretch.acknowledged(), in_flight, micros(now))
    }

    /// Updates and returns the maximum payload of a segment in bytes. The interface carries `whole`
    /// bytes; the known limit of the path is taken into account.
    pub(super) fn note_emss(&self, whole: usize) -> &Arc<AtomicUsize> {
        self.emss.store(self.path.segment(whole), Ordering::Relaxed);
        &self.emss
    }

    pub(super) fn is_opening(&self) -> bool {
        matches!(self.socket().state(), State::SynReceived | State::SynSent)
    }

    pub(super) fn is_established(&self) -> bool {
        !matches!(
            self.socket().state(),
            State::Closed | State::Listen | State::SynReceived | State::SynSent
        )
    }

    /// Returns whether the connection is closed, or its set-up at a listener has failed. Received
    /// data may still be waiting to be read.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.socket().state(), State::Closed | State::Listen)
    }

    /// Returns whether the stream was dropped or shut down, and the peer has not acknowledged all
    /// data and the FIN.
    pub(super) fn is_unacknowledged(&self) -> bool {
        let acknowledged = [State::Closed, State::TimeWait, State::FinWait2];
        (self.owner == Owner::Nobody || self.finished)
            && !acknowledged.contains(&self.socket().state())
    }

    /// Returns whether smoltcp must not process the connection until its stream is dropped. At the
    /// end of TIME-WAIT, smoltcp would discard received data that was not read, and the peer's FIN.
    /// During the first half of that time it still acknowledges segments, as required (RFC 9293
    /// section 3.6.1).
    pub(super) fn outlasts_time_wait(&mut self, now: Tick) -> bool {
        if self.owner != Owner::TransportStream || self.socket().state() != State::TimeWait {
            return false;
        }
        now >= *self.time_wait.get_or_insert(now) + TIME_WAIT / 2
    }

    /// Returns the number of bytes that the peer has not acknowledged, including those that were
    /// not sent.
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
        let readable =
            self.interest.read && (socket.recv_queue() > self.useless || self.is_all_here());
        // A small amount of room is not reported, because data would leave in small segments.
        let room = socket.send_capacity() - socket.send_queue() >= socket.send_capacity() / 8;
        let writable = self.interest.write && (room || !socket.may_send());
        (readable || writable).then_some(Event { token, readable, writable })
    }

    /// Returns the error of calls after the connection has ended.
    fn error(&self) -> io::Error {
        match (self.ended, self.gateway) {
            (Some(ErrorKind::HostUnreachable), Some(gateway)) => io::Error::new(
                ErrorKind::HostUnreachable,
                format!("the gateway {gateway} does not answer"),
            ),
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
                let mut is_mapped = true;
                let taken = self.socket_mut().send(|room| {
                    let count = room.len().min(part.len());
                    is_mapped = part.sub(0..count).try_copy_to(&mut room[..count]);
                    if is_mapped { (count, count) } else { (0, 0) }
                });
                match taken {
                    Ok(_) if !is_mapped && total == 0 => {
                        return Err(io::Error::from_raw_os_error(libc::EFAULT));
                    }
                    Ok(0) => return Ok(total),
                    Ok(count) => (done, total) = (done + count, total + count),
                    Err(_) if total > 0 => return Ok(total),
                    Err(_) => return Err(self.error()),
                }
            }
        }
        Ok(total)
    }

    /// Returns whether no more bytes can arrive. Before the connection is established, this is also
    /// true.
    fn is_all_here(&self) -> bool {
        !matches!(self.socket().state(), State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns the contiguous received bytes, or none after the peer's FIN.
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

    /// Returns whether later bytes can be stored contiguously after the `len` bytes of
    /// [`Conn::received`], with room for them after `used` bytes were consumed.
    pub(super) fn can_grow(&self, len: usize, used: usize) -> bool {
        let socket = self.socket();
        !self.is_all_here() && socket.recv_queue() == len && len - used < socket.recv_capacity() / 2
    }

    /// Consumes bytes of [`Conn::received`]. If `wait` is true, the rest can be processed only when
    /// more bytes have arrived.
    pub(super) fn consume(&mut self, used: usize, wait: bool) {
        let _ = self.socket_mut().recv(|bytes| (used.min(bytes.len()), ()));
        self.useless = if wait { self.socket().recv_queue() } else { 0 };
    }

    /// Copies received bytes to `bufs`.
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

    /// Returns whether the connection waits for a gateway that does not answer.
    pub(super) fn misses_gateway(&self, now: Instant) -> bool {
        self.gateway.is_some()
            && self.is_opening()
            && now.saturating_duration_since(self.began) >= GATEWAY
    }

    pub(super) fn set_dead_after(&mut self, after: Option<Duration>) {
        self.socket_mut().set_timeout(after.map(scaled));
        self.probe.set_dead_after(after);
    }

    /// Ends the connection immediately. A RST is sent with the next egress.
    pub(super) fn end(&mut self, why: ErrorKind) {
        self.ended.get_or_insert(why);
        self.socket_mut().abort();
    }
}
