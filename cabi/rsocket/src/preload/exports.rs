//! Functions that `librspreload.so` calls, which are not meant for programs. For descriptors whose
//! bits ([`uiw_sockets_bits`]) are not set, `librspreload.so` calls the C library directly.
//! Exceptions are the functions that are called for new descriptors, and those that take several
//! descriptors, of which only one may have its bit set.

use crate::addresses::{program_name, read_address, write_address};
use crate::any::AnySocket;
use crate::epoll::Epoll;
use crate::poll::{self, Sets};
use crate::preload::bitmap::Bitmap;
use crate::preload::connections::{self, Carrier, ConnectionRecord, Role};
use crate::preload::process::{self, is_vforked};
use crate::preload::waiting::{WAITING, WaiterCounts};
use crate::preload::{BITMAP, datagrams, exec, fall_back, ioctl, plain, sendfile};
use crate::sys;
use crate::table::{self, Entry};
use crate::transfer::{self, InVec, OutBuffers, OutVec};
use crate::wait::Limit;
use libc::{epoll_event, fd_set, nfds_t, off64_t, pollfd, sigset_t, socklen_t, timespec};
use std::ffi::{c_int, c_uint, c_ulong};
use std::time::Duration;
use uiw_cabi_core::abi::cm::rdma_sockaddr;
use uiw_cabi_core::address;
use uiw_cabi_core::arguments::{
    ArrayMutPtr, ArrayPtr, Count, InOutArrayPtr, InOutPtr, InPtr, RoomPtr,
};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;

/// The descriptor belongs to the system, so the caller calls the function of the C library.
const ORDINARY: c_int = 1;
/// Further results of [`uiw_sockets_enter`].
const RSOCKET: c_int = 2;
const EPOLL: c_int = 3;

/// Like [`ORDINARY`], for calls that return a number of bytes.
const SYSTEM: isize = -2;

/// Returns the bits of the descriptors, in consecutive 64-bit words, and stores the number of bits
/// in `count`.
pub extern "C" fn uiw_sockets_bits(count: &mut usize) -> *const u64 {
    *count = size_of::<Bitmap>() * 8;
    (&raw const BITMAP).cast()
}

/// Returns the counters of the threads that wait for an epoll set in the system's call. The index
/// of a set's counter is the number of the set modulo the number of counters. The caller increments
/// the counter before such a call and decrements it afterwards. The address of the counters is also
/// the data of those events that the program must not see.
pub extern "C" fn uiw_sockets_waiting(count: &mut usize) -> *const u32 {
    *count = WaiterCounts::len();
    (&raw const WAITING).cast()
}

/// Called when the library has been loaded.
pub extern "C" fn uiw_sockets_loaded() {
    boundary::value((), || {
        exec::report_lost_rsockets();
        Ok(())
    });
}

/// Called after the program has created a TCP socket. Returns -1 with `errno` if the program must
/// not have the socket.
pub extern "C" fn uiw_sockets_made(fd: c_int, domain: c_int) -> c_int {
    process::has_table();
    boundary::minus_one(|| plain::register(fd, domain, &program_name()))
}

/// Called after the program has created a UDP socket. Returns -1 with `errno` if the program must
/// not have the socket.
pub extern "C" fn uiw_sockets_made_datagram(fd: c_int, domain: c_int) -> c_int {
    process::has_table();
    boundary::minus_one(|| datagrams::adopt(fd, domain, &program_name()))
}

/// sendto(2) on an rsocket. The address is ignored for a stream, because a stream is connected.
pub extern "C" fn uiw_sockets_sendto<'a, 'b>(
    fd: c_int,
    buffer: ArrayPtr<'a, u8>,
    len: Count<'a>,
    flags: c_int,
    addr: ArrayPtr<'b, u8>,
    addr_len: Count<'b, socklen_t>,
) -> isize {
    match table::get(fd) {
        Some(Entry::Datagram(_)) => transfer::rsendto(fd, buffer, len, flags, addr, addr_len),
        _ => transfer::rsend(fd, buffer, len, flags),
    }
}

