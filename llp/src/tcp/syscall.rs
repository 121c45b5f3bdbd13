//! System calls that take addresses of registered memory, and TCP_INFO. This module contains all
//! unsafe code for the kernel's TCP.
//!
//! Data is sent and received with `libc::syscall`, because the functions of the C library are
//! cancellation points (pthreads(7)): a C thread that is cancelled would end in the middle of a
//! round, with locks held. They also cost two locked instructions each.

use std::{
    ffi::c_long,
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{ioctl_fionread, retry_on_intr},
};
use uiw_mem::{IoVec, IoVecMut};

/// Maximum number of elements in a call (UIO_MAXIOV). Further elements wait for the next call.
const MAX_ELEMENTS: usize = 1024;

/// Address argument of calls for a connected socket.
const NO_ADDRESS: *const libc::sockaddr = ptr::null();

/// Sends bytes from the front of `bufs`.
pub(super) fn send(fd: BorrowedFd<'_>, bufs: &[IoVec<'_>]) -> io::Result<usize> {
    let bufs = &bufs[..bufs.len().min(MAX_ELEMENTS)];
    let (fd, elements) = (fd.as_raw_fd(), IoVec::as_libc(bufs));
    if let [_] = bufs {
        // SAFETY: `elements` points to the only element of `bufs`, whose memory is valid during the
        // call.
        return retry(|| unsafe {
            let only = *elements;
            let (base, len, flags) = (only.iov_base, only.iov_len, libc::MSG_NOSIGNAL);
            libc::syscall(libc::SYS_sendto, fd, base, len, flags, NO_ADDRESS, 0)
        });
    }
    let message = message(elements.cast_mut(), bufs.len());
    // SAFETY: `message` refers to the elements of `bufs`, which the call only reads. Their memory
    // is valid during the call.
    retry(|| unsafe {
        libc::syscall(libc::SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL)
    })
}

/// Receives into `bufs`.
pub(super) fn recv(fd: BorrowedFd<'_>, bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
    let count = bufs.len().min(MAX_ELEMENTS);
    let (fd, elements) = (fd.as_raw_fd(), IoVecMut::as_libc(bufs));
    if count == 1 {
        // SAFETY: `elements` points to the only element of `bufs`, whose memory is valid during the
        // call.
        return retry(|| unsafe {
            let only = *elements;
            let (base, len) = (only.iov_base, only.iov_len);
            libc::syscall(libc::SYS_recvfrom, fd, base, len, 0, NO_ADDRESS, NO_ADDRESS)
        });
    }
    let mut message = message(elements, count);
    // SAFETY: `message` refers to the elements of `bufs`, whose memory is valid during the call.
    retry(|| unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, 0) })
}

/// Returns the number of bytes that can be received.
pub(super) fn readable(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(retry_on_intr(|| ioctl_fionread(fd))? as usize)
}

/// Returns whether the peer has sent its FIN, or the connection is gone.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut entry = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    Ok(retry_on_intr(|| poll(&mut entry, Some(&Timespec::default())))? > 0)
}

/// Sets SO_RCVLOWAT (tcp(7)): the kernel reports the socket as readable only once it has received
/// `bytes` bytes, and provides room for them.
pub(super) fn set_low_water_mark(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let (value, len) = ((&raw const bytes).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the call reads one integer.
    retry(|| unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, len).into()
    })?;
    Ok(())
}

fn message(elements: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: null pointers and zero lengths are a valid msghdr without an address and control
    // messages.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = elements;
    message.msg_iovlen = count as _;
    message
}

/// Repeats `call` while a signal interrupts it (EINTR). A negative result means an error in
/// `errno`.
fn retry(mut call: impl FnMut() -> c_long) -> io::Result<usize> {
    loop {
        match call() {
            n if n >= 0 => return Ok(n as usize),
            _ => {
                let error = io::Error::last_os_error();
                if error.raw_os_error() != Some(libc::EINTR) {
                    return Err(error);
                }
            }
        }
    }
}

/// Returns TCP_INFO. Fields that an older kernel does not fill are zero.
pub(super) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes, the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the structure consists of integers, and was zeroed before.
    Ok(unsafe { info.assume_init() })
}

/// `getsockopt` level of MPTCP.
const SOL_MPTCP: libc::c_int = 284;
/// Option that returns TCP_INFO of each subflow (linux/mptcp.h).
const MPTCP_TCPINFO: libc::c_int = 2;

/// Maximum number of subflows that are returned. It exceeds the kernel's limit, which is 8 in
/// addition to the first subflow (MPTCP_SUBFLOWS_MAX).
const MAX_SUBFLOWS: usize = 16;

/// `struct mptcp_subflow_data`, followed by the data of the subflows.
#[repr(C, align(8))]
pub(super) struct Subflows {
    size_header: u32,
    /// Number of subflows, set by the kernel. It may exceed the number of `infos`.
    count: u32,
    /// Size of the kernel's `tcp_info` in bytes, set by the kernel.
    size_kernel: u32,
    size_info: u32,
    infos: [libc::tcp_info; MAX_SUBFLOWS],
}

impl Subflows {
    /// Returns TCP_INFO of the subflows of an MPTCP connection.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the connection has fallen back to TCP, or the kernel is older than 5.16.
    pub(super) fn query(fd: BorrowedFd<'_>) -> io::Result<Box<Self>> {
        let infos = [tcp_info_of(&[]); MAX_SUBFLOWS];
        let (size_header, size_info) = (16, size_of::<libc::tcp_info>() as u32);
        let mut subflows =
            Box::new(Self { size_header, count: 0, size_kernel: 0, size_info, infos });
        let mut len = size_of::<Self>() as libc::socklen_t;
        // SAFETY: the call writes at most `len` bytes, the size of `subflows`, which consists of
        // integers.
        let result = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                SOL_MPTCP,
                MPTCP_TCPINFO,
                ptr::from_mut(&mut *subflows).cast(),
                &mut len,
            )
        };
        if result == 0 { Ok(subflows) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn infos(&self) -> &[libc::tcp_info] {
        &self.infos[..(self.count as usize).min(MAX_SUBFLOWS)]
    }
}

/// Converts bytes of TCP_INFO, which may come from an older or a newer kernel.
pub(super) fn tcp_info_of(bytes: &[u8]) -> libc::tcp_info {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let len = bytes.len().min(size_of::<libc::tcp_info>());
    // SAFETY: both have `len` bytes. The structure consists of integers, and was zeroed before.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), info.as_mut_ptr().cast(), len);
        info.assume_init()
    }
}
