//! Posting: C's chains of requests, given to the engine one by one without a copy.

use crate::abi::wr as op;
use crate::abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};
use crate::ah;
use crate::boundary::{self, Result};
use crate::errno::Errno;
use crate::mw;
use crate::object::Object;
use crate::qp::Qp;
use crate::srq::Srq;
use std::ffi::c_int;
use std::mem::offset_of;
use uiw_verbs::{Destination, PostError, RecvWr, Remote, STag, SendFlags, SendOp, SendWr, Sge};

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// Aligned copies of element lists. Programs that keep requests in packed structures post lists at any address.
#[derive(Default)]
pub(crate) struct AlignedLists(Vec<Box<[Sge]>>);

impl AlignedLists {
    /// # Safety
    /// `count` elements at `list` can be read, and `self` lives during `'a`.
    #[cold]
    unsafe fn add<'a>(&mut self, list: *const Sge, count: usize) -> &'a [Sge] {
        // SAFETY: the caller's promise.
        let copy = (0..count).map(|at| unsafe { list.add(at).read_unaligned() }).collect::<Box<[Sge]>>();
        let (at, len) = (copy.as_ptr(), copy.len());
        self.0.push(copy);
        // SAFETY: the box stays where it is, unchanged, while `self` lives.
        unsafe { std::slice::from_raw_parts(at, len) }
    }
}

/// C's elements as the engine's, or a copy in `copies` where C's are unaligned.
///
/// # Safety
/// `count` elements at `list` can be read during `'a`, unless one of the two is invalid, and `copies` lives during `'a`.
///
/// # Errors
/// EINVAL for NULL and a negative count.
#[inline]
pub(crate) unsafe fn sges<'a>(
    list: *mut ibv_sge,
    count: c_int,
    copies: &mut AlignedLists,
) -> Result<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if !list.is_null() => {
            let list = list.cast::<Sge>();
            // SAFETY: the caller's promise; the layouts are the same, as asserted above.
            Ok(unsafe {
                if list.is_aligned() {
                    std::slice::from_raw_parts(list, count)
                } else {
                    copies.add(list, count)
                }
            })
        }
        _ => Err(Errno::INVAL.because(format_args!("a list of {count} elements at {list:p}"))),
    }
}

