//! Attributes of a device: siw's values where siw has the limit, otherwise the engine's own.

use super::netdev::NetDev;
use super::write_text;
use crate::context::{Context, OpenContext};
use std::ffi::{c_int, c_uint};
use uiw_cabi_core::abi::device::{self as dev, ibv_device_attr, ibv_device_attr_ex};
use uiw_cabi_core::abi::{ibv_values_ex, zeroed};
use uiw_cabi_core::arguments::{Count, Handle, InOutPtr, InPtr, OutPtr, PrefixPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::engine::MAX_RD_ATOMIC;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;
use uiw_verbs::Limits;

/// Vendor ID of siw. It is not assigned to any vendor.
pub const VENDOR_ID: u32 = 0x62_6d74;

/// Maximum number of multicast groups, and of queue pairs attached to one group.
const MAX_GROUPS: c_int = 64;

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// Returns the `ibv_device_attr` of a device on `netdev`.
pub fn device_attr(netdev: &NetDev, limits: &Limits, pkeys: u16) -> ibv_device_attr {
    let mut attr: ibv_device_attr = zeroed();
    write_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = netdev.guid();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = 4096;
    attr.vendor_id = VENDOR_ID;
    attr.max_qp = int(limits.max_qp);
    attr.max_qp_wr = int(limits.max_qp_wr);
    attr.device_cap_flags = dev::IBV_DEVICE_MEM_MGT_EXTENSIONS
        | dev::IBV_DEVICE_MEM_WINDOW
        | dev::IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | dev::IBV_DEVICE_RC_RNR_NAK_GEN
        | dev::IBV_DEVICE_SRQ_RESIZE;
    attr.max_sge = int(limits.max_sge);
    attr.max_sge_rd = int(limits.max_sge);
    attr.max_cq = int(limits.max_cq);
    attr.max_cqe = int(limits.max_cqe);
    attr.max_mr = int(limits.max_mr);
    attr.max_pd = int(limits.max_pd);
    attr.max_qp_rd_atom = MAX_RD_ATOMIC.into();
    attr.max_res_rd_atom = attr.max_qp_rd_atom.saturating_mul(attr.max_qp);
    attr.max_qp_init_rd_atom = MAX_RD_ATOMIC.into();
    attr.atomic_cap = dev::IBV_ATOMIC_HCA;
    attr.max_mw = int(limits.max_mr);
    attr.max_srq = int(limits.max_srq);
    attr.max_srq_wr = int(limits.max_srq_wr);
    attr.max_srq_sge = int(limits.max_sge);
    attr.max_pkeys = pkeys;
    if Settings::get().is_ok_and(Settings::offers_ud) {
        attr.max_ah = int(limits.max_mr);
        attr.max_mcast_grp = MAX_GROUPS;
        attr.max_mcast_qp_attach = MAX_GROUPS;
        attr.max_total_mcast_qp_attach = MAX_GROUPS * MAX_GROUPS;
    }
    attr.phys_port_cnt = 1;
    attr
}

fn now(context: &Context) -> Result<ibv_device_attr> {
    let persona = Settings::get()?.persona;
    Ok(device_attr(&context.device.netdev()?, context.engine.limits(), persona.pkeys()))
}

/// `ibv_query_device`.
pub extern "C" fn ibv_query_device(
    context: Handle<'_, OpenContext>,
    attr: OutPtr<'_, ibv_device_attr>,
) -> c_int {
    boundary::code(|| {
        let context = context.get()?;
        attr.check()?;
        attr.write(now(context)?)
    })
}

/// `ibv_query_device_ex`, called through `verbs_context`: writes as much of the structure as the
/// caller's version has.
pub(crate) extern "C" fn query_device_ex<'a>(
    context: Handle<'_, OpenContext>,
    input: InPtr<'_, c_uint>,
    attr: PrefixPtr<'a, ibv_device_attr_ex>,
    size: Count<'a>,
) -> c_int {
    boundary::code(|| {
        let context = context.get()?;
        if attr.is_null() || size.get()? < size_of::<ibv_device_attr>() {
            return Err(Errno::INVAL.because("no memory for the attributes, or too little"));
        }
        // `input` is a mask of further attributes, of which none is defined.
        if input.as_ref().is_some_and(|mask| *mask != 0) {
            return Err(Errno::INVAL.because("unknown attributes (comp_mask)"));
        }
        let mut full: ibv_device_attr_ex = zeroed();
        full.orig_attr = now(context)?;
        // On-demand paging of ranges and of all memory, for every operation of reliable
        // connections.
        full.odp_caps = [3, 0x3F, 0];
        full.completion_timestamp_mask = u64::MAX;
        // In kHz: the unit of timestamps is a nanosecond.
        full.hca_core_clock = 1_000_000;
        full.device_cap_flags_ex = full.orig_attr.device_cap_flags.into();
        full.phys_port_cnt_ex = 1;
        attr.write(size, &full)
    })
}

/// `ibv_query_rt_values_ex`: reads the clock of completion timestamps.
pub(crate) extern "C" fn query_rt_values(
    context: Handle<'_, OpenContext>,
    values: InOutPtr<'_, ibv_values_ex>,
) -> c_int {
    const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;
    boundary::code(|| {
        context.get()?;
        let values = values.get()?;
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let ns = uiw_llp::monotonic_ns();
            // The value of the raw clock in a timespec, as with mlx5.
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ns.cast_signed() };
        }
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        Ok(())
    })
}
