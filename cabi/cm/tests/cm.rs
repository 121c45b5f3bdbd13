//! Calls of the connection manager's exported functions as a C program makes them, in cases that no
//! stock program covers.

use std::ffi::c_char;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::thread::JoinHandleExt;
use std::process::Command;
use std::ptr;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use uiw_cabi_cm as cm;
use uiw_cabi_core::abi::cm::{
    RAI_PASSIVE, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE,
    RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP,
};
use uiw_cabi_core::abi::qp::{IBV_QPT_RC, IBV_QPT_UD};
use uiw_cabi_core::abi::{
    ibv_cq, ibv_pd, ibv_qp_init_attr, ibv_recv_wr, ibv_srq_init_attr, ibv_wc, rdma_addrinfo,
    rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_event_channel, zeroed,
};
use uiw_cabi_core::call;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::cq::poll_cq;
use uiw_cabi_verbs::device::{gid, ibv_get_device_list};
use uiw_cabi_verbs::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use uiw_cabi_verbs::qp::ibv_detach_mcast;
use uiw_verbs::WcStatus;

/// Channel that is passed between threads, like C's pointers.
#[derive(Clone, Copy)]
struct SharedChannel(*mut rdma_event_channel);

// SAFETY: a value is only an address, and sending it accesses nothing. The functions of the library
// look it up in their registry, which has a lock. Only `set_nonblocking` and `is_readable` read
// through it: they state why the channel lives, and its `fd` is never written after creation.
unsafe impl Send for SharedChannel {}

impl SharedChannel {
    fn new() -> Self {
        let channel = cm::rdma_create_event_channel();
        assert!(!channel.is_null());
        Self(channel)
    }

    /// Asserts that `rdma_get_cm_event` returns no event, and returns its error.
    fn get_none(self) -> Errno {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is looked up, and may be any pointer (`AnyPtr`). `event` is a local
        // variable with room for the pointer that the call would write, and nothing else uses it.
        assert_eq!(unsafe { call!(cm::rdma_get_cm_event(self.0, &raw mut event)) }, -1);
        Errno::last()
    }

    /// Returns whether there is a request, and destroys it.
    fn get_request(self) -> bool {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel and the id are looked up. `event` is a local variable with room for
        // the pointer that a successful call writes. The event lives until this function
        // acknowledges it, once. Only this thread has the pointer, so nothing writes to the event.
        unsafe {
            if call!(cm::rdma_get_cm_event(self.0, &raw mut event)) == -1 {
                return false;
            }
            let request = (*event).id;
            call!(cm::rdma_ack_cm_event(event));
            call!(cm::rdma_destroy_id(request));
        }
        true
    }

    /// Waits for an event, acknowledges it after `before`, and returns its kind.
    fn next_event(self, before: impl FnOnce()) -> i32 {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is looked up. `event` is a local variable with room for the pointer
        // that the call writes. The event lives until this function acknowledges it, once, and
        // nothing writes to it.
        unsafe {
            assert_eq!(call!(cm::rdma_get_cm_event(self.0, &raw mut event)), 0);
            let kind = (*event).event;
            before();
            call!(cm::rdma_ack_cm_event(event));
            kind
        }
    }

    fn set_nonblocking(self, nonblocking: bool) {
        // SAFETY: the channel lives: the callers are its creator, before it destroys the channel,
        // and a thread for whose message the creator waits before that. `fd` is never written after
        // creation. F_SETFL takes an integer, and accesses no memory.
        unsafe {
            let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
            assert_eq!(libc::fcntl((*self.0).fd, libc::F_SETFL, flags), 0);
        }
    }

