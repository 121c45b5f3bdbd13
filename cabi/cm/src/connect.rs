//! Connecting, accepting, rejecting and disconnecting.
//!
//! These calls hold the id's `control` lock while the engine works, but neither its state nor any
//! lock that other ids use. Events of this and of all other ids are delivered meanwhile.

use crate::channel::Channel;
use crate::id::{Id, IdOptions, Phase};
use crate::params::{self, ConnParams};
use crate::private_data::CmMessage;
use crate::registry::RegisteredPtr as _;
use crate::routes::{self, EventSource};
use crate::{address_vector, failure, lifecycle, placeholder, sidr, sync};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use uiw_cabi_core::abi::{ibv_qp_attr, rdma_cm_id, rdma_conn_param, zeroed};
use uiw_cabi_core::arguments::{AnyPtr, ArrayPtr, Count, InOutPtr, InPtr, OutPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::ports::PortReservation;
use uiw_cabi_verbs::device::{gid, port};
use uiw_verbs::cm;
use uiw_verbs::{Error, QpState};

/// Returns the persona of the id's device.
fn persona(id: &Id) -> Result<Persona> {
    Ok(id.verbs()?.persona)
}

/// Returns the queue pair with which the id is connected: its own queue pair, or the queue pair of
/// its device with the number `qp_num`. Moves the queue pair to INIT if it is in RESET. If the
/// program has not given the id such a queue pair, and the transport is not iWARP, creates a
/// placeholder.
fn queue_pair(id: &Id, qp_num: u32, ack_timeout: Option<u8>) -> Result<Arc<uiw_verbs::Qp>> {
    let context = id.verbs()?;
    let qp = match id.queue_pair(qp_num) {
        Ok(qp) if !qp.is_ud() => qp,
        _ if id.has_foreign_qp() && context.persona != Persona::Iwarp => {
            let placeholder = Arc::new(placeholder::create(context)?);
            id.lock().placeholder = Some(Arc::clone(&placeholder));
            return Ok(placeholder);
        }
        Ok(_) => {
            return Err(
                Errno::INVAL.because("the queue pair is UD, and the port space has connections")
            );
        }
        Err(error) => return Err(error),
    };
    if qp.engine.state() == QpState::Reset {
        // With other transports, programs move the queue pair themselves after the peer has
        // answered. The engine connects it from INIT.
        qp.engine.modify(QpState::Init)?;
    }
    if let Some(timeout) = ack_timeout {
        qp.record_timeout(timeout);
    }
    Ok(Arc::clone(&qp.engine))
}

/// `rdma_connect`.
pub extern "C-unwind" fn rdma_connect(
    id: AnyPtr<rdma_cm_id>,
    param: InPtr<'_, rdma_conn_param>,
) -> c_int {
    let result = boundary::minus_one(|| {
        let id = id.get()?;
        if id.is_ud() { sidr::connect(&id, &param) } else { connect(&id, &param) }
    });
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

fn connect(id: &Arc<Id>, param: &InPtr<'_, rdma_conn_param>) -> Result<()> {
    let _control = id.control();
    let (channel, local, peer, params, set) = {
        let mut state = id.lock_checked()?;
        let (Phase::RouteResolved, Some(local), Some(peer)) =
            (&state.phase, state.local, state.peer)
        else {
            return Err(Errno::INVAL
                .because("rdma_connect before the route is resolved, or for the second time"));
        };
        if peer.port() == 0 {
            return Err(Errno::INVAL.because("rdma_connect to port 0"));
        }
        state.active = true;
        let params = params::read(param, &state);
        CmMessage::Request.check(&params.private_data)?;
        state.two_steps = id.has_foreign_qp() && persona(id)? != Persona::Iwarp;
        // The phase is set now, because events of the connection may be delivered before this call
        // returns.
        state.phase = Phase::Connecting;
        (Arc::clone(&state.channel), local, peer, params, state.options)
    };
    match begin(id, &channel, local, peer, &params, set) {
        Ok(()) => Ok(()),
        Err(ConnectFailure::Program(errno)) => {
            id.lock().phase = Phase::RouteResolved;
            Err(errno)
        }
        Err(ConnectFailure::Peer(error)) => {
            id.lock().phase = Phase::Over;
            id.post(failure::immediate(id, &error))
        }
    }
}

/// Reason why a connection could not be started.
enum ConnectFailure {
    /// The call returns an error.
    Program(Errno),
    /// The peer could not be reached. A peer on this host may refuse while TCP is still connecting.
    /// Programs expect an event in this case.
    Peer(Error),
}

impl<T: Into<Errno>> From<T> for ConnectFailure {
    fn from(error: T) -> Self {
        Self::Program(error.into())
    }
}

/// Starts the connection in the engine, without the lock of the id's state.
fn begin(
    id: &Arc<Id>,
    channel: &Arc<Channel>,
    local: SocketAddr,
    peer: SocketAddr,
    params: &ConnParams,
    set: IdOptions,
) -> std::result::Result<(), ConnectFailure> {
    let qp = queue_pair(id, params.qp_num, set.ack_timeout)?;
    let options = params::connection_config(set, params, persona(id)?)?;
    let call = channel.begin_unrouted_call();
    let connect = if id.lock().two_steps { cm::connect_in_two_steps } else { cm::connect };
    let begun = connect(&qp, Some(local), peer, &options, &params.private_data, channel.queue());
    // From here on, another thread may take the connection's events and destroy its queue pair.
    let handle = match begun {
        Ok(handle) => handle,
        Err(error @ (Error::Refused { .. } | Error::Lost { .. })) => {
            return Err(ConnectFailure::Peer(error));
        }
        Err(error) => return Err(error.into()),
    };
    let conn = handle.id();
    let bound = {
        let mut state = id.lock();
        state.conn = Some(conn);
        state.handle = Some(handle);
        // The connection uses the port now, but within this process it stays reserved for the id.
        state.port.as_mut().and_then(PortReservation::unbind)
    };
    drop(bound);
    routes::add(EventSource::Conn(conn), id, Some(call));
    Ok(())
}

/// `rdma_accept`.
pub extern "C-unwind" fn rdma_accept(
    id: AnyPtr<rdma_cm_id>,
    param: InPtr<'_, rdma_conn_param>,
) -> c_int {
    let mut event_follows = true;
    let result = boundary::minus_one(|| {
        let id = id.get()?;
        event_follows = !id.is_ud();
        if event_follows {
            return accept(&id, &param);
        }
        sidr::accept(&id, &param)?;
        // The listener cannot be destroyed before the event of the request is acknowledged.
        lifecycle::acknowledge_shown(&id);
        Ok(())
    });
    if !event_follows {
        return result;
    }
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

fn accept(id: &Arc<Id>, param: &InPtr<'_, rdma_conn_param>) -> Result<()> {
    let _control = id.control();
    let (channel, params, set) = {
        let state = id.lock_checked()?;
        if !matches!(state.phase, Phase::Requested(_)) {
            return Err(
                Errno::INVAL.because("rdma_accept for an id that is not a connection request")
            );
        }
        let params = params::read(param, &state);
        CmMessage::Reply.check(&params.private_data)?;
        (Arc::clone(&state.channel), params, state.options)
    };
    let qp = queue_pair(id, params.qp_num, set.ack_timeout)?;
    let options = params::connection_config(set, &params, persona(id)?)?;
    let request = {
        let mut state = id.lock();
        // The phase becomes Connecting now, because events of the connection may be delivered
        // before this call returns.
        match std::mem::replace(&mut state.phase, Phase::Connecting) {
            Phase::Requested(request) => request,
            // `rdma_reject` takes the request without locking `control`.
            phase => {
                state.phase = phase;
                return Err(Errno::INVAL.because("the connection request was rejected meanwhile"));
            }
        }
    };
    let accepted = request.accept(&qp, Some(&options), &params.private_data, Some(channel.queue()));
    match accepted {
        // From here on, another thread may take the connection's events and destroy its queue pair.
        Ok(handle) => {
            id.lock().handle = Some(handle);
            channel.note_accepted(id);
            Ok(())
        }
        Err(error) => {
            id.lock().phase = Phase::Over;
            failure::flush(id);
            Err(peer_is_gone(error))
        }
    }
}

fn peer_is_gone(error: Error) -> Errno {
    if matches!(error, Error::NotConnected) {
        Errno(libc::ECONNRESET).because("the peer is gone")
    } else {
        error.into()
    }
}

/// `rdma_reject` and `rdma_reject_ece`, which are the same because vendor options are not
/// negotiated. As in rdma-core, the length of private data without an address is ignored.
pub extern "C" fn rdma_reject<'a>(
    id: AnyPtr<rdma_cm_id>,
    data: ArrayPtr<'a, u8>,
    len: Count<'a, u8>,
) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        let data = data.get(len)?.unwrap_or_default();
        let message = if id.is_ud() { CmMessage::SidrReply } else { CmMessage::Reject };
        message.check(data)?;
        let request = {
            let mut state = id.lock_checked()?;
            match std::mem::replace(&mut state.phase, Phase::Over) {
                Phase::Requested(request) => request,
                Phase::SidrRequested(request) => {
                    drop(state);
                    return request.reject(data).map_err(Into::into);
                }
                phase => {
                    state.phase = phase;
                    return Err(Errno::INVAL
                        .because("rdma_reject for an id that is not a connection request"));
                }
            }
        };
        request.reject(data).map_err(peer_is_gone)
    })
}

