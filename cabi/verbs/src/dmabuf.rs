//! Memory of a DMA-buf: a buffer of another device that the CPU can map. Examples are the buffers
//! of udmabuf, of DMA heaps and of most display drivers.

use crate::fault_handler;
use crate::mapping::{RegisteredRange, page_size};
use crate::mr::{self, RegionBounds};
use crate::pd::Pd;
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use uiw_cabi_core::abi::mr as flags;
use uiw_cabi_core::abi::{ibv_mr, zeroed};
use uiw_cabi_core::arguments::Handle;
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_verbs::{Access, Memory};

/// Magic number that statfs(2) returns for a DMA-buf (`linux/magic.h`).
const MAGIC: i64 = 0x444d_4142;
/// Request `DMA_BUF_IOCTL_SYNC` (`linux/dma-buf.h`).
const SYNC: c_ulong = 0x4008_6200;
/// Flags `DMA_BUF_SYNC_RW`. Without [`SYNC_END`], they start an access of the CPU.
const SYNC_READ_WRITE: u64 = 3;
/// Flag `DMA_BUF_SYNC_END`, which ends an access.
const SYNC_END: u64 = 1 << 2;

/// Mapped part of a DMA-buf. [`map`] starts an access of the CPU with `DMA_BUF_IOCTL_SYNC`, and
/// dropping the value ends the access.
struct MappedPart {
    file: File,
    at: *mut c_void,
    len: usize,
}

// SAFETY: a file may be closed, and memory unmapped, by any thread. Only `drop` uses the address,
// and it has the value for itself.
unsafe impl Send for MappedPart {}