/// A compare and swap of all eight bytes.
pub(crate) fn cmp_swap(remote: Remote, compare: u64, swap: u64) -> SendOp {
    SendOp::CmpSwap { remote, compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// # Safety
/// The request is as for `ibv_post_send`.
unsafe fn send_op(wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: every variant of the union is integers; the opcode names the one that is set.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote { addr: rdma.remote_addr, rkey: STag(rdma.rkey) };
    let cell = Remote { addr: atomic.remote_addr, rkey: STag(atomic.rkey) };
    let imm = u32::from_be(wr.imm);
    Ok(match wr.opcode {
        op::IBV_WR_RDMA_WRITE => SendOp::Write { remote },
        op::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { remote, imm },
        op::IBV_WR_SEND => SendOp::Send,
        op::IBV_WR_SEND_WITH_IMM => SendOp::SendImm { imm },
        op::IBV_WR_RDMA_READ => SendOp::Read { remote, invalidate: None },
        op::IBV_WR_ATOMIC_CMP_AND_SWP => cmp_swap(cell, atomic.compare_add, atomic.swap),
        op::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            SendOp::FetchAdd { remote: cell, add: atomic.compare_add, mask: 0 }
        }
        op::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { stag: STag(wr.imm) },
        op::IBV_WR_BIND_MW => {
            // SAFETY: the caller's promise: of a bind this variant is set.
            unsafe {
                let bind = wr.tail.bind_mw;
                mw::bind_op(bind.mw, bind.rkey, &bind.bind_info)?
            }
        }
        op::IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate { stag: STag(wr.imm) },
        opcode => return Err(Errno::INVAL.because(format_args!("opcode {opcode} is unknown"))),
    })
}

/// A Send of a UD queue pair.
///
/// # Errors
/// EINVAL for every other request.
pub(crate) fn to_datagram(op: SendOp, to: Destination) -> Result<SendOp> {
    match op {
        SendOp::Send => Ok(SendOp::Datagram { to, imm: None }),
        SendOp::SendImm { imm } => Ok(SendOp::Datagram { to, imm: Some(imm) }),
        _ => Err(Errno::INVAL.because("a UD queue pair sends Sends, with or without an immediate")),
    }
}

/// A request in a chain of C's.
trait Chained: Copy {
    type Wr<'a>;
    fn next(&self) -> *mut Self;
    /// # Safety
    /// What the request names can be read during `'a`, and `copies` lives so long. `of` is NULL, or the UD queue pair that it is posted to.
    unsafe fn convert<'a>(&self, of: *mut ibv_qp, copies: &mut AlignedLists) -> Result<Self::Wr<'a>>;
}

impl Chained for ibv_send_wr {
    type Wr<'a> = SendWr<'a>;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn convert<'a>(&self, of: *mut ibv_qp, copies: &mut AlignedLists) -> Result<SendWr<'a>> {
        // SAFETY: the caller's promise; a queue pair that is named here is UD, and its requests have a destination.
        let (op, sges) = unsafe {
            let op = send_op(self)?;
            let op = match of.is_null() {
                true => op,
                false => to_datagram(op, ah::destination(self.wr.ud, (*of).pd)?)?,
            };
            (op, sges(self.sg_list, self.num_sge, copies)?)
        };
        Ok(SendWr { wr_id: self.wr_id, op, sges, flags: SendFlags::from_bits_truncate(self.send_flags) })
    }
}

impl Chained for ibv_recv_wr {
    type Wr<'a> = RecvWr<'a>;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn convert<'a>(&self, _of: *mut ibv_qp, copies: &mut AlignedLists) -> Result<RecvWr<'a>> {
        // SAFETY: the caller's promise.
        Ok(RecvWr { wr_id: self.wr_id, sges: unsafe { sges(self.sg_list, self.num_sge, copies) }? })
    }
}

/// Walks along a chain; stops at the first invalid request.
struct Chain<W> {
    /// The request that is given out next.
    next: *mut W,
    /// The request given out last, or the invalid one.
    last: *mut W,
    failed: Option<Errno>,
    copies: AlignedLists,
    /// The queue pair, if it is UD.
    ud: *mut ibv_qp,
}

impl<W> Chain<W> {
    fn new(first: *mut W, ud: *mut ibv_qp) -> Self {
        Self { next: first, last: first, failed: None, copies: AlignedLists::default(), ud }
    }
}

/// One step.
///
/// # Safety
/// The rest of the chain can be read during `'a`, and `chain` lives so long.
#[inline]
unsafe fn step<'a, W: Chained>(chain: &mut Chain<W>) -> Option<W::Wr<'a>> {
    if chain.next.is_null() {
        return None;
    }
    chain.last = chain.next;
    if !chain.next.is_aligned() {
        // SAFETY: as below.
        return unsafe { step_unaligned(chain) };
    }
    // SAFETY: the caller's promise: it is a request.
    unsafe {
        let wr = &*chain.next;
        convert(chain, wr)
    }
}

/// As [`step`], for a request in a packed structure.
///
/// # Safety
/// As for [`step`].
#[cold]
unsafe fn step_unaligned<'a, W: Chained>(chain: &mut Chain<W>) -> Option<W::Wr<'a>> {
    // SAFETY: the caller's promise: it is a request.
    unsafe {
        let wr = chain.next.read_unaligned();
        convert(chain, &wr)
    }
}

/// # Safety
/// As for [`step`]; `wr` is the request at `chain.next`, or a copy of it.
#[inline]
unsafe fn convert<'a, W: Chained>(chain: &mut Chain<W>, wr: &W) -> Option<W::Wr<'a>> {
    // SAFETY: the caller's promise.
    match unsafe { wr.convert(chain.ud, &mut chain.copies) } {
        Ok(converted) => {
            chain.next = wr.next();
            Some(converted)
        }
        Err(errno) => {
            chain.failed = Some(errno);
            None
        }
    }
}

/// Posts a chain by `post` and reports the request that was refused.
///
/// # Safety
/// The chain at `first` can be read, `bad` is NULL or writable.
unsafe fn chain<W: Chained>(
    first: *mut W,
    bad: *mut *mut W,
    ud: *mut ibv_qp,
    post: impl FnOnce(&mut Chain<W>) -> std::result::Result<(), PostError>,
) -> Result<()> {
    let mut chain = Chain::new(first, ud);
    let errno = match post(&mut chain) {
        // The engine pulls one request at a time, so the last one is the one it refused.
        Err(refused) => Errno::from(refused.error),
        Ok(()) => match chain.failed {
            Some(errno) => errno,
            None => return Ok(()),
        },
    };
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *bad = chain.last };
    }
    Err(errno)
}

/// `ibv_post_send`.
///
/// # Safety
/// `qp` is NULL or one of ours; the chain can be read, and the memory that it names is the engine's until it completes.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    boundary::code_fast(|| {
        // SAFETY: the caller's promise, for all of it.
        unsafe {
            let object = Object::<Qp>::get_called(qp.cast())?;
            let ud = if object.is_ud() { qp } else { std::ptr::null_mut() };
            let posted =
                chain(wr, bad, ud, |chain| object.engine.post_send(std::iter::from_fn(|| step(chain))));
            object.note_post();
            posted
        }
    })
}

/// `ibv_post_recv`.
///
/// # Safety
/// As for [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    boundary::code_fast(|| {
        // SAFETY: the caller's promise, for all of it.
        unsafe {
            let object = Object::<Qp>::get_called(qp.cast())?;
            chain(wr, bad, std::ptr::null_mut(), |chain| {
                object.engine.post_recv(std::iter::from_fn(|| step(chain)))
            })
        }
    })
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// As for [`post_send`].
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    boundary::code_fast(|| {
        // SAFETY: the caller's promise, for all of it.
        unsafe {
            let object = Object::<Srq>::get_called(srq)?;
            chain(wr, bad, std::ptr::null_mut(), |chain| {
                object.engine.post_recv(std::iter::from_fn(|| step(chain)))
            })
        }
    })
}
