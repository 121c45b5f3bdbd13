//! The device.

use crate::error::Result;
use crate::llp::TransportStack;
use crate::{AsyncEvent, DeviceConfig, EventQueue, Limits, Snapshot};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// iWARP device in this process, with a driver (and by default a background thread) of its own. Clones are the same device.
///
/// [`Device::as_raw`] is the same device for the [raw layer](crate::raw).
///
/// ```
/// let device = uiw::Device::open()?;
/// // Any future of the device's objects can be waited for on a thread of the program's own.
/// let none = device.block_on_for(std::time::Duration::from_millis(1), std::future::pending::<()>());
/// assert!(none.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device(uiw_verbs::Device);

impl Device {
    /// Opens a device on the kernel's TCP.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when the process has no descriptors or threads left.
    pub fn open() -> Result<Self> {
        Ok(Self(uiw_verbs::Device::open()?))
    }

    /// Opens a device on the kernel's TCP, with options.
    ///
    /// # Errors
    /// The errors are those of [`Device::open`]; [`ErrorKind::Io`](crate::ErrorKind::Io) when the capture cannot be written;
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) and [`ErrorKind::Zero`](crate::ErrorKind::Zero) for options.
    pub fn open_with(options: DeviceConfig) -> Result<Self> {
        Ok(Self(uiw_verbs::Device::open_with(options)?))
    }

    /// Opens a device on any byte-stream stack.
    ///
    /// # Errors
    /// The errors are those of [`Device::open_with`].
    pub fn with_stack(stack: Box<dyn TransportStack>, options: DeviceConfig) -> Result<Self> {
        Ok(Self(uiw_verbs::Device::with_stack(stack, options)?))
    }

    /// Returns the device for the [raw layer](crate::raw): completion queues, listeners with a queue of events, and the like. It is a
    /// handle like this one; its clones are.
    #[must_use]
    pub fn as_raw(&self) -> &uiw_verbs::Device {
        &self.0
    }

    /// Returns the descriptors that its stack waits with, one of each shard; none if the stack has none. A child of a fork may close those
    /// that it has inherited.
    #[must_use]
    pub fn wait_fds(&self) -> &[Arc<OwnedFd>] {
        self.0.wait_fds()
    }

    /// Returns the number of shards ([`DeviceConfig::shards`]).
    #[must_use]
    pub fn shards(&self) -> usize {
        self.0.shards()
    }

    /// Returns its limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.0.limits()
    }

    /// Returns the device's counters: messages and bytes by operation and direction, waits, refusals, Terminates; of each shard, each
    /// connection and the device. No lock is taken. `uiw stat` shows the same numbers of programs that publish theirs
    /// ([`DeviceConfig::counters`]).
    ///
    /// Round trips and retransmissions are the kernel's: [`sock_diag::info`](crate::llp::sock_diag::info) asks it, with some system calls
    /// a connection.
    ///
    /// ```
    /// use uiw::blocking::{Connection, Listener};
    /// use uiw::{ConnectionConfig, Device};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (server, client) = (Device::open()?, Device::open()?);
    /// let settings = ConnectionConfig::default();
    /// let listener = Listener::bind(&server.alloc_pd()?, "127.0.0.1:0".parse()?, &settings)?;
    /// let address = listener.local_addr();
    /// let accepted = std::thread::spawn(move || listener.accept());
    /// let sender = Connection::connect(&client.alloc_pd()?, address, &settings)?;
    /// let receiver = accepted.join().unwrap()?;
    ///
    /// sender.send_copy(b"14 bytes, sent")?;
    /// assert_eq!(receiver.recv()?.as_deref(), Some(&b"14 bytes, sent"[..]));
    ///
    /// let sent = client.counters().total().traffic.send.sent;
    /// assert_eq!((sent.messages, sent.bytes), (1, 14));
    /// let connection = &server.counters().connections[0];
    /// assert_eq!(connection.traffic.send.received, sent);
    /// let tcp = uiw::llp::sock_diag::info(connection.local, connection.peer)?;
    /// assert!(tcp.is_some_and(|tcp| tcp.retransmits == Some(0)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.0.counters()
    }

    /// Returns whether the counters are in a file that other processes read. They are not without [`DeviceConfig::counters`], and if the
    /// file cannot be created.
    #[must_use]
    pub fn publishes_counters(&self) -> bool {
        self.0.publishes_counters()
    }

    /// Returns the asynchronous events of this handle's objects.
    #[must_use]
    pub fn async_events(&self) -> &EventQueue<AsyncEvent> {
        self.0.async_events()
    }

    /// Drives once; returns how much was done. With [`Progress::Manual`](crate::Progress::Manual) nothing else does.
    pub fn pump(&self) -> usize {
        self.0.pump()
    }

    /// Returns when [`Device::pump`] is wanted though nothing arrives: a time-out of ours or of the TCP in this process. For
    /// [`Progress::Manual`](crate::Progress::Manual).
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// Waits until no connection that was dropped has anything left to send, at most for `timeout`: before the process ends, so that its
    /// peers get their last bytes. Returns whether everything is sent. Over a TCP in this process every other connection ends as well, as
    /// the kernel would end them after the process.
    ///
    /// The background thread drives meanwhile, so that this may be called when the calling thread's own storage is gone
    /// (`atexit`); with [`Progress::Manual`](crate::Progress::Manual) it drives itself.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        self.0.wait_idle(timeout)
    }

    /// Runs a future to its end on this thread, which drives the device while it waits.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    /// Like [`Device::block_on`], but for at most `timeout`; returns `None` when it has passed.
    pub fn block_on_for<F: Future>(&self, timeout: Duration, future: F) -> Option<F::Output> {
        self.0.block_on_for(timeout, future)
    }

    /// Like [`Device::block_on`], but for a poll function, until `deadline`.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.0.wait(deadline, poll)
    }
}

/// A handle that was opened by the raw layer.
impl From<uiw_verbs::Device> for Device {
    fn from(device: uiw_verbs::Device) -> Self {
        Self(device)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
