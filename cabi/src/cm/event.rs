//! Events as C sees them: what the engine says, in the order and with the status codes of librdmacm on iWARP.

use crate::abi::cm::*;
use crate::abi::{self, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_param};
use crate::boundary::{self, Result};
use crate::cm::channel::Channel;
use crate::cm::id::{Id, Phase};
use crate::cm::{address, connect};
use crate::errno::Errno;
use crate::persona::Persona;
use crate::process;
use crate::settings::Settings;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::Arc;
use verbs::cm::{CmEvent, CmEventKind, ConnInfo, ConnRequest};
use verbs::{Error, QpState};

/// Octets of private data that C can be told of.
const MAX_PRIVATE_DATA: usize = 255;

/// An event that C has not acknowledged.
#[repr(C)]
struct Event {
    abi: rdma_cm_event,
    private_data: [u8; MAX_PRIVATE_DATA + 1],
    /// Whose acknowledgements are counted.
    owner: Arc<Id>,
}

/// What an id's channel is told by ourselves: the engine has no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// `RDMA_CM_EVENT_*`
    pub(crate) event: c_int,
    /// 0 or a negative errno.
    pub(crate) status: c_int,
    /// Of `RDMA_CM_EVENT_USER`.
    pub(crate) arg: u64,
}

/// An event of the engine as C's; nothing when the id it is about is being destroyed.
pub(crate) fn deliver(raw: CmEvent) -> Option<*mut rdma_cm_event> {
    match raw.kind {
        CmEventKind::Posted(tag) => {
            let id = process::with(|process| process.cm.id_at(tag as usize))?;
            let note = id.lock_alive()?.notes.pop_front()?;
            let param = rdma_event_param { arg: note.arg };
            give(&id, draft(&id, note.event, note.status, param), &[])
        }
        CmEventKind::ConnectRequest(request) => {
            let listener = request.listener()?;
            let id = process::with(|process| process.cm.listeners.get(&listener).map(Arc::clone))?;
            deliver_request(&id, request)
        }
        CmEventKind::Established(info) => {
            let id = process::with(|process| process.cm.conns.get(&raw.id).map(Arc::clone))?;
            deliver_established(&id, &info)
        }
        CmEventKind::Failed(error) => {
            let id = process::with(|process| process.cm.conns.get(&raw.id).map(Arc::clone))?;
            deliver_failed(&id, &error)
        }
        // The interface is gone, and the program may look for another one; while it is only down there is nothing to do.
        CmEventKind::Deaf { listener, for_good, .. } => {
            let id = process::with(|process| process.cm.listeners.get(&listener).map(Arc::clone))?;
            for_good.then_some(())?;
            give(&id, draft(&id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, conn_param(&[], 0, 0)), &[])
        }
        CmEventKind::Disconnected(_) => {
            let id = process::with(|process| process.cm.conns.get(&raw.id).map(Arc::clone))?;
            id.lock_alive()?.phase = Phase::Over;
            give(&id, draft(&id, RDMA_CM_EVENT_DISCONNECTED, 0, conn_param(&[], 0, 0)), &[])
        }
    }
}

/// A request becomes an id of its own, with the listener's context and, if that is synchronous, a channel of its own.
fn deliver_request(listener: &Arc<Id>, request: ConnRequest) -> Option<*mut rdma_cm_event> {
    let private_data = shorten(request.private_data()).to_vec();
    let (peer_ird, peer_ord) = request.peer_ird_ord().unwrap_or((u16::MAX, u16::MAX));
    let (resources, depth) = (connect::in_one_octet(peer_ord), connect::in_one_octet(peer_ird));
    let id = match request_id(listener, request, resources, depth) {
        Ok(id) => id,
        Err(error) => {
            tracing::warn!(%error, "a connection request is rejected: no id can be made for it");
            return None;
        }
    };
    let param = conn_param(&private_data, resources, depth);
    let mut event = draft(&id, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param);
    event.listen_id = listener.abi();
    let given = give(listener, event, &private_data);
    if given.is_none() {
        id.discard();
    }
    given
}

