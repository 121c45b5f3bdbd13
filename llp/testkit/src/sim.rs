//! Simulated links in one process with a virtual clock. Any number of stacks run in one thread, and
//! runs with the same seed and the same calls are identical.
//!
//! ```
//! use std::{net::Ipv4Addr, time::Duration};
//! use uiw_llp::{Interest, ListenConfig, TransportStack, TransportConfig, Token};
//! use uiw_testkit::sim::{Link, Network};
//!
//! let network = Network::new(1);
//! network.set_default_link(Link { latency: Duration::from_millis(5), ..Link::default() });
//! let mut a = network.stack(Ipv4Addr::new(10, 0, 0, 1));
//! let mut b = network.stack(Ipv4Addr::new(10, 0, 0, 2));
//! let mut listener = b.listen(([10, 0, 0, 2], 4791).into(), &ListenConfig::default(), Token(0))?;
//! let mut client = a.connect(None, listener.local_addr(), &TransportConfig::default(), Token(1))?;
//! while network.step() {}
//! assert!(client.connect_result()?);
//! let server = listener.accept(Token(2))?;
//! assert_eq!(server.peer_addr(), client.local_addr());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Each of the two directions between two ends is a [`Link`] with its own latency and faults. The
//! clock moves only by [`Network::advance`] and [`Network::step`].

mod datagram;
mod link;
#[cfg(test)]
mod tests;
mod world;

use datagram::SimDatagrams;
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use uiw_mem::{IoVec, IoVecMut};

pub use link::{DatagramFaults, Link};
pub use uiw_impair::Split;
use uiw_llp::{
    DatagramConfig, DatagramSocket, Event, Interest, ListenConfig, StackExtensions,
    StreamExtensions, StreamInfo, Token, TransportConfig, TransportListener, TransportStack,
    TransportStream,
};
use world::{EndId, ListenerId, World};

/// Simulated network: addresses, links and the clock. Clones share the same network.
#[derive(Clone)]
pub struct Network {
    world: Arc<Mutex<World>>,
}

impl Network {
    /// Creates a network whose random choices are derived from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed))) }
    }

    /// Creates a stack with one address. Several stacks may share an address, and then share its
    /// ports.
    pub fn stack(&self, ip: impl Into<IpAddr>) -> SimStack {
        let id = self.lock().new_stack();
        SimStack { network: self.clone(), ip: ip.into(), id }
    }

    /// Returns the time of the virtual clock.
    pub fn now(&self) -> Instant {
        self.lock().now()
    }

    /// Advances the clock, and processes everything that becomes due, in order.
    pub fn advance(&self, by: Duration) {
        self.lock().advance(by);
    }

    /// Advances the clock to the next event and processes it. Returns false if there is none.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Returns the time of the next event.
    pub fn next_event(&self) -> Option<Instant> {
        let world = self.lock();
        world.next_due(None).map(|due| world.instant(due))
    }

    /// Sets the link of every direction that has no link of its own.
    pub fn set_default_link(&self, link: Link) {
        self.lock().default = link;
    }

    /// Sets the link for data from `from` to `to`. It also applies to existing connections.
    pub fn set_link(&self, from: impl Into<IpAddr>, to: impl Into<IpAddr>, link: Link) {
        self.lock().links.insert((from.into(), to.into()), link);
    }

    /// Changes the link for data from `from` to `to`.
    pub fn change_link(
        &self,
        from: impl Into<IpAddr>,
        to: impl Into<IpAddr>,
        change: impl FnOnce(&mut Link),
    ) {
        let mut world = self.lock();
        let (from, to) = (from.into(), to.into());
        let mut link = world.link(from, to).clone();
        change(&mut link);
        world.links.insert((from, to), link);
    }

    /// Stops or resumes the transfer of packets from `from` to `to`. Data of streams is held back
    /// and not lost; datagrams that are sent meanwhile are lost.
    pub fn stall(&self, from: impl Into<IpAddr>, to: impl Into<IpAddr>, on: bool) {
        self.change_link(from, to, |link| link.stalled = on);
    }

    /// Resets all connections between two addresses, at both ends at the same time.
    pub fn cut(&self, a: impl Into<IpAddr>, b: impl Into<IpAddr>) {
        self.lock().cut(a.into(), b.into());
    }

    /// Returns the addresses of both ends of each established connection from `a` to `b`, the
    /// oldest first. [`Network::reset_end`] and [`Network::delay`] take these addresses as
    /// arguments.
    pub fn connections(
        &self,
        a: impl Into<IpAddr>,
        b: impl Into<IpAddr>,
    ) -> Vec<(SocketAddr, SocketAddr)> {
        self.lock().connections(a.into(), b.into())
    }

    /// Resets the end at `local` of its connection with `peer`. The other end is not notified, and
    /// data that was sent to it before still arrives.
    pub fn reset_end(&self, local: SocketAddr, peer: SocketAddr) {
        self.lock().reset_end(local, peer);
    }

    /// Delays all packets in transit from `peer` to the end at `local` by `by`. Data sent later
    /// does not overtake them.
    pub fn delay(&self, local: SocketAddr, peer: SocketAddr, by: Duration) {
        self.lock().delay(local, peer, by);
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network")
    }
}

