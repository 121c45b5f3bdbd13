//! State changes of a queue pair that the application requests.
//!
//! The state of a queue pair without a connection is changed under its own lock. Otherwise a
//! command on the shard of the connection changes it, after checking the state again.

use crate::conn::Conn;
use crate::driver::Core;
use crate::error::{Error, Result};
use crate::notify::Wakes;
use crate::qp::{Qp, QpInner, QpState, RecvSource, SqMode};
use crate::wc::WcStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uiw_mem::Access;
use uiw_stream::LocalError;

/// Runs `command` on the shard of the queue pair's connection, with the token of the connection.
/// Runs `without` if there is no connection.
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
        // Meanwhile it may have been connected, and the connection may be moving.
        if qp.conn.settled().is_none() {
            let mut wakes = Wakes::default();
            let result = without(&mut wakes);
            drop(control);
            wakes.give();
            return result;
        }
    }
}

impl Qp {
    /// Moves the queue pair to another state of the verbs state diagram.
    ///
    /// * RTS is entered automatically when a connection is established. If it is requested in RTR
    ///   before that, requests can be posted, and wait for the connection. In SQD it resumes the
    ///   send queue.
    /// * ERR ends the connection with a Terminate and flushes all requests.
    /// * RESET discards all requests, as if the queue pair were new.
    ///
    /// # Errors
    /// [`Error::Transition`] if the verbs state diagram has no such transition;
    /// [`Error::NotConnected`] for a state that requires a connection, such as SQD, if there is
    /// none, and for RTS while the connection is being closed.
    pub fn modify(&self, to: QpState) -> Result<()> {
        let qp = &self.0;
        let from = qp.state();
        if !from.may_become(to) {
            return Err(Error::Transition { from, to });
        }
        if qp.ud.is_some() {
            return crate::ud::modify(qp, to);
        }
        on_shard(
            qp,
            |wakes| qp.modify_unconnected(to, wakes),
            move |core, qp, token| modify_connected(core, qp, token, to),
        )
    }

    /// Sets whether [`crate::AsyncEvent::SqDrained`] is raised when the transition to SQD is
    /// complete. By default it is.
    pub fn set_reports_drained(&self, on: bool) {
        self.0.reports_drained.store(on, Ordering::Release);
    }

    /// Sets the access rights of the peer on this queue pair, in any state.
    ///
    /// After it has returned, no segment is placed, read or executed with a right that was removed,
    /// not even a segment of a message that has partly arrived or been answered. The next such
    /// segment ends the connection with a Terminate.
    pub fn set_access(&self, access: Access) {
        self.0.access.store(access.bits(), Ordering::Release);
        // A shard checks the rights of a segment and accesses the memory while its core is held.
        // The command runs while no other thread holds the core, so all segments that were checked
        // against the old rights have been handled when it has run.
        on_shard(&self.0, |_| (), |_, _, _| ());
    }

    /// Fails the queue pair as if its connection had failed, for callers that decide that the peer
    /// is unreachable. The oldest open request completes with `status`, all others are flushed, an
    /// established connection is terminated, and the state is ERR.
    pub fn fail(&self, status: WcStatus) {
        let qp = &self.0;
        // With the core held, so that no later request succeeds in between.
        let fail_oldest = move |qp: &QpInner| {
            let mut sq = qp.sq.lock();
            if let Some(id) = sq.oldest_open() {
                sq.done(id, status);
            }
        };
        on_shard(
            qp,
            |wakes| {
                fail_oldest(qp);
                qp.flush_unconnected(wakes);
            },
            move |core, qp, token| {
                fail_oldest(qp);
                let give_up =
                    |conn: &mut Conn, services: &mut _| conn.fail(LocalError::GivenUp, services);
                if core.with_conn(token, give_up).is_none() {
                    qp.flush_unconnected(&mut core.services.wakes);
                }
            },
        );
    }

