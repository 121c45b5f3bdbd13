//! Lower-layer protocol: byte streams behind one trait.
//!
//! A [`TransportStack`] makes [`TransportListener`]s and [`TransportStream`]s and says which of them are ready. Nothing here blocks, starts a
//! thread or parses a byte of MPA. Three stacks, and two that wrap any of them:
//!
//! * [`tcp::TcpStack`]: the kernel's TCP, level-triggered epoll.
//! * `uiw_smol::SmolStack`: smoltcp over links of Ethernet frames.
//! * `uiw_testkit::sim::SimStack`: links in one process with a virtual clock, for tests.
//! * `uiw_impair::fault::FaultStack`: cuts, flipped bits and odd-sized reads and writes on top of another stack.
//! * [`capture::CaptureStack`]: writes what passes to a pcapng file.
//! * `uiw_tls::TlsStack`: TLS 1.3 on top of another stack.
//! * [`wrap`]: for wrappers of your own.
//!
//! # A TCP of your own
//!
//! Another TCP implements three traits, and is passed to `uiw_verbs::Device::with_stack`; everything else stays the same.
//!
//! * The engine calls a stack and its streams from the driving thread, one at a time, and never while a call lasts: state that
//!   streams and stack share is best behind one mutex (`uiw_smol` does so). Nothing may block.
//! * [`TransportStack::poll`] is level-triggered: what is ready is said again with every poll, for what [`TransportStream::set_interest`] asked for, and
//!   errors always. While few streams are open the engine reads them without asking first, so [`TransportStream::recv`] on a stream without
//!   news must be cheap; if it takes in what others wait for, the descriptor must become readable for them.
//! * [`StackExtensions::wait_fd`] is readable whenever `poll` would report something; a set (epoll) is a descriptor. [`TransportStack::deadline`] is for the
//!   stack's own timers. A stack without a descriptor works with `Progress::Manual`, where the program calls `Device::pump` and
//!   asks `Device::deadline`.
//! * The engine asks for [`StackExtensions::wait_fd`] once, in the beginning. An error of [`TransportStack::poll`] or, but for those that it
//!   names, of [`TransportListener::accept`] is only logged, and asked again: what has happened to a connection is reported by its stream, whose calls all end
//!   in that error from then on, and whose event says both readable and writable.
//! * A [`TransportStream`] that is dropped is closed, not cut: what was sent is still delivered, then a FIN. Only [`TransportStream::abort`] cuts. After
//!   [`TransportStream::shutdown`] bytes still come in. Events of a token that does not exist any more are ignored.
//! * Options that a stack has no means for it ignores; values that it detects as wrong are an [`OptionError`].
//! * [`TransportStream::send`] takes [`uiw_mem::IoVec`]s: registered memory that peers may write meanwhile, so no slice of it is made; they are
//!   copied out with [`uiw_mem::IoVec::copy_to`] or given to a system call. What it takes must leave in order, and what was taken is the
//!   stack's: the memory may be used again.
//! * A stack whose receive buffers are in the process offers [`StreamExtensions::peek`]: FPDUs are then verified where they lie.
//! * A TCP that ends with its process implements [`StackExtensions::drain`].
//! * `uiw_testkit::conformance` checks a stack for all of this.
//! * Datagrams are optional: a stack with UDP implements [`StackExtensions::bind_datagrams`] and [`DatagramSocket`].
//! * A stack that several threads can drive at the same time implements [`StackExtensions::shard`], [`StreamExtensions::detach`] and [`StackExtensions::adopt`].
//!   The defaults say that it cannot.
//!
//! `uiw_smol` is the example to read; `uiw_smol::Link` is a smaller trait for sources of frames that use smoltcp for the rest. The protocol
//! crates alone, without the engine, need none of this: see `examples/embed_stream.rs` and `examples/embed_smoltcp.rs`.
//!
//! `uiw_impair::wan` emulates paths, between two interfaces or under smoltcp in one process.
//!
//! Payload is registered memory and comes as [`uiw_mem::IoVec`]: no stack sees a slice of it.

#![warn(missing_debug_implementations)]

