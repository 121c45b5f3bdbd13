//! Changes of a queue pair's state that the application asks for.
//!
//! A queue pair without a connection changes under its own lock. The connection of one that has one
//! is changed by a command to its shard, in which the state is asked again.

use crate::conn::Conn;
use crate::driver::Core;
use crate::error::{Error, Result};
use crate::notify::Wakes;
use crate::qp::{QpInner, QpState, RecvSource, SqMode};
use crate::wc::WcStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uiw_mem::Access;

/// Runs `command` on the shard of the queue pair's connection, with the connection's token;
/// `without` where there is no connection.
fn on_shard<R: Send + 'static>(
    qp: &Arc<QpInner>,
    without: impl FnOnce(&mut Wakes) -> R,
    command: impl FnOnce(&mut Core, &Arc<QpInner>, uiw_llp::Token) -> R + Send + 'static,
) -> R {
    let inner = Arc::clone(qp);
    let mut command = move |core: &mut Core, token| command(core, &inner, token);
    loop {
        match qp.driver.call_at(&qp.conn, command) {
            Ok(result) => return result,
            Err(unused) => command = unused,
        }
        let control = qp.control();
        if qp.conn.get().is_none() {
            let mut wakes = Wakes::default();
            let result = without(&mut wakes);
            drop(control);
            wakes.give();
            return result;
        }
    }
}

/// `ibv_modify_qp` of the state.
pub(super) fn modify(qp: &Arc<QpInner>, to: QpState) -> Result<()> {
    let from = qp.state();
    if !from.may_become(to) || to == QpState::Sqe {
        return Err(Error::Transition { from, to });
    }
    if qp.ud.is_some() {
        return crate::ud::modify(qp, to);
    }
    on_shard(
        qp,
        |wakes| modify_unconnected(qp, from, to, wakes),
        move |core, qp, token| modify_connected(core, qp, token, to),
    )
}

fn modify_unconnected(qp: &QpInner, from: QpState, to: QpState, wakes: &mut Wakes) -> Result<()> {
    match to {
        QpState::Err => qp.flush_unconnected(wakes),
        QpState::Reset => reset(qp),
        QpState::Init => {
            if let RecvSource::Own(rq) = &qp.rq {
                rq.lock().closed = false;
            }
            qp.set_state(QpState::Init);
        }
        QpState::Rtr => qp.set_state(QpState::Rtr),
        QpState::Rts => return wait_for_connection(qp, from),
        QpState::Sqd | QpState::Sqe => return Err(Error::NotConnected),
    }
    Ok(())
}

/// RTS before the connection stands: the connection brings the queue pair here, and lets the
/// requests go.
fn wait_for_connection(qp: &QpInner, from: QpState) -> Result<()> {
    if from != QpState::Rtr && from != QpState::Rts {
        return Err(Error::NotConnected);
    }
    qp.sq.lock().mode = SqMode::Waiting;
    qp.set_state(QpState::Rts);
    Ok(())
}

fn modify_connected(core: &mut Core, qp: &Arc<QpInner>, token: uiw_llp::Token, to: QpState) -> Result<()> {
    let from = qp.state();
    if !from.may_become(to) {
        return Err(Error::Transition { from, to });
    }
    match to {
        QpState::Err => {
            let ended = core.with_conn(token, Conn::abort);
            if ended.is_none() || qp.state() != QpState::Err {
                qp.flush_unconnected(&mut core.services.wakes);
            }
        }
        QpState::Reset => {
            core.with_conn(token, Conn::forget_qp);
            reset(qp);
        }
        QpState::Rts if core.is_established(token) => {
            if core.with_conn(token, Conn::resume) != Some(true) {
                return Err(Error::NotConnected);
            }
        }
        QpState::Rts => return wait_for_connection(qp, from),
        QpState::Sqd => {
            qp.set_state(QpState::Sqd);
            core.with_conn(token, Conn::pause);
        }
        QpState::Init | QpState::Rtr | QpState::Sqe => {
            return modify_unconnected(qp, from, to, &mut core.services.wakes);
        }
    }
    Ok(())
}

/// RESET: everything is forgotten, and the queue pair is new.
fn reset(qp: &QpInner) {
    qp.forget_requests();
    qp.set_conn(None);
    qp.attrs.lock().stream = qp.driver.shared.next_stream();
    qp.set_state(QpState::Reset);
}

/// Replaces the rights of peers.
pub(super) fn set_access(qp: &Arc<QpInner>, access: Access) {
    qp.access.store(access.bits(), Ordering::Release);
    // A shard checks the rights of every segment and uses the memory with its core held. A command
    // runs while no other thread has the core, so every segment that was checked against the rights
    // before is done with when the command has run.
    on_shard(qp, |_| (), |_, _, _| ());
}

/// The application gives up the peer: the oldest open request ends with `status`.
pub(super) fn fail(qp: &Arc<QpInner>, status: WcStatus) {
    {
        let mut sq = qp.sq.lock();
        if let Some(id) = sq.oldest_open() {
            sq.done(id, status);
        }
    }
    on_shard(
        qp,
        |wakes| qp.flush_unconnected(wakes),
        |core, qp, token| {
            if core.with_conn(token, Conn::give_up).is_none() {
                qp.flush_unconnected(&mut core.services.wakes);
            }
        },
    );
}

/// Completes what waits for the connection of an unreliable queue pair. False: it does not wait.
pub(super) fn discard_requests(qp: &Arc<QpInner>) -> bool {
    let mut wakes = Wakes::default();
    let control = qp.control();
    let waits = qp.unreliable && qp.sq.lock().mode == SqMode::Waiting;
    if waits {
        qp.complete_unreliable(true, &mut wakes);
    }
    drop(control);
    wakes.give();
    waits
}

/// `rdma_disconnect`.
pub(super) fn disconnect(qp: &Arc<QpInner>) -> Result<()> {
    on_shard(
        qp,
        |_| Err(Error::NotConnected),
        |core, _, token| core.with_conn(token, Conn::close).ok_or(Error::NotConnected),
    )
}

/// The application has no handle of the connection left. False: there is no connection.
pub(crate) fn limit_lifetime(qp: &Arc<QpInner>, timeout: Duration) -> bool {
    on_shard(
        qp,
        |_| false,
        move |core, _, token| {
            core.with_conn(token, |conn, services| conn.limit_lifetime(timeout, services)).is_some()
        },
    )
}

/// The application destroys the queue pair: its connection closes, and nothing completes any more.
pub(super) fn destroy(qp: &Arc<QpInner>) {
    if qp.ud.is_some() {
        crate::ud::destroy(qp);
    } else {
        on_shard(
            qp,
            |_| (),
            |core, _, token| {
                core.with_conn(token, Conn::detach);
            },
        );
    }
    qp.sq.lock().mode = SqMode::Flushing;
    let shared = &qp.driver.shared;
    shared.qps.lock().remove(&qp.num);
    shared.table.unbind_stream(qp.stream());
    qp.send_cq.forget_qp(qp.num);
    qp.recv_cq.forget_qp(qp.num);
}
