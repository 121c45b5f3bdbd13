//! Tests of the stack over pipes, which need neither root nor an interface.

mod congestion;
mod datagrams;
mod flood;
mod listeners;
mod path_mtu;
mod probe;

use super::pipe::{PipeLink, pipe};
use super::{SmolConfig, SmolStack};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use uiw_impair::wan::{Direction, Profile};
use uiw_llp::{
    Clock, Event, Interest, ListenConfig, RemainingBytes, StackExtensions, Token, TransportConfig,
    TransportListener, TransportStack, TransportStream,
};
use uiw_mem::{IoVec, IoVecMut};

const TIMEOUT: Duration = Duration::from_secs(30);

struct TestWorld {
    stacks: [SmolStack<PipeLink>; 2],
    events: [Vec<Event>; 2],
    v6: bool,
}

fn address(host: u8, v6: bool) -> IpAddr {
    if v6 { format!("fd00::{host}").parse().unwrap() } else { IpAddr::from([10, 9, 0, host]) }
}

impl TestWorld {
    fn new(mtu: usize, v6: bool) -> Self {
        Self::with(pipe(mtu).unwrap(), v6)
    }

    fn with((a, b): (PipeLink, PipeLink), v6: bool) -> Self {
        let stack = |link, host| {
            let prefix = if v6 { 64 } else { 24 };
            SmolStack::new(link, &SmolConfig::new(address(host, v6), prefix)).unwrap()
        };
        Self { stacks: [stack(a, 1), stack(b, 2)], events: [Vec::new(), Vec::new()], v6 }
    }