/// Prepares the use of a descriptor: converts an accepted connection to an rsocket, and an rsocket
/// whose peer has none to a socket of the kernel. Returns 1 if the descriptor belongs to the
/// system, 2 if it is an rsocket, and 3 if it is an epoll set with rsockets.
pub extern "C" fn uiw_sockets_enter(fd: c_int) -> c_int {
    // After a failure the system's socket must not be used, because the connection may have to be
    // encrypted.
    boundary::value(RSOCKET, || Ok(enter(fd)))
}

fn enter(fd: c_int) -> c_int {
    enter_as(fd, table::get_if_open(fd))
}

fn enter_as(fd: c_int, entry: Option<Entry>) -> c_int {
    match entry {
        Some(Entry::Plain(plain)) => {
            if plain::enter(fd, &plain) {
                RSOCKET
            } else {
                ORDINARY
            }
        }
        Some(Entry::Socket(socket)) => {
            if socket.is_refused() && fall_back(&socket) {
                ORDINARY
            } else {
                RSOCKET
            }
        }
        Some(Entry::Datagram(_) | Entry::Inherited(_)) => RSOCKET,
        Some(Entry::Epoll(_)) => EPOLL,
        None => ORDINARY,
    }
}

/// Prepares the use of the descriptor like [`enter`], and returns its rsocket. Returns `None` if
/// the descriptor belongs to the system.
///
/// # Errors
/// The errors of [`table::socket`].
fn enter_socket(fd: c_int) -> Result<Option<AnySocket>> {
    match table::get_if_open(fd) {
        Some(Entry::Socket(socket)) if !socket.is_refused() => Ok(Some(AnySocket::Stream(socket))),
        entry if enter_as(fd, entry.clone()) == RSOCKET => table::socket(fd).map(Some),
        _ => Ok(None),
    }
}

/// Prepares the use of the descriptor, and makes a call on its rsocket. Returns [`SYSTEM`] if it is
/// not an rsocket.
fn transfer(fd: c_int, call: impl FnOnce(&AnySocket) -> Result<isize>) -> isize {
    boundary::number(|| match enter_socket(fd)? {
        Some(socket) => call(&socket),
        None => Ok(SYSTEM),
    })
}

/// read(2) and readv(2) into buffers. Returns -2 if the descriptor belongs to the system, so the
/// caller calls the function of the C library.
pub extern "C" fn uiw_sockets_read<'a>(
    fd: c_int,
    list: ArrayPtr<'a, OutVec<'a>>,
    count: Count<'a, c_int>,
) -> isize {
    transfer(fd, |socket| transfer::read(socket, &mut OutBuffers::new(list, count)?))
}

/// Like [`uiw_sockets_read`], for recv(2).
pub extern "C" fn uiw_sockets_receive<'a>(
    fd: c_int,
    list: ArrayPtr<'a, OutVec<'a>>,
    count: Count<'a, c_int>,
    flags: c_int,
) -> isize {
    transfer(fd, |socket| transfer::receive(socket, &mut OutBuffers::new(list, count)?, flags))
}

/// Like [`uiw_sockets_read`], for write(2), writev(2) and send(2).
pub extern "C" fn uiw_sockets_send<'a>(
    fd: c_int,
    list: ArrayPtr<'a, InVec<'a>>,
    count: Count<'a, c_int>,
    flags: c_int,
) -> isize {
    transfer(fd, |socket| transfer::send(socket, transfer::elements(list, count)?, flags))
}

/// Returns the kind of a descriptor, like [`uiw_sockets_enter`], but does not change the
/// descriptor. If it may be an rsocket, the caller calls `uiw_sockets_enter` next.
pub extern "C" fn uiw_sockets_kind(fd: c_int) -> c_int {
    boundary::value(ORDINARY, || {
        Ok(match table::get(fd) {
            Some(Entry::Socket(_) | Entry::Datagram(_) | Entry::Inherited(_)) => RSOCKET,
            Some(Entry::Epoll(_)) => EPOLL,
            Some(Entry::Plain(_)) | None => ORDINARY,
        })
    })
}

