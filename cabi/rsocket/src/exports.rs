//! Functions of `rdma/rsocket.h` for descriptors, addresses, connections and options. The functions
//! that transfer bytes are in [`transfer`](super::transfer).

use crate::addresses::{program_name, reachable, read_address, write_address};
use crate::any::AnySocket;
use crate::at_exit;
use crate::datagram::{self, Datagram};
use crate::epoll::Epoll;
use crate::options::{self, KEEP_IDLE, ORPHAN_TIMEOUT};
use crate::poll::{self, Sets};
use crate::settings::Sizes;
use crate::socket::{Phase, Socket, SocketOptions, State};
use crate::table::{self, Entry};
use crate::wait::Limit;
use crate::{acceptor, connect, sys};
use libc::socklen_t;
use std::ffi::{c_int, c_long};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use uiw_cabi_core::address;
use uiw_cabi_core::arguments::{
    ArrayMutPtr, ArrayPtr, Count, InOutArrayPtr, InOutPtr, InPtr, RoomPtr,
};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::engine;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;

/// `rsocket`.
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    boundary::number(|| {
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let ipv6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno::UNSUPPORTED.because("the family is neither IPv4 nor IPv6")),
        };
        let is_stream = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
            _ => return Err(Errno::UNSUPPORTED.because("the protocol is neither TCP nor UDP")),
        };
        // Invalid settings are reported before the first connection.
        if Settings::get()?.stays_on_tcp(&program_name()) {
            return Err(Errno::UNSUPPORTED.because("UIW_SOCKETS_TCP contains the program"));
        }
        engine::before_exit(at_exit);
        let fd = if is_stream {
            table::add(Entry::Socket(Socket::new(ipv6, new_set())))
        } else {
            new_datagram(domain)
        }?;
        let socket = table::socket(fd)?;
        if flags & libc::SOCK_NONBLOCK != 0 {
            socket.with_flags(|flags| flags.status |= libc::O_NONBLOCK);
        }
        if flags & libc::SOCK_CLOEXEC != 0 {
            socket.with_flags(|flags| flags.descriptor = libc::FD_CLOEXEC);
        }
        Ok(fd)
    })
}

/// Returns the options of a new stream.
pub(super) fn new_set() -> SocketOptions {
    SocketOptions {
        sizes: Sizes::of_system(),
        reuse: false,
        v6_only: false,
        tos: None,
        keep_alive: false,
        keep_idle: KEEP_IDLE,
        keep_interval: None,
        keep_count: None,
        no_delay: false,
        oob_inline: false,
        linger: None,
        orphan_timeout: ORPHAN_TIMEOUT,
        receive_timeout: None,
        send_timeout: None,
    }
}

/// Creates a datagram rsocket, whose descriptor is its UDP socket.
///
/// # Errors
/// EOPNOTSUPP if datagrams are not available; EMFILE.
fn new_datagram(domain: c_int) -> Result<c_int> {
    if let Some(reason) = Datagram::missing()? {
        // A program may continue with the system's UDP, so the user would not see the reason
        // otherwise.
        tracing::warn!("no rsocket for datagrams: {reason}");
        return Err(Errno::UNSUPPORTED.because(reason));
    }
    let udp = sys::udp_socket(domain)?;
    let socket =
        Datagram::new(udp.as_raw_fd(), domain == libc::AF_INET6, Sizes::of_system(), 0, None)?;
    Ok(table::add_as(udp, Entry::Datagram(socket)))
}

/// `rbind`.
pub extern "C" fn rbind<'a>(fd: c_int, addr: ArrayPtr<'a, u8>, len: Count<'a, socklen_t>) -> c_int {
    boundary::minus_one(|| {
        let socket = table::socket(fd)?;
        let to = read_address(&addr, len)?;
        match socket {
            AnySocket::Stream(socket) => connect::bind(&socket, to),
            AnySocket::Datagram(socket) => socket.bind(to),
        }
    })
}

/// `rlisten`.
pub extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    boundary::minus_one(|| acceptor::listen(&table::stream(fd)?, backlog))
}

/// `raccept`.
pub extern "C" fn raccept<'a>(fd: c_int, addr: ArrayMutPtr<'a, u8>, len: RoomPtr<'a>) -> c_int {
    boundary::number(|| {
        let socket = table::stream(fd)?;
        // Without a descriptor the connection stays in the backlog.
        let number = table::placeholder()?;
        let how = |state: &State| (state.is_nonblocking(0), state.set.receive_timeout);
        let new = socket.complete_as(how, |state| match &state.phase {
            Phase::Listening(acceptor) => acceptor.take().ok_or(Errno::AGAIN),
            _ => Err(Errno::INVAL.because("raccept for an rsocket that does not listen")),
        })?;
        let peer = {
            // The flags are those of the listener, as in rdma-core, and programs of rsockets rely
            // on that. Connections that Linux's accept returns do not inherit the flags.
            let flags = socket.lock().flags.status;
            let mut state = new.lock();
            state.flags.status = flags;
            state.peer
        };
        let given = table::add_as(number, Entry::Socket(new));
        if let Some(peer) = peer
            && !addr.is_null()
            && !len.is_null()
        {
            write_address(peer, addr, len)?;
        }
        Ok(given)
    })
}

