//! Memberships of ids in multicast groups, and the attachment of their queue pairs.

use crate::id::{Id, Membership};
use std::net::IpAddr;
use std::sync::Arc;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::users::UnacknowledgedEvents;
use uiw_cabi_verbs::device;

/// Join flags of a member that sends and receives.
pub(crate) const FULL_MEMBER: u32 = 0;

/// Makes the id a member of a group.
pub(crate) fn join(id: &Id, group: IpAddr, flags: u32) {
    if let Some(mut state) = id.lock_alive() {
        state.groups.push(Membership { group, flags, events: Arc::default() });
    }
}

/// Counts an event about a group that is about to be passed to C. Returns the counter, or `None` if
/// the id is not a member any more.
pub(crate) fn note_delivered(id: &Id, group: IpAddr) -> Option<Arc<UnacknowledgedEvents>> {
    let state = id.lock();
    let member = state.groups.iter().find(|member| member.group == group)?;
    member.events.deliver();
    Some(Arc::clone(&member.events))
}

/// Attaches the queue pair of the id to a group in which the id is a full member. This is done when
/// the program gets the event (rdma_join_multicast(3)). A program that attaches its own queue pair
/// uses the GID in the event.
pub(crate) fn attach(id: &Id, group: IpAddr) -> Result<()> {
    let local = {
        let state = id.lock();
        let is_full = |member: &Membership| member.group == group && member.flags == FULL_MEMBER;
        state.local.filter(|_| state.groups.iter().any(is_full))
    };
    let Some(local) = local.map(|local| local.ip()) else { return Ok(()) };
    let index = interface_index(local)?;
    let attached = id.with_own_qp(|qp| qp.engine.attach_multicast(group, local, index));
    Ok(attached.unwrap_or(Ok(()))?)
}

/// Ends a membership, waits until C has acknowledged its events and, if it was a full one, detaches
/// the queue pair of the id.
///
/// # Errors
/// EADDRNOTAVAIL if the id is not a member of the group, EINVAL if it is destroyed.
pub(crate) fn leave(id: &Id, group: IpAddr) -> Result<()> {
    let (local, Membership { flags, events, .. }) = {
        let mut state = id.lock_checked()?;
        let member = state.groups.iter().position(|member| member.group == group);
        let (Some(local), Some(member)) = (state.local, member) else {
            return Err(Errno(libc::EADDRNOTAVAIL).because("the id is not a member of the group"));
        };
        (local.ip(), state.groups.swap_remove(member))
    };
    id.forget_group_events(group);
    events.wait();
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