    /// Completes all posted requests of an unreliable queue pair that is in RTS and not connected,
    /// as messages that are lost. For callers that decide that the peer is unreachable for now.
    ///
    /// Returns false if the queue pair is connected or not unreliable.
    pub fn discard_requests(&self) -> bool {
        let qp = &self.0;
        let mut wakes = Wakes::default();
        let control = qp.control();
        let waits = qp.unreliable && qp.complete_waiting(&mut wakes);
        drop(control);
        wakes.give();
        waits
    }

    /// Starts the orderly close (`rdma_disconnect`): posted requests are sent, both directions are
    /// closed with FIN, and the queue pair enters ERR and flushes.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is no connection.
    pub fn disconnect(&self) -> Result<()> {
        on_shard(
            &self.0,
            |_| Err(Error::NotConnected),
            |core, _, token| core.with_conn(token, Conn::close).ok_or(Error::NotConnected),
        )
    }
}

impl QpInner {
    /// Changes the state while there is no connection, or for a transition that does not affect it.
    pub(crate) fn modify_unconnected(&self, to: QpState, wakes: &mut Wakes) -> Result<()> {
        let from = self.state();
        if !from.may_become(to) {
            return Err(Error::Transition { from, to });
        }
        match to {
            QpState::Err => self.flush_unconnected(wakes),
            QpState::Reset => reset(self),
            QpState::Init => {
                if let RecvSource::Own(rq) = &self.rq {
                    rq.lock().closed = false;
                }
                self.set_state(QpState::Init);
            }
            QpState::Rtr => self.set_state(QpState::Rtr),
            QpState::Rts => return wait_for_connection(self, from),
            QpState::Sqd | QpState::Sqe => return Err(Error::NotConnected),
        }
        Ok(())
    }
}

/// Enters RTS before the connection is established. Requests can be posted, and are sent once it
/// is.
fn wait_for_connection(qp: &QpInner, from: QpState) -> Result<()> {
    if from != QpState::Rtr && from != QpState::Rts {
        return Err(Error::NotConnected);
    }
    qp.sq.lock().mode = SqMode::Waiting;
    qp.set_state(QpState::Rts);
    Ok(())
}

fn modify_connected(
    core: &mut Core,
    qp: &Arc<QpInner>,
    token: uiw_llp::Token,
    to: QpState,
) -> Result<()> {
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
        QpState::Sqd if core.is_established(token) => {
            qp.set_state(QpState::Sqd);
            core.with_conn(token, Conn::pause);
        }
        QpState::Init | QpState::Rtr | QpState::Sqd | QpState::Sqe => {
            return qp.modify_unconnected(to, &mut core.services.wakes);
        }
    }
    Ok(())
}

/// Enters RESET: discards everything, as if the queue pair were new.
fn reset(qp: &QpInner) {
    qp.forget_requests();
    qp.set_conn(None);
    qp.forget_connection();
    qp.set_state(QpState::Reset);
}

/// Resets the connection unless it ends within `timeout`, because the application has dropped its
/// last handle. Returns false if there is no connection.
pub(crate) fn limit_lifetime(qp: &Arc<QpInner>, timeout: Duration) -> bool {
    on_shard(
        qp,
        |_| false,
        move |core, _, token| {
            core.with_conn(token, |conn, services| conn.limit_lifetime(timeout, services)).is_some()
        },
    )
}

/// Restarts the time limit of a close that has begun.
pub(crate) fn renew_close_deadline(qp: &Arc<QpInner>) {
    on_shard(
        qp,
        |_| (),
        |core, _, token| {
            core.with_conn(token, Conn::renew_close_deadline);
        },
    );
}

/// Closes the connection because the application destroys the queue pair. No request completes any
/// more.
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
    shared.table.unbind_stream(qp.stream());
    qp.send_cq.forget_qp(qp.num);
    qp.recv_cq.forget_qp(qp.num);
    // Last, because another queue pair may get the number then.
    shared.qps.lock().remove(&qp.num);
}
