//! The id that is created for a request to a listener, and the event that passes it to the program.

use crate::event::{DeliveredEvent, EventDraft, create_event};
use crate::id::Id;
use crate::{devices, lifecycle};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;

/// Creates an id with the addresses of a request and the listener's context and options. If the
/// listener is synchronous, the id gets its own channel.
pub(super) fn create(listener: &Arc<Id>, local: SocketAddr, peer: SocketAddr) -> Result<Arc<Id>> {
    let (local, peer) = (address::to_canonical(local), address::to_canonical(peer));
    let (channel, sync, options) = {
        let state = listener.lock();
        (Arc::clone(&state.channel), state.sync, state.options)
    };
    let channel = if sync { lifecycle::own_channel()? } else { channel };
    let id = lifecycle::create(&channel, sync, listener.context());
    id.set_port_space(listener.port_space());
    if let Err(error) = devices::bind(&id, local.ip()) {
        lifecycle::discard(&id);
        return Err(error);
    }
    id.lock().options = options;
    id.set_addresses(Some(local), Some(peer));
    Ok(id)
}

/// Creates an id with `create`, and its event. Returns `None` if the id cannot be created or the
/// listener is being destroyed; the request is then rejected.
pub(super) fn deliver(
    listener: &Arc<Id>,
    peer: SocketAddr,
    draft: &EventDraft<'_>,
    create: impl FnOnce() -> Result<Arc<Id>>,
) -> Option<DeliveredEvent> {
    let id = create().inspect_err(|error| {
        tracing::warn!(%peer, %error, "a request is rejected: no id can be created for it");
    });
    let id = id.ok()?;
    let given = create_event(listener, &id, draft);
    if given.is_none() {
        lifecycle::discard(&id);
    }
    given
}
