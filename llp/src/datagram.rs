//! Datagrams: UDP sockets beside the byte streams of a [`Stack`](crate::Stack).

use crate::Interest;
use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// A datagram to be sent: the next `len` bytes of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where to.
    pub peer: SocketAddr,
    /// Bytes.
    pub len: usize,
}

/// A datagram that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Where from.
    pub peer: SocketAddr,
    /// Its bytes in the buffer.
    pub bytes: Range<usize>,
}

/// What a socket is bound for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramOptions {
    /// At a multicast address: the address of the interface at which the group is joined. At any other address: without meaning.
    pub member: Option<IpAddr>,
    /// The index of that interface, where the address alone does not name it (IPv6).
    pub interface: u32,
}

/// Bytes of the buffer that a stack fills with one datagram, or with several of one sender at a time.
pub const DATAGRAM_BUFFER: usize = 1 << 16;

/// A UDP socket, made by [`Stack::bind_datagrams`](crate::Stack::bind_datagrams). To drop it closes it.
///
/// Datagrams are never fragmented. A socket bound to a multicast address receives what is sent to that group at its port, together with
/// every other such socket, and nothing else; it does not send. Other sockets also send to groups: through the interface of their
/// address, with a TTL of 1, and to members on their own host as well.
///
/// A new socket has [`Interest::NONE`].
pub trait DatagramSocket: Any + Send {
    /// Sends datagrams, which lie in `bytes` one behind the other, and returns how many were taken: at least one. A datagram that was taken
    /// may still be lost.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. Others concern the first datagram alone, such as one that is too long for the interface or that no
    /// route leads to: the caller leaves it out.
    fn send(&mut self, bytes: &[u8], datagrams: &[Outgoing]) -> io::Result<usize>;

    /// Receives datagrams that are there into `buffer`, of at least [`DATAGRAM_BUFFER`] bytes, and appends them to `datagrams`, in the order in
    /// which they came.
    ///
    /// # Errors
    /// `WouldBlock`: there is none.
    fn recv(&mut self, buffer: &mut [u8], datagrams: &mut Vec<Incoming>) -> io::Result<()>;

    /// Says what to be woken for, as [`Stream::set_interest`](crate::Stream::set_interest).
    ///
    /// # Errors
    /// The system's.
    fn set_interest(&mut self, interest: Interest) -> io::Result<()>;

    /// The address, with the port that the system chose.
    fn local_addr(&self) -> SocketAddr;
}
