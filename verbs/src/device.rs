//! The device, which owns a driver and is the parent of all other objects.

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::faults::{Call, CmCall, CmFault};
use crate::lingering::Lingering;
use crate::notify::EventQueue;
use crate::options::{CaptureTarget, DeviceConfig, Limits};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use uiw_counters::Snapshot;
use uiw_impair::fault::FaultHooks;
use uiw_llp::TransportStack;
use uiw_llp::capture::{CaptureStack, PcapConfig, PcapSink};

/// Software iWARP device that runs in this process.
///
/// Each opened device has its own driver and, by default, its own background threads: one per
/// shard, which starts with the first listener or connection of the shard. Clones are handles of
/// the same device.
///
/// ```
/// # mod uiw { pub use uiw_verbs as raw; }
/// let device = uiw::raw::Device::open()?;
/// // Any thread of the program can wait for any future of the device's objects.
/// let none = device.block_on_for(std::time::Duration::from_millis(1), std::future::pending::<()>());
/// assert!(none.is_none());
/// # Ok::<(), uiw::raw::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    driver: Arc<Driver>,
    events: Arc<EventQueue<AsyncEvent>>,
    lingering: LingeringRef,
}

/// Reference to the lingering connections, which end with the last handle of the device.
#[derive(Clone)]
enum LingeringRef {
    /// Strong reference, kept by handles of the program.
    Handle(Arc<Lingering>),
    /// Weak reference, kept by objects that belong to the device (see [`Device::for_object`]).
    Object(Weak<Lingering>),
}

impl Device {
    /// Opens a device with default options that uses the kernel's TCP.
    ///
    /// # Errors
    /// [`Error::Io`] if the process has reached its limit of descriptors or threads.
    pub fn open() -> Result<Self> {
        Self::open_with(DeviceConfig::default())
    }

    /// Opens a device with `options` that uses the kernel's TCP.
    ///
    /// # Errors
    /// The errors of [`Device::open`]; [`Error::Io`] if the capture file cannot be written;
    /// [`Error::Limit`] or [`Error::Zero`] if an option is out of range.
    pub fn open_with(options: DeviceConfig) -> Result<Self> {
        let stack = uiw_llp::tcp::TcpStack::new().map_err(Error::io("opening the TCP stack"))?;
        Self::with_stack(Box::new(stack), options)
    }

    /// Opens a device that uses `stack` as its transport instead of the kernel's TCP.
    ///
    /// # Errors
    /// The errors of [`Device::open_with`].
    pub fn with_stack(stack: Box<dyn TransportStack>, options: DeviceConfig) -> Result<Self> {
        let stack = assemble(stack, &options)?;
        let lenient_invalidate = options.lenient_invalidate;
        let driver = Driver::start(stack, options)?;
        driver.shared.table.set_lenient_invalidate(lenient_invalidate);
        let device = Self::new(driver, LingeringRef::Handle(Arc::default()));
        device.driver.shared.faults.as_ref().map_or(Ok(()), |faults| faults.start_events())?;
        Ok(device)
    }

    /// Creates a handle with its own queue of asynchronous events.
    fn new(driver: Arc<Driver>, lingering: LingeringRef) -> Self {
        let events = Arc::default();
        if let Some(faults) = &driver.shared.faults {
            faults.add_queue(&events);
        }
        Self { driver, events, lingering }
    }

    /// Returns a handle of the same device with its own queue of asynchronous events.
    ///
    /// The queue receives only the events of objects that are created through the new handle or its
    /// clones. Contexts that several calls of `ibv_open_device` return for one device are separated
    /// in the same way.
    #[must_use]
    pub fn with_own_events(&self) -> Self {
        self.driver.shared.counters.device_opened();
        Self::new(Arc::clone(&self.driver), self.lingering.clone())
    }

    /// Returns the reference that an object of the device keeps. It does not count as a handle,
    /// because the program cannot drive the device with it.
    pub(crate) fn for_object(&self) -> Self {
        let lingering = match &self.lingering {
            LingeringRef::Handle(lingering) => Arc::downgrade(lingering),
            LingeringRef::Object(lingering) => Weak::clone(lingering),
        };
        Self { lingering: LingeringRef::Object(lingering), ..self.clone() }
    }

