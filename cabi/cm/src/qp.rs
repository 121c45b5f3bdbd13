//! Queue pairs, shared receive queues and their completion queues that are created on an id.

use crate::id::{EndpointAttributes, Id};
use crate::registry::RegisteredPtr as _;
use std::ffi::{c_int, c_void};
use std::ptr;
use uiw_cabi_core::abi::cm::RDMA_UDP_QKEY;
use uiw_cabi_core::abi::qp::IBV_QP_INIT_ATTR_PD;
use uiw_cabi_core::abi::srq::{IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC};
use uiw_cabi_core::abi::{
    ibv_comp_channel, ibv_cq, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};
use uiw_cabi_core::arguments::{AnyPtr, Handle, InOutPtr, argument};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_cabi_verbs::channel::{self, CompChannel};
use uiw_cabi_verbs::cq::{self, CqInit};
use uiw_cabi_verbs::pd::Pd;
use uiw_cabi_verbs::qp::{self, Qp};
use uiw_cabi_verbs::srq;
use uiw_verbs::QpState;

/// `rdma_create_qp`: if it fails, the completion queues and channels that were created with the
/// queue pair are destroyed. The program guarantees that no other thread uses them meanwhile. The
/// same is true of `rdma_create_qp_ex`, `rdma_create_ep` and `rdma_get_request`.
pub extern "C" fn rdma_create_qp(
    id: AnyPtr<rdma_cm_id>,
    pd: Handle<'_, Pd>,
    attr: InOutPtr<'_, ibv_qp_init_attr>,
) -> c_int {
    boundary::minus_one(|| {
        let (id, qp_type) = (id.get()?, attr.get_ref()?.qp_type);
        create(&id, pd, attr, qp_type)
    })
}

/// Creates the queue pair of an id. Its type is `qp_type`, regardless of the attributes.
pub(crate) fn create(
    id: &Id,
    pd: Handle<'_, Pd>,
    attr: InOutPtr<'_, ibv_qp_init_attr>,
    qp_type: c_int,
) -> Result<()> {
    let given = attr.get()?;
    given.qp_type = qp_type;
    let mut long = given.extended();
    long.comp_mask = IBV_QP_INIT_ATTR_PD;
    long.pd = pd.as_ptr();
    // SAFETY: `long` is an initialized local variable that nothing else uses until the call
    // returns. Its pointers are those of `attr`, which satisfy the manual page, and `pd`. The types
    // `InOutPtr` and `Handle` require this, and that the program does not destroy the objects
    // during the call.
    create_extended(id, unsafe { argument(&raw mut long) })?;
    given.cap = long.cap;
    (given.send_cq, given.recv_cq, given.srq) = (long.send_cq, long.recv_cq, long.srq);
    Ok(())
}

/// `rdma_create_qp_ex`.
pub extern "C" fn rdma_create_qp_ex(
    id: AnyPtr<rdma_cm_id>,
    attr: InOutPtr<'_, ibv_qp_init_attr_ex>,
) -> c_int {
    boundary::minus_one(|| create_extended(&*id.get()?, attr))
}

/// Returns the domain that the program has passed, or the domain of the id.
///
/// # Errors
/// EINVAL for a domain of another context than the id's.
fn domain_of<'a>(id: &'a Id, given: Option<Result<&'a Object<Pd>>>) -> Result<&'a Object<Pd>> {
    // SAFETY: `Object::get` looks up the pointer, to the domain of the device, which `devices`
    // never deallocates, or to one of the program. `'a` ends with this call, which uses the domain,
    // so the program deallocates neither before: `OwnedHandle`, the argument type of
    // `ibv_dealloc_pd`, requires that no other thread uses it.
    let domain = given.unwrap_or_else(|| unsafe { Object::get(id.abi.get(|id| &id.pd)) });
    let verbs = id.abi.get(|id| &id.verbs);
    domain.ok().filter(|domain| domain.abi.get(|pd| &pd.context) == verbs).ok_or_else(|| {
        Errno::INVAL
            .because("the protection domain is invalid, or belongs to another context than the id")
    })
}

