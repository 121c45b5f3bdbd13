//! State changes of UD queue pairs. They are commands on the shard, so that no datagram is in
//! progress during a change.

use super::binding;
use super::transmit;
use crate::driver::Core;
use crate::error::{Error, Result};
use crate::qp::{QpInner, QpState, SqMode};
use std::sync::Arc;
use uiw_llp::Token;

/// Changes the state, as `ibv_modify_qp` does.
pub(crate) fn modify(qp: &Arc<QpInner>, to: QpState) -> Result<()> {
    let Some(token) = qp.conn() else { return Err(Error::NotConnected) };
    let inner = Arc::clone(qp);
    qp.driver.shard(token).call(move |core| {
        let _control = inner.control();
        change(core, &inner, token, to)
    })
}

fn change(core: &mut Core, qp: &QpInner, token: Token, to: QpState) -> Result<()> {
    let from = qp.state();
    if !from.may_become(to) {
        return Err(Error::Transition { from, to });
    }
    match to {
        QpState::Reset => {
            qp.forget_requests();
            qp.set_state(QpState::Reset);
        }
        QpState::Rts => {
            if from == QpState::Rtr
                && let Some(endpoint) = core.endpoint(token)
            {
                endpoint.epoch = getrandom::u32().unwrap_or_else(|_| qp.driver.shared.next_num());
                endpoint.msn = 0;
            }
            let mut sq = qp.sq.lock();
            sq.mode = SqMode::Running;
            sq.resume();
            drop(sq);
            qp.set_state(QpState::Rts);
            transmit(core, token);
        }
        QpState::Sqd => {
            qp.set_state(QpState::Sqd);
            qp.sq.lock().stop_after(false);
            // A datagram is complete once it is sent, so the queue is drained already.
            if from == QpState::Rts {
                qp.raise_drained(&mut core.services.wakes);
            }
        }
        QpState::Init | QpState::Rtr | QpState::Err | QpState::Sqe => {
            return qp.modify_unconnected(to, &mut core.services.wakes);
        }
    }
    Ok(())
}

/// Removes a queue pair that the application destroys.
pub(crate) fn destroy(qp: &Arc<QpInner>) {
    if let Some(token) = qp.conn() {
        qp.driver.shard(token).call(move |core| binding::remove_endpoint(core, token));
    }
}
