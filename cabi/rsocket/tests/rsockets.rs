//! rsockets whose peer violates their protocol: the program gets an errno or the end of the stream,
//! regardless of what the peer sends.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use uiw_cabi_core::call;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_rsocket::exports::{
    raccept, rbind, rclose, rconnect, rfcntl, rgetsockname, rgetsockopt, rlisten, rpoll,
    rsetsockopt, rshutdown, rsocket,
};
use uiw_cabi_rsocket::transfer::{
    riomap, riowrite, rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwritev,
};
use uiw_cabi_rsocket::wire::{ConnData, Message, Order, Target, Variant};
use uiw_verbs::cm::{self, CmChannel, CmEventKind};
use uiw_verbs::{
    Access, ConnConfig, Cq, CqConfig, Device, Memory, Qp, QpCap, QpInit, RawMr, RecvWr, Remote,
    STag, SendFlags, SendOp, SendWr, Sge,
};

/// Number of receives that an rsocket announces. The size of its receive buffer follows.
const CREDITS: u16 = 384;
const BUFFER: u32 = 1 << 22;
/// Level and option for the number of buffers that the peer may map.
const SOL_RDMA: c_int = 0x10000;
const RDMA_IOMAPSIZE: c_int = 3;

fn loopback(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    }
}

/// Sets a time-out in milliseconds; 0 means none.
fn set_timeout(fd: c_int, name: c_int, ms: i64) {
    let time = libc::timeval { tv_sec: 0, tv_usec: 1000 * ms };
    let len = size_of_val(&time) as libc::socklen_t;
    // SAFETY: `time` is a local variable of the length that is passed, without padding, and nothing
    // changes it during the call.
    let set =
        unsafe { call!(rsetsockopt(fd, libc::SOL_SOCKET, name, (&raw const time).cast(), len)) };
    assert_eq!(set, 0);
}

/// Binds an rsocket to a free port of this IPv4 address.
fn bind(fd: c_int, to: Ipv4Addr) {
    let addr = libc::sockaddr_in {
        sin_addr: libc::in_addr { s_addr: u32::from(to).to_be() },
        ..loopback(0)
    };
    let len = size_of_val(&addr) as libc::socklen_t;
    // SAFETY: `addr` is a local variable, an IPv4 address of the length that is passed, and nothing
    // changes it during the call.
    assert_eq!(unsafe { call!(rbind(fd, (&raw const addr).cast(), len)) }, 0);
}

/// Creates a stream rsocket whose calls do not wait.
fn nonblocking_socket() -> ProgramSocket {
    ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0))
}

/// Returns those of the requested events, and of those that are always reported, that are ready
/// within a time in milliseconds.
fn poll(fd: c_int, events: i16, ms: c_int) -> i16 {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: `polled` is an initialized local variable, one structure, as the count says, and
    // nothing else uses it during the call, as `InOutArrayPtr` requires.
    unsafe { call!(rpoll(&raw mut polled, 1, ms)) };
    polled.revents
}

/// Returns SO_ERROR.
fn error_of(fd: c_int) -> c_int {
    let (mut error, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    let value = (&raw mut error).cast();
    // SAFETY: `value` and `len` refer to local variables that nothing else uses during the call,
    // and the length is that of the value.
    let got =
        unsafe { call!(rgetsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, value, &raw mut len)) };
    assert_eq!(got, 0);
    error
}

/// Returns the port of an rsocket.
fn port_of(fd: c_int) -> u16 {
    let mut addr = loopback(0);
    let mut len = size_of_val(&addr) as libc::socklen_t;
    // SAFETY: `addr` and `len` are local variables that nothing else uses during the call, and the
    // length is the room for the address.
    unsafe { assert_eq!(call!(rgetsockname(fd, (&raw mut addr).cast(), &raw mut len)), 0) };
    u16::from_be(addr.sin_port)
}

