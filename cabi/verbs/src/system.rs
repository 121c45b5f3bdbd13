//! The system's libibverbs in addition to this one, so that a program sees the devices of both.
//! Each object belongs to the library that created it, and every call on the object goes to that
//! library.
//!
//! The shared library (`cabi/ibverbs`) has a [`Slot`] for each exported function that the system's
//! library has as well. Until the system's library is loaded, a slot refers only to our function.
//! Then it also refers to the system's function, which is called for objects that are not ours.
//! Functions that the headers call through an object's own function table, such as posting and
//! polling, reach its library directly.
//!
//! Providers of adapters (`libmlx5.so.1`) need `libibverbs.so.1`, and the loader gives them this
//! library. For them, the functions of the private nodes, with which they register and talk to the
//! kernel, are those of the system's library, unchanged.

use crate::context;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use uiw_cabi_core::abi::event::ibv_async_event;
use uiw_cabi_core::abi::ibv_device;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::environment::{self, PrivilegePolicy};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_cabi_core::object;
use uiw_cabi_core::system_path::{VARIABLE, check};

/// True if the system's library is loaded and the slots refer to its functions.
pub static LOADED: AtomicBool = AtomicBool::new(false);

/// Function that both libraries have. The assembly in `cabi/ibverbs/src/export.rs` creates and
/// reads it.
#[repr(C)]
#[derive(Debug)]
pub struct Slot {
    name: *const c_char,
    node: *const c_char,
    ours: *const c_void,
    /// Function of the system's library. It is our function until that library is loaded, and if
    /// that library does not have the function.
    theirs: AtomicPtr<c_void>,
}

// SAFETY: no thread changes the names and `ours`, which point to constants of this library, and
// `theirs` is atomic.
unsafe impl Sync for Slot {}

/// Functions of the system's library that this library calls itself.
struct SystemLibrary {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    ack_async_event: unsafe extern "C" fn(*mut ibv_async_event),
}

/// System's library, or the reason why it cannot be used. Unset if it was not requested.
static SYSTEM: OnceLock<std::result::Result<SystemLibrary, String>> = OnceLock::new();

/// Loads the library whose path is in [`VARIABLE`], if it is set. Called once, when the shared
/// library is loaded, because providers with which a program is linked register with the system's
/// library after that.
pub fn load(slots: &[Slot]) {
    let Some(path) = environment::variable(VARIABLE, PrivilegePolicy::Ignored) else { return };
    let loaded = match check(&path.to_string_lossy()) {
        Ok(()) => open(&path, slots),
        Err(rule) => Err(rule.to_owned()),
    };
    let is_loaded = loaded.is_ok();
    if SYSTEM.set(loaded).is_ok() && is_loaded {
        LOADED.store(true, Ordering::Release);
    }
}

fn open(path: &OsStr, slots: &[Slot]) -> std::result::Result<SystemLibrary, String> {
    let name = CString::new(path.as_bytes()).map_err(|error| error.to_string())?;
    // The library is loaded by its own path, because its name alone refers to this library. It is
    // searched first for its own symbols (RTLD_DEEPBIND), because it must call its own functions.
    // SAFETY: the path is a `CString`, which ends in NUL and lives during the call. The user of the
    // program has chosen the library and vouches for its constructors, which run here.
    let library = unsafe {
        libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND)
    };
    if library.is_null() {
        return Err(dl_error());
    }
    let find = |name: &CStr, node: &CStr| {
        // SAFETY: `library` is not NULL, as checked above, and is a handle of dlopen(3) that is
        // never closed. The names are borrowed `CStr`s, which end in NUL and live during the call.
        unsafe { libc::dlvsym(library, name.as_ptr(), node.as_ptr()) }
    };
    if !find(c"uiw_sockets_loaded", c"UIW_SOCKETS_1").is_null() {
        return Err("this is uiw's own library".to_owned());
    }
    let needed = |name: &CStr| match find(name, c"IBVERBS_1.1") {
        found if found.is_null() => Err(format!("it has no {}", name.to_string_lossy())),
        found => Ok(found),
    };
    // SAFETY: `needed` returns only addresses that are not NULL. The functions with these names in
    // the node IBVERBS_1.1 have these types in verbs.h of rdma-core. The user has chosen a library
    // of rdma-core, whose nodes never change, and `library` is never closed.
    let system = unsafe {
        use std::mem::transmute;
        SystemLibrary {
            get_device_list: transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
            >(needed(c"ibv_get_device_list")?),
            free_device_list: transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut ibv_device)>(
                needed(c"ibv_free_device_list")?,
            ),
            ack_async_event: transmute::<*mut c_void, unsafe extern "C" fn(*mut ibv_async_event)>(
                needed(c"ibv_ack_async_event")?,
            ),
        }
    };
    for slot in slots {
        // SAFETY: the only caller of `load` is the function of that name in `cabi/ibverbs`, whose
        // slots its macro `slot!` makes, with both fields set to constants that end in NUL and live
        // as long as this library.
        let (name, node) = unsafe { (CStr::from_ptr(slot.name), CStr::from_ptr(slot.node)) };
        let theirs = find(name, node);
        if !theirs.is_null() {
            slot.theirs.store(theirs, Ordering::Release);
        }
    }
    Ok(system)
}

