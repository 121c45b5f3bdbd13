//! Lower-layer protocol (LLP): the interface between the engine and a TCP implementation.
//!
//! A [`TransportStack`] creates [`TransportListener`]s and [`TransportStream`]s and reports which
//! of them are ready. It never blocks, starts no threads and knows nothing about MPA. There are
//! three stacks, and three more that wrap another stack:
//!
//! * [`tcp::TcpStack`]: the kernel's TCP with level-triggered epoll.
//! * `uiw_smol::SmolStack`: smoltcp over links of Ethernet frames.
//! * `uiw_testkit::sim::SimStack`: simulated links in one process with a virtual clock, for tests.
//! * `uiw_impair::fault::FaultStack`: injects lost connections, flipped bits and reads and writes
//!   of odd sizes.
//! * [`capture::CaptureStack`]: records the traffic in a pcapng file.
//! * `uiw_tls::TlsStack`: encrypts with TLS 1.3.
//!
//! The module [`wrap`] helps to write other wrappers.
//!
//! # Implementing a stack
//!
//! Another TCP implements [`TransportStack`], [`TransportListener`] and [`TransportStream`], with
//! the extension traits [`StackExtensions`] and [`StreamExtensions`], and is passed to
//! `uiw_verbs::Device::with_stack`. `uiw_testkit::conformance` checks an implementation for the
//! rules below.
//!
//! Calls and readiness:
//!
//! * The engine calls a stack and its streams only from the thread that drives them, one call at a
//!   time, and never from inside another call. One mutex for the state that the streams share with
//!   their stack is therefore a good choice; `uiw_smol` has one. No call may block.
//! * [`TransportStack::poll`] is level-triggered: each poll reports every stream again that is
//!   ready for its [interest](TransportStream::set_interest). Errors are always reported.
//! * While few streams are open, the engine calls [`TransportStream::recv`] without polling first,
//!   so the call must be cheap if nothing has arrived. If such a call also receives data of other
//!   streams, [`StackExtensions::wait_fd`] must become readable for them.
//! * [`StackExtensions::wait_fd`] is readable whenever `poll` would report something. It can be an
//!   epoll set. The engine asks for it once, when the device is opened.
//!   [`TransportStack::deadline`] is for the stack's own timers. A stack without a descriptor works
//!   with `Progress::Manual`: the program calls `Device::pump` and takes its time-out from
//!   `Device::deadline`.
//! * Events of a token that no longer exists are ignored.
//!
//! Errors and options:
//!
//! * The engine only logs an error of [`TransportStack::poll`] and calls it again later. The same
//!   is true of [`TransportListener::accept`], except for the errors named there. A failed
//!   connection is reported by its stream instead: from then on all calls of the stream return the
//!   error, and its events are both readable and writable.
//! * A stack ignores options that it does not support. It reports an invalid value as an
//!   [`OptionError`].
//!
//! Data:
//!
//! * [`TransportStream::send`] takes [`uiw_mem::IoVec`]s, which are registered memory. Peers may
//!   write to it at any time, so a stack must not create a slice of it; it copies the bytes out
//!   with [`uiw_mem::IoVec::copy_to`] or passes the memory to a system call.
//! * Bytes must leave in the order in which `send` has accepted them. The stack owns accepted
//!   bytes: the caller may reuse its memory as soon as `send` returns.
//! * Dropping a [`TransportStream`] closes it gracefully: the bytes sent so far are still
//!   delivered, followed by a FIN. Only [`TransportStream::abort`] resets the connection. After
//!   [`TransportStream::shutdown`], bytes can still be received.
//!
//! Optional abilities:
//!
//! * A stack whose receive buffers are in the process implements [`StreamExtensions::peek`]. FPDUs
//!   are then verified in these buffers, without a copy.
//! * A stack whose connections end with the process implements [`StackExtensions::drain`].
//! * A stack with UDP implements [`StackExtensions::bind_datagrams`] and [`DatagramSocket`].
//! * A stack that several threads can drive at the same time implements [`StackExtensions::shard`],
//!   [`StreamExtensions::detach`] and [`StackExtensions::adopt`].
//!
//! `uiw_smol` is a good example to read. To run smoltcp over another source of frames, implement
//! the smaller trait `uiw_smol::Link` instead. Programs that use the protocol crates without the
//! engine need no stack: see `examples/embed_stream.rs` and `examples/embed_smoltcp.rs`.
//!
//! `uiw_impair::wan` emulates network paths between two interfaces, or under smoltcp in one
//! process.

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
pub use options::{
    ListenConfig, Multipath, OptionError, StreamChange, StreamInfo, TransportConfig,
};
pub use size::size;