/// Connects an rsocket to a port of loopback.
fn connect_to(fd: c_int, port: u16) -> Result<(), Errno> {
    let addr = loopback(port);
    let len = size_of_val(&addr) as libc::socklen_t;
    // SAFETY: `addr` is a local variable, an IPv4 address of the length that is passed, and nothing
    // changes it during the call.
    match unsafe { call!(rconnect(fd, (&raw const addr).cast(), len)) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Listening rsocket on loopback, which is closed on drop.
struct ListeningSocket(c_int, SocketAddr);

impl ListeningSocket {
    fn new() -> Self {
        let fd = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
        bind(fd, Ipv4Addr::LOCALHOST);
        assert_eq!(rlisten(fd, 8), 0);
        Self(fd, (Ipv4Addr::LOCALHOST, port_of(fd)).into())
    }

    fn accept(&self) -> ProgramSocket {
        ProgramSocket(accept(self.0).unwrap())
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        assert_eq!(rclose(self.0), 0);
    }
}

fn accept(listener: c_int) -> Result<c_int, Errno> {
    // SAFETY: `ArrayMutPtr` and `RoomPtr` permit NULL, with which no address is requested.
    match unsafe { call!(raccept(listener, std::ptr::null_mut(), std::ptr::null_mut())) } {
        -1 => Err(Errno::last()),
        fd => Ok(fd),
    }
}

/// End of the connection that belongs to the program.
struct ProgramSocket(c_int);

impl ProgramSocket {
    /// Receives once, and waits for data.
    fn receive(&self, len: usize) -> Result<Vec<u8>, Errno> {
        self.receive_with(len, 0)
    }

    fn receive_with(&self, len: usize, flags: c_int) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0u8; len];
        // SAFETY: `bytes` is a local buffer of `len` initialized bytes that nothing else uses
        // during the call, as `ArrayMutPtr` requires.
        match unsafe { call!(rrecv(self.0, bytes.as_mut_ptr(), len, flags)) } {
            -1 => Err(Errno::last()),
            got => {
                bytes.truncate(got as usize);
                Ok(bytes)
            }
        }
    }

    /// Sends until an error occurs.
    fn send_until_error(&self) -> Errno {
        let bytes = vec![7u8; 10_000];
        // SAFETY: `bytes` is a local, initialized buffer of the length that is passed, and nothing
        // changes it during the call, as `ArrayPtr` requires.
        while unsafe { call!(rsend(self.0, bytes.as_ptr(), bytes.len(), 0)) } >= 0 {}
        Errno::last()
    }

    /// Returns the ready events, without waiting.
    fn ready(&self) -> i16 {
        poll(self.0, libc::POLLIN, 0)
    }
}

impl Drop for ProgramSocket {
    fn drop(&mut self) {
        assert_eq!(rclose(self.0), 0);
    }
}

/// Peer that sends what a test tells it to send.
struct ScriptedPeer {
    qp: Qp,
    cq: Arc<Cq>,
    memory: RawMr,
    channel: Arc<CmChannel>,
    device: Device,
    /// Private data of the rsocket.
    data: ConnData,
}

impl ScriptedPeer {
    /// Connects with `private_data`. Returns the event that ends connecting, and the peer.
    fn connect_with(
        to: SocketAddr,
        private_data: impl FnOnce(Target) -> Vec<u8>,
    ) -> (CmEventKind, Device, Qp, Arc<Cq>, RawMr, Arc<CmChannel>) {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4096, CqConfig::default()).unwrap();
        let cap = QpCap {
            max_send_wr: 2048,
            max_recv_wr: 512,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = pd.register_raw(Memory::owned(1 << 16).unwrap(), 0, access).unwrap();
        let qp = pd.create_qp(QpInit::new(&cq, &cq).cap(cap).signal_all(false)).unwrap();
        let sge = Sge { addr: memory.addr() + 60_000, length: 4, lkey: memory.lkey() };
        // SAFETY: all receives name the same four bytes, which nothing else accesses; they are not
        // exclusive (`Memory::owned`), so the engine writes them atomically. They are registered
        // until `memory` is dropped, normally after `qp`. If an assertion of `connect` fails, it is
        // dropped before, which deregisters the bytes, and the engine refuses to write them.
        unsafe {
            qp.post_recv((0..500).map(|wr_id| RecvWr { wr_id, sges: std::slice::from_ref(&sge) }))
        }
        .unwrap();
        let channel = Arc::<CmChannel>::default();
        let options = Arc::new(ConnConfig::default());
        let private_data = private_data(Target { addr: 0, key: memory.rkey().0, len: 0 });
        cm::connect(&qp, None, to, &options, &private_data, &channel).unwrap();
        let event = device.block_on(std::future::poll_fn(|cx| channel.poll_pop(cx))).kind;
        (event, device, qp, cq, memory, channel)
    }

    /// Returns valid private data of a peer.
    fn data(memory: Target) -> ConnData {
        let targets = Target { len: 2, ..memory };
        let first = Target { addr: 4096, len: 4096, ..memory };
        ConnData { order: Order::HOST, variant: None, credits: 300, mappings: 0, targets, first }
    }

    /// Creates a connection whose rsocket gets `first` as its first target.
    fn connect(listening: &ListeningSocket, first: Option<Target>) -> (Self, ProgramSocket) {
        let (event, device, qp, cq, memory, channel) = Self::connect_with(listening.1, |own| {
            let mut data = Self::data(own);
            data.first = first.unwrap_or(data.first);
            data.to_bytes().to_vec()
        });
        let CmEventKind::Established(info) = event else { panic!("{event:?}") };
        let data = ConnData::from_bytes(&info.private_data).unwrap();
        assert_eq!((data.variant, data.credits), (Some(Variant::Send), CREDITS));
        (Self { qp, cq, memory, channel, device, data }, listening.accept())
    }

