//! The device: a driver and everything made on it.

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::lingering::Lingering;
use crate::notify::EventQueue;
use crate::options::{DeviceOptions, Limits};
use parking_lot::Mutex;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use uiw_llp::Stack;
use uiw_llp::capture::{CaptureStack, PcapSink};

/// An iWARP device in this process, with a driver (and by default a background thread) of its own. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    driver: Arc<Driver>,
    events: Arc<EventQueue<AsyncEvent>>,
    /// `None` in what objects of the device keep: see [`Device::for_object`].
    lingering: Option<Arc<Lingering>>,
}

impl Device {
    /// A device on the kernel's TCP. With the environment variable `UIW_PCAP` every connection is captured to the file it names,
    /// for Wireshark.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptors or threads left, or the capture cannot be written.
    pub fn open() -> Result<Self> {
        let stack = Box::new(uiw_llp::tcp::TcpStack::new().map_err(Error::io("opening the TCP stack"))?);
        let stack: Box<dyn Stack> = match capture_wanted()? {
            Some(sink) => Box::new(CaptureStack::new(stack, sink, "uiw")),
            None => stack,
        };
        Self::with_stack(stack, DeviceOptions::default())
    }

    /// A device on any byte-stream stack.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn with_stack(stack: Box<dyn Stack>, options: DeviceOptions) -> Result<Self> {
        let driver = Driver::start(stack, options)?;
        Ok(Self { driver, events: Arc::default(), lingering: Some(Arc::default()) })
    }

    /// The same device with asynchronous events of its own: those of objects made through this handle and its clones come to
    /// it alone. What `ibv_open_device` gives when it is called again.
    #[must_use]
    pub fn with_own_events(&self) -> Self {
        let (driver, lingering) = (Arc::clone(&self.driver), self.lingering.clone());
        Self { driver, events: Arc::default(), lingering }
    }

    /// What an object of the device keeps: no handle, as the program cannot drive the device with it.
    pub(crate) fn for_object(&self) -> Self {
        Self { lingering: None, ..self.clone() }
    }

    /// The connections that end with the last handle; `None` where they do not depend on one.
    pub(crate) fn lingering(&self) -> Option<&Lingering> {
        self.lingering.as_deref().filter(|_| self.driver.is_manual())
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.events
    }

    /// The descriptors that its stack waits with, one of each shard; none of a stack that has none. A child of a fork may close what it
    /// inherited by them.
    #[must_use]
    pub fn wait_fds(&self) -> &[Arc<OwnedFd>] {
        self.driver.wait_fds()
    }

    /// How many shards it has: see [`DeviceOptions::shards`].
    #[must_use]
    pub fn shards(&self) -> usize {
        self.driver.shards().len()
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.driver.limits()
    }

    /// The asynchronous events of this handle's objects.
    #[must_use]
    pub fn async_events(&self) -> &EventQueue<AsyncEvent> {
        &self.events
    }

    /// Drives once; returns how much was done. With [`crate::Progress::Manual`] nothing else does.
    pub fn pump(&self) -> usize {
        self.driver.pump()
    }

    /// When [`Device::pump`] is wanted though nothing comes: a time-out of ours or of the TCP in this process. For
    /// [`crate::Progress::Manual`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.driver.deadline()
    }

    /// Waits until no connection of a queue pair that is gone has anything left to say, at most for `timeout`: before the process
    /// ends, and its peers find their last bytes unanswered. True when all is said. Over a TCP in this process every other
    /// connection ends as well, as the kernel would end them after the process.
    ///
    /// The background thread drives meanwhile, so that this may be called when the calling thread's own storage is gone
    /// (`atexit`); with [`crate::Progress::Manual`] it drives itself.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while self.driver.is_draining() {
            if Instant::now() >= until {
                return false;
            }
            if self.driver.is_manual() {
                self.pump();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        // A TCP in this process ends with it.
        while !self.driver.drain() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Allows a peer to invalidate plain regions with Send with Invalidate, as siw does and RFC 5040 section 8.1.1 forbids. Off by default.
    pub fn set_lenient_invalidate(&self, on: bool) {
        self.driver.shared.table.set_lenient_invalidate(on);
    }

    /// Takes the bytes at addresses of `range` out of every region of [`Memory::foreign`](uiw_mem::Memory::foreign) memory: a program is about
    /// to unmap them. When this returns, no thread touches them any more, whatever is mapped there next. Accesses to them fail; the rest
    /// of a region stays.
    pub fn discard_memory(&self, range: std::ops::Range<usize>) {
        self.driver.shared.table.discard(range);
    }

    /// Runs a future to its end on this thread, driving the device while it waits: the sleeper is the driver.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Some(output) = self.driver.block_on(None, |cx| future.as_mut().poll(cx)) {
                return output;
            }
        }
    }

    /// As [`Device::block_on`], for at most `timeout`; `None` when it has passed.
    pub fn block_on_for<F: Future>(&self, timeout: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        self.driver.block_on(Instant::now().checked_add(timeout), |cx| future.as_mut().poll(cx))
    }

    /// As [`Device::block_on`] for a poll function, until `deadline`.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.driver.block_on(deadline, poll)
    }
}

/// The capture that `UIW_PCAP` names: one file a process, complete when the last device is gone.
fn capture_wanted() -> Result<Option<Arc<PcapSink>>> {
    static SINK: Mutex<Weak<PcapSink>> = Mutex::new(Weak::new());
    let Some(path) = std::env::var_os("UIW_PCAP").filter(|path| !path.is_empty()) else { return Ok(None) };
    let mut sink = SINK.lock();
    if let Some(sink) = sink.upgrade() {
        return Ok(Some(sink));
    }
    let new = PcapSink::create(path).map_err(Error::io("creating the capture named by UIW_PCAP"))?;
    *sink = Arc::downgrade(&new);
    Ok(Some(new))
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}
