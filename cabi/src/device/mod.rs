//! Devices: one for each network device that has an IP address, named `uiw_<netdev>`, loopback last.

pub mod attributes;
pub mod gid;
mod link;
pub mod netdev;
pub mod port;
pub mod speed;

use crate::abi::{self, ibv_device};
use crate::boundary::{self, Result};
use crate::errno::Errno;
use crate::fork::{ForkSafe, Forked};
use crate::object;
use crate::persona::Persona;
use crate::settings::Settings;
use crate::system;
use netdev::NetDev;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::net::IpAddr;
use std::ptr;

/// A device as C holds it. Never freed: a process has few network devices, and programs keep pointers.
#[repr(C)]
pub struct Device {
    abi: ibv_device,
    /// Vendors' libraries read marks of their own behind the structure (`verbs_device.ops`): these words are zero.
    behind: [u64; 64],
    netdev: String,
}

// SAFETY: nothing in it changes once it is made; its only pointers are two that are always NULL.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// The devices found so far, by name of their network device. They are never freed, and a child of a fork has the same.
struct Devices(BTreeMap<String, &'static Device>);

impl Forked for Devices {
    const NEW: Self = Self(BTreeMap::new());

    fn in_child(&mut self) {}
}

static DEVICES: ForkSafe<Devices> = ForkSafe::new();

fn find(netdev: &NetDev, persona: Persona) -> &'static Device {
    if let Some(known) = DEVICES.read().0.get(&netdev.name) {
        return known;
    }
    let made = Box::into_raw(Box::new(Device::new(netdev, persona)));
    // SAFETY: the box just made; it is freed below or never.
    let new: &'static Device = unsafe { &*made };
    // Before other threads can find it and give it to C.
    object::enter(new.abi().addr(), Device::KIND);
    let kept = *DEVICES.write().0.entry(netdev.name.clone()).or_insert(new);
    if !ptr::eq(kept, new) {
        // Another thread was faster.
        object::leave(new.abi().addr());
        // SAFETY: made above, in no table, and no other reference to it exists.
        drop(unsafe { Box::from_raw(made) });
    }
    kept
}

impl Device {
    const KIND: u32 = 0x7569_630b;

    fn new(netdev: &NetDev, persona: Persona) -> Self {
        let name = format!("uiw_{}", netdev.name);
        // SAFETY: integers and two unused pointers.
        let mut abi: ibv_device = unsafe { abi::zeroed() };
        abi.node_type = persona.node_type();
        abi.transport_type = persona.transport_type();
        write_text(&mut abi.name, &name);
        write_text(&mut abi.dev_name, &format!("uverbs_{name}"));
        write_text(&mut abi.dev_path, &format!("/sys/class/infiniband_verbs/uverbs_{name}"));
        write_text(&mut abi.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Self { abi, behind: [0; 64], netdev: netdev.name.clone() }
    }

    /// The pointer that C has.
    pub fn abi(&'static self) -> *mut ibv_device {
        debug_assert!(self.behind.iter().all(|word| *word == 0));
        (&raw const self.abi).cast_mut()
    }

    /// The name of its network device.
    #[must_use]
    pub fn netdev_name(&self) -> &str {
        &self.netdev
    }

    /// Its network device as it is now.
    ///
    /// # Errors
    /// ENODEV when it is gone, or has lost its last address.
    pub fn netdev(&self) -> Result<NetDev> {
        netdev::all()?.into_iter().find(|netdev| netdev.name == self.netdev).ok_or_else(|| {
            Errno::NODEV.because(format_args!("network device {} is gone, or has no address", self.netdev))
        })
    }

    /// The device behind C's pointer.
    ///
    /// # Errors
    /// EINVAL for anything else.
    pub fn get(abi: *mut ibv_device) -> Result<&'static Self> {
        if !object::lives(abi.addr(), Self::KIND) {
            return Err(Errno::INVAL.because("a pointer to no device of the list"));
        }
        // SAFETY: it is one of ours, and they are never freed.
        Ok(unsafe { &*abi.cast::<Self>() })
    }
}

/// Puts text with its NUL into an array of C's, as much as fits.
pub fn write_text<const N: usize>(to: &mut [c_char; N], text: &str) {
    for (to, from) in to.iter_mut().take(N - 1).zip(text.bytes()) {
        // A `c_char` is signed on some processors only.
        *to = c_char::from_ne_bytes([from]);
    }
}

/// Every device that there is now.
///
/// # Errors
/// EINVAL when an environment variable has a bad value; the system's.
pub fn list() -> Result<Vec<&'static Device>> {
    let persona = Settings::get()?.persona;
    let netdevs = netdev::all()?;
    Ok(netdevs.iter().map(|netdev| find(netdev, persona)).collect())
}

/// The device that has `address`. Every address 127.x.y.z is one of the loopback device.
///
/// # Errors
/// ENODEV when none has it; as [`list`].
pub fn with_address(address: IpAddr) -> Result<&'static Device> {
    let persona = Settings::get()?.persona;
    let netdevs = netdev::all()?;
    let has = |netdev: &&NetDev| netdev.has(address);
    let netdev =
        netdevs.iter().find(has).ok_or_else(|| Errno::NODEV.because("no network device has the address"))?;
    Ok(find(netdev, persona))
}

/// `ibv_get_device_list`: those of the system's library in front, where it is loaded.
///
/// # Safety
/// `count` is NULL or writable.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    boundary::pointer(|| {
        let ours = list()?;
        let theirs = system::devices()?;
        let mut devices: Vec<_> = theirs.iter().flat_map(system::Devices::iter).collect();
        devices.extend(ours.into_iter().map(Device::abi));
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
        }
        devices.push(ptr::null_mut());
        let bytes = devices.len() * size_of::<*mut ibv_device>();
        // SAFETY: memory of C's heap, large enough for the copy; `ibv_free_device_list` frees it.
        unsafe {
            let array = libc::malloc(bytes).cast::<*mut ibv_device>();
            if array.is_null() {
                return Err(Errno::NOMEM.because("no memory for the list"));
            }
            ptr::copy_nonoverlapping(devices.as_ptr(), array, devices.len());
            if let Some(theirs) = theirs {
                theirs.belong_to(array);
            }
            Ok(array)
        }
    })
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is NULL or came out of [`ibv_get_device_list`].
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    system::free_with(list);
    // SAFETY: the caller's promise.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`.
pub extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    boundary::pointer(|| Device::get(device).map(|d| d.abi.name.as_ptr().cast_mut())).cast_const()
}

/// `ibv_get_device_index`: there is no kernel device with an index; as rdma-core on kernels that report none.
pub extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_get_device_guid`, big-endian.
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    boundary::value(0, || Device::get(device)?.netdev().map(|netdev| netdev.guid()))
}

/// `ibv_get_sysfs_path`: where sysfs is mounted.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: reads `dir/file` and cuts a newline at the end.
///
/// # Safety
/// `dir` and `file` are NULL or end in NUL; `buffer` holds `size` bytes.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    boundary::number(|| {
        if dir.is_null() || file.is_null() || buffer.is_null() || size == 0 {
            return Err(Errno::INVAL.null());
        }
        // SAFETY: the caller's promise.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy());
        let bytes = std::fs::read(path)?;
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let len = bytes.len().min(size - 1);
        // SAFETY: `len` + 1 bytes fit `size`.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), len);
            *buffer.add(len) = 0;
        }
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    })
}
