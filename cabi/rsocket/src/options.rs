//! Socket options.

use crate::socket::{Phase, Socket};
use crate::wire::representable_mappings;
use std::ffi::c_int;
use std::time::Duration;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Level of the options that only rsockets have, which are the following constants.
pub(super) const SOL_RDMA: c_int = 0x10000;
pub(super) const RDMA_SQSIZE: c_int = 0;
pub(super) const RDMA_RQSIZE: c_int = 1;
pub(super) const RDMA_INLINE: c_int = 2;
pub(super) const RDMA_IOMAPSIZE: c_int = 3;
pub(super) const RDMA_ROUTE: c_int = 4;

/// Number of seconds before the first probe of an idle connection, as in the system.
pub(crate) const KEEP_IDLE: c_int = 7200;
/// Default of TCP_LINGER2, for systems whose default differs from that of Linux or that have none.
pub(crate) const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);
/// Segment size that is reported to programs.
const SEGMENT: c_int = 2048;

pub(super) fn unsupported(level: c_int, name: c_int) -> Errno {
    Errno(libc::ENOPROTOOPT)
        .because(format_args!("an rsocket has no option {name} of level {level}"))
}

/// Returns the number, limited to 16 bits.
pub(super) fn bounded(value: c_int) -> u16 {
    u16::try_from(value.max(0)).unwrap_or(u16::MAX)
}

/// Converts TCP_LINGER2, in seconds. For 0 and negative values, for which the system uses its own
/// time or none, returns the default.
pub(crate) fn orphan_timeout(value: c_int) -> Duration {
    u64::try_from(value).ok().filter(|value| *value > 0).map_or(ORPHAN_TIMEOUT, Duration::from_secs)
}

/// Converts SO_SNDBUF or SO_RCVBUF, which are doubled as in the system.
pub(super) fn doubled(value: c_int) -> u32 {
    value.max(0).unsigned_abs().saturating_mul(2)
}

/// Parses the integer at the beginning of an option's value.
///
/// # Errors
/// EINVAL for a value that is too short.
pub(super) fn parse_int(bytes: &[u8]) -> Result<c_int> {
    bytes.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or_else(too_short)
}

fn too_short() -> Errno {
    Errno::INVAL.because("the value of the option is too short")
}

/// Parses the `timeval` of SO_RCVTIMEO and SO_SNDTIMEO. `None` means no limit.
///
/// # Errors
/// EINVAL for a value that is too short, EDOM for an invalid number of microseconds.
pub(super) fn parse_time(bytes: &[u8]) -> Result<Option<Duration>> {
    let number = |at: usize| Some(i64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (Some(seconds), Some(micros)) = (number(0), number(8)) else { return Err(too_short()) };
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM).because("the number of microseconds exceeds a second"));
    }
    // As in the system, a negative time means not to wait, and a time of 0 means no limit.
    let time = match u64::try_from(seconds) {
        Ok(seconds) => Duration::from_secs(seconds) + Duration::from_micros(micros.unsigned_abs()),
        Err(_) => Duration::from_nanos(1),
    };
    Ok((!time.is_zero()).then_some(time))
}

/// Writes as much of a value as fits to `to`, and returns the number of bytes written.
pub(super) fn put(value: &[u8], to: &mut [u8]) -> usize {
    let len = value.len().min(to.len());
    to[..len].copy_from_slice(&value[..len]);
    len
}

/// Writes a `timeval`, like [`put`].
pub(super) fn put_time(time: Option<Duration>, to: &mut [u8]) -> usize {
    let time = time.unwrap_or_default();
    let (seconds, micros) =
        (time.as_secs().to_ne_bytes(), u64::from(time.subsec_micros()).to_ne_bytes());
    put(&[seconds, micros].concat(), to)
}

/// Returns the `linger` structure of SO_LINGER.
pub(super) fn linger_bytes(linger: Option<c_int>) -> Vec<u8> {
    [linger.is_some().into(), linger.unwrap_or(0)].map(c_int::to_ne_bytes).concat()
}

