//! Binding of local addresses, and resolution of the address and route of a peer.

use crate::id::{Id, LocalEvent, Phase};
use crate::registry::RegisteredPtr as _;
use crate::{devices, sync};
use std::ffi::c_int;
use std::net::SocketAddr;
use uiw_cabi_core::abi::cm::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED,
};
use uiw_cabi_core::abi::rdma_cm_id;
use uiw_cabi_core::address;
use uiw_cabi_core::address::AddressPtr;
use uiw_cabi_core::arguments::AnyPtr;
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::ports;
use uiw_cabi_core::stack;
use uiw_verbs::CmCall;

/// `rdma_bind_addr`.
pub extern "C" fn rdma_bind_addr(id: AnyPtr<rdma_cm_id>, addr: AddressPtr<'_>) -> c_int {
    boundary::minus_one(|| bind(&*id.get()?, addr.read()?))
}

/// Sets the local address of an id to `addr`, which has the program's port number.
pub(crate) fn bind(id: &Id, addr: SocketAddr) -> Result<()> {
    let real = address::to_real(addr)?;
    let options = {
        let state = id.lock_checked()?;
        if !matches!(state.phase, Phase::Idle) {
            return Err(Errno::INVAL.because("rdma_bind_addr for an id that has an address"));
        }
        state.options
    };
    let (bound, port) =
        ports::reserve(id.abi().addr(), real, id.is_ud(), options.reuse, options.v6_only).map_err(
            |errno| {
                if errno == Errno(libc::EADDRINUSE)
                    && (ports::is_taken_by_wildcard(real, id.is_ud(), options.reuse)
                        || !stack::is_in_process() && ports::is_bound_to_wildcard(real, id.is_ud()))
                {
                    not_available(Errno::NODEV)
                } else {
                    errno
                }
            },
        )?;
    // After the port was reserved, because a failed call must not give the id a device.
    if !devices::lacks_device(real)? {
        devices::bind(id, real.ip()).map_err(not_available)?;
    }
    id.set_addresses(Some(bound), None);
    let mut state = id.lock();
    state.port = Some(port);
    state.phase = Phase::Bound;
    Ok(())
}

/// Replaces ENODEV by EADDRNOTAVAIL, the error for binding to an address that belongs to no device.
fn not_available(errno: Errno) -> Errno {
    if errno == Errno::NODEV { Errno(libc::EADDRNOTAVAIL) } else { errno }
}

/// `rdma_resolve_addr`: the result is available immediately, so the time-out never expires.
pub extern "C-unwind" fn rdma_resolve_addr(
    id: AnyPtr<rdma_cm_id>,
    src: AddressPtr<'_>,
    dst: AddressPtr<'_>,
    _timeout_ms: c_int,
) -> c_int {
    let result = boundary::minus_one(|| resolve(&*id.get()?, src.get()?, dst.read()?));
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

pub(crate) fn resolve(id: &Id, src: Option<SocketAddr>, dst: SocketAddr) -> Result<()> {
    // Port 0 means an address without a service. Programs resolve such addresses to find the device
    // that reaches them. `rdma_connect` refuses port 0.
    let peer = address::to_real(dst)?;
    if let Some(src) = src
        && matches!(id.lock().phase, Phase::Idle)
        && (src.port() != 0 || !src.ip().is_unspecified())
    {
        bind(id, src)?;
    }
    let bound = {
        let state = id.lock_checked()?;
        match state.phase {
            Phase::Idle => None,
            Phase::Bound => state.local,
            _ => {
                return Err(Errno::INVAL.because(
                    "rdma_resolve_addr for an id that is resolved, listens or is connected",
                ));
            }
        }
    };
    if bound.is_some_and(|local| local.is_ipv4() != peer.is_ipv4()) {
        return Err(Errno::INVAL.because("one address is IPv4 and the other IPv6"));
    }
    let local = match bound {
        Some(local) if !local.ip().is_unspecified() => {
            // The id is bound to a loopback address, for which no device was chosen yet.
            if !devices::is_bound(id) {
                devices::bind(id, local.ip())?;
            }
            local
        }
        _ => {
            let mut source = address::source_for(peer)?;
            devices::bind(id, source.ip())?;
            source.set_port(bound.map_or(0, |local| local.port()));
            source
        }
    };
    id.set_addresses(Some(local), Some(peer));
    if engine::get()?.inject_cm(CmCall::ResolveAddr).is_some() {
        return id.post(failure(RDMA_CM_EVENT_ADDR_ERROR));
    }
    id.lock().phase = Phase::AddrResolved;
    id.post(LocalEvent::new(RDMA_CM_EVENT_ADDR_RESOLVED, 0))
}

/// `rdma_resolve_route`: on iWARP the address is sufficient.
pub extern "C-unwind" fn rdma_resolve_route(id: AnyPtr<rdma_cm_id>, _timeout_ms: c_int) -> c_int {
    let result = boundary::minus_one(|| route(&*id.get()?));
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

/// Returns the event that the kernel delivers when the time-out expires.
fn failure(event: c_int) -> LocalEvent {
    LocalEvent::new(event, -libc::ETIMEDOUT)
}

pub(crate) fn route(id: &Id) -> Result<()> {
    let failed = engine::get()?.inject_cm(CmCall::ResolveRoute).is_some();
    {
        let mut state = id.lock_checked()?;
        if !matches!(state.phase, Phase::AddrResolved) {
            return Err(Errno::INVAL.because(
                "rdma_resolve_route before the address is resolved, or for the second time",
            ));
        }
        if !failed {
            state.phase = Phase::RouteResolved;
        }
    }
    if failed {
        return id.post(failure(RDMA_CM_EVENT_ROUTE_ERROR));
    }
    id.post(LocalEvent::new(RDMA_CM_EVENT_ROUTE_RESOLVED, 0))
}

/// `rdma_get_src_port`: returns the port in network byte order.
pub extern "C" fn rdma_get_src_port(id: AnyPtr<rdma_cm_id>) -> u16 {
    port(id, |id| id.lock().local)
}

/// `rdma_get_dst_port`: returns the port in network byte order.
pub extern "C" fn rdma_get_dst_port(id: AnyPtr<rdma_cm_id>) -> u16 {
    port(id, |id| id.lock().peer)
}

fn port(id: AnyPtr<rdma_cm_id>, of: impl FnOnce(&Id) -> Option<SocketAddr>) -> u16 {
    boundary::value(0, || {
        let id = id.get()?;
        let real = of(&id).map_or(0, |address| address.port());
        Ok(if real == 0 { 0 } else { address::program_port(real).to_be() })
    })
}
