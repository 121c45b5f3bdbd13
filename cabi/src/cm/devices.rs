//! The connection manager's devices: one context and one protection domain each, the same for every id.

use crate::abi::{ibv_context, ibv_pd};
use crate::boundary::{self, Result};
use crate::cm::id::Id;
use crate::cm::registry;
use crate::context::Context;
use crate::device::{self, Device, netdev};
use crate::errno::Errno;
use crate::fork::{ForkSafe, Forked};
use crate::settings::Settings;
use crate::{open, pd};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

/// A context and its protection domain, which are never closed.
#[derive(Clone, Copy)]
struct Shared {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
}

// SAFETY: pointers to objects that any thread may use.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// By name of the network device.
struct Opened(BTreeMap<String, Shared>);

impl Forked for Opened {
    const NEW: Self = Self(BTreeMap::new());

    /// The child opens its own, on its own engine.
    fn in_child(&mut self) {
        self.0.clear();
    }
}

static OPENED: ForkSafe<Opened> = ForkSafe::new();

/// Opened at the first use of `device`, without the lock.
fn shared(device: &'static Device) -> Result<Shared> {
    let name = device.netdev_name();
    if let Some(known) = OPENED.read().0.get(name) {
        return Ok(*known);
    }
    let context = open::open(device)?;
    // SAFETY: a context of ours, made above.
    let domain = unsafe { pd::ibv_alloc_pd(context) };
    if domain.is_null() {
        let error = Errno::last();
        // SAFETY: made above, and no other thread has it.
        unsafe { Context::free(context) }?;
        return Err(error);
    }
    let new = Shared { context, domain };
    let kept = *OPENED.write().0.entry(name.to_owned()).or_insert(new);
    if kept.context != new.context {
        // Another thread was faster.
        // SAFETY: made above, and no other thread has them.
        unsafe {
            pd::ibv_dealloc_pd(new.domain);
            Context::free(new.context)?;
        }
    }
    Ok(kept)
}

/// Ties an id to the device that has `address`: its context and its default protection domain.
///
/// # Errors
/// ENODEV when no device has the address; those of opening it.
pub(crate) fn bind(id: &Id, address: IpAddr) -> Result<()> {
    let shared = shared(device::with_address(address)?)?;
    let _ordered = id.lock();
    // SAFETY: the structure is alive, and the lock orders this library's threads.
    unsafe {
        (*id.abi()).verbs = shared.context;
        (*id.abi()).pd = shared.domain;
        (*id.abi()).port_num = 1;
    }
    Ok(())
}

/// Whether an id that is bound to `address` has no device yet: it is any address; or the loopback device's without a port, where there are
/// other devices.
///
/// The kernel has no device for either (`cma_any_addr`). Programs that ask which devices there are, as libfabric does, bind an id so, and take a
/// device that it has for the only one. With a port it is a server's, which may use the device before it listens.
///
/// # Errors
/// Those of listing the devices.
pub(crate) fn is_of_host(address: SocketAddr) -> Result<bool> {
    if address.ip().is_unspecified() || !address.ip().is_loopback() || address.port() != 0 {
        return Ok(address.ip().is_unspecified());
    }
    Ok(!Settings::get()?.own_loopback && netdev::all()?.iter().any(|netdev| !netdev.loopback))
}

/// Whether the id has a device.
pub(crate) fn is_bound(id: &Id) -> bool {
    !context_of(id).is_null()
}

/// The context of the id's device, or NULL.
fn context_of(id: &Id) -> *mut ibv_context {
    let _ordered = id.lock();
    // SAFETY: the structure is alive, and the lock orders this library's threads.
    unsafe { (*id.abi()).verbs }
}

/// Reports an event about a device as a whole to its ids.
pub(crate) fn report_device_event(netdev: &str, event: c_int) {
    let Some(shared) = OPENED.read().0.get(netdev).copied() else { return };
    for id in registry::ids() {
        if context_of(&id) == shared.context {
            id.post_of_device(event);
        }
    }
}

/// `rdma_get_devices`.
///
/// # Safety
/// `count` is NULL or writable.
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    boundary::pointer(|| {
        let devices = device::list()?;
        if devices.is_empty() {
            return Err(Errno::NODEV.because("no network device has an address"));
        }
        let mut list = Vec::with_capacity(devices.len() + 1);
        for device in devices {
            list.push(shared(device)?.context);
        }
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *count = list.len() as c_int };
        }
        list.push(ptr::null_mut());
        // SAFETY: memory of C's heap, large enough for the copy; `rdma_free_devices` frees it.
        unsafe {
            let array = libc::malloc(size_of_val(list.as_slice())).cast::<*mut ibv_context>();
            if array.is_null() {
                return Err(Errno::NOMEM.because("no memory for the list"));
            }
            ptr::copy_nonoverlapping(list.as_ptr(), array, list.len());
            Ok(array)
        }
    })
}

/// `rdma_free_devices`. The devices stay open.
///
/// # Safety
/// `list` is NULL or came out of [`rdma_get_devices`].
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}
