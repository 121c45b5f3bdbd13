//! Calls of the exported functions as a C program makes them: two queue pairs connected out of
//! band, on loopback, in this process.

use std::ffi::{CStr, c_int, c_uint};
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uiw_cabi_core::abi::{self, cq as cqf, event as kinds, qp as flags, wr};
use uiw_cabi_core::abi::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_gid, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_sge, ibv_srq,
    ibv_wc,
};
use uiw_cabi_core::call;
use uiw_cabi_verbs::{ah, async_events, buf, channel, cq, device, mr, open, pd, qp, srq};

const ACCESS: c_int = 1 | 2 | 4 | 8 | 16;

/// Opens the loopback device. Only the thread of the test uses the context, and closes it after it
/// has destroyed all of its objects, or leaves it open if an assertion fails. The library writes
/// the structure of a context only when it creates it.
fn open() -> *mut ibv_context {
    // SAFETY: the list is not NULL, as asserted, and ends in NULL, which the loop does not pass.
    // Names of listed devices end in NUL and live forever, as the devices do. NULL is refused as a
    // device, and permitted as the place for the count. The list is freed once, after its last use.
    unsafe {
        let list = call!(device::ibv_get_device_list(ptr::null_mut()));
        assert!(!list.is_null());
        let mut at = list;
        while !(*at).is_null()
            && CStr::from_ptr(call!(device::ibv_get_device_name(*at))) != c"uiw_lo"
        {
            at = at.add(1);
        }
        let opened = call!(open::ibv_open_device(*at));
        call!(device::ibv_free_device_list(list));
        assert!(!opened.is_null());
        opened
    }
}

/// Queue pair with its objects.
///
/// The library has created the objects, and none is NULL, except for `srq` of an end without one.
/// They live until `drop`, which destroys each of them once, and so does the context, which `open`
/// returned. Only the thread of the test uses them, because a `TestEnd` is neither `Send` nor
/// `Sync`.
///
/// `memory` is in a box, so its words stay in place until `drop` has deregistered them. The test
/// accesses a word only before the request that names it is posted and after its completion was
/// polled, except with [`TestEnd::memory_word`]. If an assertion in `drop` fails, the words are
/// freed while they are registered, but no request uses them then: all have completed, or it is the
/// second panic, which ends the process.
struct TestEnd {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq_ex,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    srq: *mut ibv_srq,
    memory: Box<[u64; 64]>,
}

