//! `ibv_wr_*`: requests built field by field between `ibv_wr_start` and `ibv_wr_complete`.

use super::Qp;
use super::builder::{Batch, Data, Wr};
use crate::ah::{self, Ah};
use crate::call_lock::{BatchHandle, Batched, CallLock};
use crate::mw::{self, Mw};
use crate::post;
use std::ffi::c_int;
use std::{ptr, slice};
use uiw_cabi_core::abi::{ibv_data_buf, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use uiw_cabi_core::arguments::{ArrayPtr, Count, Handle, InPtr, TableHandle, c1, c2, c3, c4, c5};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_verbs::{Remote, STag, SendFlags, SendOp, SendWr, Sge};

/// `ibv_qp_to_qp_ex`: returns NULL for a queue pair that was created without `ibv_wr_*`.
pub extern "C" fn ibv_qp_to_qp_ex(qp: Handle<'_, Qp>) -> *mut ibv_qp_ex {
    boundary::pointer(|| {
        let qp = qp.get()?;
        Ok(if qp.builder.is_some() { qp.abi.as_ptr() } else { ptr::null_mut() })
    })
}

/// Fills the function table with the functions for the operations that the program has requested.
pub(super) fn fill_function_table(abi: &mut ibv_qp_ex, ops: u64) {
    let has = |bit: u32| ops & 1 << bit != 0;
    abi.wr_rdma_write = has(0).then(|| c3(wr_rdma_write)).flatten();
    abi.wr_rdma_write_imm = has(1).then(|| c4(wr_rdma_write_imm)).flatten();
    abi.wr_send = has(2).then(|| c1(wr_send)).flatten();
    abi.wr_send_imm = has(3).then(|| c2(wr_send_imm)).flatten();
    abi.wr_rdma_read = has(4).then(|| c3(wr_rdma_read)).flatten();
    abi.wr_atomic_cmp_swp = has(5).then(|| c5(wr_atomic_cmp_swp)).flatten();
    abi.wr_atomic_fetch_add = has(6).then(|| c4(wr_atomic_fetch_add)).flatten();
    abi.wr_local_inv = has(7).then(|| c2(wr_local_inv)).flatten();
    abi.wr_bind_mw = has(8).then(|| c4(wr_bind_mw)).flatten();
    abi.wr_send_inv = has(9).then(|| c2(wr_send_inv)).flatten();
    abi.wr_atomic_write = has(12).then(|| c4(wr_atomic_write)).flatten();
    abi.wr_set_ud_addr = c4(wr_set_ud_addr);
    abi.wr_set_inline_data = c3(wr_set_inline_data);
    abi.wr_set_inline_data_list = c3(wr_set_inline_data_list);
    abi.wr_set_sge = c4(wr_set_sge);
    abi.wr_set_sge_list = c3(wr_set_sge_list);
    abi.wr_start = c1(wr_start);
    abi.wr_complete = c1(wr_complete);
    abi.wr_abort = c1(wr_abort);
}

impl Batched for Qp {
    type State = Batch;

    #[inline]
    fn state(&self) -> Result<&CallLock<Batch>> {
        self.builder
            .as_ref()
            .ok_or_else(|| Errno::INVAL.because("the queue pair was made without send_ops_flags"))
    }
}

/// Calls `body` with the batch. The first error of a batch is stored, and returned by
/// `ibv_wr_complete`.
#[inline]
fn with_batch(
    mut qp: BatchHandle<'_, Qp>,
    body: impl FnOnce(&Object<Qp>, &mut Batch) -> Result<()>,
) {
    boundary::value_fast((), || {
        qp.with(|qp, batch| {
            if let Err(errno) = body(qp, batch) {
                batch.failed.get_or_insert(errno);
            }
            Ok(())
        })
    });
}

#[inline]
fn push(qp: &Object<Qp>, batch: &mut Batch, op: SendOp) {
    let flags = SendFlags::from_bits_truncate(qp.abi.get(|abi| &abi.wr_flags)) - SendFlags::INLINE;
    batch.wrs.push(Wr { wr_id: qp.abi.get(|abi| &abi.wr_id), flags, op, data: Data::None });
}

extern "C" fn wr_start(qp: TableHandle<'_, Qp, ibv_qp_ex>) {
    boundary::value_fast((), || {
        let mut batch = qp.get()?.state()?.lock();
        batch.clear();
        // The lock is kept until `ibv_wr_complete` or `ibv_wr_abort`.
        std::mem::forget(batch);
        Ok(())
    });
}

/// Posts the batch as one chain. If there is an error in the batch, nothing is posted.
extern "C" fn wr_complete(mut qp: BatchHandle<'_, Qp>) -> c_int {
    boundary::code_fast(|| {
        let posted = qp.with(|qp, batch| {
            if !qp.state()?.is_locked() {
                return Err(Errno::INVAL.because("ibv_wr_complete without ibv_wr_start"));
            }
            Ok(post_batch(qp, batch))
        })?;
        qp.unlock().and(posted)
    })
}

fn post_batch(object: &Object<Qp>, batch: &Batch) -> Result<()> {
    if let Some(errno) = batch.failed {
        return Err(errno);
    }
    let inline: Vec<Sge> =
        batch.wrs.iter().map(|wr| batch.inline_sge(wr)).collect::<Result<_>>()?;
    let wrs = batch.wrs.iter().zip(&inline).map(|(wr, inline)| {
        let (sges, flags) = match wr.data {
            Data::None => (&[][..], SendFlags::empty()),
            Data::Sges { first, count } => (&batch.sges[first..first + count], SendFlags::empty()),
            Data::Inline { .. } => (slice::from_ref(inline), SendFlags::INLINE),
        };
        SendWr { wr_id: wr.wr_id, op: wr.op, sges, flags: wr.flags | flags }
    });
    // SAFETY: until the requests complete, their memory stays registered, and the program does not
    // access it in conflict with them, as `BatchHandle`, the argument of `wr_complete`, requires.
    // Inline data is in `batch`, which is borrowed during the call. There are no requests that
    // register memory.
    let posted = unsafe { object.engine.post_send_all(wrs) };
    object.note_post();
    posted.map_err(|refused| refused.error.into())
}

extern "C" fn wr_abort(qp: BatchHandle<'_, Qp>) {
    boundary::value_fast((), || qp.unlock());
}

macro_rules! requests {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)*) => {
        $(extern "C" fn $name(qp: BatchHandle<'_, Qp>, $($arg: $type),*) {
            with_batch(qp, |qp, batch| {
                push(qp, batch, $op);
                Ok(())
            });
        })*
    };
}

