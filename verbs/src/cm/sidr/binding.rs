//! Sockets and event channel of a SIDR responder or requester, changed by commands on its shard.

use crate::cm::{CmChannel, CmEvent};
use crate::driver::{Core, Driver};
use crate::error::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_llp::{DatagramConfig, DatagramSocket, Interest, Token};

pub(super) fn bind(
    core: &mut Core,
    local: SocketAddr,
    token: Token,
) -> Result<Box<dyn DatagramSocket>> {
    let bound = core.stack.bind_datagrams(local, &DatagramConfig::default(), token);
    let mut socket = bound.map_err(Error::io("binding a UDP port"))?;
    socket.set_interest(Interest::READ).map_err(Error::io("waiting for datagrams"))?;
    Ok(socket)
}

/// Sends events of the slot `token` to another channel: pending ones for which `moved` returns
/// true, in order, and all later ones.
pub(super) fn migrate(
    driver: &Driver,
    token: Token,
    channel: &Arc<CmChannel>,
    moved: impl FnMut(&CmEvent) -> bool + Send + 'static,
) {
    let channel = Arc::clone(channel);
    let before = driver.shard(token).call(move |core| {
        let (slot, services) = core.sidr(token)?;
        let before = std::mem::replace(&mut slot.channel, Arc::clone(&channel));
        if !Arc::ptr_eq(&before, &channel) {
            before.move_to(&channel, moved, &mut services.wakes);
        }
        Some(before)
    });
    // Dropped without a lock, because its wakers are code of the application.
    drop(before);
}
