//! ioctl(2) of rsockets.

use crate::any::AnySocket;
use std::ffi::{c_int, c_ulong};
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// `SIOCATMARK` and `SIOCOUTQ` of Linux.
const AT_MARK: c_ulong = 0x8905;
const BYTES_NOT_SENT: c_ulong = libc::TIOCOUTQ;

/// Performs those ioctl requests of sockets that rsockets support.
///
/// # Errors
/// EFAULT; ENOTTY for other requests.
pub(super) fn request(
    socket: &AnySocket,
    request: c_ulong,
    argument: Option<&mut [u8; size_of::<c_int>()]>,
) -> Result<()> {
    let number = argument.ok_or_else(|| Errno(libc::EFAULT).null_argument())?;
    let answer = match request {
        libc::FIONBIO => {
            let on = c_int::from_ne_bytes(*number) != 0;
            socket.with_flags(|flags| {
                flags.status &= !libc::O_NONBLOCK;
                flags.status |= if on { libc::O_NONBLOCK } else { 0 };
            });
            return Ok(());
        }
        libc::FIONREAD => c_int::try_from(socket.readable()).unwrap_or(c_int::MAX),
        // The amount of unsent data is unknown, because data stays in the ring until the peer's TCP
        // has it.
        BYTES_NOT_SENT | AT_MARK => 0,
        _ => {
            return Err(
                Errno(libc::ENOTTY).because(format_args!("an rsocket has no ioctl {request:#x}"))
            );
        }
    };
    *number = answer.to_ne_bytes();
    Ok(())
}
