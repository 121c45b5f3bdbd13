//! Conversion of a TCP socket of the program to an rsocket, and back to a socket of the kernel.

use crate::addresses::reachable;
use crate::at_exit;
use crate::connect::{self, PendingConnection};
use crate::link::Link;
use crate::options::{self, KEEP_IDLE, ORPHAN_TIMEOUT};
use crate::preload::connections::{self, Carrier, ConnectionRecord, Role};
use crate::preload::descriptor_sockets::{Placeholder, placeholder};
use crate::preload::plain::{self, PlainSocket};
use crate::settings::{self, Sizes};
use crate::socket::{
    FallbackSocket, PendingConversion, Phase, Socket, SocketOptions, TCP_CONNECTED,
};
use crate::sys;
use crate::table::{self, Entry};
use once_cell::race::OnceBox;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine;
use uiw_cabi_core::environment::{self, PrivilegePolicy};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;
use uiw_verbs::ConnConfig;
use uiw_verbs::cm;

/// Time-out of the startup. A peer answers only when its program uses the connection, which may
/// take any time. TCP's probes detect a peer that is gone.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(1 << 31);

/// Returns the number in an environment variable of rdma-core's preload library.
fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    let text = environment::variable(name, PrivilegePolicy::Ignored)
        .and_then(|text| text.into_string().ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(default)
}

/// Returns the default sizes of the system, changed by the environment variables.
pub(super) fn sizes() -> Sizes {
    static SIZES: OnceBox<Sizes> = OnceBox::new();
    *SIZES.get_or_init(|| {
        let system = Sizes::of_system();
        let sizes = Sizes {
            sends: variable("RS_SQ_SIZE", system.sends),
            receives: variable("RS_RQ_SIZE", system.receives),
            inline: variable("RS_INLINE", system.inline),
            ..system
        };
        Box::new(sizes)
    })
}

