//! Datagrams, if the stack supports them. A path may lose datagrams, so they are sent until they
//! arrive.

use super::session::{CLIENT, SERVER, Session, expect_kind, pattern};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use std::io::ErrorKind;
use std::net::SocketAddr;
use uiw_llp::{DATAGRAM_BUFFER, DatagramConfig, DatagramSocket, Interest, Outgoing, Token};

define_checks! {
    datagram_ports: "port 0 gives a free port, and a port is bound once",
    datagram_both_ways: "datagrams arrive unchanged and with their sender",
    datagram_boundaries: "datagrams sent with one call arrive separately",
    datagram_interest: "every poll reports a ready socket according to its interest",
    datagram_closed: "a dropped socket is not reported, and its port is free",
}

const HERE: Token = Token(1 << 41 | 1);
const THERE: Token = Token(1 << 41 | 2);
/// Number of times that a datagram is sent before it is considered not to arrive.
const TRIES: u32 = 50;

type Socket = Box<dyn DatagramSocket>;

fn bind(s: &mut Session, which: usize, at: SocketAddr, token: Token) -> Verdict<Socket> {
    match s.stack(which).bind_datagrams(at, &DatagramConfig::default(), token) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Err(CheckStop::NotOffered("datagrams"))
        }
        result => result.map_err(unexpected("bind_datagrams")),
    }
}

/// Returns a socket of each stack, with the interest in reading.
fn pair(s: &mut Session) -> Verdict<(Socket, Socket)> {
    let (here, there) = (s.at(CLIENT), s.at(SERVER));
    let mut one = bind(s, CLIENT, here, HERE)?;
    let mut other = bind(s, SERVER, there, THERE)?;
    for socket in [&mut one, &mut other] {
        socket.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    }
    Ok((one, other))
}

