//! Connecting, accepting, rejecting, disconnecting.

use crate::abi::cm::*;
use crate::abi::{self, ibv_qp, rdma_cm_id, rdma_conn_param};
use crate::boundary::{self, Result};
use crate::cm::event;
use crate::cm::id::{Id, Options, Phase, State};
use crate::cm::{registry, sync};
use crate::errno::Errno;
use crate::object::Object;
use crate::process::{self, MAX_RD_ATOMIC};
use crate::qp::Qp;
use crate::settings::Settings;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;
use verbs::cm::{self, ConnHandle};
use verbs::{ConnOptions, Error, QpState};

/// A number of Reads as C has it.
pub(crate) fn in_one_octet(reads: u16) -> u8 {
    reads.min(MAX_RD_ATOMIC) as u8
}

/// Programs announce a port when it is bound, and listen a moment later (qperf does). Elsewhere resolving addresses and routes takes
/// longer than that.
const REFUSED_PATIENCE: Duration = Duration::from_millis(200);

/// Options of a connection or listener of an id.
///
/// # Errors
/// EINVAL when an environment variable has a bad value.
pub(crate) fn options(set: Options, ird: u8, ord: u8) -> Result<Arc<ConnOptions>> {
    let settings = Settings::get()?;
    let mut options = settings.conn.clone();
    (options.ird, options.ord) = (ird.into(), ord.into());
    if settings.acknowledged() {
        // Behind every Write and Send goes a Read of nothing, which both sides must have room for.
        options.acknowledged = true;
        (options.ird, options.ord) = (options.ird.max(1), options.ord.max(1));
    }
    options.refused_patience = REFUSED_PATIENCE;
    options.stream.tos = set.tos;
    options.stream.v6_only = set.v6_only;
    Ok(Arc::new(options))
}

/// What a program says about a connection.
struct Params {
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    qp_num: u32,
}

/// # Safety
/// `param` is NULL or readable, and so is its private data.
unsafe fn params(param: *const rdma_conn_param, state: &State) -> Result<Params> {
    // SAFETY: the caller's promise.
    let given = unsafe { param.as_ref() };
    let of = |given: Option<u8>, offered: u8| match given {
        // As many as the device has; of a request, as many as the peer takes.
        None | Some(RDMA_MAX_RESOURCES) if state.active => MAX_RD_ATOMIC as u8,
        None | Some(RDMA_MAX_RESOURCES) => offered,
        Some(number) => number,
    };
    let mut private_data = state.connect_data.clone();
    if let Some(given) = given
        && given.private_data_len > 0
    {
        // SAFETY: the caller's promise.
        private_data.extend_from_slice(unsafe { octets(given.private_data, given.private_data_len) }?);
    }
    Ok(Params {
        private_data,
        responder_resources: of(given.map(|g| g.responder_resources), state.responder_resources),
        initiator_depth: of(given.map(|g| g.initiator_depth), state.initiator_depth),
        qp_num: given.map_or(0, |g| g.qp_num),
    })
}

/// # Safety
/// `data` is NULL or `len` readable octets.
unsafe fn octets<'a>(data: *const c_void, len: u8) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len.into()) })
}

/// The queue pair of an id, or the one of its device that the program names by number, ready to be connected.
fn queue_pair<'a>(id: &Id, state: &mut State, qp_num: u32) -> Result<&'a Object<Qp>> {
    // SAFETY: the structure is alive; a queue pair stays while a call of its id uses it, as C orders its own calls.
    let qp = unsafe {
        let own: *mut ibv_qp = (*id.abi()).qp;
        state.foreign_qp = own.is_null();
        if own.is_null() { Qp::numbered((*id.abi()).verbs, qp_num) } else { Qp::get(own) }
    }?;
    if qp.engine().state() == QpState::Reset {
        // On other transports programs move it when the peer has answered; ours needs it to ask.
        qp.engine().modify(QpState::Init)?;
    }
    if let Some(timeout) = state.options.ack_timeout {
        qp.set_timeout(timeout);
    }
    Ok(qp)
}

/// `rdma_connect`.
///
/// # Safety
/// `param` is NULL or readable, and so is its private data.
pub unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    let result = boundary::minus_one(|| unsafe { connect(&registry::id(id)?, param) });
    // SAFETY: nothing on this stack frame has a destructor.
    unsafe { sync::complete(id, result) }
}

/// # Safety
/// As for [`rdma_connect`].
unsafe fn connect(id: &Arc<Id>, param: *const rdma_conn_param) -> Result<()> {
    let mut state = id.lock_alive().ok_or(Errno::INVAL)?;
    let (Phase::RouteResolved, Some(local), Some(peer)) = (&state.phase, state.local, state.peer) else {
        return Err(Errno::INVAL);
    };
    state.active = true;
    // SAFETY: the caller's promise.
    let params = unsafe { params(param, &state) }?;
    let qp = queue_pair(id, &mut state, params.qp_num)?;
    let options = options(state.options, params.responder_resources, params.initiator_depth)?;
    let queue = Arc::clone(state.channel.queue());
    // The first event may come before this call ends: nobody looks up the connection until it is known.
    let begun = process::with(|process| {
        let conn = cm::connect(qp.engine(), Some(local), peer, &options, &params.private_data, &queue)?;
        process.cm.conns.insert(conn, Arc::clone(id));
        Ok(conn)
    });
    let conn = match begun {
        Ok(conn) => conn,
        // A peer of this host answers while TCP is asked to connect. Programs wait for the event.
        Err(error @ (Error::Refused { .. } | Error::Lost { .. })) => {
            state.phase = Phase::Over;
            drop(state);
            return id.post(event::failed_at_once(id, &error));
        }
        Err(error) => return Err(error.into()),
    };
    state.conn = Some(conn);
    // One that has failed already needs no handle; its event is there.
    state.handle = ConnHandle::of(qp.engine()).ok();
    state.phase = Phase::Connecting;
    // The connection has the port now.
    state.port = None;
    Ok(())
}

