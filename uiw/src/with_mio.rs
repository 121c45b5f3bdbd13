//! Integration of a device in a mio event loop (feature `mio`).
//!
//! The loop polls the descriptors of the device's shards. When one is readable, it calls
//! [`Device::pump`] until that returns 0. Open such a device with
//! [`Progress::Manual`](crate::Progress::Manual), and use [`Device::deadline`] as the time-out of
//! the loop.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use uiw::{ConnectionConfig, Connection, Device, DeviceConfig, Listener, Progress};
//!
//! const DEVICE: mio::Token = mio::Token(0);
//! let mut device = Device::open_with(DeviceConfig::default().progress(Progress::Manual))?;
//! let mut poll = mio::Poll::new()?;
//! poll.registry().register(&mut device, DEVICE, mio::Interest::READABLE)?;
//!
//! let pd = device.alloc_pd()?;
//! let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
//! let settings = ConnectionConfig::default();
//! let mut connecting = std::pin::pin!(Connection::connect(&pd, listener.local_addr(), &settings));
//! let mut accepting = std::pin::pin!(listener.accept());
//! let (mut client, mut server) = (None, None);
//!
//! let mut events = mio::Events::with_capacity(16);
//! let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
//! while client.is_none() || server.is_none() {
//!     while device.pump() > 0 {}
//!     use std::{future::Future, task::Poll::Ready};
//!     if client.is_none() && let Ready(connection) = connecting.as_mut().poll(cx) {
//!         client = Some(connection?);
//!         continue;
//!     }
//!     if server.is_none() && let Ready(connection) = accepting.as_mut().poll(cx) {
//!         server = Some(connection?);
//!         continue;
//!     }
//!     let timeout = device.deadline().map(|at| at.saturating_duration_since(Instant::now()));
//!     poll.poll(&mut events, timeout)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::Device;
use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use std::io;
use std::os::fd::AsRawFd;

/// Registers the descriptors of all shards with the same token. Fails with
/// [`io::ErrorKind::Unsupported`] if the stack has no descriptors, as with a simulated link.
impl Source for Device {
    fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        if self.wait_fds().is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        for (at, fd) in self.wait_fds().iter().enumerate() {
            if let Err(error) = SourceFd(&fd.as_raw_fd()).register(registry, token, interests) {
                for registered in &self.wait_fds()[..at] {
                    let _ = SourceFd(&registered.as_raw_fd()).deregister(registry);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn reregister(
        &mut self,
        registry: &Registry,
        token: Token,
        interests: Interest,
    ) -> io::Result<()> {
        self.wait_fds()
            .iter()
            .try_for_each(|fd| SourceFd(&fd.as_raw_fd()).reregister(registry, token, interests))
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.wait_fds().iter().try_for_each(|fd| SourceFd(&fd.as_raw_fd()).deregister(registry))
    }
}