/// bind(2). Returns 1 if the caller has to make the call.
pub extern "C" fn uiw_sockets_bind<'a>(
    fd: c_int,
    addr: ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) -> c_int {
    boundary::number(|| {
        let Ok(addr) = read_address(&addr, len) else { return Ok(ORDINARY) };
        match table::get_if_open(fd) {
            Some(Entry::Plain(_)) => Ok(if plain::bind(fd, addr)? { 0 } else { ORDINARY }),
            _ => Ok(ORDINARY),
        }
    })
}

/// Called after listen(2) has succeeded on the system's socket.
pub extern "C" fn uiw_sockets_listening(fd: c_int) {
    boundary::value((), || {
        if let Some(Entry::Plain(plain)) = table::get_if_open(fd) {
            plain::mark_listening(&plain);
        }
        Ok(())
    });
}

/// Called after the system has accepted `fd`. Registers the connection, which becomes an rsocket
/// when it is used for the first time, and replaces the peer's address by the one that the program
/// sees. Returns -1 with `errno` if the program must not have the connection.
pub extern "C" fn uiw_sockets_accepted<'a>(
    listening: c_int,
    fd: c_int,
    addr: ArrayMutPtr<'a, u8>,
    len: RoomPtr<'a>,
    room: Count<'a, socklen_t>,
) -> c_int {
    boundary::minus_one(|| {
        if let Some(Entry::Plain(listening)) = table::get_if_open(listening) {
            plain::register_accepted(&listening, fd)?;
            if let (false, false, Ok(peer)) =
                (addr.is_null(), len.is_null(), sys::address_as_is(fd, true))
            {
                // accept(2) has replaced the size of the buffer by the length of the address.
                write_address(peer, addr, len.restore(room)?)?;
            }
        }
        Ok(())
    })
}

/// Writes to `real` (128 bytes) the address to which the system has to connect instead of `addr`.
/// Returns its length, 0 if the socket stays on TCP, or -1 with `errno`.
pub extern "C" fn uiw_sockets_target<'a>(
    fd: c_int,
    addr: ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
    real: &mut rdma_sockaddr,
) -> c_int {
    boundary::number(|| {
        let (Ok(to), Some(Entry::Plain(plain))) =
            (read_address(&addr, len), table::get_if_open(fd))
        else {
            return Ok(0);
        };
        if to.port() == 0 && plain::must_encrypt() {
            return Err(Errno(libc::ECONNREFUSED).because("connecting to port 0"));
        }
        // The entry is kept if this attempt uses TCP: until the TCP connection is established,
        // another attempt may still make the socket an rsocket.
        let Some(to) = plain::on_rsockets(to)?.filter(|to| to.port() != 0) else { return Ok(0) };
        plain::limit_attempt(fd, &plain);
        *real = address::to_sockaddr(to);
        Ok(address::significant_bytes(real).len() as c_int)
    })
}

/// Called after the system has connected the socket, with the error number `outcome` (0 for
/// success). Returns 0 if the call is complete, and 1 if the caller has to connect over TCP.
pub extern "C" fn uiw_sockets_connected<'a>(
    fd: c_int,
    addr: ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
    outcome: c_int,
) -> c_int {
    boundary::number(|| {
        let Some(Entry::Plain(plain)) = table::get(fd) else { return Ok(ORDINARY) };
        let to = read_address(&addr, len)?;
        match outcome {
            0 => plain::convert_connected(fd, &plain, to, false).map(|()| 0),
            libc::EINPROGRESS | libc::EINTR => {
                plain::convert_connected(fd, &plain, to, true)?;
                Err(Errno(outcome))
            }
            libc::EALREADY | libc::EISCONN => Err(Errno(outcome)),
            _ if plain::must_encrypt() => {
                Err(Errno(outcome)
                    .because("the peer has no rsockets, and TCP would not be encrypted"))
            }
            _ => {
                tracing::info!(peer = %to, error = %Errno(outcome), "the peer has no rsockets: TCP");
                plain::unlimit_attempt(fd, plain.take_syn_retries());
                // The entry is kept until TCP is connected. If the peer refuses that connection
                // too, the program's next call may find rsockets.
                Ok(ORDINARY)
            }
        }
    })
}