    fn step(&mut self) {
        for (stack, events) in self.stacks.iter_mut().zip(&mut self.events) {
            events.clear();
            stack.poll(events).unwrap();
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done(self) {
            assert!(Instant::now() < end, "nothing happens");
            self.step();
            std::thread::yield_now();
        }
    }

    fn reported(&self, side: usize, token: u64) -> Option<Event> {
        self.events[side].iter().copied().find(|event| event.token == Token(token))
    }

    fn listen(&mut self, port: u16, backlog: u32) -> Box<dyn TransportListener> {
        let local = SocketAddr::new(address(2, self.v6), port);
        let options = ListenConfig { backlog, ..ListenConfig::default() };
        self.stacks[1].listen(local, &options, LISTENER).unwrap()
    }

    fn connect(&mut self, port: u16, token: u64) -> Box<dyn TransportStream> {
        let to = SocketAddr::new(address(2, self.v6), port);
        self.stacks[0].connect(None, to, &TransportConfig::default(), Token(token)).unwrap()
    }

    fn accept(
        &mut self,
        listener: &mut dyn TransportListener,
        token: u64,
    ) -> Box<dyn TransportStream> {
        let mut accepted = None;
        self.until(|_| match listener.accept(Token(token)) {
            Ok(stream) => accepted.insert(stream).local_addr().port() > 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        });
        accepted.unwrap()
    }

    /// Returns the two ends of an established connection: the client's, then the server's.
    fn pair(&mut self) -> (Box<dyn TransportStream>, Box<dyn TransportStream>) {
        let mut listener = self.listen(4791, 8);
        let mut client = self.connect(4791, 1);
        let server = self.accept(&mut *listener, 2);
        self.until(|_| client.connect_result().unwrap());
        (client, server)
    }

    /// Transfers `bytes` and compares them. The interest is set as in the engine.
    fn carry(
        &mut self,
        from: &mut dyn TransportStream,
        to: &mut dyn TransportStream,
        bytes: &[u8],
    ) {
        let (mut sent, mut came) = (0, Vec::with_capacity(bytes.len()));
        let mut block = vec![0; 100_000];
        self.until(|_| {
            if sent < bytes.len() {
                let end = bytes.len().min(sent + 70_000);
                match from.send(&[IoVec::from(&bytes[sent..end])]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            match to.recv(&mut [IoVecMut::from(&mut block[..])]) {
                Ok(count) => came.extend_from_slice(&block[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            came.len() == bytes.len()
        });
        assert!(came == bytes, "bytes differ");
    }
}

const LISTENER: Token = Token(100);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) * 7) as u8).collect()
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.map(drop).expect_err("an error was due").kind()
}

#[test]
fn bytes_arrive_over_any_mtu() {
    for v6 in [false, true] {
        for mtu in [1500, 9000] {
            let mut world = TestWorld::new(mtu, v6);
            let (mut client, mut server) = world.pair();
            assert_eq!(client.emss(), mtu - if v6 { 60 } else { 40 });
            assert_eq!(client.local_addr(), server.peer_addr());
            world.carry(&mut *client, &mut *server, &pattern(3_000_000));
            world.carry(&mut *server, &mut *client, &pattern(1_000_000));
        }
    }
}

#[test]
fn impaired_frames_cost_only_time() {
    let rough =
        Profile { loss: 0.01, duplicate: 0.01, reorder: 0.01, damage: 0.01, ..Profile::default() };
    let (a, b) = pipe(1500).unwrap();
    let through =
        |end: PipeLink, seed| end.through(Direction::new(&rough, seed).unwrap(), &Clock::system());
    let mut world = TestWorld::with((through(a, 1), through(b, 2)), false);
    let (mut client, mut server) = world.pair();
    world.carry(&mut *client, &mut *server, &pattern(300_000));
}

/// A path on a virtual clock takes the expected time of that clock, but no real time.
#[test]
fn long_path_on_virtual_clock() {
    let clock = Clock::virtual_time();
    let profile =
        Profile { delay: Duration::from_millis(50), rate: Some(1_000_000), ..Profile::default() };
    let (a, b) = pipe(1500).unwrap();
    let through = |end: PipeLink| end.through(Direction::new(&profile, 1).unwrap(), &clock);
    let stack = |link, host| {
        SmolStack::with_clock(
            through(link),
            &SmolConfig::new(address(host, false), 24),
            clock.clone(),
        )
        .unwrap()
    };
    let mut world = TestWorld {
        stacks: [stack(a, 1), stack(b, 2)],
        events: [Vec::new(), Vec::new()],
        v6: false,
    };
    let begin = clock.now();
    let mut listener = world.listen(4791, 1);
    let mut client = world.connect(4791, 1);
    assert!(world.stacks[0].wait_fd().is_none());
    let step = |world: &mut TestWorld| {
        let next = world
            .stacks
            .iter()
            .filter_map(TransportStack::deadline)
            .min()
            .expect("something is due");
        clock.advance(next.saturating_duration_since(clock.now()));
        world.step();
    };
    while !client.connect_result().unwrap() {
        step(&mut world);
    }
    // The time includes ARP and SYN, each in both directions.
    let took = clock.now() - begin;
    assert!((0.2..0.204).contains(&took.as_secs_f64()), "{took:?}");
    let mut server = loop {
        match listener.accept(Token(2)) {
            Ok(stream) => break stream,
            Err(_) => step(&mut world),
        }
    };
    let begin = clock.now();
    client.send(&[IoVec::from(&pattern(1000)[..])]).unwrap();
    let mut block = vec![0; 2000];
    while server.recv(&mut [IoVecMut::from(&mut block[..])]).is_err() {
        step(&mut world);
    }
    let took = clock.now() - begin;
    // 1054 bytes at 1 Mbit/s.
    assert!((0.058..0.059).contains(&took.as_secs_f64()), "{took:?}");
}

#[test]
fn fin_ends_one_direction() {
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    world.carry(&mut *client, &mut *server, b"last words");
    client.shutdown().unwrap();
    let mut block = [0; 10];
    world.until(|_| matches!(server.recv(&mut [IoVecMut::from(&mut block[..])]), Ok(0)));
    assert_eq!(kind(client.send(&[IoVec::from(&b"more"[..])])), ErrorKind::BrokenPipe);
    world.carry(&mut *server, &mut *client, b"answer");
    server.shutdown().unwrap();
    world.until(|_| matches!(client.recv(&mut [IoVecMut::from(&mut block[..])]), Ok(0)));
}

#[test]
fn reset_seen_by_peer() {
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    client.abort();
    assert_eq!(kind(client.send(&[IoVec::from(&b"x"[..])])), ErrorKind::NotConnected);
    world.until(|world| world.reported(1, 2).is_some_and(|event| event.readable && event.writable));
    let mut block = [0; 10];
    assert_eq!(
        kind(server.recv(&mut [IoVecMut::from(&mut block[..])])),
        ErrorKind::ConnectionReset
    );
}

#[test]
fn closed_port_refuses() {
    let mut world = TestWorld::new(1500, false);
    let mut client = world.connect(9, 1);
    world.until(|world| world.reported(0, 1).is_some());
    assert_eq!(kind(client.connect_result()), ErrorKind::ConnectionRefused);
}

#[test]
fn readiness_repeated_until_used() {
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    client.send(&[IoVec::from(&b"hello"[..])]).unwrap();
    world
        .until(|world| world.reported(1, 2).is_some_and(|event| event.readable && !event.writable));
    world.step();
    assert!(world.reported(1, 2).is_some(), "level-triggered");
    server.set_interest(Interest::NONE).unwrap();
    world.step();
    assert!(world.reported(1, 2).is_none());
    server.set_interest(Interest::BOTH).unwrap();
    world.step();
    assert!(world.reported(1, 2).is_some_and(|event| event.readable && event.writable));
    server.set_interest(Interest::READ).unwrap();
    let mut block = [0; 10];
    assert_eq!(server.recv(&mut [IoVecMut::from(&mut block[..])]).unwrap(), 5);
    world.step();
    assert!(world.reported(1, 2).is_none());
}

/// smoltcp supports windows of up to 1 GiB, and panics above.
#[test]
fn buffers_beyond_every_window() {
    let mut world = TestWorld::new(1500, false);
    let options = TransportConfig {
        recv_buffer: Some(usize::MAX),
        send_buffer: Some(usize::MAX),
        ..TransportConfig::default()
    };
    assert!(
        world.stacks[0].connect(None, "10.9.0.2:5".parse().unwrap(), &options, Token(9)).is_ok()
    );
}

/// A peer in another network is reached through the gateway.
#[test]
fn peer_behind_gateway() {
    let (link, _other) = pipe(1500).unwrap();
    let gateways = vec![address(2, false)];
    let config = SmolConfig { gateways, ..SmolConfig::new(address(1, false), 24) };
    let mut stack = SmolStack::new(link, &config).unwrap();
    let far = "10.8.0.1:5".parse().unwrap();
    assert!(stack.connect(None, far, &TransportConfig::default(), Token(9)).is_ok());
}

#[test]
fn cut_link_ends_connections() {
    let (a, b) = pipe(1500).unwrap();
    let scissors = a.scissors();
    let mut world = TestWorld::with((a, b), false);
    let (mut client, _server) = world.pair();
    scissors.cut();
    world.until(|world| world.reported(0, 1).is_some());
    let mut block = [0; 10];
    assert_eq!(kind(client.recv(&mut [IoVecMut::from(&mut block[..])])), ErrorKind::NetworkDown);
    assert_eq!(kind(client.send(&[IoVec::from(&b"x"[..])])), ErrorKind::NetworkDown);
}

#[test]
fn bytes_before_end_arrive() {
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    let bytes = pattern(500_000);
    client.send(&[IoVec::from(&bytes[..])]).unwrap();
    drop(client);
    let mut came = Vec::new();
    let mut block = vec![0; 65_536];
    world.until(|_| match server.recv(&mut [IoVecMut::from(&mut block[..])]) {
        Ok(0) => true,
        Ok(count) => {
            came.extend_from_slice(&block[..count]);
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    });
    assert!(came == bytes);
}

/// A thread that sleeps on the descriptor is woken by frames that another call has taken from the
/// link.
#[test]
fn descriptor_reports_frames_of_other_calls() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut world = TestWorld::new(1500, false);
    let mut listener = world.listen(4791, 8);
    let mut clients = [world.connect(4791, 1), world.connect(4791, 2)];
    let mut servers = [world.accept(&mut *listener, 11), world.accept(&mut *listener, 12)];
    clients[0].send(&[IoVec::from(&b"for the one"[..])]).unwrap();
    // The recv call of the other stream takes the frame.
    let mut block = [0; 10];
    let one = usize::from(servers[0].peer_addr() != clients[0].local_addr());
    assert_eq!(
        kind(servers[1 - one].recv(&mut [IoVecMut::from(&mut block[..])])),
        ErrorKind::WouldBlock
    );
    let fd = world.stacks[1].wait_fd().unwrap();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&*fd, PollFlags::IN)], Some(&at_once)).unwrap(), 1);
    world.step();
    assert!(world.reported(1, 11 + one as u64).is_some_and(|event| event.readable));
}

