//! One connection of the kernel's TCP.

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::event::epoll;
use socket2::Socket;
use uiw_mem::{IoVec, IoVecMut};

use super::congestion::{self, Congestion};
use super::multipath::{self, TcpVariant};
use super::syscall::Subflows;
use super::{data, flags, setup, syscall};
use crate::{
    Interest, Multipath, Readable, StreamChange, StreamExtensions, StreamInfo, Token,
    TransportStream, attached_stream, is_memory_fault, no_bytes,
};

/// Number of queries of the EMSS after which the kernel is asked again. Its segment size changes
/// only with the path MTU, which is rare, and asking costs a system call.
const EMSS_EVERY: u32 = 16;

/// EMSS that is assumed for an unknown IPv4 path (RFC 9293 section 3.7.1).
const EMSS_DEFAULT: usize = 536;

/// Connection of the kernel's TCP.
#[derive(Debug)]
pub struct TcpStream {
    /// `None` after an abort, and after the socket was taken.
    socket: Option<Socket>,
    /// Epoll set that contains the socket; `None` while the stream is detached.
    epoll: Option<Arc<OwnedFd>>,
    token: Token,
    interest: Interest,
    connection: ConnectState,
    local: SocketAddr,
    peer: SocketAddr,
    emss: Cell<usize>,
    /// Number of queries of the EMSS since the kernel was asked.
    asked: Cell<u32>,
    /// Congestion control to apply when the connection is established.
    congestion: Option<Congestion>,
    /// Number of bytes below which the kernel does not report the socket as readable.
    wanted: usize,
    /// Kind of the stack. A connection of an MPTCP stack may have fallen back to TCP.
    kind: TcpVariant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectState {
    Pending,
    Made,
    /// The connection has failed with this error. The kernel reports an error once, and this stream
    /// returns it from every transfer.
    Failed(i32),
}

impl TcpStream {
    pub(super) fn new(
        socket: Socket,
        epoll: &Arc<OwnedFd>,
        token: Token,
        interest: Interest,
        (local, peer): (SocketAddr, SocketAddr),
        congestion: Option<&str>,
    ) -> io::Result<Self> {
        epoll::add(epoll, &socket, data(token), flags(interest))?;
        Ok(Self {
            socket: Some(socket),
            epoll: Some(epoll.clone()),
            token,
            interest,
            connection: ConnectState::Pending,
            local,
            peer,
            emss: Cell::new(EMSS_DEFAULT),
            wanted: 1,
            asked: Cell::new(EMSS_EVERY),
            congestion: congestion.map(Congestion::new),
            kind: TcpVariant::Tcp,
        })
    }

    /// Sets the kind of the stack to which the connection belongs.
    pub(super) fn with_variant(mut self, kind: TcpVariant) -> Self {
        self.kind = kind;
        self
    }

    pub(super) fn accepted(
        socket: Socket,
        epoll: &Arc<OwnedFd>,
        token: Token,
        addresses: (SocketAddr, SocketAddr),
        congestion: Option<&str>,
    ) -> io::Result<Self> {
        let mut stream = Self::new(socket, epoll, token, Interest::READ, addresses, congestion)?;
        stream.connection = ConnectState::Made;
        stream.apply_congestion();
        Ok(stream)
    }

    /// Applies the congestion control when the connection is established. If that fails, the
    /// connection continues with another one.
    fn apply_congestion(&mut self) {
        if let (Some(congestion), Some(socket)) = (self.congestion.take(), &self.socket)
            && let Err(error) = congestion.on_connected(socket)
        {
            tracing::warn!(peer = %crate::canonical(self.peer), %error, "the congestion control is not the one asked for");
        }
    }

