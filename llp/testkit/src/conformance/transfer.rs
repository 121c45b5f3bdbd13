//! Transfer of data: order, boundaries of calls, and behaviour without room.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, Pair, SERVER, Session, expect_kind, expect_same, pattern, recv,
    send, small_buffers, unless_blocked,
};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use std::io::ErrorKind;
use uiw_llp::Interest;
use uiw_mem::{IoVec, IoVecMut};

define_checks! {
    bytes_in_order: "a megabyte in each direction arrives complete and in order",
    both_ways_at_once: "the two directions do not disturb each other",
    gathered: "send uses its buffers in order, including empty ones",
    scattered: "recv fills its buffers in order, including empty ones",
    many_buffers: "with any number of buffers, the accepted bytes are the first ones",
    small_reads: "bytes that recv leaves are returned by the next call",
    no_bytes: "empty buffers fail with InvalidInput, and are not a FIN",
    memory_is_free_after_send: "memory of accepted bytes can be overwritten",
    recv_would_block: "recv returns WouldBlock if nothing has arrived",
    send_would_block: "send accepts bytes while there is room, then returns WouldBlock",
}

const HERE: (usize, uiw_llp::Token) = (CLIENT, CONNECTED);
const THERE: (usize, uiw_llp::Token) = (SERVER, ACCEPTED);

fn bytes_in_order(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(1 << 20);
    for _ in 0..2 {
        carry(s, (&mut *client, CONNECTED, CLIENT), (&mut *server, ACCEPTED, SERVER), &bytes)?;
        carry(s, (&mut *server, ACCEPTED, SERVER), (&mut *client, CONNECTED, CLIENT), &bytes)?;
    }
    Ok(())
}

/// One end: its stream, its token and the number of its stack.
type StreamEnd<'a> = (&'a mut dyn uiw_llp::TransportStream, uiw_llp::Token, usize);

/// Transfers `bytes`. Each end acts only after an event.
fn carry(s: &mut Session, from: StreamEnd<'_>, to: StreamEnd<'_>, bytes: &[u8]) -> Verdict {
    let ((from, from_token, from_stack), (to, to_token, to_stack)) = (from, to);
    from.set_interest(Interest::WRITE).map_err(unexpected("set_interest"))?;
    to.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    let (mut sent, mut got) = (0, Vec::with_capacity(bytes.len()));
    // Odd lengths are used, so that the boundaries of calls, segments and buffers do not coincide.
    let mut step = 1;
    s.until("all bytes arrive", |s| {
        if sent < bytes.len() && s.is_writable(from_stack, from_token) {
            step = step * 5 % 99_991 + 1;
            let part = &bytes[sent..bytes.len().min(sent + step)];
            sent += unless_blocked("send", send(&mut *from, part))?;
            if sent == bytes.len() {
                from.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
            }
        }
        if s.is_readable(to_stack, to_token) {
            let part = recv(&mut *to, 70_001).map_err(unexpected("recv after a readable event"))?;
            ensure!(!part.is_empty(), "a FIN that was not sent, after {} bytes", got.len());
            got.extend_from_slice(&part);
        }
        Ok(got.len() >= bytes.len())
    })?;
    expect_same(&got, bytes)
}

fn both_ways_at_once(s: &mut Session) -> Verdict {
    const LEN: usize = 300_000;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let there = pattern(LEN);
    let back: Vec<u8> = there.iter().map(|byte| !byte).collect();
    let (mut sent, mut got) = ([0; 2], [Vec::new(), Vec::new()]);
    for stream in [&mut client, &mut server] {
        stream.set_interest(Interest::BOTH).map_err(unexpected("set_interest"))?;
    }
    s.until("all bytes of both directions arrive", |s| {
        for end in [CLIENT, SERVER] {
            let (stream, token, bytes) = match end {
                CLIENT => (&mut client, CONNECTED, &there),
                _ => (&mut server, ACCEPTED, &back),
            };
            if sent[end] < LEN && s.is_writable(end, token) {
                let part = &bytes[sent[end]..];
                sent[end] += unless_blocked("send", send(&mut **stream, part))?;
            }
            if s.is_readable(end, token) {
                let part = recv(&mut **stream, 50_000);
                got[1 - end].extend(part.map_err(unexpected("recv after a readable event"))?);
            }
            if sent[end] == LEN {
                stream.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
            }
        }
        Ok(got.iter().all(|got| got.len() >= LEN))
    })?;
    expect_same(&got[CLIENT], &there)?;
    expect_same(&got[SERVER], &back)
}

fn gathered(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let parts = [&b""[..], b"one ", b"", b"", b"two ", b"three", b""];
    let whole = parts.concat();
    let mut sent = s.send_some(HERE, &mut *client, &parts.map(IoVec::from))?;
    while sent < whole.len() {
        sent +=
            s.send_some(HERE, &mut *client, &[IoVec::from(&b""[..]), IoVec::from(&whole[sent..])])?;
    }
    s.expect(THERE, &mut *server, &whole)
}