mod canonical;
pub mod capture;
mod clock;
mod datagram;
mod identity;
pub mod interface;
pub mod netlink;
mod size;
pub mod sock_diag;
pub mod tcp;
pub mod wrap;

mod options;

use std::{
    any::Any,
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

pub use canonical::canonical;
pub use clock::{Clock, monotonic_ns, process_cpu_ns};
pub use datagram::{DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Incoming, Outgoing};
pub use identity::{Fingerprint, PeerIdentity};
pub use interface::{Interface, InterfaceAddresses, InterfaceChange, InterfaceMonitor};
pub use options::{ListenConfig, Multipath, OptionError, StreamChange, StreamInfo, TransportConfig};
pub use size::size;

/// Names a stream or a listener in [`Event`]s; chosen by the creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The events that a stream is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    /// Bytes, the peer's FIN, or an error to be read.
    pub read: bool,
    /// Room for bytes to send.
    pub write: bool,
}

impl Interest {
    /// Errors and hang-ups only, which are always reported.
    pub const NONE: Self = Self { read: false, write: false };
    /// Reading.
    pub const READ: Self = Self { read: true, write: false };
    /// Writing.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Reading and writing.
    pub const BOTH: Self = Self { read: true, write: true };
}

/// A stream or a listener is ready; it is said again with every poll as long as that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Stream or listener of the event.
    pub token: Token,
    /// `recv` or `accept` would not block.
    pub readable: bool,
    /// `send` would not block, or a connection attempt is decided. A hang-up or an error sets both.
    pub writable: bool,
}

/// Amount that a stream has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// Number of received bytes; more may come.
    Bytes(usize),
    /// Everything has arrived: the peer has sent its FIN, or the connection is gone.
    All,
}

