//! Listening, on one address or on all.

use crate::abi::rdma_cm_id;
use crate::boundary::{self, Result};
use crate::cm::id::{Id, Phase};
use crate::cm::{connect, registry, resolve};
use crate::errno::Errno;
use crate::process::{self, MAX_RD_ATOMIC, Process};
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use verbs::cm::Listener;

/// What a backlog of nothing means, and the most there is: `net.core.somaxconn` bounds it further.
const MAX_BACKLOG: u32 = 1024;

/// `rdma_listen`. An id without an address listens on a free port of every device.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if matches!(id.lock_alive().ok_or(Errno::INVAL)?.phase, Phase::Idle) {
            resolve::bind(&id, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        listen(&id, backlog)
    })
}

fn listen(id: &Arc<Id>, backlog: c_int) -> Result<()> {
    let engine = process::with(Process::engine)?;
    let mut state = id.lock_alive().ok_or(Errno::INVAL)?;
    let (Phase::Bound, Some(local)) = (&state.phase, state.local) else { return Err(Errno::INVAL) };
    let backlog = match u32::try_from(backlog) {
        Ok(backlog @ 1..MAX_BACKLOG) => backlog,
        _ => MAX_BACKLOG,
    };
    let most = MAX_RD_ATOMIC as u8;
    let options = connect::options(state.options, most, most)?;
    let queue = Arc::clone(state.channel.queue());
    // The first request may come before this call ends: nobody looks up the listener until it is known.
    let listener = process::with(|process| -> Result<_> {
        let listener = Listener::bind(&engine, local, backlog, &options, &queue)?;
        process.cm.listeners.insert(listener.id(), Arc::clone(id));
        Ok(listener)
    })?;
    state.phase = Phase::Listening(listener);
    // The listener has the port now; the id goes on having it among ours.
    state.port = None;
    Ok(())
}