    /// Sends each of these messages with a Send.
    fn send<const N: usize>(&self, messages: [&[u8]; N]) {
        let sges = messages.map(|bytes| {
            [Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: STag(0) }]
        });
        let (op, flags) = (SendOp::Send, SendFlags::INLINE);
        // SAFETY: the requests are inline, so the engine reads their elements only during the call.
        // Each element is one of `messages`, with its length, which is borrowed.
        let sent = unsafe {
            self.qp.post_send(sges.each_ref().map(|sges| SendWr { wr_id: 0, op, sges, flags }))
        };
        // This fails after the connection has ended.
        drop(sent);
        self.cq.poll(&mut Vec::new(), 64);
    }

    fn messages<const N: usize>(&self, messages: [Message; N]) {
        let words = messages.map(|message| message.to_word().to_ne_bytes());
        self.send(words.each_ref().map(|word| &word[..]));
    }

    fn message(&self, message: Message) {
        self.messages([message]);
    }

    /// Writes `len` bytes to `addr` in the region `key`.
    fn write(&self, addr: u64, key: u32, len: u32) {
        let sges =
            [Sge { addr: self.memory.addr() + 16_384, length: len, lkey: self.memory.lkey() }];
        let op = SendOp::Write { remote: Remote { addr, rkey: STag(key) } };
        // SAFETY: `memory` is registered until it is dropped, after `qp` (the order of the fields
        // of `ScriptedPeer`). Nothing writes to the bytes that are sent, at most 100 from 16,384
        // on: receives are at 60,000, and the rsocket writes only to targets below 8,192.
        unsafe {
            self.qp.post_send([SendWr { wr_id: 0, op, sges: &sges, flags: SendFlags::empty() }])
        }
        .unwrap();
        self.cq.poll(&mut Vec::new(), 64);
    }

    /// Waits until the connection has ended.
    fn ended(&self) {
        loop {
            let event = self.device.block_on(std::future::poll_fn(|cx| self.channel.poll_pop(cx)));
            if matches!(event.kind, CmEventKind::Disconnected(_)) {
                return;
            }
        }
    }
}

const PROTOCOL: Errno = Errno(libc::EPROTO);

#[test]
fn unknown_messages_end_connection() {
    let listening = ListeningSocket::new();
    for word in [0x2000_0001u32, 0x4000_0000, 0xA000_0000, 0xE000_0003, u32::MAX] {
        let (peer, socket) = ScriptedPeer::connect(&listening, None);
        peer.send([&word.to_ne_bytes()]);
        assert_eq!(socket.receive(10), Err(PROTOCOL), "{word:#x}");
        assert!(socket.ready() & libc::POLLERR != 0);
        assert_eq!(socket.send_until_error(), PROTOCOL);
        peer.ended();
    }
    for len in [0, 1, 3] {
        let (peer, socket) = ScriptedPeer::connect(&listening, None);
        peer.send([&[0; 3][..len]]);
        assert_eq!(socket.receive(10), Err(PROTOCOL), "{len} bytes");
        peer.ended();
    }
}

#[test]
fn message_longer_than_receive_ends_connection() {
    let listening = ListeningSocket::new();
    let (peer, socket) = ScriptedPeer::connect(&listening, None);
    peer.send([&[0; 5]]);
    assert_eq!(socket.receive(10), Err(Errno(libc::ECONNRESET)));
    peer.ended();
}

#[test]
fn unpublished_bytes_not_delivered() {
    let listening = ListeningSocket::new();
    for len in [0, u32::MAX >> 3, BUFFER] {
        let (peer, socket) = ScriptedPeer::connect(&listening, None);
        // The rsocket may have published its second half as well.
        peer.message(Message::Data { len });
        peer.message(Message::Data { len: 1 });
        assert_eq!(
            socket.receive(1 << 20).and_then(|_| socket.receive(10)),
            Err(PROTOCOL),
            "{len} bytes"
        );
        peer.ended();
    }
}

#[test]
fn missing_credits_end_connection() {
    let listening = ListeningSocket::new();
    let (peer, socket) = ScriptedPeer::connect(&listening, None);
    for _ in 0..=CREDITS {
        peer.message(Message::Data { len: 1 });
    }
    let mut got = 0;
    let error = loop {
        // No data is read meanwhile, so no credits are given.
        if got == 0 && socket.ready() & libc::POLLERR == 0 {
            continue;
        }
        match socket.receive(1000) {
            Ok(bytes) => got += bytes.len(),
            Err(errno) => break errno,
        }
    };
    assert_eq!((got, error), (usize::from(CREDITS), PROTOCOL));
    peer.ended();
}

