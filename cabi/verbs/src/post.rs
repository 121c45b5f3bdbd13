//! Posting: C's chains of requests, given to the engine one by one without a copy.

use crate::ah::{self, Ah};
use crate::mw::{self, Mw};
use crate::qp::Qp;
use crate::srq::Srq;
use std::ffi::c_int;
use std::mem::offset_of;
use std::{iter, ptr};
use uiw_cabi_core::abi::wr as op;
use uiw_cabi_core::abi::{ibv_pd, ibv_recv_wr, ibv_send_wr, ibv_sge};
use uiw_cabi_core::arguments::{Argument, OutPtr, TableHandle};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_verbs::{Destination, PostError, RecvWr, Remote, STag, SendFlags, SendOp, SendWr, Sge};

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// Aligned copies of element lists. Programs that keep requests in packed structures post lists at
/// any address.
#[derive(Default)]
pub(crate) struct AlignedLists(Vec<Box<[Sge]>>);

impl AlignedLists {
    /// # Safety
    /// `count` elements at `list` can be read, and `self` lives during `'a`.
    #[cold]
    unsafe fn add<'a>(&mut self, list: *const Sge, count: usize) -> &'a [Sge] {
        // SAFETY: the caller ensures that there are so many elements, which `read_unaligned` takes
        // from any address.
        let copy = (0..count).map(|at| unsafe { list.add(at).read_unaligned() }).collect::<Box<[Sge]>>();
        let (at, len) = (copy.as_ptr(), copy.len());
        self.0.push(copy);
        // SAFETY: the box stays where it is, unchanged, while `self` lives, which the caller
        // ensures for `'a`.
        unsafe { std::slice::from_raw_parts(at, len) }
    }
}

/// C's elements as the engine's, or a copy in `copies` where C's are unaligned.
///
/// # Safety
/// `count` elements at `list` can be read during `'a`, unless one of the two is invalid, and
/// `copies` lives during `'a`.
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
            // SAFETY: the caller ensures that there are so many elements during `'a`; the layouts
            // are the same, as asserted above.
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

/// An element of C's.
pub(crate) fn sge(sge: ibv_sge) -> Sge {
    Sge { addr: sge.addr, length: sge.length, lkey: STag(sge.lkey) }
}

