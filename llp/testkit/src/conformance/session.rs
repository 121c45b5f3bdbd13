//! Drives the stacks of one check in the same way as the engine, and contains functions that
//! several checks use.

use super::{Advance, CheckStop, Peers, Verdict, ensure, unexpected};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uiw_llp::{
    Event, Interest, ListenConfig, Token, TransportConfig, TransportListener, TransportStack,
    TransportStream,
};
use uiw_mem::{IoVec, IoVecMut};

/// Numbers of the stacks in a session. Shards that a check creates have higher numbers.
pub(super) const CLIENT: usize = 0;
pub(super) const SERVER: usize = 1;

/// Tokens of a [`Pair`]. Each is used in only one stack.
pub(super) const LISTENER: Token = Token(1 << 40 | 1);
pub(super) const CONNECTED: Token = Token(1 << 40 | 2);
pub(super) const ACCEPTED: Token = Token(1 << 40 | 3);

/// Number of successive rounds without an event after which a check gives up if it advances the
/// clock.
const SILENT_ROUNDS: u32 = 10_000;
/// Maximum number of rounds of a check that advances the clock.
const ROUNDS: u32 = 100_000;
/// Number of rounds in which an event must not occur.
const NEVER_ROUNDS: u32 = 20;
/// Maximum time of each of these rounds if the clock cannot be advanced.
const NEVER_REST: Duration = Duration::from_millis(2);
/// Interval at which a stack without a descriptor is polled.
const BLIND: Duration = Duration::from_millis(1);
/// Maximum time for the stacks to close at the end of a check. The outcome is already known by
/// then.
const WIND_DOWN: Duration = Duration::from_secs(2);

/// State of one check, with its stacks.
pub(super) struct Session {
    stacks: Vec<DrivenStack>,
    pub(super) ips: [IpAddr; 2],
    advance: Option<Advance>,
    timeout: Duration,
}

struct DrivenStack {
    stack: Box<dyn TransportStack>,
    wait: Option<Arc<OwnedFd>>,
    /// True if the descriptor or the deadline asks for a poll.
    due: bool,
    /// Events that the last poll reported; empty if the stack was not polled in this round.
    events: Vec<Event>,
}

/// Connection, with the listener that has accepted it.
pub(super) struct Pair {
    pub(super) client: Box<dyn TransportStream>,
    pub(super) server: Box<dyn TransportStream>,
    pub(super) listener: Box<dyn TransportListener>,
}

impl Session {
    pub(super) fn new(peers: Peers) -> Self {
        let Peers { stacks, ips, advance, timeout } = peers;
        let mut session = Self { stacks: Vec::new(), ips, advance, timeout };
        for stack in stacks {
            session.add(stack);
        }
        session
    }

    /// Adds another stack to drive. Returns its number.
    pub(super) fn add(&mut self, stack: Box<dyn TransportStack>) -> usize {
        let wait = stack.wait_fd();
        self.stacks.push(DrivenStack { stack, wait, due: true, events: Vec::new() });
        self.stacks.len() - 1
    }

    /// Removes the stack that was added last.
    pub(super) fn take_last(&mut self) -> Option<Box<dyn TransportStack>> {
        self.stacks.pop().map(|driven| driven.stack)
    }

    pub(super) fn stack(&mut self, which: usize) -> &mut dyn TransportStack {
        &mut *self.stacks[which].stack
    }

    /// Returns the descriptor of a stack for a check that needs one.
    pub(super) fn wait_fd(&self, which: usize) -> Verdict<Arc<OwnedFd>> {
        self.stacks[which].wait.clone().ok_or(CheckStop::NotOffered("a descriptor to wait for"))
    }

    /// Returns the time to wait for a required event.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Polls every stack.
    pub(super) fn poll(&mut self) -> Verdict {
        self.stacks.iter_mut().for_each(|driven| driven.due = true);
        self.poll_due()
    }

    /// Polls the stacks that have requested it.
    fn poll_due(&mut self) -> Verdict {
        for which in 0..self.stacks.len() {
            if self.stacks[which].due {
                self.poll_one(which)?;
            }
        }
        Ok(())
    }

    /// Polls one stack.
    pub(super) fn poll_one(&mut self, which: usize) -> Verdict {
        let driven = &mut self.stacks[which];
        driven.events.clear();
        driven.stack.poll(&mut driven.events).map_err(unexpected("poll"))?;
        let silent = driven.events.iter().find(|event| !event.readable && !event.writable);
        ensure!(silent.is_none(), "an event without readiness: {silent:?}");
        Ok(())
    }