#[test]
fn writes_outside_buffers_end_connection() {
    let listening = ListeningSocket::new();
    let (size, list) = (u64::from(BUFFER), 32);
    for (place, offset, len) in [(0, size - 3, 4), (0, size, 1), (1, list, 1), (1, list - 1, 2)] {
        let (peer, socket) = ScriptedPeer::connect(&listening, None);
        let target = if place == 0 { peer.data.first } else { peer.data.targets };
        peer.write(target.addr + offset, target.key, len);
        assert_eq!(socket.receive(10), Err(Errno(libc::ECONNRESET)), "{place} {offset} {len}");
        peer.ended();
    }
    // A peer may write anything inside its targets: the program reads it, or sends to an invalid
    // target.
    let (peer, socket) = ScriptedPeer::connect(&listening, Some(Target::default()));
    peer.write(peer.data.targets.addr, peer.data.targets.key, 32);
    peer.message(Message::Credits { limit: u16::MAX });
    peer.write(peer.data.first.addr, peer.data.first.key, 100);
    peer.message(Message::Data { len: 100 });
    assert_eq!(socket.receive(1000), Ok(vec![0; 100]));
}

#[test]
fn invalid_targets_end_connection() {
    let listening = ListeningSocket::new();
    for first in [
        Target { addr: 0, key: 0x1234_5601, len: 4096 },
        Target { addr: u64::MAX - 10, key: 0, len: u32::MAX },
    ] {
        let (peer, socket) = ScriptedPeer::connect(&listening, Some(first));
        assert_eq!(socket.send_until_error(), Errno(libc::ECONNRESET), "{first:?}");
        peer.ended();
    }
}

#[test]
fn foreign_peers_refused() {
    let listening = ListeningSocket::new();
    let good = ScriptedPeer::data(Target::default());
    let other = ConnData { variant: Some(Variant::Immediate), ..good };
    let big = ConnData { order: Order::Big, ..good };
    for data in [&b""[..], &[1; 39], &[2; 40], &[0xFF; 200], &other.to_bytes(), &big.to_bytes()] {
        let (event, ..) = ScriptedPeer::connect_with(listening.1, |_| data.to_vec());
        assert!(matches!(event, CmEventKind::Failed(_)), "{data:?}: {event:?}");
    }
    // The listener continues.
    drop(ScriptedPeer::connect(&listening, None));
}

#[test]
fn accept_ends_after_receive_timeout() {
    let listening = ListeningSocket::new();
    set_timeout(listening.0, libc::SO_RCVTIMEO, 10);
    assert_eq!(accept(listening.0), Err(Errno::AGAIN));
}

/// The time-out applies to the whole call, not to each piece of the data.
#[test]
fn slow_peer_does_not_prolong_receive() {
    const BYTES: usize = 200;
    let listening = ListeningSocket::new();
    let to = listening.1;
    let sender = std::thread::spawn(move || {
        let (fd, connected) = connect(to);
        assert_eq!(connected, Ok(()));
        for _ in 0..BYTES {
            // SAFETY: `ArrayPtr` permits a pointer to one byte of a static array.
            if unsafe { call!(rsend(fd, b"x".as_ptr(), 1, 0)) } != 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        rclose(fd);
    });
    let fd = accept(listening.0).unwrap();
    set_timeout(fd, libc::SO_RCVTIMEO, 10);
    let mut bytes = [0u8; BYTES];
    // SAFETY: `bytes` is a local array of the length that is passed, and nothing else uses it.
    let got = unsafe { call!(rrecv(fd, bytes.as_mut_ptr(), BYTES, libc::MSG_WAITALL)) };
    assert!(got < BYTES as isize, "{got}");
    assert_eq!(rclose(fd), 0);
    sender.join().unwrap();
}

/// TCP connects, but nothing answers the request of the rsocket.
#[test]
fn connect_continues_after_send_timeout() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    set_timeout(socket.0, libc::SO_SNDTIMEO, 10);
    for errno in [libc::EINPROGRESS, libc::EALREADY] {
        assert_eq!(connect_to(socket.0, port), Err(Errno(errno)));
    }
}

/// Returns a port of loopback at which nothing listens.
fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn shut(fd: c_int, how: c_int) -> Result<(), Errno> {
    if rshutdown(fd, how) == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Returns whether the setting is on. If not, runs the test in a process of its own, in which it is.
fn is_on(setting: &str, test: &str) -> bool {
    if std::env::var_os(setting).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(setting, "on")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    false
}

/// Creates an rsocket and connects it to loopback. Returns it, and the result of `rconnect`.
fn connect(to: SocketAddr) -> (c_int, Result<(), Errno>) {
    let fd = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, 1);
    (fd, connect_to(fd, to.port()))
}

