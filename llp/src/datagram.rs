//! Datagrams: UDP sockets beside the byte streams of a [`TransportStack`](crate::TransportStack).

use crate::Interest;
use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::ops::Range;

/// Datagrams to be sent: the next `count` pieces of the buffer, of `len` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Destination of the datagrams.
    pub peer: SocketAddr,
    /// Bytes of each.
    pub len: usize,
    /// Number of datagrams.
    pub count: usize,
    /// The IPv4 TTL or IPv6 hop limit. `None`: the stack's default for a host, 1 for a group.
    pub hop_limit: Option<NonZeroU8>,
}

impl Outgoing {
    /// A datagram of `len` bytes to `peer`, with the default hop limit.
    #[must_use]
    pub const fn new(peer: SocketAddr, len: usize) -> Self {
        Self { peer, len, count: 1, hop_limit: None }
    }

    /// Each datagram of `datagrams`, which lie in `bytes` one behind the other.
    ///
    /// # Panics
    /// The iterator panics where `bytes` is shorter than the datagrams.
    pub fn each<'a>(datagrams: &'a [Self], bytes: &'a [u8]) -> impl Iterator<Item = (&'a Self, &'a [u8])> {
        let mut rest = bytes;
        datagrams.iter().flat_map(|run| std::iter::repeat_n(run, run.count)).map(move |run| {
            let (now, later) = rest.split_at(run.len);
            rest = later;
            (run, now)
        })
    }
}

/// Datagrams that were received from one sender: they lie in the buffer one behind the other, have
/// `len` bytes each, and the last one may have fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Source of the datagrams.
    pub peer: SocketAddr,
    /// Their bytes in the buffer.
    pub bytes: Range<usize>,
    /// Bytes of each but the last.
    pub len: usize,
}

impl Incoming {
    /// One datagram.
    #[must_use]
    pub const fn one(peer: SocketAddr, bytes: Range<usize>) -> Self {
        let len = bytes.end - bytes.start;
        Self { peer, bytes, len }
    }

    /// The bytes of each datagram.
    pub fn each(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let (Range { start, end }, len) = (self.bytes.clone(), self.len.max(1));
        // One without bytes is a datagram too.
        let count = (end - start).div_ceil(len).max(1);
        (0..count).map(move |number| start + number * len..end.min(start + (number + 1) * len))
    }
}

/// Purpose of a bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramConfig {
    /// Address of the interface at which the group is joined, for a socket at a multicast address.
    /// Without meaning at any other address.
    pub member: Option<IpAddr>,
    /// The index of that interface, where the address alone does not name it (IPv6).
    pub interface: u32,
}

/// Bytes of the buffer that a stack fills with one datagram, or with several of one sender at a
/// time.
pub const DATAGRAM_BUFFER: usize = 1 << 16;

/// A UDP socket, made by
/// [`StackExtensions::bind_datagrams`](crate::StackExtensions::bind_datagrams). To drop it closes
/// it.
///
/// Datagrams are never fragmented. A socket bound to a multicast address receives what is sent to
/// that group at its port, together with every other such socket, and nothing else; it does not
/// send. Other sockets also send to groups: through the interface of their address, with the
/// datagram's hop limit or 1, and to members on their own host as well.
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
    /// Sends datagrams, which lie in `bytes` one behind the other, and returns how many were taken:
    /// at least one, and not always whole items of `datagrams`. A datagram that was taken may still
    /// be lost.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. Others concern the first datagram alone, such as one that is
    /// too long for the interface or that no route leads to: the caller leaves it out.
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize>;

    /// Receives datagrams that are there into `buffer`, of at least [`DATAGRAM_BUFFER`] bytes, and
    /// appends them to `datagrams`, in the order in which they came; those of one sender may be one
    /// item.
    ///
    /// # Errors
    /// `WouldBlock`: there is none.
    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()>;

    /// Says what to be woken for, as
    /// [`TransportStream::set_interest`](crate::TransportStream::set_interest).
    ///
    /// # Errors
    /// The system's.
    fn set_interest(&mut self, interest: Interest) -> io::Result<()>;

    /// The address, with the port that the system chose.
    fn local_addr(&self) -> SocketAddr;
}