/// Receives available datagrams, each with its sender.
fn receive(socket: &mut Socket) -> Verdict<Vec<(SocketAddr, Vec<u8>)>> {
    let (mut buffer, mut incoming) = (vec![0; 2 * DATAGRAM_BUFFER], Vec::new());
    let mut all = Vec::new();
    loop {
        incoming.clear();
        match socket.recv(&mut buffer, &mut incoming) {
            Ok(()) => ensure!(!incoming.is_empty(), "recv succeeds without a datagram"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(all),
            Err(error) => return Err(unexpected("recv")(error)),
        }
        for run in &incoming {
            all.extend(run.each().map(|bytes| (run.peer, buffer[bytes].to_vec())));
        }
    }
}

/// Sends `datagrams` to `peer`. Waits if there is no room.
fn send(
    s: &mut Session,
    (which, token): (usize, Token),
    socket: &mut Socket,
    peer: SocketAddr,
    datagrams: &[&[u8]],
) -> Verdict {
    let bytes = datagrams.concat();
    let run = |run: &[&[u8]]| Outgoing { count: run.len(), ..Outgoing::new(peer, run[0].len()) };
    let mut items: Vec<_> =
        datagrams.chunk_by(|one, next| one.len() == next.len()).map(run).collect();
    let (mut left, mut at) = (datagrams.len(), 0);
    while left > 0 {
        match socket.send(&bytes[at..], &items) {
            Ok(mut taken) => {
                ensure!((1..=left).contains(&taken), "send of {left} took {taken}");
                left -= taken;
                items.retain_mut(|item| {
                    let now = taken.min(item.count);
                    (taken, item.count, at) = (taken - now, item.count - now, at + now * item.len);
                    item.count > 0
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                socket.set_interest(Interest::BOTH).map_err(unexpected("set_interest"))?;
                s.until("room for a datagram", |s| Ok(s.is_writable(which, token)))?;
                socket.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
            }
            Err(error) => return Err(unexpected("send")(error)),
        }
    }
    Ok(())
}

/// Returns whether a readable event of `token` occurs within a few rounds.
fn becomes_readable(s: &mut Session, which: usize, token: Token) -> Verdict<bool> {
    let mut came = false;
    s.never("", |s| {
        came |= s.is_readable(which, token);
        Ok(false)
    })?;
    Ok(came)
}

fn datagram_ports(s: &mut Session) -> Verdict {
    let at = s.at(SERVER);
    let one = bind(s, SERVER, at, HERE)?;
    let bound = one.local_addr();
    ensure!(bound.port() != 0 && bound.ip() == at.ip(), "bound at {bound}");
    let other = bind(s, SERVER, at, THERE)?;
    ensure!(other.local_addr().port() != bound.port(), "one port for two sockets");
    let again = s.stack(SERVER).bind_datagrams(bound, &DatagramConfig::default(), THERE);
    expect_kind("binding a port again", again.map(drop), ErrorKind::AddrInUse)
}

fn datagram_both_ways(s: &mut Session) -> Verdict {
    let (mut one, mut other) = pair(s)?;
    expect_nothing(&mut one)?;
    let (here, there) = (one.local_addr(), other.local_addr());
    let message = pattern(700);
    exchange(s, (CLIENT, HERE, &mut one), (SERVER, THERE, &mut other), (here, there), &message)?;
    exchange(s, (SERVER, THERE, &mut other), (CLIENT, HERE, &mut one), (there, here), &message[..1])
}

/// Sends a datagram until it arrives.
fn exchange(
    s: &mut Session,
    (from, from_token, sender): (usize, Token, &mut Socket),
    (to, to_token, receiver): (usize, Token, &mut Socket),
    (source, target): (SocketAddr, SocketAddr),
    message: &[u8],
) -> Verdict {
    for _ in 0..TRIES {
        send(s, (from, from_token), sender, target, &[message])?;
        if !becomes_readable(s, to, to_token)? {
            continue;
        }
        let received = receive(receiver)?;
        ensure!(!received.is_empty(), "a readable event without a datagram");
        for (peer, bytes) in received {
            ensure!(peer == source, "a datagram of {source} is said to be of {peer}");
            ensure!(bytes == message, "{} of {} bytes, or others", bytes.len(), message.len());
        }
        return Ok(());
    }
    Err(CheckStop::Failed("no datagram arrives".to_owned()))
}

fn expect_nothing(socket: &mut Socket) -> Verdict {
    let nothing = socket.recv(&mut vec![0; DATAGRAM_BUFFER], &mut Vec::new());
    expect_kind("recv of nothing", nothing, ErrorKind::WouldBlock)
}

fn datagram_boundaries(s: &mut Session) -> Verdict {
    let (mut one, mut other) = pair(s)?;
    let bytes = pattern(1000);
    let datagrams: Vec<&[u8]> =
        [300, 300, 300, 120, 500, 500, 7, 900, 1, 1].map(|len| &bytes[..len]).to_vec();
    let mut seen = vec![false; datagrams.len()];
    for _ in 0..TRIES {
        let there = other.local_addr();
        send(s, (CLIENT, HERE), &mut one, there, &datagrams)?;
        becomes_readable(s, SERVER, THERE)?;
        for (_, got) in receive(&mut other)? {
            let known = datagrams.iter().position(|sent| *sent == got);
            ensure!(known.is_some(), "{} bytes arrive that were not sent as one", got.len());
            for (seen, sent) in seen.iter_mut().zip(&datagrams) {
                *seen |= *sent == got;
            }
        }
        if seen.iter().all(|seen| *seen) {
            return Ok(());
        }
    }
    Err(CheckStop::Failed(format!("arrived of {} datagrams: {seen:?}", datagrams.len())))
}

fn datagram_interest(s: &mut Session) -> Verdict {
    let (mut one, mut other) = pair(s)?;
    other.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    let there = other.local_addr();
    for _ in 0..TRIES {
        send(s, (CLIENT, HERE), &mut one, there, &[b"x"])?;
        ensure!(!becomes_readable(s, SERVER, THERE)?, "a socket without interest is reported");
        other.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
        if becomes_readable(s, SERVER, THERE)? {
            s.reports((SERVER, THERE), Interest::READ, Some((true, false)))?;
            receive(&mut other)?;
            return s.reports((SERVER, THERE), Interest::READ, None);
        }
        other.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    }
    Err(CheckStop::Failed("no datagram arrives".to_owned()))
}

fn datagram_closed(s: &mut Session) -> Verdict {
    let (mut one, other) = pair(s)?;
    let there = other.local_addr();
    send(s, (CLIENT, HERE), &mut one, there, &[b"x"])?;
    s.wait_idle()?;
    drop(other);
    s.poll()?;
    ensure!(s.event(SERVER, THERE).is_none(), "a dropped socket is reported");
    drop(bind(s, SERVER, there, THERE)?);
    Ok(())
}
