//! Changes of a queue pair's state that the application asks for.

use crate::conn::Conn;
use crate::error::{Error, Result};
use crate::qp::{QpInner, QpState, RecvSource, SqMode};
use crate::wc::WcStatus;
use std::sync::Arc;

/// `ibv_modify_qp` of the state.
pub(super) fn modify(qp: &Arc<QpInner>, to: QpState) -> Result<()> {
    let mut busy = qp.driver.lock();
    let core = busy.core();
    let driver = &qp.driver;
    let from = qp.state();
    if !from.may_become(to) {
        return Err(Error::Transition { from, to });
    }
    let token = qp.conn();
    match to {
        QpState::Err => {
            let ended = token.and_then(|token| core.with_conn(token, Conn::abort));
            if ended.is_none() || qp.state() != QpState::Err {
                qp.flush_unconnected(&mut core.services.wakes);
            }
        }
        QpState::Reset => {
            if let Some(token) = token {
                core.with_conn(token, Conn::forget_qp);
            }
            qp.send_cq.forget_qp(qp.num);
            qp.recv_cq.forget_qp(qp.num);
            reset_queues(qp);
            qp.set_conn(None);
            qp.attrs.lock().stream = driver.next_stream();
            qp.set_state(QpState::Reset);
        }
        QpState::Init => {
            if let RecvSource::Own(rq) = &qp.rq {
                rq.lock().closed = false;
            }
            qp.set_state(QpState::Init);
        }
        QpState::Rtr => qp.set_state(QpState::Rtr),
        QpState::Rts if !token.is_some_and(|token| core.is_established(token)) => {
            // Its connection brings the queue pair here, and lets the requests go.
            if from != QpState::Rtr && from != QpState::Rts {
                return Err(Error::NotConnected);
            }
            qp.sq.lock().mode = SqMode::Waiting;
            qp.set_state(QpState::Rts);
        }
        QpState::Rts => {
            let token = token.ok_or(Error::NotConnected)?;
            if core.with_conn(token, Conn::resume) != Some(true) {
                return Err(Error::NotConnected);
            }
        }
        QpState::Sqd => {
            let token = token.ok_or(Error::NotConnected)?;
            qp.set_state(QpState::Sqd);
            core.with_conn(token, Conn::pause);
        }
        QpState::Sqe => return Err(Error::Transition { from, to }),
    }
    Ok(())
}

fn reset_queues(qp: &QpInner) {
    qp.sq.lock().reset();
    if let RecvSource::Own(rq) = &qp.rq {
        let mut rq = rq.lock();
        rq.reset();
        rq.closed = true;
    }
}

/// The application gives up the peer.
pub(super) fn fail(qp: &Arc<QpInner>, status: WcStatus) {
    let mut busy = qp.driver.lock();
    let core = busy.core();
    {
        let mut sq = qp.sq.lock();
        if let Some(id) = sq.oldest_open() {
            sq.done(id, status);
        }
    }
    let ended = qp.conn().and_then(|token| core.with_conn(token, Conn::give_up));
    if ended.is_none() {
        qp.flush_unconnected(&mut core.services.wakes);
    }
}

/// `rdma_disconnect`.
pub(super) fn disconnect(qp: &Arc<QpInner>) -> Result<()> {
    let mut busy = qp.driver.lock();
    let token = qp.conn().ok_or(Error::NotConnected)?;
    busy.core().with_conn(token, Conn::close).ok_or(Error::NotConnected)
}

/// The application destroys the queue pair: its connection closes, and nothing completes any more.
pub(super) fn destroy(qp: &Arc<QpInner>) {
    let mut busy = qp.driver.lock();
    let driver = &qp.driver;
    if let Some(token) = qp.conn() {
        busy.core().with_conn(token, Conn::detach);
    }
    qp.sq.lock().mode = SqMode::Flushing;
    driver.qps.lock().remove(&qp.num);
    driver.table.unbind_stream(qp.stream());
    qp.send_cq.forget_qp(qp.num);
    qp.recv_cq.forget_qp(qp.num);
}