/// Identifies a stream, listener or datagram socket in [`Event`]s. The caller that creates the
/// object chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Readiness that [`TransportStack::poll`] reports for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    /// There are bytes, a FIN or an error to receive.
    pub read: bool,
    /// There is room for bytes to send.
    pub write: bool,
}

impl Interest {
    /// Only errors and hang-ups, which are always reported.
    pub const NONE: Self = Self { read: false, write: false };
    /// Reading.
    pub const READ: Self = Self { read: true, write: false };
    /// Writing.
    pub const WRITE: Self = Self { read: false, write: true };
    /// Reading and writing.
    pub const BOTH: Self = Self { read: true, write: true };
}

/// Report that a stream, listener or datagram socket is ready. Every poll repeats it while that is
/// the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Stream, listener or datagram socket that is ready.
    pub token: Token,
    /// `recv` or `accept` would not block.
    pub readable: bool,
    /// `send` would not block, or a connection attempt has succeeded or failed. A hang-up or an
    /// error sets both fields.
    pub writable: bool,
}

/// Amount of data that a stream has received and [`TransportStream::recv`] can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// Number of received bytes. More may arrive.
    Bytes(usize),
    /// No more bytes will arrive, because the peer has sent its FIN or the connection is gone.
    All,
}

/// A TCP connection, or another byte stream that behaves like one. Dropping it closes it.
///
/// The initial interest is [`Interest::WRITE`] for a stream created by [`TransportStack::connect`],
/// and [`Interest::READ`] for an accepted one.
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
    /// Sends as many bytes from the start of `bufs` as there is room for, and returns their number.
    ///
    /// # Errors
    /// * `WouldBlock`: there is no room.
    /// * `InvalidInput`: `bufs` contains no bytes.
    /// * `BrokenPipe`, `ConnectionReset`, `TimedOut`: the connection is gone. The call never raises
    ///   SIGPIPE.
    /// * An error for which [`is_memory_fault`] returns true: one of the buffers is not mapped, and
    ///   nothing was sent. To find out which one, send the buffers one by one.
    fn send(&mut self, bufs: &[uiw_mem::IoVec<'_>]) -> io::Result<usize>;

    /// Receives available bytes into `bufs` and returns their number. `Ok(0)` is the peer's FIN.
    ///
    /// # Errors
    /// The same as for [`TransportStream::send`]; `WouldBlock` means that nothing has arrived.
    fn recv(&mut self, bufs: &mut [uiw_mem::IoVecMut<'_>]) -> io::Result<usize>;

    /// Sets the readiness that [`TransportStack::poll`] reports for this stream.
    ///
    /// Setting the same interest again is cheap: a system call is made only on a change.
    ///
    /// # Errors
    /// Returns OS errors.
    fn set_interest(&mut self, interest: Interest) -> io::Result<()>;

    /// Returns `Ok(true)` if the connection attempt has succeeded, and `Ok(false)` while it is in
    /// progress.
    ///
    /// # Errors
    /// Returns the reason for which the attempt failed, such as `ConnectionRefused`, `TimedOut` or
    /// `HostUnreachable`.
    fn connect_result(&mut self) -> io::Result<bool>;

    /// Sends a FIN after the bytes sent so far.
    ///
    /// # Errors
    /// `NotConnected`: there is no connection.
    fn shutdown(&mut self) -> io::Result<()>;

    /// Closes the connection at once with a RST.
    ///
    /// From then on all calls return `NotConnected`, except those for the addresses.
    fn abort(&mut self);

    /// Returns the effective maximum segment size (EMSS) in bytes: the payload that a TCP segment
    /// carries now (RFC 5044 section 5.1).
    fn emss(&self) -> usize;

    /// Returns the local address.
    fn local_addr(&self) -> SocketAddr;

    /// Returns the address of the peer.
    fn peer_addr(&self) -> SocketAddr;
}

/// Optional abilities of a [`TransportStream`]. The default methods are for a stream without them.
pub trait StreamExtensions {
    /// Returns access to the received bytes in the stack's own buffer, without the copy that
    /// [`TransportStream::recv`] makes.
    ///
    /// An empty [`RecvBuf`] is the peer's FIN. `Ok(None)` means that the stack's receive buffers
    /// are not in this process; a stream returns it either always or never.
    ///
    /// While the [`RecvBuf`] exists, only [`TransportStream::emss`] and the addresses may be called
    /// on the streams of this stack.
    ///
    /// # Errors
    /// The same as for [`TransportStream::recv`]. After bytes were left with
    /// [`RemainingBytes::WaitForMore`], returns `WouldBlock` until more bytes arrive.
    fn peek(&mut self) -> io::Result<Option<Box<dyn RecvBuf>>> {
        Ok(None)
    }

    /// Returns the amount of data that [`TransportStream::recv`] would return at least, and sets
    /// the amount to wait for.
    ///
    /// Until the next call, the stack provides room for `wanted` received bytes. It may report the
    /// stream as not readable while fewer bytes have arrived, unless no more can arrive. A stream
    /// whose stack does not know the amount always returns `Ok(None)`, and `wanted` has no effect.
    ///
    /// # Errors
    /// Returns OS errors.
    fn readable(&mut self, wanted: usize) -> io::Result<Option<Readable>> {
        let _ = wanted;
        Ok(None)
    }

    /// Returns measurements and other information about the connection.
    fn info(&self) -> StreamInfo {
        StreamInfo::default()
    }

    /// Changes settings of an existing connection, for example if an accepted connection needs
    /// other settings than its listener.
    ///
    /// Settings that the stack does not support are ignored.
    ///
    /// # Errors
    /// `InvalidInput` with an [`OptionError`]: there is no congestion control of that name. All
    /// other errors are OS errors.
    fn configure(&mut self, change: &StreamChange<'_>) -> io::Result<()> {
        let _ = change;
        Ok(())
    }

    /// Removes the stream from the event set of its stack, so that [`StackExtensions::adopt`] of
    /// another shard can take it over.
    ///
    /// The connection is not affected: received and buffered bytes, the state of a connection
    /// attempt and the interest are kept. After this call [`TransportStack::poll`] no longer
    /// reports the stream, but events from earlier polls may still name its token.
    ///
    /// The caller is the thread that drives the stream's stack. Until the stream is adopted, only
    /// [`StackExtensions::adopt`], [`TransportStream::abort`], the addresses and drop may be used.
    /// Detaching the stream again has no effect.
    ///
    /// # Errors
    /// `Unsupported`: streams of this stack cannot move. `NotConnected`: the stream was aborted.
    fn detach(&mut self) -> io::Result<()> {
        Err(unsupported("streams of this stack cannot move to another one"))
    }

    /// Takes the kernel socket that carries exactly the bytes of this stream, and leaves the stream
    /// without a connection.
    ///
    /// The socket is non-blocking and still connected; data on it bypasses the stack from now on.
    /// The stream is removed from the event set of its stack, and all calls return `NotConnected`
    /// as after [`TransportStream::abort`], except those for the addresses.
    ///
    /// # Errors
    /// * `Unsupported`: there is no such socket, because the TCP is in this process or the bytes
    ///   are encrypted. The stream stays as it was.
    /// * `NotConnected`: the stream is not connected yet or was aborted, or its socket was taken
    ///   already.
    fn take_socket(&mut self) -> io::Result<OwnedFd> {
        Err(unsupported("the stream has no socket of the kernel"))
    }

    /// Returns the identity of the peer if the stack has verified it. It is available as soon as
    /// the connection is established.
    fn peer_identity(&self) -> Option<Arc<PeerIdentity>> {
        None
    }

    /// Returns the kernel socket that carries exactly the bytes of this stream, like
    /// [`StreamExtensions::take_socket`] but without taking it.
    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl dyn TransportStream {
    /// Returns the stream as its concrete type, or `None` if it has another type.
    /// [`StackExtensions::adopt`] recognizes the stack's own streams with it.
    pub fn downcast_mut<T: TransportStream>(&mut self) -> Option<&mut T> {
        (self as &mut dyn Any).downcast_mut()
    }
}

/// Received bytes in the stack's buffer, returned by [`StreamExtensions::peek`]. Dropping it
/// consumes nothing.
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
    /// Returns the next bytes of the stream, up to the end of the contiguous part of the buffer.
    /// They may be changed in place.
    fn bytes(&mut self) -> &mut [u8];

    /// Returns whether it is worthwhile to leave the bytes after the first `used` ones in the
    /// buffer until more arrive.
    ///
    /// Returns false if the contiguous part ends at the end of the buffer or of the stream, or if
    /// the buffer has hardly room for more. The caller must then read the remaining bytes with
    /// [`TransportStream::recv`].
    fn can_grow(&self, used: usize) -> bool;

    /// Removes the first `used` bytes from the stream.
    fn consume(self: Box<Self>, used: usize, rest: RemainingBytes);
}

/// State of the bytes that are left after [`RecvBuf::consume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingBytes {
    /// The bytes can be processed now, so the stream stays readable.
    Useful,
    /// The bytes can be processed only together with later ones, so the stream becomes readable
    /// when more arrive or no more can arrive.
    WaitForMore,
}

/// A listening socket. Dropping it closes it.
pub trait TransportListener: Send {
    /// Accepts the next connection. Its events will have `token`.
    ///
    /// # Errors
    /// * `WouldBlock`: there is no connection to accept.
    /// * `NetworkDown`: the interface is down. The listener continues when it is up again.
    /// * `NotFound`: the interface is gone for good, so no more connections can arrive.
    /// * Other errors concern the process, for example if it is out of descriptors. The connection
    ///   is lost, or stays in the queue and the listener stays readable.
    ///
    /// `NetworkDown` and `NotFound` are announced by a readable event, and each is reported once.
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>>;

    /// Returns the local address, with the port that the system has chosen.
    fn local_addr(&self) -> SocketAddr;
}

/// A TCP implementation that the engine drives.
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
    /// Returns errors such as `AddrInUse` and `AddrNotAvailable`, and `InvalidInput` that contains
    /// an [`OptionError`].
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>>;

    /// Starts to connect to `peer`, from `local` if given. A writable event reports that the
    /// attempt has succeeded or failed ([`TransportStream::connect_result`]).
    ///
    /// # Errors
    /// The same as for [`TransportStack::listen`]; also the errors of
    /// [`TransportStream::connect_result`] if the attempt fails at once.
    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>>;

    /// Appends an event to `events` for each stream, listener and datagram socket that is ready
    /// now. Never blocks.
    ///
    /// # Errors
    /// Returns OS errors.
    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()>;

    /// Returns the time at which `poll` must be called even if nothing is ready.
    fn deadline(&self) -> Option<Instant>;

    /// Returns the current time of the stack's clock.
    fn now(&self) -> Instant;
}

/// Optional abilities of a [`TransportStack`]. The default methods are for a stack without them.
pub trait StackExtensions {
    /// Returns a descriptor that is readable when [`TransportStack::poll`] would report something.
    ///
    /// Returns `None` if there is no descriptor, because only the clock and the peers in this
    /// process cause events.
    ///
    /// If the descriptor is an epoll set, the engine may add a descriptor of its own, with all bits
    /// of its epoll data set. If `poll` finds that entry, it skips it or reports it as a token that
    /// does not exist.
    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Starts to connect a stream at `local` (port 0: any) to itself. It receives its own bytes and
    /// its own FIN.
    ///
    /// As for [`TransportStack::connect`], a writable event reports that the attempt has succeeded
    /// or failed.
    ///
    /// # Errors
    /// `Unsupported`: this stack has no such streams. Other errors are those of
    /// [`TransportStack::connect`].
    fn connect_self(
        &mut self,
        local: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let _ = (local, options, token);
        Err(unsupported("this stack cannot connect a stream to itself"))
    }

    /// Creates a stream from a kernel socket over which nothing was sent.
    ///
    /// If `peer` is given, the socket is connected to that address or still connecting, and the
    /// stream behaves like one of [`TransportStack::connect`]. Otherwise the program has accepted
    /// the socket, and the stream behaves like one of [`TransportListener::accept`].
    ///
    /// # Errors
    /// `Unsupported`: this stack does not use the kernel's TCP. All other errors are OS errors.
    fn open_socket(
        &mut self,
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let _ = (socket, peer, options, token);
        Err(unsupported("the TCP of this stack is not the kernel's"))
    }

    /// Binds a UDP socket at `local` (port 0: any). Its events have `token`.
    ///
    /// If `local` is a multicast address, the socket joins that group. The socket cannot move to
    /// another shard.
    ///
    /// # Errors
    /// `Unsupported`: this stack has no datagrams. All other errors are OS errors, such as
    /// `AddrInUse` and `AddrNotAvailable`.
    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        let _ = (local, options, token);
        Err(unsupported("this stack has no datagrams"))
    }

    /// Creates another shard of this stack: an independent stack with the same addresses, which
    /// another thread can drive at the same time.
    ///
    /// Each shard has its own event set, descriptor and deadlines, and calls to one shard take no
    /// lock that calls to another shard hold. A listener and its queue stay on the shard that
    /// created it. A stream starts on the shard that connected or accepted it, and moves with
    /// [`StreamExtensions::detach`] and [`StackExtensions::adopt`]. Tokens of different shards are
    /// unrelated. All shards are equal: each can create further shards, and none depends on another
    /// one being kept.
    ///
    /// Returns `Ok(None)` if the stack has only one event set. A stack returns it either always or
    /// never.
    ///
    /// # Errors
    /// Returns OS errors, for example if the process is out of descriptors.
    fn shard(&self) -> io::Result<Option<Box<dyn TransportStack>>> {
        Ok(None)
    }

    /// Takes over a stream that was [detached](StreamExtensions::detach) from another shard of the
    /// same stack, or from this one.
    ///
    /// The stream keeps its interest, and its events have `token` from then on. No readiness is
    /// lost: if the stream is ready, the next [`TransportStack::poll`] reports it, and
    /// [`StackExtensions::wait_fd`] becomes readable even if another thread already sleeps in it.
    ///
    /// # Errors
    /// * `Unsupported`: this stack has no shards.
    /// * `InvalidInput`: the stream is not detached, or was created by another kind of stack.
    /// * `NotConnected`: the stream was aborted.
    /// * OS errors, for example if the system is out of memory.
    ///
    /// After an error the stream is unchanged, and another shard may still adopt it.
    fn adopt(&mut self, stream: &mut Box<dyn TransportStream>, token: Token) -> io::Result<()> {
        let _ = (stream, token);
        Err(unsupported("this stack has no shards"))
    }

    /// Closes all streams because the process is about to exit, and delivers the bytes that were
    /// sent. Returns whether everything is done.
    ///
    /// The caller repeats the call until it returns true, and no longer uses the streams. The
    /// kernel's TCP outlives the process, so a stack over it needs no implementation.
    fn drain(&mut self) -> bool {
        true
    }
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Returns whether `error` is EFAULT: a buffer is not mapped or not writable, because the program
/// has unmapped registered memory.
pub fn is_memory_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

/// Returns the error of [`StackExtensions::adopt`] for a stream of another kind of stack.
pub fn foreign_stream() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the stream was created by another kind of stack")
}

/// Returns the error of [`StackExtensions::adopt`] for a stream that is still in the event set of a
/// stack.
pub fn attached_stream() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the stream is not detached")
}

/// Returns the error of `send` and `recv` if the buffers have no bytes. A result of `Ok(0)` would
/// look like a FIN.
pub fn no_bytes() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no bytes to transfer")
}