    fn destroy(self) {
        // SAFETY: the channel is looked up, and may be any pointer (`AnyPtr`), even one that was
        // destroyed.
        unsafe { call!(cm::rdma_destroy_event_channel(self.0)) };
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// Installs a handler, so that signals end a sleep with EINTR and have no other effect.
fn handle_signals() {
    // SAFETY: zeros are a valid `sigaction`. `action` is a local variable that the call only reads,
    // and NULL is permitted as the place for the old one. The handler has the type of one without
    // SA_SIGINFO, and does nothing, so it may run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// Signals `sleeper` until it ends, because a signal that arrives before the sleep does not
/// interrupt it.
fn interrupt<T>(sleeper: thread::JoinHandle<T>) -> T {
    while !sleeper.is_finished() {
        // SAFETY: `sleeper` is joined only below, so the id of its thread is valid even if it has
        // ended. The signal has the handler of `handle_signals`, which both tests that call
        // `read_destroy_read`, the only caller, have installed. The handler does nothing.
        unsafe { libc::pthread_kill(sleeper.as_pthread_t(), libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(1));
    }
    sleeper.join().unwrap()
}

/// Locked by every test, because the address of a destroyed channel may be reused for the next
/// channel, even of another test.
static ADDRESSES: Mutex<()> = Mutex::new(());

/// Reads a channel once in another thread, destroys it in this thread, and reads it in the other
/// thread again.
fn read_destroy_read(blocking: bool) -> Errno {
    let channel = SharedChannel::new();
    let ((read, is_read), (destroyed, is_destroyed)) = (mpsc::channel(), mpsc::channel());
    let reader = thread::spawn(move || {
        channel.set_nonblocking(true);
        assert_eq!(channel.get_none(), Errno::AGAIN);
        channel.set_nonblocking(!blocking);
        read.send(()).unwrap();
        is_destroyed.recv().unwrap();
        channel.get_none()
    });
    is_read.recv().unwrap();
    channel.destroy();
    assert_eq!(channel.get_none(), Errno::INVAL, "only the reader sleeps");
    destroyed.send(()).unwrap();
    interrupt(reader)
}

#[test]
fn reader_sleeps_on_after_channel_destroyed() {
    let _alone = ADDRESSES.lock();
    handle_signals();
    assert_eq!(read_destroy_read(true), Errno::INTR);
}

#[test]
fn nonblocking_reader_of_destroyed_channel_fails() {
    let _alone = ADDRESSES.lock();
    handle_signals();
    assert_eq!(read_destroy_read(false), Errno::INVAL);
}

#[test]
fn destroyed_channel_fails_all_threads() {
    let _alone = ADDRESSES.lock();
    let channel = SharedChannel::new();
    channel.set_nonblocking(true);
    assert_eq!(channel.get_none(), Errno::AGAIN);
    channel.set_nonblocking(false);
    channel.destroy();
    assert_eq!(channel.get_none(), Errno::INVAL);
    assert_eq!(thread::spawn(move || channel.get_none()).join().unwrap(), Errno::INVAL);
    channel.destroy();
}

fn ipv4(address: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    }
}

/// Creates an id and binds it to a port of loopback. Returns the id, which lives until the process
/// ends, and the result of the bind.
fn bind(channel: SharedChannel, port: u16) -> (*mut rdma_cm_id, i32) {
    let mut id = ptr::null_mut();
    let address = ipv4(Ipv4Addr::LOCALHOST, port);
    // SAFETY: the channel and the id are looked up. `id` and `address` are local variables: room
    // for the pointer that the call writes, and an IPv4 address with its whole size. Nothing else
    // uses them during the calls.
    unsafe {
        assert_eq!(
            call!(cm::rdma_create_id(channel.0, &raw mut id, ptr::null_mut(), RDMA_PS_TCP)),
            0
        );
        (id, call!(cm::rdma_bind_addr(id, (&raw const address).cast())))
    }
}

/// Listens on a port of loopback. Returns the id, which lives until the process ends, and the port.
fn listen(channel: SharedChannel) -> (*mut rdma_cm_id, u16) {
    let (id, bound) = bind(channel, 0);
    assert_eq!(bound, 0);
    // SAFETY: the id is looked up.
    unsafe {
        assert_eq!(call!(cm::rdma_listen(id, 8)), 0);
        (id, u16::from_be(call!(cm::rdma_get_src_port(id))))
    }
}

#[test]
fn failed_bind_gives_id_no_device() {
    let _alone = ADDRESSES.lock();
    let channel = SharedChannel::new();
    let (listener, port) = listen(channel);
    let (id, bound) = bind(channel, port);
    assert_eq!((bound, Errno::last()), (-1, Errno(libc::EADDRINUSE)));
    // SAFETY: the id lives, and only this thread uses it. The calls look it up.
    unsafe {
        assert!((*id).verbs.is_null());
        assert_eq!((call!(cm::rdma_destroy_id(id)), call!(cm::rdma_destroy_id(listener))), (0, 0));
    }
    channel.destroy();
}

/// Returns whether the channel becomes readable within the given time.
fn is_readable(channel: SharedChannel, milliseconds: i32) -> bool {
    // SAFETY: the callers destroy the channel after their last call, on the same thread, and `fd`
    // is never written after creation.
    let fd = unsafe { (*channel.0).fd };
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is a local variable, one entry as the count says, and nothing else uses it
    // during the call.
    unsafe { libc::poll(&raw mut polled, 1, milliseconds) == 1 }
}

/// Closes a connection with a reset.
fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the call reads `len` bytes of `linger`, a local variable of that size, and SO_LINGER
    // has this type (socket(7)). `stream` is open until the end of this function.
    let set = unsafe {
        let len = size_of::<libc::linger>() as libc::socklen_t;
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            len,
        )
    };
    assert_eq!(set, 0);
}

/// A request is queued when its peer resets the connection. The reader gets no event for it, and
/// the listener continues.
#[test]
fn listener_survives_disconnect_before_accept() {
    let _alone = ADDRESSES.lock();
    let channel = SharedChannel::new();
    channel.set_nonblocking(true);
    let (id, port) = listen(channel);
    let mut gone = 0;
    for _ in 0..20 {
        let peer = request(port);
        assert!(is_readable(channel, 20_000), "no event of a request");
        reset(peer);
        // Time for the engine to learn of the reset.
        thread::sleep(Duration::from_millis(20));
        let (sender, got) = mpsc::channel();
        thread::spawn(move || sender.send(channel.get_request()).unwrap());
        let is_there =
            got.recv_timeout(Duration::from_secs(20)).expect("rdma_get_cm_event does not return");
        gone += u32::from(!is_there);
    }
    assert!(gone > 0, "every request was read before its reset was known");
    // SAFETY: the id is looked up, and may be any pointer (`AnyPtr`). The call waits for no event,
    // because `get_request` has acknowledged those that were delivered.
    assert_eq!(unsafe { call!(cm::rdma_destroy_id(id)) }, 0);
    channel.destroy();
}

/// `rdma_getaddrinfo(3)`: a type of queue pair that does not belong to the port space is an error.
#[test]
fn address_info_matches_port_space() {
    let look_up = |node: *const c_char, qp_type, port_space| {
        let mut hints: rdma_addrinfo = zeroed();
        (hints.ai_qp_type, hints.ai_port_space) = (qp_type, port_space);
        let mut list: *mut rdma_addrinfo = ptr::null_mut();
        // SAFETY: the name is NULL or a literal of C. The hints, whose pointers are NULL, and
        // `list` are local variables. A list that a successful call returns has one element, lives
        // until it is freed, once, and only this thread has it.
        unsafe {
            match call!(cm::rdma_getaddrinfo(node, ptr::null(), &raw const hints, &raw mut list)) {
                0 => {
                    let found = ((*list).ai_qp_type, (*list).ai_port_space);
                    call!(cm::rdma_freeaddrinfo(list));
                    Ok(found)
                }
                error => Err(error),
            }
        }
    };
    for node in [c"127.0.0.1".as_ptr(), ptr::null()] {
        assert_eq!(look_up(node, 0, 0), Ok((IBV_QPT_RC, RDMA_PS_TCP)));
        assert_eq!(look_up(node, IBV_QPT_UD, 0), Ok((IBV_QPT_UD, RDMA_PS_UDP)));
        assert_eq!(look_up(node, 0, RDMA_PS_TCP), Ok((IBV_QPT_RC, RDMA_PS_TCP)));
        assert_eq!(look_up(node, 0, RDMA_PS_UDP), Ok((IBV_QPT_UD, RDMA_PS_UDP)));
        assert_eq!(look_up(node, 0, RDMA_PS_IPOIB), Ok((IBV_QPT_UD, RDMA_PS_IPOIB)));
    }
    let node = c"127.0.0.1".as_ptr();
    assert_eq!(look_up(node, IBV_QPT_UD, RDMA_PS_TCP), Err(libc::EAI_SOCKTYPE));
    assert_eq!(look_up(node, IBV_QPT_RC, RDMA_PS_UDP), Err(libc::EAI_SOCKTYPE));
}

#[test]
fn passive_endpoint_has_given_domain() {
    let _alone = ADDRESSES.lock();
    let mut address = ipv4(Ipv4Addr::LOCALHOST, 0);
    let mut info: rdma_addrinfo = zeroed();
    (info.ai_flags, info.ai_src_addr) = (RAI_PASSIVE, (&raw mut address).cast());
    info.ai_src_len = size_of_val(&address) as u32;
    let mut id: *mut rdma_cm_id = ptr::null_mut();
    // SAFETY: the list has at least one context, which is never closed, and is freed once. Only this
    // thread uses the domain and the id, which live until they are destroyed, once. The other
    // arguments are NULL where that is permitted, or local variables.
    unsafe {
        let contexts = call!(cm::rdma_get_devices(ptr::null_mut()));
        assert!(!contexts.is_null());
        let domain = call!(ibv_alloc_pd(*contexts));
        call!(cm::rdma_free_devices(contexts));
        assert!(!domain.is_null());
        assert_eq!(
            call!(cm::rdma_create_ep(&raw mut id, &raw const info, domain, ptr::null_mut())),
            0
        );
        assert_eq!((*id).pd, domain);
        call!(cm::rdma_destroy_ep(id));
        assert_eq!(call!(ibv_dealloc_pd(domain)), 0);
    }
}

/// Starts a connection to an id that listens at `port` of loopback, so that the id gets a request.
fn request(port: u16) -> TcpStream {
    let mut peer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    peer.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
    peer
}

/// Waits for a request to the only listener of a channel, acknowledges its event, and returns its
/// id.
fn next_request(channel: SharedChannel) -> *mut rdma_cm_id {
    let mut event: *mut rdma_cm_event = ptr::null_mut();
    // SAFETY: the channel is looked up. `event` is a local variable with room for the pointer that
    // the call writes. The event lives until it is acknowledged, once, and only this thread has it.
    unsafe {
        assert_eq!(call!(cm::rdma_get_cm_event(channel.0, &raw mut event)), 0);
        let id = (*event).id;
        assert_eq!(call!(cm::rdma_ack_cm_event(event)), 0);
        id
    }
}

/// Allocates a protection domain on the loopback device, which is the last one.
fn loopback_domain() -> *mut ibv_pd {
    let mut count = 0;
    // SAFETY: `count` is a local variable. The list has as many contexts, at least one, which are
    // never closed, and is freed once, after its last use.
    unsafe {
        let contexts = call!(cm::rdma_get_devices(&raw mut count));
        assert!(!contexts.is_null());
        let domain = call!(ibv_alloc_pd(*contexts.add(count as usize - 1)));
        call!(cm::rdma_free_devices(contexts));
        assert!(!domain.is_null());
        domain
    }
}

/// `rdma_create_ep(3)`, `rdma_get_request(3)`: programs set `pd` of a listener to the domain of
/// their connections.
#[test]
fn request_has_domain_of_listener() {
    let _alone = ADDRESSES.lock();
    let domain = loopback_domain();
    let mut address = ipv4(Ipv4Addr::LOCALHOST, 0);
    let mut info: rdma_addrinfo = zeroed();
    (info.ai_flags, info.ai_src_addr) = (RAI_PASSIVE, (&raw mut address).cast());
    info.ai_src_len = size_of_val(&address) as u32;
    let mut init: ibv_qp_init_attr = zeroed();
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
    let (mut listener, mut accepted) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: only this thread uses the domain, the ids and the queue pair, which live until they
    // are destroyed below, each once. The other arguments are NULL where that is permitted, or
    // local variables that nothing else uses during the calls.
    unsafe {
        let (info, init) = (&raw const info, &raw mut init);
        assert_eq!(call!(cm::rdma_create_ep(&raw mut listener, info, ptr::null_mut(), init)), 0);
        (*listener).pd = domain;
        assert_eq!(call!(cm::rdma_listen(listener, 4)), 0);
        let _peer = request(u16::from_be(call!(cm::rdma_get_src_port(listener))));
        assert_eq!(call!(cm::rdma_get_request(listener, &raw mut accepted)), 0);
        assert_eq!(((*accepted).pd, (*(*accepted).qp).pd), (domain, domain));
        call!(cm::rdma_destroy_ep(accepted));
        call!(cm::rdma_destroy_ep(listener));
        assert_eq!(call!(ibv_dealloc_pd(domain)), 0);
    }
}

/// A shared receive queue in another domain does not change that of later queue pairs.
#[test]
fn shared_receive_queue_leaves_domain_of_id() {
    let _alone = ADDRESSES.lock();
    let (channel, domain) = (SharedChannel::new(), loopback_domain());
    let peer = ipv4(Ipv4Addr::LOCALHOST, 9);
    let mut init: ibv_srq_init_attr = zeroed();
    (init.attr.max_wr, init.attr.max_sge) = (1, 1);
    let mut id = ptr::null_mut();
    // SAFETY: only this thread uses the id, the domain and the queue, which live until they are
    // destroyed below, each once. The other arguments are NULL where that is permitted, or local
    // variables that nothing else uses during the calls.
    unsafe {
        assert_eq!(
            call!(cm::rdma_create_id(channel.0, &raw mut id, ptr::null_mut(), RDMA_PS_TCP)),
            0
        );
        assert_eq!(
            call!(cm::rdma_resolve_addr(id, ptr::null(), (&raw const peer).cast(), 1000)),
            0
        );
        let before = (*id).pd;
        assert_eq!(call!(cm::rdma_create_srq(id, domain, &raw mut init)), 0);
        assert_eq!(((*(*id).srq).pd, (*id).pd), (domain, before));
        call!(cm::rdma_destroy_srq(id));
        assert_eq!(call!(ibv_dealloc_pd(domain)), 0);
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
    }
    channel.destroy();
}

/// As in rdma-core, the length of private data does not matter if there is none.
#[test]
fn rejected_without_private_data() {
    let _alone = ADDRESSES.lock();
    let channel = SharedChannel::new();
    let (listener, port) = listen(channel);
    let _peer = request(port);
    let id = next_request(channel);
    // SAFETY: the ids are looked up. NULL is permitted as private data of any length.
    unsafe {
        assert_eq!(call!(cm::rdma_reject(id, ptr::null(), 3)), 0);
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
        assert_eq!(call!(cm::rdma_destroy_id(listener)), 0);
    }
    channel.destroy();
}

/// librdmacm moves the queue pair to ERR if the connection cannot be accepted.
#[test]
fn failed_accept_flushes() {
    let _alone = ADDRESSES.lock();
    let channel = SharedChannel::new();
    let (listener, port) = listen(channel);
    let mut failed = 0;
    for _ in 0..20 {
        let peer = request(port);
        let id = next_request(channel);
        let mut init: ibv_qp_init_attr = zeroed();
        (init.qp_type, init.cap.max_send_wr, init.cap.max_recv_wr) = (IBV_QPT_RC, 1, 1);
        let mut receive = empty_receive();
        // SAFETY: only this thread uses the id and its queues, which live until they are destroyed
        // below, each once. The receive has no elements. The other arguments are NULL where that is
        // permitted, or local variables that nothing else uses during the calls.
        unsafe {
            assert_eq!(call!(cm::rdma_create_qp(id, ptr::null_mut(), &raw mut init)), 0);
            let post = (*(*id).verbs).ops.post_recv.unwrap();
            assert_eq!(post((*id).qp, &raw mut receive, ptr::null_mut()), 0);
            reset(peer);
            // Time for the engine to learn of the reset.
            thread::sleep(Duration::from_millis(20));
            if call!(cm::rdma_accept(id, ptr::null())) == -1 {
                assert_eq!(flushed((*id).recv_cq), Some(receive.wr_id));
                failed += 1;
            }
            call!(cm::rdma_destroy_qp(id));
            assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
        }
    }
    assert!(failed > 0, "every request was accepted before its reset was known");
    // SAFETY: the id is looked up, and all events of its requests were acknowledged.
    assert_eq!(unsafe { call!(cm::rdma_destroy_id(listener)) }, 0);
    channel.destroy();
}

/// Returns a receive without elements.
fn empty_receive() -> ibv_recv_wr {
    ibv_recv_wr { wr_id: 7, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 }
}

/// Returns the request whose completion is in the queue, if there is one. It was flushed.
///
/// # Safety
/// The queue lives, and no other thread destroys it.
unsafe fn flushed(queue: *mut ibv_cq) -> Option<u64> {
    let mut wc: ibv_wc = zeroed();
    // SAFETY: the caller ensures that the queue lives. `wc` is a local variable with room for one
    // completion, the maximum passed.
    let found = unsafe { call!(poll_cq(queue, 1, &raw mut wc)) } == 1;
    found.then(|| {
        assert_eq!(wc.status, WcStatus::Flushed as i32);
        wc.wr_id
    })
}

#[test]
fn synchronous_id_not_made_synchronous() {
    let _alone = ADDRESSES.lock();
    let mut id = ptr::null_mut();
    // SAFETY: the channel is NULL, which is permitted. The id is looked up, and only this thread
    // uses it. `id` is a local variable with room for the pointer.
    unsafe {
        let null = ptr::null_mut();
        assert_eq!(call!(cm::rdma_create_id(null, &raw mut id, ptr::null_mut(), RDMA_PS_TCP)), 0);
        let channel = (*id).channel;
        assert_eq!(call!(cm::rdma_migrate_id(id, ptr::null_mut())), -1);
        assert_eq!((Errno::last(), (*id).channel), (Errno::INVAL, channel));
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
    }
}

/// A wrong setting makes the calls fail, so the test runs in a process of its own.
#[test]
fn failed_device_lists_have_no_entries() {
    if std::env::var_os("UIW_PERSONA").is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failed_device_lists_have_no_entries", "--nocapture"])
            .env("UIW_PERSONA", "none")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let mut counts = [7, 7];
    // SAFETY: the counts are local variables, which nothing else uses during the calls.
    unsafe {
        assert!(call!(ibv_get_device_list(&raw mut counts[0])).is_null());
        assert!(call!(cm::rdma_get_devices(&raw mut counts[1])).is_null());
    }
    assert_eq!(counts, [0, 0]);
}

/// Runs the calling test, which has the name `test`, in a process of its own with these settings.
/// Returns whether this is that process.
fn is_own_process(test: &str, settings: &[(&str, &str)]) -> bool {
    if std::env::var_os(settings[0].0).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    false
}

/// Settings of a process that has datagrams.
const DATAGRAMS: [(&str, &str); 1] = [("UIW_UD", "on")];

/// librdmacm moves the queue pair to ERR before it disconnects, even if there is no connection. On
/// iWARP it uses another state.
#[test]
fn disconnect_flushes_after_failed_connect() {
    let settings = [("UIW_FAULT", "cm:connect@1=UNREACHABLE"), ("UIW_PERSONA", "roce")];
    if !is_own_process("disconnect_flushes_after_failed_connect", &settings) {
        return;
    }
    let channel = SharedChannel::new();
    let mut id = ptr::null_mut();
    let peer = ipv4(Ipv4Addr::LOCALHOST, 9);
    let mut init: ibv_qp_init_attr = zeroed();
    (init.qp_type, init.cap.max_send_wr, init.cap.max_recv_wr) = (IBV_QPT_RC, 1, 1);
    let mut receive = empty_receive();
    // SAFETY: only this thread uses the id and its queues, which live until they are destroyed
    // below, each once. The receive has no elements. The other arguments are NULL where that is
    // permitted, or local variables that nothing else uses during the calls.
    unsafe {
        assert_eq!(
            call!(cm::rdma_create_id(channel.0, &raw mut id, ptr::null_mut(), RDMA_PS_TCP)),
            0
        );
        let to = (&raw const peer).cast();
        assert_eq!(call!(cm::rdma_resolve_addr(id, ptr::null(), to, 1000)), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(call!(cm::rdma_resolve_route(id, 1000)), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(call!(cm::rdma_create_qp(id, ptr::null_mut(), &raw mut init)), 0);
        let post = (*(*id).verbs).ops.post_recv.unwrap();
        assert_eq!(post((*id).qp, &raw mut receive, ptr::null_mut()), 0);
        assert_eq!(call!(cm::rdma_connect(id, ptr::null())), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_UNREACHABLE);
        assert_eq!(flushed((*id).recv_cq), None);
        assert_eq!(call!(cm::rdma_disconnect(id)), 0);
        assert_eq!(flushed((*id).recv_cq), Some(receive.wr_id));
        call!(cm::rdma_destroy_qp(id));
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
    }
    channel.destroy();
}

/// Returns the attributes of a small queue pair for datagrams.
fn datagram_attributes() -> ibv_qp_init_attr {
    let mut init: ibv_qp_init_attr = zeroed();
    init.qp_type = IBV_QPT_UD;
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (1, 1);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    init
}

/// No event follows `rdma_accept` of a queue pair for datagrams, so the call itself acknowledges
/// the event of the request, for which the destruction of the listener waits.
#[test]
fn datagram_accept_acknowledges_request() {
    if !is_own_process("datagram_accept_acknowledges_request", &DATAGRAMS) {
        return;
    }
    let channel = SharedChannel::new();
    let [mut listener, mut id, mut accepted] = [ptr::null_mut(); 3];
    let (mut address, mut init) = (ipv4(Ipv4Addr::LOCALHOST, 0), datagram_attributes());
    // SAFETY: only this thread uses the ids and their queue pairs, which live until they are
    // destroyed below, each once. The other arguments are NULL where that is permitted, or local
    // variables that nothing else uses during the calls.
    unsafe {
        let (null, context) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(call!(cm::rdma_create_id(null, &raw mut listener, context, RDMA_PS_UDP)), 0);
        assert_eq!(call!(cm::rdma_bind_addr(listener, (&raw const address).cast())), 0);
        assert_eq!(call!(cm::rdma_listen(listener, 1)), 0);
        address.sin_port = call!(cm::rdma_get_src_port(listener));
        assert_eq!(call!(cm::rdma_create_id(channel.0, &raw mut id, context, RDMA_PS_UDP)), 0);
        let to = (&raw const address).cast();
        assert_eq!(call!(cm::rdma_resolve_addr(id, ptr::null(), to, 1000)), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(call!(cm::rdma_resolve_route(id, 1000)), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(call!(cm::rdma_create_qp(id, ptr::null_mut(), &raw mut init)), 0);
        assert_eq!(call!(cm::rdma_connect(id, ptr::null())), 0);
        assert_eq!(call!(cm::rdma_get_request(listener, &raw mut accepted)), 0);
        let mut init = datagram_attributes();
        assert_eq!(call!(cm::rdma_create_qp(accepted, ptr::null_mut(), &raw mut init)), 0);
        assert!(!(*accepted).event.is_null());
        assert_eq!(call!(cm::rdma_accept(accepted, ptr::null())), 0);
        assert!((*accepted).event.is_null());
        assert_eq!(call!(cm::rdma_destroy_id(listener)), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ESTABLISHED);
        for id in [id, accepted] {
            call!(cm::rdma_destroy_qp(id));
            assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
        }
    }
    channel.destroy();
}

/// Leaves a group. Returns the error, if any.
fn leave(id: *mut rdma_cm_id, group: Ipv4Addr) -> Option<Errno> {
    let group = ipv4(group, 0);
    // SAFETY: the id is looked up, and may be any pointer (`AnyPtr`). The address is a local
    // variable, which nothing changes during the call.
    let left = unsafe { call!(cm::rdma_leave_multicast(id, (&raw const group).cast())) };
    (left != 0).then(Errno::last)
}

#[test]
fn memberships_in_same_group_are_independent() {
    if !is_own_process("memberships_in_same_group_are_independent", &DATAGRAMS) {
        return;
    }
    let channel = SharedChannel::new();
    let mut id = ptr::null_mut();
    let (peer, group) = (ipv4(Ipv4Addr::LOCALHOST, 9), Ipv4Addr::new(239, 7, 7, 8));
    let address = ipv4(group, 0);
    let join = |id, context| {
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the id is looked up. The address is a local variable, which nothing changes
        // during the call, and the context is only passed on.
        let joined =
            unsafe { call!(cm::rdma_join_multicast(id, (&raw const address).cast(), context)) };
        assert_eq!(joined, 0);
    };
    // Returns an event, and the context of its membership.
    let next = || {
        assert!(is_readable(channel, 60_000));
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is looked up. `event` is a local variable with room for the pointer
        // that the call writes. The event lives until it is acknowledged, and nothing writes to it.
        unsafe {
            assert_eq!(call!(cm::rdma_get_cm_event(channel.0, &raw mut event)), 0);
            assert_eq!((*event).event, RDMA_CM_EVENT_MULTICAST_JOIN);
            (event, (*event).param.ud.private_data.addr())
        }
    };
    // SAFETY: the arguments are NULL where that is permitted, or local variables that nothing else
    // uses during the calls. Each event is acknowledged once.
    unsafe {
        assert_eq!(
            call!(cm::rdma_create_id(channel.0, &raw mut id, ptr::null_mut(), RDMA_PS_UDP)),
            0
        );
        assert_eq!(
            call!(cm::rdma_resolve_addr(id, ptr::null(), (&raw const peer).cast(), 1000)),
            0
        );
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ADDR_RESOLVED);
        // The latest membership ends, together with its event.
        join(id, 1);
        join(id, 2);
        assert_eq!(leave(id, group), None);
        let (first, context) = next();
        assert_eq!((context, is_readable(channel, 0)), (1, false));
        // Leaving waits for the events of one membership only.
        join(id, 3);
        let (second, context) = next();
        assert_eq!((context, call!(cm::rdma_ack_cm_event(second))), (3, 0));
        let (left, is_left) = mpsc::channel();
        let address = id.addr();
        thread::spawn(move || left.send(leave(ptr::without_provenance_mut(address), group)));
        assert_eq!(is_left.recv_timeout(Duration::from_secs(60)), Ok(None));
        assert_eq!(call!(cm::rdma_ack_cm_event(first)), 0);
        assert_eq!([(); 2].map(|()| leave(id, group)), [None, Some(Errno(libc::EADDRNOTAVAIL))]);
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
    }
    channel.destroy();
}

#[test]
fn group_left_after_join() {
    if !is_own_process("group_left_after_join", &DATAGRAMS) {
        return;
    }
    let channel = SharedChannel::new();
    let mut id = ptr::null_mut();
    let peer = ipv4(Ipv4Addr::LOCALHOST, 9);
    let mut init = datagram_attributes();
    let ip = Ipv4Addr::new(239, 7, 7, 7);
    let mut group = ipv4(ip, 0);
    let group = (&raw mut group).cast::<libc::sockaddr>();
    // SAFETY: only this thread uses the id and its queue pair, which live until they are destroyed
    // below. The arguments are NULL where that is permitted, or initialized local variables that
    // nothing else uses during the calls.
    unsafe {
        assert_eq!(
            call!(cm::rdma_create_id(channel.0, &raw mut id, ptr::null_mut(), RDMA_PS_UDP)),
            0
        );
        assert_eq!(
            call!(cm::rdma_resolve_addr(id, ptr::null(), (&raw const peer).cast(), 1000)),
            0
        );
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_ADDR_RESOLVED);
        // `rdma_join_multicast(3)`: a queue pair is attached when the program gets the event.
        assert_eq!(call!(cm::rdma_join_multicast(id, group.cast_const(), ptr::null_mut())), 0);
        assert_eq!(call!(cm::rdma_create_qp(id, ptr::null_mut(), &raw mut init)), 0);
        assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_MULTICAST_JOIN);
        let gid = gid::from_address(ip.into());
        assert_eq!(call!(ibv_detach_mcast((*id).qp, &raw const gid, 0)), 0);
        assert_eq!(leave(id, ip), None);
        // Leaving a group removes the event of the join, if the program has not taken it.
        assert_eq!(call!(cm::rdma_join_multicast(id, group.cast_const(), ptr::null_mut())), 0);
        assert_eq!(leave(id, ip), None);
        assert!(!is_readable(channel, 0));
        for (comp_mask, errno) in [(1, libc::EINVAL), (2, libc::EINVAL), (7, libc::EOPNOTSUPP)] {
            let attr = rdma_cm_join_mc_attr_ex { comp_mask, join_flags: 0, addr: group };
            assert_eq!(call!(cm::rdma_join_multicast_ex(id, &raw const attr, ptr::null_mut())), -1);
            assert_eq!(Errno::last(), Errno(errno), "comp_mask {comp_mask}");
        }
        for join_flags in [0, 1] {
            let attr = rdma_cm_join_mc_attr_ex { comp_mask: 3, join_flags, addr: group };
            assert_eq!(call!(cm::rdma_join_multicast_ex(id, &raw const attr, ptr::null_mut())), 0);
            assert_eq!(channel.next_event(|| ()), RDMA_CM_EVENT_MULTICAST_JOIN);
            assert_eq!(leave(id, ip), None, "flags {join_flags}");
            assert_eq!(leave(id, ip), Some(Errno(libc::EADDRNOTAVAIL)), "flags {join_flags}");
        }
        // Leaving a group waits until the event of the join is acknowledged.
        assert_eq!(call!(cm::rdma_join_multicast(id, group.cast_const(), ptr::null_mut())), 0);
        let (taken, is_taken) = mpsc::channel();
        let acknowledging = thread::spawn(move || {
            let mut acknowledged = None;
            channel.next_event(|| {
                taken.send(()).unwrap();
                thread::sleep(Duration::from_millis(50));
                acknowledged = Some(Instant::now());
            });
            acknowledged
        });
        is_taken.recv().unwrap();
        assert_eq!(leave(id, ip), None);
        let left = Some(Instant::now());
        assert!(acknowledging.join().unwrap() <= left);
        call!(cm::rdma_destroy_qp(id));
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
        // The next call on a synchronous id acknowledges its event.
        assert_eq!(
            call!(cm::rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), RDMA_PS_UDP)),
            0
        );
        assert_eq!(
            call!(cm::rdma_resolve_addr(id, ptr::null(), (&raw const peer).cast(), 1000)),
            0
        );
        assert_eq!(call!(cm::rdma_join_multicast(id, group.cast_const(), ptr::null_mut())), 0);
        assert_eq!(leave(id, ip), None);
        assert_eq!(call!(cm::rdma_destroy_id(id)), 0);
    }
    channel.destroy();
}
