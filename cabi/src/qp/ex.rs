//! `ibv_wr_*`: requests built field by field between `ibv_wr_start` and `ibv_wr_complete`.

use super::Qp;
use super::builder::{Batch, Data, Wr};
use crate::abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge, ibv_target_ud};
use crate::ah;
use crate::boundary::{self, Result};
use crate::errno::Errno;
use crate::mw;
use crate::object::Object;
use crate::post;
use std::ffi::{c_int, c_void};
use std::ptr;
use uiw_verbs::{Remote, STag, SendFlags, SendOp, SendWr, Sge};

/// `ibv_qp_to_qp_ex`; NULL for a queue pair made without `ibv_wr_*`.
///
/// # Safety
/// `qp` is NULL or one of ours.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    boundary::pointer(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { Qp::get(qp) }?;
        Ok(if object.builder.is_some() { object.abi() } else { ptr::null_mut() })
    })
}

/// Fills the function table with the calls that the program asked for.
pub(super) fn fill(abi: &mut ibv_qp_ex, ops: u64) {
    let has = |bit: u32| ops & 1 << bit != 0;
    abi.wr_rdma_write = has(0).then_some(wr_rdma_write as _);
    abi.wr_rdma_write_imm = has(1).then_some(wr_rdma_write_imm as _);
    abi.wr_send = has(2).then_some(wr_send as _);
    abi.wr_send_imm = has(3).then_some(wr_send_imm as _);
    abi.wr_rdma_read = has(4).then_some(wr_rdma_read as _);
    abi.wr_atomic_cmp_swp = has(5).then_some(wr_atomic_cmp_swp as _);
    abi.wr_atomic_fetch_add = has(6).then_some(wr_atomic_fetch_add as _);
    abi.wr_local_inv = has(7).then_some(wr_local_inv as _);
    abi.wr_bind_mw = has(8).then_some(wr_bind_mw as _);
    abi.wr_send_inv = has(9).then_some(wr_send_inv as _);
    abi.wr_atomic_write = has(12).then_some(wr_atomic_write as _);
    abi.wr_set_ud_addr = Some(wr_set_ud_addr);
    abi.wr_set_inline_data = Some(wr_set_inline_data);
    abi.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    abi.wr_set_sge = Some(wr_set_sge);
    abi.wr_set_sge_list = Some(wr_set_sge_list);
    abi.wr_start = Some(wr_start);
    abi.wr_complete = Some(wr_complete);
    abi.wr_abort = Some(wr_abort);
}

/// Changes the batch; `ibv_wr_complete` returns the first error.
///
/// # Safety
/// `qp` is one of ours, between `ibv_wr_start` and `ibv_wr_complete` on this thread.
unsafe fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut Batch) -> Result<()>) {
    boundary::value_fast((), || {
        // SAFETY: the caller's promise: this thread holds the lock.
        unsafe {
            let object = Object::<Qp>::get_called(qp)?;
            let builder = object
                .builder
                .as_ref()
                .ok_or_else(|| Errno::INVAL.because("the queue pair was made without send_ops_flags"))?;
            let batch = builder.batch();
            if let Err(errno) = body(batch) {
                batch.failed.get_or_insert(errno);
            }
        }
        Ok(())
    });
}

/// # Safety
/// As for [`with`].
unsafe fn push(qp: *mut ibv_qp_ex, op: impl FnOnce() -> Result<SendOp>) {
    // SAFETY: the caller's promise.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        with(qp, |batch| {
            let flags = SendFlags::from_bits_truncate(flags) - SendFlags::INLINE;
            batch.wrs.push(Wr { wr_id, flags, op: op()?, data: Data::None });
            Ok(())
        });
    }
}

/// # Safety
/// `qp` is one of ours.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    boundary::value_fast((), || {
        // SAFETY: the caller's promise.
        let object = unsafe { Object::<Qp>::get_called(qp) }?;
        object
            .builder
            .as_ref()
            .ok_or_else(|| Errno::INVAL.because("the queue pair was made without send_ops_flags"))?
            .start();
        Ok(())
    });
}

/// Posts the batch as one chain. Nothing is posted of a batch with an error in it.
///
/// # Safety
/// `qp` is one of ours, behind `ibv_wr_start` on this thread; the requests are as for `ibv_post_send`.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    boundary::code_fast(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { Object::<Qp>::get_called(qp) }?;
        let builder = object
            .builder
            .as_ref()
            .ok_or_else(|| Errno::INVAL.because("the queue pair was made without send_ops_flags"))?;
        if !builder.is_started() {
            return Err(Errno::INVAL.because("ibv_wr_complete without ibv_wr_start"));
        }
        // SAFETY: started by this thread in `wr_start`.
        unsafe {
            let posted = post_batch(object, builder.batch());
            builder.end();
            posted
        }
    })
}

fn post_batch(object: &Object<Qp>, batch: &Batch) -> Result<()> {
    if let Some(errno) = batch.failed {
        return Err(errno);
    }
    let inline: Vec<Sge> = batch.wrs.iter().map(|wr| batch.inline_sge(wr)).collect::<Result<_>>()?;
    let wrs = batch.wrs.iter().zip(&inline).map(|(wr, inline)| {
        let (sges, flags) = match wr.data {
            Data::None => (&[][..], SendFlags::empty()),
            Data::Sges { first, count } => (&batch.sges[first..first + count], SendFlags::empty()),
            Data::Inline { .. } => (std::slice::from_ref(inline), SendFlags::INLINE),
        };
        SendWr { wr_id: wr.wr_id, op: wr.op, sges, flags: wr.flags | flags }
    });
    // SAFETY: `ibv_post_send`'s contract with the program; the inline data is in the batch and stays during the call.
    let posted = unsafe { object.engine.post_send_all(wrs) }.map_err(|refused| refused.error.into());
    object.note_post();
    posted
}