/// Called for a socket that could have become an rsocket, but is connected or connecting over TCP.
/// It belongs to the system from now on.
pub extern "C" fn uiw_sockets_on_tcp<'a>(
    fd: c_int,
    addr: ArrayPtr<'a, u8>,
    len: Count<'a, socklen_t>,
) {
    boundary::value((), || {
        // A program dissolves a connection with an address of the family AF_UNSPEC. `read_address`
        // fails for such an address, so the entry is kept.
        let address = address::to_canonical(read_address(&addr, len)?);
        table::release(fd);
        connections::note(ConnectionRecord {
            carrier: Carrier::Tcp,
            role: Role::Connected,
            address,
        });
        Ok(())
    });
}

/// Called before the system closes the descriptor. The caller's close(2) reports errors, and may be
/// a cancellation point.
pub extern "C" fn uiw_sockets_closing(fd: c_int) {
    if is_vforked() {
        return;
    }
    boundary::value((), || {
        if let Some(Entry::Plain(plain)) = table::get_if_open(fd) {
            plain::enter_to_close(fd, &plain);
        }
        table::release(fd);
        Ok(())
    });
}

/// Called before close_range(2) closes these descriptors.
pub extern "C" fn uiw_sockets_close_range(first: c_uint, last: c_uint) {
    if is_vforked() {
        return;
    }
    boundary::value((), || {
        for fd in BITMAP.each(first, last) {
            table::release(fd);
        }
        Ok(())
    });
}

/// Called after dup(2) or a similar call has made `new` a duplicate of `old`, and has closed the
/// file to which `new` referred before.
pub extern "C" fn uiw_sockets_duplicated(old: c_int, new: c_int) {
    if old == new || is_vforked() {
        return;
    }
    boundary::value((), || {
        table::release(new);
        table::duplicate(old, new);
        Ok(())
    });
}

/// getsockname(2) and getpeername(2). Returns 1 if the caller has to make the call.
pub extern "C" fn uiw_sockets_address<'a>(
    fd: c_int,
    addr: ArrayMutPtr<'a, u8>,
    len: RoomPtr<'a>,
    of_peer: c_int,
) -> c_int {
    boundary::number(|| match table::get_if_open(fd) {
        Some(Entry::Plain(_)) => {
            let real = sys::address_as_is(fd, of_peer != 0)?;
            write_address(real, addr, len).map(|()| 0)
        }
        _ => Ok(ORDINARY),
    })
}

/// Returns the limit for `timeout` and `mask`.
fn limit<'a>(timeout: &InPtr<'a, timespec>, mask: &InPtr<'a, sigset_t>) -> Result<Limit<'a>> {
    let limit = match timeout.as_ref() {
        None => Limit::default(),
        Some(time) => {
            let (Ok(seconds), Ok(nanos @ 0..1_000_000_000)) =
                (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec))
            else {
                return Err(Errno::INVAL.because("invalid time-out"));
            };
            Limit::within(Duration::new(seconds, nanos))
        }
    };
    Ok(limit.with_mask(mask.as_ref()))
}

/// Prepares the use of all descriptors in a list. Returns whether any is an rsocket, so that the
/// system cannot wait for them.
pub extern "C" fn uiw_sockets_enter_all<'a>(
    fds: ArrayPtr<'a, pollfd>,
    count: Count<'a, nfds_t>,
) -> c_int {
    boundary::value(0, || {
        let fds = fds.get(count)?.unwrap_or_default();
        // Every descriptor is prepared, regardless of the results for the others.
        let found = fds
            .iter()
            .filter(|fd| BITMAP.is_set(fd.fd))
            .filter(|fd| enter(fd.fd) == RSOCKET)
            .count();
        Ok((found > 0).into())
    })
}