/// Transport stack of one host in a [`Network`].
#[derive(Debug)]
pub struct SimStack {
    network: Network,
    ip: IpAddr,
    id: u32,
}

impl SimStack {
    /// Returns the network to which the stack belongs.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the IP address of the stack.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Resolves a local address that a program has passed. Its IP address must be the stack's own
    /// or unspecified.
    fn resolve_local(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        if address.ip() == self.ip || address.ip().is_unspecified() {
            Ok(SocketAddr::new(self.ip, address.port()))
        } else {
            Err(io::ErrorKind::AddrNotAvailable.into())
        }
    }
}

impl TransportStack for SimStack {
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportListener>> {
        let local = self.resolve_local(local)?;
        let (id, local) = self.network.lock().listen(self.id, local, options.backlog, token)?;
        Ok(Box::new(SimListener { network: self.network.clone(), id, local }))
    }

    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        _options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let local = self.resolve_local(local.unwrap_or(SocketAddr::new(self.ip, 0)))?;
        let (id, local) = self.network.lock().connect(self.id, local, peer, token)?;
        Ok(Box::new(SimStream { network: self.network.clone(), id, local, peer }))
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        self.network.lock().poll(self.id, events);
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let world = self.network.lock();
        world.next_due(Some(self.id)).map(|due| world.instant(due))
    }

    fn now(&self) -> Instant {
        self.network.now()
    }
}

impl StackExtensions for SimStack {
    fn connect_self(
        &mut self,
        local: SocketAddr,
        _options: &TransportConfig,
        token: Token,
    ) -> io::Result<Box<dyn TransportStream>> {
        let local = self.resolve_local(local)?;
        let (id, local) = self.network.lock().connect_self(self.id, local, token)?;
        Ok(Box::new(SimStream { network: self.network.clone(), id, local, peer: local }))
    }

    fn bind_datagrams(
        &mut self,
        local: SocketAddr,
        _options: &DatagramConfig,
        token: Token,
    ) -> io::Result<Box<dyn DatagramSocket>> {
        let local = if local.ip().is_multicast() { local } else { self.resolve_local(local)? };
        let (id, local) = self.network.lock().bind(self.id, local, token)?;
        Ok(Box::new(SimDatagrams { network: self.network.clone(), id, local }))
    }
}

#[derive(Debug)]
struct SimListener {
    network: Network,
    id: ListenerId,
    local: SocketAddr,
}

impl TransportListener for SimListener {
    fn accept(&mut self, token: Token) -> io::Result<Box<dyn TransportStream>> {
        let (id, local, peer) = self.network.lock().accept(self.id, token)?;
        Ok(Box::new(SimStream { network: self.network.clone(), id, local, peer }))
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.network.lock().stop_listening(self.id);
    }
}

#[derive(Debug)]
struct SimStream {
    network: Network,
    id: EndId,
    local: SocketAddr,
    peer: SocketAddr,
}

impl TransportStream for SimStream {
    fn send(&mut self, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.network.lock().send(self.id, bufs)
    }

    fn recv(&mut self, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        self.network.lock().recv(self.id, bufs)
    }

    fn set_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.network.lock().set_interest(self.id, interest)
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        self.network.lock().connect_result(self.id)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.network.lock().shutdown(self.id)
    }

    fn abort(&mut self) {
        self.network.lock().abort(self.id);
    }

    fn emss(&self) -> usize {
        self.network.lock().link(self.local.ip(), self.peer.ip()).emss
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl StreamExtensions for SimStream {
    fn readable(&mut self, wanted: usize) -> io::Result<Option<uiw_llp::Readable>> {
        self.network.lock().readable(self.id, wanted).map(Some)
    }

    fn info(&self) -> StreamInfo {
        self.network.lock().info(self.id, self.local.ip(), self.peer.ip())
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.network.lock().close(self.id);
    }
}