/// Sets an option of an integer.
fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is a local variable of the length that is passed, and nothing changes it
    // during the call.
    assert_eq!(unsafe { call!(rsetsockopt(fd, level, name, (&raw const value).cast(), len)) }, 0);
}

#[test]
fn larger_backlog_has_room_for_waiting_connections() {
    let listener = ListeningSocket::new();
    assert_eq!(rlisten(listener.0, 1), 0);
    let to = listener.1;
    let connected = [(); 2].map(|()| {
        let (done, connected) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(connect(to)));
        connected
    });
    // The second connection usually waits by then.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(rlisten(listener.0, 8), 0);
    for connected in connected {
        let (fd, result) = connected.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((result, rclose(fd)), (Ok(()), 0));
    }
}

#[test]
fn shutdown_keeps_error_of_failed_connection() {
    let socket = nonblocking_socket();
    assert_eq!(connect_to(socket.0, unused_port()), Err(Errno(libc::EINPROGRESS)));
    assert!(poll(socket.0, libc::POLLOUT, 60_000) & libc::POLLERR != 0);
    assert_eq!(shut(socket.0, libc::SHUT_RDWR), Err(Errno(libc::ENOTCONN)));
    assert_eq!(error_of(socket.0), libc::ECONNREFUSED);
}

#[test]
fn error_of_failed_attempt_precedes_next_one() {
    let (socket, port) = (nonblocking_socket(), unused_port());
    for errno in [libc::EINPROGRESS, libc::ECONNREFUSED, libc::EINPROGRESS] {
        assert_eq!(connect_to(socket.0, port), Err(Errno(errno)));
        poll(socket.0, libc::POLLOUT, 60_000);
    }
}

#[test]
fn socket_usable_after_failed_connect() {
    let port = unused_port();
    let listens = |socket: &ProgramSocket| {
        assert_eq!(rlisten(socket.0, 8), 0);
        let (fd, connected) = connect((Ipv4Addr::LOCALHOST, port_of(socket.0)).into());
        assert_eq!((connected, rclose(fd)), (Ok(()), 0));
    };
    for binds in [true, false] {
        let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
        assert_eq!(connect_to(socket.0, port), Err(Errno(libc::ECONNREFUSED)));
        assert_eq!(poll(socket.0, libc::POLLIN | libc::POLLOUT, 0), libc::POLLOUT | libc::POLLHUP);
        if binds {
            bind(socket.0, Ipv4Addr::LOCALHOST);
        }
        listens(&socket);
    }
    let socket = nonblocking_socket();
    assert_eq!(connect_to(socket.0, port), Err(Errno(libc::EINPROGRESS)));
    assert!(poll(socket.0, libc::POLLOUT, 60_000) & libc::POLLERR != 0);
    set_option(socket.0, SOL_RDMA, RDMA_IOMAPSIZE, 2);
    bind(socket.0, Ipv4Addr::LOCALHOST);
    assert_eq!(connect_to(socket.0, port), Err(Errno(libc::ECONNREFUSED)));
    listens(&socket);
}

/// TCP connects, but nothing answers the request of the rsocket.
#[test]
fn shutdown_ends_attempt_to_connect() {
    let (silent, listener) = (TcpListener::bind("127.0.0.1:0").unwrap(), ListeningSocket::new());
    let port = silent.local_addr().unwrap().port();
    for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
        let socket = nonblocking_socket();
        bind(socket.0, Ipv4Addr::LOCALHOST);
        let own = port_of(socket.0);
        assert_eq!(connect_to(socket.0, port), Err(Errno(libc::EINPROGRESS)));
        assert_eq!(shut(socket.0, how), Ok(()));
        let ready = poll(socket.0, libc::POLLIN | libc::POLLOUT, 0);
        assert_eq!(ready, libc::POLLOUT | libc::POLLERR | libc::POLLHUP);
        assert_eq!(error_of(socket.0), libc::ECONNRESET);
        assert_eq!(shut(socket.0, how), Err(Errno(libc::ENOTCONN)));
        assert_eq!(rfcntl(socket.0, libc::F_SETFL, 0), 0);
        assert_eq!(connect_to(socket.0, listener.1.port()), Ok(()));
        assert_eq!(port_of(socket.0), own);
    }
    let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    let fd = socket.0;
    let connecting = std::thread::spawn(move || connect_to(fd, port));
    // The attempt may not have begun yet.
    while shut(fd, libc::SHUT_RDWR).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(connecting.join().unwrap(), Err(Errno(libc::ECONNRESET)));
}