    /// Returns a handle, for the program, from the reference that an object keeps.
    pub(crate) fn to_handle(&self) -> Self {
        let lingering = match &self.lingering {
            LingeringRef::Handle(lingering) => Arc::clone(lingering),
            LingeringRef::Object(lingering) => lingering.upgrade().unwrap_or_default(),
        };
        Self { lingering: LingeringRef::Handle(lingering), ..self.clone() }
    }

    /// Returns the lingering connections, which end with the last handle.
    ///
    /// Returns `None` if a background thread drives the device, or if this is not a handle but the
    /// reference of an object.
    pub(crate) fn lingering(&self) -> Option<&Lingering> {
        match &self.lingering {
            LingeringRef::Handle(lingering) if self.driver.is_manual() => Some(lingering),
            _ => None,
        }
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.events
    }

    /// Applies the device's [`FaultPlan`](crate::FaultPlan) to `call`: fails or delays it if a rule
    /// matches.
    ///
    /// For layers above the engine, at calls that the engine cannot recognise, for instance because
    /// one of them makes several calls of the engine.
    ///
    /// # Errors
    /// [`Error::Injected`] if the plan makes the call fail.
    pub fn inject(&self, call: Call) -> Result<()> {
        self.driver.shared.call(call)
    }

    /// Returns the fault that the device's [`FaultPlan`](crate::FaultPlan) injects into `call`, a
    /// call of a connection manager above the engine.
    #[must_use]
    pub fn inject_cm(&self, call: CmCall) -> Option<CmFault> {
        self.driver.shared.faults.as_ref().and_then(|faults| faults.cm(call))
    }

    /// Returns the file descriptors on which the device waits for its transport stack, one for each
    /// shard. Empty if the stack has none.
    ///
    /// A child process created by `fork` may close its inherited copies.
    #[must_use]
    pub fn wait_fds(&self) -> &[Arc<OwnedFd>] {
        self.driver.wait_fds()
    }

    /// Returns the number of shards ([`DeviceConfig::shards`]).
    #[must_use]
    pub fn shards(&self) -> usize {
        self.driver.shards().len()
    }