/// One TCP connection, or something that behaves as one. To drop it closes it.
///
/// A stream made by [`TransportStack::connect`] has [`Interest::WRITE`] at first, an accepted one [`Interest::READ`].
///
/// ```
/// # mod uiw { pub mod llp { pub use uiw_llp::*; pub use uiw_mem::{IoVec, IoVecMut}; } }
/// use uiw::llp::{IoVec, IoVecMut, Token, TransportConfig, TransportStack};
/// # use std::net::Ipv4Addr;
/// # use uiw_llp::ListenConfig;
/// # use uiw_testkit::sim::Network;
/// # let network = Network::new(1);
/// # let [one, other] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host));
/// # let (mut a, mut b) = (network.stack(one), network.stack(other));
/// # let mut listener = b.listen((other, 7174).into(), &ListenConfig::default(), Token(0))?;
/// # let mut client = a.connect(None, listener.local_addr(), &TransportConfig::default(), Token(1))?;
/// # while network.step() {}
/// # let mut server = listener.accept(Token(2))?;
/// assert_eq!(client.send(&[IoVec::from(&b"good "[..]), IoVec::from(&b"day"[..])])?, 8);
/// client.shutdown()?;
/// while network.step() {}
/// let mut bytes = [0; 16];
/// assert_eq!(server.recv(&mut [IoVecMut::from(&mut bytes[..])])?, 8);
/// assert_eq!(bytes[..8], *b"good day");
/// // The peer's FIN.
/// assert_eq!(server.recv(&mut [IoVecMut::from(&mut bytes[..])])?, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait TransportStream: StreamExtensions + Any + Send {
    /// Sends bytes from the front of `bufs`, as many as there is room for.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. `InvalidInput`: no byte was given. `BrokenPipe`, `ConnectionReset`, `TimedOut`:
    /// the connection is gone. [`is_memory_fault`]: one of the buffers is not mapped, and nothing was sent; to find out
    /// which, send them one by one. Never a SIGPIPE.
    fn send(&mut self, bufs: &[uiw_mem::IoVec<'_>]) -> io::Result<usize>;

    /// Receives into `bufs` what is there. `Ok(0)` is the peer's FIN.
    ///
    /// # Errors
    /// The errors are those of [`TransportStream::send`].
    fn recv(&mut self, bufs: &mut [uiw_mem::IoVecMut<'_>]) -> io::Result<usize>;

    /// Says what to be woken for. It is remembered; a system call is made only on a change.
    ///
    /// # Errors
    /// The system's.
    fn set_interest(&mut self, interest: Interest) -> io::Result<()>;

    /// Returns whether the connection attempt has succeeded; false while it is undecided.
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

    /// Effective maximum segment size: bytes that a TCP segment carries now (RFC 5044 5.1).
    fn emss(&self) -> usize;

    /// Our end.
    fn local_addr(&self) -> SocketAddr;

    /// The other end.
    fn peer_addr(&self) -> SocketAddr;
}

/// Optional abilities of a [`TransportStream`]. The defaults say that the stream has none of them.
pub trait StreamExtensions {
    /// Received bytes where they lie, from a stack whose receive buffers are in this process: they can be looked at, and used,
    /// without the copy that [`TransportStream::recv`] makes. Without any bytes it is the peer's FIN. `Ok(None)`, always the same for a
    /// stream: it has no such memory.
    ///
    /// While the look lives, nothing but [`TransportStream::emss`] and the addresses may be asked of any stream of this stack.
    ///
    /// # Errors
    /// Those of [`TransportStream::send`]; also `WouldBlock` if nothing came after bytes that were left with
    /// [`RemainingBytes::WaitForMore`].
    fn peek(&mut self) -> io::Result<Option<Box<dyn RecvBuf>>> {
        Ok(None)
    }

    /// Returns the least that [`TransportStream::recv`] finds. Until the next call the stack has room for `wanted` bytes, and may report the
    /// stream as not readable while fewer have come, unless no more can come. A stream whose stack cannot tell always returns `Ok(None)`,
    /// and `wanted` has no effect.
    ///
    /// # Errors
    /// The system's.
    fn readable(&mut self, wanted: usize) -> io::Result<Option<Readable>> {
        let _ = wanted;
        Ok(None)
    }

    /// Returns the state of the connection.
    fn info(&self) -> StreamInfo {
        StreamInfo::default()
    }

    /// Changes settings of an existing connection, such as those of an acceptor that differ from the listener's. A setting that the
    /// stack has no means for is ignored.
    ///
    /// # Errors
    /// `InvalidInput` with an [`OptionError`] if there is no congestion control of that name. Otherwise the system's.
    fn configure(&mut self, change: &StreamChange<'_>) -> io::Result<()> {
        let _ = change;
        Ok(())
    }

    /// Removes the stream from the event set of its stack, so that [`StackExtensions::adopt`] of another shard can take it over. The connection
    /// stays as it is: received bytes, buffered bytes, the state of a connection attempt and the interest are kept. Afterwards no
    /// [`TransportStack::poll`] reports the stream; a report that was made before may name its token.
    ///
    /// Called by the thread that drives the stream's stack. Until the stream is adopted, only [`StackExtensions::adopt`], [`TransportStream::abort`], the
    /// addresses and drop may be used. To detach it again changes nothing.
    ///
    /// # Errors
    /// `Unsupported`: streams of this stack stay with it. `NotConnected`: it was aborted.
    fn detach(&mut self) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "streams of this stack cannot move to another one"))
    }

    /// Gives up the socket of the kernel that carries the bytes of this stream as they are. It is non-blocking, and what is sent and
    /// received over it does not pass through the stack any more. The stream has left the event set of its stack, and everything but
    /// addresses answers `NotConnected`, as after [`TransportStream::abort`]; the connection stays as it is.
    ///
    /// # Errors
    /// `Unsupported`: there is no such socket, as the TCP is in this process or the bytes are encrypted; the stream stays as it was.
    /// `NotConnected`: it was aborted or given up, or is not connected yet.
    fn take_socket(&mut self) -> io::Result<OwnedFd> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the stream is no socket of the kernel"))
    }

    /// The identity of the peer, if the stack has verified it; it is there as soon as the connection is made.
    fn peer_identity(&self) -> Option<Arc<PeerIdentity>> {
        None
    }

    /// The socket of the kernel that carries the bytes of this stream as they are ([`StreamExtensions::take_socket`]).
    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl dyn TransportStream {
    /// The stream as what it was made, for a [`StackExtensions::adopt`] that must identify its own streams. `None`: it is another type.
    pub fn downcast_mut<T: TransportStream>(&mut self) -> Option<&mut T> {
        (self as &mut dyn Any).downcast_mut()
    }
}

