//! Shards, and streams that move between them.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, Pair, SERVER, Session, expect_kind, expect_same, pattern, ready,
    recv, send, unless_blocked,
};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uiw_llp::{
    Event, Interest, ListenConfig, StreamExtensions, Token, TransportConfig, TransportStack,
    TransportStream,
};
use uiw_mem::{IoVec, IoVecMut};

define_checks! {
    without_shards: "without shards streams cannot move, and the calls fail with Unsupported",
    shard_of_its_own: "a shard can listen and connect, and reports only its own events",
    shard_outlives: "a shard works without the stack that created it",
    move_accepted: "an accepted stream moves to another shard without losing a byte",
    move_wakes: "an adopted stream with bytes wakes a thread that sleeps in the new shard",
    move_keeps_interest: "an adopted stream has the interest that it had",
    move_connecting: "a connecting stream moves to another shard",
    move_with_fin: "the new shard reports a FIN and a reset in flight",
    move_back: "a stream can move back to its previous shard",
    drop_detached: "dropping a detached stream closes it, and aborting it resets it",
    refused_adoption: "streams that are not detached or are foreign are not adopted, and stay unchanged",
    shards_at_once: "two threads drive two shards at the same time",
}

const HERE: (usize, Token) = (CLIENT, CONNECTED);
const MOVED: Token = Token(77);

/// Returns another shard of the server, which the session drives from now on.
fn shard(s: &mut Session) -> Verdict<usize> {
    let shard = s.stack(SERVER).shard().map_err(unexpected("shard"))?;
    Ok(s.add(shard.ok_or(CheckStop::NotOffered("shards"))?))
}

fn adopt(
    s: &mut Session,
    which: usize,
    stream: &mut Box<dyn TransportStream>,
    token: Token,
) -> Verdict {
    s.stack(which).adopt(stream, token).map_err(unexpected("adopt"))
}

fn detach(stream: &mut dyn TransportStream) -> Verdict {
    stream.detach().map_err(unexpected("detach"))
}

fn without_shards(s: &mut Session) -> Verdict {
    if s.stack(SERVER).shard().map_err(unexpected("shard"))?.is_some() {
        return Err(CheckStop::NotOffered("a stack that has no shards"));
    }
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    expect_kind("detach", server.detach(), ErrorKind::Unsupported)?;
    expect_kind("adopt", s.stack(SERVER).adopt(&mut server, MOVED), ErrorKind::Unsupported)?;
    ensure!(
        s.stack(SERVER).shard().is_ok_and(|shard| shard.is_none()),
        "shard has changed its answer"
    );
    s.send_all(HERE, &mut *client, b"x")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"x")
}

fn shard_of_its_own(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let fds = (s.stack(SERVER).wait_fd(), s.stack(shard).wait_fd());
    if let (Some(one), Some(other)) = fds {
        ensure!(!std::sync::Arc::ptr_eq(&one, &other), "two shards have one descriptor");
    }
    // Different shards may use the same tokens.
    let at = s.at(SERVER);
    let options = ListenConfig::default();
    let mut listener =
        s.stack(shard).listen(at, &options, ACCEPTED).map_err(unexpected("listen"))?;
    let first = s.pair()?;
    let taken = s.stack(shard).listen(first.listener.local_addr(), &options, Token(9));
    expect_kind("listening where another shard listens", taken, ErrorKind::AddrInUse)?;
    let mut client = s.connect(listener.local_addr(), Token(5))?;
    s.until("a connection to the shard", |s| {
        ensure!(
            s.event(SERVER, ACCEPTED).is_none(),
            "the event of a shard was reported by another one"
        );
        Ok(s.is_readable(shard, ACCEPTED))
    })?;
    let mut server = listener.accept(Token(6)).map_err(unexpected("accept"))?;
    s.wait_connected(&mut *client, Token(5))?;
    s.send_all((CLIENT, Token(5)), &mut *client, b"hello")?;
    s.expect((shard, Token(6)), &mut *server, b"hello")?;
    // The shard can connect as well.
    let to = first.listener.local_addr();
    let mut first_listener = first.listener;
    let out = s.stack(shard).connect(None, to, &TransportConfig::default(), Token(7));
    let mut out = out.map_err(unexpected("connect"))?;
    let mut accepted = s.accept(&mut *first_listener, Token(8))?;
    s.made_on(shard, &mut *out, Token(7))?;
    s.send_all((shard, Token(7)), &mut *out, b"out")?;
    s.expect((SERVER, Token(8)), &mut *accepted, b"out")
}

