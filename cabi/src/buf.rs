//! Buffers that the library allocates for programs. A device without memory of its own gives page-aligned memory of the heap, as
//! rdma-core does for every provider without an allocator.

use crate::abi::mr as masks;
use crate::abi::{ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_pd};
use crate::boundary::{self, Result};
use crate::dmabuf;
use crate::errno::Errno;
use crate::mr;
use crate::object::{Body, Object};
use crate::pd;
use std::ffi::{c_int, c_void};
use std::ptr;

/// A buffer as C holds it.
struct Buf {
    pd: *mut ibv_pd,
}

// SAFETY: the pointer is compared, and not read through.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

impl Body for Buf {
    type Abi = ibv_buf;
    const KIND: u32 = 0x7569_630c;
}

/// `ibv_alloc_buf`.
///
/// # Safety
/// `pd` is NULL or one of ours, `buf` is NULL or writable.
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        unsafe { pd::get(pd) }?;
        if buf.is_null() {
            return Err(Errno::INVAL.because("ibv_alloc_buf without a place for the handle"));
        }
        let mut addr = ptr::null_mut();
        // SAFETY: reads a number; writes an address of the heap, which `ibv_free_buf` frees.
        let failed = unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
            libc::posix_memalign(&raw mut addr, page, size)
        };
        if failed != 0 {
            return Err(Errno(failed).because(format_args!("no memory for a buffer of {size} bytes")));
        }
        // SAFETY: the caller's promise.
        unsafe { *buf = Object::create(ibv_buf { addr, size }, Buf { pd }) };
        Ok(addr)
    })
}

/// `ibv_free_buf`.
///
/// # Safety
/// `buf` is NULL or one of ours, and nothing uses it or its memory any more.
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    boundary::value((), || {
        // SAFETY: the caller's promise. A child of a fork has the memory as its parent.
        unsafe {
            Object::<Buf>::get_any(buf)?;
            libc::free((*buf).addr);
            Object::<Buf>::free(buf);
        }
        Ok(())
    });
}

/// `ibv_export_buf_dmabuf_fd`: memory of the heap is no DMA-buf.
///
/// # Safety
/// `buf` is NULL or one of ours.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller's promise.
        unsafe { Object::<Buf>::get(buf) }?;
        Err(Errno(libc::ENODATA).because("the buffer is memory of the heap"))
    })
}

/// `ibv_reg_buf_mr`.
///
/// # Safety
/// `pd` and `buf` are NULL or ours.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        unsafe {
            check_inside(pd, buf, addr, length)?;
            mr::register(pd, addr, length, None, access.cast_unsigned())
        }
    })
}

/// That `length` bytes at `addr` are in `buf`, which was made in `pd`.
///
/// # Safety
/// `buf` is NULL or one of ours.
unsafe fn check_inside(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    let (object, base, size) = unsafe { (Object::<Buf>::get(buf)?, (*buf).addr, (*buf).size) };
    if object.pd != pd {
        return Err(Errno::INVAL.because("the buffer is of another protection domain"));
    }
    let offset = addr.addr().checked_sub(base.addr());
    match offset.and_then(|offset| size.checked_sub(offset)) {
        Some(left) if length <= left => Ok(()),
        _ => Err(Errno::INVAL.because(format_args!(
            "{length} bytes at {addr:p} are not inside of the buffer of {size} bytes at {base:p}"
        ))),
    }
}

/// `ibv_reg_mr_ex`: memory by its address, of a buffer, or of a DMA-buf.
///
/// # Safety
/// `pd` is NULL or one of ours, `attr` is NULL or readable; the memory is as for `ibv_reg_mr`.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    boundary::pointer(|| {
        if attr.is_null() {
            return Err(Errno::INVAL.because("ibv_reg_mr_ex without attributes"));
        }
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.read() };
        let has = |mask| attr.comp_mask & mask != 0;
        let known = masks::IBV_REG_MR_MASK_IOVA
            | masks::IBV_REG_MR_MASK_ADDR
            | masks::IBV_REG_MR_MASK_FD
            | masks::IBV_REG_MR_MASK_FD_OFFSET
            | masks::IBV_REG_MR_MASK_BUF;
        if attr.comp_mask & !known != 0 {
            return Err(Errno::UNSUPPORTED.because(format_args!(
                "ibv_reg_mr_ex with mask {:#x}: a DMA handle, or what is not known",
                attr.comp_mask
            )));
        }
        if has(masks::IBV_REG_MR_MASK_FD) {
            if !has(masks::IBV_REG_MR_MASK_FD_OFFSET)
                || has(masks::IBV_REG_MR_MASK_ADDR)
                || has(masks::IBV_REG_MR_MASK_BUF)
            {
                return Err(
                    Errno::INVAL.because("ibv_reg_mr_ex of a DMA-buf without an offset, or with an address")
                );
            }
            let iova = if has(masks::IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.fd_offset };
            let from = (attr.fd, attr.fd_offset);
            // SAFETY: the caller's promise.
            return unsafe { dmabuf::register(pd, from, attr.length, iova, attr.access.cast_unsigned()) };
        }
        if !has(masks::IBV_REG_MR_MASK_ADDR) || has(masks::IBV_REG_MR_MASK_FD_OFFSET) {
            return Err(Errno::INVAL.because("ibv_reg_mr_ex without an address, or with an offset of a file"));
        }
        let iova = has(masks::IBV_REG_MR_MASK_IOVA).then_some(attr.iova);
        // SAFETY: the caller's promise.
        unsafe {
            if has(masks::IBV_REG_MR_MASK_BUF) {
                check_inside(pd, attr.buf, attr.addr, attr.length)?;
            }
            mr::register(pd, attr.addr, attr.length, iova, attr.access.cast_unsigned())
        }
    })
}
