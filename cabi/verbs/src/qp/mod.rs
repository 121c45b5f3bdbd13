//! Queue pairs.

mod attr;
mod attributes;
mod builder;
mod create;
mod ex;
mod transitions;
mod ud;

pub use attr::{ibv_modify_qp, ibv_query_qp};
pub use create::{create_extended, create_qp_ex};
pub use create::{ibv_create_qp, ibv_destroy_qp};
pub use ex::ibv_qp_to_qp_ex;
pub use ud::{ibv_attach_mcast, ibv_detach_mcast};

use crate::call_lock::CallLock;
use crate::context::{Context, NumberedObject};
use crate::cq::Cq;
use crate::oob::QpnReservation;
use crate::pd::Pd;
use crate::srq::Srq;
use attributes::Attributes;
use builder::Batch;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use transitions::QpType;
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::abi::{ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, zeroed};
use uiw_cabi_core::arguments::InOutPtr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object};
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::users::{Unacknowledged, UserToken};
use uiw_verbs::{AsyncEvent, QpCap, QpInit, QpState};

/// A queue pair as C holds it.
pub struct Qp {
    pub(crate) context: Arc<Context>,
    /// The engine's. The thread of out-of-band connections has a reference as well, which `QpnReservation::forget` ends.
    pub engine: Arc<uiw_verbs::Qp>,
    /// The number, with its TCP port for out-of-band connections.
    reservation: QpnReservation,
    /// An out-of-band connection is being made: the first post starts its time-out.
    oob_connecting: Arc<AtomicBool>,
    qp_type: QpType,
    cap: ibv_qp_cap,
    signal_all: bool,
    attributes: Mutex<Attributes>,
    /// Asynchronous events that the program holds.
    pub async_events: Arc<Unacknowledged>,
    /// Only of queue pairs that were made for `ibv_wr_*`.
    builder: Option<CallLock<Batch>>,
    _uses: [Option<UserToken>; 4],
}

impl Body for Qp {
    type Abi = ibv_qp_ex;
    type C = ibv_qp;
    const KIND: u32 = 0x7569_6308;
}

impl Qp {
    /// Called after a post: the time-out of an out-of-band connection that is being made begins.
    pub(crate) fn note_post(&self) {
        if self.oob_connecting.load(Ordering::Relaxed) && !self.reservation.posted() {
            self.oob_connecting.store(false, Ordering::Relaxed);
        }
    }

    /// The queue pair of a context that has `number`: programs name queue pairs of their own to rdma_cm by number.
    ///
    /// # Safety
    /// The program does not destroy the queue pair during `'a`.
    ///
    /// # Errors
    /// EINVAL when there is none.
    pub unsafe fn numbered<'a>(context: &Context, number: u32) -> Result<&'a Object<Self>> {
        let qp = context
            .numbers
            .lock()
            .qps
            .get(&number)
            .ok_or_else(|| Errno::INVAL.because("no queue pair of the context has the number"))?
            .object();
        // SAFETY: the caller ensures that the queue pair stays.
        unsafe { Object::get(qp) }
    }

    /// Keeps the time-out that an option of rdma_cm set, for `ibv_query_qp`.
    pub fn set_timeout(&self, timeout: u8) {
        self.attributes.lock().timeout = timeout;
    }

