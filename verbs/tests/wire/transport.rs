//! Transport of a test: a simulated network with a virtual clock ([`simulation`]), or the kernel's
//! TCP with the system's clock.

use crate::common::loopback;
use crate::peer::TIMEOUT;
use crate::simulation::{self, SimStream};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use uiw_verbs::Device;

/// Stream of a scripted peer.
pub(crate) enum PeerStream {
    Tcp(TcpStream),
    Simulated(SimStream),
}

impl PeerStream {
    pub(crate) fn tcp(tcp: TcpStream) -> Self {
        tcp.set_nodelay(true).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        tcp.set_write_timeout(Some(TIMEOUT)).unwrap();
        Self::Tcp(tcp)
    }

    pub(crate) fn connect(to: SocketAddr) -> io::Result<Self> {
        if simulation::is_address(to) {
            SimStream::connect(to).map(Self::Simulated)
        } else {
            TcpStream::connect(to).map(Self::tcp)
        }
    }

    /// Sets the timeout of reads.
    pub(crate) fn set_read_timeout(&mut self, timeout: Duration) {
        match self {
            Self::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)).unwrap(),
            Self::Simulated(stream) => stream.set_timeout(timeout),
        }
    }

    /// Sends a FIN.
    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Write),
            Self::Simulated(stream) => stream.shutdown(),
        }
    }

    /// Ends the connection with a RST.
    pub(crate) fn reset(self) {
        match self {
            Self::Tcp(tcp) => {
                socket2::SockRef::from(&tcp).set_linger(Some(Duration::ZERO)).unwrap();
            }
            Self::Simulated(stream) => stream.abort(),
        }
    }
}

impl Read for PeerStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(bytes),
            Self::Simulated(stream) => stream.read(bytes),
        }
    }
}

impl Write for PeerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.write(bytes),
            Self::Simulated(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns an address for a listener of `device`; the port is chosen when it is bound.
pub(crate) fn any_port(device: &Device) -> SocketAddr {
    if simulation::is_simulated(device) { simulation::any_port() } else { loopback() }
}

/// Polls `poll` until it is ready and drives the device, for at most `timeout` of the device's
/// clock.
pub(crate) fn wait_for<T>(
    device: &Device,
    timeout: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    if !simulation::is_simulated(device) {
        return device.wait(Some(Instant::now() + timeout), poll);
    }
    simulation::wait(timeout, || match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// Like [`wait_for`], with a timeout longer than any expected event takes.
pub(crate) fn wait<T>(device: &Device, poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    wait_for(device, TIMEOUT, poll)
}

/// Drives the device while `time` passes on its clock.
pub(crate) fn pass(device: &Device, time: Duration) {
    wait_for(device, time, |_| Poll::<()>::Pending);
}