/// Accepts a connection, and answers the request of an rsocket with the same private data, except
/// for the version of the protocol.
fn answer_with_version(listener: &TcpListener, version: u8) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let (mut head, mut data) = ([0; 20], [0; 512]);
    stream.read_exact(&mut head).unwrap();
    let data = &mut data[..usize::from(u16::from_be_bytes([head[18], head[19]]))];
    stream.read_exact(data).unwrap();
    head[..16].copy_from_slice(b"MPA ID Rep Frame");
    let at = data.len() - ConnData::LEN;
    data[at] = version;
    stream.write_all(&[&head, &*data].concat()).unwrap();
    stream
}

#[test]
fn blocking_connect_waits_for_earlier_attempt() {
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    set_timeout(socket.0, libc::SO_SNDTIMEO, 10);
    assert_eq!(connect_to(socket.0, port), Err(Errno(libc::EINPROGRESS)));
    set_timeout(socket.0, libc::SO_SNDTIMEO, 0);
    let answering = std::thread::spawn(move || {
        // The call usually waits by then.
        std::thread::sleep(Duration::from_millis(50));
        answer_with_version(&peer, 1)
    });
    let connected = connect_to(socket.0, port);
    assert!(matches!(connected, Ok(()) | Err(Errno(libc::EISCONN))), "{connected:?}");
    drop(answering.join().unwrap());
}

/// With acknowledged completion, a connection ends only after a message of its peer.
#[test]
fn end_of_refused_peer_spares_next_connection() {
    if !is_on("UIW_ACK", "end_of_refused_peer_spares_next_connection") {
        return;
    }
    let (peer, listener) = (TcpListener::bind("127.0.0.1:0").unwrap(), ListeningSocket::new());
    let port = peer.local_addr().unwrap().port();
    let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    let answering = std::thread::spawn(move || answer_with_version(&peer, 9));
    assert_eq!(connect_to(socket.0, port), Err(PROTOCOL));
    assert_eq!(connect_to(socket.0, listener.1.port()), Ok(()));
    let other = listener.accept();
    drop(answering.join().unwrap());
    for _ in 0..200 {
        for [from, to] in [[&socket, &other], [&other, &socket]] {
            // SAFETY: a local byte, which nothing changes during the call.
            assert_eq!(unsafe { call!(rsend(from.0, [7u8].as_ptr(), 1, 0)) }, 1);
            assert_eq!(to.receive(1), Ok(vec![7]));
        }
    }
}

/// Returns both ends of a connection.
fn connected_pair() -> [ProgramSocket; 2] {
    let listener = ListeningSocket::new();
    let (fd, connected) = connect(listener.1);
    assert_eq!(connected, Ok(()));
    [ProgramSocket(fd), listener.accept()]
}

#[test]
fn shutdown_of_both_directions_is_hang_up() {
    let [socket, _other] = connected_pair();
    for (how, ready) in [(libc::SHUT_WR, 0), (libc::SHUT_RD, libc::POLLHUP)] {
        assert_eq!((shut(socket.0, how), poll(socket.0, 0, 0)), (Ok(()), ready));
    }
}

#[test]
fn surplus_buffers_refused_as_by_system() {
    let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
    let mut buffers = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 1025];
    let (list, count) = (buffers.as_mut_ptr(), buffers.len());
    let refusal = |result: isize| (result, Errno::last());
    // SAFETY: the list has as many buffers as the count says, all of them empty. It and the message
    // are local variables that nothing else uses during the calls, and NULL is permitted for the
    // other pointers of a message, which may consist of zeros.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (list, count);
        let inval = (-1, Errno::INVAL);
        assert_eq!(
            refusal(call!(rreadv(socket.0, list.cast_const().cast(), count as c_int))),
            inval
        );
        assert_eq!(
            refusal(call!(rwritev(socket.0, list.cast_const().cast(), count as c_int))),
            inval
        );
        let too_long = (-1, Errno(libc::EMSGSIZE));
        assert_eq!(refusal(call!(rsendmsg(socket.0, &raw const message, 0))), too_long);
        assert_eq!(refusal(call!(rrecvmsg(socket.0, &raw mut message, 0))), too_long);
    }
}

/// As with TCP, the error queue of a socket is not its stream.
#[test]
fn error_queue_contains_no_data() {
    let [socket, other] = connected_pair();
    // SAFETY: a local byte, which nothing changes during the call.
    assert_eq!(unsafe { call!(rsend(socket.0, [7u8].as_ptr(), 1, 0)) }, 1);
    assert_eq!(poll(other.0, libc::POLLIN, 60_000), libc::POLLIN);
    assert_eq!(other.receive_with(1, libc::MSG_ERRQUEUE), Err(Errno::AGAIN));
    assert_eq!(other.receive(1), Ok(vec![7]));
}