impl Drop for MappedPart {
    fn drop(&mut self) {
        if let Err(error) = sync(self.file.as_raw_fd(), SYNC_READ_WRITE | SYNC_END) {
            tracing::warn!(%error, "DMA_BUF_IOCTL_SYNC: the device may not see the written data");
        }
        // SAFETY: `map` mapped `len` bytes at `at`, and only this value unmaps them, once. Nothing
        // accesses the bytes any more, because the `Memory` that owns this value accesses them only
        // while it lives, and without a `Memory` nothing does.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

fn sync(fd: RawFd, what: u64) -> Result<()> {
    loop {
        // SAFETY: the kernel reads a 64-bit number, `struct dma_buf_sync`, from the pointer, which
        // points to the argument `what`. The descriptor is that of a file that `size` has found to
        // be a DMA-buf, so the request means this there.
        if unsafe { libc::ioctl(fd, SYNC, &raw const what) } == 0 {
            return Ok(());
        }
        match Errno::last() {
            Errno(libc::EINTR | libc::EAGAIN) => {}
            errno => return Err(errno),
        }
    }
}

/// Returns the size of a DMA-buf in bytes.
///
/// # Errors
/// EINVAL for any other file.
fn size(mut file: &File) -> Result<u64> {
    let mut stat: libc::statfs = zeroed();
    // SAFETY: `stat` is a local variable of the type that the kernel fills, and nothing else uses
    // it during the call. An invalid descriptor gives an error.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(Errno::last().because("querying the type of a DMA-buf failed"));
    }
    if stat.f_type != MAGIC {
        return Err(Errno::INVAL.because("the descriptor is not a DMA-buf"));
    }
    // A DMA-buf has no position, but seeking to its end returns its size.
    file.seek(SeekFrom::End(0))
        .map_err(|error| Errno::from(error).because("querying the size of a DMA-buf failed"))
}

/// Duplicates a descriptor of the program.
///
/// # Errors
/// EBADF, EMFILE.
fn duplicate(fd: RawFd) -> Result<File> {
    if fd < 0 {
        return Err(Errno(libc::EBADF)
            .because(format_args!("duplicating descriptor {fd} of a DMA-buf failed")));
    }
    // SAFETY: the descriptor is not -1, as checked above, and the program keeps it open during the
    // call, because it identifies the DMA-buf to register (ibv_reg_mr(3)). If it is not open,
    // duplicating it fails with EBADF.
    let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    own.map(File::from).map_err(|error| {
        Errno::from(error).because(format_args!("duplicating descriptor {fd} of a DMA-buf failed"))
    })
}

/// Maps `length` bytes from `offset` on. They stay mapped until the region is deregistered.
///
/// # Errors
/// Returns the errors of [`duplicate`] and [`size`]; EINVAL if the DMA-buf does not contain these
/// bytes, EOPNOTSUPP if the CPU cannot map it, EACCES if it is not writable but must be.
fn map(fd: RawFd, offset: u64, length: usize, writable: bool) -> Result<Memory> {
    let file = duplicate(fd)?;
    let size = size(&file)?;
    let len = offset.checked_add(length as u64).filter(|end| length > 0 && *end <= size);
    let (Some(Ok(len)), Ok(skip)) = (len.map(usize::try_from), usize::try_from(offset)) else {
        return Err(Errno::INVAL.because(format_args!(
            "{length} bytes from offset {offset} are empty or not inside the DMA-buf of {size} bytes"
        )));
    };
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // The DMA-buf is mapped from its beginning, because some drivers (Linux's DRM shmem helper)
    // ignore the offset of a mapping.
    // SAFETY: without an address and MAP_FIXED, the kernel chooses an address where nothing is
    // mapped, so the call changes no memory that is in use. `len` is not 0, and an error gives
    // MAP_FAILED.
    let at = unsafe {
        libc::mmap64(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(not_mapped(fd, Errno::last()));
    }
    let mapped = MappedPart { file, at, len };
    sync(mapped.file.as_raw_fd(), SYNC_READ_WRITE)?;
    let first = at.cast::<u8>().wrapping_add(skip);
    // SAFETY: `offset + length` is at most the size of the mapping, as checked above, and `mapped`,
    // which the `Memory` owns, keeps it. Accesses that `protection` forbids fail or end the
    // process. Until a request completes, the program does not use its buffers (ibv_post_send(3),
    // ibv_post_recv(3)). Memory for peers is accessed atomically.
    Ok(unsafe { Memory::mapped(Box::new(mapped), first, length) })
}

/// Interprets the `errno` of a failed mapping. EACCES and ENOMEM are errors of the program; other
/// errors mean that the CPU cannot map buffers of this driver.
fn not_mapped(fd: RawFd, errno: Errno) -> Errno {
    if errno == Errno(libc::EACCES) || errno == Errno(libc::ENOMEM) {
        return errno.because(format_args!("mapping DMA-buf {fd}"));
    }
    tracing::warn!(fd, error = %errno, "a processor cannot map the DMA-buf: use a buffer of the host");
    Errno::UNSUPPORTED.because("the DMA-buf cannot be mapped")
}

/// Registers part of a DMA-buf, like [`ibv_reg_dmabuf_mr`].
pub(crate) fn register(
    domain: &Object<Pd>,
    (fd, offset): (RawFd, u64),
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr> {
    let rights = mr::access(access)?;
    if access & flags::IBV_ACCESS_ON_DEMAND != 0 || rights.contains(Access::ZERO_BASED) {
        return Err(
            Errno::INVAL.because("a DMA-buf supports neither on-demand paging nor a zero base")
        );
    }
    // The kernel has the same restriction, because it maps whole pages.
    let page = page_size() as u64;
    if offset % page != iova % page {
        return Err(Errno::INVAL
            .because(format_args!("{offset:#x} and {iova:#x} have different offsets in a page")));
    }
    fault_handler::install();
    let memory = map(fd, offset, length, access & flags::IBV_ACCESS_WRITABLE != 0)?;
    // rdma-core reports the offset as the address.
    let addr = ptr::without_provenance_mut(
        usize::try_from(offset).map_err(|_| Errno::INVAL.out_of_range())?,
    );
    let bounds = RegionBounds { addr, length, base: iova };
    mr::add(domain, memory, RegisteredRange::on_demand(), bounds, rights)
}

/// `ibv_reg_dmabuf_mr`: registers `length` bytes from `offset` on of the DMA-buf `fd`. The region
/// begins at `iova` for peers and in elements.
pub extern "C" fn ibv_reg_dmabuf_mr(
    pd: Handle<'_, Pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| register(pd.get()?, (fd, offset), length, iova, access.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmappable_buffers_not_supported() {
        for errno in [libc::ENODEV, libc::EINVAL, libc::ENOTTY, libc::EPERM].map(Errno) {
            assert_eq!(not_mapped(3, errno), Errno::UNSUPPORTED, "{errno}");
        }
        for errno in [libc::EACCES, libc::ENOMEM].map(Errno) {
            assert_eq!(not_mapped(3, errno), errno);
        }
    }
}
