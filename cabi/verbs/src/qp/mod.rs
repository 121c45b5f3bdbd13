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
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use transitions::QpType;
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::abi::{ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex, zeroed};
use uiw_cabi_core::arguments::InOutPtr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_core::users::{UnacknowledgedEvents, UserToken};
use uiw_verbs::{AsyncEvent, QpCap, QpInit, QpState};

/// Queue pair behind the `ibv_qp` of a C program.
pub struct Qp {
    pub(crate) context: Arc<Context>,
    /// The engine's queue pair. The worker thread for out-of-band connections holds a second
    /// reference until `QpnReservation::forget`.
    pub engine: Arc<uiw_verbs::Qp>,
    /// Queue pair number, and its TCP port for out-of-band connections.
    reservation: QpnReservation,
    /// True if an out-of-band connection is being established, whose time-out starts with the first
    /// post.
    oob_connecting: Arc<AtomicBool>,
    qp_type: QpType,
    /// Number of the engine's protection domain.
    domain: u32,
    cap: ibv_qp_cap,
    signal_all: bool,
    attributes: Mutex<Attributes>,
    /// Multicast groups to which `ibv_attach_mcast` has attached the queue pair, each with the
    /// address and the index of the interface.
    groups: Mutex<Vec<(IpAddr, IpAddr, u32)>>,
    /// Asynchronous events that the program has received and not acknowledged.
    pub async_events: Arc<UnacknowledgedEvents>,
    /// State of the `ibv_wr_*` calls. `None` unless the queue pair was created for them.
    builder: Option<CallLock<Batch>>,
    /// Tokens that keep the protection domain, the completion queues and the SRQ from being
    /// destroyed.
    _uses: [Option<UserToken>; 4],
}

impl Body for Qp {
    type Abi = ibv_qp_ex;
    type C = ibv_qp;
    const KIND: ObjectKind = ObjectKind::Qp;
}

impl Qp {
    /// Starts the time-out of an out-of-band connection that is being established. Called after
    /// every post.
    pub(crate) fn note_post(&self) {
        if self.oob_connecting.load(Ordering::Relaxed) {
            self.reservation.note_post();
        }
    }

    /// Returns the queue pair of `context` with this number.
    ///
    /// Programs pass queue pairs that they have created themselves to rdma_cm by number.
    ///
    /// # Safety
    /// The program does not destroy the queue pair during `'a`, so that no thread frees it.
    ///
    /// # Errors
    /// EINVAL if the context has no queue pair with this number.
    pub unsafe fn with_number<'a>(context: &Context, number: u32) -> Result<&'a Object<Self>> {
        let qp = context
            .numbers
            .lock()
            .qps
            .get(&number)
            .ok_or_else(|| Errno::INVAL.because("the context has no queue pair with this number"))?
            .object();
        // SAFETY: `Object::get` looks up the pointer, and the caller ensures that no thread frees
        // the queue pair during `'a`.
        unsafe { Object::get(qp) }
    }

    /// Stores the time-out set with an rdma_cm option, so that `ibv_query_qp` returns it.
    pub fn record_timeout(&self, timeout: u8) {
        self.attributes.lock().timeout = timeout;
    }

