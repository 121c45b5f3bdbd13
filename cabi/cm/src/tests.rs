//! Several ids in one process: calls and events of one id do not wait for calls of another.

use super::*;
use crate::channel::Channel;
use crate::id::Id;
use crate::registry::RegisteredPtr as _;
use crate::routes::EventSource;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use uiw_cabi_core::abi::cm::*;
use uiw_cabi_core::abi::qp::IBV_QPT_RC;
use uiw_cabi_core::abi::{
    self, ibv_context_ops, ibv_cq, ibv_qp, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_wc,
    rdma_cm_event, rdma_cm_id, rdma_event_channel,
};
use uiw_cabi_core::address;
use uiw_cabi_core::arguments::AnyPtr;
use uiw_cabi_core::call;
use uiw_cabi_core::object::{self, ObjectKind};
use uiw_cabi_verbs::{channel as comp_channel, cq, device, open, pd};
use uiw_llp::tcp::TcpStack;
use uiw_llp::wrap::{Origin, StackHooks, WrappedStack};
use uiw_llp::{Token, TransportStack, TransportStream};
use uiw_verbs::DeviceConfig;
use uiw_verbs::cm::{CmEvent, CmEventKind, ConnId};

/// Limit that turns a deadlock into a failure. No time is measured with it.
const DEADLOCK: Duration = Duration::from_secs(60);

/// Pointer that is passed between threads, like C's pointers.
struct SharedPointer<T>(*mut T);