    fn socket(&self) -> io::Result<&Socket> {
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Returns the socket, unless the connection has failed.
    fn usable_socket(&self) -> io::Result<&Socket> {
        match self.connection {
            ConnectState::Failed(errno) if self.socket.is_some() => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => self.socket(),
        }
    }

    /// Keeps the error of a transfer if it is the one with which the connection has failed.
    fn note_error(&mut self, error: &io::Error) {
        use io::ErrorKind::*;
        let is_other = matches!(
            error.kind(),
            WouldBlock | NotConnected | BrokenPipe | ConnectionReset | Interrupted | OutOfMemory
        );
        if self.connection == ConnectState::Pending
            && let Some(errno) =
                error.raw_os_error().filter(|_| !is_other && !is_memory_fault(error))
        {
            self.connection = ConnectState::Failed(errno);
        }
    }

    /// Removes the socket from its epoll set. Another process may have a copy of the descriptor
    /// (fork), which would keep it in the set.
    fn leave_set(&mut self) {
        if let (Some(epoll), Some(socket)) = (self.epoll.take(), &self.socket) {
            let _ = epoll::delete(epoll, socket);
        }
    }

    /// Adds the socket to another epoll set. The kernel checks the state of the socket when it is
    /// added, and wakes a thread that sleeps in the set.
    pub(super) fn enter(&mut self, epoll: &Arc<OwnedFd>, token: Token) -> io::Result<()> {
        if self.epoll.is_some() {
            return Err(attached_stream());
        }
        epoll::add(epoll, self.socket()?, data(token), flags(self.interest))?;
        (self.epoll, self.token) = (Some(epoll.clone()), token);
        Ok(())
    }
}

impl TransportStream for TcpStream {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        match syscall::send(self.usable_socket()?.as_fd(), bufs) {
            Ok(0) => Err(no_bytes()),
            sent => sent.inspect_err(|error| self.note_error(error)),
        }
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        match syscall::recv(self.usable_socket()?.as_fd(), bufs) {
            Ok(0) if IoVecMut::total(bufs) == 0 => Err(no_bytes()),
            // With MPTCP, a connection that was reset before it was accepted reports no error.
            Err(error)
                if error.kind() == io::ErrorKind::NotConnected
                    && self.connection == ConnectState::Made =>
            {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            received => received.inspect_err(|error| self.note_error(error)),
        }
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        if interest != self.interest {
            let epoll = self.epoll.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            epoll::modify(epoll, self.socket()?, data(self.token), flags(interest))?;
            self.interest = interest;
        }
        Ok(())
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        let socket = self.usable_socket()?;
        if self.connection == ConnectState::Made {
            return Ok(true);
        }
        if let Some(error) = socket.take_error()? {
            self.connection = ConnectState::Failed(error.raw_os_error().unwrap_or(libc::EIO));
            return Err(error);
        }
        match setup::peer_addr(socket) {
            Ok(_) => {
                // If no local address was given, it may be known only now.
                self.local = setup::local_addr(socket)?;
                self.connection = ConnectState::Made;
                self.apply_congestion();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.socket()?.shutdown(std::net::Shutdown::Write)
    }

    fn abort(&mut self) {
        self.leave_set();
        if let Some(socket) = self.socket.take() {
            // With a linger time of zero, close discards unsent data and sends a RST.
            if let Err(error) = socket.set_linger(Some(Duration::ZERO)) {
                tracing::debug!(%error, "abort becomes a plain close");
            }
        }
    }

    fn emss(&self) -> usize {
        if self.asked.get() >= EMSS_EVERY {
            self.asked.set(0);
            // TCP_MAXSEG returns the same value as tcpi_snd_mss in TCP_INFO, at half the cost.
            if let Some(Ok(mss @ 1..)) = self.socket.as_ref().map(Socket::tcp_mss) {
                self.emss.set(mss as usize);
            }
        }
        self.asked.set(self.asked.get() + 1);
        self.emss.get()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl StreamExtensions for TcpStream {
    fn readable(&mut self, wanted: usize) -> io::Result<Option<Readable>> {
        if self.wanted != wanted {
            syscall::set_low_water_mark(self.socket()?.as_fd(), wanted)?;
            self.wanted = wanted;
        }
        let fd = self.socket()?.as_fd();
        let bytes = syscall::readable(fd)?;
        let is_all = bytes < wanted && syscall::has_ended(fd)?;
        Ok(Some(if is_all { Readable::All } else { Readable::Bytes(bytes) }))
    }

    fn configure(&mut self, change: &StreamChange<'_>) -> io::Result<()> {
        let socket = self.socket()?;
        if let Some(after) = change.dead_after {
            setup::configure_keepalive(socket, after)?;
        }
        let Some(congestion) = change.congestion.map(Congestion::new) else { return Ok(()) };
        if self.connection == ConnectState::Made {
            return congestion.on_connected(socket);
        }
        congestion.prepare(socket)?;
        self.congestion = Some(congestion);
        Ok(())
    }

    fn info(&self) -> StreamInfo {
        let Some(socket) = &self.socket else {
            return StreamInfo { of_kernel: true, ..StreamInfo::default() };
        };
        if self.kind == TcpVariant::Multipath
            && let Ok(subflows) = Subflows::query(socket.as_fd())
        {
            return multipath::combine_subflows(&subflows, congestion::current(socket));
        }
        let Ok(info) = syscall::tcp_info(socket.as_fd()) else {
            return StreamInfo { of_kernel: true, ..StreamInfo::default() };
        };
        let multipath = (self.kind == TcpVariant::Multipath).then_some(Multipath::Fallback);
        StreamInfo { multipath, ..info_of(&info, congestion::current(socket)) }
    }

    fn detach(&mut self) -> io::Result<()> {
        self.socket()?;
        self.leave_set();
        Ok(())
    }

    fn take_socket(&mut self) -> io::Result<OwnedFd> {
        if self.connection != ConnectState::Made {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.leave_set();
        self.socket.take().map(OwnedFd::from).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.leave_set();
    }
}

/// Converts the result of TCP_INFO.
pub(super) fn info_of(info: &libc::tcp_info, congestion: Option<String>) -> StreamInfo {
    StreamInfo {
        rtt_us: Some(info.tcpi_rtt),
        rtt_var_us: Some(info.tcpi_rttvar),
        min_rtt_us: Some(info.tcpi_min_rtt),
        cwnd: Some(info.tcpi_snd_cwnd),
        retransmits: Some(info.tcpi_total_retrans),
        unacked: Some(info.tcpi_unacked),
        last_ack: Some(Duration::from_millis(info.tcpi_last_ack_recv.into())),
        probes: Some(info.tcpi_probes.into()),
        not_sent: Some(info.tcpi_notsent_bytes),
        emss: Some(info.tcpi_snd_mss),
        path_mtu: Some(info.tcpi_pmtu),
        bytes_acked: Some(info.tcpi_bytes_acked),
        bytes_received: Some(info.tcpi_bytes_received),
        delivery_rate: Some(info.tcpi_delivery_rate),
        congestion,
        multipath: None,
        of_kernel: true,
    }
}
