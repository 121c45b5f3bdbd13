//! FIN, half-close, reset, drop.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, Pair, SERVER, Session, expect_kind, pattern, recv, send,
    unless_blocked,
};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use std::io::ErrorKind;
use uiw_llp::{Interest, Token};

define_checks! {
    fin: "shutdown sends a FIN after all data, and every poll reports the FIN",
    half_close: "after shutdown data can still be received",
    send_after_fin: "after shutdown send fails with BrokenPipe",
    fin_both_ways: "both ends can shut down, one after the other",
    shutdown_twice: "a second shutdown has no effect",
    drop_delivers: "data sent before a drop arrives, followed by the FIN",
    reset: "abort resets the connection, which is reported to the peer",
    reset_ends_sending: "after a reset the peer cannot send",
    aborted: "calls of an aborted stream fail with NotConnected, but it keeps its addresses",
    aborted_is_silent: "an aborted stream is no longer reported",
    drain: "after drain all sent data was transmitted",
}

const HERE: (usize, Token) = (CLIENT, CONNECTED);
const THERE: (usize, Token) = (SERVER, ACCEPTED);

fn fin(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(4000);
    s.send_all(HERE, &mut *client, &bytes)?;
    client.shutdown().map_err(unexpected("shutdown"))?;
    s.expect(THERE, &mut *server, &bytes)?;
    s.until("an event of the FIN", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    for _ in 0..3 {
        s.poll()?;
        ensure!(s.is_readable(SERVER, ACCEPTED), "the FIN is reported only once");
        let end = recv(&mut *server, 10).map_err(unexpected("recv of a FIN"))?;
        ensure!(end.is_empty(), "{} bytes after the FIN", end.len());
    }
    Ok(())
}

fn half_close(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    client.shutdown().map_err(unexpected("shutdown"))?;
    s.expect_fin(THERE, &mut *server)?;
    let bytes = pattern(300_000);
    let mut sent = 0;
    let mut got = Vec::new();
    server.set_interest(Interest::WRITE).map_err(unexpected("set_interest"))?;
    client.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    s.until("bytes after our FIN", |s| {
        if s.is_writable(SERVER, ACCEPTED) && sent < bytes.len() {
            sent += unless_blocked("send", send(&mut *server, &bytes[sent..]))?;
        }
        if s.is_readable(CLIENT, CONNECTED) {
            got.extend(recv(&mut *client, 50_000).map_err(unexpected("recv after our FIN"))?);
        }
        Ok(got.len() >= bytes.len())
    })?;
    super::session::expect_same(&got, &bytes)
}

fn send_after_fin(s: &mut Session) -> Verdict {
    let Pair { mut client, server: _server, listener: _listener } = s.pair()?;
    client.shutdown().map_err(unexpected("shutdown"))?;
    for _ in 0..2 {
        expect_kind("send after a FIN", send(&mut *client, b"x"), ErrorKind::BrokenPipe)?;
        s.wait_idle()?;
    }
    Ok(())
}

fn fin_both_ways(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, b"question")?;
    client.shutdown().map_err(unexpected("shutdown"))?;
    s.expect(THERE, &mut *server, b"question")?;
    s.expect_fin(THERE, &mut *server)?;
    s.send_all(THERE, &mut *server, b"answer")?;
    server.shutdown().map_err(unexpected("shutdown"))?;
    // The connection is finished from TCP's point of view (for a long time already, if the check
    // can move the clock), but the program has not read everything.
    s.wait_idle()?;
    s.expect(HERE, &mut *client, b"answer")?;
    s.expect_fin(HERE, &mut *client)?;
    s.wait_idle()?;
    for stream in [&mut client, &mut server] {
        let end = recv(&mut **stream, 10)
            .map_err(unexpected("recv of a stream that both ends closed"))?;
        ensure!(end.is_empty(), "{} bytes after the FIN", end.len());
    }
    Ok(())
}

