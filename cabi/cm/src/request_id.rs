//! The id that is created for a request to a listener.

use crate::id::Id;
use crate::{devices, lifecycle};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_cabi_core::boundary::Result;

/// Creates an id with the addresses of a request and the listener's context and options. If the
/// listener is synchronous, the id gets its own channel.
pub(super) fn create(listener: &Arc<Id>, local: SocketAddr, peer: SocketAddr) -> Result<Arc<Id>> {
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
