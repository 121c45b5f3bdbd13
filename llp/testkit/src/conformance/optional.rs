//! Checks of optional abilities, and of options that a stack may ignore.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, LISTENER, Pair, SERVER, Session, expect_kind, expect_same,
    pattern, recv, send, small_buffers, unless_blocked,
};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::time::Duration;
use uiw_llp::{
    Interest, ListenConfig, OptionError, Readable, RecvBuf, RemainingBytes, StreamChange, Token,
    TransportConfig, TransportListener, TransportStream,
};

define_checks! {
    options: "every option is applied or ignored",
    wrong_congestion: "an unknown congestion control is ignored or fails with an OptionError",
    segment_size: "the effective segment size is plausible",
    info: "the counters of a stream do not exceed the real values",
    to_itself: "a stream connected to itself receives its own data and its own FIN",
    take_socket: "a stream returns its socket, or is unchanged",
    readable: "the amount of receivable data is reported, up to the FIN",
    readable_has_room: "there is room for the wanted number of bytes",
    peek_takes_nothing: "peeking leaves received bytes in the buffer",
    peek_and_consume: "consumed bytes are removed, and the rest is reported",
    peek_and_wait: "bytes that wait for more are reported when more have arrived",
    peek_at_the_fin: "an empty peek means the FIN",
    peek_round_the_buffer: "peeks return every byte, wherever the buffer ends",
}

const HERE: (usize, Token) = (CLIENT, CONNECTED);
const THERE: (usize, Token) = (SERVER, ACCEPTED);

fn options(s: &mut Session) -> Verdict {
    let all = TransportConfig {
        dead_after: Some(Duration::from_secs(17)),
        send_buffer: Some(100_000),
        recv_buffer: Some(100_000),
        tos: Some(0x28),
        ..TransportConfig::default()
    };
    let none = TransportConfig { dead_after: None, ..TransportConfig::default() };
    for options in [all, none] {
        let Pair { mut client, mut server, listener: _listener } = s.pair_with(&options)?;
        for (stream, after) in [(&mut server, Some(Duration::from_secs(18))), (&mut client, None)] {
            let set = stream
                .configure(&StreamChange { dead_after: Some(after), ..StreamChange::default() });
            ensure!(set.is_ok(), "dead_after {after:?}: {set:?}");
        }
        s.send_all(HERE, &mut *client, b"x")?;
        s.expect(THERE, &mut *server, b"x")?;
    }
    Ok(())
}

/// Checks that an option is ignored, or refused with an `InvalidInput` error that contains an
/// [`OptionError`].
fn ignored_or_named<T>(what: &str, result: io::Result<T>) -> Verdict<Option<T>> {
    match result {
        Ok(made) => Ok(Some(made)),
        Err(error) => {
            let inner =
                error.get_ref().and_then(|inner| inner.downcast_ref::<OptionError>()).is_some();
            ensure!(error.kind() == ErrorKind::InvalidInput && inner, "{what}: {error}");
            Ok(None)
        }
    }
}

fn wrong_congestion(s: &mut Session) -> Verdict {
    const NAME: &str = "unknown-control";
    let at = s.at(SERVER);
    let stream =
        TransportConfig { congestion: Some(NAME.to_owned()), ..TransportConfig::default() };
    let listen = ListenConfig { stream: stream.clone(), ..ListenConfig::default() };
    let listener: Option<Box<dyn TransportListener>> =
        ignored_or_named("listen", s.stack(SERVER).listen(at, &listen, LISTENER))?;
    drop(listener);
    let Pair { mut client, mut server, listener } = s.pair()?;
    let other = s.stack(CLIENT).connect(None, listener.local_addr(), &stream, Token(9));
    drop(ignored_or_named::<Box<dyn TransportStream>>("connect", other)?);
    let change = StreamChange { congestion: Some(NAME), ..StreamChange::default() };
    ignored_or_named("configure", client.configure(&change))?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.expect(THERE, &mut *server, b"x")
}