#[test]
fn closed_socket_unmaps_buffers() {
    const LEN: usize = 1 << 16;
    let listener = ListeningSocket::new();
    let to = listener.1;
    let writer = std::thread::spawn(move || {
        let (fd, connected) = connect(to);
        assert_eq!(connected, Ok(()));
        let socket = ProgramSocket(fd);
        assert_eq!(socket.receive(1), Ok(vec![7]));
        let bytes = vec![1u8; LEN];
        // SAFETY: `bytes` is a local buffer of the length that is passed, and nothing changes it
        // during the call.
        while unsafe { call!(riowrite(fd, bytes.as_ptr(), LEN, 0, 0)) } == LEN {}
    });
    let socket = listener.accept();
    let buffer: Vec<_> = (0..LEN).map(|_| AtomicU8::new(0)).collect();
    let begin = buffer.as_ptr().cast_mut().cast();
    assert_eq!(riomap(socket.0, begin, LEN, libc::PROT_WRITE, 0, 0), 0);
    // SAFETY: a local byte, which nothing changes during the call.
    assert_eq!(unsafe { call!(rsend(socket.0, [7u8].as_ptr(), 1, 0)) }, 1);
    while buffer[LEN - 1].load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    drop(socket);
    buffer.iter().for_each(|byte| byte.store(2, Ordering::Relaxed));
    writer.join().unwrap();
    let changed = buffer.iter().filter(|byte| byte.load(Ordering::Relaxed) != 2).count();
    assert_eq!(changed, 0, "bytes were written after `rclose`");
}

/// Relays one connection to `to`. Towards `to`, it forwards about 40 KB per second. Returns its
/// address.
fn slow_path(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut from, _) = listener.accept().unwrap();
        let mut to = TcpStream::connect(to).unwrap();
        let (mut back, mut answers) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        std::thread::spawn(move || {
            drop(std::io::copy(&mut back, &mut answers));
            drop(answers.shutdown(std::net::Shutdown::Write));
        });
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            to.write_all(&bytes[..len]).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(to.shutdown(std::net::Shutdown::Write));
    });
    address
}

/// The last bytes need longer than the time limit of a close whose peer acknowledges nothing.
#[test]
fn closed_socket_sends_last_bytes_over_slow_path() {
    const LEN: usize = 400_000;
    let listener = ListeningSocket::new();
    let (fd, connected) = connect(slow_path(listener.1));
    assert_eq!(connected, Ok(()));
    let (socket, bytes) = (listener.accept(), vec![7u8; LEN]);
    // SAFETY: `bytes` is a local buffer of the length that is passed, and nothing changes it.
    assert_eq!(unsafe { call!(rsend(fd, bytes.as_ptr(), LEN, 0)) }, LEN as isize);
    assert_eq!(rclose(fd), 0);
    let mut received = 0;
    while let Ok(bytes) = socket.receive(LEN)
        && !bytes.is_empty()
    {
        received += bytes.len();
    }
    assert_eq!(received, LEN);
}

#[test]
fn bound_port_kept_after_failed_connect() {
    let (unused, listener) = (unused_port(), ListeningSocket::new());
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
        let socket = ProgramSocket(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0));
        bind(socket.0, address);
        let port = port_of(socket.0);
        assert_eq!(connect_to(socket.0, unused), Err(Errno(libc::ECONNREFUSED)));
        assert_eq!(connect_to(socket.0, listener.1.port()), Ok(()));
        assert_eq!(port_of(socket.0), port, "{address}");
    }
}

#[test]
fn shutdown_ends_listening() {
    let listener = ListeningSocket::new();
    assert_eq!(rshutdown(listener.0, libc::SHUT_WR), 0);
    let (fd, connected) = connect(listener.1);
    assert_eq!((connected, rclose(fd)), (Ok(()), 0));
    drop(listener.accept());
    let fd = listener.0;
    let accepting = std::thread::spawn(move || accept(fd));
    // The thread usually waits by then.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(rshutdown(fd, libc::SHUT_RD), 0);
    assert_eq!(accepting.join().unwrap(), Err(Errno(libc::EINVAL)));
    let (other, connected) = connect(listener.1);
    assert_eq!((connected, rclose(other)), (Err(Errno(libc::ECONNREFUSED)), 0));
    assert_eq!(shut(fd, libc::SHUT_RD), Err(Errno(libc::ENOTCONN)));
}

