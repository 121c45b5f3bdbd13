//! `ibv_modify_qp` and `ibv_query_qp`, with the semantics of siw. UD queue pairs and personas other
//! than iWARP also check that the attributes are permitted for the transition.

use super::{Attributes, Qp, QpType, transitions, ud};
use crate::device::port;
use crate::mr;
use crate::oob::{RetryPolicy, Target};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::abi::{ibv_qp_attr, ibv_qp_init_attr, zeroed};
use uiw_cabi_core::arguments::{Handle, InPtr, OutPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_cabi_core::persona::Persona;
use uiw_verbs::{Access, Call, QpState};

/// Bits of `attr_mask` that are accepted: those up to `IBV_QP_DEST_QPN`. With the others, such as
/// `IBV_QP_RATE_LIMIT`, rdma-core fails with EOPNOTSUPP.
const KNOWN: c_int = 0x1F_FFFF;

/// `ibv_modify_qp`.
pub extern "C" fn ibv_modify_qp(
    qp: Handle<'_, Qp>,
    attr: InPtr<'_, ibv_qp_attr>,
    mask: c_int,
) -> c_int {
    boundary::code(|| {
        let (object, attr) = (qp.get()?, attr.get()?);
        if mask & !KNOWN != 0 {
            return Err(Errno::UNSUPPORTED.because("attributes that are not supported (attr_mask)"));
        }
        object.context.engine.inject(Call::ModifyQp)?;
        modify(object, attr, mask)?;
        if mask & flags::IBV_QP_STATE != 0 {
            publish_state(object);
        }
        Ok(())
    })
}

fn modify(object: &Object<Qp>, attr: &ibv_qp_attr, mask: c_int) -> Result<()> {
    let to = match mask & flags::IBV_QP_STATE {
        0 => None,
        _ => Some(state(attr.qp_state).ok_or_else(|| Errno::INVAL.because("unknown state"))?),
    };
    if mask & flags::IBV_QP_PORT != 0 && attr.port_num != 1 {
        return Err(Errno::INVAL.because("the device has port 1 only"));
    }
    let is_cm_setup = is_cm_setup(to, mask);
    // siw accepts every mask. The mask of `rdma_init_qp_attr` for RTS is empty.
    if (object.context.persona != Persona::Iwarp || object.is_ud()) && !is_cm_setup && mask != 0 {
        transitions::check(object.qp_type, shown_state(object), to, mask)?;
        check_values(object, attr, mask)?;
    }
    if to == Some(QpState::Sqd) && object.engine.state() != QpState::Sqd {
        let requested =
            mask & flags::IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0;
        object.engine.set_reports_drained(requested);
    }
    if object.is_ud() {
        return ud::modify(object, attr, mask, to);
    }
    let access = match mask & flags::IBV_QP_ACCESS_FLAGS {
        0 => None,
        _ => Some(mr::access(attr.qp_access_flags)?),
    };
    let now = object.engine.state();
    let to = to.filter(|_| !(is_cm_setup && now == QpState::Rts));
    if let Some(to) = to
        && !now.may_become(to)
        && now != to
    {
        return Err(Errno::INVAL.because(format_args!("there is no transition from {now} to {to}")));
    }
    // A call that fails changes nothing (ibv_modify_qp(3)), so the steps that can fail come first.
    let target = match to {
        Some(QpState::Rtr) if mask & flags::IBV_QP_DEST_QPN != 0 => {
            let mut attributes = *object.attributes.lock();
            attributes.merge(attr, mask);
            Some(target(object, &attributes)?)
        }
        _ => None,
    };
    if target.is_some() || to == Some(QpState::Init) && mask & flags::IBV_QP_PORT != 0 {
        object.reservation.listen(&object.context)?;
    }
    if let Some(to) = to {
        change_state(object, to)?;
    }
    let attributes = {
        let mut attributes = object.attributes.lock();
        attributes.merge(attr, mask);
        if to.is_some() {
            // A connection of rdma_cm moves the queue pair to RTS for the program.
            attributes.before_rts = target.is_some();
        }
        *attributes
    };
    if let Some(access) = access {
        // siw ignores the rights of a queue pair, and `rdma_init_qp_attr` on iWARP omits atomics,
        // so its rights are added to those of a new queue pair. All other changes replace the
        // rights, even in RTS.
        let kept = if is_cm_setup { object.engine.query().access } else { Access::empty() };
        object.engine.set_access(kept | access & Access::REMOTE);
    }
    if let Some(target) = target {
        object.oob_connecting.store(true, Ordering::Relaxed);
        object.reservation.connect(&object.engine, &object.oob_connecting, target);
    }
    if to == Some(QpState::Rts) {
        let psn = (mask & flags::IBV_QP_SQ_PSN != 0).then_some(attributes.sq_psn);
        let policy = match object.qp_type {
            QpType::Uc => RetryPolicy::UNRELIABLE,
            _ => RetryPolicy::new(
                attributes.timeout,
                attributes.retry_cnt,
                attributes.min_rnr_timer,
                attributes.rnr_retry,
            ),
        };
        object.reservation.enter_rts(psn, policy);
    }
    Ok(())
}

/// Checks for values that a device cannot have.
fn check_values(object: &Object<Qp>, attr: &ibv_qp_attr, mask: c_int) -> Result<()> {
    let has = |bit| mask & bit != 0;
    let persona = object.context.persona;
    let now = shown_state(object);
    if has(flags::IBV_QP_CUR_STATE) && state(attr.cur_qp_state) != Some(now) {
        let reason =
            format_args!("cur_qp_state is {}, and the queue pair is in {now}", attr.cur_qp_state);
        return Err(Errno::INVAL.because(reason));
    }
    if has(flags::IBV_QP_PKEY_INDEX) && attr.pkey_index >= persona.pkeys().max(1) {
        return Err(
            Errno::INVAL.because(format_args!("no P_Key has the index {}", attr.pkey_index))
        );
    }
    if has(flags::IBV_QP_PATH_MTU) && !(1..=5).contains(&attr.path_mtu) {
        return Err(
            Errno::INVAL.because(format_args!("path_mtu {} is not an ibv_mtu", attr.path_mtu))
        );
    }
    if has(flags::IBV_QP_AV) && attr.ah_attr.port_num != 1 {
        return Err(
            Errno::INVAL.because(format_args!("ah_attr names port {}", attr.ah_attr.port_num))
        );
    }
    if has(flags::IBV_QP_AV) && persona == Persona::Roce && attr.ah_attr.is_global == 0 {
        return Err(Errno::INVAL.because("RoCE needs a GRH: ah_attr.is_global is 0"));
    }
    Ok(())
}

/// Makes the transition.
fn change_state(object: &Qp, to: QpState) -> Result<()> {
    if let QpState::Reset | QpState::Err = to {
        object.reservation.forget();
        object.oob_connecting.store(false, Ordering::Relaxed);
    }
    if to != object.engine.state() || to == QpState::Sqd {
        object.engine.modify(to)?;
    }
    Ok(())
}

/// Returns the peer according to the attributes of RTR.
fn target(object: &Qp, attributes: &Attributes) -> Result<Target> {
    let netdev = object.context.device.netdev()?;
    let own = (object.engine.num(), object.engine.is_unreliable());
    Target::new(&netdev, own, &attributes.ah, attributes.dest_qp_num, attributes.rq_psn)
}

/// Returns the state that the program sees. An out-of-band connection moves the queue pair to RTS
/// as soon as it is established, perhaps before `ibv_modify_qp` to RTR has returned.
fn shown_state(object: &Object<Qp>) -> QpState {
    match object.engine.state() {
        QpState::Rts if object.attributes.lock().before_rts => QpState::Rtr,
        state => state,
    }
}

/// Writes the state that the program sees to the structure, as rdma-core does, and returns it.
fn publish_state(object: &Object<Qp>) -> c_int {
    let state = shown_state(object) as c_int;
    // Calls of several threads may write the field at the same time.
    let _attributes = object.attributes.lock();
    object.abi.set(|abi| &abi.qp_base.state, state);
    state
}

/// Returns whether the change is one that `rdma_init_qp_attr` requests.
///
/// Programs that connect with rdma_cm and move their queue pair themselves make this change before
/// the connection is established, or after the connection has moved the queue pair to RTS. In the
/// latter case nothing is left to do, and the call succeeds, as with siw.
fn is_cm_setup(to: Option<QpState>, mask: c_int) -> bool {
    let required = flags::IBV_QP_STATE | flags::IBV_QP_ACCESS_FLAGS;
    // librdmacm adds these two.
    let added = flags::IBV_QP_MAX_QP_RD_ATOMIC | flags::IBV_QP_MAX_DEST_RD_ATOMIC;
    matches!(to, Some(QpState::Init | QpState::Rtr)) && mask & !added == required
}

fn state(raw: c_int) -> Option<QpState> {
    Some(match raw {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return None,
    })
}

/// `ibv_query_qp`: returns all attributes, regardless of the mask.
pub extern "C" fn ibv_query_qp(
    qp: Handle<'_, Qp>,
    attr: OutPtr<'_, ibv_qp_attr>,
    _mask: c_int,
    init: OutPtr<'_, ibv_qp_init_attr>,
) -> c_int {
    boundary::code(|| {
        let object = qp.get()?;
        attr.check().and(init.check())?;
        let state = publish_state(object);
        let abi = &object.abi;
        attr.write(query(object, state)?)?;
        init.write(ibv_qp_init_attr {
            qp_context: abi.get(|abi| &abi.qp_base.qp_context),
            send_cq: abi.get(|abi| &abi.qp_base.send_cq),
            recv_cq: abi.get(|abi| &abi.qp_base.recv_cq),
            srq: abi.get(|abi| &abi.qp_base.srq),
            cap: object.cap,
            qp_type: abi.get(|abi| &abi.qp_base.qp_type),
            sq_sig_all: object.signal_all.into(),
        })
    })
}

fn query(object: &Object<Qp>, state: c_int) -> Result<ibv_qp_attr> {
    let engine = object.engine.query();
    let kept = *object.attributes.lock();
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = state;
    attr.cur_qp_state = state;
    attr.path_mtu = match kept.path_mtu {
        0 => port::port_attr(&object.context.device.netdev()?, object.context.persona).active_mtu,
        mtu => mtu,
    };
    attr.qkey = object.engine.qkey().unwrap_or(kept.qkey);
    (attr.rq_psn, attr.sq_psn, attr.dest_qp_num) = (kept.rq_psn, kept.sq_psn, kept.dest_qp_num);
    attr.qp_access_flags = kept.access.unwrap_or(engine.access.bits());
    attr.cap = object.cap;
    attr.ah_attr = kept.ah;
    attr.pkey_index = kept.pkey_index;
    attr.max_rd_atomic = kept.max_rd_atomic.unwrap_or(u8::try_from(engine.ord).unwrap_or(u8::MAX));
    attr.max_dest_rd_atomic =
        kept.max_dest_rd_atomic.unwrap_or(u8::try_from(engine.ird).unwrap_or(u8::MAX));
    attr.min_rnr_timer = kept.min_rnr_timer;
    attr.port_num = 1;
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (kept.timeout, kept.retry_cnt, kept.rnr_retry);
    Ok(attr)
}
