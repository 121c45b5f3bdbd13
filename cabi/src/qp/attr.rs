//! `ibv_modify_qp` and `ibv_query_qp`, as siw understands them.

use super::Qp;
use crate::abi::qp as flags;
use crate::abi::{self, ibv_ah_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use crate::boundary::{self, Result};
use crate::device::port;
use crate::errno::Errno;
use crate::mr;
use crate::object::Object;
use crate::pair::{Patience, Target};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use verbs::{Access, QpState};

/// What was set and is only kept for whoever asks, or for the connection that a hand-made queue pair makes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Attributes {
    pub(crate) access: Option<c_uint>,
    pub(crate) ah: ibv_ah_attr,
    pub(crate) dest_qp_num: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) qkey: u32,
    pub(crate) path_mtu: c_int,
    pub(crate) pkey_index: u16,
    pub(crate) max_rd_atomic: Option<u8>,
    pub(crate) max_dest_rd_atomic: Option<u8>,
    pub(crate) min_rnr_timer: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The program has not asked for RTS yet, though the connection may stand.
    pub(crate) before_rts: bool,
}

/// Every bit of `ibv_qp_attr_mask` up to `IBV_QP_RATE_LIMIT`.
const KNOWN: c_int = 0x3F_FFFF | 1 << 25;

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` is NULL or one of ours, `attr` is NULL or readable.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Qp::get(qp) }?;
        // SAFETY: as above.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if mask & !KNOWN != 0 {
            return Err(Errno::INVAL);
        }
        modify(object, attr, mask)?;
        if mask & flags::IBV_QP_STATE != 0 {
            // SAFETY: as above; rdma-core writes it here as well.
            unsafe { (*qp).state = object.engine.state() as c_int };
        }
        Ok(())
    })
}

fn modify(object: &Object<Qp>, attr: &ibv_qp_attr, mask: c_int) -> Result<()> {
    let to = match mask & flags::IBV_QP_STATE {
        0 => None,
        _ => Some(state(attr.qp_state).ok_or(Errno::INVAL)?),
    };
    if mask & flags::IBV_QP_PORT != 0 && attr.port_num != 1 {
        return Err(Errno::INVAL);
    }
    let access = match mask & flags::IBV_QP_ACCESS_FLAGS {
        0 => None,
        _ => Some(mr::access(attr.qp_access_flags)?),
    };
    let now = object.engine.state();
    let to = to.filter(|to| !is_past(now, *to, mask));
    if let Some(to) = to
        && !now.may_become(to)
        && now != to
    {
        return Err(Errno::INVAL);
    }
    keep(&mut object.attributes.lock(), attr, mask);
    if let Some(access) = access {
        // As on InfiniBand: the rights given with the port hold. siw does not look at those of a queue pair, and what rdma_cm
        // says on iWARP leaves out atomics: it adds rights and takes none away.
        let before = match mask & flags::IBV_QP_PORT {
            0 => object.engine.query().access,
            _ => Access::empty(),
        };
        object.engine.set_access(before | access & Access::REMOTE);
    }
    match to {
        Some(to) => change(object, to, mask),
        None => Ok(()),
    }
}

/// The transition itself, with what queue pairs connected by hand do on the way.
fn change(object: &Object<Qp>, to: QpState, mask: c_int) -> Result<()> {
    let by_hand = |bits: c_int| object.place.as_ref().filter(|_| mask & bits != 0);
    let target = match (to, by_hand(flags::IBV_QP_DEST_QPN)) {
        (QpState::Rtr, Some(_)) => Some(target(object)?),
        _ => None,
    };
    if let (QpState::Reset | QpState::Err, Some(place)) = (to, &object.place) {
        place.forget();
        object.calling.store(false, Ordering::Relaxed);
    }
    if to != object.engine.state() || to == QpState::Sqd {
        object.engine.modify(to)?;
    }
    match to {
        QpState::Init => {
            if let Some(place) = by_hand(flags::IBV_QP_PORT) {
                place.listen(&object.context)?;
            }
        }
        QpState::Rtr => {
            object.attributes.lock().before_rts = true;
            if let (Some(place), Some(target)) = (&object.place, target) {
                place.listen(&object.context)?;
                object.calling.store(true, Ordering::Relaxed);
                place.connect(&object.context, &object.engine, &object.calling, target)?;
            }
        }
        _ => object.attributes.lock().before_rts = false,
    }
    if to == QpState::Rts
        && let Some(place) = &object.place
    {
        let kept = *object.attributes.lock();
        let psn = (mask & flags::IBV_QP_SQ_PSN != 0).then_some(kept.sq_psn);
        let patience = Patience::of(kept.timeout, kept.retry_cnt, kept.min_rnr_timer, kept.rnr_retry);
        place.ready(psn, patience);
    }
    Ok(())
}

/// Whom the attributes of RTR name.
fn target(object: &Object<Qp>) -> Result<Target> {
    let kept = *object.attributes.lock();
    let netdev = object.context.device.netdev()?;
    Target::new(&netdev, object.engine.num(), &kept.ah, kept.dest_qp_num, kept.rq_psn)
}

/// Programs that connect with rdma_cm and move their queue pair themselves come to INIT and RTR, with what `rdma_init_qp_attr` told
/// them to set, when the connection has long brought RTS. Nothing is left to do, and siw says so too.
fn is_past(now: QpState, to: QpState, mask: c_int) -> bool {
    now == QpState::Rts
        && matches!(to, QpState::Init | QpState::Rtr)
        && mask == flags::IBV_QP_STATE | flags::IBV_QP_ACCESS_FLAGS
}

fn keep(kept: &mut Attributes, attr: &ibv_qp_attr, mask: c_int) {
    let has = |bit| mask & bit != 0;
    if has(flags::IBV_QP_ACCESS_FLAGS) {
        kept.access = Some(attr.qp_access_flags);
    }
    if has(flags::IBV_QP_AV) {
        kept.ah = attr.ah_attr;
    }
    if has(flags::IBV_QP_DEST_QPN) {
        kept.dest_qp_num = attr.dest_qp_num;
    }
    if has(flags::IBV_QP_RQ_PSN) {
        kept.rq_psn = attr.rq_psn;
    }
    if has(flags::IBV_QP_SQ_PSN) {
        kept.sq_psn = attr.sq_psn;
    }
    if has(flags::IBV_QP_QKEY) {
        kept.qkey = attr.qkey;
    }
    if has(flags::IBV_QP_PATH_MTU) {
        kept.path_mtu = attr.path_mtu;
    }
    if has(flags::IBV_QP_PKEY_INDEX) {
        kept.pkey_index = attr.pkey_index;
    }
    if has(flags::IBV_QP_MAX_QP_RD_ATOMIC) {
        kept.max_rd_atomic = Some(attr.max_rd_atomic);
    }
    if has(flags::IBV_QP_MAX_DEST_RD_ATOMIC) {
        kept.max_dest_rd_atomic = Some(attr.max_dest_rd_atomic);
    }
    if has(flags::IBV_QP_MIN_RNR_TIMER) {
        kept.min_rnr_timer = attr.min_rnr_timer;
    }
    if has(flags::IBV_QP_TIMEOUT) {
        kept.timeout = attr.timeout;
    }
    if has(flags::IBV_QP_RETRY_CNT) {
        kept.retry_cnt = attr.retry_cnt;
    }
    if has(flags::IBV_QP_RNR_RETRY) {
        kept.rnr_retry = attr.rnr_retry;
    }
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

/// `ibv_query_qp`: everything, whatever the mask asks for.
///
/// # Safety
/// `qp` is NULL or one of ours, `attr` and `init` are NULL or writable.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    boundary::code(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Qp::get(qp) }?;
        if attr.is_null() || init.is_null() {
            return Err(Errno::INVAL);
        }
        let state = match object.engine.state() {
            QpState::Rts if object.attributes.lock().before_rts => QpState::Rtr,
            state => state,
        } as c_int;
        // SAFETY: as above.
        unsafe {
            (*qp).state = state;
            attr.write(query(object, state)?);
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: object.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: object.signal_all.into(),
            });
        }
        Ok(())
    })
}

fn query(object: &Object<Qp>, state: c_int) -> Result<ibv_qp_attr> {
    let engine = object.engine.query();
    let kept = *object.attributes.lock();
    // SAFETY: integers.
    let mut attr: ibv_qp_attr = unsafe { abi::zeroed() };
    attr.qp_state = state;
    attr.cur_qp_state = state;
    attr.path_mtu = match kept.path_mtu {
        0 => port::of(&object.context.device.netdev()?, object.context.persona).active_mtu,
        mtu => mtu,
    };
    attr.qkey = kept.qkey;
    (attr.rq_psn, attr.sq_psn, attr.dest_qp_num) = (kept.rq_psn, kept.sq_psn, kept.dest_qp_num);
    attr.qp_access_flags = kept.access.unwrap_or(engine.access.bits());
    attr.cap = object.cap;
    attr.ah_attr = kept.ah;
    attr.pkey_index = kept.pkey_index;
    attr.max_rd_atomic = kept.max_rd_atomic.unwrap_or(u8::try_from(engine.ord).unwrap_or(u8::MAX));
    attr.max_dest_rd_atomic = kept.max_dest_rd_atomic.unwrap_or(u8::try_from(engine.ird).unwrap_or(u8::MAX));
    attr.min_rnr_timer = kept.min_rnr_timer;
    attr.port_num = 1;
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (kept.timeout, kept.retry_cnt, kept.rnr_retry);
    Ok(attr)
}