/// `rconnect`.
pub extern "C" fn rconnect<'a>(
    fd: c_int,
    addr: ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) -> c_int {
    boundary::minus_one(|| {
        let socket = match table::socket(fd)? {
            AnySocket::Stream(socket) => socket,
            AnySocket::Datagram(socket) => return socket.connect(peer_of_datagrams(&addr, len)?),
        };
        let to = reachable(read_address(&addr, len)?);
        if Settings::get()?.stays_on_tcp(&to.port().to_string()) {
            return Err(Errno(libc::ECONNREFUSED).because("UIW_SOCKETS_TCP contains the port"));
        }
        // An error that an event reports for an earlier attempt is handled first.
        let (started, may_wait) = socket.update_then(None, |state| {
            (connect::start(&socket, state, to), state.opened.is_none())
        });
        let unfinished = match started {
            Ok(()) => Errno(libc::EINPROGRESS),
            // A signal or the time-out may have ended the call that started the attempt. As with
            // TCP, a blocking call waits for this attempt.
            Err(errno @ Errno(libc::EALREADY)) if may_wait => errno,
            Err(errno) => return Err(errno),
        };
        if socket.is_nonblocking(0) {
            return Err(unfinished);
        }
        let connected = socket.complete_as(
            |state| (false, state.set.send_timeout),
            |state| {
                let connected = state.connected().map(drop);
                // The call itself reports the failure.
                state.error = None;
                if let Phase::Failed(port) = &mut state.phase {
                    state.phase = Phase::New(port.take());
                }
                connected
            },
        );
        connected.map_err(|errno| if errno == Errno::AGAIN { unfinished } else { errno })
    })
}

/// Returns the peer for a datagram socket, or `None` for AF_UNSPEC.
fn peer_of_datagrams<'a>(
    addr: &ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) -> Result<Option<SocketAddr>> {
    match addr.get(len)?.and_then(address::family).map(c_int::from) {
        None => Err(Errno::INVAL.because("the address is shorter than its family")),
        Some(libc::AF_UNSPEC) => Ok(None),
        Some(_) => read_address(addr, len).map(Some),
    }
}

/// `rshutdown`.
pub extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    boundary::minus_one(|| {
        let socket = table::socket(fd)?;
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno::INVAL.because("invalid direction for rshutdown")),
        };
        let socket = match socket {
            AnySocket::Stream(socket) => socket,
            AnySocket::Datagram(socket) => return socket.shutdown(read, write),
        };
        let is_listening = matches!(socket.lock().phase, Phase::Listening(_));
        if is_listening {
            // As with TCP, this ends a listener unless only writing is shut down.
            if read {
                socket.stop_listening();
            }
            return Ok(());
        }
        if socket.abandon_attempt() {
            return Ok(());
        }
        let (done, needs_task) = socket
            .update_then(None, |state| (state.shutdown(read, write), state.needs_task_to_shut()));
        // Threads may be waiting for something that will not arrive.
        socket.wake(None);
        if needs_task {
            socket.spawn_early_task()?;
        }
        done
    })
}

/// `rclose`. Data that was sent is still transmitted after the descriptor is closed.
pub extern "C" fn rclose(fd: c_int) -> c_int {
    boundary::minus_one(|| table::close(fd))
}

/// `rgetpeername`.
pub extern "C" fn rgetpeername<'a>(
    fd: c_int,
    addr: ArrayMutPtr<'a, u8>,
    len: RoomPtr<'a>,
) -> c_int {
    boundary::minus_one(|| {
        let peer = match table::socket(fd)? {
            AnySocket::Datagram(socket) => socket.address(true)?,
            AnySocket::Stream(socket) => {
                let peer = socket.update_then(None, |state| {
                    let peer = state.peer.filter(|_| state.has_peer())?;
                    Some(state.to_program_address(peer))
                });
                peer.ok_or_else(|| Errno(libc::ENOTCONN).because("the rsocket has no peer"))?
            }
        };
        write_address(peer, addr, len)
    })
}

/// `rgetsockname`.
pub extern "C" fn rgetsockname<'a>(
    fd: c_int,
    addr: ArrayMutPtr<'a, u8>,
    len: RoomPtr<'a>,
) -> c_int {
    boundary::minus_one(|| {
        let local = match table::socket(fd)? {
            AnySocket::Datagram(socket) => socket.address(false)?,
            AnySocket::Stream(socket) => socket.update_then(None, |state| {
                state.to_program_address(state.local.unwrap_or(address::any(state.ipv6)))
            }),
        };
        write_address(local, addr, len)
    })
}

