//! Completion queues whose completions are read field by field.

use crate::call_lock::{BatchHandle, Batched, CallLock};
use crate::context::OpenContext;
use crate::cq::{self, Cq, CqInit, imm_and_flags};
use crate::cursor::Cursor;
use std::ffi::{c_int, c_uint};
use std::time::SystemTime;
use uiw_cabi_core::abi::cq as flags;
use uiw_cabi_core::abi::{ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr};
use uiw_cabi_core::arguments::{Handle, InPtr, TableHandle, c1, c2};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_verbs::Wc;

/// Returns the time of the wall clock at which the completion occurred, in nanoseconds since 1970.
fn wallclock_ns(wc: &Wc) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).wrapping_sub(uiw_llp::monotonic_ns().wrapping_sub(wc.timestamp_ns))
}

/// `ibv_create_cq_ex`.
pub(crate) extern "C" fn create_cq_ex(
    context: Handle<'_, OpenContext>,
    attr: InPtr<'_, ibv_cq_init_attr_ex>,
) -> *mut ibv_cq_ex {
    boundary::pointer(|| {
        let given = attr.get()?;
        let timestamps = flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
            | flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        let masks = flags::IBV_CQ_INIT_ATTR_MASK_FLAGS | flags::IBV_CQ_INIT_ATTR_MASK_PD;
        if given.comp_mask & !masks != 0 {
            return Err(Errno::INVAL.because("unknown attributes (comp_mask)"));
        }
        let known =
            flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        let asked = given.comp_mask & flags::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        if asked && given.flags & !known != 0
            || given.wc_flags & !(flags::IBV_WC_STANDARD_FLAGS | timestamps) != 0
        {
            return Err(Errno::UNSUPPORTED
                .because("completion fields that are not supported (wc_flags, flags)"));
        }
        let context = context.get()?;
        let channel =
            if given.channel.is_null() { None } else { Some(attr.object(|attr| &attr.channel)?) };
        let parent_domain = match given.comp_mask & flags::IBV_CQ_INIT_ATTR_MASK_PD {
            0 => None,
            _ => Some(attr.object(|attr| &attr.parent_domain)?),
        };
        let init = CqInit {
            depth: given.cqe,
            cq_context: given.cq_context,
            channel,
            parent_domain,
            vector: given.comp_vector,
            timestamps: given.wc_flags & timestamps != 0,
        };
        cq::create(context, &init, fill).map(<*mut _>::cast)
    })
}

fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = c2(start_poll);
    cq.next_poll = c1(next_poll);
    cq.end_poll = c1(end_poll);
    cq.read_opcode = c1(read_opcode);
    cq.read_vendor_err = c1(read_vendor_err);
    cq.read_byte_len = c1(read_byte_len);
    cq.read_imm_data = c1(read_imm_data);
    cq.read_qp_num = c1(read_qp_num);
    cq.read_src_qp = c1(read_src_qp);
    cq.read_wc_flags = c1(read_wc_flags);
    cq.read_slid = c1(nothing_u32);
    cq.read_sl = c1(nothing_u8);
    cq.read_dlid_path_bits = c1(nothing_u8);
    cq.read_completion_ts = c1(read_completion_ts);
    cq.read_completion_wallclock_ns = c1(read_completion_wallclock_ns);
}

impl Batched for Cq {
    type State = Cursor;

    fn state(&self) -> Result<&CallLock<Cursor>> {
        Ok(&self.cursor)
    }
}

/// `ibv_start_poll`: returns 0, or ENOENT if there is no completion.
extern "C" fn start_poll(
    cq: TableHandle<'_, Cq, ibv_cq_ex>,
    attr: InPtr<'_, ibv_poll_cq_attr>,
) -> c_int {
    boundary::code_fast(|| {
        let cq = cq.get()?;
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::INVAL.because("attributes that are not known (comp_mask)"));
        }
        let mut cursor = cq.cursor.lock();
        take(cq, &mut cursor)?;
        cursor.remaining = Some(cq.engine.len());
        // The lock is kept until `ibv_end_poll`.
        std::mem::forget(cursor);
        Ok(())
    })
}

/// `ibv_next_poll`.
extern "C" fn next_poll(mut cq: BatchHandle<'_, Cq>) -> c_int {
    boundary::code_fast(|| {
        cq.with(
            |cq, cursor| {
                if cursor.continues() { take(cq, cursor) } else { Err(Errno(libc::ENOENT)) }
            },
        )
    })
}

/// `ibv_end_poll`.
extern "C" fn end_poll(cq: BatchHandle<'_, Cq>) {
    boundary::value_fast((), || cq.unlock());
}

/// Takes the next completion from the queue.
fn take(cq: &Object<Cq>, cursor: &mut Cursor) -> Result<()> {
    cq.yield_before_poll();
    let mut next = None;
    let taken = cq.engine.poll_with(1, |wc| next = Some(wc));
    cq.note_poll(taken);
    let wc = next.ok_or(Errno(libc::ENOENT))?;
    cq.abi.set(|abi| &abi.status, wc.status as c_int);
    cq.abi.set(|abi| &abi.wr_id, wc.wr_id);
    cursor.wc = Some(wc);
    Ok(())
}

/// Returns a field of the completion that is being read.
#[inline]
fn field<T: Default>(mut cq: BatchHandle<'_, Cq>, read: impl FnOnce(&Wc) -> T) -> T {
    boundary::value_fast(T::default(), || {
        cq.with(|_, cursor| {
            cursor.wc.as_ref().map(read).ok_or_else(|| {
                Errno::INVAL
                    .because("a completion is read outside of ibv_start_poll and ibv_end_poll")
            })
        })
    })
}

macro_rules! fields {
    ($($name:ident: $type:ty = $read:expr;)*) => {
        $(extern "C" fn $name(cq: BatchHandle<'_, Cq>) -> $type {
            field(cq, $read)
        })*
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
    read_completion_wallclock_ns: u64 = wallclock_ns;
    nothing_u32: u32 = |_| 0;
    nothing_u8: u8 = |_| 0;
}
