//! The one port of a device: its state, its GIDs, its partition keys.

use super::gid;
use super::netdev::NetDev;
use super::speed::PortSpeed;
use crate::abi::device::{self as dev, ibv_gid_entry, ibv_port_attr};
use crate::abi::{self, ibv_context, ibv_gid};
use crate::boundary::{self, Result};
use crate::context::Context;
use crate::errno::Errno;
use crate::persona::Persona;
use crate::settings::Settings;
use std::ffi::{c_int, c_uint};
use std::net::IpAddr;

/// The default partition, which is all there is where there are partitions.
const DEFAULT_PKEY: u16 = 0xFFFF;

/// Bytes of the longest message of InfiniBand.
const INFINIBAND_MAX_MESSAGE: u32 = 1 << 31;

/// `ibv_port_attr` of the port of `netdev`.
#[must_use]
pub fn of(netdev: &NetDev, persona: Persona) -> ibv_port_attr {
    // SAFETY: integers.
    let mut attr: ibv_port_attr = unsafe { abi::zeroed() };
    attr.state = if netdev.running { dev::IBV_PORT_ACTIVE } else { dev::IBV_PORT_DOWN };
    // As siw: the values of the InfiniBand link's "LinkUp" and "Disabled".
    attr.phys_state = if netdev.running { 5 } else { 3 };
    attr.max_mtu = 5;
    // The longest message of a UD queue pair, with all its headers, fits a packet.
    let longest = match Settings::get().is_ok_and(Settings::offers_ud) {
        true => uiw_datagram::max_payload(netdev.mtu as usize).unwrap_or(256),
        false => netdev.mtu as usize,
    };
    attr.active_mtu = match longest {
        4096.. => 5,
        2048.. => 4,
        1024.. => 3,
        512.. => 2,
        _ => 1,
    };
    attr.gid_tbl_len = c_int::try_from(netdev.addresses.len()).unwrap_or(c_int::MAX);
    attr.port_cap_flags = dev::IBV_PORT_CM_SUP | dev::IBV_PORT_DEVICE_MGMT_SUP;
    attr.pkey_tbl_len = persona.pkeys();
    attr.max_vl_num = 1;
    let speed = PortSpeed::of(netdev);
    attr.active_width = speed.width;
    attr.active_speed = speed.speed;
    attr.active_speed_ex = speed.speed.into();
    attr.link_layer = persona.link_layer();
    match persona {
        Persona::Iwarp => attr.max_msg_sz = u32::MAX,
        Persona::Roce => {
            attr.max_msg_sz = INFINIBAND_MAX_MESSAGE;
            attr.port_cap_flags |= dev::IBV_PORT_IP_BASED_GIDS;
            attr.flags = dev::IBV_QPF_GRH_REQUIRED;
        }
        Persona::Ib => {
            attr.max_msg_sz = INFINIBAND_MAX_MESSAGE;
            attr.lid = lid(netdev).unwrap_or(0);
            attr.sm_lid = attr.lid;
        }
    }
    attr
}

/// The LID of a port: the low 16 bits of its first IPv4 address.
#[must_use]
pub fn lid(netdev: &NetDev) -> Option<u16> {
    netdev.addresses.iter().find_map(|(address, _)| match address {
        IpAddr::V4(v4) => Some((v4.to_bits() & 0xFFFF) as u16),
        IpAddr::V6(_) => None,
    })
}

pub(super) fn of_context(context: &Context, port: u32) -> Result<NetDev> {
    if port == 1 { context.device.netdev() } else { Err(Errno::INVAL.because("the device has port 1 only")) }
}

/// `ibv_query_port` of programs compiled with the larger structure; by `verbs_context`.
///
/// # Safety
/// `context` is NULL or one of ours, `attr` is NULL or `len` bytes can be written there.
pub(crate) unsafe extern "C" fn query_port_long(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        if attr.is_null() {
            return Err(Errno::INVAL.null());
        }
        let full = of(&of_context(context, port.into())?, Settings::get()?.persona);
        let known = len.min(size_of::<ibv_port_attr>());
        // SAFETY: the caller's promise for `len`; the source has `known` bytes.
        unsafe {
            attr.cast::<u8>().write_bytes(0, len);
            std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast::<u8>(), known);
        }
        Ok(())
    })
}

/// `ibv_query_port` as exported: the structure of 2006.
///
/// # Safety
/// `context` is NULL or one of ours, `attr` is NULL or 48 bytes can be written there.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut abi::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port_long(context, port, attr.cast(), size_of::<abi::_compat_ibv_port_attr>()) }
}

