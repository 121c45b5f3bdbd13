//! Interest and events.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, LISTENER, Pair, SERVER, Session, expect_kind, recv, send,
};
use super::{Verdict, define_checks, ensure, unexpected};
use std::io::ErrorKind;
use uiw_llp::{Event, Interest, Token};

define_checks! {
    first_interest: "a connecting stream is initially interested in writing, an accepted one in reading",
    level_triggered: "every poll reports readiness until it is used",
    only_what_was_asked: "events report exactly the requested interest",
    interest_later: "a new interest reports earlier readiness",
    readable_keeps_its_word: "after a readable event recv does not block",
    errors_without_interest: "a reset is reported even without any interest",
    dropped_is_silent: "a dropped stream is no longer reported",
    token_used_again: "the token of a dropped stream can be reused",
    events_are_appended: "poll keeps the caller's earlier events",
    clock: "the clock does not go backwards, and deadlines refer to it",
}

const HERE: (usize, Token) = (CLIENT, CONNECTED);

fn first_interest(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.never("an accepted stream is reported as writable", |s| Ok(s.is_writable(SERVER, ACCEPTED)))?;
    s.until("the connected stream is writable", |s| Ok(s.is_writable(CLIENT, CONNECTED)))?;
    s.send_all((SERVER, ACCEPTED), &mut *server, b"x")?;
    s.never("a stream that waits to write is reported as readable", |s| {
        Ok(s.is_readable(CLIENT, CONNECTED))
    })?;
    s.expect(HERE, &mut *client, b"x")?;
    server.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the accepted stream is readable", |s| Ok(s.is_readable(SERVER, ACCEPTED)))
}

fn level_triggered(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, b"0123456789")?;
    s.until("all bytes are there", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    s.wait_idle()?;
    for left in (1..=10).rev() {
        for _ in 0..3 {
            s.poll()?;
            ensure!(
                s.is_readable(SERVER, ACCEPTED),
                "{left} bytes are left, and a poll does not report them"
            );
        }
        let one = recv(&mut *server, 1).map_err(unexpected("recv after a readable event"))?;
        ensure!(one.len() == 1, "a FIN that was not sent");
    }
    s.never("a readable event of a stream without bytes", |s| Ok(s.is_readable(SERVER, ACCEPTED)))
}

fn only_what_was_asked(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    for (interest, expected) in [
        (Interest::NONE, None),
        (Interest::WRITE, Some((false, true))),
        (Interest::BOTH, Some((true, true))),
        (Interest::READ, Some((true, false))),
        (Interest::NONE, None),
    ] {
        server.set_interest(interest).map_err(unexpected("set_interest"))?;
        // Setting the same interest again has no effect.
        server.set_interest(interest).map_err(unexpected("set_interest"))?;
        s.reports((SERVER, ACCEPTED), interest, expected)?;
    }
    Ok(())
}

fn interest_later(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    server.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.never("an event of a stream without interest", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))?;
    server.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    s.until("an event of what came before", |s| Ok(s.is_readable(SERVER, ACCEPTED)))
}

fn readable_keeps_its_word(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    for round in 0..50u8 {
        ensure!(matches!(send(&mut *client, &[round]), Ok(1)), "no room for a byte");
        s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
        let got = recv(&mut *server, 10).map_err(unexpected("recv after a readable event"))?;
        ensure!(got == [round], "{got:?} instead of {round}");
    }
    Ok(())
}

fn errors_without_interest(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    server.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    client.abort();
    s.until("an event of the reset", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))?;
    let both = Event { token: ACCEPTED, readable: true, writable: true };
    ensure!(
        s.event(SERVER, ACCEPTED) == Some(both),
        "{:?} reports a reset",
        s.event(SERVER, ACCEPTED)
    );
    expect_kind("recv of a reset stream", recv(&mut *server, 1), ErrorKind::ConnectionReset)
}

fn dropped_is_silent(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    server.set_interest(Interest::BOTH).map_err(unexpected("set_interest"))?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    drop(server);
    s.never("an event of a dropped stream", |s| Ok(s.event(SERVER, ACCEPTED).is_some()))
}

fn token_used_again(s: &mut Session) -> Verdict {
    for round in 0..3 {
        let Pair { mut client, mut server, listener: _listener } = s.pair()?;
        s.send_all(HERE, &mut *client, &[round])?;
        s.expect((SERVER, ACCEPTED), &mut *server, &[round])?;
    }
    Ok(())
}

fn events_are_appended(s: &mut Session) -> Verdict {
    let Pair { mut client, listener: _listener, server: _server } = s.pair()?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    let before = Event { token: LISTENER, readable: true, writable: true };
    let mut events = vec![before; 3];
    s.stack(SERVER).poll(&mut events).map_err(unexpected("poll"))?;
    ensure!(events.len() > 3 && events[..3] == [before; 3], "poll made {events:?} of three events");
    Ok(())
}

fn clock(s: &mut Session) -> Verdict {
    const ROUNDS: usize = 50;
    let _pair = s.pair()?;
    s.wait_idle()?;
    for which in [CLIENT, SERVER] {
        let mut before = s.stack(which).now();
        let mut late = 0;
        for _ in 0..ROUNDS {
            s.poll_one(which)?;
            let now = s.stack(which).now();
            ensure!(now >= before, "the clock went back by {:?}", before - now);
            before = now;
            late += usize::from(s.stack(which).deadline().is_some_and(|at| at <= now));
        }
        ensure!(late < ROUNDS, "an idle stack has a deadline at once after every poll");
    }
    Ok(())
}
