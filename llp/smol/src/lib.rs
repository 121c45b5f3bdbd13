//! smoltcp's TCP over links of Ethernet frames. This TCP runs in the process in addition to the
//! kernel's, with its own MAC and IP addresses.
//!
//! One [`SmolStack`] is one network interface: one link, one smoltcp interface, and a socket set
//! *for each connection*. smoltcp finds the socket of a segment with a linear scan of the set that
//! it gets. Here the ports and addresses of a frame select the set first (`flow`), so the cost of a
//! segment does not depend on the number of connections. A listening socket is created when a SYN
//! for it arrives, so a backlog can have any length.
//!
//! * `TransportStream::recv` takes frames from the link and `send` sends immediately, so an engine
//!   that reads its streams directly needs no `poll`. Frames of other streams that a call takes
//!   from the link are announced by an eventfd in addition to the link's descriptor.
//! * smoltcp's clock has a resolution of milliseconds, and its minimum retransmission time-out is a
//!   second. Here the clock runs at five times real time, which results in a minimum of 200 ms, and
//!   2 ms for a delayed acknowledgement.
//! * AF_PACKET carries virtio-net headers: TCP packets of up to 64 KiB are sent unsegmented, and
//!   the interface computes checksums. smoltcp 0.14 drops IPv6 packets that are longer than the MTU
//!   even if the link would segment them, so it is configured with a larger MTU, and `mss` corrects
//!   the segment sizes in SYNs in both directions. Super-packets stay below 65,536 bytes including
//!   their Ethernet header, because the kernel segments larger ones in software.
//! * On an interface with several queues AF_XDP receives from all of them in turn, and a flow's
//!   hash selects its send queue, so a flow's frames stay in order. If memory for frames to send
//!   runs out, the connection waits; if memory for received frames does, the kernel drops frames.
//!   Detaching an XDP program generates no event, so the attachment is checked every second while
//!   there are connections or listeners.
//! * By default MAC addresses are derived from the IP address, so a neighbour's cache is also
//!   correct for the next process.
//! * `TransportListener::accept` reports the loss of the interface as an error: immediately if the
//!   interface was removed, and after about a second if it is down, because an interface that is
//!   deleted goes down first.
//! * smoltcp has one segment size for an interface. If a path silently loses long packets,
//!   `path_mtu` splits segments below smoltcp, only for connections whose segments were
//!   retransmitted without success.
//! * smoltcp 0.14 sends keep-alive segments with a byte of zero instead of the last byte sent,
//!   which replaces a byte that the peer holds out of order. `probe` sends probes without a byte
//!   instead. smoltcp also acknowledges with the sequence number SND.NXT, which goes back for
//!   retransmissions, so two ends that retransmit would take each other's acknowledgements for old
//!   segments forever; `link` gives segments without data the number after all sent data.
//! * smoltcp opens its congestion window by one segment for each acknowledgement, regardless of the
//!   amount that it covers; `stretch` splits such acknowledgements while only the window limits
//!   sending.
//! * A TCP in the process ends with it: `StackExtensions::drain` closes open connections and waits
//!   for acknowledgements.

#![warn(missing_debug_implementations)]

mod addr;
pub mod bridge;
pub mod capability;
mod claim;
mod config;
mod datagram;
mod flow;
mod interface;
mod link;
mod listener;
mod mss;
mod netdev;
pub mod packet;
mod path_mtu;
pub mod pipe;
mod probe;
mod segment;
mod segments;
mod spec;
mod stream;
mod stretch;
#[cfg(test)]
mod tests;
pub mod xdp;

use datagram::SmolDatagrams;
use interface::SmolInterface;
use listener::SmolListener;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_llp::{
    Clock, DatagramConfig, DatagramSocket, Event, ListenConfig, StackExtensions, Token,
    TransportConfig, TransportListener, TransportStack, TransportStream,
};

pub use config::{ConfigError, SmolConfig};
pub use link::{Capabilities, Frame, Link, Segmentation};
pub use spec::{Spec, SpecError};

/// Maximum time for which a dropped stack waits until its peers have acknowledged the sent data.
const LINGER: Duration = Duration::from_secs(1);

