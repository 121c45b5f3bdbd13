//! The engine, which all devices and both libraries of a process share. It is opened at its first
//! use.

use crate::boundary::{PROGRESS_HOOKS, Result};
use crate::counters;
use crate::errno::Errno;
use crate::fork::{self, ForkSafe, ForkState};
use crate::inherited;
use crate::settings::Settings;
use crate::signals;
use crate::stack;
use crate::tls_watch::TlsWatch;
use once_cell::race::OnceBox;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use uiw_llp::capture::{PcapConfig, PcapSink};
use uiw_verbs::{Device, DeviceConfig, Limits};

/// Maximum number of outstanding Reads and atomics of one queue pair. Programs store the number in
/// one byte.
pub const MAX_RD_ATOMIC: u16 = 255;

/// Time-out of each of the two waits at exit: for the function that [`before_exit`] has registered,
/// which may extend it, and for the acknowledgement of all sent data by the peers.
const EXIT_FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum time for which [`get_if_open`] waits for the lock.
const LONGEST_LOCK: Duration = Duration::from_millis(100);

struct Engine {
    device: Option<Device>,
    /// Epoll sets of the engine's sockets, one for each shard.
    sockets: Vec<Arc<OwnedFd>>,
    /// Members of each set in `sockets`, recorded before a fork.
    members: Vec<Vec<inherited::InheritableSocket>>,
    pcap: Option<Arc<PcapSink>>,
}

static ENGINE: ForkSafe<Engine> = ForkSafe::new();

impl ForkState for Engine {
    const NEW: Self = Self { device: None, sockets: Vec::new(), members: Vec::new(), pcap: None };

    fn before_fork(&mut self) {
        self.members = self.sockets.iter().map(|set| inherited::members(set.as_raw_fd())).collect();
    }

    fn in_child(&mut self) {
        for (members, set) in self.members.iter().zip(&self.sockets) {
            inherited::close(members, set.as_raw_fd());
        }
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

/// Returns the engine, and opens it if necessary.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value, and the errors of opening the engine.
pub fn get() -> Result<Device> {
    if let Some(device) = &ENGINE.read().device {
        return Ok(device.clone());
    }
    // The lock is held while the engine is opened. This happens once per process, and all threads
    // that wait for it need the engine.
    ENGINE.write().open()
}

/// Returns the engine if it is open. This is for callers that may hold locks of the program's
/// allocator, so the function does not allocate and waits only briefly for a lock that is held for
/// long, as during a fork.
pub fn get_if_open() -> Option<Device> {
    let until = Instant::now() + LONGEST_LOCK;
    loop {
        if let Some(engine) = ENGINE.try_read() {
            return engine.device.clone();
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::yield_now();
    }
}

impl Engine {
    fn open(&mut self) -> Result<Device> {
        if let Some(device) = &self.device {
            return Ok(device.clone());
        }
        let settings = Settings::get()?;
        if let Some(line) = settings.refused_tls() {
            crate::log::note!("{line}");
            return Err(Errno::PERM.because(line));
        }
        // At their first use the routines for CRCs detect the features of the processor, and other
        // threads wait for the result. A fork cannot happen meanwhile, because it waits for this
        // lock.
        std::hint::black_box((uiw_mpa::crc32c(b""), uiw_mem::recover::copies_with_crc()));
        let watch = settings
            .tls
            .as_ref()
            .map(|file| TlsWatch::new(file, &settings.tls_options))
            .transpose()?;
        let tls = settings.tls().map_err(|line| {
            // The error number alone would not name the file.
            crate::log::note!("{line}");
            Errno::INVAL.because(line)
        })?;
        let stack = stack::open(settings)?;
        let sink = settings.pcap.as_ref().map(|file| self.sink(file)).transpose()?;
        let asked = settings.ird.max(settings.ord).unwrap_or(0);
        let limits = Limits::default().max_rd_atomic(MAX_RD_ATOMIC.max(asked));
        // New threads inherit the signal mask of this thread. Signals are blocked because they are
        // meant for the program's own threads.
        let held = signals::block_all();
        let device = Device::with_stack(
            stack,
            DeviceConfig::default()
                .limits(limits)
                .progress_hooks(PROGRESS_HOOKS)
                // Peers may invalidate a plain region with Send with Invalidate, as with siw.
                .lenient_invalidate(true)
                .shards(settings.shards)
                .capture_to(sink)
                .transport_faults(settings.faults.clone())
                .tls(tls.clone())
                .counters(counters::library_publish_config(&settings.counters))
                .faults(settings.plan.clone()),
        )?;
        if let (Some(watch), Some(tls)) = (watch, tls) {
            watch.start(tls)?;
        }
        drop(held);
        counters::report_unpublished(&settings.counters, device.publishes_counters());
        self.sockets = device.wait_fds().to_vec();
        self.device = Some(device.clone());
        flush_at_exit();
        Ok(device)
    }

    fn sink(&mut self, file: &PcapConfig) -> Result<Arc<PcapSink>> {
        // A child process captures to its own file.
        let file = match fork::generation() {
            1 => file.clone(),
            _ => {
                file.clone().with_path(format!("{}.{}", file.path().display(), std::process::id()))
            }
        };
        let sink = PcapSink::create(file.clone()).map_err(|error| {
            crate::log::note!("uiw: UIW_PCAP={file}: {error}");
            Errno::from(error)
        })?;
        self.pcap = Some(Arc::clone(&sink));
        Ok(sink)
    }
}

/// Function that [`before_exit`] has registered.
static BEFORE_EXIT: OnceBox<fn(Instant)> = OnceBox::new();

/// Registers `close`, which is called at the end of the process before the engine is closed.
/// `close` should return by the time that is passed to it, but may take longer while peers
/// acknowledge data. Only the first registration has an effect.
pub fn before_exit(close: fn(Instant)) {
    BEFORE_EXIT.get_or_init(|| Box::new(close));
}

fn flush_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler takes no arguments and may run in any thread that ends the process.
        // It does not unwind, because a panic in an `extern "C"` function aborts. The C library
        // calls the handlers of a shared library before it unloads the library (atexit(3)).
        unsafe { libc::atexit(at_exit) };
    });
}

/// Calls the function that [`before_exit`] has registered, waits until connections whose queue pair
/// was destroyed have finished sending, and writes the capture to its file.
extern "C" fn at_exit() {
    // Another thread may be opening the engine, or may have been stopped while it did. In that case
    // nothing was sent yet.
    let Some(engine) = ENGINE.try_read() else { return };
    let (device, pcap) = (engine.device.clone(), engine.pcap.clone());
    drop(engine);
    if let Some(device) = device {
        if let Some(close) = BEFORE_EXIT.get() {
            close(Instant::now() + EXIT_FLUSH_TIMEOUT);
        }
        device.wait_idle(EXIT_FLUSH_TIMEOUT);
    }
    if let Some(sink) = pcap {
        let _ = sink.flush();
    }
}
