//! Posting. C's chains of requests are passed to the engine one by one, without a copy.

use crate::ah::{self, Ah};
use crate::mw::{self, Mw};
use crate::qp::Qp;
use crate::srq::Srq;
use std::ffi::c_int;
use std::iter;
use std::mem::offset_of;
use uiw_cabi_core::abi::wr as op;
use uiw_cabi_core::abi::{ibv_recv_wr, ibv_send_wr, ibv_sge};
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

/// Aligned copies of element lists. Programs that keep requests in packed structures may post
/// unaligned lists.
#[derive(Default)]
pub(crate) struct AlignedLists(Vec<Vec<Sge>>);

impl AlignedLists {
    /// Copies a list.
    ///
    /// # Safety
    /// `list` points to `count` initialized elements, at any alignment. Nothing changes them during
    /// the call. `self` is neither dropped nor cleared during `'a`.
    #[cold]
    unsafe fn add<'a>(&mut self, list: *const Sge, count: usize) -> &'a [Sge] {
        // SAFETY: `list` points to `count` initialized elements that nothing changes during the
        // call, as the caller ensures. `at` is less than `count`, and `read_unaligned` reads at any
        // alignment.
        let copy =
            (0..count).map(|at| unsafe { list.add(at).read_unaligned() }).collect::<Vec<Sge>>();
        let (at, len) = (copy.as_ptr(), copy.len());
        self.0.push(copy);
        // SAFETY: `at` and `len` are those of the elements of the vector that is now in `self.0`.
        // Moving a vector does not move its elements, nothing changes them, and `self` is neither
        // dropped nor cleared during `'a`, as the caller ensures.
        unsafe { std::slice::from_raw_parts(at, len) }
    }
}

/// Returns C's elements as elements of the engine. Unaligned elements are copied to `copies`.
///
/// # Safety
/// If `list` is not NULL and `count` is positive, `list` points to `count` initialized elements, at
/// any alignment, which nothing changes during `'a`. `copies` is neither dropped nor cleared during
/// `'a`.
///
/// # Errors
/// EINVAL for a negative count, and for NULL with a positive count.
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
            // SAFETY: `list` is not NULL and `count` is positive, so there are `count` initialized
            // elements that nothing changes during `'a`, while `copies` lives, as the caller
            // ensures. The first branch needs alignment, `add` does not. `Sge` has the layout of
            // `ibv_sge` (asserted above) and consists of integers.
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

/// Converts an element of C.
pub(crate) fn sge(sge: ibv_sge) -> Sge {
    Sge { addr: sge.addr, length: sge.length, lkey: STag(sge.lkey) }
}

