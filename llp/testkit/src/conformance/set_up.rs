//! Connecting, listening, accepting.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, LISTENER, Pair, SERVER, Session, expect_kind, pattern, recv, send,
    small_buffers,
};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use std::collections::HashSet;
use std::io::ErrorKind;
use uiw_llp::{Interest, ListenConfig, Token, TransportConfig, TransportStream};

define_checks! {
    connect_and_accept: "a connection is established, and events report it at both ends",
    undecided: "calls during a connection attempt return WouldBlock",
    refused: "connecting to a closed port fails with ConnectionRefused, repeatedly",
    accept_would_block: "accept returns WouldBlock if no connection waits",
    several_waiting: "a listener is readable until all waiting connections are accepted",
    many_connections: "data and events of many connections are not mixed up",
    backlog: "a full backlog loses no connection that the listener has accepted",
    data_before_accept: "data that arrived before accept is reported after it",
    peer_closed_while_queued: "a connection whose peer sent data and closed before accept is accepted",
    peer_reset_while_queued: "a reset before accept leaves no event",
    listener_dropped: "a dropped listener refuses connections, and its streams continue",
    listener_dropped_with_queue: "dropping a listener resets its waiting connections",
    attempt_dropped: "a connection attempt that is dropped immediately leaves nothing behind",
}