    /// Returns whether this is a UD queue pair.
    pub fn is_ud(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Returns the number of the protection domain of a UD queue pair, and `None` for other queue
    /// pairs.
    pub(crate) fn ud_domain(&self) -> Option<u32> {
        self.is_ud().then_some(self.domain)
    }
}

/// Minimum size of inline data, in bytes. Some programs post inline data although they asked for
/// none.
const MIN_INLINE_DATA: u32 = 256;

/// Creates a queue pair and stores its actual capacities in `init.cap`, which a call that fails
/// does not change.
///
/// If `send_ops` is given, the queue pair supports these operations through `ibv_wr_*`.
///
/// # Errors
/// EINVAL for values that are invalid or exceed the limits of the device, EOPNOTSUPP for types that
/// the persona does not have.
fn create_qp(
    domain: &Object<Pd>,
    init: InOutPtr<'_, ibv_qp_init_attr_ex>,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp> {
    let persona = domain.context.persona;
    let qp_type = parse_qp_type(init.get_ref()?.qp_type, persona)?;
    let send_cq: &Object<Cq> = init.object(|init| &init.send_cq)?;
    let recv_cq: &Object<Cq> = init.object(|init| &init.recv_cq)?;
    let srq: Option<&Object<Srq>> = match init.get_ref()?.srq.is_null() {
        true => None,
        false => Some(init.object(|init| &init.srq)?),
    };
    if srq.is_some() && qp_type == QpType::Uc {
        return Err(Errno::INVAL.because("a UC queue pair cannot use a shared receive queue"));
    }
    let init = init.get()?;
    let mut cap = init.cap;
    cap.max_inline_data = cap.max_inline_data.max(MIN_INLINE_DATA);
    if srq.is_some() {
        // The receive limits are those of the shared queue.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let engine_cap = QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    };
    let context = &domain.context;
    let reservation =
        QpnReservation::new(&context.device.netdev()?, &context.engine, recv_cq.engine.shard())?;
    let engine_init = QpInit::new(&send_cq.engine, &recv_cq.engine)
        .cap(engine_cap)
        .signal_all(init.sq_sig_all != 0)
        .srq(srq.map(|srq| Arc::clone(&srq.engine)))
        .num(reservation.number());
    let engine = create_engine_qp(domain, engine_init, qp_type, &reservation)?;
    let number = engine.num();
    let mut abi: ibv_qp_ex = zeroed();
    if let Some(ops) = send_ops {
        ex::fill_function_table(&mut abi, ops);
    }
    let base = &mut abi.qp_base;
    base.context = domain.abi.get(|pd| &pd.context);
    base.qp_context = init.qp_context;
    base.pd = domain.abi();
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.handle, base.qp_num) = (number, number);
    // Whatever the actual state is, rdma-core leaves this field at RESET until the first
    // `ibv_modify_qp` or `ibv_query_qp`.
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
        domain: domain.engine.num(),
        cap,
        signal_all: init.sq_sig_all != 0,
        attributes: Mutex::default(),
        groups: Mutex::default(),
        async_events: Arc::default(),
        builder: send_ops.map(|_| CallLock::default()),
        _uses: uses,
    };
    let events = Arc::clone(&qp.async_events);
    let qp = Object::create(abi, qp);
    context.numbers.lock().qps.insert(number, NumberedObject::new(qp, &events));
    init.cap = cap;
    Ok(qp)
}

/// Creates the queue pair of the engine, in the first state of the persona.
///
/// # Errors
/// EOPNOTSUPP for UD if the reservation has no port for datagrams; the errors of the engine.
fn create_engine_qp(
    domain: &Pd,
    init: QpInit,
    qp_type: QpType,
    reservation: &QpnReservation,
) -> Result<uiw_verbs::Qp> {
    let qp = match qp_type {
        QpType::Rc => domain.engine.create_qp(init)?,
        QpType::Uc => domain.engine.create_qp(init.unreliable())?,
        QpType::Ud => {
            let port = reservation.datagrams().ok_or_else(|| {
                Errno::UNSUPPORTED
                    .because("this persona has no UD queue pairs; UIW_UD=on enables them")
            })?;
            domain.engine.create_ud_qp(init, port)?
        }
    };
    if domain.context.persona.first_state() == QpState::Reset {
        qp.modify(QpState::Reset)?;
    }
    Ok(qp)
}

/// Converts the queue pair type that a program asks for.
///
/// # Errors
/// EOPNOTSUPP for a type that the persona does not have, EINVAL for an unknown number.
fn parse_qp_type(qp_type: c_int, persona: Persona) -> Result<QpType> {
    match qp_type {
        flags::IBV_QPT_RC => Ok(QpType::Rc),
        flags::IBV_QPT_UC if persona != Persona::Iwarp => Ok(QpType::Uc),
        flags::IBV_QPT_UC => Err(Errno::UNSUPPORTED.because(
            "persona iwarp has no UC queue pairs; UIW_PERSONA=roce and UIW_PERSONA=ib have them",
        )),
        flags::IBV_QPT_UD => match Settings::get()?.no_datagrams() {
            None => Ok(QpType::Ud),
            Some(reason) => Err(Errno::UNSUPPORTED.because(reason)),
        },
        // Raw packet, XRC and driver-specific types do not exist on iWARP.
        8 | 9 | 10 | 0xFF => {
            Err(Errno::UNSUPPORTED.because("iWARP does not have this type of queue pair"))
        }
        _ => Err(Errno::INVAL.because("unknown type of queue pair")),
    }
}

impl Qp {
    /// Unregisters the queue pair before it is destroyed.
    ///
    /// Discards its pending asynchronous events and waits until the program has acknowledged the
    /// delivered ones.
    fn leave(&self) -> Result<()> {
        if !self.groups.lock().is_empty() {
            return Err(Errno::BUSY.because("the queue pair is attached to a multicast group"));
        }
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