/// Returns a compare-and-swap operation on all eight bytes.
pub(crate) fn cmp_swap(remote: Remote, compare: u64, swap: u64) -> SendOp {
    SendOp::CmpSwap { remote, compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// Converts the operation of a request.
///
/// # Safety
/// If this is a bind request, `tail.bind_mw` is initialized, and the program does not destroy its
/// window and its region during the call.
unsafe fn send_op(wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: both variants of the union consist of integers, for which all bytes are valid. The
    // request is memory of the program, which counts as initialized (module `arguments`).
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
            // SAFETY: the caller ensures that `tail.bind_mw` of a bind request is initialized, and
            // that no thread frees the two objects during the call. `Object::get` looks up both
            // pointers.
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

/// Converts a Send to a Send of a UD queue pair.
///
/// # Errors
/// EINVAL for every other operation.
pub(crate) fn to_datagram(op: SendOp, to: Destination) -> Result<SendOp> {
    match op {
        SendOp::Send => Ok(SendOp::Datagram { to, imm: None }),
        SendOp::SendImm { imm } => Ok(SendOp::Datagram { to, imm: Some(imm) }),
        _ => Err(Errno::INVAL.because("a UD queue pair sends Sends, with or without an immediate")),
    }
}

/// Request in a chain of C.
pub(crate) trait Chained: Copy {
    type Wr<'a>;
    fn next(&self) -> *mut Self;
    /// Converts the request for the engine. `ud` is the number of the protection domain of a UD
    /// queue pair, otherwise `None`.
    ///
    /// # Safety
    /// `self` is a request as [`ChainPtr`] describes it: during `'a`, nothing changes its elements,
    /// and the program does not destroy the objects to which it refers. If `ud` is not `None`,
    /// `wr.ud.ah` is NULL or points to a live address handle of this library. `copies` is neither
    /// dropped nor cleared during `'a`.
    unsafe fn convert<'a>(
        &self,
        ud: Option<u32>,
        copies: &mut AlignedLists,
    ) -> Result<Self::Wr<'a>>;
}

impl Chained for ibv_send_wr {
    type Wr<'a> = SendWr<'a>;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn convert<'a>(&self, ud: Option<u32>, copies: &mut AlignedLists) -> Result<SendWr<'a>> {
        // SAFETY: the request is as `ChainPtr` describes it, as the caller ensures: the variants of
        // its unions are initialized, nothing changes the `num_sge` elements at `sg_list` during
        // `'a`, and its objects are not destroyed. `copies` lives during `'a`.
        let (op, sges) = unsafe { (send_op(self)?, sges(self.sg_list, self.num_sge, copies)?) };
        let op = match ud {
            None => op,
            Some(ud) => {
                // SAFETY: `ud` is not `None`, so the queue pair is a UD queue pair, for which the
                // caller ensures that `wr.ud` is initialized and that `ah` is NULL or points to a
                // live address handle of this library, which the program does not destroy during
                // `'a`.
                let (ah, to) = unsafe { (Object::<Ah>::get_called(self.wr.ud.ah)?, self.wr.ud) };
                to_datagram(op, ah::destination(ah, ud, to.remote_qpn, to.remote_qkey)?)?
            }
        };
        Ok(SendWr {
            wr_id: self.wr_id,
            op,
            sges,
            flags: SendFlags::from_bits_truncate(self.send_flags),
        })
    }
}

impl Chained for ibv_recv_wr {
    type Wr<'a> = RecvWr<'a>;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn convert<'a>(
        &self,
        _ud: Option<u32>,
        copies: &mut AlignedLists,
    ) -> Result<RecvWr<'a>> {
        // SAFETY: the caller ensures that nothing changes the `num_sge` elements at `sg_list`, and
        // that `copies` lives, during `'a`.
        Ok(RecvWr { wr_id: self.wr_id, sges: unsafe { sges(self.sg_list, self.num_sge, copies) }? })
    }
}

/// Position in a chain. The walk along the chain stops at the first invalid request.
struct RequestChain<W> {
    /// Next request to return.
    next: *mut W,
    /// Request that was returned last, or the invalid one.
    last: *mut W,
    failed: Option<Errno>,
    copies: AlignedLists,
    /// Number of the protection domain of a UD queue pair, otherwise `None`.
    ud: Option<u32>,
}

/// Returns the next request of a chain.
///
/// # Safety
/// `chain.next` is a pointer that [`ChainPtr`] permits, and what that type requires of the program
/// during the call is true during `'a`. If `chain.ud` is not `None`, the requests are those for a
/// UD queue pair. `chain.copies` is neither dropped nor cleared during `'a`.
#[inline]
unsafe fn step<'a, W: Chained>(chain: &mut RequestChain<W>) -> Option<W::Wr<'a>> {
    if chain.next.is_null() {
        return None;
    }
    chain.last = chain.next;
    if !chain.next.is_aligned() {
        // SAFETY: `step_unaligned` has the requirements of this function, which the caller ensures.
        // The pointer is not NULL, as checked above.
        return unsafe { step_unaligned(chain) };
    }
    // SAFETY: `chain.next` is neither NULL nor unaligned, as checked above, so it points to a
    // request that the program does not change during `'a`, as the caller ensures. `wr` is that
    // request, and the other requirements of `convert` are those of this function.
    unsafe {
        let wr = &*chain.next;
        convert(chain, wr)
    }
}

/// Like [`step`], for a request in a packed structure.
///
/// # Safety
/// The requirements are those of [`step`], and `chain.next` is not NULL.
#[cold]
unsafe fn step_unaligned<'a, W: Chained>(chain: &mut RequestChain<W>) -> Option<W::Wr<'a>> {
    // SAFETY: `chain.next` is not NULL and points to a request, as the caller ensures, and
    // `read_unaligned` reads it at any alignment. `wr` is a copy of that request, and the other
    // requirements of `convert` are those of this function.
    unsafe {
        let wr = chain.next.read_unaligned();
        convert(chain, &wr)
    }
}