/// Returns the options that the program has set on the socket of the kernel.
fn set_of(fd: RawFd) -> SocketOptions {
    let flag = |level, name| sys::int_option(fd, level, name).is_some_and(|value| value != 0);
    let time = |name| {
        let bytes = sys::option::<{ size_of::<libc::timeval>() }>(fd, libc::SOL_SOCKET, name)?;
        options::parse_time(&bytes).ok()?
    };
    let linger = || {
        let bytes =
            sys::option::<{ size_of::<libc::linger>() }>(fd, libc::SOL_SOCKET, libc::SO_LINGER)?;
        let (on, seconds) = (
            c_int::from_ne_bytes(*bytes.first_chunk()?),
            c_int::from_ne_bytes(*bytes.last_chunk()?),
        );
        (on != 0).then_some(seconds)
    };
    SocketOptions {
        sizes: sizes(),
        reuse: flag(libc::SOL_SOCKET, libc::SO_REUSEADDR),
        v6_only: flag(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
        tos: None,
        keep_alive: flag(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        keep_idle: sys::int_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE).unwrap_or(KEEP_IDLE),
        keep_interval: sys::int_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
        keep_count: sys::int_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
        no_delay: flag(libc::IPPROTO_TCP, libc::TCP_NODELAY),
        oob_inline: flag(libc::SOL_SOCKET, libc::SO_OOBINLINE),
        orphan_timeout: sys::int_option(fd, libc::IPPROTO_TCP, libc::TCP_LINGER2)
            .map_or(ORPHAN_TIMEOUT, options::orphan_timeout),
        linger: linger(),
        receive_timeout: time(libc::SO_RCVTIMEO),
        send_timeout: time(libc::SO_SNDTIMEO),
    }
}

fn conn_config(set: &SocketOptions) -> Result<ConnConfig> {
    engine::before_exit(at_exit);
    Ok(ConnConfig::clone(&*connect::conn_config(set)?))
}

/// Creates a socket that replaces the program's, with its options and flags.
fn socket(fd: RawFd, ipv6: bool, set: SocketOptions) -> Result<Arc<Socket>> {
    let flags = sys::status_flags(fd)?;
    let socket = Socket::new(ipv6, set);
    {
        let mut state = socket.lock();
        state.flags.status = flags;
        state.local = sys::address_as_is(fd, false).ok().map(address::to_canonical);
        state.peer = sys::address_as_is(fd, true).ok().map(address::to_canonical);
    }
    Ok(socket)
}

/// Makes the numbers of `plain` refer to `socket`.
fn take_over(plain: &Arc<PlainSocket>, socket: &Arc<Socket>) -> Result<()> {
    give_numbers(plain, socket, Some(placeholder()?));
    Ok(())
}

/// Like [`take_over`], but if there is no placeholder, the numbers keep the socket of the kernel,
/// which neither sends nor receives any more.
fn give_numbers(plain: &Arc<PlainSocket>, socket: &Arc<Socket>, placeholder: Option<Placeholder>) {
    socket.set_descriptor_sockets(
        plain.descriptor_sockets().map(|sockets| sockets.or(placeholder.as_ref())),
    );
    let is_plain =
        |entry: &Entry| matches!(entry, Entry::Plain(other) if Arc::ptr_eq(other, plain));
    for number in table::find_numbers(is_plain) {
        // The order matters: a set whose threads wait checks in the table whether its members are
        // open, and it can move a member only while the number still refers to the socket of the
        // kernel.
        if table::replace(number, Entry::Socket(Arc::clone(socket))) {
            for set in table::epoll_sets() {
                set.becomes_rsocket(number, socket);
            }
            if placeholder.is_none_or(|placeholder| sys::replace(number, placeholder.fd).is_err()) {
                sys::shut(number);
            }
        }
    }
}

/// Ends a connection that cannot become an rsocket: its numbers get an rsocket whose connection has
/// failed. The program cannot use the connection over TCP either, because its data is that of MPA,
/// and with TLS it would be neither encrypted nor authenticated.
pub(super) fn replace_by_failed(fd: RawFd, plain: &Arc<PlainSocket>, errno: Errno) {
    let socket = Socket::new(plain.ipv6(), set_of(fd));
    if let Ok(flags) = sys::status_flags(fd) {
        socket.lock().flags.status = flags;
    }
    socket.fail(errno);
    give_numbers(plain, &socket, placeholder().ok());
}

/// Converts an accepted connection to an rsocket, which waits for the Request of its peer.
///
/// # Errors
/// ENOMEM, EMFILE and other errors of the engine.
pub(super) fn convert_accepted(fd: RawFd, plain: &Arc<PlainSocket>) -> Result<()> {
    let set = set_of(fd);
    let options = Arc::new(conn_config(&set)?);
    let device = engine::get()?;
    let socket = socket(fd, plain.ipv6(), set)?;
    let awaited = cm::accept_open(&device, sys::duplicate(fd)?, &options, socket.channel())?;
    {
        let mut state = socket.lock();
        state.opened = Some(PendingConversion::new(false, None));
        state.phase = Phase::Requested(awaited, options);
    }
    take_over(plain, &socket)
}

/// Converts a connection that the program has started to an rsocket. `to` has the program's port
/// number. If the connection is still `pending`, it may be refused, and TCP is tried in that case.
///
/// # Errors
/// ENOMEM, EMFILE and other errors of the engine.
pub(super) fn convert_connecting(
    fd: RawFd,
    plain: &Arc<PlainSocket>,
    to: SocketAddr,
    pending: bool,
) -> Result<()> {
    let set = set_of(fd);
    let mut options = conn_config(&set)?;
    options.startup_timeout = STARTUP_TIMEOUT;
    let device = engine::get()?;
    let socket = socket(fd, plain.ipv6(), set)?;
    let sizes = set.sizes.bounded();
    let link = Link::new(&device, &sizes, settings::variant(Settings::get()?.persona))?;
    let data = link.conn_data().to_bytes();
    // With TLS there is no fallback to TCP.
    let fallback = if pending && !plain::must_encrypt() {
        Some(FallbackSocket {
            socket: sys::duplicate(fd)?,
            to,
            syn_retries: plain.take_syn_retries(),
        })
    } else {
        None
    };
    let peer = match sys::address_as_is(fd, true) {
        Ok(peer) => address::to_canonical(peer),
        // The connection to that address was already started.
        Err(errno) => {
            address::to_canonical(reachable(address::to_real_same_family(to).ok_or(errno)?))
        }
    };
    let raw = sys::duplicate(fd)?;
    socket.may_fall_back(fallback.is_some());
    {
        let mut state = socket.lock();
        state.peer = Some(peer);
        state.opened = Some(PendingConversion::new(pending, fallback));
        state.phase = Phase::Connecting(Box::new(PendingConnection::new(link, sizes)), None);
    }
    // This is done before the peer can answer, because to an epoll set of the system the answer
    // would be readable data.
    take_over(plain, &socket)?;
    let mut state = socket.lock();
    // If the socket is in another phase, another thread has closed it.
    let Phase::Connecting(begun, _) = &state.phase else { return Ok(()) };
    let options = Arc::new(options);
    let opened =
        cm::connect_open(begun.qp(), raw, peer, &options, &data, socket.channel(), TCP_CONNECTED);
    opened.map(drop).map_err(|error| {
        // The TCP connection ends with the socket.
        state.opened = None;
        drop(state);
        let errno = Errno::from(error);
        socket.fail(errno);
        errno
    })
}

/// Restores the program's options and flags, which the engine has changed.
fn restore(fd: RawFd, flags: c_int, set: &SocketOptions) {
    let linger = options::linger_bytes(set.linger);
    let flag = |level, name, on: bool| sys::set_option(fd, level, name, c_int::from(on));
    let probes = |name, value: Option<c_int>| {
        value.map_or(Ok(()), |value| sys::set_option(fd, libc::IPPROTO_TCP, name, value))
    };
    let done = [
        sys::set_option_bytes(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger),
        flag(libc::SOL_SOCKET, libc::SO_KEEPALIVE, set.keep_alive),
        probes(libc::TCP_KEEPIDLE, Some(set.keep_idle)),
        probes(libc::TCP_KEEPINTVL, set.keep_interval),
        probes(libc::TCP_KEEPCNT, set.keep_count),
        flag(libc::IPPROTO_TCP, libc::TCP_NODELAY, set.no_delay),
        sys::set_status_flags(fd, flags),
    ];
    for error in done.into_iter().filter_map(Result::err) {
        tracing::warn!(%error, "an option of the program's socket could not be restored");
    }
}

/// Tries TCP with the same descriptors, because the peer has no rsockets. Returns false if another
/// thread has already taken the original socket, or if the attempt fails immediately; in the latter
/// case the rsocket has the error.
pub(crate) fn fall_back(socket: &Arc<Socket>) -> bool {
    let Some((fallback, flags, set)) = socket.take_instead() else { return false };
    plain::unlimit_attempt(fallback.socket.as_raw_fd(), fallback.syn_retries);
    let to = address::to_sockaddr(fallback.to);
    let connect = || sys::connect(fallback.socket.as_raw_fd(), address::significant_bytes(&to));
    // The first call only reports that the previous attempt has failed, because the engine has
    // already taken the error.
    let connected = connect()
        .or_else(|errno| if errno == Errno(libc::ECONNABORTED) { connect() } else { Err(errno) });
    match connected {
        Ok(()) | Err(Errno(libc::EINPROGRESS)) => {}
        Err(errno) => {
            socket.fail(errno);
            return false;
        }
    }
    restore(fallback.socket.as_raw_fd(), flags, &set);
    let address = address::to_canonical(fallback.to);
    connections::note(ConnectionRecord { carrier: Carrier::Tcp, role: Role::Connected, address });
    let is_socket =
        |entry: &Entry| matches!(entry, Entry::Socket(other) if Arc::ptr_eq(other, socket));
    for number in table::find_numbers(is_socket) {
        if sys::replace(number, fallback.socket.as_raw_fd()).is_ok() {
            for set in table::epoll_sets() {
                set.becomes_ordinary(number, socket);
            }
            table::release(number);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_restored_on_fallback() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let options = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT];
        let values = || options.map(|name| sys::int_option(fd, libc::IPPROTO_TCP, name).unwrap());
        let change = |values: [c_int; 3]| {
            for (name, value) in options.into_iter().zip(values) {
                sys::set_option(fd, libc::IPPROTO_TCP, name, value).unwrap();
            }
        };
        change([50, 20, 7]);
        let set = set_of(fd);
        change([450, 113, 3]);
        restore(fd, sys::status_flags(fd).unwrap(), &set);
        assert_eq!(values(), [50, 20, 7]);
    }
}