fn request_id(listener: &Arc<Id>, request: ConnRequest, resources: u8, depth: u8) -> Result<Arc<Id>> {
    let (local, peer) = (address::plain(request.local_addr()), address::plain(request.peer_addr()));
    let (channel, sync, options) = {
        let state = listener.lock();
        (Arc::clone(&state.channel), state.sync, state.options)
    };
    let channel = if sync { Channel::create()? } else { channel };
    let id = Id::create(&channel, sync, listener.context());
    let bound = address::bind_device(&id, local.ip());
    let mut state = id.lock();
    state.options = options;
    state.responder_resources = resources;
    state.initiator_depth = depth;
    let followed = bound.and_then(|()| request.migrate(channel.queue()).map_err(Errno::from));
    if let Err(error) = followed {
        drop(state);
        id.discard();
        return Err(error);
    }
    process::with(|process| process.cm.conns.insert(request.id(), Arc::clone(&id)));
    state.conn = Some(request.id());
    state.phase = Phase::Requested(request);
    drop(state);
    id.set_addresses(Some(local), Some(peer));
    Ok(id)
}

fn deliver_established(id: &Arc<Id>, info: &ConnInfo) -> Option<*mut rdma_cm_event> {
    let (active, event) = {
        let mut state = id.lock_alive()?;
        if !matches!(state.phase, Phase::Disconnecting) {
            state.phase = Phase::Connected;
        }
        let responds = state.active && state.foreign_qp && Settings::get().is_ok_and(answers_first);
        (state.active, if responds { RDMA_CM_EVENT_CONNECT_RESPONSE } else { RDMA_CM_EVENT_ESTABLISHED })
    };
    id.set_addresses(Some(address::plain(info.local)), Some(address::plain(info.peer)));
    // The passive side has had the peer's private data with the request.
    let private_data = if active { shorten(&info.private_data) } else { &[] };
    let (ird, ord) = (info.negotiated.ird, info.negotiated.ord);
    let param = conn_param(private_data, connect::in_one_octet(ird), connect::in_one_octet(ord));
    give(id, draft(id, event, 0, param), private_data)
}

/// On other transports than iWARP whoever moves its queue pair itself is told when the peer has answered, and calls
/// `rdma_establish` after that.
fn answers_first(settings: &Settings) -> bool {
    settings.persona != Persona::Iwarp
}

fn deliver_failed(id: &Arc<Id>, error: &Error) -> Option<*mut rdma_cm_event> {
    tracing::info!(%error, "a connection came to nothing");
    id.lock_alive()?.phase = Phase::Over;
    let (event, status) = failure(error);
    flush_if_rejected(id, event);
    let private_data = match error {
        Error::Rejected { private_data, .. } => shorten(private_data),
        _ => &[],
    };
    give(id, draft(id, event, status, conn_param(private_data, 0, 0)), private_data)
}

/// What was posted is flushed, as librdmacm does when it hands out this event.
fn flush_if_rejected(id: &Id, event: c_int) {
    if event == RDMA_CM_EVENT_REJECTED
        && let Some(qp) = id.own_qp()
    {
        // ERR can be reached from every state.
        let _ = qp.engine().modify(QpState::Err);
    }
}

/// The event of a connection that could not even be begun.
pub(crate) fn failed_at_once(id: &Id, error: &Error) -> Note {
    let (event, status) = failure(error);
    flush_if_rejected(id, event);
    Note { event, status, arg: 0 }
}