/// Converts a request, or records its error.
///
/// # Safety
/// The requirements are those of [`step`]; `wr` is the request at `chain.next`, or a copy of it.
#[inline]
unsafe fn convert<'a, W: Chained>(chain: &mut RequestChain<W>, wr: &W) -> Option<W::Wr<'a>> {
    // SAFETY: `wr` is the request at `chain.next` or a copy of it, so the caller ensures for it
    // what [`ChainPtr`] says about elements and objects. `chain.ud` is `None` unless the queue
    // pair is a UD queue pair. `chain.copies` is neither dropped nor cleared during `'a`, as the
    // caller ensures.
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

/// Pointer that is NULL or points to the first request of a chain, at any alignment. Each request
/// is a structure as ibv_post_send(3) or ibv_post_recv(3) describes it: `next` is such a pointer,
/// `sg_list` points to `num_sge` elements, the variants of the unions are those of the opcode and
/// of the type of the queue pair, and the objects belong to this library. During the call the
/// program neither changes the requests and their lists, nor destroys the objects to which they
/// refer.
///
/// Until a request completes, the memory of its elements stays registered, and the program neither
/// writes the memory of a source nor accesses that of a target. The bytes of a request with
/// `IBV_SEND_INLINE` only have to be readable during the call.
#[repr(transparent)]
pub(crate) struct ChainPtr<W>(*mut W);

// SAFETY: `repr(transparent)` gives the structure the representation of its only field.
unsafe impl<W> Argument for ChainPtr<W> {
    type C = *mut W;
}

impl<W: Chained> ChainPtr<W> {
    /// Reports the first request as refused, because the queue cannot be used.
    #[cold]
    fn refuse(self, bad: OutPtr<'_, *mut W>, errno: Errno) -> Result<()> {
        if !bad.is_null() {
            bad.write(self.0)?;
        }
        Err(errno)
    }

    /// Posts the chain with `post`, and reports the request that was refused.
    #[inline]
    fn post(
        self,
        bad: OutPtr<'_, *mut W>,
        ud: Option<u32>,
        post: impl FnOnce(&mut RequestChain<W>) -> std::result::Result<(), PostError>,
    ) -> Result<()> {
        let mut chain = RequestChain {
            next: self.0,
            last: self.0,
            failed: None,
            copies: AlignedLists::default(),
            ud,
        };
        let errno = match post(&mut chain) {
            // The engine takes one request at a time, so the last one is the refused one.
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
        let qp = match qp.get() {
            Ok(qp) => qp,
            Err(errno) => return wr.refuse(bad, errno),
        };
        let ud = qp.ud_domain();
        let posted = wr.post(bad, ud, |chain| {
            // SAFETY: `ChainPtr` requires what `step` demands of the chain and its objects during
            // the call, and the engine of the memory of requests. `send_op` makes no
            // `FastRegister`. `ud` is `None` unless the queue pair is UD. `post` owns `chain`,
            // whose copies only grow, until the engine has returned.
            unsafe { qp.engine.post_send(iter::from_fn(|| step(chain))) }
        });
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
        let qp = match qp.get() {
            Ok(qp) => qp,
            Err(errno) => return wr.refuse(bad, errno),
        };
        // SAFETY: `step` may follow the chain during the call, because `ChainPtr` requires that the
        // program neither changes it nor destroys its objects. `ud` is `None`. `post` owns `chain`
        // until the engine has returned, and only adds to its copies. The engine's rule about the
        // memory of the receives is also part of `ChainPtr`.
        wr.post(bad, None, |chain| unsafe { qp.engine.post_recv(iter::from_fn(|| step(chain))) })
    })
}

/// `ibv_post_srq_recv`.
pub(crate) extern "C" fn post_srq_recv(
    srq: TableHandle<'_, Srq>,
    wr: ChainPtr<ibv_recv_wr>,
    bad: OutPtr<'_, *mut ibv_recv_wr>,
) -> c_int {
    boundary::code_fast(|| {
        let srq = match srq.get() {
            Ok(srq) => srq,
            Err(errno) => return wr.refuse(bad, errno),
        };
        // SAFETY: `step` may follow the chain during the call, because `ChainPtr` requires that the
        // program neither changes it nor destroys its objects. `ud` is `None`. `post` owns `chain`
        // until the engine has returned, and only adds to its copies. The engine's rule about the
        // memory of the receives is also part of `ChainPtr`.
        wr.post(bad, None, |chain| unsafe { srq.engine.post_recv(iter::from_fn(|| step(chain))) })
    })
}