fn segment_size(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    for _ in 0..40 {
        for stream in [&client, &server] {
            // A path normally carries segments of at least 536 (IPv4) or 1220 bytes (IPv6) (RFC
            // 9293 section 3.7.1 and RFC 8200 section 5), but Linux accepts an MSS down to 48. A
            // packet has at most 65,535 bytes.
            let emss = stream.emss();
            ensure!((48..=65_535).contains(&emss), "an EMSS of {emss}");
        }
        s.send_all(HERE, &mut *client, &pattern(3000))?;
        s.expect(THERE, &mut *server, &pattern(3000))?;
    }
    Ok(())
}

fn info(s: &mut Session) -> Verdict {
    const LEN: u64 = 4000;
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, &pattern(LEN as usize))?;
    s.expect(THERE, &mut *server, &pattern(LEN as usize))?;
    s.wait_idle()?;
    let (ours, theirs) = (client.info(), server.info());
    // The kernel counts the SYN and the FIN as well.
    if let Some(acked) = ours.bytes_acked {
        ensure!(acked <= LEN + 2, "{acked} of {LEN} bytes are acknowledged");
    }
    if let Some(received) = theirs.bytes_received {
        ensure!((LEN..=LEN + 2).contains(&received), "{received} of {LEN} bytes were received");
    }
    client.abort();
    // The call must succeed regardless of the values.
    let _ = client.info();
    Ok(())
}

fn to_itself(s: &mut Session) -> Verdict {
    let at = s.at(CLIENT);
    let options = TransportConfig::default();
    let mut stream = match s.stack(CLIENT).connect_self(at, &options, CONNECTED) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return Err(CheckStop::NotOffered("a stream to itself"));
        }
        stream => stream.map_err(unexpected("connect_self"))?,
    };
    s.wait_connected(&mut *stream, CONNECTED)?;
    let ends = (stream.local_addr(), stream.peer_addr());
    ensure!(
        ends.0 == ends.1 && ends.0.ip() == at.ip() && ends.0.port() != 0,
        "its ends are {ends:?}"
    );
    let bytes = pattern(4000);
    s.send_all(HERE, &mut *stream, &bytes)?;
    s.expect(HERE, &mut *stream, &bytes)?;
    expect_kind("recv of nothing", recv(&mut *stream, 1), ErrorKind::WouldBlock)?;
    stream.shutdown().map_err(unexpected("shutdown"))?;
    s.expect_fin(HERE, &mut *stream)
}

/// Checks that the socket that `take_socket` returns still contains data that was received but not
/// read, and carries later data. If the stream has no socket, the call must not affect it.
fn take_socket(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let ends = (server.local_addr(), server.peer_addr());
    s.send_all(HERE, &mut *client, b"before")?;
    s.wait_idle()?;
    let socket = match server.take_socket() {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            s.expect(THERE, &mut *server, b"before")?;
            return Err(CheckStop::NotOffered("its socket"));
        }
        socket => std::net::TcpStream::from(socket.map_err(unexpected("take_socket"))?),
    };
    ensure!((server.local_addr(), server.peer_addr()) == ends, "the stream has lost its addresses");
    expect_kind("recv without the socket", recv(&mut *server, 1), ErrorKind::NotConnected)?;
    expect_kind("send without the socket", send(&mut *server, b"x"), ErrorKind::NotConnected)?;
    expect_kind("take_socket once more", server.take_socket(), ErrorKind::NotConnected)?;
    server.abort();
    drop(server);
    s.send_all(HERE, &mut *client, b" and behind")?;
    let mut got = Vec::new();
    s.until("the bytes reach the socket", |_| {
        let mut bytes = [0; 32];
        let count = unless_blocked("reading from the socket", (&socket).read(&mut bytes))?;
        got.extend_from_slice(&bytes[..count]);
        Ok(got.len() >= b"before and behind".len())
    })?;
    expect_same(&got, b"before and behind")?;
    s.never("an event of a stream without its socket", |s| {
        Ok(s.event(SERVER, ACCEPTED).is_some())
    })?;
    (&socket).write_all(b"back").map_err(unexpected("writing to the socket"))?;
    s.expect(HERE, &mut *client, b"back")?;
    drop(socket);
    s.expect_fin(HERE, &mut *client)
}

