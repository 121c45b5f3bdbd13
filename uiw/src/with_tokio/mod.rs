//! tokio's reactor as the driver of a device (feature `tokio`).
//!
//! The module is not named `tokio`: with `use uiw::*` that name would be ambiguous between module and crate.
//!
//! The safe API needs no runtime: its futures are woken by the driving thread, by default the device's background thread. Under
//! tokio that is one thread hop an arrival; [`drive`] takes it away.

mod byte_stream;

use crate::Device;
use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use uiw_verbs::integration::ShardTask;

/// Rounds without giving other tasks a turn.
const ROUNDS: usize = 16;

struct Nudge(Notify);

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// Drives `device` from the runtime this future is spawned on, with a task for each of its shards, until it is dropped or aborted.
/// Meanwhile the background threads sleep. Never resolves unless the runtime cannot wait for the device's descriptor.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let device = uiw::Device::open()?;
/// let driver = tokio::spawn(uiw::with_tokio::drive(device.clone()));
/// // ... connections of `device` ...
/// driver.abort();
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The system's, when the descriptor cannot be registered; [`io::ErrorKind::Unsupported`] for a stack without one (a simulated
/// link), and on a multi-threaded runtime, where this is slower than the device's own thread; [`io::ErrorKind::ResourceBusy`] when another task or thread drives already.
pub async fn drive(device: Device) -> io::Result<()> {
    if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
        // Measured: a third of the requests a second less than without, as arrivals then wait for a worker that is busy.
        let why = "with_tokio::drive needs a runtime of one thread (flavor = \"current_thread\"); without it the device's own thread drives";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let mut shards = JoinSet::new();
    for index in 0..device.shards() {
        let nudge = Arc::new(Nudge(Notify::new()));
        let shard = ShardTask::try_new(device.as_raw(), index, || Waker::from(Arc::clone(&nudge)));
        let shard = shard.ok_or(io::ErrorKind::ResourceBusy)?;
        shards.spawn(drive_shard(shard, nudge));
    }
    // The first that cannot be driven ends all.
    match shards.join_next().await {
        Some(outcome) => outcome?,
        None => Ok(()),
    }
}

async fn drive_shard(shard: ShardTask, nudge: Arc<Nudge>) -> io::Result<()> {
    let set = shard.wait_fd().ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: the descriptor is owned by the `Arc` inside the `AsyncFd`, so it stays open and the same until it is deregistered.
    let set = unsafe { AsyncFd::register_with_interest(set, Interest::READABLE)? };
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
                // The descriptor is watched edge-triggered: it may only be called quiet when the stack has nothing more.
                let quiet = (0..ROUNDS).any(|_| shard.pump_events() == Some(false));
                if quiet {
                    ready.clear_ready();
                } else {
                    tokio::task::yield_now().await;
                }
            }
            () = nudge.0.notified() => { shard.try_pump(); }
            () = deadline => { shard.try_pump(); }
        }
    }
}
