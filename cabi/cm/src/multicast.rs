//! Multicast groups, for ids of the port spaces UDP and IPOIB.

use crate::id::{Id, LocalEvent};
use crate::membership::FULL_MEMBER;
use crate::registry::RegisteredPtr as _;
use crate::{lifecycle, membership, sync};
use std::ffi::{c_int, c_void};
use uiw_cabi_core::abi::cm::RDMA_CM_EVENT_MULTICAST_JOIN;
use uiw_cabi_core::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use uiw_cabi_core::address;
use uiw_cabi_core::address::AddressPtr;
use uiw_cabi_core::arguments::{AnyPtr, InPtr, argument};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;

/// Flag in `comp_mask` of `rdma_cm_join_mc_attr_ex`: the address is present.
const WITH_ADDRESS: u32 = 1;
/// Flag in `comp_mask` of `rdma_cm_join_mc_attr_ex`: the join flags are present.
const WITH_FLAGS: u32 = 2;
/// Join flags of a member that only sends.
const SEND_ONLY: u32 = 1;

/// `rdma_join_multicast`: the event follows immediately.
pub extern "C-unwind" fn rdma_join_multicast(
    id: AnyPtr<rdma_cm_id>,
    addr: AddressPtr<'_>,
    context: *mut c_void,
) -> c_int {
    let result = boundary::minus_one(|| join(&*id.get()?, &addr, context, FULL_MEMBER));
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

/// `rdma_join_multicast_ex`.
pub extern "C-unwind" fn rdma_join_multicast_ex(
    id: AnyPtr<rdma_cm_id>,
    attr: InPtr<'_, rdma_cm_join_mc_attr_ex>,
    context: *mut c_void,
) -> c_int {
    let result = boundary::minus_one(|| {
        let attr = attr.get()?;
        if attr.comp_mask & !(WITH_ADDRESS | WITH_FLAGS) != 0 {
            return Err(Errno::UNSUPPORTED.because("unknown attributes (comp_mask)"));
        }
        if attr.comp_mask != WITH_ADDRESS | WITH_FLAGS {
            return Err(Errno::INVAL.because("the join has no address or no flags"));
        }
        // SAFETY: `comp_mask` contains `WITH_ADDRESS`, as checked above, so `addr` is NULL or the
        // address of a group (rdma_join_multicast_ex(3)), as large as its family. `InPtr` requires
        // this, and that the program does not change it during the call, after which nothing uses
        // it.
        let addr: AddressPtr<'_> = unsafe { argument(attr.addr.cast_const()) };
        join(&*id.get()?, &addr, context, attr.join_flags)
    });
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

fn join(id: &Id, addr: &AddressPtr<'_>, context: *mut c_void, flags: u32) -> Result<()> {
    if !id.is_ud() {
        return Err(
            Errno::NOSYS.because("only an id of RDMA_PS_UDP or RDMA_PS_IPOIB can join groups")
        );
    }
    if flags > SEND_ONLY {
        return Err(Errno::INVAL.because("the attributes of the join are not valid"));
    }
    let group = address::to_canonical(addr.read()?).ip();
    let local = id.lock_checked()?.local;
    let local = local.ok_or_else(|| Errno::INVAL.because("the id has no address"))?.ip();
    if !group.is_multicast() || local.is_unspecified() || group.is_ipv4() != local.is_ipv4() {
        return Err(Errno::INVAL.because("the attributes of the join are not valid"));
    }
    let membership = Some(membership::join(id, group, flags)?);
    let event = RDMA_CM_EVENT_MULTICAST_JOIN;
    id.post(LocalEvent { event, status: 0, arg: context.addr() as u64, membership })
}

/// `rdma_leave_multicast`: ends the latest membership in the group, and waits until its events are
/// acknowledged.
pub extern "C" fn rdma_leave_multicast(id: AnyPtr<rdma_cm_id>, addr: AddressPtr<'_>) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        // The event of a synchronous id is acknowledged by its next call.
        lifecycle::acknowledge_shown(&id);
        membership::leave(&id, address::to_canonical(addr.read()?).ip())
    })
}