fn shard_outlives(s: &mut Session) -> Verdict {
    // A shard of a shard is created, and the shard between is dropped.
    let between = shard(s)?;
    let last = s.stack(between).shard().map_err(unexpected("shard of a shard"))?;
    let last =
        last.ok_or_else(|| CheckStop::Failed("a shard says that there are no shards".into()))?;
    drop(s.take_last());
    let last = s.add(last);
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    detach(&mut *server)?;
    adopt(s, last, &mut server, MOVED)?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.expect((last, MOVED), &mut *server, b"x")
}

fn move_accepted(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(4000);
    let (before, rest) = bytes.split_at(1500);
    let (between, after) = rest.split_at(1500);
    s.send_all(HERE, &mut *client, before)?;
    let mut got = s.recv_upto((SERVER, ACCEPTED), &mut *server, 1000)?;
    let addresses = (server.local_addr(), server.peer_addr());
    detach(&mut *server)?;
    detach(&mut *server)?;
    s.send_all(HERE, &mut *client, between)?;
    s.never("an event of a detached stream", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))?;
    adopt(s, shard, &mut server, MOVED)?;
    s.until("an event of bytes that came before", |s| Ok(s.is_readable(shard, MOVED)))?;
    s.send_all(HERE, &mut *client, after)?;
    got.extend(s.recv_upto((shard, MOVED), &mut *server, bytes.len() - got.len())?);
    expect_same(&got, &bytes)?;
    ensure!((server.local_addr(), server.peer_addr()) == addresses, "the addresses have changed");
    s.never("an event of a stream that left", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))?;
    // Data is transferred in both directions, as before.
    s.send_all((shard, MOVED), &mut *server, &bytes)?;
    s.expect(HERE, &mut *client, &bytes)?;
    drop(server);
    s.expect_fin(HERE, &mut *client)?;
    s.never("an event of a dropped stream", |s| Ok(s.event(shard, MOVED).is_some()))
}

fn move_wakes(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let fd = s.wait_fd(shard)?;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    detach(&mut *server)?;
    let timeout = s.timeout();
    let woken = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| ready(&[Some(&fd)], timeout).contains(&true));
        adopt(s, shard, &mut server, MOVED)?;
        Ok(sleeper.join().unwrap_or(false))
    })?;
    ensure!(woken, "the thread that sleeps in the descriptor of the new shard is not woken");
    s.poll_one(shard)?;
    ensure!(s.is_readable(shard, MOVED), "the first poll after adoption does not report it");
    s.expect((shard, MOVED), &mut *server, b"x")
}

fn move_keeps_interest(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    let mut here = SERVER;
    for (interest, expected) in [
        (Interest::NONE, None),
        (Interest::WRITE, Some((false, true))),
        (Interest::READ, Some((true, false))),
        (Interest::BOTH, Some((true, true))),
    ] {
        server.set_interest(interest).map_err(unexpected("set_interest"))?;
        detach(&mut *server)?;
        here = if here == SERVER { shard } else { SERVER };
        adopt(s, here, &mut server, MOVED)?;
        s.reports((here, MOVED), interest, expected)?;
    }
    Ok(())
}

fn move_connecting(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let mut listener = s.listen()?;
    let to = listener.local_addr();
    let stream = s.stack(SERVER).connect(None, to, &TransportConfig::default(), Token(4));
    let mut stream = stream.map_err(unexpected("connect"))?;
    detach(&mut *stream)?;
    adopt(s, shard, &mut stream, MOVED)?;
    s.made_on(shard, &mut *stream, MOVED)?;
    let mut accepted = s.accept(&mut *listener, ACCEPTED)?;
    s.send_all((shard, MOVED), &mut *stream, b"x")?;
    s.expect((SERVER, ACCEPTED), &mut *accepted, b"x")
}

fn move_with_fin(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    for is_reset in [false, true] {
        let Pair { mut client, mut server, listener: _listener } = s.pair()?;
        detach(&mut *server)?;
        if is_reset {
            client.abort();
        } else {
            s.send_all(HERE, &mut *client, b"last")?;
            client.shutdown().map_err(unexpected("shutdown"))?;
        }
        s.wait_idle()?;
        adopt(s, shard, &mut server, MOVED)?;
        s.until("an event of what came meanwhile", |s| Ok(s.is_readable(shard, MOVED)))?;
        if is_reset {
            expect_kind(
                "recv of a reset stream",
                recv(&mut *server, 9),
                ErrorKind::ConnectionReset,
            )?;
        } else {
            s.expect((shard, MOVED), &mut *server, b"last")?;
            s.expect_fin((shard, MOVED), &mut *server)?;
        }
    }
    Ok(())
}

fn move_back(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    for (round, which) in [shard, SERVER, SERVER, shard, shard].into_iter().enumerate() {
        let token = Token(200 + round as u64);
        let bytes = pattern(1000 + round);
        s.send_all(HERE, &mut *client, &bytes)?;
        detach(&mut *server)?;
        adopt(s, which, &mut server, token)?;
        s.expect((which, token), &mut *server, &bytes)?;
    }
    Ok(())
}

