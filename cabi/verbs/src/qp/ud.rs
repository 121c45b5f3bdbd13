//! UD queue pairs: state transitions and multicast groups.

use super::Qp;
use crate::device::{gid, netdev::NetDev};
use std::ffi::c_int;
use std::net::IpAddr;
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::abi::{ibv_gid, ibv_qp_attr};
use uiw_cabi_core::arguments::{Handle, InPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_verbs::QpState;

/// Makes the change of `ibv_modify_qp` after its attributes were checked.
pub(super) fn modify(
    object: &Qp,
    attr: &ibv_qp_attr,
    mask: c_int,
    to: Option<QpState>,
) -> Result<()> {
    let now = object.engine.state();
    if let Some(to) = to
        && now != to
        && !now.may_become(to)
    {
        return Err(Errno::INVAL.because("a UD queue pair has no such transition"));
    }
    // A call that fails changes nothing, so the step that can fail comes first.
    match to {
        Some(QpState::Init) if now != QpState::Reset => {}
        Some(to) => {
            if to == QpState::Init {
                object.reservation.bind_new_addresses(&object.context.device.netdev()?);
            }
            object.engine.modify(to)?;
        }
        None => {}
    }
    object.attributes.lock().merge(attr, mask);
    if mask & flags::IBV_QP_QKEY != 0 {
        object.engine.set_qkey(attr.qkey)?;
    }
    Ok(())
}

/// Returns the interface for a group: an address of the device of the group's family.
fn group_interface(netdev: &NetDev, group: IpAddr) -> Result<IpAddr> {
    let own = netdev.addresses.iter().map(|(own, _)| *own);
    own.into_iter()
        .find(|own| own.is_ipv4() == group.is_ipv4())
        .ok_or_else(|| Errno::INVAL.because("the device has no address of the group's IP version"))
}

/// Returns the group that a GID names, for a UD queue pair.
fn group(qp: &Qp, gid: &InPtr<'_, ibv_gid>) -> Result<IpAddr> {
    let gid = gid.read().filter(|_| qp.is_ud());
    let gid = gid
        .ok_or_else(|| Errno::INVAL.because("no group was passed, or the queue pair is not UD"))?;
    gid::to_group(gid).ok_or_else(|| Errno::INVAL.because("the GID is not a multicast group"))
}

/// `ibv_attach_mcast`.
pub extern "C" fn ibv_attach_mcast(
    qp: Handle<'_, Qp>,
    gid: InPtr<'_, ibv_gid>,
    _lid: u16,
) -> c_int {
    boundary::code(|| {
        let qp = qp.get()?;
        let group = group(qp, &gid)?;
        let mut groups = qp.groups.lock();
        if groups.iter().any(|(attached, ..)| *attached == group) {
            return Ok(());
        }
        let netdev = qp.context.device.netdev()?;
        let own = group_interface(&netdev, group)?;
        qp.engine.attach_multicast(group, own, netdev.index)?;
        groups.push((group, own, netdev.index));
        Ok(())
    })
}

/// `ibv_detach_mcast`.
pub extern "C" fn ibv_detach_mcast(
    qp: Handle<'_, Qp>,
    gid: InPtr<'_, ibv_gid>,
    _lid: u16,
) -> c_int {
    boundary::code(|| {
        let qp = qp.get()?;
        let group = group(qp, &gid)?;
        let mut groups = qp.groups.lock();
        let (own, index) = match groups.iter().position(|(attached, ..)| *attached == group) {
            Some(at) => {
                let (_, own, index) = groups.swap_remove(at);
                (own, index)
            }
            // rdma_cm may have attached the queue pair.
            None => {
                let netdev = qp.context.device.netdev()?;
                (group_interface(&netdev, group)?, netdev.index)
            }
        };
        qp.engine.detach_multicast(group, own, index).map_err(|error| match error {
            uiw_verbs::Error::NotConnected => {
                Errno::INVAL.because("the queue pair is not attached to this group")
            }
            error => error.into(),
        })
    })
}