/// # Safety
/// `qp` is one of ours, behind `ibv_wr_start` on this thread.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    boundary::value_fast((), || {
        // SAFETY: the caller's promise.
        unsafe {
            Object::<Qp>::get_called(qp)?
                .builder
                .as_ref()
                .ok_or_else(|| Errno::INVAL.because("the queue pair was made without send_ops_flags"))?
                .end();
        };
        Ok(())
    });
}

macro_rules! requests {
    ($($name:ident($($arg:ident: $type:ty),*) => $op:expr;)*) => {
        $(
            /// # Safety
            /// As for [`with`]; pointers are NULL or ours.
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
                // SAFETY: the caller's promise.
                unsafe { push(qp, || $op) };
            }
        )*
    };
}

requests! {
    wr_send() => Ok(SendOp::Send);
    wr_send_imm(imm: u32) => Ok(SendOp::SendImm { imm: u32::from_be(imm) });
    wr_send_inv(rkey: u32) => Ok(SendOp::SendInvalidate { stag: STag(rkey) });
    wr_rdma_write(rkey: u32, addr: u64) => Ok(SendOp::Write { remote: Remote { addr, rkey: STag(rkey) } });
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) => {
        Ok(SendOp::WriteImm { remote: Remote { addr, rkey: STag(rkey) }, imm: u32::from_be(imm) })
    };
    wr_rdma_read(rkey: u32, addr: u64) => {
        Ok(SendOp::Read { remote: Remote { addr, rkey: STag(rkey) }, invalidate: None })
    };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) => {
        Ok(post::cmp_swap(Remote { addr, rkey: STag(rkey) }, compare, swap))
    };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => {
        Ok(SendOp::FetchAdd { remote: Remote { addr, rkey: STag(rkey) }, add, mask: 0 })
    };
    wr_local_inv(rkey: u32) => Ok(SendOp::LocalInvalidate { stag: STag(rkey) });
    wr_bind_mw(window: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) => {
        mw::bind_op(window, rkey, info.as_ref().ok_or_else(|| Errno::INVAL.null())?)
    };
}

/// The request becomes a datagram.
///
/// # Safety
/// As for [`with`]; `ah` is NULL or one of ours.
unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller's promise, for all of it.
    unsafe {
        let pd = (*qp).qp_base.pd;
        with(qp, |batch| {
            let to = ah::destination(ibv_target_ud { ah, remote_qpn, remote_qkey }, pd)?;
            let wr = batch.wrs.last_mut().ok_or_else(|| Errno::INVAL.because("no request was begun"))?;
            wr.op = post::to_datagram(wr.op, to)?;
            Ok(())
        });
    }
}

/// The eight bytes are copied at once.
///
/// # Safety
/// As for [`with`]; eight bytes at `bytes` can be read.
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, bytes: *const c_void) {
    // SAFETY: the caller's promise, for both.
    unsafe {
        push(qp, || Ok(SendOp::AtomicWrite { remote: Remote { addr, rkey: STag(rkey) } }));
        wr_set_inline_data(qp, bytes.cast_mut(), 8);
    }
}

/// # Safety
/// As for [`with`].
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the caller's promise; one element.
    unsafe { wr_set_sge_list(qp, 1, &raw const sge) };
}

/// # Safety
/// As for [`with`]; `count` elements at `list` can be read.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller's promise.
    unsafe {
        with(qp, |batch| {
            let first = batch.sges.len();
            let mut copies = post::AlignedLists::default();
            let count_in_c = c_int::try_from(count).unwrap_or(-1);
            batch.sges.extend_from_slice(post::sges(list.cast_mut(), count_in_c, &mut copies)?);
            batch.set(Data::Sges { first, count })
        });
    }
}

/// # Safety
/// As for [`with`]; `length` bytes at `addr` can be read.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: the caller's promise; one buffer.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) };
}

/// # Safety
/// As for [`with`]; `count` buffers at `list` can be read, and the bytes that they name.
unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the caller's promise.
    unsafe {
        let most = Object::<Qp>::get_called(qp).map_or(0, |object| object.cap.max_inline_data as usize);
        with(qp, |batch| {
            if list.is_null() && count > 0 {
                return Err(Errno::INVAL.null());
            }
            let first = batch.inline.len();
            for at in 0..count {
                let buffer = *list.add(at);
                if buffer.length > most || batch.inline.len() - first + buffer.length > most {
                    return Err(
                        Errno::INVAL.because("more inline data than the queue pair takes (max_inline_data)")
                    );
                }
                if buffer.length > 0 {
                    if buffer.addr.is_null() {
                        return Err(Errno::INVAL.null());
                    }
                    let bytes = std::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length);
                    batch.inline.extend_from_slice(bytes);
                }
            }
            let len = batch.inline.len() - first;
            batch.set(Data::Inline { first, len })
        });
    }
}