/// A compare and swap of all eight bytes.
pub(crate) fn cmp_swap(remote: Remote, compare: u64, swap: u64) -> SendOp {
    SendOp::CmpSwap { remote, compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// # Safety
/// The program does not destroy the window and the region of a request to bind during the call.
unsafe fn send_op(wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: both variants of the union are integers, and C has initialized the structure.
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
            // SAFETY: with this opcode the variant is set, and the caller ensures that both objects
            // stay.
            unsafe {
                let bind = wr.tail.bind_mw;
                mw::bind_op(Object::<Mw>::get(bind.mw)?, bind.rkey, &bind.bind_info, || {
                    Object::get(bind.bind_info.mr)
                })?
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
pub(crate) trait Chained: Copy {
    type Wr<'a>;
    fn next(&self) -> *mut Self;
    /// # Safety
    /// The elements and objects that the request names stay during `'a`, and so does `copies`. `ud`
    /// is the protection domain of the queue pair, if that is UD, otherwise NULL.
    unsafe fn convert<'a>(&self, ud: *mut ibv_pd, copies: &mut AlignedLists) -> Result<Self::Wr<'a>>;
}

impl Chained for ibv_send_wr {
    type Wr<'a> = SendWr<'a>;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn convert<'a>(&self, ud: *mut ibv_pd, copies: &mut AlignedLists) -> Result<SendWr<'a>> {
        // SAFETY: the caller ensures that the elements and objects stay.
        let (op, sges) = unsafe { (send_op(self)?, sges(self.sg_list, self.num_sge, copies)?) };
        let op = match ud.is_null() {
            true => op,
            false => {
                // SAFETY: the variant of a UD queue pair, whose address handle the caller ensures
                // to stay.
                let (ah, to) = unsafe { (Object::<Ah>::get_called(self.wr.ud.ah)?, self.wr.ud) };
                to_datagram(op, ah::destination(ah, ud, to.remote_qpn, to.remote_qkey)?)?
            }
        };
        Ok(SendWr { wr_id: self.wr_id, op, sges, flags: SendFlags::from_bits_truncate(self.send_flags) })
    }
}

impl Chained for ibv_recv_wr {
    type Wr<'a> = RecvWr<'a>;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn convert<'a>(&self, _ud: *mut ibv_pd, copies: &mut AlignedLists) -> Result<RecvWr<'a>> {
        // SAFETY: the caller ensures that the elements stay.
        Ok(RecvWr { wr_id: self.wr_id, sges: unsafe { sges(self.sg_list, self.num_sge, copies) }? })
    }
}

/// Walks along a chain; stops at the first invalid request.
struct RequestChain<W> {
    /// The request that is given out next.
    next: *mut W,
    /// The request given out last, or the invalid one.
    last: *mut W,
    failed: Option<Errno>,
    copies: AlignedLists,
    /// The protection domain of the queue pair, if that is UD.
    ud: *mut ibv_pd,
}

/// One step.
///
/// # Safety
/// The rest of the chain can be read during `'a`, and `chain` lives so long.
#[inline]
unsafe fn step<'a, W: Chained>(chain: &mut RequestChain<W>) -> Option<W::Wr<'a>> {
    if chain.next.is_null() {
        return None;
    }
    chain.last = chain.next;
    if !chain.next.is_aligned() {
        // SAFETY: the rest of the chain can be read during `'a`, and `chain` lives so long, as the
        // caller ensures.
        return unsafe { step_unaligned(chain) };
    }
    // SAFETY: the caller ensures that there is a request, whose pointer is aligned here, and that
    // what it names stays.
    unsafe {
        let wr = &*chain.next;
        convert(chain, wr)
    }
}

/// Like [`step`], for a request in a packed structure.
///
/// # Safety
/// As for [`step`].
#[cold]
unsafe fn step_unaligned<'a, W: Chained>(chain: &mut RequestChain<W>) -> Option<W::Wr<'a>> {
    // SAFETY: the caller ensures that there is a request, and that what it names stays.
    unsafe {
        let wr = chain.next.read_unaligned();
        convert(chain, &wr)
    }
}

/// # Safety
/// As for [`step`]; `wr` is the request at `chain.next`, or a copy of it.
#[inline]
unsafe fn convert<'a, W: Chained>(chain: &mut RequestChain<W>, wr: &W) -> Option<W::Wr<'a>> {
    // SAFETY: the caller ensures that the elements and objects of the chain, and `chain.copies`,
    // stay during `'a`.
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

/// NULL, or the first request of a chain. C does not change the requests and their lists during the
/// call, nor destroy the objects that they name, and leaves the memory that they name to the device
/// until they complete.
#[repr(transparent)]
pub(crate) struct ChainPtr<W>(*mut W);

// SAFETY: the structure is transparent.
unsafe impl<W> Argument for ChainPtr<W> {
    type C = *mut W;
}

impl<W: Chained> ChainPtr<W> {
    /// Posts the chain by `post` and reports the request that was refused.
    #[inline]
    fn post(
        self,
        bad: OutPtr<'_, *mut W>,
        ud: *mut ibv_pd,
        post: impl FnOnce(&mut RequestChain<W>) -> std::result::Result<(), PostError>,
    ) -> Result<()> {
        let mut chain =
            RequestChain { next: self.0, last: self.0, failed: None, copies: AlignedLists::default(), ud };
        let errno = match post(&mut chain) {
            // The engine pulls one request at a time, so the last one is the one it refused.
            Err(refused) => Errno::from(refused.error),
            Ok(()) => match chain.failed {
                Some(errno) => errno,
                None => return Ok(()),
            },
        };
        if !bad.is_null() {
            bad.write(chain.last)?;
        }
        Err(errno)
    }
}

/// `ibv_post_send`.
pub(crate) extern "C" fn post_send(
    qp: TableHandle<'_, Qp>,
    wr: ChainPtr<ibv_send_wr>,
    bad: OutPtr<'_, *mut ibv_send_wr>,
) -> c_int {
    boundary::code_fast(|| {
        let qp = qp.get()?;
        let ud = if qp.is_ud() { qp.abi.get(|abi| &abi.qp_base.pd) } else { ptr::null_mut() };
        // SAFETY: the chain, and what it names, is as [`ChainPtr`] says; `chain` outlives the call.
        let posted = wr.post(bad, ud, |chain| unsafe { qp.engine.post_send(iter::from_fn(|| step(chain))) });
        qp.note_post();
        posted
    })
}

/// `ibv_post_recv`.
pub(crate) extern "C" fn post_recv(
    qp: TableHandle<'_, Qp>,
    wr: ChainPtr<ibv_recv_wr>,
    bad: OutPtr<'_, *mut ibv_recv_wr>,
) -> c_int {
    boundary::code_fast(|| {
        let qp = qp.get()?;
        // SAFETY: the chain, and what it names, is as [`ChainPtr`] says; `chain` outlives the call.
        wr.post(bad, ptr::null_mut(), |chain| unsafe { qp.engine.post_recv(iter::from_fn(|| step(chain))) })
    })
}

/// `ibv_post_srq_recv`.
pub(crate) extern "C" fn post_srq_recv(
    srq: TableHandle<'_, Srq>,
    wr: ChainPtr<ibv_recv_wr>,
    bad: OutPtr<'_, *mut ibv_recv_wr>,
) -> c_int {
    boundary::code_fast(|| {
        let srq = srq.get()?;
        // SAFETY: the chain, and what it names, is as [`ChainPtr`] says; `chain` outlives the call.
        wr.post(bad, ptr::null_mut(), |chain| unsafe { srq.engine.post_recv(iter::from_fn(|| step(chain))) })
    })
}
