//! Queue pairs.

mod attr;
mod ex;

pub use attr::{ibv_modify_qp, ibv_query_qp};
pub(crate) use ex::Builder;
pub use ex::ibv_qp_to_qp_ex;

use crate::abi::qp as flags;
use crate::abi::{
    self, ibv_context, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::boundary::{self, Result};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::object::{Body, Object};
use crate::pair::Place;
use crate::pd;
use crate::srq::Srq;
use crate::users::{Unacknowledged, Used};
use attr::Attributes;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use verbs::{AsyncEvent, QpCap, QpInit, QpState};

/// A queue pair as C holds it.
pub struct Qp {
    pub(crate) context: Arc<Context>,
    /// The engine's. Only the thread that connects by hand has it too, and lets go in `Place::forget`.
    pub engine: Arc<verbs::Qp>,
    /// Of queue pairs that may be connected by hand.
    place: Option<Place>,
    /// Posting starts the clock of the connection that is being made by hand.
    calling: Arc<AtomicBool>,
    cap: ibv_qp_cap,
    signal_all: bool,
    attributes: Mutex<Attributes>,
    /// Asynchronous events that the program holds.
    pub async_events: Unacknowledged,
    /// Of queue pairs that were made for `ibv_wr_*`.
    builder: Option<Builder>,
    _uses: [Option<Used>; 4],
}

impl Body for Qp {
    type Abi = ibv_qp_ex;
    const KIND: u32 = 0x7569_6308;
}

impl Qp {
    /// The queue pair behind C's pointer.
    ///
    /// # Safety
    /// `qp` is NULL or one of ours, and nobody frees it during `'a`.
    ///
    /// # Errors
    /// As [`Object::get`].
    pub unsafe fn get<'a>(qp: *mut ibv_qp) -> Result<&'a Object<Self>> {
        // SAFETY: the caller's promise; every queue pair of ours is an `ibv_qp_ex`.
        unsafe { Object::get(qp.cast()) }
    }

    /// Something was posted: a connection that is being made by hand has so long from now on.
    pub(crate) fn note_post(&self) {
        if self.calling.load(Ordering::Relaxed)
            && let Some(place) = &self.place
            && !place.posted()
        {
            self.calling.store(false, Ordering::Relaxed);
        }
    }

    /// The queue pair of a context that has `number`: for connection managers, to which programs name their own by it.
    ///
    /// # Safety
    /// `context` is NULL or one of ours; the queue pair stays during `'a`.
    ///
    /// # Errors
    /// EINVAL when there is none.
    pub unsafe fn numbered<'a>(context: *mut ibv_context, number: u32) -> Result<&'a Object<Self>> {
        // SAFETY: the caller's promise, here and below.
        let open = unsafe { Context::get(context) }?;
        let qp = *open.numbers.lock().qps.get(&number).ok_or(Errno::INVAL)?;
        // SAFETY: as above.
        unsafe { Object::get(qp) }
    }

    /// Keeps the time-out of an option of rdma_cm for whoever asks.
    pub(crate) fn set_timeout(&self, timeout: u8) {
        self.attributes.lock().timeout = timeout;
    }

    /// The engine's queue pair.
    #[must_use]
    pub fn engine(&self) -> &verbs::Qp {
        &self.engine
    }
}

/// Octets of inline data that every queue pair takes at least: programs ask for none and use it all the same.
const INLINE: u32 = 256;

/// Makes a queue pair for the connection manager. `init.cap` becomes what it really has.
///
/// # Safety
/// `pd` and the pointers in `init` are NULL or ours.
///
/// # Errors
/// EINVAL for nonsense and for more than the device can, EOPNOTSUPP for every type but RC.
pub unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp> {
    // SAFETY: the caller's promise.
    unsafe { create_with(pd, init, Purpose { send_ops: None, by_hand: false }) }.map(<*mut _>::cast)
}

/// What a queue pair is for.
struct Purpose {
    /// The requests of `ibv_wr_*` that the program will build, if any.
    send_ops: Option<u64>,
    /// It may be connected by `ibv_modify_qp`.
    by_hand: bool,
}

/// # Safety
/// As for [`create`].
unsafe fn create_with(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    purpose: Purpose,
) -> Result<*mut ibv_qp_ex> {
    // SAFETY: the caller's promise, here and below.
    let domain = unsafe { pd::get(pd) }?;
    check_type(init.qp_type)?;
    // SAFETY: as above.
    let (send_cq, recv_cq) = unsafe { (Cq::get(init.send_cq)?, Cq::get(init.recv_cq)?) };
    let srq = match init.srq.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { Object::<Srq>::get(init.srq) }?),
    };
    init.cap.max_inline_data = init.cap.max_inline_data.max(INLINE);
    if srq.is_some() {
        // The shared queue has its own.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    let cap = QpCap {
        max_send_wr: init.cap.max_send_wr,
        max_recv_wr: init.cap.max_recv_wr,
        max_send_sge: init.cap.max_send_sge,
        max_recv_sge: init.cap.max_recv_sge,
        max_inline: init.cap.max_inline_data,
    };
    let context = &domain.context;
    let place = if purpose.by_hand { Some(Place::reserve(context)?) } else { None };
    let engine = domain.engine.create_qp(QpInit {
        send_cq: Arc::clone(&send_cq.engine),
        recv_cq: Arc::clone(&recv_cq.engine),
        srq: srq.map(|srq| Arc::clone(&srq.engine)),
        cap,
        signal_all: init.sq_sig_all != 0,
        num: place.as_ref().map(Place::number),
    })?;
    let state = context.persona.first_state();
    if state == QpState::Reset {
        engine.modify(QpState::Reset)?;
    }
    let number = engine.num();
    // SAFETY: integers, pointers and optional functions.
    let mut abi: ibv_qp_ex = unsafe { abi::zeroed() };
    let base = &mut abi.qp_base;
    // SAFETY: the domain lives.
    base.context = unsafe { (*pd).context };
    base.qp_context = init.qp_context;
    base.pd = pd;
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.handle, base.qp_num) = (number, number);
    // Whatever state it is really in: rdma-core says so until the first change or query.
    base.state = QpState::Reset as c_int;
    base.qp_type = init.qp_type;
    if let Some(ops) = purpose.send_ops {
        ex::fill(&mut abi, ops);
    }
    let uses = [
        Some(domain.users.add()),
        Some(send_cq.users.add()),
        Some(recv_cq.users.add()),
        srq.map(|srq| srq.users.add()),
    ];
    let qp = Qp {
        context: Arc::clone(context),
        engine: Arc::new(engine),
        place,
        calling: Arc::default(),
        cap: init.cap,
        signal_all: init.sq_sig_all != 0,
        attributes: Mutex::default(),
        async_events: Unacknowledged::default(),
        builder: purpose.send_ops.map(|_| Builder::default()),
        _uses: uses,
    };
    let qp = Object::create(abi, qp);
    context.numbers.lock().qps.insert(number, qp);
    Ok(qp)
}

