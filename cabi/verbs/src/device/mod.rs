//! Devices. There is one for each network device that has an IP address, named `uiw_<netdev>`. The
//! loopback device is last.

pub mod attributes;
pub mod gid;
mod link;
pub mod netdev;
pub mod port;
pub mod speed;

use crate::system;
use netdev::NetDev;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::ptr;
use uiw_cabi_core::abi::{ibv_device, zeroed};
use uiw_cabi_core::arguments::{ArrayMutPtr, Count, HeapPtr, OutPtr, TextPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::c_library;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_cabi_core::object::{self, ObjectKind};
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;

/// Device that C refers to. Devices are never freed, because a process has few network devices, and
/// programs keep pointers to them. Programs only read the structure, like this library.
#[repr(C)]
pub struct Device {
    abi: ibv_device,
    /// Words after the structure that must be zero, because vendors' libraries look for their own
    /// data there (`verbs_device.ops`).
    behind: [u64; 64],
    netdev: String,
}

// SAFETY: the only pointers of a device, besides that of its string, are the two in `_ops`, which
// `Device::new` sets to NULL and nothing changes afterwards.
unsafe impl Send for Device {}
// SAFETY: nothing writes to a device after `Device::new` has created it. This library only passes
// out shared references and C's pointer, and programs only read through the latter, as the
// documentation of the type requires.
unsafe impl Sync for Device {}

/// Devices that were found so far, by the name of their network device. They are never freed, and
/// the child of a fork has the same devices.
struct DeviceTable(BTreeMap<String, &'static Device>);

impl ForkState for DeviceTable {
    const NEW: Self = Self(BTreeMap::new());

    fn in_child(&mut self) {}
}

static DEVICES: ForkSafe<DeviceTable> = ForkSafe::new();

fn find(netdev: &NetDev, persona: Persona) -> &'static Device {
    if let Some(known) = DEVICES.read().0.get(&netdev.name) {
        return known;
    }
    let new: &Device = Box::leak(Box::new(Device::new(netdev, persona)));
    // The device is registered before other threads can find it and pass it to C.
    object::register(new.abi().addr(), Device::KIND);
    let kept = *DEVICES.write().0.entry(netdev.name.clone()).or_insert(new);
    if !ptr::eq(kept, new) {
        // Another thread was faster.
        object::unregister(new.abi().addr());
    }
    kept
}

impl Device {
    const KIND: ObjectKind = ObjectKind::Device;

    fn new(netdev: &NetDev, persona: Persona) -> Self {
        let name = format!("uiw_{}", netdev.name);
        let mut abi: ibv_device = zeroed();
        abi.node_type = persona.node_type();
        abi.transport_type = persona.transport_type();
        write_text(&mut abi.name, &name);
        write_text(&mut abi.dev_name, &format!("uverbs_{name}"));
        write_text(&mut abi.dev_path, &format!("/sys/class/infiniband_verbs/uverbs_{name}"));
        write_text(&mut abi.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Self { abi, behind: [0; 64], netdev: netdev.name.clone() }
    }

    /// Returns the pointer for C.
    pub fn abi(&'static self) -> *mut ibv_device {
        debug_assert!(self.behind.iter().all(|word| *word == 0));
        (&raw const self.abi).cast_mut()
    }

    /// Returns the name of the network device.
    pub fn netdev_name(&self) -> &str {
        &self.netdev
    }

    /// Returns the network device with its current properties.
    ///
    /// # Errors
    /// ENODEV if the network device is gone or has lost its last address.
    pub fn netdev(&self) -> Result<NetDev> {
        netdev::all()?.into_iter().find(|netdev| netdev.name == self.netdev).ok_or_else(|| {
            Errno::NODEV
                .because(format_args!("network device {} is gone, or has no address", self.netdev))
        })
    }

    /// Returns the device at C's pointer.
    ///
    /// # Errors
    /// EINVAL for any other pointer.
    pub fn get(abi: *mut ibv_device) -> Result<&'static Self> {
        if !object::is_alive(abi.addr(), Self::KIND) {
            return Err(Errno::INVAL.because("the pointer refers to no device in the list"));
        }
        // SAFETY: the table contains a device at this address, as checked above. `find` has
        // registered it as the address of the first field of a `Device`, which is `repr(C)` and
        // which it has leaked, so the device lives forever, and nothing writes to it.
        Ok(unsafe { &*abi.cast::<Self>() })
    }
}

/// Writes text and its NUL to an array of C, truncated if necessary.
pub fn write_text<const N: usize>(to: &mut [c_char; N], text: &str) {
    for (to, from) in to.iter_mut().take(N - 1).zip(text.bytes()) {
        // `c_char` is signed only on some processors.
        *to = c_char::from_ne_bytes([from]);
    }
}

/// Returns all current devices.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value, and OS errors.
pub fn list() -> Result<Vec<&'static Device>> {
    let persona = Settings::get()?.persona;
    let netdevs = netdev::all()?;
    Ok(netdevs.iter().map(|netdev| find(netdev, persona)).collect())
}