/// `rdma_establish`: called after CONNECT_RESPONSE, it makes the connection established for the
/// peer. With other transports this needs no call.
pub extern "C" fn rdma_establish(id: AnyPtr<rdma_cm_id>) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        if id.own_qp().is_some() {
            return Err(Errno::INVAL.because("rdma_establish for an id that has a queue pair"));
        }
        // Waits until a concurrent `rdma_connect` of another thread has stored the connection.
        let _control = id.control();
        let handle = {
            let mut state = id.lock();
            match state.phase {
                Phase::Connecting if state.two_steps => {
                    return Err(Errno::INVAL
                        .because("rdma_establish before RDMA_CM_EVENT_CONNECT_RESPONSE"));
                }
                Phase::Connecting | Phase::Connected | Phase::Disconnecting => {}
                _ => {
                    return Err(
                        Errno::INVAL.because("rdma_establish for an id that is not connecting")
                    );
                }
            }
            let awaited = std::mem::take(&mut state.awaits_establish);
            state.handle.clone().filter(|_| awaited)
        };
        // If the connection has ended, its event is in the channel.
        let _ = handle.map(|handle| handle.establish());
        Ok(())
    })
}

/// `rdma_notify`: does nothing, because the engine establishes connections without help.
pub extern "C" fn rdma_notify(id: AnyPtr<rdma_cm_id>, _event: c_int) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        let known = id.lock().conn.is_some();
        if known {
            Ok(())
        } else {
            Err(Errno::INVAL.because("rdma_notify for an id without a connection"))
        }
    })
}

