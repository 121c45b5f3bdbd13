//! State table of the verbs: the attributes that `ibv_modify_qp` requires and permits for each
//! transition, as in the kernel's function `ib_modify_qp_is_ok`.

use std::ffi::c_int;
use std::fmt;
use uiw_cabi_core::abi::qp as flags;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_verbs::QpState;

/// The type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpType {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

const ALT_PATH: c_int = 1 << 14;
const PATH_MIG_STATE: c_int = 1 << 18;

/// Names of the attributes of `ibv_qp_attr_mask`, without the prefix `IBV_QP_`.
const NAMES: [(c_int, &str); 20] = [
    (flags::IBV_QP_CUR_STATE, "CUR_STATE"),
    (flags::IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"),
    (flags::IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"),
    (flags::IBV_QP_PKEY_INDEX, "PKEY_INDEX"),
    (flags::IBV_QP_PORT, "PORT"),
    (flags::IBV_QP_QKEY, "QKEY"),
    (flags::IBV_QP_AV, "AV"),
    (flags::IBV_QP_PATH_MTU, "PATH_MTU"),
    (flags::IBV_QP_TIMEOUT, "TIMEOUT"),
    (flags::IBV_QP_RETRY_CNT, "RETRY_CNT"),
    (flags::IBV_QP_RNR_RETRY, "RNR_RETRY"),
    (flags::IBV_QP_RQ_PSN, "RQ_PSN"),
    (flags::IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
    (ALT_PATH, "ALT_PATH"),
    (flags::IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"),
    (flags::IBV_QP_SQ_PSN, "SQ_PSN"),
    (flags::IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
    (PATH_MIG_STATE, "PATH_MIG_STATE"),
    (flags::IBV_QP_CAP, "CAP"),
    (flags::IBV_QP_DEST_QPN, "DEST_QPN"),
];

/// Formats the attributes of a mask by name.
struct AttributeNames(c_int);

impl fmt::Display for AttributeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0;
        let mut separator = "";
        for (bit, name) in NAMES.iter().filter(|(bit, _)| self.0 & bit != 0) {
            write!(f, "{separator}IBV_QP_{name}")?;
            left &= !bit;
            separator = ", ";
        }
        if left == 0 { Ok(()) } else { write!(f, "{separator}{left:#x}") }
    }
}

/// Returns the required and the optional attributes of a transition, or `None` if there is no such
/// transition.
fn attributes(kind: QpType, from: QpState, to: QpState) -> Option<(c_int, c_int)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud};
    use flags::{
        IBV_QP_ACCESS_FLAGS as ACCESS_FLAGS, IBV_QP_AV as AV, IBV_QP_CUR_STATE as CUR_STATE,
        IBV_QP_DEST_QPN as DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY as EN_SQD_ASYNC_NOTIFY,
        IBV_QP_MAX_DEST_RD_ATOMIC as MAX_DEST_RD_ATOMIC,
        IBV_QP_MAX_QP_RD_ATOMIC as MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER as MIN_RNR_TIMER,
        IBV_QP_PATH_MTU as PATH_MTU, IBV_QP_PKEY_INDEX as PKEY_INDEX, IBV_QP_PORT as PORT,
        IBV_QP_QKEY as QKEY, IBV_QP_RETRY_CNT as RETRY_CNT, IBV_QP_RNR_RETRY as RNR_RETRY,
        IBV_QP_RQ_PSN as RQ_PSN, IBV_QP_SQ_PSN as SQ_PSN, IBV_QP_TIMEOUT as TIMEOUT,
    };
    const CONNECTED: c_int = ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE;
    Some(match (from, to, kind) {
        (_, Reset | Err, _) => (0, 0),
        (Reset, Init, Rc | Uc) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (Reset, Init, Ud) => (PKEY_INDEX | PORT | QKEY, 0),
        (Init, Init, Rc | Uc) => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (Init, Init, Ud) => (0, PKEY_INDEX | PORT | QKEY),
        (Init, Rtr, Rc) => (
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (Init, Rtr, Uc) => {
            (AV | PATH_MTU | DEST_QPN | RQ_PSN, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX)
        }
        // `rdma_init_qp_attr` sets the port with every state of a UD queue pair.
        (Init, Rtr, Ud) => (0, PKEY_INDEX | QKEY | PORT),
        (Rtr, Rts, Rc) => (
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
            CUR_STATE | CONNECTED | MIN_RNR_TIMER,
        ),
        (Rtr, Rts, Uc) => (SQ_PSN, CUR_STATE | CONNECTED),
        (Rtr, Rts, Ud) => (SQ_PSN, CUR_STATE | QKEY | PKEY_INDEX | PORT),
        // The kernel refuses the attributes of RTS here, but they do no harm if a program requests
        // RTS twice.
        (Rts, Rts, Rc) => (
            0,
            CUR_STATE
                | CONNECTED
                | MIN_RNR_TIMER
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | SQ_PSN
                | MAX_QP_RD_ATOMIC,
        ),
        (Rts, Rts, Uc) => (0, CUR_STATE | CONNECTED | SQ_PSN),
        (Sqd, Rts, Rc) => (0, CUR_STATE | CONNECTED | MIN_RNR_TIMER),
        (Sqd, Rts, Uc) => (0, CUR_STATE | CONNECTED),
        (Rts | Sqd | Sqe, Rts, Ud) => (0, CUR_STATE | QKEY),
        (Sqe, Rts, Uc) => (0, CUR_STATE | ACCESS_FLAGS),
        (Rts, Sqd, _) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd, Rc) => (
            0,
            PORT | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | CONNECTED
                | PKEY_INDEX
                | MIN_RNR_TIMER,
        ),
        (Sqd, Sqd, Uc) => (0, AV | CONNECTED | PKEY_INDEX),
        (Sqd, Sqd, Ud) => (0, PKEY_INDEX | QKEY),
        _ => return None,
    })
}

/// Checks a change with the table. `now` is the state that the program sees, and `to` is the
/// requested state.
///
/// # Errors
/// EINVAL if there is no such transition, if `mask` lacks a required attribute, or if it contains
/// one that is not permitted.
pub(super) fn check(kind: QpType, now: QpState, to: Option<QpState>, mask: c_int) -> Result<()> {
    let to = to.unwrap_or(now);
    let Some((required, optional)) = attributes(kind, now, to) else {
        let reason = format_args!("there is no transition from {now} to {to}");
        return Err(Errno::INVAL.because(reason));
    };
    let missing = required & !mask;
    if missing != 0 {
        let reason = format_args!("{now} to {to} needs {} in attr_mask", AttributeNames(missing));
        return Err(Errno::INVAL.because(reason));
    }
    let excess = mask & !(required | optional | flags::IBV_QP_STATE);
    if excess != 0 {
        let reason = format_args!("{now} to {to} takes no {} in attr_mask", AttributeNames(excess));
        return Err(Errno::INVAL.because(reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud};

    const ALL: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

    #[test]
    fn transitions_are_those_of_engine() {
        for (from, to) in ALL.into_iter().flat_map(|from| ALL.map(|to| (from, to))) {
            for kind in [Rc, Uc, Ud] {
                // A reliable queue pair has no state SQE.
                let known =
                    attributes(kind, from, to).is_some() || (kind, from, to) == (Rc, Sqe, Rts);
                assert_eq!(known, from.may_become(to), "{kind:?} {from} {to}");
            }
        }
    }

    #[test]
    fn missing_and_excess_attributes_refused() {
        let state = flags::IBV_QP_STATE;
        let init =
            state | flags::IBV_QP_PKEY_INDEX | flags::IBV_QP_PORT | flags::IBV_QP_ACCESS_FLAGS;
        assert!(check(Rc, Reset, Some(Init), init).is_ok());
        assert!(check(Rc, Reset, Some(Init), init & !flags::IBV_QP_PORT).is_err());
        assert!(check(Rc, Reset, Some(Init), init | flags::IBV_QP_QKEY).is_err());
        let rtr = state
            | flags::IBV_QP_AV
            | flags::IBV_QP_PATH_MTU
            | flags::IBV_QP_DEST_QPN
            | flags::IBV_QP_RQ_PSN;
        assert!(check(Uc, Init, Some(Rtr), rtr).is_ok());
        assert!(check(Rc, Init, Some(Rtr), rtr).is_err());
        assert!(check(Uc, Rtr, Some(Rtr), rtr).is_err());
        assert!(check(Uc, Rtr, Some(Rts), state | flags::IBV_QP_SQ_PSN).is_ok());
        assert!(check(Rc, Rts, None, flags::IBV_QP_ACCESS_FLAGS).is_ok());
        assert!(check(Rc, Rtr, None, flags::IBV_QP_ACCESS_FLAGS).is_err());
    }

    #[test]
    fn attributes_are_named() {
        let mask = flags::IBV_QP_AV | flags::IBV_QP_DEST_QPN | 1 << 25;
        assert_eq!(AttributeNames(mask).to_string(), "IBV_QP_AV, IBV_QP_DEST_QPN, 0x2000000");
    }
}
