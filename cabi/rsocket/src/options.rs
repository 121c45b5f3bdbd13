//! Socket options.

use crate::settings::Sizes;
use crate::socket::{Phase, Socket, State};
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

/// Value of an option, to be converted to C's representation.
pub(crate) enum Value {
    Int(c_int),
    Linger(libc::linger),
    /// A `tcp_info` with this state of TCP in its first byte; all other bytes are 0.
    Info(u8),
    /// A `timeval`.
    Time(Duration),
}

pub(super) fn unsupported(level: c_int, name: c_int) -> Errno {
    Errno(libc::ENOPROTOOPT)
        .because(format_args!("an rsocket has no option {name} of level {level}"))
}

fn check_unconnected(state: &State) -> Result<()> {
    match state.phase {
        Phase::New(_) | Phase::Listening(_) => Ok(()),
        _ => Err(Errno::INVAL.because("the option must be set before the rsocket connects")),
    }
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

/// Parses the `timeval` of SO_RCVTIMEO and SO_SNDTIMEO. The inner `None` means no limit; the outer
/// one is returned for other options.
///
/// # Errors
/// EINVAL for a value that is too short, EDOM for an invalid number of microseconds.
pub(crate) fn time_of(level: c_int, name: c_int, bytes: &[u8]) -> Result<Option<Option<Duration>>> {
    if level != libc::SOL_SOCKET || !matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) {
        return Ok(None);
    }
    let number = |at: usize| Some(i64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (Some(seconds), Some(micros)) = (number(0), number(8)) else {
        return Err(Errno::INVAL.because("the value of the time-out is shorter than its structure"));
    };
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno(libc::EDOM).because("the number of microseconds exceeds a second"));
    }
    // As in the system, a negative time means not to wait, and a time of 0 means no limit.
    let time = match u64::try_from(seconds) {
        Ok(seconds) => Duration::from_secs(seconds) + Duration::from_micros(micros.unsigned_abs()),
        Err(_) => Duration::from_nanos(1),
    };
    Ok(Some((!time.is_zero()).then_some(time)))
}

/// Sets SO_RCVTIMEO or SO_SNDTIMEO.
pub(crate) fn set_time(socket: &Socket, name: c_int, time: Option<Duration>) {
    let set = &mut socket.lock().set;
    if name == libc::SO_RCVTIMEO {
        set.receive_timeout = time;
    } else {
        set.send_timeout = time;
    }
}

/// `rsetsockopt`. `value` is the integer value of the option, and `second` is the second integer of
/// SO_LINGER.
///
/// # Errors
/// ENOPROTOOPT for an option that rsockets do not have; EINVAL for one that is set too late, and
/// for a TCP_KEEPIDLE that is not positive.
pub(crate) fn set(
    socket: &Socket,
    level: c_int,
    name: c_int,
    value: c_int,
    second: Option<c_int>,
) -> Result<()> {
    let mut state = socket.lock();
    let on = value != 0;
    let unconnected = matches!(state.phase, Phase::New(_) | Phase::Listening(_));
    let set = &mut state.set;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => set.reuse = on,
        // After the buffers were allocated the option has no effect, as in rdma-core. The
        // connections of a listener inherit it.
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if unconnected => set.sizes.received = doubled(value),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if unconnected => set.sizes.sent = doubled(value),
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
        (libc::SOL_SOCKET, libc::SO_LINGER) => set.linger = on.then_some(second.unwrap_or(0)),
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
        (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE) => {
            check_unconnected(&state)?;
            let sizes: &mut Sizes = &mut state.set.sizes;
            match name {
                RDMA_SQSIZE => sizes.sends = bounded(value),
                RDMA_RQSIZE => sizes.receives = bounded(value),
                RDMA_INLINE => sizes.inline = bounded(value),
                _ => sizes.mappings = representable_mappings(bounded(value)),
            }
        }
        // There are no routes to choose from.
        (SOL_RDMA, RDMA_ROUTE) => check_unconnected(&state)?,
        _ => return Err(unsupported(level, name)),
    }
    Ok(())
}

/// `rgetsockopt`.
///
/// # Errors
/// ENOPROTOOPT for an option that rsockets do not have.
pub(crate) fn get(socket: &Socket, level: c_int, name: c_int) -> Result<Value> {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        let error = socket.update_then(None, |state| state.error.take());
        return Ok(Value::Int(error.map_or(0, |errno| errno.0)));
    }
    let state = socket.lock();
    let set = &state.set;
    let int = |value: u32| Ok(Value::Int(c_int::try_from(value).unwrap_or(c_int::MAX)));
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => int(set.reuse.into()),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => int(set.keep_alive.into()),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => int(set.oob_inline.into()),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            Ok(Value::Time(set.receive_timeout.unwrap_or_default()))
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            Ok(Value::Time(set.send_timeout.unwrap_or_default()))
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(set.sizes.received),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(set.sizes.sent),
        (libc::SOL_SOCKET, libc::SO_LINGER) => Ok(Value::Linger(libc::linger {
            l_onoff: set.linger.is_some().into(),
            l_linger: set.linger.unwrap_or(0),
        })),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(Value::Int(libc::SOCK_STREAM)),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => {
            Ok(Value::Int(if state.ipv6 { libc::AF_INET6 } else { libc::AF_INET }))
        }
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Ok(Value::Int(libc::IPPROTO_TCP)),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            int(matches!(state.phase, Phase::Listening(_)).into())
        }
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => Ok(Value::Int(0)),
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            int(set.tos.unwrap_or(0).into())
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => int(set.no_delay.into()),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => Ok(Value::Int(set.keep_idle)),
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => int(set.orphan_timeout.as_secs() as u32),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => Ok(Value::Int(1)),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Ok(Value::Int(SEGMENT)),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            const ESTABLISHED: u8 = 1;
            const CLOSE: u8 = 7;
            Ok(Value::Info(if state.stream().is_some() { ESTABLISHED } else { CLOSE }))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => int(set.v6_only.into()),
        (SOL_RDMA, RDMA_SQSIZE) => int(set.sizes.sends.into()),
        (SOL_RDMA, RDMA_RQSIZE) => int(set.sizes.receives.into()),
        (SOL_RDMA, RDMA_INLINE) => int(set.sizes.inline.into()),
        (SOL_RDMA, RDMA_IOMAPSIZE) => int(set.sizes.mappings.into()),
        _ => Err(unsupported(level, name)),
    }
}
