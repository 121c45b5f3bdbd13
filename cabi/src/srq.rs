//! Shared receive queues.

use crate::abi::srq as flags;
use crate::abi::{self, ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::boundary::{self, Result};
use crate::context::{Context, Numbered};
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::pd;
use crate::users::{Unacknowledged, Used, Users};
use std::ffi::c_int;
use std::sync::Arc;
use uiw_verbs::{AsyncEvent, SrqAttr};

/// A queue as C holds it.
pub struct Srq {
    context: Arc<Context>,
    /// The engine's.
    pub engine: Arc<uiw_verbs::Srq>,
    /// Queue pairs that take from it.
    pub users: Users,
    /// Asynchronous events that the program holds.
    pub async_events: Arc<Unacknowledged>,
    _in_pd: Used,
}

impl Body for Srq {
    type Abi = ibv_srq;
    const KIND: u32 = 0x7569_6309;
}

/// # Safety
/// `pd` is NULL or one of ours.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller's promise, here and below.
    let domain = unsafe { pd::get(pd) }?;
    attr.max_sge = attr.max_sge.max(1);
    let engine = domain.engine.create_srq(SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        // As siw: the limit is armed by `ibv_modify_srq` alone.
        limit: 0,
    })?;
    let number = engine.num();
    // SAFETY: integers and pointers.
    let mut abi: ibv_srq = unsafe { abi::zeroed() };
    // SAFETY: the domain lives.
    abi.context = unsafe { (*pd).context };
    abi.srq_context = srq_context;
    abi.pd = pd;
    abi.handle = number;
    let srq = Srq {
        context: Arc::clone(&domain.context),
        engine,
        users: Users::default(),
        async_events: Arc::default(),
        _in_pd: domain.users.add(),
    };
    let events = Arc::clone(&srq.async_events);
    let srq = Object::create(abi, srq);
    domain.context.numbers.lock().srqs.insert(number, Numbered::new(srq, &events));
    Ok(srq)
}

/// `ibv_create_srq`.
///
/// # Safety
/// `pd` is NULL or one of ours, `init` is NULL or readable and writable.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let init = init.as_mut().ok_or_else(|| Errno::INVAL.null())?;
            create(pd, init.srq_context, &mut init.attr)
        }
    })
}

/// `ibv_create_srq_ex`: basic queues; those for XRC and tag matching are refused.
///
/// # Safety
/// `context` is NULL or one of ours, `init` is NULL or readable and writable with pointers of ours in it.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    boundary::pointer(|| {
        // SAFETY: the caller's promise, here and below.
        unsafe { Context::get(context) }?;
        // SAFETY: as above.
        let init = unsafe { init.as_mut() }.ok_or_else(|| Errno::INVAL.null())?;
        let typed = init.comp_mask & flags::IBV_SRQ_INIT_ATTR_TYPE != 0;
        let known = flags::IBV_SRQ_INIT_ATTR_TYPE | flags::IBV_SRQ_INIT_ATTR_PD;
        if typed && init.srq_type != flags::IBV_SRQT_BASIC || init.comp_mask & !known != 0 {
            return Err(Errno::UNSUPPORTED.because("only basic shared receive queues are offered"));
        }
        if init.comp_mask & flags::IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Errno::INVAL.because("attributes without a protection domain"));
        }
        // SAFETY: as above.
        unsafe { create(init.pd, init.srq_context, &mut init.attr) }
    })
}

/// `ibv_get_srq_num`: only queues for XRC have a number that peers could use.
///
/// # Safety
/// `srq` is NULL or one of ours.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, _number: *mut u32) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        unsafe { Object::<Srq>::get(srq) }?;
        Err(Errno::UNSUPPORTED.because("basic shared receive queues have no number"))
    })
}

/// `ibv_modify_srq`: depth and limit.
///
/// # Safety
/// `srq` is NULL or one of ours, `attr` is NULL or readable.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        let (object, attr) =
            unsafe { (Object::<Srq>::get(srq)?, attr.as_ref().ok_or_else(|| Errno::INVAL.null())?) };
        if mask & !(flags::IBV_SRQ_MAX_WR | flags::IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVAL.because("attributes that are not known (srq_attr_mask)"));
        }
        let depth = (mask & flags::IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & flags::IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(object.engine.modify(depth, limit)?)
    })
}

/// `ibv_query_srq`.
///
/// # Safety
/// `srq` is NULL or one of ours, `attr` is NULL or writable.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise.
        let (object, attr) =
            unsafe { (Object::<Srq>::get(srq)?, attr.as_mut().ok_or_else(|| Errno::INVAL.null())?) };
        let now = object.engine.query();
        *attr = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        Ok(())
    })
}

/// `ibv_destroy_srq`: waits until every delivered event is acknowledged; EBUSY while queue pairs use it.
///
/// # Safety
/// `srq` is NULL or one of ours, and no thread else uses it any more.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<Srq>::get_any(srq) }?;
        if !object.is_inherited() {
            if object.users.any() {
                return Err(Errno::BUSY.because("queue pairs use the shared receive queue"));
            }
            object.leave();
        }
        // SAFETY: as above.
        unsafe { Object::<Srq>::free(srq) };
        Ok(())
    })
}

impl Srq {
    /// From here on no event names it, and the program holds none.
    fn leave(&self) {
        let number = self.engine.num();
        self.context.numbers.lock().srqs.remove(&number);
        let about =
            |event: &AsyncEvent| matches!(event, AsyncEvent::SrqLimitReached { srq } if *srq == number);
        drop(self.context.engine.async_events().remove_if(about));
        self.async_events.wait();
    }
}