/// Event and status of a connection that could not be set up. The kernel's iWARP connection manager says REJECTED for a peer that
/// refused or reset, UNREACHABLE for one that did not answer, CONNECT_ERROR for the rest.
fn failure(error: &Error) -> (c_int, c_int) {
    match error {
        Error::Rejected { .. } | Error::Refused { .. } => (RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED),
        Error::ClosedInStartup { .. } => (RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET),
        Error::TimedOut { .. } => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        Error::Lost { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionReset => (RDMA_CM_EVENT_REJECTED, -libc::ECONNRESET),
            io::ErrorKind::TimedOut => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            io::ErrorKind::HostUnreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::EHOSTUNREACH),
            io::ErrorKind::NetworkUnreachable => (RDMA_CM_EVENT_UNREACHABLE, -libc::ENETUNREACH),
            _ => (RDMA_CM_EVENT_CONNECT_ERROR, -source.raw_os_error().unwrap_or(libc::EIO)),
        },
        Error::PeerStartup { .. } | Error::PeerRefusal { .. } => (RDMA_CM_EVENT_CONNECT_ERROR, -libc::EPROTO),
        _ => (RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNABORTED),
    }
}

/// MPA carries up to 512 octets; C's length is one octet.
fn shorten(private_data: &[u8]) -> &[u8] {
    if private_data.len() > MAX_PRIVATE_DATA {
        tracing::warn!(
            octets = private_data.len(),
            "the peer's private data is cut to 255 octets: C cannot have more"
        );
    }
    &private_data[..private_data.len().min(MAX_PRIVATE_DATA)]
}

fn conn_param(private_data: &[u8], resources: u8, depth: u8) -> rdma_event_param {
    // SAFETY: integers and a pointer.
    let mut conn: rdma_conn_param = unsafe { abi::zeroed() };
    conn.private_data_len = private_data.len() as u8;
    conn.responder_resources = resources;
    conn.initiator_depth = depth;
    rdma_event_param { conn }
}

fn draft(id: &Id, event: c_int, status: c_int, param: rdma_event_param) -> rdma_cm_event {
    rdma_cm_event { id: id.abi(), listen_id: std::ptr::null_mut(), event, status, param }
}

/// Hands an event to C; `owner` waits for its acknowledgement before it goes. Nothing when the owner is being destroyed.
fn give(owner: &Arc<Id>, abi: rdma_cm_event, private_data: &[u8]) -> Option<*mut rdma_cm_event> {
    if !owner.delivers() {
        return None;
    }
    let mut event =
        Box::new(Event { abi, private_data: [0; MAX_PRIVATE_DATA + 1], owner: Arc::clone(owner) });
    event.private_data[..private_data.len()].copy_from_slice(private_data);
    let event = Box::into_raw(event);
    if !private_data.is_empty() {
        // SAFETY: the box just made; the octets stay where they are until the event is acknowledged.
        unsafe { (*event).abi.param.conn.private_data = (&raw const (*event).private_data).cast::<c_void>() };
    }
    let event = event.cast();
    process::with(|process| process.cm.add_event(event));
    Some(event)
}

/// Takes back an event that C is done with.
///
/// # Errors
/// EINVAL for what is no event, or was acknowledged before.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<()> {
    let (known, inherited) =
        process::with(|process| (process.cm.remove_event(event), process.cm.forget_inherited(event)));
    if !known {
        return if inherited { Ok(()) } else { Err(Errno::INVAL) };
    }
    // SAFETY: `give` made it, and it was in the registry until just now: nobody else takes it back.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    event.owner.acknowledged();
    Ok(())
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// None: what is no event of ours is refused.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    boundary::minus_one(|| acknowledge(event))
}

/// `rdma_write_cm_event`: an event of the program's own.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: c_int,
    status: c_int,
    arg: u64,
) -> c_int {
    boundary::minus_one(|| {
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno::INVAL);
        }
        crate::cm::registry::id(id)?.post(Note { event, status, arg })
    })
}

/// `rdma_event_str`.
pub extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    let text = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        RDMA_CM_EVENT_INTERNAL => c"RDMA_CM_EVENT_INTERNAL",
        _ => c"UNKNOWN EVENT",
    };
    text.as_ptr()
}