/// poll(2), with an exact time-out and a signal mask.
pub extern "C" fn uiw_sockets_poll<'a>(
    fds: InOutArrayPtr<'a, pollfd>,
    count: Count<'a, nfds_t>,
    timeout: InPtr<'_, timespec>,
    mask: InPtr<'_, sigset_t>,
) -> c_int {
    boundary::number(|| {
        let limit = limit(&timeout, &mask)?;
        Ok(poll::poll_all(fds.get(count)?.unwrap_or_default(), &limit)? as c_int)
    })
}

/// select(2), with an exact time-out and a signal mask.
pub extern "C" fn uiw_sockets_select(
    count: c_int,
    read: InOutPtr<'_, fd_set>,
    write: InOutPtr<'_, fd_set>,
    except: InOutPtr<'_, fd_set>,
    timeout: InPtr<'_, timespec>,
    mask: InPtr<'_, sigset_t>,
) -> c_int {
    boundary::number(|| {
        let limit = limit(&timeout, &mask)?;
        let mut sets = Sets { read: read.as_mut(), write: write.as_mut(), except: except.as_mut() };
        Ok(poll::select(count, &mut sets, &limit)? as c_int)
    })
}

/// epoll_ctl(2). Returns 1 if the caller has to make the call. A set of the system is followed,
/// which means that its waits include rsockets, after its first rsocket was added.
pub extern "C" fn uiw_sockets_epoll_ctl(
    set_fd: c_int,
    op: c_int,
    fd: c_int,
    event: InPtr<'_, epoll_event>,
) -> c_int {
    boundary::number(|| {
        let set = match table::get(set_fd) {
            Some(Entry::Epoll(set)) => set,
            _ if set_fd == fd || op == libc::EPOLL_CTL_DEL => return Ok(ORDINARY),
            _ => {
                enter(fd);
                match table::get(fd) {
                    Some(Entry::Socket(_) | Entry::Datagram(_)) => {}
                    Some(Entry::Plain(plain)) if plain.may_become() => {}
                    _ => return Ok(ORDINARY),
                }
                let set = table::add_epoll(set_fd, Epoll::of_program(set_fd)?);
                set.wake_system();
                set
            }
        };
        if set_fd == fd {
            return Ok(ORDINARY);
        }
        let event = event.read();
        // A member's descriptor was prepared when it was added, so `enter` is not needed. This path
        // has to be fast, because programs such as redis-benchmark remove and add a connection with
        // each message.
        if op != libc::EPOLL_CTL_ADD
            && let Some(done) = set.control_member(op, fd, event)
        {
            return done.map(|()| 0);
        }
        enter(fd);
        set.control(op, fd, event).map(|()| 0)
    })
}

/// epoll_wait(2) for a set that is followed, with an exact time-out and a signal mask.
pub extern "C" fn uiw_sockets_epoll_wait<'a>(
    set_fd: c_int,
    events: InOutArrayPtr<'a, epoll_event>,
    most: Count<'a, c_int>,
    timeout: InPtr<'_, timespec>,
    mask: InPtr<'_, sigset_t>,
) -> c_int {
    boundary::number(|| {
        let Some(events @ [_, ..]) = events.get(most)? else {
            return Err(Errno::INVAL.because("no room for an event"));
        };
        let Some(Entry::Epoll(set)) = table::get(set_fd) else {
            return Err(Errno(libc::EBADF).because("the set was closed"));
        };
        Ok(set.wait(events, &limit(&timeout, &mask)?)? as c_int)
    })
}

/// ioctl(2) on an rsocket.
pub extern "C" fn uiw_sockets_ioctl(
    fd: c_int,
    request: c_ulong,
    argument: InOutPtr<'_, [u8; 4]>,
) -> c_int {
    boundary::minus_one(|| ioctl::request(&table::socket(fd)?, request, argument.as_mut()))
}

/// sendfile(2) to an rsocket.
pub extern "C" fn uiw_sockets_sendfile(
    to: c_int,
    file: c_int,
    offset: InOutPtr<'_, off64_t>,
    count: usize,
) -> isize {
    boundary::number(|| sendfile::send(to, file, offset.as_mut(), count))
}