/// Returns the device that has `address`. Every address 127.x.y.z belongs to the loopback device.
///
/// # Errors
/// ENODEV if no device has it, and the errors of [`list`].
pub fn with_address(address: IpAddr) -> Result<&'static Device> {
    let persona = Settings::get()?.persona;
    let netdevs = netdev::all()?;
    let has = |netdev: &&NetDev| netdev.has(address);
    let netdev = netdevs
        .iter()
        .find(has)
        .ok_or_else(|| Errno::NODEV.because("no network device has the address"))?;
    Ok(find(netdev, persona))
}

/// `ibv_get_device_list`: the devices of the system's library, if it is loaded, come first.
pub extern "C" fn ibv_get_device_list(count: OutPtr<'_, c_int>) -> *mut *mut ibv_device {
    boundary::pointer(|| {
        let found = list().and_then(|ours| Ok((ours, system::devices()?)));
        let (devices, theirs) = match found {
            Ok((ours, theirs)) => {
                let devices = theirs.iter().flat_map(system::SystemDevices::iter);
                (Ok(devices.chain(ours.into_iter().map(Device::abi)).collect()), theirs)
            }
            Err(errno) => (Err(errno), None),
        };
        let array = c_library::list_to_heap(devices, count)?;
        if let Some(theirs) = theirs {
            theirs.attach_to_list(array);
        }
        Ok(array)
    })
}

/// `ibv_free_device_list`.
pub extern "C" fn ibv_free_device_list(list: HeapPtr<'_, *mut ibv_device>) {
    system::free_with(list.as_ptr());
    list.free();
}

/// `ibv_get_device_name`.
pub extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    boundary::pointer(|| Device::get(device).map(|d| d.abi.name.as_ptr().cast_mut())).cast_const()
}

/// `ibv_get_device_index`: returns the result of rdma-core on kernels that report no index, because
/// there is no kernel device.
pub extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_get_device_guid`, big-endian.
pub extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    boundary::value(0, || Device::get(device)?.netdev().map(|netdev| netdev.guid()))
}

/// `ibv_get_sysfs_path`: returns the mount point of sysfs.
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: reads `dir/file` and removes a newline at the end.
pub extern "C" fn ibv_read_sysfs_file<'a>(
    dir: TextPtr<'_>,
    file: TextPtr<'_>,
    buffer: ArrayMutPtr<'a, u8>,
    size: Count<'a>,
) -> c_int {
    boundary::number(|| {
        let (Some(dir), Some(file), Some(room @ [_, ..])) =
            (dir.get(), file.get(), buffer.get_uninit(size)?)
        else {
            return Err(Errno::INVAL.null_argument());
        };
        let path = format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy());
        let bytes = std::fs::read(path)?;
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let len = bytes.len().min(room.len() - 1);
        for (to, from) in room.iter_mut().zip(bytes[..len].iter().chain(&[0])) {
            to.write(*from);
        }
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    })
}