/// `rsetsockopt`.
///
/// # Errors
/// ENOPROTOOPT for an option that rsockets do not have; EINVAL for one that is set too late, for a
/// value that is too short, and for a TCP_KEEPIDLE that is not positive.
pub(crate) fn set(socket: &Socket, level: c_int, name: c_int, bytes: &[u8]) -> Result<()> {
    // The value of TCP_CONGESTION is the name of an algorithm and not an integer.
    let is_name = (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    let value = if is_name { 0 } else { parse_int(bytes)? };
    let mut state = socket.lock();
    let on = value != 0;
    let unconnected = matches!(state.phase, Phase::New(_) | Phase::Failed(_) | Phase::Listening(_));
    let set = &mut state.set;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => set.reuse = on,
        // After the buffers were allocated the option has no effect, as in rdma-core. The
        // connections of a listener inherit it.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if unconnected => set.sizes.received = doubled(value),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if unconnected => set.sizes.sent = doubled(value),
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = parse_int(bytes.get(4..).unwrap_or_default())?;
            set.linger = on.then_some(seconds);
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => set.receive_timeout = parse_time(bytes)?,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => set.send_timeout = parse_time(bytes)?,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => set.keep_alive = on,
        (
            libc::SOL_SOCKET,
            libc::SO_PRIORITY
            | libc::SO_MARK
            | libc::SO_REUSEPORT
            | libc::SO_BUSY_POLL
            | libc::SO_MAX_PACING_RATE,
        ) => {}
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => set.oob_inline = on,
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            set.tos = Some(value as u8);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => set.no_delay = on,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if value <= 0 => {
            return Err(Errno::INVAL.because("TCP_KEEPIDLE of no seconds"));
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => set.keep_idle = value,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => set.keep_interval = Some(value),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => set.keep_count = Some(value),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => set.orphan_timeout = orphan_timeout(value),
        (
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG
            | libc::TCP_CONGESTION
            | libc::TCP_QUICKACK
            | libc::TCP_CORK
            | libc::TCP_DEFER_ACCEPT
            | libc::TCP_NOTSENT_LOWAT
            | libc::TCP_SYNCNT
            | libc::TCP_USER_TIMEOUT,
        ) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => set.v6_only = on,
        (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE | RDMA_ROUTE)
            if !unconnected =>
        {
            return Err(Errno::INVAL.because("the option must be set before the rsocket connects"));
        }
        (SOL_RDMA, RDMA_SQSIZE) => set.sizes.sends = bounded(value),
        (SOL_RDMA, RDMA_RQSIZE) => set.sizes.receives = bounded(value),
        (SOL_RDMA, RDMA_INLINE) => set.sizes.inline = bounded(value),
        (SOL_RDMA, RDMA_IOMAPSIZE) => set.sizes.mappings = representable_mappings(bounded(value)),
        // There are no routes to choose from.
        (SOL_RDMA, RDMA_ROUTE) => {}
        _ => return Err(unsupported(level, name)),
    }
    Ok(())
}

/// `rgetsockopt`: writes as much of the value as fits to `to`, and returns the number of bytes
/// written.
///
/// # Errors
/// ENOPROTOOPT for an option that rsockets do not have.
pub(crate) fn get(socket: &Socket, level: c_int, name: c_int, to: &mut [u8]) -> Result<usize> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        let error = socket.update_then(None, |state| state.error.take());
        return Ok(put(&error.map_or(0, |errno| errno.0).to_ne_bytes(), to));
    }
    let state = socket.lock();
    let set = &state.set;
    let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let value: c_int = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => set.reuse.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => set.keep_alive.into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => set.oob_inline.into(),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(put_time(set.receive_timeout, to)),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(put_time(set.send_timeout, to)),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(set.sizes.received),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(set.sizes.sent),
        (libc::SOL_SOCKET, libc::SO_LINGER) => return Ok(put(&linger_bytes(set.linger), to)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => {
            if state.ipv6 {
                libc::AF_INET6
            } else {
                libc::AF_INET
            }
        }
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            matches!(state.phase, Phase::Listening(_)).into()
        }
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            set.tos.unwrap_or(0).into()
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => set.no_delay.into(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => set.keep_idle,
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => number(set.orphan_timeout.as_secs() as u32),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => SEGMENT,
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            const ESTABLISHED: u8 = 1;
            const CLOSE: u8 = 7;
            let mut info = [0; size_of::<libc::tcp_info>()];
            info[0] = if state.stream().is_some() { ESTABLISHED } else { CLOSE };
            return Ok(put(&info, to));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => set.v6_only.into(),
        (SOL_RDMA, RDMA_SQSIZE) => set.sizes.sends.into(),
        (SOL_RDMA, RDMA_RQSIZE) => set.sizes.receives.into(),
        (SOL_RDMA, RDMA_INLINE) => set.sizes.inline.into(),
        (SOL_RDMA, RDMA_IOMAPSIZE) => set.sizes.mappings.into(),
        _ => return Err(unsupported(level, name)),
    };
    Ok(put(&value.to_ne_bytes(), to))
}
