//! The kernel's TCP: non-blocking sockets in one level-triggered epoll set.

mod congestion;
mod datagram;
mod multipath;
mod setup;
mod stream;
mod syscall;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    io,
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
    net::{SocketFlags, acceptfrom_with},
};

use crate::{
    DatagramConfig, DatagramSocket, Event, Interest, ListenConfig, StackExtensions, Token,
    TransportConfig, TransportListener, TransportStack, TransportStream, foreign_stream,
};
use multipath::TcpVariant;
pub use stream::TcpStream;

/// Converts a `struct tcp_info` as returned by the kernel.
pub(crate) fn stream_info(bytes: &[u8], congestion: Option<String>) -> crate::StreamInfo {
    stream::info_of(&syscall::tcp_info_of(bytes), congestion)
}

/// Maximum number of events that one poll returns. Epoll moves a ready descriptor that was reported
/// to the end of its list, so all ready descriptors are reported in turn even if there are more.
const EVENTS: usize = 256;

/// Time for which a listener ignores waiting connections when it has no descriptor for them.
const PAUSE: Duration = Duration::from_millis(100);

/// The kernel's TCP, with one epoll set, which [`StackExtensions::wait_fd`] returns.
#[derive(Debug)]
pub struct TcpStack {
    epoll: Arc<OwnedFd>,
    kind: TcpVariant,
    paused: Arc<PausedListeners>,
}

impl TcpStack {
    /// Creates a stack with an empty epoll set.
    ///
    /// # Errors
    /// Returns OS errors, for example if the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Self::with_variant(TcpVariant::Tcp)
    }

    /// Creates a stack that uses the kernel's MPTCP (RFC 8684). A connection uses the paths that
    /// the system's path manager configures (`ip mptcp`), and survives as long as one of them
    /// works. With a peer without MPTCP it is a TCP connection ([`crate::StreamInfo::multipath`]).
    ///
    /// # Errors
    /// The same as for [`TcpStack::new`]; `Unsupported` if the kernel has no MPTCP, or it is
    /// disabled.
    pub fn multipath() -> io::Result<Self> {
        setup::check_supported(TcpVariant::Multipath)?;
        Self::with_variant(TcpVariant::Multipath)
    }

    fn with_variant(kind: TcpVariant) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll: Arc::new(epoll), kind, paused: Arc::default() })
    }
}

impl TransportStack for TcpStack {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>> {
        let socket = setup::listener(self.kind, local, options)?;
        let local = setup::local_addr(&socket)?;
        epoll::add(&self.epoll, &socket, data(token), flags(Interest::READ))?;
        tracing::debug!(%local, "listening");
        let (socket, epoll) = (socket.into(), self.epoll.clone());
        let congestion = options.stream.congestion.clone();
        Ok(Box::new(TcpListener {
            socket,
            epoll,
            local,
            congestion,
            kind: self.kind,
            spare: spare(),
            token,
            paused: self.paused.clone(),
            is_paused: false,
        }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let socket = setup::connect_to_peer(self.kind, local, peer, options)?;
        let local = setup::local_addr(&socket)?;
        tracing::debug!(%local, %peer, "connecting");
        let congestion = options.congestion.as_deref();
        let stream =
            TcpStream::new(socket, &self.epoll, token, Interest::WRITE, (local, peer), congestion)?;
        Ok(Box::new(stream.with_variant(self.kind)))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let ready = match epoll::wait(&self.epoll, &mut ready[..], Some(&at_once)) {
            Ok((ready, _)) => ready,
            // The wait was interrupted by a signal. Everything that is ready is still ready at the
            // next poll.
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        events.extend(ready.iter().map(|ready| {
            let flags = ready.flags;
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            Event {
                token: Token(ready.data.u64()),
                readable: broken || flags.contains(epoll::EventFlags::IN),
                writable: broken || flags.contains(epoll::EventFlags::OUT),
            }
        }));
        self.paused.take_due(events);
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.paused.deadline()
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl StackExtensions for TcpStack {
    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let socket = setup::connect_to_self(local, options)?;
        let own = setup::local_addr(&socket)?;
        tracing::debug!(%own, "connecting to itself");
        Ok(Box::new(TcpStream::new(socket, &self.epoll, token, Interest::WRITE, (own, own), None)?))
    }

    fn open_socket(
        &mut self,
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let (socket, local, connected_to) = setup::from_fd(socket, options)?;
        let congestion = options.congestion.as_deref();
        let addresses = (local, peer.unwrap_or(connected_to));
        tracing::debug!(%local, peer = %addresses.1, accepted = peer.is_none(), "a socket is taken over");
        let stream = match peer {
            Some(_) => {
                TcpStream::new(socket, &self.epoll, token, Interest::WRITE, addresses, congestion)?
            }
            None => TcpStream::accepted(socket, &self.epoll, token, addresses, congestion)?,
        };
        Ok(Box::new(stream.with_variant(self.kind)))
    }

    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        Ok(Box::new(datagram::bind(local, options, &self.epoll, token)?))
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.epoll.clone())
    }

    /// Creates another epoll set. Shards share only the kernel's sockets and ports.
    fn shard(&self) -> io::Result<Option<Box<dyn TransportStack>>> {
        Ok(Some(Box::new(Self::with_variant(self.kind)?)))
    }

    fn adopt(&mut self, stream: &mut Box<dyn TransportStream>, token: Token) -> io::Result<()> {
        stream.downcast_mut::<TcpStream>().ok_or_else(foreign_stream)?.enter(&self.epoll, token)
    }
}

fn data(token: Token) -> epoll::EventData {
    epoll::EventData::new_u64(token.0)
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    flags
}

/// Listening socket in the epoll set of its stack.
#[derive(Debug)]
struct TcpListener {
    socket: OwnedFd,
    epoll: Arc<OwnedFd>,
    local: SocketAddr,
    /// Congestion control of accepted connections.
    congestion: Option<String>,
    kind: TcpVariant,
    /// Spare descriptor. It is closed when the process has no descriptors left, so that waiting
    /// connections can be accepted and closed. Unanswered connections would keep the listener
    /// readable, and their peers waiting.
    spare: Option<OwnedFd>,
    token: Token,
    paused: Arc<PausedListeners>,
    /// True from [`TcpListener::pause`] to the next accept.
    is_paused: bool,
}

/// Listeners of a stack that ignore waiting connections until a given time.
#[derive(Debug, Default)]
struct PausedListeners {
    /// Number of entries, which is read without the lock.
    count: AtomicUsize,
    /// The oldest pause first.
    entries: Mutex<VecDeque<(Instant, Token)>>,
}

impl PausedListeners {
    fn add(&self, token: Token) {
        self.entries.lock().push_back((Instant::now() + PAUSE, token));
        self.count.fetch_add(1, Relaxed);
    }

