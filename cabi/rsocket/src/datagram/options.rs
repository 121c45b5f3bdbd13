//! Options of datagram rsockets. Most are options of the UDP socket, except those for buffers,
//! waiting and errors.

use crate::datagram::Datagram;
use crate::options::{
    RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, bounded, doubled,
    parse_int, parse_time, put, put_time, unsupported,
};
use crate::sys;
use std::ffi::c_int;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// `rsetsockopt`.
///
/// # Errors
/// ENOPROTOOPT for an option that rsockets do not have; EINVAL for one that is set too late, and
/// for a value that is too short; OS errors.
pub(crate) fn set_option(socket: &Datagram, level: c_int, name: c_int, bytes: &[u8]) -> Result<()> {
    let mut state = socket.lock();
    let udp = state.udp()?;
    let is_begun = state.endpoint.is_some();
    match (level, name) {
        (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE) if is_begun => {
            return Err(
                Errno::INVAL.because("the option must be set before the rsocket has an address")
            );
        }
        (SOL_RDMA, RDMA_SQSIZE) => state.sizes.sends = bounded(parse_int(bytes)?),
        (SOL_RDMA, RDMA_RQSIZE) => state.sizes.receives = bounded(parse_int(bytes)?),
        (SOL_RDMA, RDMA_INLINE) => state.sizes.inline = bounded(parse_int(bytes)?),
        // There are no routes to choose from, and datagrams have no mappings.
        (SOL_RDMA, RDMA_ROUTE | RDMA_IOMAPSIZE) => {}
        // An option of UDP such as UDP_GRO would merge datagrams, and the result would be taken for
        // one datagram.
        (SOL_RDMA | libc::IPPROTO_UDP, _) => return Err(unsupported(level, name)),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => state.receive_timeout = parse_time(bytes)?,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => state.send_timeout = parse_time(bytes)?,
        _ => {
            sys::set_option_bytes(udp, level, name, bytes)?;
            match (level, name) {
                // After the buffers were allocated the option has no effect on them, as in
                // rdma-core.
                (libc::SOL_SOCKET, libc::SO_RCVBUF) if !is_begun => {
                    state.sizes.received = doubled(parse_int(bytes)?);
                }
                (libc::SOL_SOCKET, libc::SO_SNDBUF) if !is_begun => {
                    state.sizes.sent = doubled(parse_int(bytes)?);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// `rgetsockopt`: writes as much of the value as fits to `to`, and returns the number of bytes
/// written.
///
/// # Errors
/// ENOPROTOOPT for an option that rsockets do not have; OS errors.
pub(crate) fn option(socket: &Datagram, level: c_int, name: c_int, to: &mut [u8]) -> Result<usize> {
    let mut state = socket.lock();
    let udp = state.udp()?;
    let sizes = state.sizes;
    let number = match (level, name) {
        (SOL_RDMA, RDMA_SQSIZE) => sizes.sends.into(),
        (SOL_RDMA, RDMA_RQSIZE) => sizes.receives.into(),
        (SOL_RDMA, RDMA_INLINE) => sizes.inline.into(),
        (SOL_RDMA, RDMA_IOMAPSIZE) => 0,
        (SOL_RDMA, _) => return Err(unsupported(level, name)),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes.received,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes.sent,
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            state.error.take().map_or(0, |errno| errno.0.cast_unsigned())
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(put_time(state.receive_timeout, to)),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(put_time(state.send_timeout, to)),
        _ => return sys::option_bytes(udp, level, name, to),
    };
    Ok(put(&c_int::try_from(number).unwrap_or(c_int::MAX).to_ne_bytes(), to))
}