    /// Returns the event that the last poll of a stack reported for a token, if any. Several events
    /// of one token are combined.
    pub(super) fn event(&self, which: usize, token: Token) -> Option<Event> {
        let reported = self.stacks[which].events.iter().filter(|event| event.token == token);
        reported.copied().reduce(|one, other| Event {
            token,
            readable: one.readable || other.readable,
            writable: one.writable || other.writable,
        })
    }

    pub(super) fn events(&self, which: usize) -> &[Event] {
        &self.stacks[which].events
    }

    pub(super) fn is_readable(&self, which: usize, token: Token) -> bool {
        self.event(which, token).is_some_and(|event| event.readable)
    }

    pub(super) fn is_writable(&self, which: usize, token: Token) -> bool {
        self.event(which, token).is_some_and(|event| event.writable)
    }

    /// Polls the stacks and sleeps, like the engine, until `done` returns true.
    pub(super) fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Verdict<bool>,
    ) -> Verdict {
        let begin = Instant::now();
        let (mut rounds, mut silent) = (0, 0);
        self.poll()?;
        loop {
            if done(self)? {
                return Ok(());
            }
            rounds += 1;
            silent = if self.stacks.iter().all(|driven| driven.events.is_empty()) {
                silent + 1
            } else {
                0
            };
            let left = self.timeout.saturating_sub(begin.elapsed());
            let over = match self.advance {
                Some(_) => silent > SILENT_ROUNDS || rounds > ROUNDS,
                None => left.is_zero(),
            };
            if over {
                break;
            }
            self.sleep(left);
            self.poll_due()?;
        }
        self.poll()?;
        Err(CheckStop::Failed(match done(self)? {
            true => format!("no wake-up: {what}. Only a poll without a wake-up reported it"),
            false => format!("waited in vain: {what}"),
        }))
    }

    /// Sleeps until a stack has an event or its deadline has passed, for at most `longest`.
    fn sleep(&mut self, longest: Duration) {
        let deadline = |driven: &DrivenStack| {
            let (deadline, now) = (driven.stack.deadline()?, driven.stack.now());
            Some((deadline, deadline.saturating_duration_since(now)))
        };
        let next = self.stacks.iter().filter_map(deadline).min_by_key(|(_, left)| *left);
        if let Some(advance) = &mut self.advance {
            advance(next.map(|(at, _)| at));
            self.stacks.iter_mut().for_each(|driven| driven.due = true);
            return;
        }
        // A stack without a descriptor is polled repeatedly, as a program with `Progress::Manual`
        // does.
        let blind = self.stacks.iter().any(|driven| driven.wait.is_none()).then_some(BLIND);
        let sleep = next.map(|(_, left)| left).into_iter().chain(blind).chain([longest]).min();
        let fds: Vec<_> = self.stacks.iter().map(|driven| driven.wait.as_deref()).collect();
        let reported = ready(&fds, sleep.unwrap_or(longest));
        for (driven, reported) in self.stacks.iter_mut().zip(reported) {
            let late = driven.stack.deadline().is_some_and(|at| at <= driven.stack.now());
            driven.due = reported || late || driven.wait.is_none();
            driven.events.clear();
        }
    }

    /// Runs some rounds in which `bad` must not return true.
    pub(super) fn never(
        &mut self,
        what: &str,
        mut bad: impl FnMut(&mut Self) -> Verdict<bool>,
    ) -> Verdict {
        for _ in 0..NEVER_ROUNDS {
            self.poll()?;
            ensure!(!bad(self)?, "{what}");
            self.sleep(NEVER_REST);
        }
        Ok(())
    }

    /// Runs some rounds, so that data in flight arrives.
    pub(super) fn wait_idle(&mut self) -> Verdict {
        self.never("", |_| Ok(false))
    }

    // ---- connections ----

    /// Returns the address of a stack, with port 0.
    pub(super) fn at(&self, which: usize) -> SocketAddr {
        SocketAddr::new(self.ips[which], 0)
    }

    pub(super) fn listen(&mut self) -> Verdict<Box<dyn TransportListener>> {
        self.listen_with(&ListenConfig::default())
    }

    pub(super) fn listen_with(
        &mut self,
        options: &ListenConfig,
    ) -> Verdict<Box<dyn TransportListener>> {
        let at = self.at(SERVER);
        self.stack(SERVER).listen(at, options, LISTENER).map_err(unexpected("listen"))
    }

    pub(super) fn connect(
        &mut self,
        to: SocketAddr,
        token: Token,
    ) -> Verdict<Box<dyn TransportStream>> {
        let options = TransportConfig::default();
        self.stack(CLIENT).connect(None, to, &options, token).map_err(unexpected("connect"))
    }

    /// Waits until the connection attempt has succeeded.
    pub(super) fn wait_connected(
        &mut self,
        stream: &mut dyn TransportStream,
        token: Token,
    ) -> Verdict {
        self.made_on(CLIENT, stream, token)
    }

    pub(super) fn made_on(
        &mut self,
        which: usize,
        stream: &mut dyn TransportStream,
        token: Token,
    ) -> Verdict {
        self.until("a writable event of the connection attempt", |s| {
            Ok(s.is_writable(which, token))
        })?;
        let made = stream.connect_result().map_err(unexpected("connect_result"))?;
        ensure!(made, "connect_result says false after the writable event");
        Ok(())
    }

    /// Waits for the next connection and accepts it.
    pub(super) fn accept(
        &mut self,
        listener: &mut dyn TransportListener,
        token: Token,
    ) -> Verdict<Box<dyn TransportStream>> {
        self.until("a readable event of the listener", |s| Ok(s.is_readable(SERVER, LISTENER)))?;
        listener.accept(token).map_err(unexpected("accept after a readable event"))
    }

    /// Creates a connection, whose streams have their initial interests.
    pub(super) fn pair(&mut self) -> Verdict<Pair> {
        self.pair_with(&TransportConfig::default())
    }

    pub(super) fn pair_with(&mut self, options: &TransportConfig) -> Verdict<Pair> {
        let listen = ListenConfig { stream: options.clone(), ..ListenConfig::default() };
        let mut listener = self.listen_with(&listen)?;
        let to = listener.local_addr();
        let client = self.stack(CLIENT).connect(None, to, options, CONNECTED);
        let mut client = client.map_err(unexpected("connect"))?;
        let server = self.accept(&mut *listener, ACCEPTED)?;
        self.wait_connected(&mut *client, CONNECTED)?;
        Ok(Pair { client, server, listener })
    }

    // ---- bytes ----

    /// Checks that each of two polls reports `expected` (readable, writable) for a stream with
    /// `interest`.
    pub(super) fn reports(
        &mut self,
        (which, token): (usize, Token),
        interest: Interest,
        expected: Option<(bool, bool)>,
    ) -> Verdict {
        for _ in 0..2 {
            self.poll()?;
            let reported = self.event(which, token).map(|event| (event.readable, event.writable));
            ensure!(
                reported == expected,
                "{interest:?} is reported (readable, writable) = {reported:?}"
            );
        }
        Ok(())
    }

    /// Sends from the front of `bufs`. If there is no room, waits for a writable event, after which
    /// the call must succeed.
    pub(super) fn send_some(
        &mut self,
        (which, token): (usize, Token),
        stream: &mut dyn TransportStream,
        bufs: &[IoVec<'_>],
    ) -> Verdict<usize> {
        let count = match stream.send(bufs) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stream.set_interest(Interest::WRITE).map_err(unexpected("set_interest"))?;
                self.until("room to send", |s| Ok(s.is_writable(which, token)))?;
                stream.send(bufs).map_err(unexpected("send after a writable event"))?
            }
            result => result.map_err(unexpected("send"))?,
        };
        let given = IoVec::total(bufs);
        ensure!((1..=given).contains(&count), "send of {given} bytes took {count}");
        Ok(count)
    }

    /// Receives into `bufs`. If nothing has arrived, waits for a readable event, after which the
    /// call must succeed. 0 is the peer's FIN.
    pub(super) fn recv_some(
        &mut self,
        (which, token): (usize, Token),
        stream: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> Verdict<usize> {
        let count = match stream.recv(bufs) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stream.set_interest(Interest::READ).map_err(unexpected("set_interest"))?;
                self.until("bytes, or the end", |s| Ok(s.is_readable(which, token)))?;
                stream.recv(bufs).map_err(unexpected("recv after a readable event"))?
            }
            result => result.map_err(unexpected("recv"))?,
        };
        let room = IoVecMut::total(bufs);
        ensure!(count <= room, "recv into {room} bytes gave {count}");
        Ok(count)
    }

    /// Sends all of `bytes`.
    pub(super) fn send_all(
        &mut self,
        at: (usize, Token),
        stream: &mut dyn TransportStream,
        bytes: &[u8],
    ) -> Verdict {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.send_some(at, stream, &[IoVec::from(&bytes[sent..])])?;
        }
        Ok(())
    }

    /// Receives `len` bytes, or fewer if the peer's FIN comes before.
    pub(super) fn recv_upto(
        &mut self,
        at: (usize, Token),
        stream: &mut dyn TransportStream,
        len: usize,
    ) -> Verdict<Vec<u8>> {
        let mut all = vec![0; len];
        let mut got = 0;
        while got < len {
            match self.recv_some(at, stream, &mut [IoVecMut::from(&mut all[got..])])? {
                0 => break,
                count => got += count,
            }
        }
        all.truncate(got);
        Ok(all)
    }

    /// Receives exactly `bytes`.
    pub(super) fn expect(
        &mut self,
        at: (usize, Token),
        stream: &mut dyn TransportStream,
        bytes: &[u8],
    ) -> Verdict {
        let got = self.recv_upto(at, stream, bytes.len())?;
        expect_same(&got, bytes)
    }

    /// Receives the peer's FIN, and nothing before it.
    pub(super) fn expect_fin(
        &mut self,
        at: (usize, Token),
        stream: &mut dyn TransportStream,
    ) -> Verdict {
        let got = self.recv_upto(at, stream, 1)?;
        ensure!(got.is_empty(), "a byte where the FIN was due");
        Ok(())
    }

    /// Gives the stacks time to send remaining data, so that dropping a stack does not wait for it.
    pub(super) fn wind_down(&mut self) {
        let end = Instant::now() + WIND_DOWN;
        for _ in 0..SILENT_ROUNDS {
            // All stacks are drained, even if the first one is not done.
            let mut done = true;
            for driven in &mut self.stacks {
                done &= driven.stack.drain();
            }
            if done || Instant::now() > end || self.poll().is_err() {
                return;
            }
            self.sleep(NEVER_REST);
        }
    }
}