    fn deadline(&self) -> Option<Instant> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.entries.lock().front().map(|(at, _)| *at)
    }

    /// Appends readable events of the listeners whose pause is over.
    fn take_due(&self, events: &mut Vec<Event>) {
        while self.deadline().is_some_and(|at| at <= Instant::now())
            && let Some((_, token)) = self.entries.lock().pop_front()
        {
            self.count.fetch_sub(1, Relaxed);
            events.push(Event { token, readable: true, writable: false });
        }
    }
}

impl TcpListener {
    /// Stops the kernel's events for [`PAUSE`]: waiting connections that can be neither accepted
    /// nor closed would keep the listener readable, and the engine busy.
    fn pause(&mut self) -> io::Result<()> {
        epoll::modify(&self.epoll, &self.socket, data(self.token), epoll::EventFlags::empty())?;
        self.is_paused = true;
        self.paused.add(self.token);
        Ok(())
    }

    /// Closes the oldest waiting connection, if there is one, and returns its peer. Without a free
    /// descriptor, the system does not even report whether there is one.
    fn close_one(&mut self) -> Result<Option<SocketAddr>, Errno> {
        drop(self.spare.take());
        let cut = self.accept_next().map(|(_, peer)| peer);
        self.spare = spare();
        cut
    }

    /// Accepts the oldest waiting connection. The system returns the address of its peer even if
    /// the peer has reset the connection, when the socket itself has no peer any more.
    fn accept_next(&self) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
        let (socket, peer) =
            acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        Ok((socket, peer.and_then(|peer| peer.try_into().ok())))
    }
}

/// Opens a descriptor that is only used to be closed.
fn spare() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}

impl TransportListener for TcpListener {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>> {
        if std::mem::take(&mut self.is_paused) {
            epoll::modify(&self.epoll, &self.socket, data(self.token), flags(Interest::READ))?;
        }
        let (socket, peer) = loop {
            match self.accept_next() {
                Ok((socket, peer)) => {
                    // Another thread may have taken the descriptor that `close_one` has freed.
                    self.spare = self.spare.take().or_else(spare);
                    break (socket2::Socket::from(socket), peer);
                }
                // The peer has aborted the connection while it was waiting, or a signal has
                // interrupted the call. The next connection is tried.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Err(Errno::MFILE | Errno::NFILE) => {
                    let peer = match self.close_one() {
                        // Another thread has taken the spare descriptor.
                        Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                            self.pause()?;
                            return Err(error.into());
                        }
                        closed => closed?,
                    };
                    tracing::warn!(
                        peer = peer.map(crate::canonical).map(tracing::field::display),
                        "no descriptor left: a connection is cut"
                    );
                }
                Err(error) => return Err(error.into()),
            }
        };
        let local = setup::local_addr(&socket)?;
        // If the peer has already reset the connection, its address is not known in any other way.
        // The stream reports the reset when it is read.
        let peer = peer.or_else(|| setup::peer_addr(&socket).ok()).unwrap_or(local);
        tracing::debug!(%local, %peer, "accepted");
        let congestion = self.congestion.as_deref();
        let stream = TcpStream::accepted(socket, &self.epoll, token, (local, peer), congestion)?;
        Ok(Box::new(stream.with_variant(self.kind)))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        // Another process may have a copy of the descriptor (fork), which would keep it in the set.
        let _ = epoll::delete(&self.epoll, &self.socket);
    }
}
