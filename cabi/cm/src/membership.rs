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
///
/// # Errors
/// EINVAL if the id is destroyed.
pub(crate) fn join(id: &Id, group: IpAddr, flags: u32) -> Result<Arc<Membership>> {
    let membership = Arc::new(Membership { group, flags, events: UnacknowledgedEvents::default() });
    id.lock_checked()?.memberships.push(Arc::clone(&membership));
    Ok(membership)
}

/// Counts an event about a membership that is about to be passed to C. Returns false if the
/// membership has ended.
pub(crate) fn note_delivered(id: &Id, membership: &Arc<Membership>) -> bool {
    let state = id.lock();
    let is_member = state.memberships.iter().any(|member| Arc::ptr_eq(member, membership));
    if is_member {
        membership.events.deliver();
    }
    is_member
}

/// Attaches the queue pair of the id to the group if the id is a full member. This is done when the
/// program gets the event (rdma_join_multicast(3)). A program that attaches its own queue pair uses
/// the GID in the event.
pub(crate) fn attach(id: &Id, membership: &Membership) -> Result<()> {
    let local = id.lock().local.filter(|_| membership.flags == FULL_MEMBER);
    let Some(local) = local.map(|local| local.ip()) else { return Ok(()) };
    let index = interface_index(local)?;
    let attached = id.with_own_qp(|qp| qp.engine.attach_multicast(membership.group, local, index));
    Ok(attached.unwrap_or(Ok(()))?)
}

/// Ends the latest membership in a group, waits until C has acknowledged its events and, if it was
/// a full one, detaches the queue pair of the id.
///
/// # Errors
/// EADDRNOTAVAIL if the id is not a member of the group, EINVAL if it is destroyed.
pub(crate) fn leave(id: &Id, group: IpAddr) -> Result<()> {
    let (local, membership) = {
        let mut state = id.lock_checked()?;
        let member = state.memberships.iter().rposition(|member| member.group == group);
        let (Some(local), Some(member)) = (state.local, member) else {
            return Err(Errno(libc::EADDRNOTAVAIL).because("the id is not a member of the group"));
        };
        (local.ip(), state.memberships.remove(member))
    };
    id.forget_events_about(&membership);
    membership.events.wait();
    if let Some(qp) = id.own_qp()
        && membership.flags == FULL_MEMBER
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