fn create_extended(id: &Id, attr: InOutPtr<'_, ibv_qp_init_attr_ex>) -> Result<()> {
    let given = attr.get_ref()?;
    if !id.has_foreign_qp() || id.verbs().is_err() {
        return Err(Errno::INVAL.because("the id has a queue pair, or no device yet"));
    }
    if given.qp_type != id.qp_type() {
        return Err(Errno::INVAL.because("wrong type of queue pair for this port space"));
    }
    let has_domain = given.comp_mask & IBV_QP_INIT_ATTR_PD != 0 && !given.pd.is_null();
    let domain = domain_of(id, has_domain.then(|| attr.object(|attr| &attr.pd)))?;
    let attr = attr.get()?;
    attr.pd = domain.abi();
    attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
    let other =
        |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if other(id.abi.get(|id| &id.send_cq), attr.send_cq)
        || other(id.abi.get(|id| &id.recv_cq), attr.recv_cq)
    {
        return Err(Errno::INVAL.because("these are not the completion queues of the id"));
    }
    create_queues(id, attr).inspect_err(|_| destroy_queues(id))?;
    if attr.srq.is_null() {
        attr.srq = id.abi.get(|id| &id.srq);
    }
    // SAFETY: `attr` is a mutable reference that is not used after this. No other thread destroys
    // the objects that it names during the call: `InOutPtr` excludes this for those of the program,
    // and `OwnedHandle` for those of the id, because this call uses them. This thread calls
    // `destroy_queues` only afterwards.
    let extended = unsafe { argument(ptr::from_mut(attr)) };
    let new = qp::create_extended(id.verbs()?, extended).inspect_err(|_| destroy_queues(id))?;
    prepare_receive(new).inspect_err(|_| {
        // SAFETY: this thread has just created the queue pair and has not stored it in the id, so
        // no other thread knows the pointer.
        qp::ibv_destroy_qp(unsafe { argument(new) });
        destroy_queues(id);
    })?;
    id.abi.set(|id| &id.qp, new);
    id.abi.set(|id| &id.pd, domain.abi());
    Ok(())
}

/// Moves a new queue pair that is in RESET to INIT, where it accepts receives, and a UD queue pair
/// on to RTS, where it can also send.
fn prepare_receive(new: *mut ibv_qp) -> Result<()> {
    // SAFETY: `Object::get` looks up the pointer. `create_extended`, the only caller, has just
    // created the queue pair, and has not stored it in the id, so no other thread knows the pointer
    // and can destroy it.
    let qp = unsafe { Object::<Qp>::get(new) }?;
    let engine = &qp.engine;
    if engine.state() == QpState::Reset {
        engine.modify(QpState::Init)?;
        if engine.qkey().is_some() {
            engine.set_qkey(RDMA_UDP_QKEY)?;
            engine.modify(QpState::Rtr)?;
            engine.modify(QpState::Rts)?;
        }
    }
    qp.abi.set(|qp| &qp.qp_base.state, engine.state() as c_int);
    Ok(())
}

/// Fields of an id for a completion queue and its channel.
type QueueFields = (fn(&rdma_cm_id) -> &*mut ibv_cq, fn(&rdma_cm_id) -> &*mut ibv_comp_channel);
const SEND: QueueFields = (|id| &id.send_cq, |id| &id.send_cq_channel);
const RECV: QueueFields = (|id| &id.recv_cq, |id| &id.recv_cq_channel);

/// Creates the completion queues that the program has not passed, each with a channel.
fn create_queues(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let (send, recv) = (attr.cap.max_send_wr, attr.cap.max_recv_wr);
    for (given, side, depth) in [(&mut attr.send_cq, SEND, send), (&mut attr.recv_cq, RECV, recv)] {
        if given.is_null() {
            if id.abi.get(side.0).is_null() {
                create_queue(id, side, depth)?;
            }
            *given = id.abi.get(side.0);
        }
    }
    Ok(())
}

fn create_queue(id: &Id, (queue, channel): QueueFields, depth: u32) -> Result<()> {
    let verbs = id.verbs()?;
    let new = CompChannel::create(verbs)?;
    id.abi.set(channel, new);
    let init = CqInit {
        depth: depth.max(1),
        cq_context: id.abi().cast(),
        // SAFETY: `Object::get` looks up the pointer. This thread has just created the channel, and
        // destroys it only after this function has returned. No other thread destroys it before:
        // the documentation of `rdma_destroy_qp`, and that of `rdma_create_qp` for calls that fail,
        // exclude that.
        channel: Some(unsafe { Object::get(new) }?),
        parent_domain: None,
        vector: 0,
        timestamps: false,
    };
    id.abi.set(queue, cq::create(verbs, &init, |_| {})?);
    Ok(())
}

/// Destroys the completion queues that [`create_queues`] made.
fn destroy_queues(id: &Id) {
    for (queue, channel) in [SEND, RECV] {
        // The queues of a program's own shared receive queue have no channel here.
        let channel = id.abi.replace(channel, ptr::null_mut());
        if !channel.is_null() {
            let queue = id.abi.replace(queue, ptr::null_mut());
            if !queue.is_null() {
                // SAFETY: no other thread of the program uses the queue, as `OwnedHandle` requires.
                // The documentation of `rdma_destroy_qp` demands this of the calls that destroy the
                // queue pair, and that of `rdma_create_qp` of those that fail to create it. The
                // field is NULL, so this library does not use the queue either.
                cq::ibv_destroy_cq(unsafe { argument(queue) });
            }
            // SAFETY: no other thread of the program uses the channel, as `OwnedHandle` requires.
            // The documentation of `rdma_destroy_qp` demands this of the calls that destroy the
            // queue pair, and that of `rdma_create_qp` of those that fail to create it. The field
            // is NULL, so this library does not use the channel either.
            channel::ibv_destroy_comp_channel(unsafe { argument(channel) });
        }
    }
}