/// `ibv_query_gid`.
///
/// # Safety
/// `context` is NULL or one of ours, `gid` is NULL or writable.
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    boundary::minus_one(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        let netdev = of_context(context, port.into())?;
        let address = usize::try_from(index).ok().and_then(|index| netdev.address(index));
        if gid.is_null() {
            return Err(Errno::INVAL.null());
        }
        // SAFETY: as above; C's union needs no alignment of eight.
        unsafe {
            gid.write_unaligned(gid::from_address(
                address.ok_or_else(|| Errno::INVAL.because("the device has no such GID"))?,
            ));
        };
        Ok(())
    })
}

fn entry(netdev: &NetDev, index: usize, persona: Persona) -> Option<ibv_gid_entry> {
    Some(ibv_gid_entry {
        gid: gid::from_address(netdev.address(index)?),
        gid_index: u32::try_from(index).ok()?,
        port_num: 1,
        gid_type: persona.gid_type(),
        ndev_ifindex: netdev.index,
    })
}

/// `_ibv_query_gid_ex`: one entry, of the caller's size.
///
/// # Safety
/// `context` is NULL or one of ours, `to` is NULL or `size` bytes can be written there.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        if to.is_null() || flags != 0 {
            return Err(Errno::INVAL.because("no place for the entry, or flags that are not known"));
        }
        let netdev = of_context(context, port)?;
        // An index without an address: as rdma-core for an empty entry.
        let entry = entry(&netdev, index as usize, Settings::get()?.persona)
            .ok_or_else(|| Errno(libc::ENODATA).because("the device has no such GID"))?;
        // SAFETY: as above.
        unsafe { write_entry(to, &entry, size) };
        Ok(())
    })
}

/// `_ibv_query_gid_table`: every entry; the number of them, or a negative error number.
///
/// # Safety
/// `context` is NULL or one of ours; `max` entries of `size` bytes can be written to `to`.
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let table = || -> Result<isize> {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        if to.is_null() || flags != 0 {
            return Err(Errno::INVAL.because("no place for the entries, or flags that are not known"));
        }
        let netdev = of_context(context, 1)?;
        let persona = Settings::get()?.persona;
        if max < netdev.addresses.len() {
            return Err(Errno::INVAL.because("fewer entries than the device has GIDs"));
        }
        let mut count = 0;
        while let Some(entry) = (count < max).then(|| entry(&netdev, count, persona)).flatten() {
            // SAFETY: the caller's promise: `count` is below `max`.
            unsafe { write_entry(to.byte_add(count * size), &entry, size) };
            count += 1;
        }
        Ok(count.cast_signed())
    };
    boundary::value(-(libc::EIO as isize), || {
        table().or_else(|errno| {
            errno.set();
            Ok(-(errno.0 as isize))
        })
    })
}

/// # Safety
/// `size` bytes can be written to `to`.
unsafe fn write_entry(to: *mut ibv_gid_entry, entry: &ibv_gid_entry, size: usize) {
    // SAFETY: the caller's promise; the source has its own size.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        let known = size.min(size_of::<ibv_gid_entry>());
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(entry).cast::<u8>(), to.cast(), known);
    }
}

/// `ibv_query_gid_type`, which `ibv_devinfo` and pyverbs use though it is private: 0 for InfiniBand and RoCE v1 alike, 1 for
/// RoCE v2.
///
/// # Safety
/// `context` is NULL or one of ours, `to` is NULL or writable.
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    to: *mut c_uint,
) -> c_int {
    boundary::minus_one(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        let netdev = of_context(context, port.into())?;
        netdev.address(index as usize).ok_or_else(|| Errno::INVAL.because("the device has no such GID"))?;
        // SAFETY: as above.
        let to = unsafe { to.as_mut() }.ok_or_else(|| Errno::INVAL.null())?;
        *to = c_uint::from(Settings::get()?.persona == Persona::Roce);
        Ok(())
    })
}

/// `ibv_query_pkey`: the key, big-endian.
///
/// # Safety
/// `context` is NULL or one of ours, `pkey` is NULL or writable.
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    boundary::minus_one(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        of_context(context, port.into())?;
        // SAFETY: as above.
        let to = unsafe { pkey.as_mut() }.ok_or_else(|| Errno::INVAL.null())?;
        if index != 0 {
            return Err(Errno::INVAL.because("the device has one partition key"));
        }
        *to = DEFAULT_PKEY;
        Ok(())
    })
}

/// `ibv_get_pkey_index`: the index of a big-endian key.
///
/// # Safety
/// `context` is NULL or one of ours.
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller's promise.
        let context = unsafe { Context::get(context) }?;
        of_context(context, port.into())?;
        if pkey == DEFAULT_PKEY {
            Ok(0)
        } else {
            Err(Errno::INVAL.because("the device has one partition key"))
        }
    })
}
