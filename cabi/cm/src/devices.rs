//! Devices of the connection manager, with one context and one protection domain each, which all
//! ids share.

use crate::id::Id;
use crate::registry;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use uiw_cabi_core::abi::cm::{RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_DEVICE_REMOVAL};
use uiw_cabi_core::abi::{ibv_context, ibv_pd};
use uiw_cabi_core::arguments::{HeapPtr, OutPtr, OwnedHandle, argument};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::c_library;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_cabi_core::object::Object;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_verbs::context::OpenContext;
use uiw_cabi_verbs::device::{self, Device, netdev};
use uiw_cabi_verbs::device_events::{self, DeviceChange};
use uiw_cabi_verbs::open;
use uiw_cabi_verbs::pd::{self, Pd};

/// Context and protection domain of a device, which are never closed.
#[derive(Clone, Copy)]
struct SharedContext {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
}

// SAFETY: a value contains only two addresses, and sending one accesses nothing. Threads turn them
// into references with `Object::get`, which requires its callers to say why the objects live, and
// any thread may use these, because an `OpenContext` and a `Pd` are `Send` and `Sync` (`Body`).
unsafe impl Send for SharedContext {}
// SAFETY: a shared reference only permits copying the two addresses, which never change. Copies may
// be sent to any thread, as explained for `Send`.
unsafe impl Sync for SharedContext {}

/// Open devices by the name of their network device.
struct OpenDevices(BTreeMap<String, SharedContext>);

impl ForkState for OpenDevices {
    const NEW: Self = Self(BTreeMap::new());

    /// The child opens its own devices, on its own engine.
    fn in_child(&mut self) {
        self.0.clear();
    }
}

static OPENED: ForkSafe<OpenDevices> = ForkSafe::new();

/// Returns the context of `device`. It is opened at the first use, without the lock.
fn shared_context(device: &'static Device) -> Result<SharedContext> {
    let name = device.netdev_name();
    if let Some(known) = OPENED.read().0.get(name) {
        return Ok(*known);
    }
    device_events::observe(report_change);
    let context = open::open(device)?;
    // SAFETY: `Object::get` looks up the pointer. This thread has just opened the context and has
    // passed it neither to C nor to another thread, so only this function could close it, and it
    // does so only after the result of `Object::get` was used.
    let domain = Pd::alloc(unsafe { Object::get(context) }?).inspect_err(|_| close(context))?;
    let new = SharedContext { context, domain };
    let kept = *OPENED.write().0.entry(name.to_owned()).or_insert(new);
    if kept.context != new.context {
        // Another thread was faster.
        // SAFETY: this thread has just allocated the domain. `OPENED` has kept another value, as
        // checked above, and the pointer was not passed to C, so no other thread uses the domain,
        // as `OwnedHandle` requires.
        pd::ibv_dealloc_pd(unsafe { argument(new.domain) });
        close(new.context);
    }
    Ok(kept)
}

/// Closes a context that nothing else uses.
fn close(context: *mut ibv_context) {
    // SAFETY: `shared_context` is the only caller. It has opened this context itself, `OPENED` does
    // not contain it, and it was not passed to C, so no other thread of the program uses it, as
    // `OwnedHandle` requires.
    let context: OwnedHandle<'_, OpenContext> = unsafe { argument(context) };
    open::ibv_close_device(context);
}

/// Sets the device of an id to the one that has `address`, with its context and its default
/// protection domain.
///
/// # Errors
/// ENODEV if no device has the address, and the errors of opening the device.
pub(crate) fn bind(id: &Id, address: IpAddr) -> Result<()> {
    let shared = shared_context(device::with_address(address)?)?;
    let _ordered = id.lock();
    id.abi.set(|id| &id.verbs, shared.context);
    id.abi.set(|id| &id.pd, shared.domain);
    id.abi.set(|id| &id.port_num, 1);
    Ok(())
}

/// Returns whether an id that is bound to `address` has no device yet. This is the case for the
/// unspecified address, and for an address of the loopback device without a port if there are other
/// devices, unless UIW_LOOPBACK is `own`.
///
/// The kernel has no device for either (`cma_any_addr`). Programs that look for devices, such as
/// libfabric, bind an id in this way, and take the device of the id, if there is one, for the only
/// one. An id with a port belongs to a server, which may use the device before it listens.
///
/// # Errors
/// The errors of listing the devices.
pub(crate) fn lacks_device(address: SocketAddr) -> Result<bool> {
    if address.ip().is_unspecified() || !address.ip().is_loopback() || address.port() != 0 {
        return Ok(address.ip().is_unspecified());
    }
    Ok(!Settings::get()?.own_loopback && netdev::all()?.iter().any(|netdev| !netdev.loopback))
}

/// Returns whether the id has a device.
pub(crate) fn is_bound(id: &Id) -> bool {
    !context_of(id).is_null()
}

/// Returns the context of the id's device, or NULL.
fn context_of(id: &Id) -> *mut ibv_context {
    let _ordered = id.lock();
    id.abi.get(|id| &id.verbs)
}

/// Reports a change of a device to its ids.
fn report_change(netdev: &str, change: DeviceChange) {
    let Some(shared) = OPENED.read().0.get(netdev).copied() else { return };
    let event = match change {
        DeviceChange::HardwareAddress => RDMA_CM_EVENT_ADDR_CHANGE,
        DeviceChange::Removed => RDMA_CM_EVENT_DEVICE_REMOVAL,
    };
    for id in registry::ids() {
        if context_of(&id) == shared.context {
            id.post_device_event(event);
        }
    }
}

/// `rdma_get_devices`.
pub extern "C" fn rdma_get_devices(count: OutPtr<'_, c_int>) -> *mut *mut ibv_context {
    boundary::pointer(|| {
        let contexts = device::list().and_then(|devices| {
            if devices.is_empty() {
                return Err(Errno::NODEV.because("no network device has an address"));
            }
            devices.into_iter().map(|device| Ok(shared_context(device)?.context)).collect()
        });
        c_library::list_to_heap(contexts, count)
    })
}

/// `rdma_free_devices`: frees the list. The devices stay open.
pub extern "C" fn rdma_free_devices(list: HeapPtr<'_, *mut ibv_context>) {
    list.free();
}
