//! Queue pairs, shared receive queues and their completion queues, made on an id.

use crate::abi::qp::{IBV_QP_INIT_ATTR_PD, IBV_QPT_RC, IBV_QPT_UD};
use crate::abi::srq::{IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC};
use crate::abi::{
    self, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::boundary::{self, Result};
use crate::cm::id::Id;
use crate::cm::{registry, sidr};
use crate::errno::Errno;
use crate::qp::Qp;
use crate::{channel, cq, pd, qp, srq};
use std::ffi::{c_int, c_void};
use std::ptr;
use uiw_verbs::QpState;

/// The object that a function of verbs made, or its error.
fn made<T>(object: *mut T) -> Result<*mut T> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

/// `rdma_create_qp`.
///
/// # Safety
/// `pd` is NULL or ours; `attr` is NULL, or readable and writable with queues of ours in it.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    boundary::minus_one(|| unsafe { create(&*registry::id(id)?, pd, attr) })
}

/// # Safety
/// As for [`rdma_create_qp`].
pub(crate) unsafe fn create(id: &Id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<()> {
    // SAFETY: the caller's promise, here and below; integers and pointers.
    unsafe {
        let given = attr.as_mut().ok_or_else(|| Errno::INVAL.null())?;
        let mut long: ibv_qp_init_attr_ex = abi::zeroed();
        long.qp_context = given.qp_context;
        (long.send_cq, long.recv_cq, long.srq) = (given.send_cq, given.recv_cq, given.srq);
        (long.cap, long.qp_type, long.sq_sig_all) = (given.cap, given.qp_type, given.sq_sig_all);
        long.comp_mask = IBV_QP_INIT_ATTR_PD;
        long.pd = if pd.is_null() { (*id.abi()).pd } else { pd };
        create_long(id, &mut long)?;
        given.cap = long.cap;
        (given.send_cq, given.recv_cq, given.srq) = (long.send_cq, long.recv_cq, long.srq);
    }
    Ok(())
}

/// `rdma_create_qp_ex`.
///
/// # Safety
/// As for [`rdma_create_qp`].
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the caller's promise.
    boundary::minus_one(|| unsafe {
        let id = registry::id(id)?;
        create_long(&id, attr.as_mut().ok_or_else(|| Errno::INVAL.null())?)
    })
}

/// # Safety
/// As for [`rdma_create_qp`].
unsafe fn create_long(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let abi = id.abi();
    // SAFETY: the structure is alive, C orders its own calls; the caller's promise.
    unsafe {
        if !(*abi).qp.is_null() || (*abi).verbs.is_null() {
            return Err(Errno::INVAL.because("the id has a queue pair, or no device yet"));
        }
        if attr.qp_type != if id.is_ud() { IBV_QPT_UD } else { IBV_QPT_RC } {
            return Err(Errno::INVAL.because("not the type of queue pair of this port space"));
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = (*abi).pd;
        }
        if pd::get(attr.pd).is_err() || (*attr.pd).context != (*abi).verbs {
            return Err(
                Errno::INVAL.because("a protection domain that is none, or of another context than the id's")
            );
        }
        let other = |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if other((*abi).send_cq, attr.send_cq) || other((*abi).recv_cq, attr.recv_cq) {
            return Err(Errno::INVAL.because("other completion queues than those of the id"));
        }
        create_queues(id, attr)?;
        if attr.srq.is_null() {
            attr.srq = (*abi).srq;
        }
        match made(qp::create_qp_ex((*abi).verbs, attr)) {
            Ok(new) => {
                ready_to_receive(new)?;
                (*abi).qp = new;
                (*abi).pd = attr.pd;
                Ok(())
            }
            Err(error) => {
                destroy_queues(id);
                Err(error)
            }
        }
    }
}

/// A queue pair of an id takes receives at once, whatever state new ones are in; one that is UD sends and receives.
///
/// # Safety
/// `new` is a queue pair just made.
unsafe fn ready_to_receive(new: *mut ibv_qp) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let engine = Qp::get(new)?.engine();
        if engine.state() == QpState::Reset {
            engine.modify(QpState::Init)?;
            if engine.qkey().is_some() {
                engine.set_qkey(sidr::QKEY)?;
                engine.modify(QpState::Rtr)?;
                engine.modify(QpState::Rts)?;
            }
            (*new).state = engine.state() as c_int;
        }
    }
    Ok(())
}

/// Makes the completion queues, with a channel each, that the program has not given.
///
/// # Safety
/// The structure of the id is alive, and C orders its own calls.
unsafe fn create_queues(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let abi = id.abi();
    // SAFETY: the caller's promise.
    unsafe {
        let sides = [
            (
                &mut attr.send_cq,
                &raw mut (*abi).send_cq,
                &raw mut (*abi).send_cq_channel,
                attr.cap.max_send_wr,
            ),
            (
                &mut attr.recv_cq,
                &raw mut (*abi).recv_cq,
                &raw mut (*abi).recv_cq_channel,
                attr.cap.max_recv_wr,
            ),
        ];
        for (given, own, channel, depth) in sides {
            if !given.is_null() {
                continue;
            }
            if (*own).is_null()
                && let Err(error) = create_queue(id, own, channel, depth)
            {
                destroy_queues(id);
                return Err(error);
            }
            *given = *own;
        }
    }
    Ok(())
}

