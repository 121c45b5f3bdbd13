//! Lower-layer protocol: byte streams behind one trait.
//!
//! A [`Stack`] makes [`Listener`]s and [`Stream`]s and says which of them are ready. Nothing here blocks, starts a
//! thread or knows a byte of MPA. Three stacks, and two that wrap any of them:
//!
//! * [`tcp::TcpStack`]: the kernel's TCP, level-triggered epoll.
//! * [`smol::SmolStack`]: smoltcp over links of Ethernet frames.
//! * [`sim::SimStack`]: links in one process with a virtual clock, for tests.
//! * [`fault::FaultStack`]: cuts, flipped bits and odd-sized reads and writes on top of another stack.
//! * [`capture::CaptureStack`]: writes what passes to a pcapng file.
//!
//! Payload is registered memory and comes as [`mem::IoVec`]: no stack sees a slice of it.

pub mod capture;
pub mod fault;
pub mod sim;
pub mod smol;
mod spec;
pub mod tcp;

mod options;

use std::{
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

pub use options::{KeepAlive, ListenOptions, OptionError, StreamInfo, StreamOptions};
pub use spec::{Spec, SpecError};

/// Names a stream or a listener in [`Event`]s; chosen by whoever makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// What a stream wants to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    /// Octets, the peer's FIN, or an error to be read.
    pub read: bool,
    /// Room for octets to send.
    pub write: bool,
}

impl Interest {
    /// Nothing but errors and hang-ups, which are always reported.
    pub const NONE: Self = Self { read: false, write: false };
    /// Reading.
    pub const READ: Self = Self { read: true, write: false };
    /// Writing.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Both.
    pub const BOTH: Self = Self { read: true, write: true };
}

/// A stream or a listener is ready; it is said again with every poll as long as that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub token: Token,
    /// `recv` or `accept` would not block.
    pub readable: bool,
    /// `send` would not block, or a connection attempt is decided. A hang-up or an error sets both.
    pub writable: bool,
}

/// One TCP connection, or something that behaves as one. To drop it closes it.
///
/// A stream made by [`Stack::connect`] has [`Interest::WRITE`] at first, an accepted one [`Interest::READ`].
pub trait Stream: Send {
    /// Sends octets from the front of `bufs`, as many as there is room for.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. `InvalidInput`: no octet was given. `BrokenPipe`, `ConnectionReset`, `TimedOut`:
    /// the connection is gone. [`is_memory_fault`]: one of the buffers is not mapped, and nothing was sent; to find out
    /// which, send them one by one. Never a SIGPIPE.
    fn send(&mut self, bufs: &[mem::IoVec<'_>]) -> io::Result<usize>;

    /// Receives into `bufs` what is there. `Ok(0)` is the peer's FIN.
    ///
    /// # Errors
    /// As for [`Stream::send`].
    fn recv(&mut self, bufs: &mut [mem::IoVecMut<'_>]) -> io::Result<usize>;

    /// Says what to be woken for. It is remembered; a system call is made only on a change.
    ///
    /// # Errors
    /// The system's.
    fn set_interest(&mut self, interest: Interest) -> io::Result<()>;

    /// Whether the connection attempt has succeeded; false while it is undecided.
    ///
    /// # Errors
    /// Why it failed: `ConnectionRefused`, `TimedOut`, `HostUnreachable`, ..
    fn connect_result(&mut self) -> io::Result<bool>;

    /// Sends a FIN behind what was sent.
    ///
    /// # Errors
    /// `NotConnected`.
    fn shutdown(&mut self) -> io::Result<()>;

    /// Sends a RST now and closes. Everything but addresses answers `NotConnected` from then on.
    fn abort(&mut self);

    /// Effective maximum segment size: octets that a TCP segment carries now (RFC 5044 5.1).
    fn emss(&self) -> usize;

    /// Our end.
    fn local_addr(&self) -> SocketAddr;

    /// The other end.
    fn peer_addr(&self) -> SocketAddr;

    /// How the connection is doing.
    fn info(&self) -> StreamInfo;

    /// The descriptor, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A listening port. To drop it closes it.
pub trait Listener: Send {
    /// The next connection, which will be known by `token`.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. Others concern the process (out of descriptors): the connection stays in the queue
    /// and the listener stays readable.
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn Stream>>;

    /// The address, with the port that the system chose.
    fn local_addr(&self) -> SocketAddr;

    /// The descriptor, where there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A TCP implementation.
pub trait Stack: Send {
    /// Listens at `local`.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, ..; an [`OptionError`] inside of an `InvalidInput`.
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        token: Token,
    ) -> io::Result<Box<dyn Listener>>;

    /// Begins to connect. A writable event tells that [`Stream::connect_result`] has an answer.
    ///
    /// # Errors
    /// As for [`Stack::listen`], and those of an attempt that failed at once.
    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>>;

    /// Begins a stream from `local` (port 0: any) to itself: what is sent is what will be received, and so with the FIN. As for
    /// [`Stack::connect`], a writable event tells that [`Stream::connect_result`] has an answer.
    ///
    /// # Errors
    /// `Unsupported`: this stack has none. Otherwise as for [`Stack::connect`].
    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        let _ = (local, options, token);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack cannot connect a stream to itself"))
    }

    /// Appends what is ready now. Never blocks.
    ///
    /// # Errors
    /// The system's.
    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()>;

    /// A descriptor that is readable when [`Stack::poll`] would tell something. `None`: only the clock and the other
    /// ends move this stack.
    fn wait_fd(&self) -> Option<Arc<OwnedFd>>;

    /// When `poll` is wanted even without readiness.
    fn deadline(&self) -> Option<Instant>;

    /// The stack's clock.
    fn now(&self) -> Instant;
}

impl<S: Stack + ?Sized> Stack for Box<S> {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        token: Token,
    ) -> io::Result<Box<dyn Listener>> {
        (**self).listen(local, options, token)
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        (**self).connect(local, peer, options, token)
    }

    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &StreamOptions,
        token: Token,
    ) -> io::Result<Box<dyn Stream>> {
        (**self).connect_self(local, options, token)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        (**self).poll(events)
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        (**self).wait_fd()
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn now(&self) -> Instant {
        (**self).now()
    }
}

/// True if a system call found a buffer unmapped or not writable (EFAULT): a program took away registered memory.
pub fn is_memory_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// What `send` and `recv` say to no octets: an answer of 0 would look like a FIN.
fn no_octets() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no octets to transfer")
}