fn ask(stream: &mut dyn TransportStream, wanted: usize) -> Verdict<Readable> {
    let readable = stream.readable(wanted).map_err(unexpected("readable"))?;
    readable.ok_or(CheckStop::NotOffered("a count of what can be received"))
}

fn readable(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    ensure!(ask(&mut *server, 1)? == Readable::Bytes(0), "what was not sent is counted");
    s.send_all(HERE, &mut *client, b"0123456789")?;
    s.wait_idle()?;
    wait_readable(s)?;
    for wanted in [1, 10, 100_000] {
        let seen = ask(&mut *server, wanted)?;
        ensure!(seen == Readable::Bytes(10), "{seen:?} where 10 bytes wait");
    }
    // The last query asked for more bytes than have arrived, so an event may be missing until the
    // FIN arrives.
    client.shutdown().map_err(unexpected("shutdown"))?;
    s.until("the FIN is known", |_| Ok(ask(&mut *server, 100_000)? == Readable::All))?;
    wait_readable(s)?;
    s.expect(THERE, &mut *server, b"0123456789")
}

/// Number of bytes that is larger than the default receive buffer of a socket.
const MUCH: usize = 512 << 10;

fn readable_has_room(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let wait = |stream: &mut dyn TransportStream| Ok(ask(stream, MUCH)? == Readable::Bytes(MUCH));
    wait(&mut *server)?;
    let bytes = pattern(MUCH);
    let mut sent = 0;
    s.until("all bytes that are wanted are there, and none was received", |_| {
        if sent < MUCH {
            sent += unless_blocked("send", send(&mut *client, &bytes[sent..]))?;
        }
        wait(&mut *server)
    })?;
    s.expect(THERE, &mut *server, &bytes)
}

/// Result of [`uiw_llp::StreamExtensions::peek`].
enum PeekOutcome {
    Bytes(Box<dyn RecvBuf>),
    Fin,
    Nothing,
}

