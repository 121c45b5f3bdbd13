//! Completion queues.

use crate::call_lock::CallLock;
use crate::channel::{CompChannel, CompEvents};
use crate::context::{Context, NumberedObject, OpenContext};
use crate::cursor::Cursor;
use crate::pd::Pd;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use uiw_cabi_core::abi::wr::{IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV};
use uiw_cabi_core::abi::{ibv_cq, ibv_cq_ex, ibv_wc, zeroed};
use uiw_cabi_core::arguments::{ArrayMutPtr, Count, Handle, OwnedHandle, TableHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::{Body, Object, ObjectKind};
use uiw_cabi_core::users::{UnacknowledgedEvents, UserToken, Users};
use uiw_verbs::{Arm, AsyncEvent, CqConfig, Wc, WcOpcode};

/// Completion queue that C refers to.
pub struct Cq {
    pub(crate) context: Arc<Context>,
    /// Queue of the engine.
    pub engine: Arc<uiw_verbs::Cq>,
    channel: Option<Arc<CompEvents>>,
    _in_channel: Option<UserToken>,
    _in_domain: Option<UserToken>,
    /// Queue pairs whose requests complete here.
    pub users: Users,
    /// Completion events that were delivered and not acknowledged yet.
    pub events: Arc<UnacknowledgedEvents>,
    /// Asynchronous events that were delivered and not acknowledged yet.
    pub async_events: Arc<UnacknowledgedEvents>,
    pub(crate) cursor: CallLock<Cursor>,
    /// Number of polls since the last one that returned a completion.
    empty_polls: AtomicU32,
}

/// Number of successive empty polls before a thread calls `sched_yield`. These polls take some
/// microseconds.
const POLLS_BEFORE_YIELD: u32 = 32;

impl Body for Cq {
    type Abi = ibv_cq_ex;
    type C = ibv_cq;
    const KIND: ObjectKind = ObjectKind::Cq;
}

/// Attributes of a new queue.
pub struct CqInit<'a> {
    /// Capacity in completions.
    pub depth: u32,
    /// Value that the program associates with the queue.
    pub cq_context: *mut c_void,
    /// Channel for completion events.
    pub channel: Option<&'a Object<CompChannel>>,
    /// Parent domain, which is not deallocated before the queue is destroyed.
    pub parent_domain: Option<&'a Object<Pd>>,
    /// 0 if the engine chooses the shard of the connections whose receives complete here, otherwise
    /// the number of the shard, counted from 1.
    pub vector: u32,
    /// True if completions contain a timestamp.
    pub timestamps: bool,
}