/// `rsetsockopt`.
pub extern "C" fn rsetsockopt<'a>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) -> c_int {
    boundary::minus_one(|| {
        let socket = table::socket(fd)?;
        if value.is_null() {
            return Err(Errno(libc::EFAULT).null_argument());
        }
        let bytes = value.get(len)?.unwrap_or_default();
        match socket {
            AnySocket::Stream(socket) => options::set(&socket, level, name, bytes),
            AnySocket::Datagram(socket) => datagram::set_option(&socket, level, name, bytes),
        }
    })
}

/// `rgetsockopt`.
pub extern "C" fn rgetsockopt<'a>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: InOutArrayPtr<'a, u8>,
    len: RoomPtr<'a>,
) -> c_int {
    boundary::minus_one(|| {
        let socket = table::socket(fd)?;
        if value.is_null() {
            return Err(Errno(libc::EFAULT).null_argument());
        }
        let to = value.get(len.count()?)?.unwrap_or_default();
        len.finish(match socket {
            AnySocket::Stream(socket) => options::get(&socket, level, name, to)?,
            AnySocket::Datagram(socket) => datagram::option(&socket, level, name, to)?,
        })
    })
}

/// `rfcntl`. The third argument is present only for some commands. In the calling conventions of
/// the supported processors it is in a register in any case.
pub extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    boundary::number(|| {
        let socket = table::socket(fd)?;
        let argument = argument as c_int;
        match command {
            libc::F_GETFL => Ok(socket.with_flags(|flags| flags.status)),
            libc::F_SETFL => {
                let status = libc::O_RDWR | argument & !libc::O_ACCMODE;
                socket.with_flags(|flags| flags.status = status);
                Ok(0)
            }
            libc::F_GETFD => Ok(socket.with_flags(|flags| flags.descriptor)),
            libc::F_SETFD => {
                socket.with_flags(|flags| flags.descriptor = argument);
                Ok(0)
            }
            _ => Err(Errno::UNSUPPORTED.because("unsupported command for rfcntl")),
        }
    })
}

/// `rpoll`.
pub extern "C" fn rpoll<'a>(
    fds: InOutArrayPtr<'a, libc::pollfd>,
    count: Count<'a, libc::nfds_t>,
    timeout_ms: c_int,
) -> c_int {
    boundary::number(|| {
        let fds = fds.get(count)?.ok_or_else(|| Errno(libc::EFAULT).null_argument())?;
        Ok(poll::poll_all(fds, &Limit::of_milliseconds(timeout_ms))? as c_int)
    })
}

/// `rselect`.
pub extern "C" fn rselect(
    count: c_int,
    read: InOutPtr<'_, libc::fd_set>,
    write: InOutPtr<'_, libc::fd_set>,
    except: InOutPtr<'_, libc::fd_set>,
    timeout: InPtr<'_, libc::timeval>,
) -> c_int {
    boundary::number(|| {
        let mut sets = Sets { read: read.as_mut(), write: write.as_mut(), except: except.as_mut() };
        let timeout_ms = match timeout.as_ref() {
            None => -1,
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => {
                return Err(Errno::INVAL.because("the time-out is negative"));
            }
            // Times below a millisecond are rounded up.
            Some(time) => {
                let ms =
                    time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec + 999) / 1000);
                c_int::try_from(ms).unwrap_or(c_int::MAX)
            }
        };
        Ok(poll::select(count, &mut sets, &Limit::of_milliseconds(timeout_ms))? as c_int)
    })
}

/// `repoll_create`.
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    boundary::number(|| {
        let (set, fd) = Epoll::new(flags)?;
        Ok(table::add_as(fd, Entry::Epoll(set)))
    })
}

fn set(fd: c_int) -> Result<std::sync::Arc<Epoll>> {
    match table::get(fd) {
        Some(Entry::Epoll(set)) => Ok(set),
        Some(Entry::Inherited(_)) => {
            Err(Errno::INHERITED.because("the set was created by the parent, before a fork"))
        }
        _ => Err(Errno::INVAL.because("the descriptor was not created by repoll_create")),
    }
}

/// `repoll_ctl`: returns -1 with `errno`, like epoll_ctl(2). rdma-core returns the error number.
pub extern "C" fn repoll_ctl(
    set_fd: c_int,
    op: c_int,
    fd: c_int,
    event: InPtr<'_, libc::epoll_event>,
) -> c_int {
    boundary::minus_one(|| {
        if set_fd == fd {
            return Err(Errno::INVAL.because("a set cannot contain itself"));
        }
        set(set_fd)?.control(op, fd, event.read())
    })
}

/// `repoll_wait`.
pub extern "C" fn repoll_wait<'a>(
    set_fd: c_int,
    events: InOutArrayPtr<'a, libc::epoll_event>,
    most: Count<'a, c_int>,
    timeout_ms: c_int,
) -> c_int {
    boundary::number(|| {
        let events = events.get(most)?.ok_or_else(|| Errno(libc::EFAULT).null_argument())?;
        if events.is_empty() {
            return Err(Errno::INVAL.because("no room for an event"));
        }
        Ok(set(set_fd)?.wait(events, &Limit::of_milliseconds(timeout_ms))? as c_int)
    })
}