fn connect_and_accept(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    let mut server = s.accept(&mut *listener, ACCEPTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    let again = client.connect_result().map_err(unexpected("connect_result"))?;
    ensure!(again, "connect_result says true only once");
    let accepted =
        server.connect_result().map_err(unexpected("connect_result of an accepted stream"))?;
    ensure!(accepted, "an accepted stream is not connected");
    Ok(())
}

fn undecided(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    // The attempt may be decided immediately.
    if !client.connect_result().map_err(unexpected("connect_result at once"))? {
        expect_kind(
            "send before the connection is made",
            send(&mut *client, b"x"),
            ErrorKind::WouldBlock,
        )?;
        expect_kind(
            "recv before the connection is made",
            recv(&mut *client, 1),
            ErrorKind::WouldBlock,
        )?;
    }
    drop(s.accept(&mut *listener, ACCEPTED)?);
    s.wait_connected(&mut *client, CONNECTED)
}

fn refused(s: &mut Session) -> Verdict {
    let listener = s.listen()?;
    let closed_port = listener.local_addr();
    drop(listener);
    s.wait_idle()?;
    let mut client =
        match s.stack(CLIENT).connect(None, closed_port, &TransportConfig::default(), CONNECTED) {
            // The refusal may be known immediately.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            client => client.map_err(unexpected("connect"))?,
        };
    s.until("an event of the refused attempt", |s| Ok(s.is_writable(CLIENT, CONNECTED)))?;
    ensure!(
        s.is_readable(CLIENT, CONNECTED),
        "the event of an error is both readable and writable"
    );
    for _ in 0..2 {
        expect_kind("connect_result", client.connect_result(), ErrorKind::ConnectionRefused)?;
    }
    Ok(())
}

fn accept_would_block(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    expect_kind("accept without a connection", listener.accept(ACCEPTED), ErrorKind::WouldBlock)?;
    s.never("an event of a listener without a waiting connection", |s| {
        Ok(s.event(SERVER, LISTENER).is_some())
    })?;
    let _client = s.connect(listener.local_addr(), CONNECTED)?;
    let _server = s.accept(&mut *listener, ACCEPTED)?;
    expect_kind(
        "accept without another connection",
        listener.accept(Token(9)),
        ErrorKind::WouldBlock,
    )?;
    s.never("an event of a listener without a connection any more", |s| {
        Ok(s.event(SERVER, LISTENER).is_some())
    })
}

fn several_waiting(s: &mut Session) -> Verdict {
    const COUNT: u64 = 8;
    let mut listener = s.listen()?;
    let mut clients = Vec::new();
    for number in 0..COUNT {
        let mut client = s.connect(listener.local_addr(), Token(number))?;
        s.wait_connected(&mut *client, Token(number))?;
        clients.push(client);
    }
    let mut expected: HashSet<_> = clients.iter().map(|client| client.local_addr()).collect();
    for number in 0..COUNT {
        let server = s.accept(&mut *listener, Token(100 + number))?;
        ensure!(
            expected.remove(&server.peer_addr()),
            "{} was accepted, which did not connect",
            server.peer_addr()
        );
    }
    expect_kind(
        "accept without another connection",
        listener.accept(ACCEPTED),
        ErrorKind::WouldBlock,
    )
}

fn many_connections(s: &mut Session) -> Verdict {
    const COUNT: usize = 100;
    let small = small_buffers();
    let listen = ListenConfig { stream: small.clone(), ..ListenConfig::default() };
    let mut listener = s.listen_with(&listen)?;
    let to = listener.local_addr();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for number in 0..COUNT {
        let token = Token(number as u64);
        let client =
            s.stack(CLIENT).connect(None, to, &small, token).map_err(unexpected("connect"))?;
        clients.push(client);
    }
    for number in 0..COUNT {
        servers.push(s.accept(&mut *listener, Token(1000 + number as u64))?);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        s.until("the attempt is decided", |_| {
            client.connect_result().map_err(unexpected("connect_result"))
        })?;
        client.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
        ensure!(
            matches!(send(&mut **client, &[number as u8]), Ok(1)),
            "a connection has no room for a byte"
        );
    }
    // Each server returns what it has received when an event reports it.
    let mut heard = HashSet::new();
    s.until("every server's bytes are reported", |s| {
        let reported: Vec<_> = s.events(SERVER).to_vec();
        for event in reported.iter().filter(|event| event.readable && event.token != LISTENER) {
            let at = event.token.0.checked_sub(1000).and_then(|at| usize::try_from(at).ok());
            let server = at.and_then(|at| servers.get_mut(at));
            let Some(server) = server else {
                return Err(CheckStop::Failed(format!(
                    "an event of {:?}, which does not exist",
                    event.token
                )));
            };
            let name =
                recv(&mut **server, 100).map_err(unexpected("recv after a readable event"))?;
            ensure!(
                name.len() == 1 && heard.insert(at),
                "{} bytes, and {at:?} was reported twice",
                name.len()
            );
            ensure!(
                matches!(send(&mut **server, &name), Ok(1)),
                "a connection has no room for a byte"
            );
        }
        Ok(heard.len() == COUNT)
    })?;
    let mut answered = HashSet::new();
    s.until("every client's answer is reported", |s| {
        let reported: Vec<_> = s.events(CLIENT).to_vec();
        for event in reported.iter().filter(|event| event.readable) {
            let at = usize::try_from(event.token.0).unwrap_or(usize::MAX);
            let Some(client) = clients.get_mut(at) else {
                return Err(CheckStop::Failed(format!(
                    "an event of {:?}, which does not exist",
                    event.token
                )));
            };
            let name =
                recv(&mut **client, 100).map_err(unexpected("recv after a readable event"))?;
            ensure!(name == [at as u8], "client {at} got {name:?}");
            ensure!(answered.insert(at), "client {at} was answered twice");
        }
        Ok(answered.len() == COUNT)
    })
}

fn backlog(s: &mut Session) -> Verdict {
    const COUNT: u64 = 12;
    const BACKLOG: u32 = 4;
    let mut listener =
        s.listen_with(&ListenConfig { backlog: BACKLOG, ..ListenConfig::default() })?;
    let mut clients = Vec::new();
    for number in 0..COUNT {
        clients.push((Token(number), s.connect(listener.local_addr(), Token(number))?));
    }
    s.wait_idle()?;
    // Attempts that found no room are refused or retried. Each accepted connection belongs to one
    // of the other attempts and can send.
    for number in 0..BACKLOG {
        let token = Token(100 + u64::from(number));
        let mut server = s.accept(&mut *listener, token)?;
        let peer = server.peer_addr();
        let of_it = |(_, client): &(Token, Box<dyn TransportStream>)| client.local_addr() == peer;
        let at = clients.iter().position(of_it);
        let at = at.ok_or_else(|| {
            CheckStop::Failed(format!("{peer} was accepted, which did not connect"))
        })?;
        let (client_token, mut client) = clients.swap_remove(at);
        s.wait_connected(&mut *client, client_token)?;
        s.send_all((SERVER, token), &mut *server, b"hello")?;
        s.expect((CLIENT, client_token), &mut *client, b"hello")?;
    }
    Ok(())
}

fn data_before_accept(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    s.send_all((CLIENT, CONNECTED), &mut *client, b"early")?;
    s.wait_idle()?;
    let mut server = s.accept(&mut *listener, ACCEPTED)?;
    s.until("an event of bytes that came before accept", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"early")
}

fn peer_closed_while_queued(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    let bytes = pattern(2000);
    s.send_all((CLIENT, CONNECTED), &mut *client, &bytes)?;
    drop(client);
    s.wait_idle()?;
    let mut server = s.accept(&mut *listener, ACCEPTED)?;
    s.expect((SERVER, ACCEPTED), &mut *server, &bytes)?;
    s.expect_fin((SERVER, ACCEPTED), &mut *server)
}

fn peer_reset_while_queued(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    client.abort();
    s.wait_idle()?;
    // The stack may skip the connection, or return a stream that reports the reset.
    match listener.accept(ACCEPTED) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => return Err(unexpected("accept")(error)),
        Ok(mut server) => {
            s.until("an event of the reset", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
            expect_kind(
                "recv of a reset stream",
                recv(&mut *server, 1),
                ErrorKind::ConnectionReset,
            )?;
        }
    }
    s.never("an event of a listener without a waiting connection", |s| {
        Ok(s.event(SERVER, LISTENER).is_some())
    })?;
    let _client = s.connect(listener.local_addr(), CONNECTED)?;
    s.accept(&mut *listener, ACCEPTED).map(drop)
}

fn listener_dropped(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener } = s.pair()?;
    let at = listener.local_addr();
    drop(listener);
    s.send_all((CLIENT, CONNECTED), &mut *client, b"still here")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"still here")?;
    s.never("an event of a dropped listener", |s| Ok(s.event(SERVER, LISTENER).is_some()))?;
    let late = Token(9);
    let mut late_client = match s.stack(CLIENT).connect(None, at, &TransportConfig::default(), late)
    {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
        client => client.map_err(unexpected("connect"))?,
    };
    s.until("an event of the refused attempt", |s| Ok(s.is_writable(CLIENT, late)))?;
    expect_kind("connect_result", late_client.connect_result(), ErrorKind::ConnectionRefused)
}

