//! Ids of the port spaces UDP and IPOIB: `rdma_connect` requests the UD queue pair of the listener,
//! and `rdma_accept` provides one.

use crate::address_vector::address_vector;
use crate::event::{DeliveredEvent, EventDraft, UdDestination, create_event};
use crate::id::{Id, Phase};
use crate::private_data::{CmMessage, PrivateData};
use crate::routes::{self, EventSource};
use crate::{failure, params, request_id};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use uiw_cabi_core::abi::cm::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED, RDMA_UDP_QKEY,
};
use uiw_cabi_core::abi::rdma_conn_param;
use uiw_cabi_core::address;
use uiw_cabi_core::arguments::InPtr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_cabi_core::ports::PortReservation;
use uiw_cabi_verbs::device::gid;
use uiw_cabi_verbs::device::netdev::{self, NetDev};
use uiw_cabi_verbs::qp::Qp;
use uiw_verbs::cm::{SidrHandle, SidrInfo, SidrListener, SidrRequest};

/// Starts to listen (`rdma_listen`).
pub(crate) fn listen(id: &Arc<Id>) -> Result<()> {
    let engine = engine::get()?;
    let _control = id.control();
    let (local, channel, v6_only, bound) = {
        let mut state = id.lock_checked()?;
        let (Phase::Bound, Some(local)) = (&state.phase, state.local) else {
            return Err(Errno::INVAL.because("the id is in another state"));
        };
        // The sockets of the listener need the port.
        let bound = state.port.as_mut().and_then(PortReservation::unbind);
        (local, Arc::clone(&state.channel), state.options.v6_only, bound)
    };
    drop(bound);
    let addresses = match local.ip().is_unspecified() {
        true => all_addresses(local, v6_only)?,
        false => vec![local],
    };
    let call = channel.begin_unrouted_call();
    let listener = SidrListener::bind(&engine, &addresses, channel.queue())?;
    let source = EventSource::Listener(listener.id());
    id.lock().phase = Phase::SidrListening(listener);
    routes::add(source, id, Some(call));
    Ok(())
}

/// Returns the addresses of all devices on which a listener at the unspecified address `any`
/// listens.
fn all_addresses(any: SocketAddr, v6_only: bool) -> Result<Vec<SocketAddr>> {
    let stands_for = |ip: &IpAddr| ip.is_ipv4() == any.is_ipv4() || ip.is_ipv4() && !v6_only;
    let netdevs = netdev::all()?;
    let of = |netdev: &NetDev| {
        let ips = netdev.addresses.iter().map(|(ip, _)| *ip).filter(stands_for);
        ips.map(|ip| netdev.socket_address(ip, any.port())).collect::<Vec<_>>()
    };
    Ok(netdevs.iter().flat_map(of).collect())
}

/// Returns the queue pair of an id, or the one that the program names by number.
///
/// # Errors
/// EINVAL if there is no such queue pair, or it is not UD.
fn queue_pair(id: &Id, qp_num: u32) -> Result<&Object<Qp>> {
    let qp = id.queue_pair(qp_num)?;
    if qp.is_ud() { Ok(qp) } else { Err(Errno::INVAL) }
}

/// Requests the peer's queue pair (`rdma_connect`).
pub(crate) fn connect(id: &Arc<Id>, param: &InPtr<'_, rdma_conn_param>) -> Result<()> {
    let engine = engine::get()?;
    let _control = id.control();
    let (channel, local, peer, params, bound) = {
        let mut state = id.lock_checked()?;
        let (Phase::RouteResolved, Some(local), Some(peer)) =
            (&state.phase, state.local, state.peer)
        else {
            return Err(Errno::INVAL.because("the id is in another state"));
        };
        let params = params::read(param, &state);
        CmMessage::SidrRequest.check(&params.private_data)?;
        state.active = true;
        state.phase = Phase::Connecting;
        let bound = state.port.as_mut().and_then(PortReservation::unbind);
        (Arc::clone(&state.channel), local, peer, params, bound)
    };
    drop(bound);
    let call = channel.begin_unrouted_call();
    match SidrHandle::request(&engine, local, peer, &params.private_data, channel.queue()) {
        Ok(handle) => {
            let conn = handle.id();
            let mut state = id.lock();
            state.conn = Some(conn);
            state.sidr = Some(handle);
            drop(state);
            routes::add(EventSource::Conn(conn), id, Some(call));
            Ok(())
        }
        Err(error) => {
            id.lock().phase = Phase::RouteResolved;
            Err(error.into())
        }
    }
}

/// Answers a request with a queue pair (`rdma_accept`). No event follows.
pub(crate) fn accept(id: &Id, param: &InPtr<'_, rdma_conn_param>) -> Result<()> {
    let _control = id.control();
    let mut state = id.lock_checked()?;
    let params = params::read(param, &state);
    CmMessage::SidrReply.check(&params.private_data)?;
    if !matches!(state.phase, Phase::SidrRequested(_)) {
        return Err(Errno::INVAL.because("the id is in another state"));
    }
    let qp = queue_pair(id, params.qp_num)?;
    let Phase::SidrRequested(request) = std::mem::replace(&mut state.phase, Phase::Connected)
    else {
        return Err(Errno::INVAL.because("the id is in another state"));
    };
    drop(state);
    let qkey = qp.engine.qkey().unwrap_or(RDMA_UDP_QKEY);
    request.accept(qp.engine.num(), qkey, &params.private_data).map_err(Into::into)
}

/// Creates an id for a request, and the event that passes the id to the program. Returns `None` if
/// the id cannot be created or the listener is being destroyed; the request is then rejected.
pub(crate) fn deliver_request(listener: &Arc<Id>, request: SidrRequest) -> Option<DeliveredEvent> {
    let private_data = request.private_data().to_vec();
    let draft = EventDraft {
        private_data: Some(PrivateData::new(CmMessage::SidrRequest, &private_data)),
        ud: Some(UdDestination::default()),
        ..EventDraft::new(RDMA_CM_EVENT_CONNECT_REQUEST)
    };
    let (local, peer) = (request.local_addr(), request.peer_addr());
    request_id::deliver(listener, peer, &draft, || {
        let id = request_id::create(listener, local, peer)?;
        id.lock().phase = Phase::SidrRequested(request);
        Ok(id)
    })
}

/// Creates the event for the response of the peer, which contains its queue pair. If the device of
/// the local address is gone, the event reports that the peer cannot be reached.
pub(crate) fn deliver_resolved(id: &Arc<Id>, info: &SidrInfo) -> Option<DeliveredEvent> {
    let handle = {
        let mut state = id.lock_alive()?;
        state.phase = Phase::Connected;
        state.sidr.take()
    };
    drop(handle);
    let (local, peer) = (address::to_canonical(info.local), address::to_canonical(info.peer));
    id.set_addresses(Some(local), Some(peer));
    let ah = match address_vector(local.ip(), gid::from_address(peer.ip())) {
        Ok(ah) => ah,
        Err(error) => {
            tracing::warn!(%peer, %error, "the device of this address is gone");
            return create_event(id, id, &failure::draft_unreachable());
        }
    };
    let draft = EventDraft {
        private_data: Some(PrivateData::new(CmMessage::SidrReply, &info.private_data)),
        ud: Some(UdDestination {
            ah,
            qp_num: info.qpn,
            qkey: info.qkey,
            ..UdDestination::default()
        }),
        ..EventDraft::new(RDMA_CM_EVENT_ESTABLISHED)
    };
    create_event(id, id, &draft)
}