impl TestEnd {
    fn new(context: *mut ibv_context, with_srq: bool) -> Self {
        // SAFETY: `context` is open (see `open`). Objects are checked before they are used, and
        // NULL is permitted as `srq`. Attributes are local variables, whose pointers are NULL or
        // objects, and tables of the library have these functions. The words stay in place and are
        // used as `TestEnd` says.
        unsafe {
            let pd = call!(pd::ibv_alloc_pd(context));
            let mut attr: abi::ibv_cq_init_attr_ex = abi::zeroed();
            attr.cqe = 64;
            attr.wc_flags = cqf::IBV_WC_STANDARD_FLAGS | cqf::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
            let create_cq_ex = vctx(context).create_cq_ex.unwrap();
            let cq = create_cq_ex(context, &raw mut attr);
            assert!(!pd.is_null() && !cq.is_null());
            let mut srq_init = abi::ibv_srq_init_attr {
                srq_context: ptr::null_mut(),
                attr: abi::ibv_srq_attr { max_wr: 16, max_sge: 2, srq_limit: 0 },
            };
            let srq = if with_srq {
                call!(srq::ibv_create_srq(pd, &raw mut srq_init))
            } else {
                ptr::null_mut()
            };
            let mut init: abi::ibv_qp_init_attr_ex = abi::zeroed();
            (init.send_cq, init.recv_cq, init.srq) = (cq.cast(), cq.cast(), srq);
            init.cap.max_send_wr = 32;
            init.cap.max_recv_wr = 32;
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (2, 2);
            init.qp_type = flags::IBV_QPT_RC;
            init.comp_mask = flags::IBV_QP_INIT_ATTR_PD | flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            (init.pd, init.send_ops_flags) = (pd, flags::SEND_OPS_OFFERED);
            let create_qp_ex = vctx(context).create_qp_ex.unwrap();
            let qp = create_qp_ex(context, &raw mut init);
            assert!(!qp.is_null());
            let mut memory = Box::new([0u64; 64]);
            let mr = call!(mr::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), 512, ACCESS));
            assert!(!mr.is_null());
            Self { context, pd, cq, qp, mr, srq, memory }
        }
    }

    /// Creates two connected ends. The second one has a shared receive queue if `with_srq` says so.
    fn pair(context: *mut ibv_context, with_srq: bool) -> (Self, Self) {
        let (a, b) = (Self::new(context, false), Self::new(context, with_srq));
        a.connect(&b);
        b.connect(&a);
        (a, b)
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair lives until `drop`, and only this thread uses it (see `TestEnd`).
        // The library sets the number before it returns the object.
        unsafe { (*self.qp).qp_num }
    }

    fn address(&self, word: usize) -> u64 {
        self.memory.as_ptr().addr() as u64 + 8 * word as u64
    }

    /// Returns the word at the index `word`. A peer may be writing it.
    fn memory_word(&self, word: usize) -> u64 {
        let word = ptr::from_ref(&self.memory[word]).cast_mut();
        // SAFETY: the word is an aligned element of the borrowed box, so no `&mut` to it exists.
        // The library writes memory that peers may access atomically, or by assembly routines
        // (`uiw_mem`).
        unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed)
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the region lives until `drop`, and only this thread uses it (see `TestEnd`). The
        // library sets its keys before it returns the object.
        unsafe { (*self.mr).rkey }
    }

    fn modify(&self, attr: &mut abi::ibv_qp_attr, mask: c_int) {
        // SAFETY: the queue pair lives until `drop`, and only this thread uses it (see `TestEnd`).
        // `attr` is borrowed, so nothing changes it during the call, and contains no pointers.
        assert_eq!(unsafe { call!(qp::ibv_modify_qp(self.qp, attr as *const _, mask)) }, 0);
    }

    fn connect(&self, peer: &Self) {
        let mut attr: abi::ibv_qp_attr = abi::zeroed();
        (attr.qp_state, attr.port_num, attr.qp_access_flags) = (1, 1, ACCESS.cast_unsigned());
        let init = flags::IBV_QP_STATE
            | flags::IBV_QP_PORT
            | flags::IBV_QP_PKEY_INDEX
            | flags::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, init);
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open until after `drop` (see `TestEnd`). `gid` is a local variable
        // of the type that the call writes.
        let rc = unsafe { call!(device::port::ibv_query_gid(self.context, 1, 0, &raw mut gid)) };
        assert_eq!(rc, 0);
        attr.qp_state = 2;
        (attr.dest_qp_num, attr.path_mtu) = (peer.number(), 3);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = gid;
        (attr.min_rnr_timer, attr.max_dest_rd_atomic, attr.max_rd_atomic) = (12, 4, 4);
        let rtr =
            flags::IBV_QP_STATE | flags::IBV_QP_AV | flags::IBV_QP_DEST_QPN | flags::IBV_QP_RQ_PSN;
        let needed =
            flags::IBV_QP_MIN_RNR_TIMER | flags::IBV_QP_PATH_MTU | flags::IBV_QP_MAX_DEST_RD_ATOMIC;
        self.modify(&mut attr, rtr | needed);
        attr.qp_state = 3;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
        let rts = flags::IBV_QP_STATE
            | flags::IBV_QP_TIMEOUT
            | flags::IBV_QP_RETRY_CNT
            | flags::IBV_QP_RNR_RETRY;
        self.modify(&mut attr, rts | flags::IBV_QP_SQ_PSN | flags::IBV_QP_MAX_QP_RD_ATOMIC);
    }

    /// Posts one receive of eight bytes at the index `word`, to the shared queue if there is one.
    fn receive(&self, id: u64, word: usize) {
        let mut sge = self.sge(word, 8);
        let mut wr = abi::ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the objects live, only this thread uses them, and the word stays registered and
        // unused (see `TestEnd` and `open`). `ChainPtr` permits `wr`: one request with one element,
        // in local variables that nothing changes during the calls. `bad` is a local variable.
        unsafe {
            let ops = &(*self.context).ops;
            let posted = if self.srq.is_null() {
                ops.post_recv.unwrap()(self.qp, &raw mut wr, &raw mut bad)
            } else {
                ops.post_srq_recv.unwrap()(self.srq, &raw mut wr, &raw mut bad)
            };
            assert_eq!(posted, 0);
        }
    }

    fn sge(&self, word: usize, length: u32) -> ibv_sge {
        // SAFETY: the region lives until `drop`, and only this thread uses it (see `TestEnd`). The
        // library sets its keys before it returns the object.
        ibv_sge { addr: self.address(word), length, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Builds one request with `ibv_wr_*` and posts it.
    fn build(&self, id: u64, request: impl FnOnce(*mut ibv_qp_ex)) -> c_int {
        // SAFETY: the queue pair was created for `ibv_wr_*` and lives until `drop` (see `TestEnd`),
        // so `ex` is not NULL and has these functions. Only this thread calls them and writes the
        // fields. All callers name words of ends, used as `TestEnd` says, or buffers that outlive
        // the queue pair.
        unsafe {
            let ex = call!(qp::ibv_qp_to_qp_ex(self.qp));
            (*ex).wr_start.unwrap()(ex);
            ((*ex).wr_id, (*ex).wr_flags) = (id, 2);
            request(ex);
            (*ex).wr_complete.unwrap()(ex)
        }
    }

    fn completion(&self) -> ibv_wc {
        let until = Instant::now() + Duration::from_secs(30);
        // SAFETY: the context and the queue live, and only this thread uses them (see `TestEnd` and
        // `open`). `wc` is a local variable with room for one completion, which is the maximum
        // passed, and consists of integers, so zeros initialize it.
        unsafe {
            let mut wc: ibv_wc = abi::zeroed();
            while (*self.context).ops.poll_cq.unwrap()(self.cq.cast(), 1, &raw mut wc) == 0 {
                assert!(Instant::now() < until, "no completion");
            }
            wc
        }
    }

    /// Builds one request, which succeeds. Returns its completion.
    fn run(&self, id: u64, request: impl FnOnce(*mut ibv_qp_ex)) -> ibv_wc {
        assert_eq!(self.build(id, request), 0);
        self.done(id)
    }

    fn done(&self, id: u64) -> ibv_wc {
        let wc = self.completion();
        assert_eq!((wc.wr_id, wc.status), (id, 0));
        wc
    }
}

impl Drop for TestEnd {
    fn drop(&mut self) {
        // SAFETY: the objects live, and only this value uses and destroys them (see `TestEnd`).
        // Each is destroyed once, after the objects that use it. The first two calls are refused
        // with EBUSY, so they destroy nothing. If an assertion fails, the remaining objects stay
        // alive.
        unsafe {
            assert_eq!(call!(pd::ibv_dealloc_pd(self.pd)), libc::EBUSY);
            assert_eq!(call!(cq::ibv_destroy_cq(self.cq.cast())), libc::EBUSY);
            assert_eq!(call!(qp::ibv_destroy_qp(self.qp)), 0);
            if !self.srq.is_null() {
                assert_eq!(call!(srq::ibv_destroy_srq(self.srq)), 0);
            }
            assert_eq!(call!(mr::ibv_dereg_mr(self.mr)), 0);
            assert_eq!(call!(cq::ibv_destroy_cq(self.cq.cast::<ibv_cq>())), 0);
            assert_eq!(call!(pd::ibv_dealloc_pd(self.pd)), 0);
        }
    }
}

/// Returns the structure that contains a context.
///
/// # Safety
/// `context` was returned by `open`, and is not closed during `'a`.
unsafe fn vctx<'a>(context: *mut ibv_context) -> &'a abi::verbs_context {
    // SAFETY: `Object::create` has derived `context` from such a structure, of which it is the last
    // field. The caller ensures that the structure lives during `'a`, and the library writes it
    // only when it creates it.
    unsafe { &*context.byte_sub(std::mem::offset_of!(abi::verbs_context, context)).cast() }
}

#[test]
fn every_request_by_ibv_wr() {
    let opened = open();
    let (mut a, mut b) = TestEnd::pair(opened, true);
    let (rkey, remote) = (b.rkey(), b.address(8));
    a.memory[0] = 0x1122_3344;
    b.memory[9] = 40;
    // SAFETY: `build` passes its live `ex`, between start and completion, and the functions were
    // requested in `TestEnd::new`. `sge`, `fetch` and the addresses of `b` are words of
    // `TestEnd::memory`, each read only after the completion of its request. Inline bytes are local
    // variables, which the functions copy.
    unsafe {
        let sge = a.sge(0, 8);
        let set = |ex: *mut ibv_qp_ex, sge: ibv_sge| {
            (*ex).wr_set_sge.unwrap()(ex, sge.lkey, sge.addr, sge.length);
        };
        b.receive(100, 1);
        a.run(1, |ex| {
            (*ex).wr_send_imm.unwrap()(ex, 7u32.to_be());
            set(ex, sge);
        });
        let wc = b.done(100);
        assert_eq!(
            (wc.imm, wc.wc_flags & wr::IBV_WC_WITH_IMM),
            (7u32.to_be(), wr::IBV_WC_WITH_IMM)
        );
        assert_eq!(b.memory[1], 0x1122_3344);
        b.receive(101, 2);
        a.run(2, |ex| {
            (*ex).wr_rdma_write_imm.unwrap()(ex, rkey, remote, 9);
            set(ex, sge);
        });
        assert_eq!(b.done(101).imm, 9);
        assert_eq!(b.memory[8], 0x1122_3344);
        let fetch = a.sge(3, 8);
        a.run(3, |ex| {
            (*ex).wr_atomic_fetch_add.unwrap()(ex, rkey, b.address(9), 2);
            set(ex, fetch);
        });
        assert_eq!((a.memory[3], b.memory[9]), (40, 42));
        a.run(4, |ex| {
            (*ex).wr_atomic_cmp_swp.unwrap()(ex, rkey, b.address(9), 42, 1);
            set(ex, fetch);
        });
        assert_eq!((a.memory[3], b.memory[9]), (42, 1));
        a.run(5, |ex| {
            (*ex).wr_rdma_read.unwrap()(ex, rkey, b.address(9));
            set(ex, fetch);
        });
        assert_eq!(a.memory[3], 1);
        let bytes = 0xABCDu64;
        let write = |ex: *mut ibv_qp_ex, remote| {
            (*ex).wr_atomic_write.unwrap()(ex, rkey, remote, (&raw const bytes).cast());
        };
        assert_eq!(a.run(6, |ex| write(ex, b.address(10))).opcode, 9);
        assert_eq!(a.build(7, |ex| write(ex, b.address(10) + 4)), libc::EINVAL);
        // Inline data is copied immediately, and if there is more than the queue pair supports,
        // nothing is posted.
        let mut inline = *b"inline!!";
        b.receive(102, 11);
        a.run(8, |ex| {
            (*ex).wr_send.unwrap()(ex);
            (*ex).wr_set_inline_data.unwrap()(ex, inline.as_mut_ptr().cast(), 8);
            inline = [0; 8];
        });
        b.done(102);
        assert_eq!((b.memory[10], b.memory[11].to_ne_bytes()), (0xABCD, *b"inline!!"));
        let mut long = vec![0u8; 4096];
        assert_eq!(
            a.build(9, |ex| {
                (*ex).wr_send.unwrap()(ex);
                (*ex).wr_set_inline_data.unwrap()(ex, long.as_mut_ptr().cast(), 4096);
            }),
            libc::EINVAL
        );
        a.memory[0] = 5;
    }
    drop((a, b));
    // SAFETY: `open` returned the context, which is closed once. The two ends, which used it, were
    // dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

/// `ibv_wr_post(3)`: no request is executed unless `ibv_wr_complete` succeeds.
#[test]
fn refused_batch_posts_nothing() {
    let opened = open();
    let (a, b) = TestEnd::pair(opened, false);
    let (sge, write) = (a.sge(0, 8), |ex: *mut ibv_qp_ex, id: u64| {
        // SAFETY: `build` passes its live `ex`, between start and completion, to the closures that
        // call this one. The key and the address are those of a word of `b`, which is registered
        // until `TestEnd::drop` and which nothing else accesses.
        unsafe {
            (*ex).wr_id = id;
            (*ex).wr_rdma_write.unwrap()(ex, b.rkey(), b.address(1));
        }
    });
    // SAFETY: `build` passes its live `ex`, between start and completion, and `write` has begun a
    // request. The element is a word of `a`, which stays registered until `TestEnd::drop` has
    // destroyed the queue pair, and which nothing else accesses.
    let set = |ex: *mut ibv_qp_ex| unsafe {
        (*ex).wr_set_sge.unwrap()(ex, sge.lkey, sge.addr, sge.length);
    };
    for length in [33, 40] {
        let refused = a.build(0, |ex| {
            for id in 0..length {
                write(ex, id);
                set(ex);
            }
        });
        assert_eq!(refused, libc::ENOMEM, "{length} requests on a queue of 32");
    }
    let posted = a.build(0, |ex| {
        for id in 100..132 {
            write(ex, id);
            set(ex);
        }
    });
    assert_eq!(posted, 0);
    for id in 100..132 {
        a.done(id);
    }
    drop((a, b));
    // SAFETY: `open` returned the context, which is closed once. The two ends, which used it, were
    // dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

#[test]
fn completions_are_read_field_by_field() {
    let opened = open();
    let (a, b) = TestEnd::pair(opened, false);
    // SAFETY: `b.cq` was created by `create_cq_ex` with the flags for these fields and lives until
    // `drop`, and only this thread uses it. `start_poll` may get NULL as its attributes. Fields are
    // read between a `start_poll` that returned 0 and `end_poll`. `build` passes its live `ex`,
    // after its start.
    unsafe {
        let cq = b.cq;
        let start = || (*cq).start_poll.unwrap()(cq, ptr::null_mut());
        assert_eq!(start(), libc::ENOENT);
        b.receive(5, 0);
        b.receive(6, 1);
        for id in [1, 2] {
            a.run(id, |ex| (*ex).wr_send.unwrap()(ex));
        }
        let until = Instant::now() + Duration::from_secs(30);
        while start() != 0 {
            assert!(Instant::now() < until);
        }
        assert_eq!(((*cq).wr_id, (*cq).status), (5, 0));
        assert_eq!((*cq).read_opcode.unwrap()(cq), 128);
        assert_eq!((*cq).read_byte_len.unwrap()(cq), 0);
        assert_eq!((*cq).read_qp_num.unwrap()(cq), b.number());
        let stamp = (*cq).read_completion_ts.unwrap()(cq);
        while (*cq).next_poll.unwrap()(cq) != 0 {
            assert!(Instant::now() < until);
        }
        assert_eq!((*cq).wr_id, 6);
        assert!((*cq).read_completion_ts.unwrap()(cq) >= stamp && stamp > 0);
        (*cq).end_poll.unwrap()(cq);
        assert_eq!(start(), libc::ENOENT);
    }
    drop((a, b));
    // SAFETY: `open` returned the context, which is closed once. The two ends, which used it, were
    // dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

#[test]
fn asynchronous_events_await_acknowledgement() {
    let (opened, other) = (open(), open());
    let (a, b) = TestEnd::pair(opened, true);
    // SAFETY: the contexts are open until the end of the test, the objects of `a` and `b` live, and
    // only this thread uses them (see `TestEnd`). `attr`, `event` and `none` are local variables;
    // fcntl(2) gets integers. `build` passes its live `ex`. The library has filled `event`, which
    // is acknowledged once.
    unsafe {
        let attr = abi::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 2 };
        assert_eq!(call!(srq::ibv_modify_srq(b.srq, &raw const attr, 2)), 0);
        b.receive(1, 0);
        b.receive(2, 1);
        assert_eq!(a.build(1, |ex| (*ex).wr_send.unwrap()(ex)), 0);
        b.done(1);
        let mut event: abi::ibv_async_event = abi::zeroed();
        assert_eq!(call!(async_events::ibv_get_async_event(opened, &raw mut event)), 0);
        assert_eq!(
            (event.event_type, event.element.srq),
            (kinds::IBV_EVENT_SRQ_LIMIT_REACHED, b.srq)
        );
        let fd = (*other).async_fd;
        libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut none: abi::ibv_async_event = abi::zeroed();
        assert_eq!(call!(async_events::ibv_get_async_event(other, &raw mut none)), -1);
        call!(async_events::ibv_ack_async_event(&raw mut event));
    }
    drop((a, b));
    // SAFETY: `open` returned the two contexts, and each is closed once. The ends that used one of
    // them were dropped, and nothing was created in the other.
    unsafe {
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
        assert_eq!(call!(open::ibv_close_device(other)), 0);
    }
}

/// `ibv_modify_qp(3)`: `en_sqd_async_notify` enables the notification.
#[test]
fn drained_event_only_if_requested() {
    let opened = open();
    let (a, b) = (TestEnd::new(opened, false), TestEnd::new(opened, false));
    a.connect(&b);
    b.connect(&a);
    // A queue pair can be drained once its connection is established.
    b.receive(1, 0);
    // SAFETY: `build` passes its live `ex`, between start and completion.
    assert_eq!(a.build(1, |ex| unsafe { (*ex).wr_send.unwrap()(ex) }), 0);
    a.done(1);
    let mut attr: abi::ibv_qp_attr = abi::zeroed();
    for (notify, mask, expected) in [
        (0, 0, false),
        (1, 0, false),
        (0, flags::IBV_QP_EN_SQD_ASYNC_NOTIFY, false),
        (1, flags::IBV_QP_EN_SQD_ASYNC_NOTIFY, true),
    ] {
        (attr.qp_state, attr.en_sqd_async_notify) = (4, notify);
        a.modify(&mut attr, flags::IBV_QP_STATE | mask);
        // The queue is empty, so the event was raised before the call returned.
        // SAFETY: the context is open until the end of the test, and only this thread uses it.
        // `event` is a local variable, which is acknowledged only if the library has filled it.
        // fcntl(2) gets integers.
        unsafe {
            libc::fcntl((*opened).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
            let mut event: abi::ibv_async_event = abi::zeroed();
            let raised = call!(async_events::ibv_get_async_event(opened, &raw mut event)) == 0;
            if raised {
                assert_eq!(
                    (event.event_type, event.element.qp),
                    (kinds::IBV_EVENT_SQ_DRAINED, a.qp)
                );
                call!(async_events::ibv_ack_async_event(&raw mut event));
            }
            assert_eq!(raised, expected, "en_sqd_async_notify {notify}, mask {mask}");
        }
        attr.qp_state = 3;
        a.modify(&mut attr, flags::IBV_QP_STATE);
    }
    drop((a, b));
    // SAFETY: `open` returned the context, which is closed once. The ends, which used it, were
    // dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

#[test]
fn completion_events_have_a_descriptor() {
    let opened = open();
    // SAFETY: `opened` is open until it is closed below, and only this thread uses it and the two
    // objects. Each is destroyed once, the queue before its channel; the call that is refused with
    // EBUSY destroys nothing. `which` and `what` are local variables. fcntl(2) gets integers.
    unsafe {
        let announced = call!(channel::ibv_create_comp_channel(opened));
        let cq = call!(cq::ibv_create_cq(opened, 8, ptr::null_mut(), announced, 0));
        assert!(!announced.is_null() && !cq.is_null());
        libc::fcntl((*announced).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let (mut which, mut what) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(call!(channel::ibv_get_cq_event(announced, &raw mut which, &raw mut what)), -1);
        assert_eq!(last_errno(), Some(libc::EAGAIN));
        assert_eq!(call!(channel::ibv_destroy_comp_channel(announced)), libc::EBUSY);
        assert_eq!(call!(cq::ibv_destroy_cq(cq)), 0);
        assert_eq!(call!(channel::ibv_destroy_comp_channel(announced)), 0);
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
    }
}

/// Memory for requests and elements at addresses that are 4 modulo 8, as in the packed structures
/// of some programs.
#[repr(C, align(8))]
struct PackedElement<T>(u32, [u8; 160], std::marker::PhantomData<T>);

impl<T: Copy> PackedElement<T> {
    fn new(value: T) -> Self {
        let mut packed = Self(0, [0; 160], std::marker::PhantomData);
        // SAFETY: `at` asserts that a `T` fits into the 160 bytes, which are borrowed mutably. The
        // write does not require alignment, and a `T` that is `Copy` has no destructor.
        unsafe { packed.at().write_unaligned(value) };
        packed
    }

    fn at(&mut self) -> *mut T {
        assert!(size_of::<T>() <= 160 && !self.1.as_ptr().cast::<T>().is_aligned());
        self.1.as_mut_ptr().cast()
    }
}

#[test]
fn unaligned_requests_and_elements() {
    let opened = open();
    let (mut a, b) = TestEnd::pair(opened, false);
    a.memory[..2].copy_from_slice(&[0x0123_4567_89AB_CDEF, 42]);
    let mut into = PackedElement::new([b.sge(8, 8), b.sge(20, 8)]);
    let mut receive = PackedElement::new(abi::ibv_recv_wr {
        wr_id: 1,
        next: ptr::null_mut(),
        sg_list: into.at().cast(),
        num_sge: 2,
    });
    let mut from = PackedElement::new([a.sge(0, 8), a.sge(1, 8)]);
    // SAFETY: the objects live (see `TestEnd`). `ChainPtr` permits unaligned requests: each has two
    // elements, which are registered words of the ends, in local variables that nothing changes
    // before the calls return. The words are not accessed until their completions are polled below.
    // `bad` is a local variable.
    unsafe {
        let mut bad = ptr::null_mut();
        assert_eq!((*opened).ops.post_recv.unwrap()(b.qp, receive.at(), &raw mut bad), 0);
        let mut send: abi::ibv_send_wr = abi::zeroed();
        (send.wr_id, send.opcode, send.send_flags) = (2, wr::IBV_WR_SEND, 2);
        (send.sg_list, send.num_sge) = (from.at().cast(), 2);
        let mut send = PackedElement::new(send);
        let mut bad = ptr::null_mut();
        assert_eq!((*opened).ops.post_send.unwrap()(a.qp, send.at(), &raw mut bad), 0);
    }
    a.done(2);
    b.done(1);
    assert_eq!((b.memory[8], b.memory[20]), (0x0123_4567_89AB_CDEF, 42));
    let build = |ex: *mut ibv_qp_ex| {
        // SAFETY: `build` passes its live `ex`, between start and completion. The list has two
        // elements, at any alignment (`ArrayPtr`), and is copied. The words stay registered until
        // `drop`, and are read only with `memory_word` before the Write ends.
        unsafe {
            (*ex).wr_rdma_write.unwrap()(ex, b.rkey(), b.address(30));
            (*ex).wr_set_sge_list.unwrap()(ex, 2, from.at().cast());
        }
    };
    a.run(3, build);
    while b.memory_word(31) != 42 {
        std::thread::yield_now();
    }
    drop((a, b));
    // SAFETY: `open` returned the context, which is closed once. The two ends, which used it, were
    // dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

/// The program rewrites a region without remote access while it is written to the peer, like a
/// virtual machine that migrates. Each CRC must be correct, and the peer gets some of the values.
#[test]
fn source_rewritten_during_write() {
    const LENGTH: usize = 1 << 20;
    const WRITES: u64 = 200;
    let source: Vec<AtomicU64> = (0..LENGTH as u64 / 8).map(AtomicU64::new).collect();
    let mut target = vec![0u8; LENGTH];
    let opened = open();
    let (a, b) = TestEnd::pair(opened, false);
    // SAFETY: the domains live (see `TestEnd`). The buffers, declared before the ends, live longer,
    // and without queue pairs no request accesses them. Until then only the library accesses the
    // target. The source is changed atomically; the library only reads it, by assembly routines
    // (`uiw_mem::recover`, x86-64).
    let (from, to) = unsafe {
        let from = call!(mr::ibv_reg_mr(a.pd, source.as_ptr().cast_mut().cast(), LENGTH, 0));
        let to = call!(mr::ibv_reg_mr(b.pd, target.as_mut_ptr().cast(), LENGTH, ACCESS));
        assert!(!from.is_null() && !to.is_null());
        (from, to)
    };
    // SAFETY: the regions are not NULL, as asserted, and live until they are deregistered below.
    // Only this thread uses them, and the library sets the keys before it returns them.
    let (lkey, rkey) = unsafe { ((*from).lkey, (*to).rkey) };
    /// Sets the flag when the Writes are finished, even if an assertion fails.
    struct FlagOnDrop<'a>(&'a AtomicBool);
    impl Drop for FlagOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for word in &source {
                    word.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _over = FlagOnDrop(&over);
        for id in 0..WRITES {
            // SAFETY: `build` passes its live `ex`, between start and completion. The buffers live
            // and are registered until the ends are dropped, and the addresses and the length are
            // theirs. Nothing else accesses the target. The other thread writes the source
            // atomically; see above for the library's reads.
            a.run(id, |qp| unsafe {
                (*qp).wr_rdma_write.unwrap()(qp, rkey, target.as_ptr().addr() as u64);
                (*qp).wr_set_sge.unwrap()(qp, lkey, source.as_ptr().addr() as u64, LENGTH as u32);
            });
        }
        // The response to the Read arrives after all Writes.
        // SAFETY: `build` passes its live `ex`, between start and completion. `a.mr` lives until
        // `drop`. The addresses are words of `a` and `b`, which stay registered until then, and
        // nothing accesses them until the completion is polled below.
        a.run(WRITES, |qp| unsafe {
            (*qp).wr_rdma_read.unwrap()(qp, b.rkey(), b.address(0));
            (*qp).wr_set_sge.unwrap()(qp, (*a.mr).lkey, a.address(0), 8);
        });
    });
    // SAFETY: each region is alive and deregistered once, after the completions of all requests
    // that named it. `open` returned the context, which is closed once, after the ends that used it
    // were dropped.
    unsafe {
        assert_eq!((call!(mr::ibv_dereg_mr(from)), call!(mr::ibv_dereg_mr(to))), (0, 0));
        drop((a, b));
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
    }
}

#[test]
fn buffers_page_aligned_with_regions_inside() {
    let opened = open();
    // SAFETY: `opened` is open, and only this thread uses it and its objects, each destroyed once,
    // after a check that they exist. No other test creates an `ibv_buf`, so `Handle` refuses the
    // freed `handle`. Only this test knows the 10,000 bytes, and accesses them only before they are
    // registered. `attr` and `handle` are local variables.
    unsafe {
        let (domain, other) = (call!(pd::ibv_alloc_pd(opened)), call!(pd::ibv_alloc_pd(opened)));
        let mut handle = ptr::null_mut();
        let addr = call!(buf::ibv_alloc_buf(domain, 10_000, &raw mut handle));
        assert!(!addr.is_null() && addr.addr().is_multiple_of(4096));
        addr.cast::<u8>().write_bytes(7, 10_000);
        let inside = call!(buf::ibv_reg_buf_mr(domain, handle, addr.byte_add(16), 9_984, ACCESS));
        assert!(!inside.is_null() && (*inside).length == 9_984);
        for (pd, start, length) in [
            (other, addr, 8),
            (domain, addr.byte_add(16), 9_985),
            (domain, addr.wrapping_byte_sub(1), 8),
        ] {
            assert!(call!(buf::ibv_reg_buf_mr(pd, handle, start, length, ACCESS)).is_null());
            assert_eq!(last_errno(), Some(libc::EINVAL));
        }
        let mut attr: abi::ibv_mr_init_attr = abi::zeroed();
        (attr.length, attr.access, attr.addr, attr.iova) = (512, ACCESS, addr, 0x1000);
        attr.comp_mask = 1 | 2;
        let with_iova = call!(buf::ibv_reg_mr_ex(domain, &raw const attr));
        assert!(!with_iova.is_null());
        attr.fd = -1;
        // A DMA-buf has no address, and needs an offset. No DMA-buf exists here.
        let refused = [
            (1, libc::EINVAL),
            (2 | 4, libc::EINVAL),
            (2 | 4 | 8, libc::EINVAL),
            (4 | 8, libc::EBADF),
            (2 | 16, libc::EOPNOTSUPP),
        ];
        attr.iova = 0;
        for (mask, errno) in refused {
            attr.comp_mask = mask;
            assert!(call!(buf::ibv_reg_mr_ex(domain, &raw const attr)).is_null());
            assert_eq!(last_errno(), Some(errno));
        }
        assert_eq!(call!(buf::ibv_export_buf_dmabuf_fd(handle)), -1);
        assert_eq!(last_errno(), Some(libc::ENODATA));
        assert_eq!((call!(mr::ibv_dereg_mr(inside)), call!(mr::ibv_dereg_mr(with_iova))), (0, 0));
        call!(buf::ibv_free_buf(handle));
        assert!(
            call!(buf::ibv_reg_buf_mr(domain, handle, addr, 8, ACCESS)).is_null(),
            "it is freed"
        );
        assert_eq!((call!(pd::ibv_dealloc_pd(domain)), call!(pd::ibv_dealloc_pd(other))), (0, 0));
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
    }
}

#[test]
fn every_call_states_the_same_speed() {
    let opened = open();
    // SAFETY: `opened` is open until it is closed here, once, and only this thread uses it. `attr`
    // and `speed` are local variables of the types that the calls write, and the size is that of
    // `attr`.
    unsafe {
        let mut attr: abi::ibv_port_attr = abi::zeroed();
        let query = vctx(opened).query_port.unwrap();
        assert_eq!(query(opened, 1, &raw mut attr, size_of::<abi::ibv_port_attr>()), 0);
        // Four lanes of 25 Gbit/s.
        assert_eq!((attr.active_width, attr.active_speed, attr.active_speed_ex), (2, 32, 32));
        let mut speed = 0;
        assert_eq!(call!(device::speed::ibv_query_port_speed(opened, 1, &raw mut speed)), 0);
        assert_eq!(speed, 1000);
        assert_eq!(
            call!(device::speed::ibv_query_port_speed(opened, 2, &raw mut speed)),
            libc::EINVAL
        );
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
    }
}

#[test]
fn null_pointers_are_errors() {
    fn none<T>() -> *mut T {
        ptr::null_mut()
    }
    // SAFETY: all pointers are NULL, which the types of the arguments permit (module `arguments`),
    // with any count. The functions that take plain pointers look them up, or fail for another
    // argument before they use them. No object is used.
    unsafe {
        assert!(call!(open::ibv_open_device(none())).is_null());
        assert_eq!(call!(open::ibv_close_device(none())), -1);
        assert!(call!(device::ibv_get_device_name(none())).is_null());
        assert_eq!(call!(device::ibv_get_device_guid(none())), 0);
        call!(device::ibv_free_device_list(none()));
        assert_eq!(call!(device::attributes::ibv_query_device(none(), none())), libc::EINVAL);
        assert_eq!(call!(device::port::ibv_query_port(none(), 1, none())), libc::EINVAL);
        assert_eq!(call!(device::port::ibv_query_gid(none(), 1, 0, none())), -1);
        assert_eq!(
            call!(device::port::_ibv_query_gid_ex(none(), 1, 0, none(), 0, 32)),
            libc::EINVAL
        );
        assert_eq!(
            call!(device::port::_ibv_query_gid_table(none(), none(), 1, 0, 32)),
            -(libc::EINVAL as isize)
        );
        assert_eq!(call!(device::port::ibv_query_pkey(none(), 1, 0, none())), -1);
        assert!(call!(pd::ibv_alloc_pd(none())).is_null());
        assert_eq!(call!(pd::ibv_dealloc_pd(none())), libc::EINVAL);
        assert!(call!(mr::ibv_reg_mr(none(), none(), 1, 0)).is_null());
        assert!(call!(mr::ibv_reg_mr_iova2(none(), none(), 1, 0, c_uint::MAX)).is_null());
        assert_eq!(call!(mr::ibv_dereg_mr(none())), libc::EINVAL);
        assert_eq!(call!(mr::ibv_rereg_mr(none(), 1, none(), none(), 1, 0)), -1);
        assert!(call!(channel::ibv_create_comp_channel(none())).is_null());
        assert_eq!(call!(channel::ibv_destroy_comp_channel(none())), libc::EINVAL);
        assert_eq!(call!(channel::ibv_get_cq_event(none(), none(), none())), -1);
        assert!(call!(cq::ibv_create_cq(none(), 1, none(), none(), 0)).is_null());
        assert_eq!(call!(cq::ibv_resize_cq(none(), 1)), libc::EINVAL);
        assert_eq!(call!(cq::ibv_destroy_cq(none())), libc::EINVAL);
        call!(cq::ibv_ack_cq_events(none(), 1));
        assert!(call!(srq::ibv_create_srq(none(), none())).is_null());
        assert_eq!(call!(srq::ibv_modify_srq(none(), ptr::null(), 0)), libc::EINVAL);
        assert_eq!(call!(srq::ibv_query_srq(none(), none())), libc::EINVAL);
        assert_eq!(call!(srq::ibv_destroy_srq(none())), libc::EINVAL);
        assert!(call!(qp::ibv_create_qp(none(), none())).is_null());
        assert_eq!(call!(qp::ibv_modify_qp(none(), ptr::null(), 0)), libc::EINVAL);
        assert_eq!(call!(qp::ibv_query_qp(none(), none(), 0, none())), libc::EINVAL);
        assert_eq!(call!(qp::ibv_destroy_qp(none())), libc::EINVAL);
        assert!(call!(qp::ibv_qp_to_qp_ex(none())).is_null());
        assert_eq!(call!(async_events::ibv_get_async_event(none(), none())), -1);
        call!(async_events::ibv_ack_async_event(none()));
    }
}

/// An invalid pointer is detected without dereferencing it.
#[test]
fn wild_pointers_are_errors() {
    let opened = open();
    let end = TestEnd::new(opened, false);
    let page = [0u64; 1024];
    let wild = [
        8,
        0x7FFF_0000_0000,
        usize::MAX - 7,
        usize::MAX,
        page.as_ptr().addr(),
        end.memory.as_ptr().addr(),
    ];
    for address in wild {
        fn at<T>(address: usize) -> *mut T {
            ptr::without_provenance_mut(address)
        }
        let srq_attr = abi::ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 };
        // SAFETY: `Handle`, `OwnedHandle`, the fields of `init` and `event`, and pointers to
        // devices may be any address: they are only looked up, and no system's library is loaded
        // that gets the event. Memory at `address` is not used: `ibv_reg_mr` refuses the domain
        // first, `ibv_rereg_mr` the region. The other pointers are local, NULL or live.
        unsafe {
            let (mut attr, mut init): (abi::ibv_qp_attr, abi::ibv_qp_init_attr) =
                (abi::zeroed(), abi::zeroed());
            let (mut event_cq, mut event_context) = (ptr::null_mut(), ptr::null_mut());
            assert!(call!(device::ibv_get_device_name(at(address))).is_null());
            assert_eq!(call!(device::ibv_get_device_guid(at(address))), 0);
            assert!(call!(open::ibv_open_device(at(address))).is_null());
            assert_eq!(call!(open::ibv_close_device(at(address))), -1);
            assert_eq!(call!(device::port::ibv_query_gid(at(address), 1, 0, ptr::null_mut())), -1);
            assert!(call!(pd::ibv_alloc_pd(at(address))).is_null());
            assert_eq!(call!(pd::ibv_dealloc_pd(at(address))), libc::EINVAL);
            assert!(call!(mr::ibv_reg_mr(at(address), at(address), 1, 0)).is_null());
            assert_eq!(call!(mr::ibv_dereg_mr(at(address))), libc::EINVAL);
            assert_eq!(call!(mr::ibv_rereg_mr(at(address), 4, at(address), at(address), 1, 0)), -1);
            assert!(call!(channel::ibv_create_comp_channel(at(address))).is_null());
            assert_eq!(call!(channel::ibv_destroy_comp_channel(at(address))), libc::EINVAL);
            let (to_cq, to_context) = (&raw mut event_cq, &raw mut event_context);
            assert_eq!(call!(channel::ibv_get_cq_event(at(address), to_cq, to_context)), -1);
            assert!(call!(cq::ibv_create_cq(opened, 1, ptr::null_mut(), at(address), 0)).is_null());
            assert_eq!(call!(cq::ibv_resize_cq(at(address), 1)), libc::EINVAL);
            assert_eq!(call!(cq::ibv_destroy_cq(at(address))), libc::EINVAL);
            call!(cq::ibv_ack_cq_events(at(address), 1));
            assert_eq!(
                call!(srq::ibv_modify_srq(at(address), &raw const srq_attr, 1)),
                libc::EINVAL
            );
            assert_eq!(call!(srq::ibv_destroy_srq(at(address))), libc::EINVAL);
            (init.qp_type, init.send_cq, init.recv_cq) =
                (flags::IBV_QPT_RC, end.cq.cast(), at(address));
            assert!(call!(qp::ibv_create_qp(end.pd, &raw mut init)).is_null());
            (init.recv_cq, init.srq) = (end.cq.cast(), at(address));
            assert!(call!(qp::ibv_create_qp(end.pd, &raw mut init)).is_null());
            let state = flags::IBV_QP_STATE;
            assert_eq!(call!(qp::ibv_modify_qp(at(address), &raw const attr, state)), libc::EINVAL);
            assert_eq!(
                call!(qp::ibv_query_qp(at(address), &raw mut attr, state, &raw mut init)),
                libc::EINVAL
            );
            assert_eq!(call!(qp::ibv_destroy_qp(at(address))), libc::EINVAL);
            assert!(call!(qp::ibv_qp_to_qp_ex(at(address))).is_null());
            for event_type in 0..20 {
                let element = abi::ibv_async_element { qp: at(address) };
                let mut event = abi::ibv_async_event { element, event_type };
                call!(async_events::ibv_ack_async_event(&raw mut event));
            }
        }
    }
    // SAFETY: `opened` is open, and only this thread uses it and the domain, which the first call
    // destroys. The second call looks up the address and refuses it: this thread creates no object
    // meanwhile, and glibc's malloc keeps a block of this size for the thread that freed it.
    unsafe {
        let domain = call!(pd::ibv_alloc_pd(opened));
        assert_eq!(call!(pd::ibv_dealloc_pd(domain)), 0);
        assert_eq!(call!(pd::ibv_dealloc_pd(domain)), libc::EINVAL);
    }
    drop(end);
    // SAFETY: `open` returned the context, and `end`, which used it, was dropped. The first call
    // closes it. The second one looks up the address and refuses it: this thread opens no context
    // meanwhile, and glibc's malloc keeps a block of this size for the thread that freed it.
    unsafe {
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
        assert_eq!(call!(open::ibv_close_device(opened)), -1);
    }
}

#[test]
fn failed_modify_changes_nothing() {
    let opened = open();
    let end = TestEnd::new(opened, false);
    let mut attr: abi::ibv_qp_attr = abi::zeroed();
    (attr.qp_state, attr.port_num, attr.qp_access_flags) = (1, 1, 1);
    let init = flags::IBV_QP_STATE | flags::IBV_QP_PORT | flags::IBV_QP_ACCESS_FLAGS;
    end.modify(&mut attr, init);
    (attr.qp_state, attr.qp_access_flags) = (2, ACCESS.cast_unsigned());
    // The number contains no port.
    (attr.dest_qp_num, attr.rq_psn, attr.path_mtu) = (5, 7, 1);
    let rtr = flags::IBV_QP_STATE
        | flags::IBV_QP_ACCESS_FLAGS
        | flags::IBV_QP_AV
        | flags::IBV_QP_DEST_QPN;
    let mask = rtr | flags::IBV_QP_RQ_PSN | flags::IBV_QP_PATH_MTU;
    let query = || {
        let (mut found, mut init) = (abi::zeroed::<abi::ibv_qp_attr>(), abi::zeroed());
        // SAFETY: the queue pair lives, and only this thread uses it (see `TestEnd`). The others are
        // local variables of the types that the call writes.
        assert_eq!(unsafe { call!(qp::ibv_query_qp(end.qp, &raw mut found, 0, &raw mut init)) }, 0);
        (found.qp_state, found.qp_access_flags, found.dest_qp_num, found.rq_psn, found.path_mtu)
    };
    let before = query();
    // SAFETY: the queue pair lives, and only this thread uses it (see `TestEnd`). `attr` is a local
    // variable without pointers.
    let refused = unsafe { call!(qp::ibv_modify_qp(end.qp, &raw const attr, mask)) };
    assert_eq!((refused, query()), (libc::EINVAL, before));
    drop(end);
    // SAFETY: the context was opened above, and its objects are destroyed.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

#[test]
fn arguments_without_a_meaning_are_refused() {
    let opened = open();
    let end = TestEnd::new(opened, false);
    // SAFETY: the objects live (see `TestEnd`). `Handle` and `OwnedHandle` refuse objects of
    // another kind, and every registration of `word` is refused. Attributes, results and requests
    // are local variables that nothing changes during the calls. The lists are NULL: `sges` permits
    // that for 0 elements, and refuses it for more.
    unsafe {
        // The pointer refers to an object of another kind.
        assert_eq!(call!(mr::ibv_dereg_mr(end.qp.cast())), libc::EINVAL);
        assert_eq!(call!(cq::ibv_destroy_cq(end.qp.cast())), libc::EINVAL);
        let mut word = 0u64;
        let at = (&raw mut word).cast();
        assert!(call!(mr::ibv_reg_mr(end.pd, at, 0, 1)).is_null());
        assert!(call!(mr::ibv_reg_mr(end.pd, at, usize::MAX, 1)).is_null());
        // Remote write access requires local write access, and the right 1 << 8 does not exist.
        assert!(call!(mr::ibv_reg_mr(end.pd, at, 8, 2)).is_null());
        assert!(call!(mr::ibv_reg_mr(end.pd, at, 8, 1 << 8)).is_null());
        let vectors = (*opened).num_comp_vectors;
        for (cqe, vector) in [(0, 0), (-1, 0), (c_int::MAX, 0), (8, vectors), (8, -1)] {
            assert!(
                call!(cq::ibv_create_cq(opened, cqe, ptr::null_mut(), ptr::null_mut(), vector))
                    .is_null()
            );
        }
        let mut gid = ibv_gid::default();
        assert_eq!(call!(device::port::ibv_query_gid(opened, 2, 0, &raw mut gid)), -1);
        assert_eq!(call!(device::port::ibv_query_gid(opened, 1, 99, &raw mut gid)), -1);
        let mut init: abi::ibv_qp_init_attr = abi::zeroed();
        (init.send_cq, init.recv_cq) = (end.cq.cast(), end.cq.cast());
        for (kind, errno) in [(4, libc::EOPNOTSUPP), (77, libc::EINVAL)] {
            init.qp_type = kind;
            assert!(call!(qp::ibv_create_qp(end.pd, &raw mut init)).is_null());
            assert_eq!(last_errno(), Some(errno));
        }
        // A call that fails does not change the capacities.
        (init.qp_type, init.cap.max_send_wr) = (flags::IBV_QPT_RC, u32::MAX);
        let cap = init.cap;
        assert!(call!(qp::ibv_create_qp(end.pd, &raw mut init)).is_null());
        assert_eq!((last_errno(), init.cap), (Some(libc::EINVAL), cap));
        // One opcode is invalid, and one request has no elements. The second request of the chain
        // is reported.
        let mut bad = ptr::null_mut();
        let mut wrong: abi::ibv_send_wr = abi::zeroed();
        wrong.opcode = 99;
        let mut right: abi::ibv_send_wr = abi::zeroed();
        right.opcode = wr::IBV_WR_SEND;
        right.next = &raw mut wrong;
        let mut attr: abi::ibv_qp_attr = abi::zeroed();
        // The highest attribute that is supported is IBV_QP_DEST_QPN, 1 << 20.
        for mask in [1 << 21, 1 << 25] {
            assert_eq!(call!(qp::ibv_modify_qp(end.qp, &raw const attr, mask)), libc::EOPNOTSUPP);
        }
        attr.qp_state = 9;
        assert_eq!(
            call!(qp::ibv_modify_qp(end.qp, &raw const attr, flags::IBV_QP_STATE)),
            libc::EINVAL
        );
        attr.qp_state = 3;
        assert_eq!(
            call!(qp::ibv_modify_qp(end.qp, &raw const attr, flags::IBV_QP_STATE)),
            libc::EINVAL
        );
        attr.qp_state = 6;
        assert_eq!(call!(qp::ibv_modify_qp(end.qp, &raw const attr, flags::IBV_QP_STATE)), 0);
        let post = (*opened).ops.post_send.unwrap();
        assert_eq!(post(end.qp, &raw mut right, &raw mut bad), libc::EINVAL);
        assert_eq!(bad, &raw mut wrong);
        (wrong.opcode, wrong.num_sge) = (wr::IBV_WR_SEND, 3);
        assert_eq!(post(end.qp, &raw mut wrong, &raw mut bad), libc::EINVAL);
        bad = ptr::null_mut();
        assert_eq!(post(ptr::null_mut(), &raw mut right, &raw mut bad), libc::EINVAL);
        assert_eq!(bad, &raw mut right);
    }
    drop(end);
    // SAFETY: `open` returned the context, which is closed once. `end`, which used it, was dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

/// Runs the calling test, which has the name `test`, in a process of its own whose persona is
/// `roce`, which has UC and UD queue pairs: there, `body` is called with a new end.
fn in_roce_process(test: &str, with_srq: bool, body: impl FnOnce(&TestEnd)) {
    if std::env::var_os("UIW_PERSONA").is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env("UIW_PERSONA", "roce")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let opened = open();
    let end = TestEnd::new(opened, with_srq);
    body(&end);
    drop(end);
    // SAFETY: `open` returned the context, which is closed once. `end`, which used it, was dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}

/// Creates a queue pair that completes in the queue of `end`.
fn create_qp(
    end: &TestEnd,
    pd: *mut ibv_pd,
    qp_type: c_int,
    srq: *mut ibv_srq,
    send_ops: u64,
) -> *mut ibv_qp {
    let mut init: abi::ibv_qp_init_attr_ex = abi::zeroed();
    (init.send_cq, init.recv_cq, init.srq) = (end.cq.cast(), end.cq.cast(), srq);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    init.comp_mask = flags::IBV_QP_INIT_ATTR_PD | flags::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    (init.qp_type, init.pd, init.send_ops_flags) = (qp_type, pd, send_ops);
    // SAFETY: the context and the objects of `end` live, and so does the domain, which the caller
    // has created. The attributes are a local variable that nothing else uses.
    unsafe { vctx(end.context).create_qp_ex.unwrap()(end.context, &raw mut init) }
}

/// Moves a UD queue pair to RTS.
fn enable_datagrams(qp: *mut ibv_qp) {
    let mut attr: abi::ibv_qp_attr = abi::zeroed();
    attr.port_num = 1;
    let init = flags::IBV_QP_PORT | flags::IBV_QP_PKEY_INDEX | flags::IBV_QP_QKEY;
    for (state, mask) in [(1, init), (2, 0), (3, flags::IBV_QP_SQ_PSN)] {
        attr.qp_state = state;
        // SAFETY: the queue pair is one that the caller has created and uses in no other thread.
        // `attr` is a local variable without pointers.
        let changed =
            unsafe { call!(qp::ibv_modify_qp(qp, &raw const attr, flags::IBV_QP_STATE | mask)) };
        assert_eq!(changed, 0, "state {state}");
    }
}

/// Creates a parent domain.
///
/// # Safety
/// `context` is open, and the domains are NULL or live objects of it.
unsafe fn alloc_parent_domain(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    td: *mut abi::ibv_td,
) -> *mut ibv_pd {
    let (alloc, free, pd_context) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let attr = abi::ibv_parent_domain_init_attr { pd, td, comp_mask: 0, alloc, free, pd_context };
    // SAFETY: the caller ensures that the context is open and that the domains live. `attr` is a
    // local variable, and the table of the library has this function.
    let parent = unsafe { vctx(context).alloc_parent_domain.unwrap()(context, &raw const attr) };
    assert!(!parent.is_null());
    parent
}

fn last_errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

/// `ibv_create_qp(3)`: only RC and UD queue pairs may use a shared receive queue. `ibv_wr_post(3)`:
/// creation fails if the type does not support all requested operations.
#[test]
fn queue_pair_type_limits_its_attributes() {
    in_roce_process("queue_pair_type_limits_its_attributes", true, |end| {
        assert!(create_qp(end, end.pd, flags::IBV_QPT_UC, end.srq, 1).is_null());
        assert_eq!(last_errno(), Some(libc::EINVAL));
        // Bits of `ibv_qp_create_send_ops_flags`: Write, Send, Read, FetchAdd, atomic write.
        for (qp_type, ops, offered) in [
            (flags::IBV_QPT_UC, 1 | 1 << 2, true),
            (flags::IBV_QPT_UC, 1 << 4, false),
            (flags::IBV_QPT_UC, 1 << 6, false),
            (flags::IBV_QPT_UC, 1 << 12, false),
            (flags::IBV_QPT_UD, 1 << 2 | 1 << 3, true),
            (flags::IBV_QPT_UD, 1, false),
            (flags::IBV_QPT_UD, 1 << 9, false),
        ] {
            let qp = create_qp(end, end.pd, qp_type, ptr::null_mut(), ops);
            if offered {
                // SAFETY: only this thread has used the queue pair, which is checked by the call.
                let rc = unsafe { call!(qp::ibv_destroy_qp(qp)) };
                assert_eq!(rc, 0, "type {qp_type} with {ops:#x}");
            } else {
                assert!(qp.is_null(), "type {qp_type} with {ops:#x}");
                assert_eq!(last_errno(), Some(libc::EOPNOTSUPP));
            }
        }
    });
}

/// `ibv_destroy_qp(3)`: it fails if the queue pair is attached to a multicast group.
#[test]
fn attached_queue_pair_not_destroyed() {
    in_roce_process("attached_queue_pair_not_destroyed", false, |end| {
        let qp = create_qp(end, end.pd, flags::IBV_QPT_UD, ptr::null_mut(), 1 << 2);
        assert!(!qp.is_null());
        let group = device::gid::from_address("239.7.7.8".parse().unwrap());
        // SAFETY: only this thread uses the queue pair, which lives until the last call destroys it.
        // `group` is a local variable.
        unsafe {
            let attach = || call!(qp::ibv_attach_mcast(qp, &raw const group, 0));
            let detach = || call!(qp::ibv_detach_mcast(qp, &raw const group, 0));
            assert_eq!((attach(), attach()), (0, 0));
            assert_eq!(call!(qp::ibv_destroy_qp(qp)), libc::EBUSY);
            assert_eq!((detach(), detach()), (0, libc::EINVAL));
            assert_eq!(call!(qp::ibv_destroy_qp(qp)), 0);
        }
    });
}

/// `ibv_alloc_parent_domain(3)`: a parent domain is interchangeable with its protection domain.
#[test]
fn parent_domain_shares_address_handles() {
    in_roce_process("parent_domain_shares_address_handles", false, |end| {
        let mut gid = ibv_gid::default();
        // SAFETY: the objects live until they are destroyed below, each once, and only this thread uses
        // them. Attributes and requests are local variables, whose pointers are NULL or these objects.
        // The tables of the library have these functions.
        unsafe {
            let parent = alloc_parent_domain(end.context, end.pd, ptr::null_mut());
            let qp = create_qp(end, parent, flags::IBV_QPT_UD, ptr::null_mut(), 1 << 2);
            enable_datagrams(qp);
            assert_eq!(call!(device::port::ibv_query_gid(end.context, 1, 0, &raw mut gid)), 0);
            let mut to =
                abi::ibv_ah_attr { is_global: 1, port_num: 1, ..abi::ibv_ah_attr::default() };
            to.grh.dgid = gid;
            let handle = call!(ah::ibv_create_ah(end.pd, &raw const to));
            let mut send: abi::ibv_send_wr = abi::zeroed();
            (send.opcode, send.send_flags) = (wr::IBV_WR_SEND, 2);
            send.wr.ud =
                abi::ibv_target_ud { ah: handle, remote_qpn: (*qp).qp_num, remote_qkey: 0 };
            let post = (*end.context).ops.post_send.unwrap();
            assert_eq!(post(qp, &raw mut send, ptr::null_mut()), 0);
            end.done(0);
            let ex = call!(qp::ibv_qp_to_qp_ex(qp));
            (*ex).wr_start.unwrap()(ex);
            ((*ex).wr_id, (*ex).wr_flags) = (1, 2);
            (*ex).wr_send.unwrap()(ex);
            (*ex).wr_set_ud_addr.unwrap()(ex, handle, (*qp).qp_num, 0);
            assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
            end.done(1);
            assert_eq!(call!(qp::ibv_destroy_qp(qp)), 0);
            assert_eq!(call!(ah::ibv_destroy_ah(handle)), 0);
            assert_eq!(call!(pd::ibv_dealloc_pd(parent)), 0);
        }
    });
}

#[test]
fn thread_domain_in_use_not_deallocated() {
    let opened = open();
    // SAFETY: the context is open. The objects live until they are deallocated, each once, and only
    // this thread uses them. Attributes are local variables, whose pointers are NULL or these
    // objects. The tables of the library have these functions.
    unsafe {
        let table = vctx(opened);
        let domain = call!(pd::ibv_alloc_pd(opened));
        let attr = abi::ibv_td_init_attr { comp_mask: 0 };
        let thread_domain = table.alloc_td.unwrap()(opened, &raw const attr);
        let parent = alloc_parent_domain(opened, domain, thread_domain);
        let dealloc_td = table.dealloc_td.unwrap();
        assert_eq!(dealloc_td(thread_domain), libc::EBUSY);
        assert_eq!(call!(pd::ibv_dealloc_pd(parent)), 0);
        assert_eq!(dealloc_td(thread_domain), 0);
        assert_eq!(call!(pd::ibv_dealloc_pd(domain)), 0);
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
    }
}

/// `ibv_dealloc_pd(3)`: it fails if any other resource is associated with the domain.
#[test]
fn parent_domain_of_completion_queue_not_deallocated() {
    let opened = open();
    // SAFETY: the context is open. The objects live until they are destroyed, each once, and only
    // this thread uses them. Attributes are a local variable, whose pointers are NULL or these
    // objects. The tables of the library have this function.
    unsafe {
        let domain = call!(pd::ibv_alloc_pd(opened));
        let parent = alloc_parent_domain(opened, domain, ptr::null_mut());
        let mut attr: abi::ibv_cq_init_attr_ex = abi::zeroed();
        (attr.cqe, attr.parent_domain) = (8, parent);
        attr.comp_mask = cqf::IBV_CQ_INIT_ATTR_MASK_PD;
        let cq = vctx(opened).create_cq_ex.unwrap()(opened, &raw mut attr);
        assert!(!cq.is_null());
        assert_eq!(call!(pd::ibv_dealloc_pd(parent)), libc::EBUSY);
        assert_eq!(call!(cq::ibv_destroy_cq(cq.cast::<ibv_cq>())), 0);
        assert_eq!(call!(pd::ibv_dealloc_pd(parent)), 0);
        assert_eq!(call!(pd::ibv_dealloc_pd(domain)), 0);
        assert_eq!(call!(open::ibv_close_device(opened)), 0);
    }
}

/// `ibv_advise_mr(3)`: the keys of all elements are checked, whatever the advice and the flags are.
#[test]
fn advice_with_wrong_key_refused() {
    let opened = open();
    let end = TestEnd::new(opened, false);
    // SAFETY: the objects live (see `TestEnd`), and only this thread uses them. The other domain and
    // the other regions are destroyed below, each once, before the words of `end` are freed; no
    // request uses them. Elements are local variables. The table of the library has this function.
    unsafe {
        let other = call!(pd::ibv_alloc_pd(opened));
        let words = (&raw const *end.memory).cast_mut().cast();
        let read_only = call!(mr::ibv_reg_mr(end.pd, words, 512, 0));
        let zero_based = call!(mr::ibv_reg_mr(end.pd, words, 512, 1 | 1 << 5));
        assert!(!other.is_null() && !read_only.is_null() && !zero_based.is_null());
        let right = end.sge(0, 512);
        let start = end.address(0);
        for (advice, flags) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)] {
            let advise = |pd, sge: ibv_sge| {
                vctx(opened).advise_mr.unwrap()(pd, advice, flags, &raw const sge, 1)
            };
            let with = |addr, length, lkey| advise(end.pd, ibv_sge { addr, length, lkey });
            assert_eq!(with(start, 512, right.lkey), 0);
            assert_eq!(with(0, 512, (*zero_based).lkey), 0);
            assert_eq!(with(start, 512, right.lkey ^ 1), libc::ENOENT);
            assert_eq!(with(start, 513, right.lkey), libc::EFAULT);
            assert_eq!(advise(other, right), libc::EPERM);
            let writes = advice == 1;
            assert_eq!(with(start, 512, (*read_only).lkey), if writes { libc::EPERM } else { 0 });
        }
        for mr in [read_only, zero_based] {
            assert_eq!(call!(mr::ibv_dereg_mr(mr)), 0);
        }
        assert_eq!(call!(pd::ibv_dealloc_pd(other)), 0);
    }
    drop(end);
    // SAFETY: `open` returned the context, which is closed once. `end`, which used it, was dropped.
    assert_eq!(unsafe { call!(open::ibv_close_device(opened)) }, 0);
}
