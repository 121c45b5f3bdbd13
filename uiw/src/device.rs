//! The device of the safe API.

use crate::error::Result;
use crate::llp::TransportStack;
use crate::{AsyncEvent, DeviceConfig, EventQueue, Limits, Snapshot};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Software iWARP device that runs in this process.
///
/// Each opened device has its own driver and, by default, its own background thread. Clones are
/// handles of the same device. [`Device::as_raw`] returns the same device for the
/// [raw layer](crate::raw).
///
/// ```
/// let device = uiw::Device::open()?;
/// // Any thread of the program can wait for any future of the device's objects.
/// let none = device.block_on_for(std::time::Duration::from_millis(1), std::future::pending::<()>());
/// assert!(none.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device(uiw_verbs::Device);

impl Device {
    /// Opens a device with default options that uses the kernel's TCP.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the process has reached its limit of descriptors
    /// or threads.
    pub fn open() -> Result<Self> {
        Ok(Self(uiw_verbs::Device::open()?))
    }

    /// Opens a device with `options` that uses the kernel's TCP.
    ///
    /// # Errors
    /// The errors of [`Device::open`]; [`ErrorKind::Io`](crate::ErrorKind::Io) if the capture file
    /// cannot be written; [`ErrorKind::Limit`](crate::ErrorKind::Limit) or
    /// [`ErrorKind::Zero`](crate::ErrorKind::Zero) if an option is out of range.
    pub fn open_with(options: DeviceConfig) -> Result<Self> {
        Ok(Self(uiw_verbs::Device::open_with(options)?))
    }

    /// Opens a device that uses `stack` as its transport instead of the kernel's TCP (see
    /// [`llp`](crate::llp)).
    ///
    /// # Errors
    /// The errors of [`Device::open_with`].
    pub fn with_stack(stack: Box<dyn TransportStack>, options: DeviceConfig) -> Result<Self> {
        Ok(Self(uiw_verbs::Device::with_stack(stack, options)?))
    }

    /// Returns the device for the [raw layer](crate::raw), for instance to create completion
    /// queues. Like this one, it is a handle of the device, and so are its clones.
    #[must_use]
    pub fn as_raw(&self) -> &uiw_verbs::Device {
        &self.0
    }

    /// Returns the file descriptors on which the device waits for its transport stack, one for each
    /// shard. Empty if the stack has none.
    ///
    /// A child process created by `fork` may close its inherited copies.
    #[must_use]
    pub fn wait_fds(&self) -> &[Arc<OwnedFd>] {
        self.0.wait_fds()
    }

    /// Returns the number of shards ([`DeviceConfig::shards`]).
    #[must_use]
    pub fn shards(&self) -> usize {
        self.0.shards()
    }

    /// Returns the limits of the device.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.0.limits()
    }

    /// Returns a snapshot of the device's counters, without taking a lock.
    ///
    /// The snapshot has the messages and bytes by operation and direction, the waits, refusals and
    /// Terminates, for the device, each shard and each connection. `uiw stat` shows the same
    /// numbers for programs that publish their counters ([`DeviceConfig::counters`]).
    ///
    /// Round-trip times and retransmissions are not among them, because the kernel counts these:
    /// [`sock_diag::info`](crate::llp::sock_diag::info) queries them, with some system calls for
    /// each connection.
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

    /// Returns whether the device publishes its counters in a file that other processes can read.
    ///
    /// It does not if [`DeviceConfig::counters`] is not set or the file could not be created.
    #[must_use]
    pub fn publishes_counters(&self) -> bool {
        self.0.publishes_counters()
    }

    /// Returns the queue of asynchronous events of the objects that were created through this
    /// handle or its clones.
    #[must_use]
    pub fn async_events(&self) -> &EventQueue<AsyncEvent> {
        self.0.async_events()
    }

    /// Drives the device for one round, and returns the amount of work done: 0 if there was nothing
    /// to do.
    ///
    /// With [`Progress::Manual`](crate::Progress::Manual) the program must call this, because no
    /// background thread drives the device.
    pub fn pump(&self) -> usize {
        self.0.pump()
    }

    /// Returns the time of the next time-out, of the device or of a user-space TCP stack.
    ///
    /// With [`Progress::Manual`](crate::Progress::Manual), call [`Device::pump`] at that time even
    /// if nothing has arrived.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// Waits, for at most `timeout`, until dropped connections have sent all their data. Returns
    /// whether they have.
    ///
    /// Call this before the process exits, so that peers receive the last bytes. With a user-space
    /// TCP stack it then also ends all other connections, as the kernel does for its own when a
    /// process exits.
    ///
    /// The background thread drives the device meanwhile, so this may be called from an `atexit`
    /// handler, when the thread-local storage of the calling thread is already destroyed. With
    /// [`Progress::Manual`](crate::Progress::Manual) the calling thread drives the device.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        self.0.wait_idle(timeout)
    }

    /// Runs a future to completion on this thread, which drives the device while it waits.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    /// Like [`Device::block_on`], but returns `None` if the future is not complete after `timeout`.
    pub fn block_on_for<F: Future>(&self, timeout: Duration, future: F) -> Option<F::Output> {
        self.0.block_on_for(timeout, future)
    }

    /// Like [`Device::block_on`], but calls a poll function instead of a future, and returns `None`
    /// if it is not ready by `deadline`.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.0.wait(deadline, poll)
    }
}

/// Converts a device that was opened with the raw layer.
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