fn drop_detached(s: &mut Session) -> Verdict {
    let _shard = shard(s)?;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all((SERVER, ACCEPTED), &mut *server, b"x")?;
    detach(&mut *server)?;
    drop(server);
    s.expect(HERE, &mut *client, b"x")?;
    s.expect_fin(HERE, &mut *client)?;
    drop(client);
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    detach(&mut *server)?;
    server.abort();
    client.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    s.until("an event of the reset", |s| Ok(s.is_readable(CLIENT, CONNECTED)))?;
    expect_kind("recv of a reset stream", recv(&mut *client, 1), ErrorKind::ConnectionReset)?;
    expect_kind("detach of an aborted stream", server.detach(), ErrorKind::NotConnected)?;
    expect_kind(
        "adopt of an aborted stream",
        s.stack(SERVER).adopt(&mut server, MOVED),
        ErrorKind::NotConnected,
    )
}

fn refused_adoption(s: &mut Session) -> Verdict {
    let shard = shard(s)?;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    for which in [shard, SERVER] {
        let result = s.stack(which).adopt(&mut server, MOVED);
        expect_kind("adopt of a stream that is not detached", result, ErrorKind::InvalidInput)?;
    }
    let mut foreign: Box<dyn TransportStream> = Box::new(ForeignStream(s.at(CLIENT)));
    let result = s.stack(shard).adopt(&mut foreign, MOVED);
    expect_kind("adopt of a foreign stream", result, ErrorKind::InvalidInput)?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"x")?;
    s.never("an event of what was not adopted", |s| Ok(s.event(shard, MOVED).is_some()))
}

/// Stream that was created by no stack.
struct ForeignStream(SocketAddr);

impl TransportStream for ForeignStream {
    fn send(&mut self, _bufs: &[IoVec<'_>]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn recv(&mut self, _bufs: &mut [IoVecMut<'_>]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn set_interest(&mut self, _interest: Interest) -> io::Result<()> {
        Ok(())
    }

    fn connect_result(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn abort(&mut self) {}

    fn emss(&self) -> usize {
        1460
    }

    fn local_addr(&self) -> SocketAddr {
        self.0
    }

    fn peer_addr(&self) -> SocketAddr {
        self.0
    }
}

impl StreamExtensions for ForeignStream {
    fn detach(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Each thread has a connection from a shard to itself. The two threads use the same addresses, but
/// share no other state.
fn shards_at_once(s: &mut Session) -> Verdict {
    let mut shards = Vec::new();
    for _ in 0..2 {
        let which = shard(s)?;
        shards.extend(s.take_last().filter(|_| which > SERVER));
    }
    let (at, timeout) = (s.at(SERVER), s.timeout());
    let results = std::thread::scope(|scope| {
        let threads =
            shards.into_iter().map(|shard| scope.spawn(move || to_and_fro(shard, at, timeout)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    for result in results {
        result.unwrap_or_else(|_| Err(CheckStop::Failed("a thread panicked".into())))?;
    }
    Ok(())
}

/// Transfers a megabyte over a connection with both ends in `stack`.
fn to_and_fro(mut stack: Box<dyn TransportStack>, at: SocketAddr, timeout: Duration) -> Verdict {
    const LISTENING: Token = Token(0);
    let mut listener =
        stack.listen(at, &ListenConfig::default(), LISTENING).map_err(unexpected("listen"))?;
    let options = TransportConfig::default();
    let client = stack.connect(None, listener.local_addr(), &options, CONNECTED);
    let mut client = client.map_err(unexpected("connect"))?;
    let mut server: Option<Box<dyn TransportStream>> = None;
    let bytes = pattern(1 << 20);
    let (mut sent, mut got, mut events) = (0, Vec::new(), Vec::<Event>::new());
    let begin = Instant::now();
    while got.len() < bytes.len() {
        ensure!(begin.elapsed() < timeout, "{} bytes came, {sent} were sent", got.len());
        events.clear();
        stack.poll(&mut events).map_err(unexpected("poll"))?;
        for event in &events {
            match (event.token, &mut server) {
                (LISTENING, server @ None) => {
                    *server = Some(listener.accept(ACCEPTED).map_err(unexpected("accept"))?);
                }
                (CONNECTED, _) if sent == bytes.len() => {
                    client.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
                }
                (CONNECTED, _) => {
                    sent += unless_blocked("send", send(&mut *client, &bytes[sent..]))?;
                }
                (ACCEPTED, Some(server)) => {
                    got.extend(recv(&mut **server, 100_000).map_err(unexpected("recv"))?);
                }
                (token, _) => {
                    return Err(CheckStop::Failed(format!(
                        "an event of {token:?}, of another shard"
                    )));
                }
            }
        }
    }
    expect_same(&got, &bytes)
}