// SAFETY: a value is only an address, and sending it accesses nothing. The threads to which the
// tests send it only compare it, or pass it to functions that look it up in the registry, which has
// a lock.
unsafe impl<T> Send for SharedPointer<T> {}
// SAFETY: a shared reference only permits copying the address, which never changes. Any thread may
// have a copy, as explained for `Send`.
unsafe impl<T> Sync for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Hooks that report the first `connect` and block it until it is released. The engine calls
/// `connect` again if the peer refuses.
#[derive(Clone)]
struct SlowConnect {
    entered: mpsc::Sender<()>,
    go_on: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl StackHooks for SlowConnect {
    type Stream = ();

    fn stream(&self, _: &dyn TransportStream, _: Origin, _: Token) {}

    fn before_connect(&mut self, _: &dyn TransportStack) {
        // The test drops the other end of `entered` after it has seen the first call.
        if self.entered.send(()).is_ok() {
            self.go_on.lock().unwrap().recv().unwrap();
        }
    }
}

fn new_id(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let mut id = ptr_null();
    // SAFETY: `channel` is looked up, and may be any pointer (`AnyPtr`). `id` is a local variable
    // with room for the pointer that the call writes, and nothing else uses it. The context is only
    // stored.
    assert_eq!(unsafe { call!(rdma_create_id(channel, &raw mut id, ptr_null(), RDMA_PS_TCP)) }, 0);
    id
}

/// Returns the functions that C's headers call for a queue pair.
///
/// # Safety
/// The queue pair belongs to an id and lives during `'a`.
unsafe fn ops<'a>(qp: *mut ibv_qp) -> &'a ibv_context_ops {
    // SAFETY: the caller ensures that the queue pair lives, and that it belongs to an id, so its
    // context is one that `devices` never closes. Both structures are initialized when they are
    // created, and these two fields are not written later, so no write conflicts with the reads.
    unsafe { &(*(*qp).context).ops }
}

fn ptr_null<T>() -> *mut T {
    std::ptr::null_mut()
}

/// Acknowledges the next event of the channel, and returns its type and its id.
fn next(channel: *mut rdma_event_channel) -> (c_int, *mut rdma_cm_id) {
    let mut event: *mut rdma_cm_event = ptr_null();
    // SAFETY: `channel` is looked up, and `event` is a local variable with room for the pointer
    // that the call writes. After the assertion it points to an event, which lives until this
    // function acknowledges it, once. Only this thread has the pointer, so nothing writes to it.
    unsafe {
        assert_eq!(call!(rdma_get_cm_event(channel, &raw mut event)), 0);
        let found = ((*event).event, (*event).id);
        assert_eq!(call!(rdma_ack_cm_event(event)), 0);
        found
    }
}

fn resolve_addr(id: *mut rdma_cm_id, peer: SocketAddr) {
    let to = address::to_sockaddr(peer);
    // SAFETY: `id` is looked up. `AddressPtr` permits NULL, and the address in `to`, a local
    // variable in which `to_sockaddr` has written it and that nothing changes during the call.
    let rc = unsafe { call!(rdma_resolve_addr(id, std::ptr::null(), to.0.as_ptr().cast(), 1000)) };
    assert_eq!(rc, 0);
}

fn queue_pair_attributes() -> ibv_qp_init_attr {
    let mut init: ibv_qp_init_attr = abi::zeroed();
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    (init.qp_type, init.sq_sig_all) = (IBV_QPT_RC, 1);
    init
}

/// Creates a queue pair on its own engine, with a slow stack.
fn queue_pair_on(engine: &uiw_verbs::Device) -> *mut ibv_qp {
    let lo = device::with_address(Ipv4Addr::LOCALHOST.into()).unwrap();
    let context = open::open_on(lo, engine).unwrap();
    let mut init = queue_pair_attributes();
    // SAFETY: only this thread knows the context, the domain and the queue, and nothing destroys
    // them before this function returns. If the domain or the queue is NULL, the calls refuse it.
    // `init` is an initialized local variable that nothing else uses. Other NULLs are permitted.
    unsafe {
        let domain = call!(pd::ibv_alloc_pd(context));
        let queue = call!(cq::ibv_create_cq(context, 16, ptr_null(), ptr_null(), 0));
        (init.send_cq, init.recv_cq) = (queue, queue);
        let qp = call!(uiw_cabi_verbs::qp::ibv_create_qp(domain, &raw mut init));
        assert!(!qp.is_null());
        qp
    }
}

/// Waits for a completion with an event of the queue.
fn completion(queue: *mut ibv_cq, channel: *mut abi::ibv_comp_channel) -> ibv_wc {
    let (mut found, mut context) = (ptr_null(), ptr_null());
    // SAFETY: `connect_and_send`, the only caller, destroys the queue and its channel only after
    // this call, on this thread, and no other thread uses them. `found`, `context` and `wc` are
    // initialized local variables with room for the results, and nothing else uses them.
    unsafe {
        assert_eq!(
            call!(comp_channel::ibv_get_cq_event(channel, &raw mut found, &raw mut context)),
            0
        );
        assert_eq!(found, queue);
        call!(cq::ibv_ack_cq_events(queue, 1));
        let mut wc: ibv_wc = abi::zeroed();
        assert_eq!(call!(cq::poll_cq(queue, 1, &raw mut wc)), 1);
        wc
    }
}

/// Connects a new id on `channel` with a new listener, sends a message, and destroys both.
fn connect_and_send(channel: *mut rdma_event_channel) {
    let passive = rdma_create_event_channel();
    let listener = new_id(passive);
    // SAFETY: only this thread uses the ids, and the queue pairs and queues that `rdma_create_qp`
    // creates on them. All live until the calls below that destroy them, or on, if an assertion
    // fails. Attributes and requests are initialized locals or temporaries that outlive the calls,
    // which nothing else uses. Requests have no elements, and the NULL parameters are optional.
    unsafe {
        assert_eq!(call!(rdma_listen(listener, 4)), 0);
        let port = u16::from_be(call!(rdma_get_src_port(listener)));
        let id = new_id(channel);
        resolve_addr(id, (Ipv4Addr::LOCALHOST, port).into());
        assert_eq!(next(channel), (RDMA_CM_EVENT_ADDR_RESOLVED, id));
        assert_eq!(call!(rdma_resolve_route(id, 1000)), 0);
        assert_eq!(next(channel), (RDMA_CM_EVENT_ROUTE_RESOLVED, id));
        assert_eq!(
            call!(rdma_create_qp(id, ptr_null(), std::ptr::from_mut(&mut queue_pair_attributes()))),
            0
        );
        assert_eq!(call!(rdma_connect(id, std::ptr::null())), 0);

        let (event, accepted) = next(passive);
        assert_eq!(event, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(
            call!(rdma_create_qp(
                accepted,
                ptr_null(),
                std::ptr::from_mut(&mut queue_pair_attributes())
            )),
            0
        );
        let mut receive =
            ibv_recv_wr { wr_id: 7, next: ptr_null(), sg_list: ptr_null(), num_sge: 0 };
        assert_eq!(
            ops((*accepted).qp).post_recv.unwrap()((*accepted).qp, &raw mut receive, ptr_null()),
            0
        );
        assert_eq!(call!(cq::req_notify_cq((*accepted).recv_cq, 0)), 0);
        assert_eq!(call!(rdma_accept(accepted, std::ptr::null())), 0);
        assert_eq!(next(channel), (RDMA_CM_EVENT_ESTABLISHED, id));
        assert_eq!(next(passive), (RDMA_CM_EVENT_ESTABLISHED, accepted));

        let mut send: ibv_send_wr = abi::zeroed();
        send.opcode = abi::wr::IBV_WR_SEND;
        assert_eq!(ops((*id).qp).post_send.unwrap()((*id).qp, &raw mut send, ptr_null()), 0);
        let wc = completion((*accepted).recv_cq, (*accepted).recv_cq_channel);
        assert_eq!((wc.wr_id, wc.status), (7, 0));

        assert_eq!(call!(rdma_disconnect(id)), 0);
        assert_eq!(next(channel), (RDMA_CM_EVENT_DISCONNECTED, id));
        for id in [id, accepted] {
            call!(rdma_destroy_qp(id));
            assert_eq!(call!(rdma_destroy_id(id)), 0);
        }
        assert_eq!(call!(rdma_destroy_id(listener)), 0);
        call!(rdma_destroy_event_channel(passive));
    }
}

#[test]
fn id_inside_engine_blocks_no_other() {
    let ((entered, is_entered), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let hooks = SlowConnect { entered, go_on: Arc::new(Mutex::new(may_go_on)) };
    let stack = WrappedStack { inner: Box::new(TcpStack::new().unwrap()), hooks };
    let engine = uiw_verbs::Device::with_stack(Box::new(stack), DeviceConfig::default()).unwrap();
    let qp = queue_pair_on(&engine);
    let channel = rdma_create_event_channel();
    let slow = new_id(channel);
    resolve_addr(slow, (Ipv4Addr::LOCALHOST, 9).into());
    assert_eq!(next(channel), (RDMA_CM_EVENT_ADDR_RESOLVED, slow));
    // SAFETY: the call looks the id up. It lives until the test destroys it below, and no other
    // thread uses it yet, so none accesses the field, which a program may set to its own queue
    // pair. That lives until it is destroyed below, after the id.
    unsafe {
        assert_eq!(call!(rdma_resolve_route(slow, 1000)), 0);
        (*slow).qp = qp;
    }
    let shared = SharedPointer(slow);
    // SAFETY: the id is looked up, and parameters may be NULL. The test destroys the id and its
    // queue pair only after it has joined this thread, below, and not at all if an assertion fails.
    // Until then, other threads only take events of the id.
    let connecting =
        thread::spawn(move || unsafe { call!(rdma_connect(shared.get(), std::ptr::null())) });
    is_entered.recv().unwrap();
    drop(is_entered);

    let (done, is_done) = mpsc::channel();
    let (id, events) = (SharedPointer(slow), SharedPointer(channel));
    let others = thread::spawn(move || {
        // This is an event of the id itself, which was announced before its call.
        assert_eq!(next(events.get()), (RDMA_CM_EVENT_ROUTE_RESOLVED, id.get()));
        connect_and_send(events.get());
        done.send(()).unwrap();
    });
    let in_time = is_done.recv_timeout(DEADLOCK);
    go_on.send(()).unwrap();
    others.join().unwrap();
    assert!(in_time.is_ok(), "the other id waited for the one inside of the engine");

    assert_eq!(connecting.join().unwrap(), 0);
    // SAFETY: the two threads were joined, so only this thread uses the id, the channel, and the
    // queue pair with its queue, domain and context. Each of these lives until it is destroyed
    // here, once, after those that use it. The fields of the queue pair are read before that.
    unsafe {
        assert_eq!(call!(rdma_destroy_id(slow)), 0);
        let (context, domain, queue) = ((*qp).context, (*qp).pd, (*qp).send_cq);
        assert_eq!(call!(uiw_cabi_verbs::qp::ibv_destroy_qp(qp)), 0);
        assert_eq!(call!(cq::ibv_destroy_cq(queue)), 0);
        assert_eq!(call!(pd::ibv_dealloc_pd(domain)), 0);
        assert_eq!(call!(open::ibv_close_device(context)), 0);
        call!(rdma_destroy_event_channel(channel));
    }
}

fn failed(conn: ConnId) -> CmEvent {
    CmEvent { id: conn, kind: CmEventKind::Failed(uiw_verbs::Error::NotConnected) }
}

#[test]
fn early_event_finds_its_id() {
    let channel = Channel::new().unwrap();
    let id = Id::new(&channel, false, ptr_null());
    let (known, other) = (ConnId(u64::MAX), ConnId(u64::MAX - 1));
    let (call, of_another_id) = (channel.begin_unrouted_call(), channel.begin_unrouted_call());
    channel.queue().post(failed(known));
    let reader = thread::spawn({
        let channel = Arc::clone(&channel);
        move || routes::next(&channel, false).and_then(|(_, id)| id)
    });
    // The event was taken, but has no route yet.
    while !channel.queue().is_empty() {
        thread::yield_now();
    }
    routes::add(EventSource::Conn(known), &id, Some(call));
    let found = reader.join().unwrap().expect("the route was added");
    assert!(Arc::ptr_eq(&found, &id), "though another id of the channel is inside of the engine");

    drop(of_another_id);
    channel.queue().post(failed(other));
    let (_, nothing) = routes::next(&channel, false).expect("an event");
    assert!(nothing.is_none(), "no call of the engine is under way that it could come from");
    channel.queue().post(failed(known));
    let events =
        routes::remove([EventSource::Conn(known)].into_iter(), &channel, |event| event.id == known);
    assert_eq!(events.len(), 1);
    assert!(routes::next(&channel, false).is_none());
}

/// While one thread delivers an event that uses the queue pair, another one destroys it.
#[test]
fn queue_pair_outlives_event() {
    let channel = rdma_create_event_channel();
    let id = new_id(channel);
    resolve_addr(id, (Ipv4Addr::LOCALHOST, 9).into());
    assert_eq!(next(channel), (RDMA_CM_EVENT_ADDR_RESOLVED, id));
    let mut attr = queue_pair_attributes();
    // SAFETY: the id lives until the end of the test, and only this thread uses it so far, so
    // nothing writes its field meanwhile. The attributes are an initialized local variable that
    // nothing else uses, and the domain may be NULL.
    let qp = unsafe {
        assert_eq!(call!(rdma_create_qp(id, ptr_null(), &raw mut attr)), 0);
        (*id).qp
    };
    let is_alive = || object::is_alive(qp.addr(), ObjectKind::Qp);
    let shared = SharedPointer(id);
    let delivering = AnyPtr::from(id).get().unwrap();
    let destroying = delivering.with_own_qp(|_| {
        // SAFETY: the id is looked up. No other call of the program uses its queue pair, as the
        // documentation of `rdma_destroy_qp` demands. The test's thread has a reference to it, like
        // an event, but only in `with_own_qp`, whose lock the destruction has to wait for.
        let destroying = thread::spawn(move || unsafe { call!(rdma_destroy_qp(shared.get())) });
        // A thread that does not wait for the event destroys the queue pair soon.
        for _ in 0..50 {
            assert!(is_alive());
            thread::sleep(Duration::from_millis(1));
        }
        destroying
    });
    destroying.unwrap().join().unwrap();
    assert!(!is_alive());
    drop(delivering);
    // SAFETY: both calls look up their pointer, and may get any (`AnyPtr`). The other thread was
    // joined, the id has no queue pair any more, and all of its events were acknowledged.
    unsafe {
        assert_eq!(call!(rdma_destroy_id(id)), 0);
        call!(rdma_destroy_event_channel(channel));
    }
}