/// Returns the loader's description of its last failure.
fn dl_error() -> String {
    // SAFETY: dlerror(3) returns NULL or a string that ends in NUL. The string belongs to this
    // thread until its next call of the loader, and is copied before that.
    unsafe {
        match libc::dlerror() {
            error if error.is_null() => "it cannot be loaded".to_owned(),
            error => CStr::from_ptr(error).to_string_lossy().into_owned(),
        }
    }
}

/// Returns whether a call with this first argument belongs to this library: the object is ours, or
/// the argument is NULL. Called by the assembly in `cabi/ibverbs/src/export.rs`.
pub extern "C" fn is_ours(address: *const c_void) -> bool {
    let address = address.addr();
    address == 0 || object::is_known(address) || context::is_alive(address)
}

/// Returns the system's library, if it was requested.
///
/// # Errors
/// EINVAL, with a line on standard error, if it could not be loaded.
fn system() -> Result<Option<&'static SystemLibrary>> {
    match SYSTEM.get() {
        None => Ok(None),
        Some(Ok(system)) => Ok(Some(system)),
        Some(Err(why)) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            let path = environment::variable(VARIABLE, PrivilegePolicy::Ignored)
                .map(PathBuf::from)
                .unwrap_or_default();
            if !SAID.swap(true, Ordering::Relaxed) {
                uiw_cabi_core::log::note!("uiw: {VARIABLE}={}: {why}", path.display());
            }
            Err(Errno::INVAL.because(format_args!("{VARIABLE}={}: {why}", path.display())))
        }
    }
}

/// Device list of the system's library for each of our lists.
struct DeviceLists(BTreeMap<usize, usize>);

impl ForkState for DeviceLists {
    const NEW: Self = Self(BTreeMap::new());

    /// A child may free the lists that it has inherited.
    fn in_child(&mut self) {}
}

static LISTS: ForkSafe<DeviceLists> = ForkSafe::new();

/// Device list of the system's library.
pub(crate) struct SystemDevices {
    list: *mut *mut ibv_device,
    free: unsafe extern "C" fn(*mut *mut ibv_device),
}

/// Lists the devices of the system's library. Returns `None` without that library, or if it
/// returned no list, as on a host whose kernel has no RDMA.
///
/// # Errors
/// The errors of [`system`].
pub(crate) fn devices() -> Result<Option<SystemDevices>> {
    let Some(system) = system()? else { return Ok(None) };
    // SAFETY: the pointer is that of `ibv_get_device_list` in a library that is never unloaded.
    // NULL is permitted, because the number of devices is optional (ibv_get_device_list(3)).
    let list = unsafe { (system.get_device_list)(ptr::null_mut()) };
    // `then_some` would be wrong: it would create a `SystemDevices` even for NULL, and drop it,
    // which frees a list that the library did not create.
    Ok((!list.is_null()).then(|| SystemDevices { list, free: system.free_device_list }))
}

impl SystemDevices {
    /// Returns the devices in the library's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: `ibv_get_device_list` returned the list, which is not NULL, as `devices` checks,
        // and ends in NULL (ibv_get_device_list(3)). Nothing after that NULL is read. The list
        // lives as long as `self`, which frees it on drop, and nothing changes it.
        (0..).map(|at| unsafe { *self.list.add(at) }).take_while(|device| !device.is_null())
    }

    /// Keeps the library's list until `list`, which contains the same devices, is freed.
    pub(crate) fn attach_to_list(self, list: *mut *mut ibv_device) {
        LISTS.write().0.insert(list.addr(), self.list.expose_provenance());
        std::mem::forget(self);
    }
}

impl Drop for SystemDevices {
    fn drop(&mut self) {
        // SAFETY: `ibv_get_device_list` of the library to which `free` belongs returned the list.
        // This value owns the list and frees it once: `attach_to_list` forgets the value, and
        // `free_with` creates the only later one. The program does not use the list any more when
        // it passes it to `ibv_free_device_list`, as `HeapPtr` requires.
        unsafe { (self.free)(self.list) };
    }
}

/// Frees the system's list that belongs to `list`, which is about to be freed.
pub(crate) fn free_with(list: *mut *mut ibv_device) {
    if !LOADED.load(Ordering::Acquire) {
        return;
    }
    let theirs = LISTS.write().0.remove(&list.addr());
    if let (Some(list), Ok(Some(system))) = (theirs, system()) {
        drop(SystemDevices {
            list: ptr::with_exposed_provenance_mut(list),
            free: system.free_device_list,
        });
    }
}

/// Acknowledges an event of the system's library. Returns false if the event is one of ours.
///
/// # Safety
/// `ibv_get_async_event` of this library or of the system's library has filled `event`, and the
/// program has not acknowledged it yet.
pub(crate) unsafe fn acknowledge(event: &mut ibv_async_event) -> bool {
    if !LOADED.load(Ordering::Acquire) {
        return false;
    }
    // An event of a port has a number in this field, and needs no acknowledgement in either
    // library.
    // SAFETY: the variants of the union are pointers and an integer. The memory is that of the
    // program, which counts as initialized (module `arguments`), so any bytes of it are a pointer.
    let element = unsafe { event.element.cq };
    match (system(), is_ours(element.cast())) {
        (Ok(Some(system)), false) => {
            // SAFETY: an object of ours is alive until its events are acknowledged, so this event
            // is one of the system's library, not acknowledged yet, as the caller ensures. Or it
            // concerns a port or the device, and the function only reads its type. `event` is
            // borrowed mutably, and the library is never unloaded.
            unsafe { (system.ack_async_event)(event) };
            true
        }
        _ => false,
    }
}
