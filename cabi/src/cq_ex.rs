//! Completion queues that are read field by field.

use crate::abi::cq as flags;
use crate::abi::{ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr};
use crate::boundary::{self, Result};
use crate::clock::{monotonic_ns, realtime_ns};
use crate::cq::{self, Cq, CqInit, imm_and_flags};
use crate::errno::Errno;
use crate::object::Object;
use std::ffi::{c_int, c_uint};
use uiw_verbs::Wc;

/// `ibv_create_cq_ex`.
///
/// # Safety
/// `context` is NULL or one of ours, `attr` is NULL or readable with pointers of ours in it.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    boundary::pointer(|| {
        // SAFETY: the caller's promise, here and below.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Errno::INVAL.null())?;
        let timestamps =
            flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        let masks = flags::IBV_CQ_INIT_ATTR_MASK_FLAGS | flags::IBV_CQ_INIT_ATTR_MASK_PD;
        if attr.comp_mask & !masks != 0 {
            return Err(Errno::INVAL.because("attributes that are not known (comp_mask)"));
        }
        let known = flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        let asked = attr.comp_mask & flags::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        if asked && attr.flags & !known != 0
            || attr.wc_flags & !(flags::IBV_WC_STANDARD_FLAGS | timestamps) != 0
        {
            return Err(
                Errno::UNSUPPORTED.because("completion fields that are not offered (wc_flags, flags)")
            );
        }
        let init = CqInit {
            depth: attr.cqe,
            cq_context: attr.cq_context,
            channel: attr.channel,
            vector: attr.comp_vector,
            timestamps: attr.wc_flags & timestamps != 0,
        };
        // SAFETY: as above.
        let cq = unsafe { cq::create(context, &init) }?;
        // SAFETY: made just now.
        fill(unsafe { &mut *cq });
        Ok(cq)
    })
}

fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(nothing_u32);
    cq.read_sl = Some(nothing_u8);
    cq.read_dlid_path_bits = Some(nothing_u8);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// `ibv_start_poll`: 0, or ENOENT when nothing has completed.
///
/// # Safety
/// `cq` is one of ours.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    boundary::code_fast(|| {
        // SAFETY: the caller's promise, here and below.
        let object = unsafe { Object::<Cq>::get_called(cq) }?;
        // SAFETY: `attr` is NULL or one number.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::INVAL.because("attributes that are not known (comp_mask)"));
        }
        object.cursor.lock();
        // SAFETY: locked.
        let taken = unsafe { take(object, cq) };
        // SAFETY: locked above, on this thread.
        unsafe {
            match taken {
                Ok(()) => object.cursor.begin_batch(object.engine.len()),
                Err(_) => object.cursor.unlock(),
            }
        }
        taken
    })
}

/// `ibv_next_poll`.
///
/// # Safety
/// `cq` is one of ours, between a successful `ibv_start_poll` and `ibv_end_poll`.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    boundary::code_fast(|| {
        // SAFETY: `cq` is one of ours, and `ibv_start_poll` has locked its cursor on this thread (`ibv_start_poll(3)`).
        unsafe {
            let object = Object::<Cq>::get_called(cq)?;
            if object.cursor.continues() { take(object, cq) } else { Err(Errno(libc::ENOENT)) }
        }
    })
}

/// `ibv_end_poll`.
///
/// # Safety
/// `cq` is one of ours, behind a successful `ibv_start_poll`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    boundary::value_fast((), || {
        // SAFETY: the caller's promise: locked by `start_poll`.
        unsafe { Object::<Cq>::get_called(cq)?.cursor.unlock() };
        Ok(())
    });
}

/// Takes the next completion.
///
/// # Safety
/// The cursor is locked by this thread.
unsafe fn take(object: &Object<Cq>, cq: *mut ibv_cq_ex) -> Result<()> {
    let mut next = None;
    let taken = object.engine.poll_with(1, |wc| next = Some(wc));
    object.yield_if_empty(taken);
    let wc = next.ok_or(Errno(libc::ENOENT))?;
    // SAFETY: the caller's promise.
    unsafe {
        (*cq).status = wc.status as c_int;
        (*cq).wr_id = wc.wr_id;
        object.cursor.set(wc);
    }
    Ok(())
}

/// A field of the completion that is being read.
///
/// # Safety
/// `cq` is one of ours, between a successful `ibv_start_poll` and `ibv_end_poll`.
unsafe fn field<T: Default>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Wc) -> T) -> T {
    boundary::value_fast(T::default(), || {
        // SAFETY: the caller's promise: the cursor is locked by this thread.
        let wc = unsafe { Object::<Cq>::get_called(cq)?.cursor.get() };
        wc.map(read).ok_or_else(|| {
            Errno::INVAL.because("a completion is read outside of ibv_start_poll and ibv_end_poll")
        })
    })
}

macro_rules! fields {
    ($($name:ident: $type:ty = $read:expr;)*) => {
        $(
            /// # Safety
            /// As for [`field`].
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                // SAFETY: the caller's promise.
                unsafe { field(cq, $read) }
            }
        )*
    };
}

fields! {
    read_opcode: c_int = cq::opcode;
    read_vendor_err: u32 = |wc| wc.reason.map_or(0, uiw_verbs::WireReason::vendor_err);
    read_byte_len: u32 = |wc| wc.byte_len;
    read_imm_data: u32 = |wc| imm_and_flags(wc).0;
    read_qp_num: u32 = |wc| wc.qp_num;
    read_src_qp: u32 = |wc| wc.datagram_from.unwrap_or(0);
    read_wc_flags: c_uint = |wc| imm_and_flags(wc).1;
    read_completion_ts: u64 = |wc| wc.timestamp_ns;
    read_completion_wallclock_ns: u64 = |wc| realtime_ns().wrapping_sub(monotonic_ns().wrapping_sub(wc.timestamp_ns));
    nothing_u32: u32 = |_| 0;
    nothing_u8: u8 = |_| 0;
}