fn shutdown_twice(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    client.shutdown().map_err(unexpected("shutdown"))?;
    if let Err(error) = client.shutdown() {
        ensure!(error.kind() == ErrorKind::NotConnected, "a second shutdown: {error}");
    }
    s.expect_fin(THERE, &mut *server)?;
    s.send_all(THERE, &mut *server, b"x")?;
    s.expect(HERE, &mut *client, b"x")
}

fn drop_delivers(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let bytes = pattern(200_000);
    let mut sent = 0;
    while sent < bytes.len()
        && let Ok(count @ 1..) = send(&mut *client, &bytes[sent..])
    {
        sent += count;
    }
    ensure!(sent > 0, "a new connection has no room");
    drop(client);
    s.expect(THERE, &mut *server, &bytes[..sent])?;
    s.expect_fin(THERE, &mut *server)
}

fn reset(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    client.abort();
    s.until("an event of the reset", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))?;
    let event = s.event(SERVER, ACCEPTED);
    ensure!(
        event.is_some_and(|event| event.readable && event.writable),
        "{event:?} reports a reset"
    );
    expect_kind("recv of a reset stream", recv(&mut *server, 10), ErrorKind::ConnectionReset)?;
    // From now on no call may block.
    for _ in 0..2 {
        match recv(&mut *server, 10) {
            Ok(bytes) => ensure!(bytes.is_empty(), "bytes after a reset"),
            Err(error) => {
                ensure!(error.kind() != ErrorKind::WouldBlock, "recv after a reset would block");
            }
        }
    }
    Ok(())
}

fn reset_ends_sending(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    client.abort();
    s.until("an event of the reset", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))?;
    match send(&mut *server, b"x") {
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        other => Err(CheckStop::Failed(format!("send of a reset stream: {other:?}"))),
    }
}

fn aborted(s: &mut Session) -> Verdict {
    let Pair { mut client, server: _server, listener: _listener } = s.pair()?;
    let addresses = (client.local_addr(), client.peer_addr());
    for _ in 0..2 {
        client.abort();
        expect_kind(
            "send of an aborted stream",
            send(&mut *client, b"x"),
            ErrorKind::NotConnected,
        )?;
        expect_kind("recv of an aborted stream", recv(&mut *client, 1), ErrorKind::NotConnected)?;
        expect_kind("shutdown of an aborted stream", client.shutdown(), ErrorKind::NotConnected)?;
        let result = client.connect_result();
        expect_kind("connect_result of an aborted stream", result, ErrorKind::NotConnected)?;
        // The interest is changed, because setting the same one again may do nothing.
        for interest in [Interest::BOTH, Interest::NONE] {
            let result = client.set_interest(interest);
            expect_kind("set_interest of an aborted stream", result, ErrorKind::NotConnected)?;
        }
        ensure!(
            (client.local_addr(), client.peer_addr()) == addresses,
            "the addresses have changed"
        );
        s.wait_idle()?;
    }
    Ok(())
}

fn aborted_is_silent(s: &mut Session) -> Verdict {
    let Pair { client: _client, mut server, listener: _listener } = s.pair()?;
    server.set_interest(Interest::BOTH).map_err(unexpected("set_interest"))?;
    server.abort();
    s.never("an event of an aborted stream", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))
}

fn drain(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    client.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    let bytes = pattern(100_000);
    let mut sent = 0;
    while sent < bytes.len()
        && let Ok(count @ 1..) = send(&mut *client, &bytes[sent..])
    {
        sent += count;
    }
    // The peer continues to read meanwhile.
    let (mut done, mut got) = (false, Vec::new());
    s.until("the stack has nothing left to do, and the bytes are there", |s| {
        done = done || s.stack(CLIENT).drain();
        got.extend(unless_blocked("recv", recv(&mut *server, 10_000))?);
        if !done {
            // The stack is polled until it is done.
            s.poll()?;
        }
        Ok(done && got.len() >= sent)
    })?;
    super::session::expect_same(&got, &bytes[..sent])
}