/// Waits until one of the descriptors is readable. Returns which of them are.
pub(super) fn ready(fds: &[Option<&OwnedFd>], longest: Duration) -> Vec<bool> {
    let set = fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
    let mut set: Vec<_> = set.collect();
    // The time is rounded up, because a time-out before a deadline would only cause another round.
    let nanos = longest.as_nanos() as i64 + 1;
    let timeout = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    // An interrupted call counts as a wake-up.
    let interrupted = rustix::event::poll(&mut set, Some(&timeout)).is_err();
    let mut set = set.into_iter();
    let reported = |fd: &Option<&OwnedFd>| {
        interrupted || fd.is_some_and(|_| set.next().is_some_and(|fd| !fd.revents().is_empty()))
    };
    fds.iter().map(reported).collect()
}

/// Returns the first `len` bytes of a pattern in which positions are distinguishable.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + (at >> 8) * 7 + (at >> 16) * 13) as u8).collect()
}

/// Compares the bytes, and reports the first difference.
pub(super) fn expect_same(got: &[u8], expected: &[u8]) -> Verdict {
    let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
    ensure!(differs.is_none(), "byte {} differs", differs.unwrap_or(0));
    ensure!(got.len() == expected.len(), "{} of {} bytes came", got.len(), expected.len());
    Ok(())
}