/// # Safety
/// As for [`create_queues`]; the places are those of the id.
unsafe fn create_queue(
    id: &Id,
    own: *mut *mut ibv_cq,
    place: *mut *mut ibv_comp_channel,
    depth: u32,
) -> Result<()> {
    let depth = c_int::try_from(depth.max(1)).map_err(|_| Errno::INVAL.out_of_range())?;
    // SAFETY: the caller's promise.
    unsafe {
        let verbs = (*id.abi()).verbs;
        *place = made(channel::ibv_create_comp_channel(verbs))?;
        let context: *mut c_void = id.abi().cast();
        *own = made(cq::ibv_create_cq(verbs, depth, context, *place, 0))?;
    }
    Ok(())
}

/// Destroys the completion queues that [`create_queues`] made.
///
/// # Safety
/// As for [`create_queues`]; no queue pair uses them any more.
unsafe fn destroy_queues(id: &Id) {
    let abi = id.abi();
    // SAFETY: the caller's promise; what the places hold was made by `create_queues`.
    unsafe {
        let queues = [&raw mut (*abi).send_cq, &raw mut (*abi).recv_cq];
        let channels = [&raw mut (*abi).send_cq_channel, &raw mut (*abi).recv_cq_channel];
        for (queue, channel) in queues.into_iter().zip(channels) {
            // Those of a program's own shared receive queue have no channel here.
            if !(*channel).is_null() {
                let queue = ptr::replace(queue, ptr::null_mut());
                if !queue.is_null() {
                    cq::ibv_destroy_cq(queue);
                }
                channel::ibv_destroy_comp_channel(ptr::replace(channel, ptr::null_mut()));
            }
        }
    }
}

/// `rdma_destroy_qp`.
///
/// # Safety
/// No thread uses the queue pair of the id any more.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    boundary::value((), || {
        // SAFETY: the caller's promise.
        unsafe { destroy(&*registry::id(id)?) };
        Ok(())
    });
}

/// # Safety
/// As for [`rdma_destroy_qp`].
pub(crate) unsafe fn destroy(id: &Id) {
    let abi = id.abi();
    // SAFETY: the structure is alive; the caller's promise.
    unsafe {
        let old = ptr::replace(&raw mut (*abi).qp, ptr::null_mut());
        if !old.is_null() {
            qp::ibv_destroy_qp(old);
        }
        destroy_queues(id);
    }
}

/// Gives the id of a request the queue pair that `rdma_create_ep` asked for.
pub(crate) fn for_request(listener: *mut rdma_cm_id, new: *mut rdma_cm_id) -> Result<()> {
    let Some(endpoint) = registry::id(listener)?.lock().endpoint else { return Ok(()) };
    let id = registry::id(new)?;
    let mut attr = endpoint.attr;
    // SAFETY: what `rdma_create_ep` was given: C keeps it as long as the listener.
    unsafe { create(&id, endpoint.pd, &raw mut attr) }
}

/// `rdma_create_srq`.
///
/// # Safety
/// `pd` is NULL or ours; `attr` is NULL, or readable and writable.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    boundary::minus_one(|| unsafe {
        let id = registry::id(id)?;
        let given = attr.as_mut().ok_or_else(|| Errno::INVAL.null())?;
        create_srq(&id, pd, given)
    })
}

/// `rdma_create_srq_ex`: basic queues alone; extended connections and tag matching belong to other transports.
///
/// # Safety
/// As for [`rdma_create_srq`].
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: the caller's promise, here and below.
    boundary::minus_one(|| unsafe {
        let id = registry::id(id)?;
        let given = attr.as_mut().ok_or_else(|| Errno::INVAL.null())?;
        if given.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && given.srq_type != IBV_SRQT_BASIC {
            return Err(Errno::UNSUPPORTED.because("only basic shared receive queues are offered"));
        }
        let pd = if given.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 { given.pd } else { ptr::null_mut() };
        let mut short = ibv_srq_init_attr { srq_context: given.srq_context, attr: given.attr };
        create_srq(&id, pd, &mut short)?;
        given.attr = short.attr;
        Ok(())
    })
}

/// # Safety
/// As for [`rdma_create_srq`].
unsafe fn create_srq(id: &Id, pd: *mut ibv_pd, attr: &mut ibv_srq_init_attr) -> Result<()> {
    let abi = id.abi();
    // SAFETY: the structure is alive, C orders its own calls; the caller's promise.
    unsafe {
        if !(*abi).srq.is_null() || (*abi).verbs.is_null() {
            return Err(Errno::INVAL.because("the id has a shared receive queue, or no device yet"));
        }
        let pd = if pd.is_null() { (*abi).pd } else { pd };
        if pd::get(pd).is_err() || (*pd).context != (*abi).verbs {
            return Err(
                Errno::INVAL.because("a protection domain that is none, or of another context than the id's")
            );
        }
        (*abi).srq = made(srq::ibv_create_srq(pd, attr))?;
        (*abi).pd = pd;
    }
    Ok(())
}

/// `rdma_destroy_srq`.
///
/// # Safety
/// No thread uses the shared receive queue of the id any more.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    boundary::value((), || {
        // SAFETY: the caller's promise.
        unsafe { destroy_srq(&*registry::id(id)?) };
        Ok(())
    });
}

/// # Safety
/// As for [`rdma_destroy_srq`].
pub(crate) unsafe fn destroy_srq(id: &Id) {
    // SAFETY: the structure is alive; the caller's promise.
    unsafe {
        let old = ptr::replace(&raw mut (*id.abi()).srq, ptr::null_mut());
        if !old.is_null() {
            srq::ibv_destroy_srq(old);
        }
    }
}
