//! Memberships of ids in multicast groups, and the attachment of their queue pairs.

use crate::id::Id;
use std::net::IpAddr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::device;

/// Join flags of a member that sends and receives.
pub(crate) const FULL_MEMBER: u32 = 0;

/// Makes the id a member of a group.
pub(crate) fn join(id: &Id, group: IpAddr, flags: u32) {
    if let Some(mut state) = id.lock_alive() {
        state.groups.push((group, flags));
    }
}

/// Attaches the queue pair of the id to a group in which the id is a full member. This is done when
/// the program gets the event (rdma_join_multicast(3)). A program that attaches its own queue pair
/// uses the GID in the event.
pub(crate) fn attach(id: &Id, group: IpAddr) -> Result<()> {
    let local = {
        let state = id.lock();
        state.local.filter(|_| state.groups.contains(&(group, FULL_MEMBER)))
    };
    let Some(local) = local.map(|local| local.ip()) else { return Ok(()) };
    let index = interface_index(local)?;
    let attached = id.with_own_qp(|qp| qp.engine.attach_multicast(group, local, index));
    Ok(attached.unwrap_or(Ok(()))?)
}

/// Ends a membership and, if it was a full one, detaches the queue pair of the id.
///
/// # Errors
/// EADDRNOTAVAIL if the id is not a member of the group, EINVAL if it is destroyed.
pub(crate) fn leave(id: &Id, group: IpAddr) -> Result<()> {
    let (local, flags) = {
        let mut state = id.lock_checked()?;
        let member = state.groups.iter().position(|(joined, _)| *joined == group);
        let (Some(local), Some(member)) = (state.local, member) else {
            return Err(Errno(libc::EADDRNOTAVAIL).because("the id is not a member of the group"));
        };
        (local.ip(), state.groups.swap_remove(member).1)
    };
    id.forget_group_events(group);
    if let Some(qp) = id.own_qp()
        && flags == FULL_MEMBER
    {
        // This fails if the program has not got the event of the join.
        let _ = qp.engine.detach_multicast(group, local, interface_index(local)?);
    }
    Ok(())
}

/// Returns the index of the device with this address.
fn interface_index(local: IpAddr) -> Result<u32> {
    Ok(device::with_address(local)?.netdev()?.index)
}