/// Checks that the result is an error of this kind.
pub(super) fn expect_kind<T>(what: &str, result: io::Result<T>, kind: ErrorKind) -> Verdict {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => {
            Err(CheckStop::Failed(format!("{what}: {:?} instead of {kind:?}", error.kind())))
        }
        Ok(_) => Err(CheckStop::Failed(format!("{what}: success instead of {kind:?}"))),
    }
}

/// Returns nothing if the call would block. Any other error is unexpected.
pub(super) fn unless_blocked<T: Default>(what: &str, result: io::Result<T>) -> Verdict<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(T::default()),
        result => result.map_err(unexpected(what)),
    }
}

/// Returns options with small buffers.
pub(super) fn small_buffers() -> TransportConfig {
    let buffer = Some(64 << 10);
    TransportConfig { send_buffer: buffer, recv_buffer: buffer, ..TransportConfig::default() }
}

/// Receives once, into `len` bytes.
pub(super) fn recv(stream: &mut dyn TransportStream, len: usize) -> io::Result<Vec<u8>> {
    let mut block = vec![0; len];
    let count = stream.recv(&mut [IoVecMut::from(&mut block[..])])?;
    block.truncate(count);
    Ok(block)
}

/// Sends once.
pub(super) fn send(stream: &mut dyn TransportStream, bytes: &[u8]) -> io::Result<usize> {
    stream.send(&[IoVec::from(bytes)])
}
