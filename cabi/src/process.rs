//! The process: one engine for all devices and both libraries, opened at first use, and what a fork makes of it.
//!
//! Threads do not survive a fork, and a lock of the engine may be held by one of them at that moment. So the child forgets the
//! engine without touching it, and everything made before is inert: calls on it say EIO, destroying it only frees the memory.
//! A new generation begins; the child opens an engine of its own when it opens a device.

use crate::boundary::{DRIVE_GUARD, LOGGING, Result};
use crate::cm::registry::Registry;
use crate::device::Devices;
use crate::errno::Errno;
use crate::inherited;
use crate::object;
use crate::pair::Pairs;
use crate::settings::Settings;
use crate::signals::Held;
use crate::stack;
use llp::Stack;
use llp::capture::{CaptureStack, PcapSink};
use llp::fault::FaultStack;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use verbs::{Device, DeviceOptions, Limits};

/// Everything of this process that objects do not hold themselves.
#[derive(Default)]
pub(crate) struct Process {
    engine: Option<Device>,
    /// The epoll set of the engine's sockets.
    sockets: Option<Arc<OwnedFd>>,
    /// What was in it before a fork.
    members: Vec<inherited::Member>,
    pcap: Option<Arc<PcapSink>>,
    /// Devices found so far.
    pub(crate) devices: Devices,
    /// The context of each device that the connection manager opened for everybody: `ibv_context` by device name.
    pub(crate) shared: HashMap<String, usize>,
    /// Queue pairs that are connected by hand.
    pub(crate) pairs: Pairs,
    /// What the connection manager gave to C.
    pub(crate) cm: Registry,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Counts the forks between the first process and this one.
#[must_use]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Does something with the process's state, which nobody else does meanwhile.
pub(crate) fn with<T>(body: impl FnOnce(&mut Process) -> T) -> T {
    watch_forks();
    body(PROCESS.lock().get_or_insert_default())
}

impl Process {
    /// The engine, opened if it is not.
    pub(crate) fn engine(&mut self) -> Result<Device> {
        if let Some(engine) = &self.engine {
            return Ok(engine.clone());
        }
        let settings = Settings::get()?;
        start_log(settings);
        let stack = self.stack(settings)?;
        let limits = Limits { max_rd_atomic: MAX_RD_ATOMIC, ..Limits::default() };
        // Its threads are started with this thread's mask: the program's signals are for the program's own threads.
        let held = Held::new();
        let engine = Device::with_stack(
            stack,
            DeviceOptions { limits, guard: Some(DRIVE_GUARD), ..DeviceOptions::default() },
        )?;
        drop(held);
        // As siw: peers may invalidate a plain region with Send with Invalidate.
        engine.set_lenient_invalidate(true);
        self.engine = Some(engine.clone());
        Ok(engine)
    }

    fn stack(&mut self, settings: &Settings) -> Result<Box<dyn Stack>> {
        let tcp = stack::open(settings)?;
        self.sockets = tcp.wait_fd();
        let stack: Box<dyn Stack> = match &settings.faults {
            Some((seed, faults)) => Box::new(FaultStack::new(tcp, *seed, faults.clone())),
            None => tcp,
        };
        let Some(path) = &settings.pcap else { return Ok(stack) };
        // A child of a fork captures beside its parent.
        let path = match generation() {
            1 => path.clone(),
            _ => format!("{}.{}", path.display(), std::process::id()).into(),
        };
        let sink = PcapSink::create(&path).map_err(|error| {
            eprintln!("uiw: UIW_PCAP={}: {error}", path.display());
            Errno::from(error)
        })?;
        self.pcap = Some(Arc::clone(&sink));
        Ok(Box::new(CaptureStack::new(stack, sink, "uiw")))
    }
}

/// Reads and atomics outstanding on one queue pair: programs keep the number in one octet.
pub const MAX_RD_ATOMIC: u16 = 255;

/// Nothing is said unless UIW_LOG is set; a program's own subscriber stays.
fn start_log(settings: &Settings) {
    let Some(filter) = &settings.log else { return };
    match tracing_subscriber::EnvFilter::try_new(filter) {
        Ok(filter) => {
            let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
            LOGGING.store(true, Ordering::Relaxed);
            let _ = log.try_init();
        }
        Err(error) => eprintln!("uiw: UIW_LOG={filter}: {error}"),
    }
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three handlers without arguments that live as long as the program; the library is never unloaded, as its
        // threads run in it.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// Held while the process is copied: the child gets the state whole.
extern "C" fn before_fork() {
    let mut process = PROCESS.lock();
    if let Some(process) = &mut *process
        && let Some(sockets) = &process.sockets
    {
        process.members = inherited::members(sockets.as_raw_fd());
    }
    std::mem::forget(process);
    object::before_fork();
}

extern "C" fn in_parent() {
    // SAFETY: `before_fork` did its part on this very thread.
    unsafe { object::after_fork() };
    // SAFETY: `before_fork` locked it on this very thread, and nobody has unlocked it since.
    unsafe { PROCESS.force_unlock() };
}

extern "C" fn in_child() {
    // SAFETY: as in the parent.
    unsafe { object::after_fork() };
    // SAFETY: as in the parent; this thread is the only one of the child.
    let process: MutexGuard<'_, Option<Process>> = unsafe { PROCESS.make_guard_unchecked() };
    let mut process = process;
    // Locks inside may be held by threads that this process does not have: forgotten, not dropped.
    if let Some(parent) = process.take() {
        let cm = parent.cm.after_fork();
        if let Some(sockets) = &parent.sockets {
            inherited::close(&parent.members, sockets.as_raw_fd());
        }
        std::mem::forget(parent);
        *process = Some(Process { cm, ..Process::default() });
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Peers of queue pairs that are gone get what they wait for; what was captured reaches its file.
extern "C" fn at_exit() {
    let Some(process) = PROCESS.try_lock() else { return };
    let Some(process) = &*process else { return };
    let (engine, pcap) = (process.engine.clone(), process.pcap.clone());
    if let Some(engine) = engine {
        engine.settle(LAST_WORDS);
    }
    if let Some(sink) = pcap {
        let _ = sink.flush();
    }
}

/// Longest time that a process waits for its peers when it ends.
const LAST_WORDS: Duration = Duration::from_millis(500);