requests! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: u32) => SendOp::SendImm { imm: u32::from_be(imm) };
    wr_send_inv(rkey: u32) => SendOp::SendInvalidate { stag: STag(rkey) };
    wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write { remote: Remote { addr, rkey: STag(rkey) } };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) => {
        SendOp::WriteImm { remote: Remote { addr, rkey: STag(rkey) }, imm: u32::from_be(imm) }
    };
    wr_rdma_read(rkey: u32, addr: u64) => {
        SendOp::Read { remote: Remote { addr, rkey: STag(rkey) }, invalidate: None }
    };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) => {
        post::cmp_swap(Remote { addr, rkey: STag(rkey) }, compare, swap)
    };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => {
        SendOp::FetchAdd { remote: Remote { addr, rkey: STag(rkey) }, add, mask: 0 }
    };
    wr_local_inv(rkey: u32) => SendOp::LocalInvalidate { stag: STag(rkey) };
    wr_bind_mw(window: Handle<'_, Mw>, rkey: u32, info: InPtr<'_, ibv_mw_bind_info>) => {
        mw::bind_op(window.get()?, rkey, info.get()?, || info.object(|info| &info.mr))?
    };
}

/// Makes the last request of the batch a datagram to the queue pair `qpn` at the address of `ah`.
extern "C" fn wr_set_ud_addr(
    qp: BatchHandle<'_, Qp>,
    ah: TableHandle<'_, Ah>,
    qpn: u32,
    qkey: u32,
) {
    with_batch(qp, |qp, batch| {
        let to = ah::destination(ah.get()?, qp.domain, qpn, qkey)?;
        let wr =
            batch.wrs.last_mut().ok_or_else(|| Errno::INVAL.because("no request was begun"))?;
        wr.op = post::to_datagram(wr.op, to)?;
        Ok(())
    });
}

