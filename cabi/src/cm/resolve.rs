//! Local addresses, and the way to a peer.

use crate::abi::cm::{RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED};
use crate::abi::rdma_cm_id;
use crate::boundary::{self, Result};
use crate::cm::event::Note;
use crate::cm::id::{Id, Phase};
use crate::cm::{address, registry, sync};
use crate::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;

/// `rdma_bind_addr`.
///
/// # Safety
/// `addr` is NULL or an address as long as its family's.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        // SAFETY: the caller's promise.
        bind(&id, unsafe { address::read(addr) }?)
    })
}

/// Gives an id the local address `addr` in the program's numbers.
pub(crate) fn bind(id: &Id, addr: SocketAddr) -> Result<()> {
    let real = address::real(addr)?;
    let options = {
        let state = id.lock_alive().ok_or(Errno::INVAL)?;
        if !matches!(state.phase, Phase::Idle) {
            return Err(Errno::INVAL);
        }
        state.options
    };
    if !real.ip().is_unspecified() {
        address::bind_device(id, real.ip()).map_err(not_ours)?;
    }
    let (bound, port) = address::reserve(id, real, options)?;
    id.set_addresses(Some(bound), None);
    let mut state = id.lock();
    state.port = Some(port);
    state.phase = Phase::Bound;
    Ok(())
}

/// An address that no device has is none to bind to.
fn not_ours(errno: Errno) -> Errno {
    if errno == Errno::NODEV { Errno(libc::EADDRNOTAVAIL) } else { errno }
}

/// `rdma_resolve_addr`: the answer is there at once, so the time-out never passes.
///
/// # Safety
/// The addresses are NULL or as long as their families'.
pub unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    let result = boundary::minus_one(|| {
        let id = registry::id(id)?;
        // SAFETY: the caller's promise.
        let (src, dst) =
            unsafe { (if src.is_null() { None } else { Some(address::read(src)?) }, address::read(dst)?) };
        resolve(&id, src, dst)
    });
    // SAFETY: nothing on this stack frame has a destructor.
    unsafe { sync::complete(id, result) }
}

pub(crate) fn resolve(id: &Id, src: Option<SocketAddr>, dst: SocketAddr) -> Result<()> {
    let peer = address::real(dst)?;
    if peer.port() == 0 {
        return Err(Errno::INVAL);
    }
    if let Some(src) = src
        && matches!(id.lock().phase, Phase::Idle)
        && (src.port() != 0 || !src.ip().is_unspecified())
    {
        bind(id, src)?;
    }
    let bound = {
        let state = id.lock_alive().ok_or(Errno::INVAL)?;
        match state.phase {
            Phase::Idle => None,
            Phase::Bound => state.local,
            _ => return Err(Errno::INVAL),
        }
    };
    if bound.is_some_and(|local| local.is_ipv4() != peer.is_ipv4()) {
        return Err(Errno::INVAL);
    }
    let local = match bound {
        Some(local) if !local.ip().is_unspecified() => local,
        _ => {
            let mut source = address::source_for(peer)?;
            address::bind_device(id, source.ip())?;
            source.set_port(bound.map_or(0, |local| local.port()));
            source
        }
    };
    id.set_addresses(Some(local), Some(peer));
    id.lock().phase = Phase::AddrResolved;
    id.post(Note { event: RDMA_CM_EVENT_ADDR_RESOLVED, status: 0, arg: 0 })
}

/// `rdma_resolve_route`: on iWARP the address is the route.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    let result = boundary::minus_one(|| route(&*registry::id(id)?));
    // SAFETY: nothing on this stack frame has a destructor.
    unsafe { sync::complete(id, result) }
}

pub(crate) fn route(id: &Id) -> Result<()> {
    {
        let mut state = id.lock_alive().ok_or(Errno::INVAL)?;
        if !matches!(state.phase, Phase::AddrResolved) {
            return Err(Errno::INVAL);
        }
        state.phase = Phase::RouteResolved;
    }
    id.post(Note { event: RDMA_CM_EVENT_ROUTE_RESOLVED, status: 0, arg: 0 })
}