/// `rdma_disconnect`: all posted requests are sent, and then the connection closes from both sides.
pub extern "C-unwind" fn rdma_disconnect(id: AnyPtr<rdma_cm_id>) -> c_int {
    let mut event_follows = false;
    let result = boundary::minus_one(|| {
        event_follows = disconnect(&*id.get()?)?;
        Ok(())
    });
    if !event_follows {
        return result;
    }
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

/// Disconnects. Returns whether an event follows or was already delivered.
fn disconnect(id: &Id) -> Result<bool> {
    if id.is_ud() {
        return Err(Errno::INVAL.because("an id of RDMA_PS_UDP or RDMA_PS_IPOIB has no connection"));
    }
    // Waits until a concurrent `rdma_connect` or `rdma_accept` of another thread has stored the
    // connection.
    let _control = id.control();
    let (in_order, handle) = {
        let mut state = id.lock_checked()?;
        let established = match state.phase {
            Phase::Connected => true,
            Phase::Connecting => false,
            // The peer was faster, or the connection could not be set up. In the latter case
            // requests may be posted, which librdmacm flushes for all devices except iWARP.
            Phase::Over => {
                drop(state);
                if persona(id)? != Persona::Iwarp {
                    failure::flush(id);
                }
                return Ok(false);
            }
            // The program has already disconnected, or it disconnects instead of answering a
            // request.
            Phase::Disconnecting | Phase::Requested(_) => return Ok(false),
            _ => return Err(Errno::INVAL.because("rdma_disconnect for an id without a connection")),
        };
        if established {
            state.phase = Phase::Disconnecting;
        }
        // The event of an established connection may still be in the channel.
        let in_order = if established { !state.awaits_establish } else { !state.two_steps };
        (in_order, state.handle.clone())
    };
    // If the connection has ended, its event is already in the channel. A connection that one of
    // the two ends does not regard as established yet is aborted, with an event too.
    let _ = handle.map(|handle| if in_order { handle.close() } else { handle.abort() });
    Ok(true)
}

/// `rdma_init_qp_attr`, for programs that move their queue pair themselves. The answer is that of
/// the kernel for an iWARP device, because the engine moves the queue pair. With other transports
/// the structure also contains the path to the peer, which UCX reads without changing a queue pair.
pub extern "C" fn rdma_init_qp_attr(
    id: AnyPtr<rdma_cm_id>,
    attr: InOutPtr<'_, ibv_qp_attr>,
    mask: OutPtr<'_, c_int>,
) -> c_int {
    use uiw_cabi_core::abi::cm::RDMA_UDP_QKEY;
    use uiw_cabi_core::abi::qp::{
        IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_STATE,
    };
    const REMOTE_WRITE_AND_READ: u32 = 2 | 4;
    const INIT: c_int = 1;
    const RTR: c_int = 2;
    const RTS: c_int = 3;
    boundary::minus_one(|| {
        let id = id.get()?;
        let attr = attr.get()?;
        mask.check()?;
        let state = attr.qp_state;
        if id.verbs().is_err() {
            return Err(Errno::INVAL.because("the id has no device yet"));
        }
        let set = match state {
            INIT | RTR | RTS if id.is_ud() => {
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
            }
            INIT | RTR => IBV_QP_STATE | IBV_QP_ACCESS_FLAGS,
            RTS => 0,
            _ => return Err(Errno::INVAL.because("the state is not INIT, RTR or RTS")),
        };
        let mut new: ibv_qp_attr = zeroed();
        new.qp_state = state;
        new.port_num = 1;
        if id.is_ud() {
            new.qkey = RDMA_UDP_QKEY;
        } else if set != 0 {
            new.qp_access_flags = REMOTE_WRITE_AND_READ;
            if state == RTR {
                set_path(&id, &mut new)?;
            }
        }
        *attr = new;
        mask.write(set)
    })
}

/// Sets the path to the peer, if the peer is known and the transport is not iWARP.
fn set_path(id: &Id, attr: &mut ibv_qp_attr) -> Result<()> {
    let context = id.verbs()?;
    let (local, peer) = {
        let state = id.lock();
        (state.local, state.peer)
    };
    let (Some(local), Some(peer)) = (local, peer) else { return Ok(()) };
    if context.persona == Persona::Iwarp {
        return Ok(());
    }
    attr.path_mtu = port::port_attr(&context.device.netdev()?, context.persona).active_mtu;
    attr.ah_attr = address_vector::address_vector(local.ip(), gid::from_address(peer.ip()))?;
    if let (Persona::Ib, IpAddr::V4(peer)) = (context.persona, peer.ip()) {
        attr.ah_attr.dlid = (peer.to_bits() & 0xFFFF) as u16;
    }
    Ok(())
}