#[test]
fn socket_listens_again_after_shutdown() {
    let listener = ListeningSocket::new();
    for _ in 0..10 {
        let (fd, connected) = connect(listener.1);
        assert_eq!(connected, Ok(()));
        assert_eq!(shut(listener.0, libc::SHUT_RDWR), Ok(()));
        let events = poll(listener.0, libc::POLLIN | libc::POLLOUT, 0);
        assert_eq!(events, libc::POLLOUT | libc::POLLHUP);
        // The connection was not accepted.
        assert_eq!(ProgramSocket(fd).receive(1), Ok(vec![]));
        assert_eq!((rlisten(listener.0, 8), port_of(listener.0)), (0, listener.1.port()));
        let (fd, connected) = connect(listener.1);
        assert_eq!((connected, rclose(fd)), (Ok(()), 0));
        drop(listener.accept());
    }
}

/// The peer sends control messages as fast as it can, for a minute at most. Calls return
/// meanwhile.
#[test]
fn flood_of_messages_does_not_prolong_calls() {
    let listening = ListeningSocket::new();
    let (peer, socket) = ScriptedPeer::connect(&listening, None);
    let (end, done) = (Instant::now() + Duration::from_secs(60), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && Instant::now() < end {
                peer.messages([Message::KeepAlive; 64]);
            }
        });
        for _ in 0..100 {
            assert_eq!(socket.ready(), 0);
        }
        set_timeout(socket.0, libc::SO_RCVTIMEO, 10);
        for _ in 0..20 {
            assert_eq!(socket.receive(1), Err(Errno::AGAIN));
        }
        done.store(true, Ordering::Relaxed);
        assert!(Instant::now() < end, "a call lasted as long as the flood");
    });
}

#[test]
fn datagram_kept_without_room_or_in_error_queue() {
    if !is_on("UIW_UD", "datagram_kept_without_room_or_in_error_queue") {
        return;
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
    let [to, from] = [(); 2].map(|()| ProgramSocket(rsocket(libc::AF_INET, kind, 0)));
    bind(to.0, Ipv4Addr::LOCALHOST);
    // SAFETY: `ArrayMutPtr` permits NULL if the length is 0.
    let read = || unsafe { call!(rread(to.0, std::ptr::null_mut(), 0)) };
    assert_eq!(read(), 0);
    assert_eq!(connect_to(from.0, port_of(to.0)), Ok(()));
    // SAFETY: a local byte, which nothing changes during the call.
    assert_eq!(unsafe { call!(rsend(from.0, [7u8].as_ptr(), 1, 0)) }, 1);
    assert_eq!(poll(to.0, libc::POLLIN, 60_000), libc::POLLIN);
    assert_eq!((read(), to.receive_with(1, libc::MSG_ERRQUEUE)), (0, Err(Errno::AGAIN)));
    assert_eq!(to.receive(1), Ok(vec![7]));
}

/// UDP releases the port of a socket that the program has not bound.
#[test]
fn dissolved_datagram_association_releases_port() {
    if !is_on("UIW_UD", "dissolved_datagram_association_releases_port") {
        return;
    }
    let [to, from] = [(); 2].map(|()| rsocket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    bind(to, Ipv4Addr::LOCALHOST);
    let port = port_of(to);
    // Sends a datagram, and returns the port from which it arrives.
    let sender = || {
        let (mut addr, byte) = (loopback(port), [7u8]);
        let mut len = size_of_val(&addr) as libc::socklen_t;
        // SAFETY: the pointers are to local variables of the lengths that are passed, which nothing
        // else uses during the calls.
        unsafe {
            let sent = call!(rsendto(from, byte.as_ptr(), 1, 0, (&raw const addr).cast(), len));
            assert_eq!(sent, 1, "{}", Errno::last());
            let (byte, from) = ([0u8; 1].as_mut_ptr(), (&raw mut addr).cast());
            assert_eq!(call!(rrecvfrom(to, byte, 1, 0, from, &raw mut len)), 1);
        }
        u16::from_be(addr.sin_port)
    };
    assert_eq!(connect_to(from, port), Ok(()));
    let before = port_of(from);
    // Later datagrams go to the queue pair of the peer.
    for _ in 0..50 {
        assert_eq!(sender(), before);
        std::thread::sleep(Duration::from_millis(2));
    }
    let unspecified = libc::sockaddr_in { sin_family: 0, ..loopback(0) };
    let len = size_of_val(&unspecified) as libc::socklen_t;
    // SAFETY: `unspecified` is a local variable of the length that is passed, and nothing changes
    // it during the call.
    assert_eq!(unsafe { call!(rconnect(from, (&raw const unspecified).cast(), len)) }, 0);
    assert_eq!(port_of(from), 0);
    let after = sender();
    assert_eq!((after, port_of(from)), (port_of(from), after));
    assert_ne!(after, 0);
    assert_eq!((rclose(from), rclose(to)), (0, 0));
}
