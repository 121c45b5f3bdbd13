//! ioctl(2) of rsockets.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::rsocket::any::AnySocket;
use std::ffi::{c_int, c_ulong, c_void};

/// `SIOCATMARK` and `SIOCOUTQ` of Linux.
const AT_MARK: c_ulong = 0x8905;
const BYTES_NOT_SENT: c_ulong = libc::TIOCOUTQ;

/// The requests of sockets that an rsocket has.
///
/// # Safety
/// `argument` is what the request has.
///
/// # Errors
/// EFAULT; ENOTTY for other requests.
pub(super) unsafe fn request(socket: &AnySocket, request: c_ulong, argument: *mut c_void) -> Result<()> {
    let number = argument.cast::<c_int>();
    if number.is_null() {
        return Err(Errno(libc::EFAULT).null());
    }
    let answer = match request {
        libc::FIONBIO => {
            // SAFETY: the caller's promise: a number.
            let on = unsafe { number.read_unaligned() } != 0;
            let flags = socket.status_flags();
            socket.set_status_flags(if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK });
            return Ok(());
        }
        libc::FIONREAD => c_int::try_from(socket.readable()).unwrap_or(c_int::MAX),
        // Nothing is kept that could be counted: bytes are in the ring until the peer's TCP has them.
        BYTES_NOT_SENT | AT_MARK => 0,
        _ => return Err(Errno(libc::ENOTTY).because(format_args!("an rsocket has no ioctl {request:#x}"))),
    };
    // SAFETY: the caller's promise: room for a number.
    unsafe { number.write_unaligned(answer) };
    Ok(())
}