fn check_type(qp_type: c_int) -> Result<()> {
    match qp_type {
        flags::IBV_QPT_RC => Ok(()),
        // UC, UD, raw packets, XRC, drivers' own: not on iWARP.
        3 | 4 | 8 | 9 | 10 | 0xFF => Err(Errno::UNSUPPORTED),
        _ => Err(Errno::INVAL),
    }
}

/// `ibv_create_qp`.
///
/// # Safety
/// `pd` is NULL or one of ours, `init` is NULL or readable and writable with pointers of ours in it.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    boundary::pointer(|| unsafe {
        let purpose = Purpose { send_ops: None, by_hand: true };
        create_with(pd, init.as_mut().ok_or(Errno::INVAL)?, purpose).map(<*mut _>::cast)
    })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// `context` is NULL or one of ours, `init` is NULL or readable and writable with pointers of ours in it.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    boundary::pointer(|| {
        // SAFETY: the caller's promise, here and below.
        unsafe { Context::get(context) }?;
        // SAFETY: as above.
        let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL)?;
        let known = flags::IBV_QP_INIT_ATTR_PD
            | flags::IBV_QP_INIT_ATTR_CREATE_FLAGS
            | flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        check_type(init.qp_type)?;
        if init.comp_mask & !known != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        if init.comp_mask & flags::IBV_QP_INIT_ATTR_PD == 0 {
            return Err(Errno::INVAL);
        }
        if init.comp_mask & flags::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let send_ops =
            (init.comp_mask & flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(init.send_ops_flags);
        if send_ops.is_some_and(|ops| ops & !flags::SEND_OPS_OFFERED != 0) {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the structure begins as the shorter one does: asserted by the two layouts.
        let short = unsafe { &mut *std::ptr::from_mut(init).cast::<ibv_qp_init_attr>() };
        let pd = init.pd;
        // SAFETY: as above.
        unsafe { create_with(pd, short, Purpose { send_ops, by_hand: true }) }.map(<*mut _>::cast)
    })
}

/// `ibv_destroy_qp`: waits until every delivered event is acknowledged.
///
/// # Safety
/// `qp` is NULL or one of ours, and nobody else uses it any more.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<Qp>::get_any(qp.cast()) }?;
        if !object.is_inherited() {
            object.leave();
        }
        // SAFETY: as above.
        unsafe { Object::<Qp>::free(qp.cast()) };
        Ok(())
    })
}

impl Qp {
    /// No event names it from here on, and the program holds none.
    fn leave(&self) {
        if let Some(place) = &self.place {
            place.forget();
        }
        let number = self.engine.num();
        self.context.numbers.lock().qps.remove(&number);
        let about = |event: &AsyncEvent| match event {
            AsyncEvent::QpFatal { qp_num, .. }
            | AsyncEvent::QpRequestError { qp_num, .. }
            | AsyncEvent::QpAccessError { qp_num, .. }
            | AsyncEvent::SqDrained { qp_num }
            | AsyncEvent::LastWqeReached { qp_num } => *qp_num == number,
            AsyncEvent::CqError { .. } | AsyncEvent::SrqLimitReached { .. } => false,
        };
        drop(self.context.engine.async_events().remove_if(about));
        self.async_events.wait();
    }
}
