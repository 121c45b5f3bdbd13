//! What can be said about one direction between two addresses.

use std::time::Duration;
use uiw_impair::Split;

/// One direction. Faults count the bytes of each connection by themselves.
///
/// ```
/// use uiw_llp::{TransportStack, TransportConfig, Token};
/// use uiw_testkit::sim::Link;
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
/// // The connection is reset once three bytes were sent.
/// network.set_link(one, other, Link { cut_at: Some(3), ..Link::default() });
/// assert_eq!(client.send(&[uiw_mem::IoVec::from(&b"text"[..])])?, 3);
/// let reset = client.send(&[uiw_mem::IoVec::from(&b"t"[..])]).unwrap_err();
/// assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
/// # let _ = server;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Time from `send` until the bytes can be received.
    pub latency: Duration,
    /// Bytes that may be under way or unread at the receiver; `send` blocks at so many. Of a socket
    /// for datagrams: bytes that may be under way, and, at the receiver, unread; what finds no room
    /// there is lost.
    pub capacity: usize,
    /// Bytes that one `send` takes.
    pub send_split: Split,
    /// Bytes that one `recv` gives.
    pub recv_split: Split,
    /// Holds back all packets without losing any.
    pub stalled: bool,
    /// The connection is reset at both ends once so many bytes were sent; the receiver gets them
    /// all before.
    pub cut_at: Option<u64>,
    /// The receiver sees a FIN behind so many bytes; what is sent after them vanishes.
    pub fin_at: Option<u64>,
    /// Faults of datagrams.
    pub datagrams: DatagramFaults,
    /// Effective segment size that [`TransportStream::emss`](uiw_llp::TransportStream::emss)
    /// returns, in bytes.
    pub emss: usize,
}

impl Default for Link {
    /// No latency, no fault, 256 KiB, the EMSS of Ethernet.
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            capacity: 256 * 1024,
            send_split: Split::Whole,
            recv_split: Split::Whole,
            stalled: false,
            cut_at: None,
            fin_at: None,
            datagrams: DatagramFaults::default(),
            emss: 1448,
        }
    }
}

/// Faults of datagrams, each for so many of a million; independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramFaults {
    /// Lost.
    pub loss: u32,
    /// Delivered twice.
    pub duplicate: u32,
    /// Delivered later than others that were sent behind it.
    pub reorder: u32,
}
