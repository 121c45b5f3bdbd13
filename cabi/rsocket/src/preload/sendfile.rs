//! sendfile(2) to an rsocket, by reading the file and sending the data.

use crate::transfer;
use libc::off64_t;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt as _;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;

/// Number of bytes that are read at a time.
const CHUNK: usize = 128 << 10;

/// Sends up to `count` bytes of `file`, from `offset` on, or from the position of the file, which
/// is advanced. Sets the offset to the first byte that was not sent.
///
/// # Errors
/// EBADF for a negative number; EINVAL for a file without offsets; the errors of sending and
/// reading, if nothing was sent.
pub(super) fn send(
    to: RawFd,
    file: RawFd,
    offset: Option<&mut off64_t>,
    count: usize,
) -> Result<isize> {
    if file < 0 {
        return Err(Errno(libc::EBADF).because("sendfile from a negative descriptor"));
    }
    // SAFETY: the number is not negative, as checked above, and `ManuallyDrop` keeps it from being
    // closed here. The program keeps the descriptor open during the call, because it is the file to
    // read (sendfile(2)). For a number that is not open, every use of it here fails with EBADF.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(file) });
    let start = match &offset {
        Some(offset) => u64::try_from(**offset).map_err(|_| Errno::INVAL.out_of_range())?,
        None => file
            .stream_position()
            .map_err(|_| Errno::INVAL.because("sendfile for a file without offsets"))?,
    };
    let mut buffer = vec![0; CHUNK.min(count)];
    let mut done = 0;
    let sent = loop {
        let want = buffer.len().min(count - done);
        let read = match file.read_at(&mut buffer[..want], start + done as u64) {
            Ok(0) => break Ok(()),
            Ok(read) => read,
            Err(error) => break Err(Errno::from(error)),
        };
        match transfer::send_bytes(to, &buffer[..read]) {
            Ok(sent) => {
                done += sent;
                if sent < read || done == count {
                    break Ok(());
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    if let (Err(errno), 0) = (sent, done) {
        return Err(errno);
    }
    match offset {
        Some(offset) => *offset += done as off64_t,
        None => drop(file.seek(SeekFrom::Start(start + done as u64))),
    }
    Ok(done as isize)
}
