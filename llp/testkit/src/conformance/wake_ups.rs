//! The descriptor: a thread that sleeps in it misses no event, and an idle one is not woken.

use super::session::{
    ACCEPTED, CLIENT, CONNECTED, LISTENER, Pair, SERVER, Session, expect_kind, ready, recv,
};
use super::{CheckStop, Verdict, define_checks, ensure, unexpected};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use uiw_llp::{Interest, Token};

define_checks! {
    same_descriptor: "wait_fd always returns the same descriptor",
    idle_descriptor: "the descriptor of an idle stack is not readable",
    woken_by_connection: "a connection wakes a thread that sleeps for a listener",
    woken_by_bytes: "bytes wake a sleeping thread",
    woken_by_fin: "a FIN wakes a sleeping thread",
    woken_by_reset: "a reset wakes a sleeping thread, without any interest",
    woken_by_interest: "an interest in something ready wakes a sleeping thread",
    woken_by_accept: "accept of a stream with bytes wakes a sleeping thread",
    recv_wakes_for_others: "data that the recv of another stream has received wakes a sleeping thread",
    descriptor_of_the_driver: "a descriptor that the driver added to the epoll set causes no event",
}

const HERE: (usize, Token) = (CLIENT, CONNECTED);

/// Returns the server's descriptor after polling the stack until the descriptor is not readable.
fn wait_quiet(s: &mut Session) -> Verdict<Arc<OwnedFd>> {
    let fd = s.wait_fd(SERVER)?;
    s.until("the descriptor of an idle stack is quiet", |s| {
        s.poll()?;
        Ok(s.events(SERVER).is_empty() && !is_ready(&fd, Duration::ZERO))
    })?;
    Ok(fd)
}

fn is_ready(fd: &OwnedFd, longest: Duration) -> bool {
    ready(&[Some(fd)], longest).contains(&true)
}

/// Calls `act` while a thread sleeps in the server's descriptor, and drives the client's stack
/// until the thread wakes. Then the server's poll must report the expected event.
fn wakes(s: &mut Session, expected: Token, act: impl FnOnce(&mut Session) -> Verdict) -> Verdict {
    let fd = wait_quiet(s)?;
    let timeout = s.timeout();
    let woken = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| is_ready(&fd, timeout));
        act(s)?;
        while !sleeper.is_finished() {
            s.poll_one(CLIENT)?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(sleeper.join().unwrap_or(false))
    })?;
    ensure!(woken, "the thread that sleeps in the descriptor is not woken");
    // A wake-up may be for a part of the expected data, because frames arrive one by one.
    s.until("the event", |s| Ok(s.is_readable(SERVER, expected)))
}

fn same_descriptor(s: &mut Session) -> Verdict {
    let _pair = s.pair()?;
    for which in [CLIENT, SERVER] {
        let fd = s.wait_fd(which)?;
        let again = s.stack(which).wait_fd();
        ensure!(
            again.is_some_and(|again| again.as_raw_fd() == fd.as_raw_fd()),
            "wait_fd has changed"
        );
    }
    Ok(())
}

fn idle_descriptor(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    client.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
    wait_quiet(s)?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"x")?;
    wait_quiet(s).map(drop)
}

fn woken_by_connection(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let to = listener.local_addr();
    let mut client = None;
    wakes(s, LISTENER, |s| {
        client = Some(s.connect(to, CONNECTED)?);
        Ok(())
    })?;
    listener.accept(ACCEPTED).map(drop).map_err(unexpected("accept after a readable event"))
}

fn woken_by_bytes(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    wakes(s, ACCEPTED, |s| s.send_all(HERE, &mut *client, b"x"))?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"x")
}

fn woken_by_fin(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    wakes(s, ACCEPTED, |_| client.shutdown().map_err(unexpected("shutdown")))?;
    s.expect_fin((SERVER, ACCEPTED), &mut *server)
}

fn woken_by_reset(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    server.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    wakes(s, ACCEPTED, |_| {
        client.abort();
        Ok(())
    })
}

fn woken_by_interest(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    server.set_interest(Interest::NONE).map_err(unexpected("set_interest"))?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.wait_idle()?;
    wakes(s, ACCEPTED, |_| server.set_interest(Interest::READ).map_err(unexpected("set_interest")))
}

fn woken_by_accept(s: &mut Session) -> Verdict {
    let mut listener = s.listen()?;
    let mut client = s.connect(listener.local_addr(), CONNECTED)?;
    s.wait_connected(&mut *client, CONNECTED)?;
    s.send_all(HERE, &mut *client, b"x")?;
    s.until("the listener is readable", |s| Ok(s.is_readable(SERVER, LISTENER)))?;
    s.wait_idle()?;
    let fd = s.wait_fd(SERVER)?;
    let mut server = listener.accept(ACCEPTED).map_err(unexpected("accept"))?;
    ensure!(is_ready(&fd, s.timeout()), "the thread that sleeps in the descriptor is not woken");
    s.until("the byte", |s| Ok(s.is_readable(SERVER, ACCEPTED)))?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"x")
}

fn recv_wakes_for_others(s: &mut Session) -> Verdict {
    let other = (Token(11), Token(12));
    let Pair { mut client, mut server, mut listener } = s.pair()?;
    let mut other_client = s.connect(listener.local_addr(), other.0)?;
    let mut other_server = s.accept(&mut *listener, other.1)?;
    s.wait_connected(&mut *other_client, other.0)?;
    let fd = wait_quiet(s)?;
    s.send_all((CLIENT, other.0), &mut *other_client, b"x")?;
    // The client's stack is polled, but not the server's, so only the calls of one stream receive
    // data.
    for _ in 0..20 {
        s.poll_one(CLIENT)?;
        expect_kind("recv of nothing", recv(&mut *server, 1), ErrorKind::WouldBlock)?;
    }
    ensure!(is_ready(&fd, s.timeout()), "the thread that sleeps for the other stream is not woken");
    s.until("the event of the other stream", |s| Ok(s.is_readable(SERVER, other.1)))?;
    s.expect((SERVER, other.1), &mut *other_server, b"x")?;
    s.send_all(HERE, &mut *client, b"y")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"y")
}

fn descriptor_of_the_driver(s: &mut Session) -> Verdict {
    let Pair { mut client, mut server, listener: _listener } = s.pair()?;
    let fd = wait_quiet(s)?;
    let system = |error: Errno| unexpected("eventfd")(io::Error::from(error));
    let own = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
    let all_bits = epoll::EventData::new_u64(u64::MAX);
    match epoll::add(&*fd, &own, all_bits, epoll::EventFlags::IN) {
        Err(Errno::INVAL) => return Err(CheckStop::NotOffered("an epoll set as its descriptor")),
        result => result.map_err(system)?,
    }
    ensure!(
        is_ready(&fd, s.timeout()),
        "an epoll set with a readable descriptor in it is not readable"
    );
    for _ in 0..3 {
        s.poll()?;
        let strange = s.events(SERVER).iter().find(|event| event.token != Token(u64::MAX));
        ensure!(strange.is_none(), "{strange:?} of a descriptor that is the driver's");
    }
    s.send_all(HERE, &mut *client, b"x")?;
    s.expect((SERVER, ACCEPTED), &mut *server, b"x")?;
    epoll::delete(&*fd, &own).map_err(system)
}
