//! Conversion of the engine's events to those of C, with the order and the status codes of
//! librdmacm on iWARP.

use crate::event::{
    DeliveredEvent, EventDraft, create_event, create_local_event, reads_in_one_byte,
};
use crate::failure::{event_and_status, flush_if_rejected};
use crate::id::{Id, Phase};
use crate::private_data::{CmMessage, PrivateData};
use crate::routes::{self, EventSource};
use crate::{lifecycle, request_id, sidr, timewait};
use std::sync::Arc;
use uiw_cabi_core::abi::cm::*;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_datagram::Qpn;
use uiw_verbs::Error;
use uiw_verbs::cm::{CmEvent, CmEventKind, ConnInfo, ConnRequest};

/// Converts an event about `id`. Returns `None` if the id is being destroyed.
pub(crate) fn deliver(id: &Arc<Id>, event: CmEvent) -> Option<DeliveredEvent> {
    match event.kind {
        CmEventKind::Posted(_) => {
            let note = id.lock_alive()?.local_events.pop_front()?;
            create_local_event(id, note)
        }
        CmEventKind::ConnectRequest(request) => deliver_request(id, request),
        CmEventKind::SidrRequest(request) => sidr::deliver_request(id, request),
        CmEventKind::SidrResolved(info) => sidr::deliver_resolved(id, &info),
        CmEventKind::Established(info) => established(id, &info),
        CmEventKind::Failed(error) => failed(id, &error),
        // The interface is gone, and the program may use another one. If it is only down, there is
        // nothing to do.
        CmEventKind::ListenerDown { for_good, .. } => {
            for_good.then_some(())?;
            let is_known = std::mem::replace(&mut id.lock_alive()?.device_removed, true);
            (!is_known).then_some(())?;
            create_event(id, id, &EventDraft::new(RDMA_CM_EVENT_DEVICE_REMOVAL))
        }
        CmEventKind::Disconnected(_) => {
            id.lock_alive()?.phase = Phase::Over;
            let event = create_event(id, id, &EventDraft::new(RDMA_CM_EVENT_DISCONNECTED))?;
            if Settings::get().is_ok_and(|settings| settings.persona != Persona::Iwarp) {
                timewait::begin(id);
            }
            Some(event)
        }
    }
}

/// Creates an id for a request, and the event that reports the request. The id has the listener's
/// context and, if the listener is synchronous, its own channel.
fn deliver_request(listener: &Arc<Id>, request: ConnRequest) -> Option<DeliveredEvent> {
    let private_data = request.private_data().to_vec();
    let (peer_ird, peer_ord) = request.peer_ird_ord().unwrap_or((u16::MAX, u16::MAX));
    let draft = EventDraft {
        private_data: Some(PrivateData::new(CmMessage::Request, &private_data)),
        responder_resources: reads_in_one_byte(peer_ord),
        initiator_depth: reads_in_one_byte(peer_ird),
        ..EventDraft::new(RDMA_CM_EVENT_CONNECT_REQUEST)
    };
    let peer = request.peer_addr();
    request_id::deliver(listener, peer, &draft, || create_request_id(listener, request, &draft))
}

fn create_request_id(
    listener: &Arc<Id>,
    request: ConnRequest,
    draft: &EventDraft<'_>,
) -> Result<Arc<Id>> {
    let conn = request.id();
    let id = request_id::create(listener, request.local_addr(), request.peer_addr())?;
    // A guard in the condition would be held in the block, and `discard` takes the lock.
    let migrated = request.migrate(id.lock().channel.queue());
    if let Err(error) = migrated {
        lifecycle::discard(&id);
        return Err(error.into());
    }
    let mut state = id.lock();
    state.responder_resources = draft.responder_resources;
    state.initiator_depth = draft.initiator_depth;
    state.conn = Some(conn);
    state.phase = Phase::Requested(request);
    drop(state);
    // A request causes no further events until it is answered, and only this thread knows the id,
    // so the call need not be counted.
    routes::add(EventSource::Conn(conn), &id, None);
    Ok(id)
}

fn established(id: &Arc<Id>, info: &ConnInfo) -> Option<DeliveredEvent> {
    let (active, event) = {
        let mut state = id.lock_alive()?;
        // Another thread may have delivered the end of the connection already.
        if matches!(state.phase, Phase::Connecting) {
            state.phase = Phase::Connected;
        }
        state.awaits_establish = state.two_steps;
        (
            state.active,
            if state.two_steps {
                RDMA_CM_EVENT_CONNECT_RESPONSE
            } else {
                RDMA_CM_EVENT_ESTABLISHED
            },
        )
    };
    id.set_addresses(
        Some(address::to_canonical(info.local)),
        Some(address::to_canonical(info.peer)),
    );
    let draft = EventDraft {
        // The passive side has already received the peer's private data with the request.
        private_data: active.then(|| PrivateData::new(CmMessage::Reply, &info.private_data)),
        responder_resources: reads_in_one_byte(info.negotiated.ird),
        initiator_depth: reads_in_one_byte(info.negotiated.ord),
        ..EventDraft::new(event)
    };
    create_event(id, id, &draft)
}

fn failed(id: &Arc<Id>, error: &Error) -> Option<DeliveredEvent> {
    let peer = {
        let mut state = id.lock_alive()?;
        state.phase = Phase::Over;
        state.peer.map(tracing::field::display)
    };
    let qp = id.with_own_qp(|qp| tracing::field::display(Qpn::from_raw(qp.engine.num())));
    tracing::info!(peer, qp, %error, "a connection could not be set up");
    let (event, status) = event_and_status(id, error);
    flush_if_rejected(id, event);
    let private_data = match error {
        Error::NoQueuePair { private_data, .. } => {
            Some(PrivateData::new(CmMessage::SidrReply, private_data))
        }
        Error::Rejected { private_data, .. } if id.is_ud() => {
            Some(PrivateData::new(CmMessage::SidrReply, private_data))
        }
        Error::Rejected { private_data, .. } => {
            Some(PrivateData::new(CmMessage::Reject, private_data))
        }
        _ => PrivateData::of_event(event),
    };
    create_event(id, id, &EventDraft { status, private_data, ..EventDraft::new(event) })
}