    /// Returns the limits of the device.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.driver.limits()
    }

    /// Returns a snapshot of the device's counters, without taking a lock.
    ///
    /// The snapshot has the messages and bytes by operation and direction, the waits, refusals and
    /// Terminates, for the device, each shard and each connection. `uiw stat` shows the same
    /// numbers for programs that publish their counters ([`DeviceConfig::counters`]).
    ///
    /// Round-trip times and retransmissions are not among them, because the kernel counts these:
    /// [`uiw_llp::sock_diag::info`] queries them, with some system calls for each connection.
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.driver.shared.counters.snapshot()
    }

    /// Counts a completed file transfer of the program `uiw`.
    #[doc(hidden)]
    pub fn count_transfer(
        &self,
        direction: uiw_counters::TransferDirection,
        result: uiw_counters::TransferResult,
        files: u64,
        bytes: u64,
    ) {
        self.driver.shared.counters.transfer_ended(direction, result, files, bytes);
    }

    /// Returns whether the device publishes its counters in a file that other processes can read.
    ///
    /// It does not if [`DeviceConfig::counters`] is not set or the file could not be created.
    #[must_use]
    pub fn publishes_counters(&self) -> bool {
        self.driver.shared.counters.is_published()
    }

    /// Returns the queue of asynchronous events of the objects that were created through this
    /// handle or its clones.
    #[must_use]
    pub fn async_events(&self) -> &EventQueue<AsyncEvent> {
        &self.events
    }

    /// Drives the device for one round, and returns the amount of work done: 0 if there was nothing
    /// to do.
    ///
    /// With [`crate::Progress::Manual`] the program must call this, because no background thread
    /// drives the device.
    pub fn pump(&self) -> usize {
        self.driver.pump()
    }

    /// Returns the time of the next time-out, of the device or of a user-space TCP stack.
    ///
    /// With [`crate::Progress::Manual`], call [`Device::pump`] at that time even if nothing has
    /// arrived.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.driver.deadline()
    }

    /// Waits, for at most `timeout`, until the connections of destroyed queue pairs, and those that
    /// are closing, have sent all their data. Returns whether they have.
    ///
    /// Call this before the process exits, so that peers receive the last bytes. With a user-space
    /// TCP stack it then also ends all other connections, as the kernel does for its own when a
    /// process exits.
    ///
    /// The background thread drives the device meanwhile, so this may be called from an `atexit`
    /// handler, when the thread-local storage of the calling thread is already destroyed. With
    /// [`crate::Progress::Manual`] the calling thread drives the device. It may also be called from
    /// a signal handler that has interrupted a round of the same thread: then it returns `false`
    /// after `timeout` at the latest.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        let left = || timeout.saturating_sub(begun.elapsed());
        loop {
            match self.driver.is_draining(left()) {
                Some(false) => break,
                Some(true) if !left().is_zero() => {}
                _ => return false,
            }
            if self.driver.is_manual() {
                self.pump();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        // A user-space TCP stack ends with the process, so it must send its remaining bytes now.
        loop {
            match self.driver.drain(left()) {
                Some(true) => return true,
                Some(false) if !left().is_zero() => {}
                _ => return false,
            }
            if self.driver.is_manual() {
                self.pump();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Removes the addresses in `range` from all regions of
    /// [`Memory::foreign`](uiw_mem::Memory::foreign) memory, because the program is about to unmap
    /// them.
    ///
    /// After this returns, no thread of the device accesses these addresses, even if other memory
    /// is mapped there. RDMA accesses to them fail. The rest of each region stays accessible. For
    /// the case that a lock is held for long, see [`uiw_mem::Table::discard`].
    pub fn discard_memory(&self, range: std::ops::Range<usize>) {
        self.driver.shared.table.discard(range);
    }

    /// Runs a future to completion on this thread, which drives the device while it waits.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Some(output) = self.driver.block_on(None, |cx| future.as_mut().poll(cx)) {
                return output;
            }
        }
    }

    /// Like [`Device::block_on`], but returns `None` if the future is not complete after `timeout`.
    pub fn block_on_for<F: Future>(&self, timeout: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        self.driver.block_on(Instant::now().checked_add(timeout), |cx| future.as_mut().poll(cx))
    }

    /// Like [`Device::block_on`], but calls a poll function instead of a future, and returns `None`
    /// if it is not ready by `deadline`.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.driver.block_on(deadline, poll)
    }
}

/// Wraps `stack` in the layers that the options select.
///
/// From the wire up these are the capture, transport faults, and TLS. So the capture records the
/// bytes on the wire, and faults are injected below TLS.
fn assemble(
    mut stack: Box<dyn TransportStack>,
    options: &DeviceConfig,
) -> Result<Box<dyn TransportStack>> {
    let sink = match &options.capture {
        Some(CaptureTarget::File(file)) => Some(shared_capture(file)?),
        Some(CaptureTarget::Sink(sink)) => Some(Arc::clone(sink)),
        None => None,
    };
    if let Some(sink) = sink {
        stack = Box::new(CaptureStack::new(stack, sink, "uiw"));
    }
    if let Some((seed, faults)) = &options.transport_faults {
        stack = Box::new(FaultHooks::wrap(stack, *seed, faults.clone()));
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        stack = Box::new(uiw_tls::TlsStack::new(stack, tls).map_err(Error::io("starting TLS"))?);
    }
    Ok(stack)
}

/// Returns the capture that writes to `file`. Devices of this process that name the same file share
/// it.
fn shared_capture(file: &PcapConfig) -> Result<Arc<PcapSink>> {
    static SINKS: Mutex<BTreeMap<PathBuf, Weak<PcapSink>>> = Mutex::new(BTreeMap::new());
    let mut sinks = SINKS.lock();
    if let Some(sink) = sinks.get(file.path()).and_then(Weak::upgrade) {
        return Ok(sink);
    }
    sinks.retain(|_, sink| sink.strong_count() > 0);
    let sink = PcapSink::create(file.clone()).map_err(Error::io("creating the capture"))?;
    sinks.insert(file.path().to_owned(), Arc::downgrade(&sink));
    Ok(sink)
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}