/// The eight bytes are copied during the call.
extern "C" fn wr_atomic_write(
    qp: BatchHandle<'_, Qp>,
    rkey: u32,
    addr: u64,
    bytes: InPtr<'_, [u8; 8]>,
) {
    with_batch(qp, |qp, batch| {
        push(qp, batch, SendOp::AtomicWrite { remote: Remote { addr, rkey: STag(rkey) } });
        let first = batch.inline.len();
        check_inline(qp, batch, first, 8)?;
        batch.inline.extend_from_slice(bytes.get()?);
        batch.set(Data::Inline { first, len: 8 })
    });
}

extern "C" fn wr_set_sge(qp: BatchHandle<'_, Qp>, lkey: u32, addr: u64, length: u32) {
    with_batch(qp, |_, batch| {
        let first = batch.sges.len();
        batch.sges.push(Sge { addr, length, lkey: STag(lkey) });
        batch.set(Data::Sges { first, count: 1 })
    });
}

extern "C" fn wr_set_sge_list<'a>(
    qp: BatchHandle<'_, Qp>,
    count: Count<'a>,
    list: ArrayPtr<'a, ibv_sge>,
) {
    with_batch(qp, |_, batch| {
        let first = batch.sges.len();
        batch.sges.extend(list.copies(count)?.map(post::sge));
        batch.set(Data::Sges { first, count: batch.sges.len() - first })
    });
}

/// Checks that `length` more bytes can be added to a request whose inline data begins at `first`.
fn check_inline(qp: &Qp, batch: &Batch, first: usize, length: usize) -> Result<()> {
    let most = qp.cap.max_inline_data as usize;
    if length > most || batch.inline.len() - first + length > most {
        return Err(
            Errno::INVAL.because("more inline data than the queue pair takes (max_inline_data)")
        );
    }
    Ok(())
}

/// The bytes are copied during the call.
extern "C" fn wr_set_inline_data<'a>(
    qp: BatchHandle<'_, Qp>,
    addr: ArrayPtr<'a, u8>,
    length: Count<'a>,
) {
    with_batch(qp, |qp, batch| {
        let (first, len) = (batch.inline.len(), length.get()?);
        check_inline(qp, batch, first, len)?;
        batch
            .inline
            .extend_from_slice(addr.get(length)?.ok_or_else(|| Errno::INVAL.null_argument())?);
        batch.set(Data::Inline { first, len })
    });
}

/// The bytes are copied during the call.
extern "C" fn wr_set_inline_data_list<'a>(
    qp: BatchHandle<'_, Qp>,
    count: Count<'a>,
    list: ArrayPtr<'a, ibv_data_buf>,
) {
    with_batch(qp, |qp, batch| {
        let first = batch.inline.len();
        for buffer in list.copies(count)? {
            check_inline(qp, batch, first, buffer.length)?;
            if buffer.length > 0 {
                if buffer.addr.is_null() {
                    return Err(Errno::INVAL.null_argument());
                }
                let (bytes, len) = (buffer.addr.cast::<u8>(), buffer.length);
                // SAFETY: both are not 0, as checked above, so `len` bytes are there, initialized
                // (module `arguments`), and at most `max_inline_data` (`check_inline`). The setter
                // copies them, so they do not change before it returns (ibv_wr_post(3)).
                let bytes = unsafe { slice::from_raw_parts(bytes, len) };
                batch.inline.extend_from_slice(bytes);
            }
        }
        batch.set(Data::Inline { first, len: batch.inline.len() - first })
    });
}