/// smoltcp on one link.
///
/// ```
/// # mod uiw { pub use uiw_llp as llp; pub mod smol { pub use uiw_smol::*; pub use uiw_smol::pipe::pipe; } }
/// use uiw::smol::{SmolConfig, SmolStack, pipe};
/// use uiw::llp::{Clock, ListenConfig, TransportStack, TransportConfig, Token};
///
/// // Two hosts in one process, on a clock that only the program moves.
/// let clock = Clock::virtual_time();
/// let (a, b) = pipe(1500)?;
/// let mut client = SmolStack::with_clock(a, &SmolConfig::new("10.1.0.1".parse()?, 24), clock.clone())?;
/// let mut server = SmolStack::with_clock(b, &SmolConfig::new("10.1.0.2".parse()?, 24), clock)?;
/// let address = "10.1.0.2:7174".parse()?;
/// let _listener = server.listen(address, &ListenConfig::default(), Token(1))?;
/// let mut stream = client.connect(None, address, &TransportConfig::default(), Token(1))?;
/// let mut events = Vec::new();
/// while !stream.connect_result()? {
///     client.poll(&mut events)?;
///     server.poll(&mut events)?;
/// }
/// assert_eq!(stream.peer_addr(), address);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SmolStack<L: Link> {
    interface: Arc<Mutex<SmolInterface<L>>>,
    wait: Arc<OwnedFd>,
    clock: Clock,
}

impl<L: Link + 'static> SmolStack<L> {
    /// Creates a stack on `link`.
    ///
    /// # Errors
    /// `InvalidInput` that contains a [`ConfigError`] or reports too many addresses. All other
    /// errors are OS errors.
    pub fn new(link: L, config: &SmolConfig) -> io::Result<Self> {
        Self::with_clock(link, config, Clock::system())
    }

    /// Creates a stack on `link` with the given clock. With a virtual clock nothing waits for a
    /// descriptor, and a dropped stack does not wait.
    ///
    /// # Errors
    /// The same as for [`SmolStack::new`].
    pub fn with_clock(link: L, config: &SmolConfig, clock: Clock) -> io::Result<Self> {
        let interface = SmolInterface::new(link, config, clock.clone())?;
        let wait = interface.wait_fd();
        Ok(Self { interface: Arc::new(Mutex::new(interface)), wait, clock })
    }
}

impl<L: Link + 'static> TransportStack for SmolStack<L> {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>> {
        let (id, local) = self.interface.lock().listen(local, options, token)?;
        tracing::debug!(%local, "listening");
        let interface = Arc::clone(&self.interface);
        Ok(Box::new(SmolListener { interface, id, local }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let (id, local) = self.interface.lock().connect(local, peer, options, token)?;
        tracing::debug!(%local, %peer, "connecting");
        Ok(Box::new(stream::SmolStream::new(Arc::clone(&self.interface), id, (local, peer))))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.interface.lock().poll(events);
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.interface.lock().deadline()
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl<L: Link + 'static> StackExtensions for SmolStack<L> {
    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        let (id, local) = self.interface.lock().bind_datagrams(local, options, token)?;
        let interface = Arc::clone(&self.interface);
        Ok(Box::new(SmolDatagrams { interface, id, local }))
    }

    fn wait_fd(&self) -> Option<Arc<OwnedFd>> {
        (!self.clock.is_virtual()).then(|| Arc::clone(&self.wait))
    }

    fn drain(&mut self) -> bool {
        let mut interface = self.interface.lock();
        interface.close_all();
        interface.tick();
        !interface.is_lingering()
    }
}

impl<L: Link> Drop for SmolStack<L> {
    /// Waits for a limited time until sent data is acknowledged, because a TCP in the process ends
    /// with it.
    fn drop(&mut self) {
        if self.clock.is_virtual() {
            return;
        }
        let until = Instant::now() + LINGER;
        while Instant::now() < until {
            let mut interface = self.interface.lock();
            if !interface.is_lingering() {
                return;
            }
            interface.tick();
            drop(interface);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl<L: Link> std::fmt::Debug for SmolStack<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SmolStack").finish_non_exhaustive()
    }
}