/// Creates a queue. `fill` completes C's structure before the program gets it.
///
/// # Errors
/// EINVAL for values that are invalid or exceed the limits of the device.
pub fn create(
    open: &Object<OpenContext>,
    init: &CqInit<'_>,
    fill: fn(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq> {
    let shard = match (init.vector as usize).checked_sub(1) {
        Some(shard) if shard >= open.engine.shards() => {
            return Err(Errno::INVAL.because("the context has no such completion vector"));
        }
        shard => shard,
    };
    let channel = init.channel;
    let options = CqConfig {
        channel: channel.map(|c| Arc::clone(c.events.engine())),
        timestamps: init.timestamps,
        shard,
    };
    let engine = open.engine.create_cq(init.depth, options)?;
    let number = engine.num();
    let mut abi: ibv_cq_ex = zeroed();
    fill(&mut abi);
    abi.cq.context = open.abi();
    abi.cq.channel = channel.map_or(ptr::null_mut(), Object::abi);
    abi.cq.cq_context = init.cq_context;
    abi.cq.handle = number;
    abi.cq.cqe = c_int::try_from(init.depth).map_err(|_| Errno::INVAL.out_of_range())?;
    let cq = Cq {
        context: open.share(),
        engine,
        channel: channel.map(|c| Arc::clone(&c.events)),
        _in_channel: channel.map(|c| c.users.add()),
        _in_domain: init.parent_domain.map(|domain| domain.users.add()),
        users: Users::default(),
        events: Arc::default(),
        async_events: Arc::default(),
        cursor: CallLock::default(),
        empty_polls: AtomicU32::new(0),
    };
    let (events, async_events) = (Arc::clone(&cq.events), Arc::clone(&cq.async_events));
    let cq = Object::create(abi, cq);
    open.numbers.lock().cqs.insert(number, NumberedObject::new(cq, &async_events));
    if let Some(channel) = channel {
        channel.events.add(number, cq, &events);
    }
    Ok(cq)
}

/// `ibv_create_cq`.
pub extern "C" fn ibv_create_cq(
    context: Handle<'_, OpenContext>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle<'_, CompChannel>,
    vector: c_int,
) -> *mut ibv_cq {
    boundary::pointer(|| {
        let depth = u32::try_from(cqe).map_err(|_| Errno::INVAL.out_of_range())?;
        let vector = u32::try_from(vector).map_err(|_| Errno::INVAL.out_of_range())?;
        let context = context.get()?;
        let channel = if channel.is_null() { None } else { Some(channel.get()?) };
        let init =
            CqInit { depth, cq_context, channel, parent_domain: None, vector, timestamps: false };
        create(context, &init, |_| {})
    })
}

/// `ibv_resize_cq`.
pub extern "C" fn ibv_resize_cq(cq: Handle<'_, Cq>, cqe: c_int) -> c_int {
    boundary::code(|| {
        let cq = cq.get()?;
        cq.engine.resize(u32::try_from(cqe).map_err(|_| Errno::INVAL.out_of_range())?)?;
        cq.abi.set(|abi| &abi.cq.cqe, cqe);
        Ok(())
    })
}

/// `ibv_destroy_cq`: waits until every delivered event is acknowledged. Returns EBUSY while queue
/// pairs use the queue.
pub extern "C" fn ibv_destroy_cq(cq: OwnedHandle<'_, Cq>) -> c_int {
    boundary::code(|| cq.destroy(|cq| cq.leave()))
}

impl Cq {
    /// Yields the processor before a poll if many successive polls were empty, because the threads
    /// for which the program waits may need it. The poll comes after the yield. Otherwise a program
    /// that checks for `RDMA_CM_EVENT_DISCONNECTED` after an empty poll would destroy its queue
    /// pair, and with it the completions that arrived during the yield.
    pub(crate) fn yield_before_poll(&self) {
        if self.empty_polls.load(Ordering::Relaxed) >= POLLS_BEFORE_YIELD && self.engine.is_empty()
        {
            thread::yield_now();
        }
    }

    /// Counts successive empty polls.
    pub(crate) fn note_poll(&self, taken: usize) {
        if taken > 0 {
            self.empty_polls.store(0, Ordering::Relaxed);
            return;
        }
        // The count is approximate if several threads poll, so an atomic read-modify-write is not
        // needed.
        let empty = self.empty_polls.load(Ordering::Relaxed);
        if empty < POLLS_BEFORE_YIELD {
            self.empty_polls.store(empty + 1, Ordering::Relaxed);
        }
    }

    /// Unregisters the queue: no event refers to it afterwards, and the program has acknowledged
    /// all delivered events.
    fn leave(&self) -> Result<()> {
        self.users.check_none("queue pairs use the completion queue")?;
        let number = self.engine.num();
        self.context.numbers.lock().cqs.remove(&number);
        if let Some(channel) = &self.channel {
            channel.remove(&self.engine);
        }
        let about =
            |event: &AsyncEvent| matches!(event, AsyncEvent::CqError { cq } if *cq == number);
        drop(self.context.engine.async_events().remove_if(about));
        self.events.wait();
        self.async_events.wait();
        Ok(())
    }
}

/// `ibv_ack_cq_events`.
pub extern "C" fn ibv_ack_cq_events(cq: Handle<'_, Cq>, events: c_uint) {
    boundary::value_fast((), || {
        let cq = cq.get()?;
        // The field is only informative, so it may be approximate if several threads acknowledge
        // events.
        let before = cq.abi.get(|abi| &abi.cq.comp_events_completed);
        cq.abi.set(|abi| &abi.cq.comp_events_completed, before.wrapping_add(events));
        cq.events.acknowledge(events);
        Ok(())
    });
}

/// `ibv_req_notify_cq`.
pub extern "C" fn req_notify_cq(cq: TableHandle<'_, Cq>, solicited: c_int) -> c_int {
    boundary::code_fast(|| {
        let cq = cq.get()?;
        if let Some(channel) = &cq.channel {
            channel.note_arm();
        }
        cq.engine.arm(if solicited == 0 { Arm::Any } else { Arm::Solicited });
        Ok(())
    })
}

/// `ibv_poll_cq`: returns the number of completions, or a negative number.
pub extern "C" fn poll_cq<'a>(
    cq: TableHandle<'_, Cq>,
    max: Count<'a, c_int>,
    wc: ArrayMutPtr<'a, ibv_wc>,
) -> c_int {
    boundary::value_fast(-libc::EIO, || {
        let cq = cq.get()?;
        let Ok(Some(room)) = wc.get_uninit(max) else { return Ok(-libc::EINVAL) };
        if room.is_empty() {
            return Ok(0);
        }
        cq.yield_before_poll();
        let mut to = room.as_mut_ptr().cast::<ibv_wc>();
        let taken = cq.engine.poll_with(room.len(), |completion| {
            // SAFETY: `room` has `room.len()` elements, which are aligned and used by nothing else
            // (`ArrayMutPtr`). The engine makes at most `room.len()` calls, all before `poll_with`
            // returns, and each writes the next element, so `to` is at most the end of `room`.
            unsafe {
                to.write(convert(&completion));
                to = to.add(1);
            }
        });
        cq.note_poll(taken);
        Ok(c_int::try_from(taken).unwrap_or(c_int::MAX))
    })
}

/// Converts a completion to C's representation.
pub(crate) fn convert(wc: &Wc) -> ibv_wc {
    let (imm, wc_flags) = imm_and_flags(wc);
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as c_int,
        opcode: opcode(wc),
        vendor_err: wc.reason.map_or(0, uiw_verbs::WireReason::vendor_err),
        byte_len: wc.byte_len,
        imm,
        qp_num: wc.qp_num,
        src_qp: wc.datagram_from.unwrap_or(0),
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Returns the `ibv_wc_opcode`. The engine's numbers are those of C, except for operations that C
/// does not have.
pub(crate) fn opcode(wc: &Wc) -> c_int {
    match wc.opcode {
        // C has no verb for fast registration.
        WcOpcode::FastRegister => WcOpcode::LocalInvalidate as c_int,
        opcode => opcode as c_int,
    }
}

/// Returns the immediate as received, in network byte order, or the key that the peer has
/// invalidated, with the flag that distinguishes the two.
pub(crate) fn imm_and_flags(wc: &Wc) -> (u32, c_uint) {
    let grh = if wc.datagram_from.is_some() { IBV_WC_GRH } else { 0 };
    match (wc.imm, wc.invalidated) {
        (Some(imm), _) => (imm.to_be(), IBV_WC_WITH_IMM | grh),
        (None, Some(stag)) => (stag.0, IBV_WC_WITH_INV),
        (None, None) => (0, grh),
    }
}
