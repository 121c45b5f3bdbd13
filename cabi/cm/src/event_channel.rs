//! Creation and destruction of event channels, and the only wait of the connection manager.

use crate::channel::Channel;
use crate::event::DeliveredEvent;
use crate::registry::RegisteredPtr as _;
use crate::{deliver, orphaned, registry, routes};
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::thread;
use uiw_cabi_core::abi::{rdma_cm_event, rdma_event_channel};
use uiw_cabi_core::arguments::{AnyPtr, OutPtr};
use uiw_cabi_core::boundary::{self, is_nonblocking, read_token};
use uiw_cabi_core::errno::Errno;

/// `rdma_create_event_channel`.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    boundary::pointer(|| {
        let channel = Channel::new()?;
        registry::add_channel(&channel);
        Ok(channel.abi())
    })
}

/// `rdma_destroy_event_channel`. Ids that still use the channel keep its descriptor open until they
/// are destroyed. A thread that sleeps in [`rdma_get_cm_event`], or is about to, continues to
/// sleep.
pub extern "C" fn rdma_destroy_event_channel(channel: AnyPtr<rdma_event_channel>) {
    boundary::value((), || {
        if registry::forget_inherited(channel.as_ptr()) {
            return Ok(());
        }
        // The channel becomes an orphan before its pointer becomes invalid, so the reader finds
        // either a valid channel or itself among the readers of orphans.
        if let Some(reader) = channel.get()?.other_reader() {
            orphaned::add(channel.as_ptr().addr(), reader);
        }
        drop(registry::remove_channel(channel.as_ptr()));
        Ok(())
    });
}

/// `rdma_get_cm_event`.
pub extern "C-unwind" fn rdma_get_cm_event(
    channel: AnyPtr<rdma_event_channel>,
    event: OutPtr<'_, *mut rdma_cm_event>,
) -> c_int {
    if let Err(errno) = event.check() {
        errno.set();
        return -1;
    }
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    match unsafe { wait(channel) } {
        Some(next) => boundary::minus_one(|| event.write(next.event)),
        None => -1,
    }
}

/// Returns the channel's next event, or `None` with `errno`. Sleeps unless the descriptor is
/// non-blocking.
///
/// # Safety
/// The requirements are those of [`read_token`], because the thread may be cancelled while it
/// sleeps here.
#[inline]
pub(crate) unsafe fn wait(channel: AnyPtr<rdma_event_channel>) -> Option<DeliveredEvent> {
    let mut has_token = false;
    loop {
        match next(channel, has_token) {
            TakeOutcome::Event(event) => return Some(event),
            TakeOutcome::Failed => return None,
            // SAFETY: this frame holds only plain values (`TakeOutcome` is `Copy`), and is one of
            // Rust, so it may unwind. The callers ensure for every frame between this one and C
            // that it may unwind and holds no value with a destructor.
            TakeOutcome::Sleep(fd) => match unsafe { read_token(fd) } {
                true => has_token = true,
                false if is_gone(channel) => has_token = false,
                false => return None,
            },
            TakeOutcome::SleepForever => {
                // SAFETY: this frame holds only plain values (`TakeOutcome` is `Copy`), and is one
                // of Rust, so it may unwind. The callers ensure for every frame between this one
                // and C that it may unwind and holds no value with a destructor.
                unsafe { orphaned::sleep() };
                return None;
            }
        }
    }
}

/// Returns whether the channel was destroyed and its descriptor closed between the attempt and the
/// sleep that has just failed.
fn is_gone(channel: AnyPtr<rdma_event_channel>) -> bool {
    let closed = Errno::last() == Errno(libc::EBADF);
    closed && boundary::value(false, || Ok(channel.get().is_err()))
}

/// Outcome of an attempt to take an event. It has only plain values, because it exists while the
/// thread may be cancelled.
#[derive(Clone, Copy)]
enum TakeOutcome {
    Event(DeliveredEvent),
    Sleep(c_int),
    /// The channel was destroyed. With rdma-core this thread would continue to sleep.
    SleepForever,
    Failed,
}

fn next(channel: AnyPtr<rdma_event_channel>, has_token: bool) -> TakeOutcome {
    let mut next = TakeOutcome::Failed;
    boundary::minus_one(|| {
        let reader = thread::current().id();
        let channel = channel.get().inspect_err(|_| {
            if orphaned::contains(channel.as_ptr().addr(), reader) {
                next = TakeOutcome::SleepForever;
            }
        })?;
        channel.set_reader();
        next = TakeOutcome::Sleep(channel.queue().token_fd()?.as_raw_fd());
        let mut taken = routes::next(&channel, has_token);
        while let Some((event, id)) = taken {
            // Events for a destroyed id are dropped.
            if let Some(event) = id.and_then(|id| deliver::deliver(&id, event)) {
                next = TakeOutcome::Event(event);
                return Ok(());
            }
            taken = routes::next(&channel, false);
        }
        if is_nonblocking(channel.queue().fd()?.as_raw_fd()) {
            next = TakeOutcome::Failed;
            return Err(Errno::AGAIN);
        }
        Ok(())
    });
    next
}
