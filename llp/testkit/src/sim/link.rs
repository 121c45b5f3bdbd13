//! Properties of one direction between two addresses.

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
    /// Time from `send` until the data can be received.
    pub latency: Duration,
    /// Maximum number of bytes that are in transit or unread at the receiver; `send` blocks if
    /// there are more. For datagram sockets, the limit applies separately to datagrams in transit
    /// and to unread ones, and datagrams without room at the receiver are lost.
    pub capacity: usize,
    /// Number of bytes that one `send` accepts.
    pub send_split: Split,
    /// Number of bytes that one `recv` returns.
    pub recv_split: Split,
    /// Holds back the packets of streams without losing any. Datagrams sent meanwhile are lost.
    pub stalled: bool,
    /// Number of sent bytes after which the connection is reset at both ends. The receiver gets all
    /// of them before.
    pub cut_at: Option<u64>,
    /// Number of bytes after which the receiver sees a FIN. Data that is sent afterwards is lost.
    pub fin_at: Option<u64>,
    /// Faults of datagrams.
    pub datagrams: DatagramFaults,
    /// Effective segment size that [`TransportStream::emss`](uiw_llp::TransportStream::emss)
    /// returns, in bytes.
    pub emss: usize,
}

impl Default for Link {
    /// Returns a link without latency and faults, with a capacity of 256 KiB and the EMSS of
    /// Ethernet.
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

/// Faults of datagrams, in parts per million. They are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramFaults {
    /// Share of datagrams that are lost.
    pub loss: u32,
    /// Share of datagrams that are delivered twice.
    pub duplicate: u32,
    /// Share of datagrams that are delivered after datagrams that were sent later.
    pub reorder: u32,
}