    /// Returns whether it sends datagrams.
    pub fn is_ud(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// The engine's queue pair.
    pub fn engine(&self) -> &uiw_verbs::Qp {
        &self.engine
    }
}

/// Bytes of inline data that every queue pair takes at least: some programs ask for none and use it.
const INLINE: u32 = 256;

/// Makes a queue pair. `init.cap` becomes what it really has. With `send_ops` it has these functions for `ibv_wr_*`.
///
/// # Errors
/// EINVAL for invalid values and for more than the device can, EOPNOTSUPP for types that the persona does not have.
fn create_qp(
    domain: &Object<Pd>,
    init: InOutPtr<'_, ibv_qp_init_attr_ex>,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp> {
    let persona = domain.context.persona;
    let qp_type = checked_type(init.given()?.qp_type, persona)?;
    let send_cq: &Object<Cq> = init.object(|init| &init.send_cq)?;
    let recv_cq: &Object<Cq> = init.object(|init| &init.recv_cq)?;
    let srq: Option<&Object<Srq>> = match init.given()?.srq.is_null() {
        true => None,
        false => Some(init.object(|init| &init.srq)?),
    };
    let init = init.get()?;
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
    let reservation =
        QpnReservation::new(&context.device.netdev()?, &context.engine, recv_cq.engine.shard())?;
    let engine_init = QpInit::new(&send_cq.engine, &recv_cq.engine)
        .cap(cap)
        .signal_all(init.sq_sig_all != 0)
        .srq(srq.map(|srq| Arc::clone(&srq.engine)))
        .num(reservation.number());
    let engine = if qp_type == QpType::Ud {
        let port = reservation.datagrams().ok_or_else(|| {
            Errno::UNSUPPORTED.because("this persona has no UD queue pairs; UIW_UD=on gives them")
        })?;
        domain.engine.create_ud_qp(engine_init, port)?
    } else {
        let engine_init = if qp_type == QpType::Uc { engine_init.unreliable() } else { engine_init };
        domain.engine.create_qp(engine_init)?
    };
    if context.persona.first_state() == QpState::Reset {
        engine.modify(QpState::Reset)?;
    }
    let number = engine.num();
    let mut abi: ibv_qp_ex = zeroed();
    if let Some(ops) = send_ops {
        ex::fill(&mut abi, ops);
    }
    let base = &mut abi.qp_base;
    base.context = domain.abi.get(|pd| &pd.context);
    base.qp_context = init.qp_context;
    base.pd = domain.abi();
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.handle, base.qp_num) = (number, number);
    // RESET whatever the real state is: rdma-core shows that until the first change or query.
    base.state = QpState::Reset as c_int;
    base.qp_type = init.qp_type;
    let uses = [
        Some(domain.users.add()),
        Some(send_cq.users.add()),
        Some(recv_cq.users.add()),
        srq.map(|srq| srq.users.add()),
    ];
    let qp = Qp {
        context: Arc::clone(context),
        engine: Arc::new(engine),
        reservation,
        oob_connecting: Arc::default(),
        qp_type,
        cap: init.cap,
        signal_all: init.sq_sig_all != 0,
        attributes: Mutex::default(),
        async_events: Arc::default(),
        builder: send_ops.map(|_| CallLock::default()),
        _uses: uses,
    };
    let events = Arc::clone(&qp.async_events);
    let qp = Object::create(abi, qp);
    context.numbers.lock().qps.insert(number, NumberedObject::new(qp, &events));
    Ok(qp)
}

/// The type of queue pair that a program asks for.
///
/// # Errors
/// EOPNOTSUPP for a type that the persona does not have, EINVAL for a number without a meaning.
fn checked_type(qp_type: c_int, persona: Persona) -> Result<QpType> {
    match qp_type {
        flags::IBV_QPT_RC => Ok(QpType::Rc),
        flags::IBV_QPT_UC if persona != Persona::Iwarp => Ok(QpType::Uc),
        flags::IBV_QPT_UC => Err(Errno::UNSUPPORTED
            .because("persona iwarp has no UC queue pairs; UIW_PERSONA=roce and UIW_PERSONA=ib have them")),
        flags::IBV_QPT_UD => match Settings::get()?.no_datagrams() {
            None => Ok(QpType::Ud),
            Some(reason) => Err(Errno::UNSUPPORTED.because(reason)),
        },
        // Raw packets, XRC, drivers' own: not on iWARP.
        8 | 9 | 10 | 0xFF => Err(Errno::UNSUPPORTED.because("a type of queue pair that iWARP does not have")),
        _ => Err(Errno::INVAL.because("a type of queue pair that is not known")),
    }
}

impl Qp {
    /// Removes the queue pair: no event names it from then on, and the program holds none.
    fn leave(&self) -> Result<()> {
        self.reservation.forget();
        let number = self.engine.num();
        self.context.numbers.lock().qps.remove(&number);
        let about = |event: &AsyncEvent| match event {
            AsyncEvent::QpFatal { qp_num, .. }
            | AsyncEvent::QpRequestError { qp_num, .. }
            | AsyncEvent::QpAccessError { qp_num, .. }
            | AsyncEvent::SqDrained { qp_num }
            | AsyncEvent::LastWqeReached { qp_num } => *qp_num == number,
            _ => false,
        };
        drop(self.context.engine.async_events().remove_if(about));
        self.async_events.wait();
        Ok(())
    }
}
