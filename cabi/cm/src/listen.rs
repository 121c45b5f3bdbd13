//! Listening on one address or on all addresses.

use crate::id::{Id, Phase};
use crate::registry::RegisteredPtr as _;
use crate::routes::{self, EventSource};
use crate::{params, resolve, sidr};
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use uiw_cabi_core::abi::rdma_cm_id;
use uiw_cabi_core::arguments::AnyPtr;
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::engine::{self, MAX_RD_ATOMIC};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::ports::PortReservation;
use uiw_verbs::cm::Listener;

/// Default and maximum of the backlog, which `net.core.somaxconn` limits further.
const MAX_BACKLOG: u32 = 1024;

/// `rdma_listen`: an id without an address listens on a free port of every device.
pub extern "C" fn rdma_listen(id: AnyPtr<rdma_cm_id>, backlog: c_int) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        if matches!(id.lock_checked()?.phase, Phase::Idle) {
            resolve::bind(&id, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        if id.is_ud() { sidr::listen(&id) } else { listen(&id, backlog) }
    })
}

fn listen(id: &Arc<Id>, backlog: c_int) -> Result<()> {
    let engine = engine::get()?;
    let _control = id.control();
    let (local, channel, set) = {
        let state = id.lock_checked()?;
        let (Phase::Bound, Some(local)) = (&state.phase, state.local) else {
            return Err(Errno::INVAL
                .because("rdma_listen for an id that listens, is resolved or is connected"));
        };
        (local, Arc::clone(&state.channel), state.options)
    };
    let backlog = match u32::try_from(backlog) {
        Ok(backlog @ 1..MAX_BACKLOG) => backlog,
        _ => MAX_BACKLOG,
    };
    let reads = MAX_RD_ATOMIC as u8;
    let options = params::conn_config(set, reads, reads)?;
    let call = channel.begin_unrouted_call();
    let listener = Listener::bind(&engine, local, backlog, &options, channel.queue())?;
    let source = EventSource::Listener(listener.id());
    let bound = {
        let mut state = id.lock();
        state.phase = Phase::Listening(listener);
        // The listener uses the port now, but within this process it stays reserved for the id.
        state.port.as_mut().and_then(PortReservation::unbind)
    };
    drop(bound);
    routes::add(source, id, Some(call));
    Ok(())
}
