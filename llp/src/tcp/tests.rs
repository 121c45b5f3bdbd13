use std::{
    fs,
    io::{ErrorKind, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::Duration,
};

use socket2::SockRef;
use uiw_mem::{IoVec, IoVecMut};

use super::*;
use crate::{OptionError, Readable, StreamChange, is_memory_fault};

const LISTENER: Token = Token(1);
const CLIENT: Token = Token(2);
const SERVER: Token = Token(3);

/// Two connected ends in one stack.
struct TcpPair {
    stack: TcpStack,
    client: Box<dyn TransportStream>,
    server: Box<dyn TransportStream>,
    _listener: Box<dyn TransportListener>,
}

impl TcpPair {
    fn new() -> Self {
        Self::with(Ipv4Addr::LOCALHOST.into(), &TransportConfig::default())
    }

    fn with(ip: IpAddr, options: &TransportConfig) -> Self {
        let mut stack = TcpStack::new().unwrap();
        let listen = ListenConfig { stream: options.clone(), ..ListenConfig::default() };
        let mut listener = stack.listen(SocketAddr::new(ip, 0), &listen, LISTENER).unwrap();
        let mut client = stack.connect(None, listener.local_addr(), options, CLIENT).unwrap();
        wait(&mut stack, |e| e.token == LISTENER && e.readable);
        let server = listener.accept(SERVER).unwrap();
        wait(&mut stack, |e| e.token == CLIENT && e.writable);
        assert!(client.connect_result().unwrap());
        Self { stack, client, server, _listener: listener }
    }
}

/// Polls until an event matches. Returns all events of that poll.
fn wait(stack: &mut dyn TransportStack, fits: impl Fn(&Event) -> bool) -> Vec<Event> {
    for _ in 0..2000 {
        let mut events = Vec::new();
        stack.poll(&mut events).unwrap();
        if events.iter().any(&fits) {
            return events;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no such event within 2 s");
}

/// A C thread that is cancelled must not end in the middle of a round.
#[test]
fn cancelled_thread_sends_and_receives() {
    let mut pair = TcpPair::new();
    let received = thread::spawn(move || {
        // SAFETY: the thread exists. Its cancellation is deferred until a cancellation point.
        assert_eq!(unsafe { libc::pthread_cancel(libc::pthread_self()) }, 0);
        let mut bytes = [0; 4];
        let (front, back) = bytes.split_at_mut(2);
        pair.client.send(&[IoVec::from(&b"a"[..])]).unwrap();
        pair.client.send(&[IoVec::from(&b"bc"[..]), IoVec::from(&b"d"[..])]).unwrap();
        let mut parts = [IoVecMut::from(front), IoVecMut::from(back)];
        while pair.server.readable(4).unwrap() != Some(Readable::Bytes(4)) {}
        assert_eq!(pair.server.recv(&mut parts).unwrap(), 4);
        assert!(
            pair.server.recv(&mut parts[..1]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        );
        // The descriptors are closed by another thread, because `close` is a cancellation point.
        (bytes, pair)
    });
    assert_eq!(received.join().unwrap().0, *b"abcd");
}

fn quiet(stack: &mut dyn TransportStack) {
    let mut events = Vec::new();
    stack.poll(&mut events).unwrap();
    assert_eq!(events, []);
}

fn send(stream: &mut dyn TransportStream, bytes: &[u8]) -> io::Result<usize> {
    stream.send(&[IoVec::from(bytes)])
}

/// Receives until there are `len` bytes, or until the end of the stream or an error.
fn recv(stream: &mut dyn TransportStream, len: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for _ in 0..2000 {
        let mut block = vec![0; len - all.len()];
        match stream.recv(&mut [IoVecMut::from(&mut block[..])]) {
            Ok(0) => return Ok(all),
            Ok(n) => all.extend_from_slice(&block[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
        if all.len() == len {
            return Ok(all);
        }
    }
    panic!("{} of {len} bytes within 2 s", all.len());
}

#[test]
fn bytes_pass_gathered_and_scattered() {
    let mut pair = TcpPair::new();
    let bufs = [&b"one "[..], b"", b"two ", b"three"].map(IoVec::from);
    assert_eq!(pair.client.send(&bufs).unwrap(), 13);
    wait(&mut pair.stack, |e| e.token == SERVER && e.readable);
    let (mut a, mut b) = ([0; 5], [0; 20]);
    let mut into = [IoVecMut::from(&mut a[..]), IoVecMut::from(&mut b[..])];
    assert_eq!(pair.server.recv(&mut into).unwrap(), 13);
    assert_eq!(pair.server.recv(&mut into).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!((&a[..], &b[..8]), (&b"one t"[..], &b"wo three"[..]));
    assert_eq!(send(&mut *pair.server, b"back").unwrap(), 4);
    assert_eq!(recv(&mut *pair.client, 4).unwrap(), b"back");
}

#[test]
fn no_bytes_is_no_fin() {
    let mut pair = TcpPair::new();
    assert_eq!(pair.client.send(&[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(send(&mut *pair.client, b"").unwrap_err().kind(), ErrorKind::InvalidInput);
    send(&mut *pair.server, b"x").unwrap();
    wait(&mut pair.stack, |e| e.token == CLIENT && e.writable);
    assert_eq!(pair.client.recv(&mut []).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn more_elements_than_a_call_takes() {
    let mut pair = TcpPair::new();
    let bytes: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    let bufs: Vec<IoVec<'_>> = bytes.chunks(1).map(IoVec::from).collect();
    assert_eq!(pair.client.send(&bufs).unwrap(), 1024);
    assert_eq!(pair.client.send(&bufs[1024..]).unwrap(), 1024);
    assert_eq!(pair.client.send(&bufs[2048..]).unwrap(), 952);
    assert_eq!(recv(&mut *pair.server, 100).unwrap(), bytes[..100]);
    let mut rest = vec![0; 2900];
    let mut into: Vec<IoVecMut<'_>> = rest.chunks_mut(1).map(IoVecMut::from).collect();
    wait(&mut pair.stack, |e| e.token == SERVER && e.readable);
    assert_eq!(pair.server.recv(&mut into).unwrap(), 1024);
}

#[test]
fn interest_is_level_triggered() {
    let mut pair = TcpPair::new();
    pair.client.set_interest(Interest::NONE).unwrap();
    send(&mut *pair.client, b"x").unwrap();
    for _ in 0..3 {
        let events = wait(&mut pair.stack, |e| e.token == SERVER);
        assert_eq!(events, [Event { token: SERVER, readable: true, writable: false }]);
    }
    pair.server.set_interest(Interest::NONE).unwrap();
    quiet(&mut pair.stack);
    pair.server.set_interest(Interest::BOTH).unwrap();
    let events = wait(&mut pair.stack, |e| e.token == SERVER);
    assert_eq!(events, [Event { token: SERVER, readable: true, writable: true }]);
}

#[test]
fn full_buffer_blocks_and_clears() {
    let options = TransportConfig {
        send_buffer: Some(16_384),
        recv_buffer: Some(16_384),
        ..TransportConfig::default()
    };
    let mut pair = TcpPair::with(Ipv4Addr::LOCALHOST.into(), &options);
    pair.client.set_interest(Interest::NONE).unwrap();
    let block = vec![7; 65_536];
    let mut sent = 0;
    let error = loop {
        match send(&mut *pair.client, &block) {
            Ok(n) => sent += n,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(sent < 10_000_000, "{sent} bytes in a small buffer");
    pair.server.set_interest(Interest::NONE).unwrap();
    pair.client.set_interest(Interest::WRITE).unwrap();
    quiet(&mut pair.stack);
    assert_eq!(recv(&mut *pair.server, sent).unwrap().len(), sent);
    wait(&mut pair.stack, |e| e.token == CLIENT && e.writable);
}

#[test]
fn other_direction_works_after_fin() {
    let mut pair = TcpPair::new();
    send(&mut *pair.client, b"last").unwrap();
    pair.client.shutdown().unwrap();
    assert_eq!(recv(&mut *pair.server, 10).unwrap(), b"last");
    assert_eq!(recv(&mut *pair.server, 10).unwrap(), b"");
    send(&mut *pair.server, b"reply").unwrap();
    assert_eq!(recv(&mut *pair.client, 5).unwrap(), b"reply");
    assert_eq!(send(&mut *pair.client, b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn abort_resets() {
    let mut pair = TcpPair::new();
    pair.server.set_interest(Interest::NONE).unwrap();
    pair.client.abort();
    let events = wait(&mut pair.stack, |e| e.token == SERVER);
    assert_eq!(
        events,
        [Event { token: SERVER, readable: true, writable: true }],
        "errors come without interest"
    );
    assert_eq!(recv(&mut *pair.server, 1).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(send(&mut *pair.client, b"x").unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(pair.client.shutdown().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(pair.client.connect_result().unwrap_err().kind(), ErrorKind::NotConnected);
    assert!(pair.client.kernel_socket().is_none());
    pair.client.abort();
}

#[test]
fn dropped_stream_reports_nothing() {
    let TcpPair { mut stack, client, server, _listener } = TcpPair::new();
    drop(client);
    wait(&mut stack, |e| e.token == SERVER && e.readable);
    drop(server);
    quiet(&mut stack);
}

#[test]
fn refused_and_said_so_twice() {
    let mut stack = TcpStack::new().unwrap();
    let free = {
        let listen = ListenConfig::default();
        stack.listen((Ipv4Addr::LOCALHOST, 0).into(), &listen, LISTENER).unwrap().local_addr()
    };
    let mut client = stack.connect(None, free, &TransportConfig::default(), CLIENT).unwrap();
    wait(&mut stack, |e| e.token == CLIENT && e.writable);
    for _ in 0..2 {
        assert_eq!(client.connect_result().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn refused_connection_fails_every_transfer() {
    let mut stack = TcpStack::new().unwrap();
    let free = {
        let listen = ListenConfig::default();
        stack.listen((Ipv4Addr::LOCALHOST, 0).into(), &listen, LISTENER).unwrap().local_addr()
    };
    type Call = fn(&mut dyn TransportStream) -> io::Result<()>;
    let calls: [Call; 3] = [
        |stream| stream.connect_result().map(drop),
        |stream| send(stream, b"x").map(drop),
        |stream| recv(stream, 1).map(drop),
    ];
    for first in 0..3 {
        let mut client = stack.connect(None, free, &TransportConfig::default(), CLIENT).unwrap();
        wait(&mut stack, |e| e.token == CLIENT && e.writable);
        for call in calls.iter().cycle().skip(first).take(4) {
            assert_eq!(
                call(&mut *client).unwrap_err().kind(),
                ErrorKind::ConnectionRefused,
                "{first}"
            );
        }
    }
}

#[test]
fn undecided_while_no_answer_comes() {
    // If a listener's queue is full, it drops SYNs, so the attempt stays undecided.
    let mut stack = TcpStack::new().unwrap();
    let listen = ListenConfig { backlog: 0, ..ListenConfig::default() };
    let listener = stack.listen((Ipv4Addr::LOCALHOST, 0).into(), &listen, LISTENER).unwrap();
    let peer = listener.local_addr();
    let mut clients: Vec<_> = (0..3)
        .map(|i| stack.connect(None, peer, &TransportConfig::default(), Token(10 + i)).unwrap())
        .collect();
    thread::sleep(Duration::from_millis(50));
    assert!(!clients[2].connect_result().unwrap());
    clients[2].abort();
}

#[test]
fn ipv6_and_a_given_local_address() {
    let options = TransportConfig { v6_only: true, ..TransportConfig::default() };
    let mut pair = TcpPair::with(Ipv6Addr::LOCALHOST.into(), &options);
    assert_eq!(pair.client.local_addr(), pair.server.peer_addr());
    assert_eq!(pair.client.peer_addr(), pair.server.local_addr());
    let local = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), 0));
    let mut listener = pair
        .stack
        .listen((Ipv4Addr::LOCALHOST, 0).into(), &ListenConfig::default(), LISTENER)
        .unwrap();
    let client = pair
        .stack
        .connect(Some(local), listener.local_addr(), &TransportConfig::default(), CLIENT)
        .unwrap();
    wait(&mut pair.stack, |e| e.token == LISTENER && e.readable);
    let server = listener.accept(SERVER).unwrap();
    assert_eq!(server.peer_addr().ip(), local.ip());
    assert_eq!(server.peer_addr(), client.local_addr());
    assert_eq!(listener.accept(SERVER).map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn defaults_reach_both_ends() {
    let pair = TcpPair::new();
    for stream in [&pair.client, &pair.server] {
        let fd = stream.kernel_socket().unwrap();
        let socket = SockRef::from(&fd);
        assert!(
            socket.tcp_nodelay().unwrap()
                && socket.keepalive().unwrap()
                && socket.nonblocking().unwrap()
        );
        assert_eq!(socket.tcp_user_timeout().unwrap(), None);
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(450));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(113));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert!(stream.emss() > 1000, "loopback segments are large, not {}", stream.emss());
        let info = stream.info();
        assert_eq!(info.emss, Some(stream.emss() as u32));
        assert!(info.congestion.is_some() && info.rtt_us.is_some(), "{info}");
    }
}

/// With TCP_USER_TIMEOUT the kernel would end a connection after that time, even if its peer
/// answers every probe.
#[test]
fn closed_window_keeps_connection() {
    let options =
        TransportConfig { dead_after: Some(Duration::from_secs(2)), ..TransportConfig::default() };
    let mut pair = TcpPair::with(Ipv4Addr::LOCALHOST.into(), &options);
    let bytes = [7; 64 << 10];
    for _ in 0..4 {
        while send(&mut *pair.client, &bytes).is_ok() {}
        thread::sleep(Duration::from_secs(1));
    }
    let failed = send(&mut *pair.client, &bytes).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::WouldBlock);
    let info = pair.client.info();
    assert!(info.not_sent > Some(0) && info.unacked == Some(0), "the window is closed: {info:?}");
    assert!(info.last_ack < Some(Duration::from_secs(3)) && info.probes.is_some(), "{info:?}");
}

#[test]
fn segments_within_requested_length() {
    let options = TransportConfig { max_segment: Some(500), ..TransportConfig::default() };
    let pair = TcpPair::with(Ipv4Addr::LOCALHOST.into(), &options);
    for end in [&pair.client, &pair.server] {
        assert!(end.info().emss <= Some(500), "{}", end.info());
    }
    let mut stack = TcpStack::new().unwrap();
    let options = TransportConfig { max_segment: Some(40), ..TransportConfig::default() };
    let error =
        stack.connect(None, pair.client.peer_addr(), &options, CLIENT).map(drop).unwrap_err();
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<OptionError>()).unwrap();
    assert_eq!(inner, &OptionError::Segment { bytes: 40 });
}

#[test]
fn congestion_control_by_name() {
    let options = TransportConfig { congestion: Some("reno".into()), ..TransportConfig::default() };
    let mut pair = TcpPair::with(Ipv4Addr::LOCALHOST.into(), &options);
    assert_eq!(pair.client.info().congestion.as_deref(), Some("reno"));
    assert_eq!(pair.server.info().congestion.as_deref(), Some("reno"));
    let other = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    if let Some(other) = other.split_whitespace().find(|&name| name != "reno") {
        pair.server
            .configure(&StreamChange { congestion: Some(other), ..StreamChange::default() })
            .unwrap();
        assert_eq!(pair.server.info().congestion.as_deref(), Some(other));
    }
    assert_eq!(
        pair.server
            .configure(&StreamChange { congestion: Some("nonsuch"), ..StreamChange::default() })
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );
    let mut stack = TcpStack::new().unwrap();
    let options =
        TransportConfig { congestion: Some("nonsuch".into()), ..TransportConfig::default() };
    let error = stack
        .connect(None, pair.client.peer_addr(), &options, CLIENT)
        .map(drop)
        .expect_err("no such algorithm");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<OptionError>()).unwrap();
    let OptionError::Congestion { name, available } = inner else { panic!("{inner}") };
    assert_eq!(name, "nonsuch");
    assert!(available.contains("reno"), "{available}");
}

#[test]
fn type_of_service_in_both_families() {
    let options = TransportConfig { tos: Some(0x28), ..TransportConfig::default() };
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let pair = TcpPair::with(ip, &options);
        for stream in [&pair.client, &pair.server] {
            let fd = stream.kernel_socket().unwrap();
            let socket = SockRef::from(&fd);
            let tos = if ip.is_ipv4() { socket.tos_v4() } else { socket.tclass_v6() };
            assert_eq!(tos.unwrap(), 0x28, "{ip}");
        }
    }
}

#[test]
fn unmapped_memory_is_distinguished() {
    let mut pair = TcpPair::new();
    // SAFETY: nothing in this process accesses the bytes; the kernel finds page 0 unmapped and
    // reports an error.
    let nowhere = unsafe { IoVec::from_raw(std::ptr::without_provenance(16), 4096) };
    let error = pair.client.send(&[nowhere]).unwrap_err();
    assert!(is_memory_fault(&error), "{error}");
    // The bytes before an unmapped element may be refused together with it. In that case none of
    // them was sent.
    match pair.client.send(&[IoVec::from(&b"good"[..]), nowhere]) {
        Ok(sent) => assert_eq!(recv(&mut *pair.server, 4).unwrap(), b"good"[..sent]),
        Err(error) => assert!(is_memory_fault(&error), "{error}"),
    }
    send(&mut *pair.client, b"more").unwrap();
    wait(&mut pair.stack, |e| e.token == SERVER && e.readable);
    // SAFETY: as above.
    let mut nowhere = unsafe { IoVecMut::from_raw(std::ptr::without_provenance_mut(16), 4096) };
    let error = pair.server.recv(std::slice::from_mut(&mut nowhere)).unwrap_err();
    assert!(is_memory_fault(&error), "{error}");
    assert_eq!(recv(&mut *pair.server, 4).unwrap(), b"more", "nothing was lost");
}

#[test]
fn epoll_descriptor_ready_with_stack() {
    let mut pair = TcpPair::new();
    pair.client.set_interest(Interest::READ).unwrap();
    let epoll = pair.stack.wait_fd().unwrap();
    let ready = || {
        let mut fds = [rustix::event::PollFd::new(&epoll, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).unwrap()
            == 1
    };
    assert!(!ready());
    send(&mut *pair.server, b"x").unwrap();
    assert!(ready());
}

/// Runs in its own process, because the limit of descriptors applies to the whole process.
#[test]
fn listener_survives_without_descriptors() {
    const CHILD: &str = "UIW_LLP_NO_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tcp::tests::listener_survives_without_descriptors"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut stack = TcpStack::new().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let mut listener = stack.listen(any, &ListenConfig::default(), Token(1)).unwrap();
    let mut unlucky = std::net::TcpStream::connect(listener.local_addr()).unwrap();
    let mut hoard = Vec::new();
    while let Some(descriptor) = spare() {
        hoard.push(descriptor);
    }
    let refused = listener.accept(Token(2)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock, "no connection waits any more: {refused}");
    let cut = unlucky.read(&mut [0]);
    assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    drop(hoard);
    let _lucky = std::net::TcpStream::connect(listener.local_addr()).unwrap();
    let mut events = Vec::new();
    while events.is_empty() {
        stack.poll(&mut events).unwrap();
    }
    listener.accept(Token(3)).unwrap();
    // Without a spare descriptor, the listener pauses instead of being readable all the time.
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let mut hoard: Vec<_> = std::iter::from_fn(spare).collect();
    hoard.pop();
    let mut listener = stack.listen(any, &ListenConfig::default(), Token(4)).unwrap();
    client.connect(&listener.local_addr().into()).unwrap();
    wait(&mut stack, |event| event.token == Token(4) && event.readable);
    assert!(listener.accept(Token(5)).is_err());
    events.clear();
    stack.poll(&mut events).unwrap();
    assert!(!events.iter().any(|event| event.token == Token(4)), "{events:?}");
    let pause = stack.deadline().unwrap().duration_since(Instant::now());
    assert!(pause <= PAUSE, "{pause:?}");
    drop(hoard);
    thread::sleep(pause);
    wait(&mut stack, |event| event.token == Token(4) && event.readable);
    listener.accept(Token(5)).unwrap();
    assert!(stack.deadline().is_none());
}

#[test]
fn loopback_stream_receives_own_bytes() {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let mut stack = TcpStack::new().unwrap();
        let options = TransportConfig::default();
        let mut stream = match stack.connect_self(SocketAddr::new(ip, 0), &options, CLIENT) {
            // The host may have no IPv6.
            Err(_) if ip.is_ipv6() => return,
            stream => stream.unwrap(),
        };
        wait(&mut stack, |e| e.token == CLIENT && e.writable);
        assert!(stream.connect_result().unwrap());
        assert_eq!(stream.local_addr(), stream.peer_addr());
        stream.set_interest(Interest::READ).unwrap();
        quiet(&mut stack);
        // The stream is bounded, and only its reader frees room.
        let mut sent = 0;
        let block: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        while let Ok(n) = send(&mut *stream, &block) {
            sent += n;
            assert!(sent < 1 << 30, "no end");
            if n < block.len() {
                break;
            }
        }
        wait(&mut stack, |e| e.token == CLIENT && e.readable);
        let got = recv(&mut *stream, sent).unwrap();
        assert_eq!(got.len(), sent);
        assert!(got.chunks(block.len()).all(|part| *part == block[..part.len()]));
        stream.shutdown().unwrap();
        assert!(recv(&mut *stream, 1).unwrap().is_empty(), "its own FIN");
    }
}

const MOVED: Token = Token(4);

#[test]
fn stream_moves_to_other_shard() {
    let mut pair = TcpPair::new();
    let mut other = pair.stack.shard().unwrap().unwrap();
    send(&mut *pair.client, b"before ").unwrap();
    wait(&mut pair.stack, |e| e.token == SERVER && e.readable);
    pair.server.detach().unwrap();
    pair.server.detach().unwrap();
    send(&mut *pair.client, b"between ").unwrap();
    pair.client.set_interest(Interest::READ).unwrap();
    quiet(&mut pair.stack);
    other.adopt(&mut pair.server, MOVED).unwrap();
    wait(&mut *other, |e| *e == Event { token: MOVED, readable: true, writable: false });
    send(&mut *pair.client, b"after").unwrap();
    assert_eq!(recv(&mut *pair.server, 20).unwrap(), b"before between after");
    quiet(&mut pair.stack);
    quiet(&mut *other);
    // The interest can be changed, and applies to the set that now contains the stream.
    pair.server.set_interest(Interest::WRITE).unwrap();
    wait(&mut *other, |e| *e == Event { token: MOVED, readable: false, writable: true });
    drop(pair.server);
    quiet(&mut *other);
    assert!(recv(&mut *pair.client, 1).unwrap().is_empty(), "its FIN");
}

#[test]
fn adoption_wakes_sleeping_thread() {
    let mut pair = TcpPair::new();
    let mut other = pair.stack.shard().unwrap().unwrap();
    let set = other.wait_fd().unwrap();
    send(&mut *pair.client, b"x").unwrap();
    wait(&mut pair.stack, |e| e.token == SERVER && e.readable);
    pair.server.detach().unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut fds = [rustix::event::PollFd::new(&set, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap()
        });
        other.adopt(&mut pair.server, MOVED).unwrap();
        assert_eq!(sleeper.join().unwrap(), 1);
    });
}

#[test]
fn connection_attempt_moves_to_other_shard() {
    let mut stack = TcpStack::new().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = stack.listen(any, &ListenConfig::default(), LISTENER).unwrap();
    let options = TransportConfig::default();
    let mut client = stack.connect(None, listener.local_addr(), &options, CLIENT).unwrap();
    client.detach().unwrap();
    let mut other = stack.shard().unwrap().unwrap();
    other.adopt(&mut client, MOVED).unwrap();
    wait(&mut *other, |e| e.token == MOVED && e.writable);
    assert!(client.connect_result().unwrap());
}

/// The socket itself has no peer any more.
#[test]
fn peer_known_after_reset_before_accept() {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let mut stack = TcpStack::new().unwrap();
        let listen = ListenConfig::default();
        let Ok(mut listener) = stack.listen(SocketAddr::new(ip, 0), &listen, LISTENER) else {
            continue;
        };
        let client = std::net::TcpStream::connect(listener.local_addr()).unwrap();
        let address = client.local_addr().unwrap();
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        wait(&mut stack, |e| e.token == LISTENER && e.readable);
        assert_eq!(listener.accept(SERVER).unwrap().peer_addr(), address);
    }
}

/// Sockets that the program itself has connected and accepted have the same events, bytes and
/// addresses as those of the stack.
#[test]
fn open_sockets_become_streams() {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let Ok(listener) = std::net::TcpListener::bind((ip, 0)) else { continue };
        let at = listener.local_addr().unwrap();
        let connected = std::net::TcpStream::connect(at).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let mut stack = TcpStack::new().unwrap();
        let options = TransportConfig::default();
        let mut client = stack.open_socket(connected.into(), Some(at), &options, CLIENT).unwrap();
        let mut server = stack.open_socket(accepted.into(), None, &options, SERVER).unwrap();
        assert_eq!((client.peer_addr(), client.local_addr()), (at, peer));
        assert_eq!((server.peer_addr(), server.local_addr()), (peer, at));
        wait(&mut stack, |e| e.token == CLIENT && e.writable);
        assert!(client.connect_result().unwrap() && server.connect_result().unwrap());
        assert_eq!(server.send(&[IoVec::from(&b"open"[..])]).unwrap(), 4);
        client.set_interest(Interest::READ).unwrap();
        wait(&mut stack, |e| e.token == CLIENT && e.readable);
        let mut bytes = [0; 9];
        assert_eq!(client.recv(&mut [IoVecMut::from(&mut bytes[..])]).unwrap(), 4);
        assert_eq!(&bytes[..4], b"open");
    }
}

#[test]
fn open_socket_reports_multipath() {
    // The kernel may have no MPTCP.
    let Ok(mut stack) = TcpStack::multipath() else { return };
    let socket = || {
        let protocol = TcpVariant::Multipath.protocol();
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, Some(protocol)).unwrap()
    };
    let (listener, connected) = (socket(), socket());
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    listener.listen(1).unwrap();
    let at = listener.local_addr().unwrap();
    connected.connect(&at).unwrap();
    let accepted = listener.accept().unwrap().0;
    let options = TransportConfig::default();
    for (socket, peer, token) in [(connected, at.as_socket(), CLIENT), (accepted, None, SERVER)] {
        let stream = stack.open_socket(socket.into(), peer, &options, token).unwrap();
        assert!(stream.info().multipath.is_some());
    }
}

/// A failed connection attempt of the program is reported like one of the stack.
#[test]
fn open_socket_may_be_refused() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_nonblocking(true).unwrap();
    let begun = socket.connect(&nobody.into());
    if begun.is_err_and(|error| error.raw_os_error() != Some(libc::EINPROGRESS)) {
        // The attempt is refused before the socket can be taken over.
        return;
    }
    let mut stack = TcpStack::new().unwrap();
    let mut client = stack
        .open_socket(socket.into(), Some(nobody), &TransportConfig::default(), CLIENT)
        .unwrap();
    wait(&mut stack, |e| e.token == CLIENT);
    assert_eq!(client.connect_result().unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