/// Bytes are processed in place. Bytes that cannot be processed yet are reported again only when
/// more bytes, or the end, have arrived.
#[test]
fn peek_returns_receive_buffer() {
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    assert_eq!(server.peek().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.send(&[IoVec::from(&b"one, tw"[..])]).unwrap();
    world.until(|world| world.reported(1, 2).is_some_and(|event| event.readable));
    let mut buf = server.peek().unwrap().unwrap();
    assert_eq!(buf.bytes(), b"one, tw");
    assert!(buf.can_grow(5));
    buf.consume(5, RemainingBytes::WaitForMore);
    world.step();
    assert!(world.reported(1, 2).is_none());
    assert_eq!(server.peek().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.send(&[IoVec::from(&b"o"[..])]).unwrap();
    world.until(|world| world.reported(1, 2).is_some_and(|event| event.readable));
    let mut buf = server.peek().unwrap().unwrap();
    assert_eq!(buf.bytes(), b"two");
    buf.consume(1, RemainingBytes::WaitForMore);
    client.shutdown().unwrap();
    world.until(|world| world.reported(1, 2).is_some_and(|event| event.readable));
    let buf = server.peek().unwrap().unwrap();
    assert!(!buf.can_grow(0), "nothing comes behind a FIN");
    drop(buf);
    let mut block = [0; 10];
    assert_eq!(
        server.recv(&mut [IoVecMut::from(&mut block[..])]).unwrap(),
        2,
        "a peek takes nothing"
    );
    assert!(server.peek().unwrap().unwrap().bytes().is_empty(), "the FIN");
}

/// The buffer wraps around several times: pieces that end at its end are followed by pieces at its
/// beginning.
#[test]
fn peeks_wrap_around_buffer() {
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    let bytes = pattern(3_500_000);
    let (mut sent, mut came, mut ends) = (0, Vec::new(), 0);
    world.until(|_| {
        if let Ok(count) = client.send(&[IoVec::from(&bytes[sent..bytes.len().min(sent + 50_000)])])
        {
            sent += count;
        }
        if let Ok(Some(mut buf)) = server.peek() {
            // An odd number of bytes stays in the buffer.
            let len = buf.bytes().len();
            let take = (len.max(8) - 7).min(len);
            came.extend_from_slice(&buf.bytes()[..take]);
            ends += usize::from(!buf.can_grow(take));
            buf.consume(take, RemainingBytes::Useful);
        }
        came.len() > 3_400_000
    });
    assert!(came == bytes[..came.len()]);
    assert!(ends >= 3, "the buffer has {} bytes", SmolConfig::BUFFER);
}

/// Returns two stacks on a virtual clock.
fn stacks_on_virtual_clock(clock: &Clock) -> TestWorld {
    let (a, b) = pipe(1500).unwrap();
    let stack = |link, host| {
        SmolStack::with_clock(link, &SmolConfig::new(address(host, false), 24), clock.clone())
            .unwrap()
    };
    TestWorld { stacks: [stack(a, 1), stack(b, 2)], events: [Vec::new(), Vec::new()], v6: false }
}

/// Returns two stacks on a virtual clock, with a connection between them.
fn on_virtual_clock(
    clock: &Clock,
) -> (TestWorld, Box<dyn TransportStream>, Box<dyn TransportStream>) {
    let mut world = stacks_on_virtual_clock(clock);
    let (client, server) = world.pair();
    (world, client, server)
}

/// Lets minutes pass, from deadline to deadline.
fn minutes_pass(world: &mut TestWorld, clock: &Clock) {
    let end = clock.now() + Duration::from_secs(180);
    while clock.now() < end {
        world.step();
        let next =
            world.stacks.iter().filter_map(TransportStack::deadline).chain([end]).min().unwrap();
        clock.advance(next.saturating_duration_since(clock.now()));
    }
    world.step();
}

/// smoltcp discards received data when TIME-WAIT ends.
#[test]
fn received_bytes_outlive_connection() {
    let clock = Clock::virtual_time();
    let (mut world, mut client, mut server) = on_virtual_clock(&clock);
    client.shutdown().unwrap();
    world.step();
    server.send(&[IoVec::from(&b"last words"[..])]).unwrap();
    server.shutdown().unwrap();
    minutes_pass(&mut world, &clock);
    client.set_interest(Interest::READ).unwrap();
    world.step();
    assert!(world.reported(0, 1).is_some_and(|event| event.readable));
    let mut block = [0; 20];
    assert_eq!(client.recv(&mut [IoVecMut::from(&mut block[..])]).unwrap(), 10);
    minutes_pass(&mut world, &clock);
    for stream in [&mut client, &mut server] {
        assert_eq!(stream.recv(&mut [IoVecMut::from(&mut block[..])]).unwrap(), 0, "the FIN");
    }
}

#[test]
fn nothing_is_left_of_closed_connections() {
    let clock = Clock::virtual_time();
    for read_late in [false, true] {
        let (mut world, client, server) = on_virtual_clock(&clock);
        if read_late {
            // Both FINs have arrived before the streams are dropped.
            let [mut one, mut other] = [client, server];
            one.shutdown().unwrap();
            other.shutdown().unwrap();
            minutes_pass(&mut world, &clock);
            drop((one, other));
        } else {
            drop(client);
            world.step();
            drop(server);
        }
        minutes_pass(&mut world, &clock);
        for stack in &world.stacks {
            assert!(stack.interface.lock().is_empty(), "a connection is kept");
            assert_eq!(stack.deadline(), None);
        }
    }
}

/// The peer takes minutes to read the data, but is never silent for long.
#[test]
fn slow_reader_gets_all_bytes_of_dropped_stream() {
    let clock = Clock::virtual_time();
    let (mut world, mut client, mut server) = on_virtual_clock(&clock);
    let bytes = pattern(64 << 10);
    let mut sent = 0;
    while let Ok(count) = client.send(&[IoVec::from(&bytes[..])]) {
        sent += count;
        world.step();
    }
    drop(client);
    let (mut received, mut block) = (0, vec![0; sent / 20]);
    loop {
        for _ in 0..100 {
            clock.advance(Duration::from_millis(100));
            world.step();
        }
        match server.recv(&mut [IoVecMut::from(&mut block[..])]).expect("no reset") {
            0 => break,
            count => received += count,
        }
    }
    assert_eq!(received, sent);
}

/// A stream that was read in part keeps the descriptor readable, like a poll that reports it.
#[test]
fn descriptor_readable_while_events_pending() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    let fd = world.stacks[1].wait_fd().unwrap();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = || poll(&mut [PollFd::new(&*fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1;
    client.send(&[IoVec::from(&b"12"[..])]).unwrap();
    world.until(|world| world.reported(1, 2).is_some_and(|event| event.readable));
    let mut byte = [0];
    for _ in 0..2 {
        assert!(ready());
        assert_eq!(server.recv(&mut [IoVecMut::from(&mut byte[..])]).unwrap(), 1);
        world.step();
    }
    world.until(|_| !ready());
    client.send(&[IoVec::from(&b"34"[..])]).unwrap();
    // The data was taken from the link, and left by a peek.
    world.until(|_| server.peek().is_ok_and(|buf| buf.is_some()));
    assert!(ready());
    server.peek().unwrap().unwrap().consume(2, RemainingBytes::Useful);
    world.until(|_| !ready());
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn send_of_unmapped_memory_fails() {
    extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: `context` is that of this signal.
        if !unsafe { uiw_mem::recover::recover(context) } {
            std::process::abort();
        }
    }
    // SAFETY: all fields of the action may be zero, and the handler has the type that SA_SIGINFO
    // requires.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
    }
    let mut world = TestWorld::new(1500, false);
    let (mut client, mut server) = world.pair();
    // SAFETY: only a recoverable copy accesses the bytes. Page 0 is never mapped.
    let nowhere = unsafe { IoVec::from_raw(std::ptr::without_provenance(16), 100) };
    assert!(uiw_llp::is_memory_fault(&client.send(&[nowhere]).unwrap_err()));
    assert_eq!(client.send(&[IoVec::from(&b"good"[..]), nowhere]).unwrap(), 4);
    let mut bytes = [0; 8];
    let mut count = 0;
    world.until(|_| {
        count = server.recv(&mut [IoVecMut::from(&mut bytes[..])]).unwrap_or(0);
        count > 0
    });
    assert_eq!(bytes[..count], *b"good");
}
