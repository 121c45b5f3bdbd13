//! Attributes of a queue pair that are stored as the program has set them.

use std::ffi::{c_int, c_uint};
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::abi::{ibv_ah_attr, ibv_qp_attr};

/// Attributes that the engine does not have. They are stored for `ibv_query_qp` and for an
/// out-of-band connection.
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
    /// True if the program has not requested RTS yet, although the connection may be established.
    pub(crate) before_rts: bool,
}

impl Attributes {
    /// Stores the attributes of `attr` that `mask` selects.
    pub(super) fn merge(&mut self, attr: &ibv_qp_attr, mask: c_int) {
        let set = |bit| mask & bit != 0;
        assign(&mut self.access, Some(attr.qp_access_flags), set(flags::IBV_QP_ACCESS_FLAGS));
        assign(&mut self.ah, attr.ah_attr, set(flags::IBV_QP_AV));
        assign(&mut self.dest_qp_num, attr.dest_qp_num, set(flags::IBV_QP_DEST_QPN));
        assign(&mut self.rq_psn, attr.rq_psn, set(flags::IBV_QP_RQ_PSN));
        assign(&mut self.sq_psn, attr.sq_psn, set(flags::IBV_QP_SQ_PSN));
        assign(&mut self.qkey, attr.qkey, set(flags::IBV_QP_QKEY));
        assign(&mut self.path_mtu, attr.path_mtu, set(flags::IBV_QP_PATH_MTU));
        assign(&mut self.pkey_index, attr.pkey_index, set(flags::IBV_QP_PKEY_INDEX));
        assign(
            &mut self.max_rd_atomic,
            Some(attr.max_rd_atomic),
            set(flags::IBV_QP_MAX_QP_RD_ATOMIC),
        );
        assign(
            &mut self.max_dest_rd_atomic,
            Some(attr.max_dest_rd_atomic),
            set(flags::IBV_QP_MAX_DEST_RD_ATOMIC),
        );
        assign(&mut self.min_rnr_timer, attr.min_rnr_timer, set(flags::IBV_QP_MIN_RNR_TIMER));
        assign(&mut self.timeout, attr.timeout, set(flags::IBV_QP_TIMEOUT));
        assign(&mut self.retry_cnt, attr.retry_cnt, set(flags::IBV_QP_RETRY_CNT));
        assign(&mut self.rnr_retry, attr.rnr_retry, set(flags::IBV_QP_RNR_RETRY));
    }
}

fn assign<T>(to: &mut T, value: T, is_set: bool) {
    if is_set {
        *to = value;
    }
}