/// Received bytes in the memory of their stack: see [`StreamExtensions::peek`]. To drop it takes nothing.
///
/// ```
/// # mod uiw { pub use uiw_llp as llp; }
/// use uiw::llp::{RecvBuf, RemainingBytes};
///
/// /// A stack's own buffer.
/// struct Ring<'a>(&'a mut Vec<u8>);
///
/// impl RecvBuf for Ring<'_> {
///     fn bytes(&mut self) -> &mut [u8] {
///         self.0
///     }
///     fn can_grow(&self, used: usize) -> bool {
///         self.0.capacity() - self.0.len() + used > 4096
///     }
///     fn consume(self: Box<Self>, used: usize, _: RemainingBytes) {
///         self.0.drain(..used);
///     }
/// }
///
/// let mut ring = b"headrest".to_vec();
/// let mut look: Box<dyn RecvBuf + '_> = Box::new(Ring(&mut ring));
/// assert_eq!(look.bytes()[..4], *b"head");
/// look.consume(4, RemainingBytes::WaitForMore);
/// assert_eq!(ring, b"rest");
/// ```
pub trait RecvBuf {
    /// The bytes from the stream's present position on, as far as they lie in one piece. They may be changed in place.
    fn bytes(&mut self) -> &mut [u8];

    /// Returns whether it is worth while to leave what is behind the first `used` bytes until more has come. `false`: the piece ends at
    /// the buffer's end or the stream's, or the buffer has hardly room for more; the rest must be had by [`TransportStream::recv`].
    fn can_grow(&self, used: usize) -> bool;

    /// Takes the first `used` bytes from the stream.
    fn consume(self: Box<Self>, used: usize, rest: RemainingBytes);
}

/// Treatment of the bytes that the user of a [`RecvBuf`] leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingBytes {
    /// They are of use now: the stream stays readable.
    Useful,
    /// They are of no use without more: the stream is readable when more came, or no more can come.
    WaitForMore,
}

/// A listening port. To drop it closes it.
pub trait TransportListener: Send {
    /// The next connection, which will be known by `token`.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. `NetworkDown`: the interface is down, and the listener goes on when it is up again; `NotFound`:
    /// it is gone for good, and no connection can come. A readable event announces these two, and each is reported once. Others concern
    /// the process (out of descriptors): the connection stays in the queue and the listener stays readable.
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>>;

    /// The address, with the port that the system chose.
    fn local_addr(&self) -> SocketAddr;
}

/// A TCP implementation.
///
/// ```
/// use uiw_llp::{ListenConfig, TransportStack, TransportConfig, Token};
/// use uiw_testkit::sim::Network;
///
/// let network = Network::new(1);
/// let (mut one, mut other) = (network.stack([10, 0, 0, 1]), network.stack([10, 0, 0, 2]));
/// let mut listener = other.listen(([10, 0, 0, 2], 7174).into(), &ListenConfig::default(), Token(0))?;
/// let mut client = one.connect(None, listener.local_addr(), &TransportConfig::default(), Token(1))?;
/// while network.step() {}
/// // Level-triggered: the listener is ready until the connection is accepted.
/// let mut events = Vec::new();
/// other.poll(&mut events)?;
/// assert!(events[0].readable && events[0].token == Token(0));
/// let server = listener.accept(Token(2))?;
/// assert!(client.connect_result()?);
/// assert_eq!(server.peer_addr(), client.local_addr());
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait TransportStack: StackExtensions + Send {
    /// Listens at `local`.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, ..; an [`OptionError`] inside of an `InvalidInput`.
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>>;

    /// Begins to connect. A writable event reports that [`TransportStream::connect_result`] has an answer.
    ///
    /// # Errors
    /// The errors are those of [`TransportStack::listen`], and those of an attempt that failed at once.
    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>>;

    /// Appends what is ready now. Never blocks.
    ///
    /// # Errors
    /// The system's.
    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()>;

    /// Returns the time when `poll` is wanted even without readiness.
    fn deadline(&self) -> Option<Instant>;

    /// The stack's clock.
    fn now(&self) -> Instant;
}

