//! Driver that runs a device on tokio's reactor (feature `tokio`).
//!
//! The module is not named `tokio`, because after `use uiw::*` that name could mean the module or
//! the crate.
//!
//! The safe API needs no runtime: its futures are woken by the thread that drives the device, which
//! is by default the device's background thread. On a single-threaded runtime, every arrival then
//! costs a switch to another thread. [`drive`] avoids this switch.

mod byte_stream;

use crate::Device;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use uiw_verbs::integration::ShardTask;

/// Maximum number of rounds before the task yields to other tasks.
const ROUNDS: usize = 16;

struct WakeHandle(Notify);

impl Wake for WakeHandle {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// Lets the background thread drive a shard again when its task ends, for whatever reason.
struct ReleaseGuard(Arc<ShardTask>);

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Handle of the tasks that drive a device, one for each of its shards.
///
/// Dropping it stops the tasks; then the device's background threads drive again.
#[must_use = "dropping the driver stops it"]
#[derive(Debug)]
pub struct Driver {
    shards: Vec<Arc<ShardTask>>,
    _tasks: JoinSet<()>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The runtime may not run again, and the tasks end only when it does.
        for shard in &self.shards {
            shard.release();
        }
    }
}

/// Drives `device` from the current tokio runtime, until the [`Driver`] is dropped. Meanwhile the
/// device's background threads sleep. A thread that waits in a blocking call, for example
/// [`Device::block_on`], drives the device itself.
///
/// This makes programs faster that use a single-threaded runtime (`flavor = "current_thread"`). On
/// a multi-threaded runtime it works as well, but is slower than the background threads, because an
/// arrival may have to wait for a busy worker.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let device = uiw::Device::open()?;
/// let driver = uiw::with_tokio::drive(&device)?;
/// // ... connections of `device` ...
/// drop(driver);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// * [`io::ErrorKind::Unsupported`] outside of a runtime, and if the stack has no descriptors, as
///   with a simulated link.
/// * [`io::ErrorKind::ResourceBusy`] if another task or thread already drives the device.
/// * The OS error if a descriptor cannot be registered.
///
/// # Panics
/// Panics if the runtime was built without I/O. Without time, tasks of the returned driver panic.
pub fn drive(device: &Device) -> io::Result<Driver> {
    let runtime =
        Handle::try_current().map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))?;
    let (mut shards, mut tasks) = (Vec::new(), JoinSet::new());
    for index in 0..device.shards() {
        let handle = Arc::new(WakeHandle(Notify::new()));
        let shard = ShardTask::try_new(device.as_raw(), index, || Waker::from(Arc::clone(&handle)));
        let shard = Arc::new(shard.ok_or(io::ErrorKind::ResourceBusy)?);
        shards.push(Arc::clone(&shard));
        let set = shard.wait_fd().ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the descriptor is owned by the `Arc` inside the `AsyncFd`, so it stays open and
        // the same until it is deregistered.
        let set = unsafe { AsyncFd::register_with_interest(set, Interest::READABLE)? };
        let shard = ReleaseGuard(shard);
        let task = async move {
            if let Err(error) = drive_shard(&shard.0, set, handle).await {
                drop(shard);
                tracing::error!(shard = index, %error, "tokio can no longer drive the device");
            }
        };
        tasks.spawn_on(task, &runtime);
    }
    Ok(Driver { shards, _tasks: tasks })
}

async fn drive_shard(
    shard: &ShardTask,
    set: AsyncFd<Arc<OwnedFd>>,
    handle: Arc<WakeHandle>,
) -> io::Result<()> {
    loop {
        let timer = shard.deadline().map(Instant::from_std);
        let deadline = async {
            match timer {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = set.readable() => {
                let mut ready = ready?;
                // tokio watches the descriptor edge-triggered, so its readiness may be cleared only
                // when the stack has no more events.
                let quiet = (0..ROUNDS).any(|_| shard.pump_events() == Some(false));
                if quiet {
                    ready.clear_ready();
                } else {
                    tokio::task::yield_now().await;
                }
            }
            () = handle.0.notified() => { shard.try_pump(); }
            () = deadline => { shard.try_pump(); }
        }
    }
}
