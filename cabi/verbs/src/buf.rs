//! Buffers that the library allocates for programs. This device has no memory of its own, so a
//! buffer is page-aligned memory of the heap, as in rdma-core for every provider without an
//! allocator.

use crate::dmabuf;
use crate::mapping::page_size;
use crate::mr;
use crate::pd::Pd;
use std::ffi::{c_int, c_void};
use std::ptr;
use uiw_cabi_core::abi::mr as masks;
use uiw_cabi_core::abi::{ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_pd};
use uiw_cabi_core::arguments::{Handle, InPtr, OutPtr, OwnedHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};

/// Buffer that C refers to. Programs only read its structure, like this library.
pub struct Buf {
    pd: *mut ibv_pd,
}

// SAFETY: the pointer is only compared with others, never dereferenced, so it may be moved to any
// thread.
unsafe impl Send for Buf {}
// SAFETY: a shared reference only permits comparing the pointer, which never changes.
unsafe impl Sync for Buf {}

impl Body for Buf {
    type Abi = ibv_buf;
    type C = ibv_buf;
    const KIND: ObjectKind = ObjectKind::Buffer;
}

/// `ibv_alloc_buf`.
pub extern "C" fn ibv_alloc_buf(
    pd: Handle<'_, Pd>,
    size: usize,
    buf: OutPtr<'_, *mut ibv_buf>,
) -> *mut c_void {
    boundary::pointer(|| {
        let pd = pd.get()?.abi();
        buf.check()?;
        let mut addr = ptr::null_mut();
        // SAFETY: the call writes one pointer to `addr`, a local variable of this type. The size of
        // a page is a power of two and a multiple of the size of a pointer, as posix_memalign(3)
        // requires.
        let failed = unsafe { libc::posix_memalign(&raw mut addr, page_size(), size) };
        if failed != 0 {
            return Err(
                Errno(failed).because(format_args!("out of memory for a buffer of {size} bytes"))
            );
        }
        buf.write(Object::create(ibv_buf { addr, size }, Buf { pd }))?;
        Ok(addr)
    })
}

/// `ibv_free_buf`. The program has deregistered the regions in the buffer, as before free(3). This
/// is not checked.
pub extern "C" fn ibv_free_buf(buf: OwnedHandle<'_, Buf>) {
    boundary::value((), || {
        let addr = buf.get_any()?.abi.get(|buf| &buf.addr);
        buf.destroy(|_| Ok(()))?;
        // SAFETY: `ibv_alloc_buf` allocated `addr` with posix_memalign, and nothing changes the
        // field (see `Buf`). `destroy` succeeds once for each object, so the memory is freed once.
        // The program does not use the memory any more, and has deregistered the regions in it, as
        // documented above. The child of a fork has its own copy.
        unsafe { libc::free(addr) };
        Ok(())
    });
}

/// `ibv_export_buf_dmabuf_fd`: fails, because heap memory is not a DMA-buf.
pub extern "C" fn ibv_export_buf_dmabuf_fd(buf: Handle<'_, Buf>) -> c_int {
    boundary::number(|| {
        buf.get()?;
        Err(Errno(libc::ENODATA).because("the buffer is memory of the heap"))
    })
}

/// `ibv_reg_buf_mr`.
pub extern "C" fn ibv_reg_buf_mr(
    pd: Handle<'_, Pd>,
    buf: Handle<'_, Buf>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| {
        check_inside(pd.as_ptr(), buf.get()?, addr, length)?;
        mr::register(pd.get()?, addr, length, None, access.cast_unsigned())
    })
}

/// Checks that `length` bytes at `addr` are inside `buf`, and that `buf` belongs to `pd`.
fn check_inside(
    pd: *mut ibv_pd,
    buf: &Object<Buf>,
    addr: *mut c_void,
    length: usize,
) -> Result<()> {
    let (base, size) = (buf.abi.get(|buf| &buf.addr), buf.abi.get(|buf| &buf.size));
    if buf.pd != pd {
        return Err(Errno::INVAL.because("the buffer belongs to another protection domain"));
    }
    let offset = addr.addr().checked_sub(base.addr());
    match offset.and_then(|offset| size.checked_sub(offset)) {
        Some(left) if length <= left => Ok(()),
        _ => Err(Errno::INVAL.because(format_args!(
            "{length} bytes at {addr:p} are not inside the buffer of {size} bytes at {base:p}"
        ))),
    }
}

/// `ibv_reg_mr_ex`: registers memory by its address, in a buffer, or in a DMA-buf.
pub extern "C" fn ibv_reg_mr_ex(
    pd: Handle<'_, Pd>,
    given: InPtr<'_, ibv_mr_init_attr>,
) -> *mut ibv_mr {
    boundary::pointer(|| {
        let attr = given.get()?;
        let has = |mask| attr.comp_mask & mask != 0;
        let known = masks::IBV_REG_MR_MASK_IOVA
            | masks::IBV_REG_MR_MASK_ADDR
            | masks::IBV_REG_MR_MASK_FD
            | masks::IBV_REG_MR_MASK_FD_OFFSET
            | masks::IBV_REG_MR_MASK_BUF;
        if attr.comp_mask & !known != 0 {
            return Err(Errno::UNSUPPORTED.because(format_args!(
                "ibv_reg_mr_ex with mask {:#x}: DMA handles and unknown bits are not supported",
                attr.comp_mask
            )));
        }
        if has(masks::IBV_REG_MR_MASK_FD) {
            if !has(masks::IBV_REG_MR_MASK_FD_OFFSET)
                || has(masks::IBV_REG_MR_MASK_ADDR)
                || has(masks::IBV_REG_MR_MASK_BUF)
            {
                return Err(Errno::INVAL
                    .because("ibv_reg_mr_ex for a DMA-buf without an offset, or with an address"));
            }
            let iova = if has(masks::IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.fd_offset };
            let from = (attr.fd, attr.fd_offset);
            return dmabuf::register(
                pd.get()?,
                from,
                attr.length,
                iova,
                attr.access.cast_unsigned(),
            );
        }
        if !has(masks::IBV_REG_MR_MASK_ADDR) || has(masks::IBV_REG_MR_MASK_FD_OFFSET) {
            return Err(
                Errno::INVAL.because("ibv_reg_mr_ex without an address, or with a file offset")
            );
        }
        let iova = has(masks::IBV_REG_MR_MASK_IOVA).then_some(attr.iova);
        if has(masks::IBV_REG_MR_MASK_BUF) {
            check_inside(pd.as_ptr(), given.object(|attr| &attr.buf)?, attr.addr, attr.length)?;
        }
        mr::register(pd.get()?, attr.addr, attr.length, iova, attr.access.cast_unsigned())
    })
}