fn scattered(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, b"one two three")?;
    let mut got = Vec::new();
    while got.len() < 13 {
        let (mut a, mut b, mut c) = ([0; 5], [0; 2], [0; 20]);
        let (mut none, mut nothing) = ([0; 0], [0; 0]);
        let mut into = [&mut none[..], &mut a, &mut nothing, &mut b, &mut c].map(IoVecMut::from);
        let count = s.recv_some(THERE, &mut *server, &mut into)?;
        let all = [&a[..], &b, &c].concat();
        ensure!(count > 0, "a FIN that was not sent");
        got.extend_from_slice(&all[..count]);
        ensure!(all[count..].iter().all(|byte| *byte == 0), "recv wrote after what it gave");
    }
    expect_same(&got, b"one two three")
}

fn many_buffers(s: &mut Session) -> Verdict {
    const COUNT: usize = 3000;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(COUNT);
    let mut sent = 0;
    while sent < COUNT {
        let bufs: Vec<_> = bytes[sent..].chunks(1).map(IoVec::from).collect();
        sent += s.send_some(HERE, &mut *client, &bufs)?;
    }
    let mut got = Vec::new();
    while got.len() < COUNT {
        let mut block = vec![0; COUNT];
        let mut into: Vec<_> = block.chunks_mut(1).map(IoVecMut::from).collect();
        let count = s.recv_some(THERE, &mut *server, &mut into)?;
        ensure!(count > 0, "a FIN that was not sent");
        got.extend_from_slice(&block[..count]);
    }
    expect_same(&got, &bytes)
}

fn small_reads(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(2000);
    s.send_all(HERE, &mut *client, &bytes)?;
    let mut got = Vec::new();
    for len in (1..64).cycle() {
        if got.len() == bytes.len() {
            break;
        }
        let part = s.recv_upto(THERE, &mut *server, len.min(bytes.len() - got.len()))?;
        ensure!(!part.is_empty(), "a FIN that was not sent, after {} bytes", got.len());
        got.extend(part);
    }
    expect_same(&got, &bytes)?;
    expect_kind("recv of no more", recv(&mut *server, 1), ErrorKind::WouldBlock)
}

fn no_bytes(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    expect_kind("send of no buffer", client.send(&[]), ErrorKind::InvalidInput)?;
    expect_kind("send of an empty buffer", send(&mut *client, b""), ErrorKind::InvalidInput)?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    expect_kind("recv into no buffer", server.recv(&mut []), ErrorKind::InvalidInput)?;
    expect_kind("recv into an empty buffer", recv(&mut *server, 0), ErrorKind::InvalidInput)?;
    s.expect(THERE, &mut *server, b"x")
}

fn memory_is_free_after_send(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(4000);
    let mut sent = 0;
    while sent < bytes.len() {
        let mut memory = bytes[sent..bytes.len().min(sent + 700)].to_vec();
        s.send_all(HERE, &mut *client, &memory)?;
        sent += memory.len();
        memory.fill(0xEE);
    }
    s.expect(THERE, &mut *server, &bytes)
}

fn recv_would_block(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    for _ in 0..3 {
        expect_kind("recv of nothing", recv(&mut *server, 10), ErrorKind::WouldBlock)?;
        expect_kind("recv of nothing", recv(&mut *client, 10), ErrorKind::WouldBlock)?;
        s.wait_idle()?;
    }
    Ok(())
}

fn send_would_block(s: &mut Session) -> Verdict {
    const MOST: usize = 256 << 20;
    let Pair { mut client, mut server, listener: _listener } = s.pair_with(&small_buffers())?;
    client.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    server.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    let block = pattern(1 << 16);
    let mut sent = 0;
    // Bytes that the receiving stack takes free room in the sender's buffer.
    let mut full = 0;
    while full < 3 {
        match send(&mut *client, &block[sent % block.len()..]) {
            Ok(count @ 1..) => (sent, full) = (sent + count, 0),
            Ok(_) => {
                return Err(CheckStop::Failed("send took no byte, and says so as success".into()));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                s.wait_idle()?;
                full += 1;
            }
            Err(error) => return Err(unexpected("send")(error)),
        }
        ensure!(sent < MOST, "{sent} unread bytes were taken");
    }
    client.set_interest(Interest::WRITE).map_err(unexpected("set_interest"))?;
    s.never("a writable event of a stream without room", |s| {
        if !s.is_writable(CLIENT, CONNECTED) {
            return Ok(false);
        }
        // If bytes that the receiver took late have freed room, send must accept some bytes.
        match send(&mut *client, &block[sent % block.len()..]) {
            Ok(count @ 1..) => sent += count,
            _ => return Ok(true),
        }
        Ok(false)
    })?;
    let got = s.recv_upto(THERE, &mut *server, sent)?;
    let wrong = got.chunks(block.len()).any(|part| *part != block[..part.len()]);
    ensure!(got.len() == sent && !wrong, "{} of {sent} bytes came, wrong ones: {wrong}", got.len());
    s.until("a writable event when there is room again", |s| Ok(s.is_writable(CLIENT, CONNECTED)))?;
    match send(&mut *client, b"more") {
        Ok(1..=4) => Ok(()),
        other => Err(CheckStop::Failed(format!("send after a writable event: {other:?}"))),
    }
}