fn listener_dropped_with_queue(s: &mut Session) -> Verdict {
    let listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    s.wait_idle()?;
    drop(listener);
    client.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    s.until("an event of the connection that was not accepted", |s| {
        Ok(s.is_readable(CLIENT, CONNECTED))
    })?;
    match recv(&mut *client, 1) {
        Ok(bytes) => ensure!(bytes.is_empty(), "a byte that was not sent"),
        Err(error) => {
            ensure!(error.kind() == ErrorKind::ConnectionReset, "recv: {error}");
        }
    }
    Ok(())
}

fn attempt_dropped(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    drop(s.connect(listener.local_addr(), CONNECTED)?);
    s.never("an event of a dropped attempt", |s| Ok(s.event(CLIENT, CONNECTED).is_some()))?;
    // If the connection was established before, it is closed. Its token may be used again.
    if let Ok(mut server) = listener.accept(Token(9)) {
        s.until("the end of a dropped attempt", |_| match recv(&mut *server, 1) {
            Ok(bytes) => Ok(bytes.is_empty()),
            Err(error) => Ok(error.kind() == ErrorKind::ConnectionReset),
        })?;
    }
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    let mut server = s.accept(&mut *listener, ACCEPTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    s.send_all((CLIENT, CONNECTED), &mut *client, b"again")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"again")
}