/// `rdma_accept`.
///
/// # Safety
/// As for [`rdma_connect`].
pub unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    let result = boundary::minus_one(|| unsafe { accept(&*registry::id(id)?, param) });
    // SAFETY: nothing on this stack frame has a destructor.
    unsafe { sync::complete(id, result) }
}

/// # Safety
/// As for [`rdma_connect`].
unsafe fn accept(id: &Id, param: *const rdma_conn_param) -> Result<()> {
    let mut state = id.lock_alive().ok_or(Errno::INVAL)?;
    if !matches!(state.phase, Phase::Requested(_)) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let params = unsafe { params(param, &state) }?;
    let qp = queue_pair(id, &mut state, params.qp_num)?;
    let options = options(state.options, params.responder_resources, params.initiator_depth)?;
    let Phase::Requested(request) = std::mem::replace(&mut state.phase, Phase::Over) else { unreachable!() };
    let queue = Arc::clone(state.channel.queue());
    request.accept(qp.engine(), Some(&options), &params.private_data, Some(&queue)).map_err(peer_is_gone)?;
    state.handle = ConnHandle::of(qp.engine()).ok();
    state.phase = Phase::Connecting;
    Ok(())
}

fn peer_is_gone(error: Error) -> Errno {
    if matches!(error, Error::NotConnected) { Errno(libc::ECONNRESET) } else { error.into() }
}

/// `rdma_reject`, and `rdma_reject_ece`: nothing of vendors is negotiated here.
///
/// # Safety
/// `data` is NULL or `len` readable octets.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        // SAFETY: the caller's promise.
        let data = unsafe { octets(data, len) }?;
        let request = {
            let mut state = id.lock_alive().ok_or(Errno::INVAL)?;
            match std::mem::replace(&mut state.phase, Phase::Over) {
                Phase::Requested(request) => request,
                phase => {
                    state.phase = phase;
                    return Err(Errno::INVAL);
                }
            }
        };
        request.reject(data).map_err(peer_is_gone)
    })
}

/// `rdma_establish`: the connection stands by itself as soon as both sides know.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if id.own_qp().is_some() {
            return Err(Errno::INVAL);
        }
        match id.lock().phase {
            Phase::Connecting | Phase::Connected | Phase::Disconnecting => Ok(()),
            _ => Err(Errno::INVAL),
        }
    })
}

/// `rdma_notify`: communication needs no help to be established.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: c_int) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        let known = id.lock().conn.is_some();
        if known { Ok(()) } else { Err(Errno::INVAL) }
    })
}

/// `rdma_disconnect`: what was posted is sent, then the connection closes from both sides.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let mut event_follows = false;
    let result = boundary::minus_one(|| {
        event_follows = disconnect(&*registry::id(id)?)?;
        Ok(())
    });
    if !event_follows {
        return result;
    }
    // SAFETY: nothing on this stack frame has a destructor.
    unsafe { sync::complete(id, result) }
}

/// Whether an event is there or will come.
fn disconnect(id: &Id) -> Result<bool> {
    let mut state = id.lock_alive().ok_or(Errno::INVAL)?;
    match state.phase {
        Phase::Connected => {
            state.phase = Phase::Disconnecting;
            // One that is over already has its event in the channel.
            let _ = state.handle.as_ref().map(ConnHandle::disconnect);
            Ok(true)
        }
        Phase::Connecting => {
            // Not established yet: given up, which is an event as well.
            let _ = state.handle.as_ref().map(ConnHandle::abort);
            Ok(true)
        }
        // The second time, after the peer's, or instead of an answer to its request.
        Phase::Disconnecting | Phase::Over | Phase::Requested(_) => Ok(false),
        _ => Err(Errno::INVAL),
    }
}

/// `rdma_init_qp_attr`, for programs that move a queue pair of their own: what the kernel says of an iWARP device.
///
/// # Safety
/// `attr` and `mask` are NULL or readable and writable.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut abi::ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    use crate::abi::qp::{IBV_QP_ACCESS_FLAGS, IBV_QP_STATE};
    const REMOTE_WRITE_AND_READ: u32 = 2 | 4;
    const INIT: c_int = 1;
    const RTR: c_int = 2;
    const RTS: c_int = 3;
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if attr.is_null() || mask.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise, here and below; the structure of the id is alive.
        let (state, bound) = unsafe { ((*attr).qp_state, !(*id.abi()).verbs.is_null()) };
        if !bound {
            return Err(Errno::INVAL);
        }
        let set = match state {
            INIT | RTR => IBV_QP_STATE | IBV_QP_ACCESS_FLAGS,
            RTS => 0,
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: as above.
        unsafe {
            let mut new: abi::ibv_qp_attr = abi::zeroed();
            new.qp_state = state;
            new.port_num = 1;
            if set != 0 {
                new.qp_access_flags = REMOTE_WRITE_AND_READ;
            }
            *attr = new;
            *mask = set;
        }
        Ok(())
    })
}
