//! Events that concern a whole device: changes of its link or addresses, and its removal. A thread
//! sleeps, without a time-out, until the kernel announces a change of a network interface.
//!
//! | change of the interface | asynchronous event of each context | event of each rdma_cm id of the device |
//! |---|---|---|
//! | down, or no carrier | PORT_ERR | |
//! | up, with a carrier | PORT_ACTIVE | |
//! | addresses | GID_CHANGE | |
//! | hardware address | | ADDR_CHANGE |
//! | gone, or renamed | DEVICE_FATAL | DEVICE_REMOVAL, once |
//!
//! Connections continue; TCP decides for how long.

use crate::context::Context;
use once_cell::race::OnceBox;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_cabi_core::inherited::InheritableSocket;
use uiw_cabi_core::stack;
use uiw_llp::{InterfaceChange, InterfaceMonitor};
use uiw_verbs::AsyncEvent;
use uiw_verbs::integration::spawn_thread;

/// Number of unread asynchronous events of a context at which a new device event replaces the
/// oldest unread device event.
const MAX_UNREAD: usize = 64;

/// Open contexts, and the thread that raises their events.
struct DeviceEvents {
    /// True if the thread was started, or cannot be started.
    is_started: bool,
    /// Socket in which the thread sleeps.
    socket: Option<InheritableSocket>,
    contexts: Vec<Weak<Context>>,
}

impl ForkState for DeviceEvents {
    const NEW: Self = Self { is_started: false, socket: None, contexts: Vec::new() };

    /// The thread exists only in the parent. The child starts its own thread when it opens a
    /// device.
    fn in_child(&mut self) {
        let parents = std::mem::replace(self, Self::NEW);
        if let Some(socket) = parents.socket {
            socket.close();
        }
        std::mem::forget(parents);
    }
}

static DEVICE_EVENTS: ForkSafe<DeviceEvents> = ForkSafe::new();

/// Change of a device that concerns the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// The hardware address of the network device has changed.
    HardwareAddress,
    /// The network device is gone or was renamed.
    Removed,
}

/// Function that is called with the name of the network device and the change.
type Observer = fn(&str, DeviceChange);

static OBSERVER: OnceBox<Observer> = OnceBox::new();

/// Registers `observer`, which is called after each [`DeviceChange`] on the thread that watches the
/// network interfaces. Only the first observer is used.
pub fn observe(observer: Observer) {
    OBSERVER.get_or_init(|| Box::new(observer));
}

/// Starts to raise device events for a new context.
pub(crate) fn add(context: &Arc<Context>) {
    let mut events = DEVICE_EVENTS.write();
    if !std::mem::replace(&mut events.is_started, true) {
        // The thread is started under the lock, once per process, so that contexts which other
        // threads open meanwhile miss no change.
        events.socket = start()
            .inspect_err(|error| {
                tracing::info!(%error, "changes of network interfaces cannot be watched: events about ports and devices are not reported");
            })
            .ok()
            .flatten();
    }
    events.contexts.retain(|context| context.strong_count() > 0);
    events.contexts.push(Arc::downgrade(context));
}

fn start() -> io::Result<Option<InheritableSocket>> {
    let mut monitor = InterfaceMonitor::new()?;
    let socket = InheritableSocket::from_fd(monitor.socket().as_raw_fd());
    let run = move || {
        let error = loop {
            match monitor.wait() {
                Ok(changes) => changes.iter().for_each(|(name, change)| report(name, *change)),
                Err(error) => break error,
            }
        };
        tracing::info!(%error, "changes of network interfaces are no longer watched");
        DEVICE_EVENTS.write().socket = None;
        // If the program has closed every descriptor, the number may refer to another file now.
        if !socket.is_some_and(InheritableSocket::is_open) {
            std::mem::forget(monitor);
        }
    };
    spawn_thread("uiw-links", run)?;
    Ok(socket)
}

/// Reports a change of the network interface `name` to the program.
fn report(name: &str, change: InterfaceChange) {
    let contexts: Vec<_> = {
        let events = DEVICE_EVENTS.read();
        events.contexts.iter().filter_map(Weak::upgrade).collect()
    };
    let contexts: Vec<_> =
        contexts.into_iter().filter(|open| open.device.netdev_name() == name).collect();
    if contexts.is_empty() {
        return;
    }
    tracing::info!(interface = name, ?change, "a network interface has changed");
    let event = match change {
        InterfaceChange::Down => Some(AsyncEvent::PortError),
        InterfaceChange::Up => Some(AsyncEvent::PortActive),
        // A TCP in this process has its own addresses.
        InterfaceChange::Addresses => (!stack::is_in_process()).then_some(AsyncEvent::GidChange),
        InterfaceChange::Removed => Some(AsyncEvent::DeviceFatal),
        InterfaceChange::HardwareAddress => None,
    };
    for context in contexts {
        if let Some(event) = &event {
            raise(&context, event);
        }
    }
    let Some(observer) = OBSERVER.get() else { return };
    match change {
        InterfaceChange::HardwareAddress => observer(name, DeviceChange::HardwareAddress),
        InterfaceChange::Removed => observer(name, DeviceChange::Removed),
        InterfaceChange::Down | InterfaceChange::Up | InterfaceChange::Addresses => {}
    }
}

/// Queues an event for a context. The number of queued events is limited, because the program may
/// never read them.
fn raise(context: &Context, event: &AsyncEvent) {
    let queue = context.engine.async_events();
    if queue.len() >= MAX_UNREAD {
        let mut is_oldest = true;
        queue.remove_if(|event| is_of_device(event) && std::mem::replace(&mut is_oldest, false));
    }
    queue.post(event.clone());
}

fn is_of_device(event: &AsyncEvent) -> bool {
    matches!(
        event,
        AsyncEvent::PortError
            | AsyncEvent::PortActive
            | AsyncEvent::GidChange
            | AsyncEvent::DeviceFatal
    )
}
