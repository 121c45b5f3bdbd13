//! Port 1, the only port of a device: its state, its GIDs and its partition keys.

use super::gid;
use super::netdev::NetDev;
use super::speed::PortSpeed;
use crate::context::{Context, OpenContext};
use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use uiw_cabi_core::abi::device::{self as dev, ibv_gid_entry, ibv_port_attr};
use uiw_cabi_core::abi::{_compat_ibv_port_attr, ibv_gid, zeroed};
use uiw_cabi_core::arguments::{Count, Handle, OutPtr, PrefixPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;

/// Default partition, which is the only one on devices with partitions.
const DEFAULT_PKEY: u16 = 0xFFFF;

/// Size of the longest message on InfiniBand, in bytes.
const INFINIBAND_MAX_MESSAGE: u32 = 1 << 31;

/// Returns the `ibv_port_attr` of the port of `netdev`.
pub fn port_attr(netdev: &NetDev, persona: Persona) -> ibv_port_attr {
    let mut attr: ibv_port_attr = zeroed();
    attr.state = if netdev.running { dev::IBV_PORT_ACTIVE } else { dev::IBV_PORT_DOWN };
    // The values of an InfiniBand port for "LinkUp" and "Disabled", as in siw.
    attr.phys_state = if netdev.running { 5 } else { 3 };
    attr.max_mtu = 5;
    // The longest message of a UD queue pair must fit into a packet with all headers.
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
    let speed = PortSpeed::from_netdev(netdev);
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

/// Returns the LID of a port: the low 16 bits of its first IPv4 address.
pub fn lid(netdev: &NetDev) -> Option<u16> {
    netdev.addresses.iter().find_map(|(address, _)| match address {
        IpAddr::V4(v4) => Some((v4.to_bits() & 0xFFFF) as u16),
        IpAddr::V6(_) => None,
    })
}

pub(super) fn of_context(context: &Context, port: u32) -> Result<NetDev> {
    if port == 1 {
        context.device.netdev()
    } else {
        Err(Errno::INVAL.because("the device has port 1 only"))
    }
}

/// `ibv_query_port` for programs compiled with the larger structure, called through
/// `verbs_context`.
pub(crate) extern "C" fn query_port_long<'a>(
    context: Handle<'_, OpenContext>,
    port: u8,
    attr: PrefixPtr<'a, ibv_port_attr>,
    len: Count<'a>,
) -> c_int {
    boundary::code(|| {
        let netdev = of_context(context.get()?, port.into())?;
        attr.write(len, &port_attr(&netdev, Settings::get()?.persona))
    })
}

/// `ibv_query_port` as exported function, with the structure of 2006.
pub extern "C" fn ibv_query_port(
    context: Handle<'_, OpenContext>,
    port: u8,
    attr: OutPtr<'_, _compat_ibv_port_attr>,
) -> c_int {
    boundary::code(|| {
        let netdev = of_context(context.get()?, port.into())?;
        attr.write_prefix(&port_attr(&netdev, Settings::get()?.persona))
    })
}

/// Returns the address of the GID with an index.
///
/// # Errors
/// EINVAL if there is no such GID.
fn address(netdev: &NetDev, index: usize) -> Result<IpAddr> {
    netdev.address(index).ok_or_else(|| Errno::INVAL.because("the device has no such GID"))
}

/// `ibv_query_gid`.
pub extern "C" fn ibv_query_gid(
    context: Handle<'_, OpenContext>,
    port: u8,
    index: c_int,
    gid: OutPtr<'_, ibv_gid>,
) -> c_int {
    boundary::minus_one(|| {
        let netdev = of_context(context.get()?, port.into())?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL.out_of_range())?;
        gid.write(gid::from_address(address(&netdev, index)?))
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

/// `_ibv_query_gid_ex`: writes one entry in the caller's version of the structure.
pub extern "C" fn _ibv_query_gid_ex<'a>(
    context: Handle<'_, OpenContext>,
    port: u32,
    index: u32,
    to: PrefixPtr<'a, ibv_gid_entry>,
    flags: u32,
    size: Count<'a>,
) -> c_int {
    boundary::code(|| {
        let context = context.get()?;
        if to.is_null() || flags != 0 {
            return Err(Errno::INVAL.because("no memory for the entry, or unknown flags"));
        }
        let netdev = of_context(context, port)?;
        // An index without an address is reported in the same way as an empty entry in rdma-core.
        let entry = entry(&netdev, index as usize, Settings::get()?.persona)
            .ok_or_else(|| Errno(libc::ENODATA).because("the device has no such GID"))?;
        to.write(size, &entry)
    })
}

/// `_ibv_query_gid_table`: writes all entries, and returns their number or a negative error number.
pub extern "C" fn _ibv_query_gid_table<'a>(
    context: Handle<'_, OpenContext>,
    to: PrefixPtr<'a, ibv_gid_entry>,
    max: Count<'a>,
    flags: u32,
    size: Count<'a>,
) -> isize {
    let table = || -> Result<isize> {
        let context = context.get()?;
        if to.is_null() || flags != 0 {
            return Err(Errno::INVAL.because("no memory for the entries, or unknown flags"));
        }
        let netdev = of_context(context, 1)?;
        let persona = Settings::get()?.persona;
        if max.get()? < netdev.addresses.len() {
            return Err(
                Errno::INVAL.because("there is room for fewer entries than the device has GIDs")
            );
        }
        let entries: Vec<_> =
            (0..max.get()?).map_while(|index| entry(&netdev, index, persona)).collect();
        to.write_table(max, size, &entries)?;
        Ok(entries.len().cast_signed())
    };
    boundary::value(-(libc::EIO as isize), || {
        table().or_else(|errno| {
            errno.set();
            Ok(-(errno.0 as isize))
        })
    })
}

/// `ibv_query_gid_type`, which `ibv_devinfo` and pyverbs use although it is private: 0 for both
/// InfiniBand and RoCE v1, 1 for RoCE v2.
pub extern "C" fn ibv_query_gid_type(
    context: Handle<'_, OpenContext>,
    port: u8,
    index: c_uint,
    to: OutPtr<'_, c_uint>,
) -> c_int {
    boundary::minus_one(|| {
        address(&of_context(context.get()?, port.into())?, index as usize)?;
        to.write(c_uint::from(Settings::get()?.persona == Persona::Roce))
    })
}

/// `ibv_query_pkey`: returns the key, big-endian.
pub extern "C" fn ibv_query_pkey(
    context: Handle<'_, OpenContext>,
    port: u8,
    index: c_int,
    pkey: OutPtr<'_, u16>,
) -> c_int {
    boundary::minus_one(|| {
        of_context(context.get()?, port.into())?;
        if index != 0 {
            return Err(Errno::INVAL.because("the device has one partition key"));
        }
        pkey.write(DEFAULT_PKEY)
    })
}

/// `ibv_get_pkey_index`: returns the index of a big-endian key.
pub extern "C" fn ibv_get_pkey_index(
    context: Handle<'_, OpenContext>,
    port: u8,
    pkey: u16,
) -> c_int {
    boundary::number(|| {
        of_context(context.get()?, port.into())?;
        if pkey == DEFAULT_PKEY {
            Ok(0)
        } else {
            Err(Errno::INVAL.because("the device has one partition key"))
        }
    })
}
