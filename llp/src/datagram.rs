//! Datagrams: UDP sockets in addition to the byte streams of a
//! [`TransportStack`](crate::TransportStack).

use crate::Interest;
use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::ops::Range;

/// Datagrams to be sent: the next `count` parts of the buffer, of `len` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Destination of the datagrams.
    pub peer: SocketAddr,
    /// Size of each datagram in bytes.
    pub len: usize,
    /// Number of datagrams.
    pub count: usize,
    /// IPv4 TTL or IPv6 hop limit. `None` means the stack's default for a host, and 1 for a
    /// multicast group.
    pub hop_limit: Option<NonZeroU8>,
}

impl Outgoing {
    /// Returns an item for one datagram of `len` bytes to `peer`, with the default hop limit.
    #[must_use]
    pub const fn new(peer: SocketAddr, len: usize) -> Self {
        Self { peer, len, count: 1, hop_limit: None }
    }

    /// Returns each datagram of `datagrams`, whose bytes are contiguous in `bytes`.
    ///
    /// # Panics
    /// The iterator panics if `bytes` is shorter than the datagrams.
    pub fn each<'a>(
        datagrams: &'a [Self],
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (&'a Self, &'a [u8])> {
        let mut rest = bytes;
        datagrams.iter().flat_map(|run| std::iter::repeat_n(run, run.count)).map(move |run| {
            let (now, later) = rest.split_at(run.len);
            rest = later;
            (run, now)
        })
    }
}

/// Datagrams that were received from one sender. They are contiguous in the buffer and have `len`
/// bytes each; the last one may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Source of the datagrams.
    pub peer: SocketAddr,
    /// Range of the datagrams in the buffer.
    pub bytes: Range<usize>,
    /// Size of each datagram except the last, in bytes.
    pub len: usize,
}

impl Incoming {
    /// Returns an item for one datagram.
    #[must_use]
    pub const fn one(peer: SocketAddr, bytes: Range<usize>) -> Self {
        let len = bytes.end - bytes.start;
        Self { peer, bytes, len }
    }

    /// Returns the range of each datagram.
    pub fn each(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let (Range { start, end }, len) = (self.bytes.clone(), self.len.max(1));
        // A datagram may have no bytes.
        let count = (end - start).div_ceil(len).max(1);
        (0..count).map(move |number| start + number * len..end.min(start + (number + 1) * len))
    }
}

/// Configuration of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramConfig {
    /// Address of the interface at which the group is joined, for a socket at a multicast address.
    /// It has no meaning for other addresses.
    pub member: Option<IpAddr>,
    /// Index of that interface, if the address alone does not identify it (IPv6).
    pub interface: u32,
}

/// Minimum size in bytes of the buffer for [`DatagramSocket::recv`]. It has room for the longest
/// datagram, or for several shorter ones of one sender.
pub const DATAGRAM_BUFFER: usize = 1 << 16;

/// UDP socket, created by
/// [`StackExtensions::bind_datagrams`](crate::StackExtensions::bind_datagrams). Dropping it closes
/// it.
///
/// Datagrams are never fragmented. A socket bound to a multicast address receives only datagrams to
/// that group at its port, and so do all other such sockets; it does not send. Other sockets also
/// send to groups: through the interface of their address, with the datagram's hop limit or 1, and
/// also to members on their own host.
///
/// A new socket has [`Interest::NONE`].
///
/// ```
/// use uiw_llp::{DATAGRAM_BUFFER, Outgoing, StackExtensions, Token};
/// use uiw_testkit::sim::Network;
///
/// let network = Network::new(1);
/// let (mut one, mut other) = (network.stack([10, 0, 0, 1]), network.stack([10, 0, 0, 2]));
/// let mut from = one.bind_datagrams(([10, 0, 0, 1], 0).into(), &Default::default(), Token(0))?;
/// let mut to = other.bind_datagrams(([10, 0, 0, 2], 0).into(), &Default::default(), Token(0))?;
/// let datagram = Outgoing::new(to.local_addr(), 5);
/// assert_eq!(from.send(b"bytes", &[datagram])?, 1);
/// while network.step() {}
/// let (mut buffer, mut datagrams) = (vec![0; DATAGRAM_BUFFER], Vec::new());
/// to.recv(&mut buffer, &mut datagrams)?;
/// assert_eq!(datagrams[0].peer, from.local_addr());
/// assert!(datagrams[0].each().map(|bytes| &buffer[bytes]).eq([b"bytes"]));
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait DatagramSocket: Any + Send {
    /// Sends datagrams, whose bytes are contiguous in `bytes`, and returns the number of datagrams
    /// accepted: at least one, and not always whole items of `datagrams`. A datagram that was
    /// accepted may still be lost.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. Other errors concern only the first datagram, for example if
    /// it is too long for the interface or there is no route to its destination. The caller leaves
    /// it out.
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize>;

    /// Receives available datagrams into `buffer`, which has at least [`DATAGRAM_BUFFER`] bytes,
    /// and appends them to `datagrams` in the order in which they arrived. Datagrams of one sender
    /// may be one item.
    ///
    /// # Errors
    /// `WouldBlock`: no datagram has arrived.
    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()>;

    /// Sets the readiness that the stack reports, like
    /// [`TransportStream::set_interest`](crate::TransportStream::set_interest).
    ///
    /// # Errors
    /// Returns OS errors.
    fn set_interest(&mut self, interest: Interest) -> io::Result<()>;

    /// Returns the local address, with the port that the system has chosen.
    fn local_addr(&self) -> SocketAddr;
}
