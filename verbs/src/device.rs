//! The device: a driver and everything made on it.

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
use uiw_llp::capture::{CaptureStack, PcapFile, PcapSink};

/// An iWARP device in this process, with a driver (and by default a background thread) of its own. Clones are the same device.
///
/// ```
/// # mod uiw { pub use uiw_verbs as raw; }
/// let device = uiw::raw::Device::open()?;
/// // Any future of the device's objects can be waited for on a thread of the program's own.
/// let none = device.block_on_for(std::time::Duration::from_millis(1), std::future::pending::<()>());
/// assert!(none.is_none());
/// # Ok::<(), uiw::raw::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    driver: Arc<Driver>,
    events: Arc<EventQueue<AsyncEvent>>,
    lingering: ConnectionHold,
}

/// A hold on the connections that end with the device's last handle.
#[derive(Clone)]
enum ConnectionHold {
    /// A handle's.
    Handle(Arc<Lingering>),
    /// Handle kept by objects that belong to the device (see [`Device::for_object`]).
    Object(Weak<Lingering>),
}

impl Device {
    /// A device on the kernel's TCP.
    ///
    /// # Errors
    /// [`Error::Io`] when the process has no descriptors or threads left.
    pub fn open() -> Result<Self> {
        Self::open_with(DeviceConfig::default())
    }

    /// A device on the kernel's TCP, with options.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Io`] when the capture cannot be written; [`Error::Limit`] and [`Error::Zero`] for options.
    pub fn open_with(options: DeviceConfig) -> Result<Self> {
        let stack = uiw_llp::tcp::TcpStack::new().map_err(Error::io("opening the TCP stack"))?;
        Self::with_stack(Box::new(stack), options)
    }

    /// A device on any byte-stream stack.
    ///
    /// # Errors
    /// As [`Device::open_with`].
    pub fn with_stack(stack: Box<dyn TransportStack>, options: DeviceConfig) -> Result<Self> {
        let stack = assemble(stack, &options)?;
        let lenient_invalidate = options.lenient_invalidate;
        let driver = Driver::start(stack, options)?;
        driver.shared.table.set_lenient_invalidate(lenient_invalidate);
        Ok(Self::new(driver, ConnectionHold::Handle(Arc::default())))
    }

    /// A handle with a queue of events of its own.
    fn new(driver: Arc<Driver>, lingering: ConnectionHold) -> Self {
        let events = Arc::default();
        if let Some(faults) = &driver.shared.faults {
            faults.add_queue(&events);
        }
        Self { driver, events, lingering }
    }

    /// The same device with asynchronous events of its own: those of objects made through this handle and its clones come to
    /// it alone. What `ibv_open_device` gives when it is called again.
    #[must_use]
    pub fn with_own_events(&self) -> Self {
        self.driver.shared.counters.device_opened();
        Self::new(Arc::clone(&self.driver), self.lingering.clone())
    }

    /// Returns the reference that an object of the device keeps: no handle, as the program cannot drive the device with it.
    pub(crate) fn for_object(&self) -> Self {
        let lingering = match &self.lingering {
            ConnectionHold::Handle(lingering) => Arc::downgrade(lingering),
            ConnectionHold::Object(lingering) => Weak::clone(lingering),
        };
        Self { lingering: ConnectionHold::Object(lingering), ..self.clone() }
    }

    /// A handle, made from what an object keeps.
    pub(crate) fn to_handle(&self) -> Self {
        let lingering = match &self.lingering {
            ConnectionHold::Handle(lingering) => Arc::clone(lingering),
            ConnectionHold::Object(lingering) => lingering.upgrade().unwrap_or_default(),
        };
        Self { lingering: ConnectionHold::Handle(lingering), ..self.clone() }
    }

    /// The connections that end with the last handle; `None` where they do not depend on one.
    pub(crate) fn lingering(&self) -> Option<&Lingering> {
        match &self.lingering {
            ConnectionHold::Handle(lingering) if self.driver.is_manual() => Some(lingering),
            _ => None,
        }
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<AsyncEvent>> {
        &self.events
    }

    /// A call of a layer above begins that the engine does not see, such as a transition that takes several of its calls: fails or is slow
    /// where the device's [`FaultPlan`](crate::FaultPlan) says so.
    ///
    /// # Errors
    /// [`Error::Injected`].
    pub fn inject(&self, call: Call) -> Result<()> {
        self.driver.shared.call(call)
    }

    /// The outcome that the device's [`FaultPlan`](crate::FaultPlan) has for a call of a connection manager above the engine.
    #[must_use]
    pub fn inject_cm(&self, call: CmCall) -> Option<CmFault> {
        self.driver.shared.faults.as_ref().and_then(|faults| faults.cm(call))
    }

    /// The descriptors that its stack waits with, one of each shard; none of a stack that has none. A child of a fork may close what it
    /// inherited by them.
    #[must_use]
    pub fn wait_fds(&self) -> &[Arc<OwnedFd>] {
        self.driver.wait_fds()
    }

    /// Returns the number of shards ([`DeviceConfig::shards`]).
    #[must_use]
    pub fn shards(&self) -> usize {
        self.driver.shards().len()
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.driver.limits()
    }

    /// The device's counters now: messages and bytes by operation and direction, waits, refusals, Terminates; of each shard, each
    /// connection and the device. No lock is taken. `uiw stat` shows the same numbers of programs that publish theirs
    /// ([`DeviceConfig::counters`]).
    ///
    /// Round trips and retransmissions are the kernel's: [`uiw_llp::sock_diag::info`] asks it, with some system calls a connection.
    #[must_use]
    pub fn counters(&self) -> Snapshot {
        self.driver.shared.counters.snapshot()
    }

    /// Counts a transfer of files that has ended, for the program `uiw`.
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

    /// Returns whether the counters are in a file that other processes read. They are not without [`DeviceConfig::counters`], and where the file
    /// cannot be made.
    #[must_use]
    pub fn publishes_counters(&self) -> bool {
        self.driver.shared.counters.is_published()
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

    /// Returns the time when [`Device::pump`] is wanted though nothing arrives: a time-out of ours or of the TCP in this process. For
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
    /// (`atexit`); with [`crate::Progress::Manual`] it drives itself. For a thread that calls this within a round, in a signal handler
    /// that has interrupted it, it is false after `timeout` at the latest.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let left = || until.saturating_duration_since(Instant::now());
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
        // A TCP in this process ends with it.
        loop {
            match self.driver.drain(left()) {
                Some(true) => return true,
                Some(false) if !left().is_zero() => {}
                _ => return false,
            }
            std::thread::sleep(Duration::from_micros(50));
        }
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

    /// Like [`Device::block_on`], for at most `timeout`; `None` when it has passed.
    pub fn block_on_for<F: Future>(&self, timeout: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        self.driver.block_on(Instant::now().checked_add(timeout), |cx| future.as_mut().poll(cx))
    }

    /// Like [`Device::block_on`] for a poll function, until `deadline`.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        self.driver.block_on(deadline, poll)
    }
}

/// Adds what the options ask for to the transport, from the wire up: the capture has what is on the wire, and transport faults are
/// injected below TLS.
fn assemble(mut stack: Box<dyn TransportStack>, options: &DeviceConfig) -> Result<Box<dyn TransportStack>> {
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

/// The capture to `file`, shared by the devices of the process that name it.
fn shared_capture(file: &PcapFile) -> Result<Arc<PcapSink>> {
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