/// `rdma_destroy_qp`: the program guarantees that no other thread uses the queue pair of the id any
/// more, nor the completion queues and the channels that were created with it. The same is true of
/// `rdma_destroy_ep`. While the `qp` field of an id refers to a queue pair, the program destroys it
/// only with these calls, or after it has destroyed the id.
pub extern "C" fn rdma_destroy_qp(id: AnyPtr<rdma_cm_id>) {
    boundary::value((), || {
        destroy(&*id.get()?);
        Ok(())
    });
}

/// Destroys the queue pair of an id, which the program does not use any more.
pub(crate) fn destroy(id: &Id) {
    let old = id.take_qp();
    if !old.is_null() {
        // SAFETY: no other thread of the program uses the queue pair, as `OwnedHandle` requires:
        // the documentation of `rdma_destroy_qp` demands this of both calls that come here. Events
        // do not use it either: `take_qp` has waited for those that did, and has cleared the field.
        qp::ibv_destroy_qp(unsafe { argument(old) });
    }
    destroy_queues(id);
}

/// Creates the queue pair for the id of a request, with the attributes that were passed to
/// `rdma_create_ep`, in the domain to which the `pd` field of the listener refers.
pub(crate) fn create_for_request(
    listener: AnyPtr<rdma_cm_id>,
    new: AnyPtr<rdma_cm_id>,
) -> Result<()> {
    let listener = listener.get()?;
    let Some(EndpointAttributes(mut attr)) = listener.lock().endpoint else { return Ok(()) };
    let qp_type = attr.qp_type;
    // SAFETY: `attr` is an initialized local copy that nothing else uses. The domain and the
    // objects that it names are looked up. The program does not destroy them during this call, as
    // `Handle` and `InOutPtr` require, because the documentation of `rdma_create_ep` demands it.
    let (pd, attr) = unsafe { (argument(listener.abi.get(|id| &id.pd)), argument(&raw mut attr)) };
    create(&*new.get()?, pd, attr, qp_type)
}

/// `rdma_create_srq`.
pub extern "C" fn rdma_create_srq(
    id: AnyPtr<rdma_cm_id>,
    pd: Handle<'_, Pd>,
    attr: InOutPtr<'_, ibv_srq_init_attr>,
) -> c_int {
    boundary::minus_one(|| {
        let (id, given) = (id.get()?, attr.get()?);
        let domain = (!pd.is_null()).then(|| pd.get());
        create_srq(&id, domain, given.srq_context, &mut given.attr)
    })
}

/// `rdma_create_srq_ex`: supports only basic queues; XRC and tag matching belong to other
/// transports.
pub extern "C" fn rdma_create_srq_ex(
    id: AnyPtr<rdma_cm_id>,
    attr: InOutPtr<'_, ibv_srq_init_attr_ex>,
) -> c_int {
    boundary::minus_one(|| {
        let (id, given) = (id.get()?, attr.get_ref()?);
        if given.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && given.srq_type != IBV_SRQT_BASIC {
            return Err(
                Errno::UNSUPPORTED.because("only basic shared receive queues are supported")
            );
        }
        let has_domain = given.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 && !given.pd.is_null();
        let domain = has_domain.then(|| attr.object(|attr| &attr.pd));
        let attr = attr.get()?;
        create_srq(&id, domain, attr.srq_context, &mut attr.attr)
    })
}

fn create_srq(
    id: &Id,
    domain: Option<Result<&Object<Pd>>>,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<()> {
    if !id.abi.get(|id| &id.srq).is_null() || id.verbs().is_err() {
        return Err(Errno::INVAL.because("the id has a shared receive queue, or no device yet"));
    }
    let domain = domain_of(id, domain)?;
    id.abi.set(|id| &id.srq, srq::create(domain, srq_context, attr)?);
    Ok(())
}

/// `rdma_destroy_srq`: the program guarantees that no other thread uses the shared receive queue of
/// the id any more. The same is true of `rdma_destroy_ep`.
pub extern "C" fn rdma_destroy_srq(id: AnyPtr<rdma_cm_id>) {
    boundary::value((), || {
        destroy_srq(&*id.get()?);
        Ok(())
    });
}

/// Destroys the shared receive queue of an id, which the program does not use any more.
pub(crate) fn destroy_srq(id: &Id) {
    let old = id.abi.replace(|id| &id.srq, ptr::null_mut());
    if !old.is_null() {
        // SAFETY: no other thread of the program uses the queue any more, as `OwnedHandle`
        // requires. The documentation of `rdma_destroy_srq` demands this of both callers. The field
        // is NULL from here on, so this library does not use the queue either.
        srq::ibv_destroy_srq(unsafe { argument(old) });
    }
}