fn peek(stream: &mut dyn TransportStream) -> Verdict<PeekOutcome> {
    match stream.peek() {
        Ok(None) => Err(CheckStop::NotOffered("a peek at received bytes")),
        Ok(Some(mut buf)) => {
            Ok(if buf.bytes().is_empty() { PeekOutcome::Fin } else { PeekOutcome::Bytes(buf) })
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(PeekOutcome::Nothing),
        Err(error) => Err(unexpected("peek")(error)),
    }
}

/// Peeks at bytes that have arrived.
fn peek_bytes(stream: &mut dyn TransportStream) -> Verdict<Box<dyn RecvBuf>> {
    match peek(stream)? {
        PeekOutcome::Bytes(buf) => Ok(buf),
        PeekOutcome::Fin => Err(CheckStop::Failed("a peek says FIN where bytes are due".into())),
        PeekOutcome::Nothing => {
            Err(CheckStop::Failed("a peek would block where bytes are due".into()))
        }
    }
}

/// Returns a pair whose accepted end supports peeking.
fn peekable(s: &mut Session) -> Verdict<Pair> {
    let mut pair = s.pair()?;
    ensure!(
        matches!(peek(&mut *pair.server)?, PeekOutcome::Nothing),
        "a peek sees what was not sent"
    );
    Ok(pair)
}

fn wait_readable(s: &mut Session) -> Verdict {
    s.until("an event of the bytes", |s| Ok(s.is_readable(SERVER, ACCEPTED)))
}

fn peek_takes_nothing(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = peekable(s)?;
    s.send_all(HERE, &mut *client, b"0123456789")?;
    s.wait_idle()?;
    wait_readable(s)?;
    for _ in 0..2 {
        expect_same(peek_bytes(&mut *server)?.bytes(), b"0123456789")?;
    }
    s.poll()?;
    ensure!(s.is_readable(SERVER, ACCEPTED), "a peek that was dropped is not reported any more");
    s.expect(THERE, &mut *server, b"0123456789")?;
    ensure!(matches!(peek(&mut *server)?, PeekOutcome::Nothing), "a peek sees what was received");
    Ok(())
}

fn peek_and_consume(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = peekable(s)?;
    s.send_all(HERE, &mut *client, b"0123456789")?;
    s.wait_idle()?;
    wait_readable(s)?;
    let mut seen = peek_bytes(&mut *server)?;
    // The caller may change bytes in place. Bytes that remain in the buffer keep the changed
    // values.
    seen.bytes()[4] = b'X';
    seen.consume(4, RemainingBytes::Useful);
    s.poll()?;
    ensure!(s.is_readable(SERVER, ACCEPTED), "bytes that are of use are not reported any more");
    let mut seen = peek_bytes(&mut *server)?;
    expect_same(seen.bytes(), b"X56789")?;
    seen.consume(1, RemainingBytes::Useful);
    s.expect(THERE, &mut *server, b"56789")?;
    s.never("an event of a stream without bytes", |s| Ok(s.is_readable(SERVER, ACCEPTED)))
}

fn peek_and_wait(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = peekable(s)?;
    s.send_all(HERE, &mut *client, b"one, tw")?;
    s.wait_idle()?;
    wait_readable(s)?;
    let seen = peek_bytes(&mut *server)?;
    ensure!(seen.can_grow(5), "two bytes in an empty buffer cannot grow");
    seen.consume(5, RemainingBytes::WaitForMore);
    s.never("an event of bytes that are of no use", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    ensure!(matches!(peek(&mut *server)?, PeekOutcome::Nothing), "a peek does not wait for more");
    s.send_all(HERE, &mut *client, b"o")?;
    wait_readable(s)?;
    let mut seen = peek_bytes(&mut *server)?;
    expect_same(seen.bytes(), b"two")?;
    seen.consume(1, RemainingBytes::WaitForMore);
    // No more bytes arrive, so the remaining ones are reported as well.
    client.shutdown().map_err(unexpected("shutdown"))?;
    wait_readable(s)?;
    let mut seen = peek_bytes(&mut *server)?;
    ensure!(!seen.can_grow(0), "bytes before a FIN can grow");
    expect_same(seen.bytes(), b"wo")?;
    drop(seen);
    s.expect(THERE, &mut *server, b"wo")
}

fn peek_at_the_fin(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = peekable(s)?;
    client.shutdown().map_err(unexpected("shutdown"))?;
    wait_readable(s)?;
    for _ in 0..2 {
        ensure!(matches!(peek(&mut *server)?, PeekOutcome::Fin), "a peek does not see the FIN");
    }
    client.abort();
    server.abort();
    expect_kind("a peek at an aborted stream", server.peek().map(drop), ErrorKind::NotConnected)
}

fn peek_round_the_buffer(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair_with(&small_buffers())?;
    ensure!(matches!(peek(&mut *server)?, PeekOutcome::Nothing), "a peek sees what was not sent");
    let bytes = pattern(1 << 20);
    let (mut sent, mut got) = (0, Vec::new());
    client.set_interest(Interest::WRITE).map_err(unexpected("set_interest"))?;
    s.until("all bytes were seen", |s| {
        if s.is_writable(CLIENT, CONNECTED) {
            let part = &bytes[sent..bytes.len().min(sent + 20_000)];
            sent += unless_blocked("send", send(&mut *client, part))?;
            if sent == bytes.len() {
                client.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
            }
        }
        if s.is_readable(SERVER, ACCEPTED) {
            let mut seen = peek_bytes(&mut *server)?;
            // Pieces of seven bytes are consumed, as if they were messages. An incomplete piece
            // remains in the buffer.
            let len = seen.bytes().len();
            let take = len - len % 7;
            got.extend_from_slice(&seen.bytes()[..take]);
            if take < len && !seen.can_grow(take) {
                seen.consume(take, RemainingBytes::Useful);
                got.extend(
                    recv(&mut *server, len - take).map_err(unexpected("recv after a peek"))?,
                );
            } else {
                let last = got.len() + len - take == bytes.len();
                if last {
                    got.extend_from_slice(&seen.bytes()[take..]);
                }
                seen.consume(if last { len } else { take }, RemainingBytes::WaitForMore);
            }
        }
        Ok(got.len() >= bytes.len())
    })?;
    expect_same(&got, &bytes)
}