/// Optional abilities of a [`TransportStack`]. The defaults say that the stack has none of them.
pub trait StackExtensions {
    /// A descriptor that is readable when [`TransportStack::poll`] would report something. `None`: only the clock and the other
    /// ends move this stack. The driver of the stack may add a descriptor of its own to an epoll set, whose data has all bits set:
    /// a `poll` that finds it there leaves it out or passes it on as a token that does not exist.
    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Begins a stream from `local` (port 0: any) to itself: what is sent is what will be received, and so with the FIN. As for
    /// [`TransportStack::connect`], a writable event reports that [`TransportStream::connect_result`] has an answer.
    ///
    /// # Errors
    /// `Unsupported`: this stack has none. Otherwise as for [`TransportStack::connect`].
    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let _ = (local, options, token);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack cannot connect a stream to itself"))
    }

    /// Takes over a socket of the kernel over which nothing was sent. With `peer` it is connected to that address or has begun to
    /// connect, as by [`TransportStack::connect`]; without it the program has accepted it, as by [`TransportListener::accept`].
    ///
    /// # Errors
    /// `Unsupported`: the TCP is not the kernel's. Otherwise the system's.
    fn open_socket(
        &mut self,
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let _ = (socket, peer, options, token);
        Err(io::Error::new(io::ErrorKind::Unsupported, "the TCP of this stack is not the kernel's"))
    }

    /// Binds a UDP socket at `local` (port 0: any), which is known by `token`; at a multicast address, a member of that group. It stays
    /// with this shard.
    ///
    /// # Errors
    /// `Unsupported`: this stack has no datagrams. `AddrInUse`, `AddrNotAvailable`, ..
    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        let _ = (local, options, token);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack has no datagrams"))
    }

    /// Another shard of this stack: an independent stack with the same addresses, which another thread can drive at the same time. A call
    /// of one shard takes no lock that a call of another one holds, and each has an event set, a descriptor and deadlines of its own.
    /// A listener and its queue stay with the shard that made it; a stream starts on the shard that connected or accepted it, and
    /// moves by [`StreamExtensions::detach`] and [`StackExtensions::adopt`]. Tokens of two shards are unrelated. Shards may be made of shards, all of
    /// them are equal, and each lives as long as it is kept.
    ///
    /// `Ok(None)`, always the same for a stack: there is one event set, and nothing can be driven beside it.
    ///
    /// # Errors
    /// The system's: out of descriptors.
    fn shard(&self) -> io::Result<Option<Box<dyn TransportStack>>> {
        Ok(None)
    }

    /// Takes over a stream that was detached ([`StreamExtensions::detach`]) from another shard of the same stack, or from this one. It is known by
    /// `token` from then on and keeps its interest. Nothing is lost on the way: what is ready by then is reported by the next
    /// [`TransportStack::poll`], and [`StackExtensions::wait_fd`] becomes readable for it, also where another thread sleeps in that descriptor already.
    ///
    /// # Errors
    /// `Unsupported`: this stack has no shards. `InvalidInput`: the stream is not detached, or another kind of stack made it.
    /// `NotConnected`: it was aborted. Otherwise the system's (out of memory). The stream stays as it was, and another shard may still
    /// adopt it.
    fn adopt(&mut self, stream: &mut Box<dyn TransportStream>, token: Token) -> io::Result<()> {
        let _ = (stream, token);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stack has no shards"))
    }

    /// The process ends, and its streams are not used any more: they are closed as the kernel closes a process's, and what was sent
    /// leaves. Call it until it says true: nothing is left to do. The kernel's TCP outlives the process and needs none of this.
    fn drain(&mut self) -> bool {
        true
    }
}

/// True if a system call found a buffer unmapped or not writable (EFAULT): a program took away registered memory.
pub fn is_memory_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// Error of [`StackExtensions::adopt`] for a stream of another kind of stack.
pub fn foreign_stream() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the stream was made by another kind of stack")
}

/// Error of [`StackExtensions::adopt`] for a stream that is still in the event set of a stack.
pub fn attached_stream() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the stream is not detached")
}

/// Returns the error of `send` and `recv` without a buffer: a result of 0 would look like a FIN.
pub fn no_bytes() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no bytes to transfer")
}
